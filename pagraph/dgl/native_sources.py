"""Sources of the batches that our kernels sample for the DGL loader: blocks, or one subgraph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..cache.choice import Role
from ..engine.block_source import arrays_of
from ..engine.steps import BatchSource, Sampled
from ..features.field import Read
from .blocks import BlockBuilder
from .columns import Columns, column_of
from .convert import core_graph, core_graph_both_ways, mark_name
from .deferred import gather_others, map_leaves, moved
from .graphbolt import import_dgl

if TYPE_CHECKING:
    from ..accelerator import Event
    from ..engine.engine import Engine
    from ..graph.graph import EdgeType, Graph
    from ..graph.minibatch import HeteroMiniBatch, Subgraph
    from ..sampling import BlockSampler
    from ..sampling.drawing import ExcludedEdges
    from ..sampling.gpu.sampler import DeviceSampler
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

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


class Structure(NamedTuple):
    """The edges of a DGL graph between two changes.

    Attributes:
        mark: See ``structure_mark``.
        core: The edges as they are sampled.
        builder: Makes DGL's blocks and graphs of them.
        frames: The columns of the edges, by canonical type.
        device_sampler: Samples them on the batches' device; None: the CPU samples.
    """

    mark: Any
    core: Graph
    builder: BlockBuilder
    frames: Mapping[EdgeType, Any]
    device_sampler: DeviceSampler | None = None


def _column(frames: Mapping[EdgeType, Any], etype: EdgeType, name: str) -> Tensor | None:
    """A column of edges, for the kernels; None: there is none of that name."""
    return column_of(frames[etype], name)


class NativeSource(BatchSource[Any]):
    """Reads the columns that a sampler prefetches, and moves batches to their device.

    Args:
        graph: A DGL graph on the CPU.
        core_of: Returns its edges as they are sampled.
        columns: Reads the columns.
        engine: Recycles memory, makes room.
        device: Device that batches are delivered on.
        ahead: Whether other threads than the reader's sample. They keep to the structure that the
            reader saw last.
        weights: The column of edges that the sampler draws by, if any.

    Attributes:
        structure: What batches are sampled from.
    """

    looks_ahead = True
    repeats = True
    seeds_are_vertices = True

    def __init__(
        self,
        graph: Any,
        core_of: Callable[[Any], Graph],
        *,
        columns: Columns,
        engine: Engine[Any],
        device: torch.device,
        ahead: bool,
        weights: str | None = None,
    ) -> None:
        self._graph = graph
        self._core_of = core_of
        self._weights = weights
        # Of the attribute that each batch compares: a call would take longer than the look.
        self._mark = mark_name(graph)
        self._ntype = graph.ntypes[0]
        self._idtype = graph.idtype
        self.columns = columns
        self._device = device
        self._fields = engine.fields
        self._pools = engine.pools
        self.ahead = ahead
        self.structure: Structure = self._seen()

    def _seen(self) -> Structure:
        """The graph's structure now."""
        graph = self._graph
        # First: what is read after a change that comes meanwhile then counts as outdated.
        mark = getattr(graph, self._mark)
        core = self._core_of(graph)
        # Before threads read them: DGL gathers a column in two steps, and a thread that looks
        # between the two pairs new rows with the old index.
        gather_others(graph, (self._weights,))
        frames = dict(zip(graph.canonical_etypes, graph._edge_frames, strict=True))
        return Structure(mark, core, BlockBuilder(graph, core, self._pools), frames)

    def is_current(self, sampled: Any) -> bool:
        """See ``BatchSource``: whether the graph has the edges that it was sampled from."""
        structure = sampled.structure
        return structure is not None and structure.mark is getattr(self._graph, self._mark)

    def look(self) -> Structure:
        """Look at a graph whose edges were changed; in the reader's thread."""
        if self.structure.mark is not getattr(self._graph, self._mark):
            self.structure = self._seen()
        return self.structure

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> Sampled:
        """See ``BatchSource``."""
        structure = self.structure
        # As `look` compares: its call would be one for each batch.
        if not self.ahead and structure.mark is not getattr(self._graph, self._mark):
            structure = self.look()
        try:
            return self.sample_from(structure, ticket, ticket.seeds, recorder)
        except Exception:
            # What a thread reads while the graph is being changed may not fit together.
            if structure.mark is getattr(self._graph, self._mark):
                raise
            return Sampled(Outdated(ticket))

    def again(self, sampled: Any, recorder: EpochRecorder) -> Sampled:
        """See ``BatchSource``."""
        self.look()
        return self.sample(sampled.ticket, recorder)

    def sample_from(
        self,
        structure: Structure,
        ticket: Ticket,
        seeds: Any,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> Sampled:
        """Sample the batch of ``seeds``, those of ``ticket`` or the ends of its edges, and list its
        reads; in any thread."""
        raise NotImplementedError

    def put_together(self, sampled: Any, rows: Iterator[Tensor]) -> tuple[Any, Any]:
        """DGL's input nodes, and its blocks or subgraph, where they were sampled; takes the rows of
        its reads."""
        raise NotImplementedError

    def count(self, sampled: Any, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        inputs = sum(map(len, batch.input_nodes.values()))
        recorder.delivered(seeds=seeds, edges=batch.num_edges, input_nodes=inputs)

    def deliver(self, sampled: Any, rows: Sequence[Tensor], recorder: EpochRecorder) -> Any:
        """DGL's ``(input_nodes, output_nodes, blocks)``, or subgraph in their place, with columns
        as the graph's are now; where clusters or walks are the seeds, only the subgraph."""
        begin = time.perf_counter_ns()
        seeds = sampled.ticket.seeds
        input_nodes, item = self.put_together(sampled, iter(rows))
        if self.seeds_are_vertices:
            item = input_nodes, seeds, item
        item = self.to_device(item)
        recorder.spent("building", begin)
        count = sum(map(len, seeds.values())) if isinstance(seeds, Mapping) else len(seeds)
        self.count(sampled, recorder, seeds=count)
        return item

    def as_dgls(self, nodes: Mapping[str, Tensor]) -> Any:
        """Vertices by type as DGL gives them: a tensor where there is one type."""
        return nodes[self._ntype] if len(nodes) == 1 else dict(nodes)

    def to_device(self, item: Any) -> Any:
        """The item where batches are delivered."""
        if self._device.type == "cpu":
            return item
        return self._fields.with_room(
            partial(map_leaves, item, partial(moved, device=self._device))
        )


class Outdated(NamedTuple):
    """A batch that could not be sampled, as the graph was being changed; the reader does it."""

    ticket: Any
    structure: None = None


class _SampledBlocks(NamedTuple):
    """A natively sampled batch, with DGL's indices of its blocks.

    What a device samples has none yet, but an event after which it is there.
    """

    ticket: Ticket
    structure: Structure
    batch: HeteroMiniBatch
    indices: list[Any] | None
    ready: Event | None


class NodeSource(NativeSource):
    """Batches of DGL blocks, sampled by our kernels.

    Args:
        graph: A DGL graph on the CPU.
        dgl_sampler: The user's sampler object: says which columns to prefetch.
        sampler: Ours.
        device_sampler: Samples on the batches' device, by the same sampler, what excludes no edges.
            None: the CPU samples.
        **settings: See ``NativeSource``.

    Raises:
        DGLError, AssertionError: The sampler prefetches columns of types that the graph does not
            have, or does not say of which type (as DGL raises with the first batch).
    """

    def __init__(
        self,
        graph: Any,
        dgl_sampler: Any,
        sampler: BlockSampler,
        device_sampler: DeviceSampler | None = None,
        **settings: Any,
    ) -> None:
        # For "out" the core graph is turned round already: what is sampled are its in-edges.
        core_of = partial(core_graph, edge_dir=sampler.edge_dir)
        super().__init__(graph, core_of, weights=sampler.prob, **settings)
        self._sampler = sampler if sampler.edge_dir == "in" else sampler.with_in_edges()
        # It has a copy of these edges; if they change, the CPU samples the rest of the epoch.
        self.structure = self.structure._replace(device_sampler=device_sampler)
        # Ids on a device are no window's.
        self.looks_ahead = device_sampler is None
        self._src_names = node_columns(
            graph, "prefetch_node_feats", dgl_sampler.prefetch_node_feats
        )
        self._dst_names = node_columns(graph, "prefetch_labels", dgl_sampler.prefetch_labels)
        self._edge_names = edge_columns(
            graph, "prefetch_edge_feats", dgl_sampler.prefetch_edge_feats
        )
        self.columns.declare("node", self._src_names, Role.INPUT)
        self.columns.declare("node", self._dst_names, Role.OUTPUT)
        self.columns.declare("edge", self._edge_names, Role.INPUT)

    def sample_from(
        self,
        structure: Structure,
        ticket: Ticket,
        seeds: Any,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> Sampled:
        """The blocks of ``seeds``: a tensor for graphs with one vertex type, or a mapping from
        type."""
        start = seeds if isinstance(seeds, Mapping) else {self._ntype: seeds}
        key = ticket.key
        there = structure.device_sampler
        ready = None
        begin = time.perf_counter_ns()
        try:
            if there is not None and not exclude:
                sample = partial(there.sample, start, key, self._idtype)
                found = self._fields.with_room(sample)
                recorder.device_time("sampling", found.begun, found.ready)
                batch = found.batch
                ready = found.ready
            else:
                batch = self._sampler.sample(
                    structure.core,
                    start,
                    key,
                    dtype=self._idtype,
                    pools=self._pools,
                    field=partial(_column, structure.frames),
                    exclude=exclude,
                )
        finally:
            recorder.spent("sampling", begin)
        indices = None
        if ready is None:
            begin = time.perf_counter_ns()
            indices = structure.builder.structures(batch.blocks)
            recorder.spent("building", begin)
        reads = self.columns.reads("node", self._src_names, batch.input_nodes, batch.hop_ends)
        reads += self.columns.reads("node", self._dst_names, batch.blocks[-1].dst_nodes)
        if self._edge_names:
            reads += self._edge_reads(structure.builder, batch)
        return Sampled(_SampledBlocks(ticket, structure, batch, indices, ready), reads, ready)

    def _edge_reads(self, builder: BlockBuilder, batch: HeteroMiniBatch) -> list[Read]:
        """Reads of the columns of edges, block by block."""
        reads = []
        etypes = {etype for etype, _ in self._edge_names}
        for place, block in enumerate(batch.blocks):
            ids = {
                etype: builder.edge_ids(etype, block.relations[etype].positions) for etype in etypes
            }
            hop = len(batch.blocks) - place  # The hop that drew them; the last block is hop 1.
            bounds = {etype: [0] * hop + [len(ids[etype])] for etype in ids}
            reads += self.columns.reads("edge", self._edge_names, ids, bounds)
        return reads

    def put_together(
        self, sampled: _SampledBlocks, rows: Iterator[Tensor]
    ) -> tuple[Any, list[Any]]:
        """DGL's input nodes and blocks, where they were sampled; takes the rows of its reads."""
        batch = sampled.batch
        # In the order of the reads: vertices of the first block, seeds, edges block by block.
        src = by_type(self._src_names, rows)
        dst = by_type(self._dst_names, rows)
        edges = []
        if self._edge_names:
            edges = [by_type(self._edge_names, rows) for _ in batch.blocks]
        builder = sampled.structure.builder
        indices = sampled.indices
        device = None
        if indices is None:
            accelerator = self._fields.accelerator
            assert accelerator is not None and sampled.ready is not None
            accelerator.hand_over(arrays_of(batch), sampled.ready)
            # Not earlier: they take memory, which is to be of the reader's stream.
            indices = self._fields.with_room(partial(builder.structures, batch.blocks))
            device = self._device
        blocks = builder.build_all(batch.blocks, indices, src, dst, edges, device)
        return self.as_dgls(batch.input_nodes), blocks

    def count(self, sampled: _SampledBlocks, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        edges = 0
        for block in batch.blocks:
            for relation in block.relations.values():
                edges += relation.indices.shape[0]
        recorder.delivered(
            seeds=seeds, edges=edges, input_nodes=sum(map(len, batch.input_nodes.values()))
        )


_ARGUMENTS = {
    True: ("prefetch_node_feats", "prefetch_edge_feats"),
    False: ("prefetch_ndata", "prefetch_edata"),
}
"""Names of the arguments of DGL's samplers that begin with vertices, and of the others."""


class _SampledSubgraph(NamedTuple):
    """A natively sampled batch, with DGL's index of it."""

    ticket: Ticket
    structure: Structure
    batch: Subgraph
    index: Any


class SubgraphSource(NativeSource):
    """Batches of one subgraph, sampled by our kernels, with vertices and edges in the order of
    ``DGLGraph.subgraph``.

    Args:
        graph: A DGL graph on the CPU.
        dgl_sampler: The user's sampler object: says which columns to prefetch.
        sampler: Ours: ``InducedBatches``, or one without hops, that draws vertices or takes
            clusters for seeds.
        **settings: See ``NativeSource``.

    Raises:
        DGLError, AssertionError: As ``NodeSource`` does.
    """

    def __init__(self, graph: Any, dgl_sampler: Any, sampler: Any, **settings: Any) -> None:
        hops = sampler.hops
        weights = None if hops is None else hops.prob
        self._by_source = sampler.edge_dir == "out"
        core_of = core_graph_both_ways if self._by_source else core_graph
        super().__init__(graph, core_of, weights=weights, **settings)
        self._sampler = sampler
        self.seeds_are_vertices = sampler.seeds_are_vertices
        of_nodes, of_edges = _ARGUMENTS[sampler.seeds_are_vertices]
        self._node_names = node_columns(graph, of_nodes, getattr(dgl_sampler, of_nodes))
        self._edge_names = edge_columns(graph, of_edges, getattr(dgl_sampler, of_edges))
        # Not those of edges: how often both ends are in a batch is not known beforehand.
        self.columns.declare("node", self._node_names, Role.INPUT)

    def sample_from(
        self,
        structure: Structure,
        ticket: Ticket,
        seeds: Any,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> Sampled:
        """The subgraph of ``seeds``: vertices, by type or of the only type, clusters, or what says
        nothing."""
        options: dict[str, Any] = {"dtype": self._idtype, "pools": self._pools}
        if self.seeds_are_vertices:
            options |= {"field": partial(_column, structure.frames), "exclude": exclude}
        start = seeds
        if self.seeds_are_vertices and not isinstance(seeds, Mapping):
            start = {self._ntype: seeds}
        with recorder.time("sampling"):
            batch = self._sampler.sample(structure.core, start, ticket.key, **options)
        with recorder.time("building"):
            src, dst = (1, 0) if self._by_source else (0, 1)
            ends = {
                etype: (edges.edge_index[src], edges.edge_index[dst])
                for etype, edges in batch.edges.items()
            }
            index = structure.builder.graph_structure(
                ends, batch.input_nodes, by_source=self._by_source
            )
        reads = self.columns.reads("node", self._node_names, batch.input_nodes, batch.hop_ends)
        # How often edges are drawn is not known: no hop is theirs.
        ids = {etype: batch.edges[etype].edge_ids for etype, _ in self._edge_names}
        for etype, name in self._edge_names:
            reads.append(Read(self.columns.key_of("edge", etype, name), ids[etype]))
        return Sampled(_SampledSubgraph(ticket, structure, batch, index), reads)

    def put_together(self, sampled: _SampledSubgraph, rows: Iterator[Tensor]) -> tuple[Any, Any]:
        """DGL's input nodes and subgraph, on the CPU; takes the rows of its reads."""
        nodes = sampled.batch.input_nodes
        core = sampled.structure.core
        csc_of = core.out_csc_of if self._by_source else core.csc_of
        edges = {}
        for etype, found in sampled.batch.edges.items():
            edges[etype] = found.numbers, None if found.ids_of is None else csc_of(etype).edge_ids
        node_rows = by_type(self._node_names, rows)
        edge_rows = by_type(self._edge_names, rows)
        builder = sampled.structure.builder
        subgraph = builder.graph(sampled.index, nodes, edges, node_rows, edge_rows)
        return self.as_dgls(nodes), subgraph
