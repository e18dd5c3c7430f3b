"""NativeSource: base of the sources of batches that our kernels sample for the DGL loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .blocks import BlockBuilder
from .columns import Columns
from .deferred import frame_of, gather_others, map_leaves, moved
from .graphbolt import import_dgl

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..graph.graph import EdgeType, Graph

dgl = import_dgl()


def node_columns(graph: Any, argument: str, names: Any) -> list[tuple[str, str]]:
    """(vertex type, name) of each column in a list or a mapping from type to lists.

    DGL's AssertionError for a list where there are several types, DGLError for an unknown type.
    """
    pairs = _pairs(argument, names, list(graph.ntypes))
    for ntype, _ in pairs:
        if ntype not in graph.ntypes:
            raise dgl.DGLError(
                f"{argument} must name types of the graph, {list(graph.ntypes)}; got {ntype!r}"
            )
    return pairs


def edge_columns(graph: Any, argument: str, names: Any) -> list[tuple[Any, str]]:
    """(canonical edge type, name) of every column, see :func:`node_columns`; types may have their
    middle names."""
    pairs = _pairs(argument, names, list(graph.canonical_etypes))
    return [(graph.to_canonical_etype(etype), name) for etype, name in pairs]


def _pairs(argument: str, names: Any, types: list[Any]) -> list[tuple[Any, str]]:
    if isinstance(names, Mapping):
        return [(type_, name) for type_, of_type in names.items() for name in of_type]
    if names and len(types) > 1:
        raise AssertionError(
            f"{argument} must be a dict from type to names for a graph of several types, {types}"
        )
    return [(types[0], name) for name in names or []]


def by_type(
    names: Sequence[tuple[Any, str]], rows: Iterator[Tensor]
) -> dict[Any, dict[str, Tensor]]:
    """Rows of columns, in their order, by type and name."""
    found: dict[Any, dict[str, Tensor]] = {}
    for type_, name in names:
        found.setdefault(type_, {})[name] = next(rows)
    return found


def num_ids(by_type: Mapping[Any, Tensor]) -> int:
    """Number of ids of all types."""
    count = 0
    for ids in by_type.values():
        count += ids.shape[0]
    return count


class NativeSource:
    """Reads the columns that a sampler prefetches, and moves batches to their device.

    Args:
        graph: A DGL graph on the CPU.
        core: Its edges as they are sampled.
        columns: Reads the columns.
        engine: Recycles memory, makes room.
        device: Device that batches are delivered on.
        weights: The column of edges that the sampler draws by, if any.
    """

    draw = None
    is_pure = True
    looks_ahead = True
    rereads = False
    build = None

    def __init__(
        self,
        graph: Any,
        core: Graph,
        *,
        columns: Columns,
        engine: Engine[Any],
        device: torch.device,
        weights: str | None = None,
    ) -> None:
        self._graph = graph
        self._ntype, self._idtype = graph.ntypes[0], graph.idtype
        self.columns = columns
        self._device = device
        self._fields, self._pools = engine.fields, engine.pools
        self.core = core
        self.builder = BlockBuilder(graph, core, self._pools)
        gather_others(graph, (weights,))

    def by_type(self, seeds: Any) -> Mapping[str, Tensor]:
        """Vertices of one type, as users may give them, by type."""
        return seeds if isinstance(seeds, Mapping) else {self._ntype: seeds}

    def as_dgls(self, nodes: Mapping[str, Tensor]) -> Any:
        """Vertices by type as DGL gives them: a tensor where there is one type."""
        return nodes[self._ntype] if len(nodes) == 1 else dict(nodes)

    def edge_field(self, etype: EdgeType, name: str) -> Tensor | None:
        """A column of edges, for the kernels."""
        frame = frame_of(self._graph, "edge", etype)
        values: Tensor | None = frame[name] if name in frame._columns else None
        return values

    def to_device(self, item: Any) -> Any:
        """The item where batches are delivered."""
        if self._device.type == "cpu":
            return item
        return self._fields.with_room(
            partial(map_leaves, item, partial(moved, device=self._device))
        )
