"""ForeignSource, which runs any sampler's own code, and EdgeSource, for batches of seed edges."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover
from ..cache.choice import Role
from ..engine.steps import BatchSource, Sampled
from ..features.field import Read
from ..graph.csc import as_ids, check_range
from ..sampling.edge_batches import edge_ends, negative_pairs
from ..sampling.negative import compact_pairs
from ..system.threads import lock_of as _lock_of
from .columns import Columns, awaited
from .convert import FixedExclusion, core_graph, excluded_sets, structure_mark
from .deferred import (
    LazyColumn,
    find_lazy,
    map_leaves,
    materialise,
    moved,
    parent_columns,
    parent_storages,
    repoint,
)
from .graphbolt import import_dgl
from .native_sources import Outdated, by_type, edge_columns
from .workload import native_negatives

dgl = import_dgl()
from dgl.dataloading.base import find_exclude_eids  # noqa: E402
from dgl.frame import LazyFeature  # noqa: E402

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from .native_sources import NativeSource, Structure


class _Item(NamedTuple):
    """A sampler's item, and what is still to be filled in."""

    ticket: Ticket
    mark: Any = None
    """The graph's ``structure_mark``; None if it was changed before or while it was sampled."""
    item: Any = None
    waiting: Sequence[tuple[Any, Any]] = ()
    """Columns that are still to be gathered from the graph."""
    columns: Sequence[LazyColumn] = ()
    """Columns that reads will fill."""
    leaves: Handover | None = None
    """Leaves that the user's storages have fetched."""


class ForeignSource(BatchSource[Any]):
    """Batches from any sampler's own ``sample``; only their features are fetched by us.

    Not all of DGL's samplers are thread-safe (NeighborSampler's fused path is not). So calls of one
    sampler object are serialised over all loaders that share it.

    Args:
        graph: Anything that the sampler can sample from.
        sampler: Anything with ``sample(graph, indices)``.
        columns: Reads the columns.
        storages: Storages that LazyFeature leaves name (the loader's ``attach_data``).
        device: Device that batches are delivered on.
        move_seeds: Whether to move seeds to ``device`` before sampling, for graphs on a GPU.
        threads: Whether batches are sampled in other threads than the reader's.
        accelerator: The accelerator of ``device``, if any.
    """

    is_pure = False

    def __init__(
        self,
        graph: Any,
        sampler: Any,
        *,
        columns: Columns,
        storages: Mapping[str, Any],
        device: torch.device,
        move_seeds: bool,
        threads: bool,
        accelerator: Accelerator | None = None,
    ) -> None:
        self._graph = graph
        self._sampler = sampler
        self._columns = columns
        self._storages = storages
        self._device = device
        self._move_seeds = move_seeds
        self._threads = threads
        self._accelerator = accelerator
        self._lock = lock_of(sampler)
        self._may_change = isinstance(graph, dgl.DGLGraph)
        self._mark: Any = None
        self._look()

    def _look(self) -> None:
        """Look at the graph, of which threads sample until its edges are changed."""
        if self._may_change:
            mark = structure_mark(self._graph)
            if self._threads:  # they would do both at the same time
                self._graph.create_formats_()
                materialise(self._graph)
            self._mark = mark  # last: threads sample once it is the graph's

    def is_current(self, drawn: _Item) -> bool:
        """See ``BatchSource``; a graph of another class is not known to change."""
        return not self._may_change or drawn.mark is structure_mark(self._graph)

    def again(self, drawn: _Item, recorder: EpochRecorder) -> Sampled:
        """See ``BatchSource``; the user's sampler is called again."""
        self._look()
        return self.sample(self.draw(drawn.ticket, recorder), recorder)

    def draw(self, ticket: Ticket, recorder: EpochRecorder) -> _Item:
        """The sampler's own sampling."""
        mark = structure_mark(self._graph) if self._may_change else None
        # Not by a thread: its columns wait to be gathered, which two threads must not do at once.
        if self._threads and mark is not self._mark:
            return _Item(ticket)
        seeds = ticket.seeds
        if self._move_seeds:
            seeds = map_leaves(seeds, lambda x: x.to(self._device))
        # Read before the sampler runs: another thread may replace a column meanwhile, and then the
        # batch would hold one that the graph no longer has.
        before = parent_storages(self._graph)
        try:
            with self._lock, recorder.time("sampling"):
                item = self._sampler.sample(self._graph, seeds)
        except Exception:
            drawn = _Item(ticket, mark)
            if self.is_current(drawn):
                raise
            return drawn
        waiting = []
        for graph in _graphs(item):
            waiting += parent_columns(graph, self._graph, before)
        return _Item(ticket, mark, item, waiting)

    def sample(self, drawn: _Item, recorder: EpochRecorder) -> Sampled:
        """The reads of a batch that the sampler has drawn: the lazy columns of its graphs."""
        columns = [column for graph in _graphs(drawn.item) for column in find_lazy(graph)]
        reads = [Read(self._columns.key_of(c.kind, c.type, c.name), c.ids) for c in columns]
        after = None
        device = getattr(self._graph, "device", None)
        if self._accelerator is not None and device is not None and device.type != "cpu":
            # Ids that DGL has drawn there, or writes of the user to a column, may be pending.
            after = self._accelerator.current_stream.record()
        return Sampled(drawn._replace(columns=columns), reads, after)

    def build(self, drawn: _Item, rows: object) -> _Item:
        """Fetch the leaves that are in the user's storages."""
        if not self.is_current(drawn):
            return drawn
        leaves: list[Tensor] = []

        def fetched(leaf: Any) -> Any:
            if not isinstance(leaf, LazyFeature):
                return leaf
            leaves.append(awaited(self._storages[leaf.name].fetch(leaf.id_, self._device, False)))
            return leaves[-1]

        item = map_leaves(drawn.item, fetched)
        return drawn._replace(item=item, leaves=Handover.here(leaves, self._accelerator))

    def deliver(self, drawn: _Item, rows: Sequence[Tensor], recorder: EpochRecorder) -> Any:
        """The sampler's item, with every column filled in and every leaf on the device."""
        assert drawn.leaves is not None
        with recorder.time("building"):
            repoint(drawn.waiting)
            drawn.leaves.arrive()
            item = map_leaves(drawn.item, partial(moved, device=self._device))
            columns = drawn.columns
            # Moving made new graphs, whose lazy columns are in the same order.
            if self._device.type != "cpu":
                columns = [column for graph in _graphs(item) for column in find_lazy(graph)]
            for column, read in zip(columns, rows, strict=True):
                column.frame[column.key] = read
        graphs = _graphs(item)
        blocks = [graph for graph in graphs if graph.is_block]
        # Edges of the blocks, or if there are none of the last graph, the sampled subgraph.
        recorder.delivered(edges=sum(graph.num_edges() for graph in blocks or graphs[-1:]))
        return item


def _graphs(item: Any) -> list[Any]:
    """The DGL graphs in a sampler's item."""
    graphs: list[Any] = []
    map_leaves(item, lambda leaf: graphs.append(leaf) if isinstance(leaf, dgl.DGLGraph) else None)
    return graphs


def lock_of(sampler: Any) -> threading.RLock:
    """The lock of a sampler object, shared by all loaders; see ``system.threads.lock_of``.

    DGL's edge samplers wrap a node sampler, which has the state. So it is that of the innermost.
    """
    while isinstance(inner := getattr(sampler, "sampler", None), dgl.dataloading.Sampler):
        sampler = inner
    return _lock_of(sampler)


Pairs = dict["EdgeType", tuple[Tensor, Tensor]]


class _Ends(NamedTuple):
    """The edges of a graph between two changes, for batches that start from edges.

    Attributes:
        structure: As their vertices are sampled.
        csc: As they are, whichever way that is.
        fixed: Positions of the edges that every batch excludes.
    """

    structure: Structure
    csc: dict[EdgeType, CSC]
    fixed: FixedExclusion


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Seed edges with the results of user callbacks, which run serially in batch order."""

    ticket: Ticket
    ends: _Ends
    edges: dict[EdgeType, Tensor]
    negatives: Any
    exclude: Any


class _Sampled(NamedTuple):
    """A sampled edge-wise batch; ``inner`` is the batch of its vertices."""

    ticket: Ticket
    structure: Structure
    edges: dict[EdgeType, Tensor]
    nodes: dict[str, Tensor]
    pairs: list[Pairs]
    inner: Any


class EdgeSource(BatchSource[Any]):
    """Batches of seed edges over our kernels, like ``EdgePredictionSampler.sample`` of DGL.

    They have a pair graph, a negative graph, and the blocks or subgraph of these vertices.

    Args:
        graph: A DGL graph on the CPU.
        edge_sampler: DGL's edge sampler.
        inner: Source of the blocks, or of a ShaDow sampler's subgraph.
    """

    is_pure = False
    looks_ahead = True

    def __init__(self, graph: Any, edge_sampler: Any, inner: NativeSource) -> None:
        self._graph = graph
        self._sampler = edge_sampler
        self._inner = inner
        self.looks_ahead = inner.looks_ahead
        self._ends = self._seen()
        self._negatives = native_negatives(edge_sampler.negative_sampler)
        self._lock = lock_of(edge_sampler)
        self._label_names = edge_columns(graph, "prefetch_labels", edge_sampler.prefetch_labels)
        inner.columns.declare("edge", self._label_names, Role.OUTPUT)

    def _seen(self) -> _Ends:
        """The graph's edges, as ``inner`` saw them last."""
        core = core_graph(self._graph)
        csc = {etype: core.csc_of(etype) for etype in self._graph.canonical_etypes}
        # Most samplers exclude the same edges in every batch: so their sets are made once.
        return _Ends(self._inner.structure, csc, FixedExclusion())

    def _look(self) -> None:
        if self._inner.look() is not self._ends.structure:
            self._ends = self._seen()

    def is_current(self, sampled: Any) -> bool:
        """See ``BatchSource``."""
        return self._inner.is_current(sampled)

    def again(self, sampled: Any, recorder: EpochRecorder) -> Sampled:
        """See ``BatchSource``; the user's functions are called again."""
        self._look()
        return self.sample(self.draw(sampled.ticket, recorder), recorder)

    def draw(self, ticket: Ticket, recorder: EpochRecorder) -> _Drawn | Outdated:
        """Call user callbacks in batch order, with their own RNG; canonicalise edge types."""
        if not self._inner.ahead:
            self._look()
        ends = self._ends
        try:
            return self._drawn(ticket, ends, recorder)
        except Exception:
            if self._inner.is_current(ends):
                raise
            return Outdated(ticket)

    def _drawn(self, ticket: Ticket, ends: _Ends, recorder: EpochRecorder) -> _Drawn:
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
        # The sampler's lock, which other loaders may share. It is held only for the user's
        # functions, which take none of our locks.
        with self._lock, recorder.time("sampling"):
            if sampler.negative_sampler is not None and self._negatives is None:
                negatives = sampler.negative_sampler(graph, seeds)
            if exclude is not None:
                exclude = find_exclude_eids(
                    graph, seeds, exclude, sampler.reverse_eids, sampler.reverse_etypes
                )
        return _Drawn(ticket, ends, edges, negatives, exclude)

    def sample(self, drawn: _Drawn | Outdated, recorder: EpochRecorder) -> Sampled:
        """Find the ends, draw negatives, relabel the vertices, sample their blocks; thread-safe."""
        if isinstance(drawn, Outdated):
            return Sampled(drawn)
        try:
            return self._sampled(drawn, recorder)
        except Exception:
            if self._inner.is_current(drawn.ends):
                raise
            return Sampled(Outdated(drawn.ticket))

    def _sampled(self, drawn: _Drawn, recorder: EpochRecorder) -> Sampled:
        idtype = self._graph.idtype
        structure, csc, fixed = drawn.ends
        with recorder.time("sampling"):
            positive = edge_ends(csc, drawn.edges, idtype)
            groups = [positive]
            if self._sampler.negative_sampler is not None:
                groups.append(self._negative_pairs(drawn, positive))
            nodes, pairs = compact_pairs(structure.core, groups, idtype)
            make = fixed.sets if drawn.exclude is self._sampler.exclude else excluded_sets
            exclude = make(self._graph, structure.core, drawn.exclude)
        ticket = drawn.ticket
        inner = self._inner.sample_from(structure, ticket, nodes, recorder, exclude=exclude)
        # DGL's pair graphs have all edge types, including those without seeds.
        nothing = torch.empty(0, dtype=idtype, device="cpu")
        edges = {etype: drawn.edges.get(etype, nothing) for etype in self._graph.canonical_etypes}
        reads = [*inner.reads, *self._inner.columns.reads("edge", self._label_names, edges)]
        sampled = _Sampled(ticket, structure, edges, nodes, pairs, inner.batch)
        return Sampled(sampled, reads, inner.after)

    def _negative_pairs(self, drawn: _Drawn, positive: Pairs) -> Pairs:
        if self._negatives is not None:
            csc = drawn.ends.csc
            return negative_pairs(csc, positive, self._negatives, drawn.ticket.key)
        pairs = drawn.negatives
        if not isinstance(pairs, Mapping):
            if len(drawn.ends.csc) != 1:
                raise AssertionError(
                    "the negative sampler must return a dict for a graph of several edge types, "
                    f"{list(drawn.ends.csc)}"
                )
            pairs = {self._graph.canonical_etypes[0]: pairs}
        return {
            self._graph.to_canonical_etype(etype): self._checked(etype, ends)
            for etype, ends in pairs.items()
        }

    def _checked(self, etype: Any, ends: Any) -> tuple[Tensor, Tensor]:
        """Check a user's negative pairs of one edge type, and convert them to the id dtype."""
        src_type, _, dst_type = self._graph.to_canonical_etype(etype)
        src, dst = (as_ids("ends of negative pairs", ids) for ids in ends)
        if len(src) != len(dst):
            raise dgl.DGLError(
                "negative pairs must have equal numbers of sources and destinations, got "
                f"{len(src)}, {len(dst)}"
            )
        check_range("sources of negative pairs", src, self._graph.num_nodes(src_type), dgl.DGLError)
        check_range(
            "destinations of negative pairs", dst, self._graph.num_nodes(dst_type), dgl.DGLError
        )
        return src.to(self._graph.idtype), dst.to(self._graph.idtype)

    def deliver(self, sampled: _Sampled, rows: Sequence[Tensor], recorder: EpochRecorder) -> Any:
        """DGL's ``(input_nodes, pair_graph[, negative_graph], blocks or subgraph)``."""
        with recorder.time("building"):
            left = iter(rows)
            input_nodes, inner = self._inner.put_together(sampled.inner, left)
            builder = sampled.structure.builder
            structures = [builder.graph_structure(pairs, sampled.nodes) for pairs in sampled.pairs]
            edges = {etype: (ids, None) for etype, ids in sampled.edges.items()}
            labels = by_type(self._label_names, left)
            pair_graph = builder.graph(structures[0], sampled.nodes, edges, edge_rows=labels)
            negative = [
                builder.graph(structure, sampled.nodes, None) for structure in structures[1:]
            ]
            item = self._inner.to_device((input_nodes, pair_graph, *negative, inner))
        self._inner.count(sampled.inner, recorder, seeds=sum(map(len, sampled.edges.values())))
        return item
