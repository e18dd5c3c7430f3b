"""Edge-wise batches: pair graphs, negative graphs and the blocks or subgraph of their vertices,
from our kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..cache.choice import Role
from ..engine.steps import Sampled
from ..graph.csc import as_ids, check_range
from ..sampling.edge_batches import edge_ends, negative_pairs
from ..sampling.negative import compact_pairs
from .convert import FixedExclusion, core_graph, excluded_sets
from .foreign_source import lock_of
from .graphbolt import import_dgl
from .native_sources import by_type, edge_columns, num_ids
from .workload import native_negatives

dgl = import_dgl()
from dgl.dataloading.base import find_exclude_eids  # noqa: E402

if TYPE_CHECKING:
    from ..graph.graph import EdgeType
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from .native_sources import NativeSource

Pairs = dict["EdgeType", tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Seed edges with the results of user callbacks, which run one at a time, in batch order."""

    key: int
    edges: dict[EdgeType, Tensor]
    negatives: Any
    exclude: Any


class _Sampled(NamedTuple):
    """An edge-wise batch, with that of its vertices."""

    edges: dict[EdgeType, Tensor]
    nodes: dict[str, Tensor]
    pairs: list[Pairs]
    inner: Any


class EdgeSource:
    """Mirrors ``dgl.dataloading.EdgePredictionSampler.sample``.

    Args:
        graph: A DGL graph on the CPU.
        edge_sampler: DGL's edge sampler.
        inner: Source of the blocks, or of a ShaDow sampler's subgraph.
    """

    is_pure = False
    looks_ahead = True
    rereads = False
    build = None

    def __init__(self, graph: Any, edge_sampler: Any, inner: NativeSource) -> None:
        self._graph = graph
        self._sampler = edge_sampler
        self._inner = inner
        core = core_graph(graph)  # The edges as they are, whichever way the blocks are sampled.
        self._csc = {etype: core.csc_of(etype) for etype in graph.canonical_etypes}
        self._negatives = native_negatives(edge_sampler.negative_sampler)
        self._lock = lock_of(edge_sampler)
        # Most samplers exclude the same edges in each batch: their sets are made once.
        self._fixed = FixedExclusion()
        self._label_names = edge_columns(graph, "prefetch_labels", edge_sampler.prefetch_labels)
        inner.columns.declare("edge", self._label_names, Role.OUTPUT)

    def draw(self, ticket: Ticket, recorder: EpochRecorder) -> _Drawn:
        """Call user callbacks in batch order, on their own RNG; seed edges get canonical types."""
        graph = self._graph
        sampler = self._sampler
        seeds: Any = ticket.seeds
        if isinstance(seeds, Mapping):
            edges = {graph.to_canonical_etype(etype): ids for etype, ids in seeds.items()}
            seeds = edges
        else:
            edges = {graph.canonical_etypes[0]: seeds}
        negatives = None
        exclude = sampler.exclude
        # The lock of the sampler, which other loaders may share; held for the user's functions
        # alone, which know of no lock of ours.
        with self._lock, recorder.time("sampling"):
            if sampler.negative_sampler is not None and self._negatives is None:
                negatives = sampler.negative_sampler(graph, seeds)
            if exclude is not None:
                exclude = find_exclude_eids(
                    graph, seeds, exclude, sampler.reverse_eids, sampler.reverse_etypes
                )
        return _Drawn(ticket.key, edges, negatives, exclude)

    def sample(self, drawn: _Drawn, recorder: EpochRecorder) -> Sampled:
        """Find the ends, draw negatives, number the vertices, sample their blocks; in any
        thread."""
        idtype = self._graph.idtype
        with recorder.time("sampling"):
            positive = edge_ends(self._csc, drawn.edges, idtype)
            groups = [positive]
            if self._sampler.negative_sampler is not None:
                groups.append(self._negative_pairs(drawn, positive))
            nodes, pairs = compact_pairs(self._inner.core, groups, idtype)
            make = self._fixed.sets if drawn.exclude is self._sampler.exclude else excluded_sets
            exclude = make(self._graph, self._inner.core, drawn.exclude)
        inner = self._inner.sample_from(nodes, drawn.key, recorder, exclude=exclude)
        # DGL's pair graphs have all edge types, those without seeds too.
        nothing = torch.empty(0, dtype=idtype, device="cpu")
        edges = {etype: drawn.edges.get(etype, nothing) for etype in self._graph.canonical_etypes}
        reads = [*inner.reads, *self._inner.columns.reads("edge", self._label_names, edges)]
        return Sampled(_Sampled(edges, nodes, pairs, inner.batch), reads)

    def _negative_pairs(self, drawn: _Drawn, positive: Pairs) -> Pairs:
        if self._negatives is not None:
            return negative_pairs(self._csc, positive, self._negatives, drawn.key)
        pairs = drawn.negatives
        if not isinstance(pairs, Mapping):
            if len(self._csc) != 1:
                raise AssertionError(
                    "the negative sampler must return a dict for a graph of several edge types, "
                    f"{list(self._csc)}"
                )
            pairs = {self._graph.canonical_etypes[0]: pairs}
        return {
            self._graph.to_canonical_etype(etype): self._checked(etype, ends)
            for etype, ends in pairs.items()
        }

    def _checked(self, etype: Any, ends: Any) -> tuple[Tensor, Tensor]:
        """Checked pairs of a user's negative sampler for one edge type, in the graph's id dtype."""
        src_type, _, dst_type = self._graph.to_canonical_etype(etype)
        src, dst = (as_ids("ends of negative pairs", ids) for ids in ends)
        if len(src) != len(dst):
            raise dgl.DGLError(
                f"negative pairs must have as many sources as destinations, got {len(src)}, "
                f"{len(dst)}"
            )
        check_range("sources of negative pairs", src, self._graph.num_nodes(src_type), dgl.DGLError)
        check_range(
            "destinations of negative pairs", dst, self._graph.num_nodes(dst_type), dgl.DGLError
        )
        return src.to(self._graph.idtype), dst.to(self._graph.idtype)

    def deliver(
        self, sampled: _Sampled, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """DGL's ``(input_nodes, pair_graph[, negative_graph], blocks or subgraph)``; in the
        reader's thread."""
        with recorder.time("building"):
            left = iter(rows or ())
            input_nodes, inner = self._inner.put_together(sampled.inner, left)
            builder = self._inner.builder
            structures = [builder.graph_structure(pairs, sampled.nodes) for pairs in sampled.pairs]
            edges = {etype: (ids, None) for etype, ids in sampled.edges.items()}
            labels = by_type(self._label_names, left)
            pair_graph = builder.graph(structures[0], sampled.nodes, edges, edge_rows=labels)
            negative = [
                builder.graph(structure, sampled.nodes, None) for structure in structures[1:]
            ]
            item = self._inner.to_device((input_nodes, pair_graph, *negative, inner))
        self._inner.count(sampled.inner, recorder, seeds=num_ids(sampled.edges))
        return item
