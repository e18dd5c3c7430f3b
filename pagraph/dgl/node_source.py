"""Node-wise batches of the DGL loader."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..cache.choice import Role
from ..engine.steps import Sampled
from .convert import core_graph
from .native_source import NativeSource, by_type, edge_columns, node_columns, num_ids

if TYPE_CHECKING:
    from ..features.field import Read
    from ..graph.graph import EdgeType
    from ..graph.minibatch import HeteroMiniBatch
    from ..sampling import BlockSampler
    from ..sampling.block_sampler import ExcludedEdges
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder


class SampledNodes(NamedTuple):
    """A natively sampled batch, with DGL's indices of its blocks."""

    seeds: Any
    batch: HeteroMiniBatch
    structures: list[Any]


class NodeSource(NativeSource):
    """Batches of DGL blocks, sampled by our kernels.

    Args:
        graph: A DGL graph on the CPU.
        dgl_sampler: The user's sampler object: says which columns to prefetch.
        sampler: Ours.
        **settings: See ``NativeSource``.

    Raises:
        DGLError, AssertionError: The sampler prefetches columns of types that the graph does not
            have, or does not say of which type (as DGL raises with the first batch).
    """

    def __init__(
        self, graph: Any, dgl_sampler: Any, sampler: BlockSampler, **settings: Any
    ) -> None:
        # For "out" the core graph is turned round already: what is sampled are its in-edges.
        super().__init__(
            graph, core_graph(graph, sampler.edge_dir), weights=sampler.prob, **settings
        )
        self._sampler = sampler if sampler.edge_dir == "in" else sampler.with_in_edges()
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
        """The blocks of ``seeds``: a tensor for graphs with one vertex type, or a mapping from
        type."""
        begin = time.perf_counter_ns()
        try:
            batch = self._sampler.sample(
                self.core,
                self.by_type(seeds),
                key,
                dtype=self._idtype,
                pools=self._pools,
                field=self.edge_field,
                exclude=exclude,
            )
        finally:
            recorder.spent("sampling", begin)
        begin = time.perf_counter_ns()
        structures = [
            self.builder.structure(block, place) for place, block in enumerate(batch.blocks)
        ]
        recorder.spent("building", begin)
        reads = self.columns.reads("node", self._src_names, batch.input_nodes, batch.hop_ends)
        reads += self.columns.reads("node", self._dst_names, batch.blocks[-1].dst_nodes)
        if self._edge_names:
            reads += self._edge_reads(batch)
        return Sampled(SampledNodes(seeds, batch, structures), reads)

    def _edge_reads(self, batch: HeteroMiniBatch) -> list[Read]:
        """Reads of the columns of edges, block by block."""
        reads = []
        etypes = {etype for etype, _ in self._edge_names}
        for place, block in enumerate(batch.blocks):
            ids = {
                etype: self.builder.edge_ids(etype, block.relations[etype].positions)
                for etype in etypes
            }
            hop = len(batch.blocks) - place  # the hop that drew them; the last block is hop 1
            bounds = {etype: [0] * hop + [len(ids[etype])] for etype in ids}
            reads += self.columns.reads("edge", self._edge_names, ids, bounds)
        return reads

    def deliver(
        self, sampled: SampledNodes, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """DGL's ``(input_nodes, output_nodes, blocks)`` with columns as the graph holds them
        now."""
        begin = time.perf_counter_ns()
        input_nodes, blocks = self.put_together(sampled, iter(rows or ()))
        item = self.to_device((input_nodes, sampled.seeds, blocks))
        recorder.spent("building", begin)
        self.count(sampled, recorder, seeds=num_ids(sampled.batch.output_nodes))
        return item

    def put_together(self, sampled: SampledNodes, rows: Iterator[Tensor]) -> tuple[Any, list[Any]]:
        """DGL's input nodes and blocks, on the CPU; takes the rows of its reads."""
        batch = sampled.batch
        src = by_type(self._src_names, rows)
        dst = by_type(self._dst_names, rows)
        edges = [
            by_type(self._edge_names, rows) for _ in (batch.blocks if self._edge_names else ())
        ]
        blocks = self.builder.build_all(batch.blocks, sampled.structures, src, dst, edges)
        return self.as_dgls(batch.input_nodes), blocks

    def count(self, sampled: SampledNodes, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        edges = 0
        for block in batch.blocks:
            for relation in block.relations.values():
                edges += relation.indices.shape[0]
        recorder.delivered(seeds=seeds, edges=edges, input_nodes=num_ids(batch.input_nodes))
