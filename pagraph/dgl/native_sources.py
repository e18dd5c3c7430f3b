"""Sources of the batches that our kernels sample for the DGL loader: blocks, or one subgraph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..cache.choice import Role
from ..engine.block_source import tensors_of
from ..engine.steps import Sampled
from ..features.field import Read
from .blocks import BlockBuilder
from .columns import Columns, edge_column
from .convert import core_graph, core_graph_both_ways
from .deferred import gather_others, map_leaves, moved
from .graphbolt import import_dgl

if TYPE_CHECKING:
    from ..accelerator import Event
    from ..engine.engine import Engine
    from ..graph.graph import EdgeType, Graph
    from ..graph.minibatch import HeteroMiniBatch, Subgraph
    from ..sampling import BlockSampler
    from ..sampling.block_sampler import ExcludedEdges
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
    send = None
    finish = None
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
        self._ntype = graph.ntypes[0]
        self._idtype = graph.idtype
        self.columns = columns
        self._device = device
        self._fields = engine.fields
        self._pools = engine.pools
        self.core = core
        self.builder: BlockBuilder = BlockBuilder(graph, core, self._pools)
        # Now, before threads read them: DGL gathers a column in two steps, and a thread that looks
        # between the two pairs new rows with the old index.
        gather_others(graph, (weights,))

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> Sampled:
        """See ``BatchSource``."""
        return self.sample_from(ticket.seeds, ticket.key, recorder)

    def sample_from(
        self,
        seeds: Any,
        key: int,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> Sampled:
        """Sample the batch of ``seeds`` and list its reads; in any thread."""
        raise NotImplementedError

    def put_together(self, sampled: Any, rows: Iterator[Tensor]) -> tuple[Any, Any]:
        """DGL's input nodes, and its blocks or subgraph, where they were sampled; takes the rows of
        its reads."""
        raise NotImplementedError

    def count(self, sampled: Any, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        raise NotImplementedError

    def by_type(self, seeds: Any) -> Mapping[str, Tensor]:
        """Vertices of one type, as users may give them, by type."""
        return seeds if isinstance(seeds, Mapping) else {self._ntype: seeds}

    def as_dgls(self, nodes: Mapping[str, Tensor]) -> Any:
        """Vertices by type as DGL gives them: a tensor where there is one type."""
        return nodes[self._ntype] if len(nodes) == 1 else dict(nodes)

    def edge_field(self, etype: EdgeType, name: str) -> Tensor | None:
        """A column of edges, for the kernels."""
        return edge_column(self._graph, etype, name)

    def to_device(self, item: Any) -> Any:
        """The item where batches are delivered."""
        if self._device.type == "cpu":
            return item
        return self._fields.with_room(
            partial(map_leaves, item, partial(moved, device=self._device))
        )


class _SampledBlocks(NamedTuple):
    """A natively sampled batch, with DGL's indices of its blocks.

    What a device samples has none yet, but an event after which it is there.
    """

    seeds: Any
    batch: HeteroMiniBatch
    structures: list[Any] | None
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
        super().__init__(
            graph, core_graph(graph, sampler.edge_dir), weights=sampler.prob, **settings
        )
        self._sampler = sampler if sampler.edge_dir == "in" else sampler.with_in_edges()
        self._device_sampler = device_sampler
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
        seeds: Any,
        key: int,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> Sampled:
        """The blocks of ``seeds``: a tensor for graphs with one vertex type, or a mapping from
        type."""
        start = self.by_type(seeds)
        ready = None
        begin = time.perf_counter_ns()
        try:
            if self._device_sampler is not None and not exclude:
                sample = partial(self._device_sampler.sample, start, key, self._idtype)
                found = self._fields.with_room(sample)
                recorder.device_time("sampling", found.begun, found.ready)
                batch = found.batch
                ready = found.ready
            else:
                batch = self._sampler.sample(
                    self.core,
                    start,
                    key,
                    dtype=self._idtype,
                    pools=self._pools,
                    field=self.edge_field,
                    exclude=exclude,
                )
        finally:
            recorder.spent("sampling", begin)
        structures = None
        if ready is None:
            begin = time.perf_counter_ns()
            structures = self.builder.structures(batch.blocks)
            recorder.spent("building", begin)
        reads = self.columns.reads("node", self._src_names, batch.input_nodes, batch.hop_ends)
        reads += self.columns.reads("node", self._dst_names, batch.blocks[-1].dst_nodes)
        if self._edge_names:
            reads += self._edge_reads(batch)
        return Sampled(_SampledBlocks(seeds, batch, structures, ready), reads, ready)

    def _edge_reads(self, batch: HeteroMiniBatch) -> list[Read]:
        """Reads of the columns of edges, block by block."""
        reads = []
        etypes = {etype for etype, _ in self._edge_names}
        for place, block in enumerate(batch.blocks):
            ids = {
                etype: self.builder.edge_ids(etype, block.relations[etype].positions)
                for etype in etypes
            }
            hop = len(batch.blocks) - place  # The hop that drew them; the last block is hop 1.
            bounds = {etype: [0] * hop + [len(ids[etype])] for etype in ids}
            reads += self.columns.reads("edge", self._edge_names, ids, bounds)
        return reads

    def deliver(
        self, sampled: _SampledBlocks, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """DGL's ``(input_nodes, output_nodes, blocks)`` with columns as the graph holds them
        now."""
        begin = time.perf_counter_ns()
        input_nodes, blocks = self.put_together(sampled, iter(rows or ()))
        item = self.to_device((input_nodes, sampled.seeds, blocks))
        recorder.spent("building", begin)
        self.count(sampled, recorder, seeds=num_ids(sampled.batch.output_nodes))
        return item

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
        structures = sampled.structures
        device = None
        if structures is None:
            accelerator = self._fields.accelerator
            assert accelerator is not None and sampled.ready is not None
            accelerator.hand_over(tensors_of(batch), sampled.ready)
            # Not earlier: they take memory, which is to be of the reader's stream.
            structures = self._fields.with_room(partial(self.builder.structures, batch.blocks))
            device = self._device
        blocks = self.builder.build_all(batch.blocks, structures, src, dst, edges, device)
        return self.as_dgls(batch.input_nodes), blocks

    def count(self, sampled: _SampledBlocks, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        edges = 0
        for block in batch.blocks:
            for relation in block.relations.values():
                edges += relation.indices.shape[0]
        recorder.delivered(seeds=seeds, edges=edges, input_nodes=num_ids(batch.input_nodes))


_ARGUMENTS = {
    True: ("prefetch_node_feats", "prefetch_edge_feats"),
    False: ("prefetch_ndata", "prefetch_edata"),
}
"""Names of the arguments of DGL's samplers that begin with vertices, and of the others."""


class _SampledSubgraph(NamedTuple):
    """A natively sampled batch, with DGL's index of it."""

    seeds: Any
    batch: Subgraph
    structure: Any


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
        core = core_graph_both_ways(graph) if self._by_source else core_graph(graph)
        super().__init__(graph, core, weights=weights, **settings)
        self._sampler = sampler
        of_nodes, of_edges = _ARGUMENTS[sampler.seeds_are_vertices]
        self._node_names = node_columns(graph, of_nodes, getattr(dgl_sampler, of_nodes))
        self._edge_names = edge_columns(graph, of_edges, getattr(dgl_sampler, of_edges))
        # Not those of edges: how often both ends are in a batch is not known beforehand.
        self.columns.declare("node", self._node_names, Role.INPUT)

    def sample_from(
        self,
        seeds: Any,
        key: int,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> Sampled:
        """The subgraph of ``seeds``: vertices, by type or of the only type, clusters, or what says
        nothing."""
        options: dict[str, Any] = {"dtype": self._idtype, "pools": self._pools}
        if self._sampler.seeds_are_vertices:
            options |= {"field": self.edge_field, "exclude": exclude}
        start = self.by_type(seeds) if self._sampler.seeds_are_vertices else seeds
        with recorder.time("sampling"):
            batch = self._sampler.sample(self.core, start, key, **options)
        with recorder.time("building"):
            src, dst = (1, 0) if self._by_source else (0, 1)
            ends = {
                etype: (edges.edge_index[src], edges.edge_index[dst])
                for etype, edges in batch.edges.items()
            }
            structure = self.builder.graph_structure(
                ends, batch.input_nodes, by_source=self._by_source
            )
        reads = self.columns.reads("node", self._node_names, batch.input_nodes, batch.hop_ends)
        # How often edges are drawn is not known: no hop is theirs.
        ids = {etype: batch.edges[etype].edge_ids for etype, _ in self._edge_names}
        for etype, name in self._edge_names:
            reads.append(Read(self.columns.key_of("edge", etype, name), ids[etype]))
        return Sampled(_SampledSubgraph(seeds, batch, structure), reads)

    def deliver(
        self, sampled: _SampledSubgraph, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """DGL's subgraph, of ShaDow ``(input_nodes, output_nodes, subgraph)``, with columns as the
        graph's are now."""
        seeds = sampled.seeds
        with recorder.time("building"):
            input_nodes, subgraph = self.put_together(sampled, iter(rows or ()))
            item = (input_nodes, seeds, subgraph) if self._sampler.seeds_are_vertices else subgraph
            item = self.to_device(item)
        num_seeds = num_ids(seeds) if isinstance(seeds, Mapping) else len(seeds)
        self.count(sampled, recorder, seeds=num_seeds)
        return item

    def put_together(self, sampled: _SampledSubgraph, rows: Iterator[Tensor]) -> tuple[Any, Any]:
        """DGL's input nodes and subgraph, on the CPU; takes the rows of its reads."""
        nodes = sampled.batch.input_nodes
        csc_of = self.core.out_csc_of if self._by_source else self.core.csc_of
        edges = {}
        for etype, found in sampled.batch.edges.items():
            edges[etype] = found.numbers, None if found.ids_of is None else csc_of(etype).edge_ids
        node_rows = by_type(self._node_names, rows)
        edge_rows = by_type(self._edge_names, rows)
        subgraph = self.builder.graph(sampled.structure, nodes, edges, node_rows, edge_rows)
        return self.as_dgls(nodes), subgraph

    def count(self, sampled: _SampledSubgraph, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        recorder.delivered(
            seeds=seeds,
            edges=batch.num_edges,
            input_nodes=num_ids(batch.input_nodes),
        )
