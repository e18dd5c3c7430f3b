"""What DGL's edge samplers exclude, as sets of positions that our kernels leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..graph.csc import as_ids
from ..graph.field_version import FieldVersion
from ..sampling.block_sampler import ExcludedEdges
from .graphbolt import import_dgl

dgl = import_dgl()

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph

__all__ = ["FixedExclusion", "excluded_sets"]

Sets = dict["EdgeType", ExcludedEdges]


def excluded_sets(graph: Any, core: Graph, exclude: Any) -> Sets:
    """The edges to leave out, by canonical edge type.

    Args:
        graph: The DGL graph whose ids and types ``exclude`` names.
        core: Its edges as they are sampled, by the same edge types.
        exclude: Ids of edges, a mapping from edge type to ids, or None. Ids outside the graph exclude nothing, as with
            DGL: -1 may stand for an edge without a reverse one.

    Raises:
        DGLError: There are several edge types and ``exclude`` is no mapping, or a type is unknown.
        TypeError: Ids are not integers.
        ValueError: Ids are not 1-D.
    """
    sets = {}
    for etype, ids in _by_type(graph, exclude).items():
        canonical = graph.to_canonical_etype(etype)
        csc, ids = core.csc_of(canonical), as_ids("ids of excluded edges", ids)
        sets[canonical] = ExcludedEdges(csc.positions_of(ids[(ids >= 0) & (ids < csc.num_edges)]))
    return sets


class FixedExclusion:
    """:func:`excluded_sets` of what stays the same from batch to batch, perhaps all test edges.

    One set serves as long as nobody writes to the tensors or puts others in their place. Safe from any thread.
    """

    def __init__(self) -> None:
        self._known: tuple[dict[Any, FieldVersion], Sets] | None = None

    def sets(self, graph: Any, core: Graph, exclude: Any) -> Sets:
        """See :func:`excluded_sets`; ids are tensors."""
        versions = {etype: FieldVersion.of(ids) for etype, ids in _by_type(graph, exclude).items()}
        known = self._known
        if known is None or known[0] != versions:
            known = self._known = versions, excluded_sets(graph, core, exclude)
        return known[1]


def _by_type(graph: Any, exclude: Any) -> Mapping[Any, Any]:
    if exclude is None:
        return {}
    if isinstance(exclude, Mapping):
        return exclude
    if len(graph.canonical_etypes) != 1:
        raise dgl.DGLError(
            f"excluded edges must be a mapping from edge type for a graph of {graph.canonical_etypes}, got ids alone"
        )
    return {graph.canonical_etypes[0]: exclude}
