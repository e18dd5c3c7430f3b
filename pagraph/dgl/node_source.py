"""Node-wise batches of the DGL loader."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..cache.choice import Role
from .convert import core_graph
from .native_source import NativeSource, Rows, edge_columns, node_columns

if TYPE_CHECKING:
    from ..graph.graph import EdgeType
    from ..graph.minibatch import HeteroMiniBatch
    from ..sampling import BlockSampler
    from ..sampling.block_sampler import ExcludedEdges
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

__all__ = ["NodeSource", "SampledNodes"]


@dataclass(frozen=True, eq=False)
class SampledNodes:
    """A natively sampled batch, with the rows of its columns once they were fetched.

    ``edge_ids`` are those of each block's edges by type, where columns of edges are prefetched.
    """

    seeds: Any
    batch: HeteroMiniBatch
    structures: list[Any]
    edge_ids: list[dict[Any, Tensor]]
    src: Rows = field(default_factory=dict)
    dst: Rows = field(default_factory=dict)
    edges: list[Rows] = field(default_factory=list)


class NodeSource(NativeSource):
    """Batches of DGL blocks, sampled by our kernels.

    Args:
        graph: A DGL graph on the CPU.
        dgl_sampler: The user's sampler object: says which columns to prefetch.
        sampler: Ours.
        **settings: See ``NativeSource``.

    Raises:
        DGLError, AssertionError: The sampler prefetches columns of types that the graph does not have, or does not say
            of which type (as DGL raises with the first batch).
    """

    def __init__(self, graph: Any, dgl_sampler: Any, sampler: BlockSampler, **settings: Any) -> None:
        # For "out" the core graph is turned round already: what is sampled are its in-edges.
        super().__init__(graph, core_graph(graph, sampler.edge_dir), weights=sampler.prob, **settings)
        self._sampler = sampler if sampler.edge_dir == "in" else sampler.with_in_edges()
        self._src_names = node_columns(graph, "prefetch_node_feats", dgl_sampler.prefetch_node_feats)
        self._dst_names = node_columns(graph, "prefetch_labels", dgl_sampler.prefetch_labels)
        self._edge_names = edge_columns(graph, "prefetch_edge_feats", dgl_sampler.prefetch_edge_feats)
        self.columns.declare("node", self._src_names, Role.INPUT)
        self.columns.declare("node", self._dst_names, Role.OUTPUT)
        self.columns.declare("edge", self._edge_names, Role.INPUT)

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> SampledNodes:
        """See ``BatchSource``."""
        return self.sample_from(ticket.seeds, ticket.key, recorder)

    def sample_from(
        self,
        seeds: Any,
        key: int,
        recorder: EpochRecorder,
        *,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> SampledNodes:
        """The blocks of ``seeds``: a tensor for graphs with one vertex type, or a mapping from type."""
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
        structures = [self.builder.structure(block, place) for place, block in enumerate(batch.blocks)]
        etypes = {etype for etype, _ in self._edge_names}
        edge_ids = [
            {etype: self.builder.edge_ids(etype, block.relations[etype].positions) for etype in etypes}
            for block in (batch.blocks if etypes else ())
        ]
        recorder.spent("building", begin)
        return SampledNodes(seeds, batch, structures, edge_ids)

    def reads(self, sampled: SampledNodes) -> Iterator[tuple[Hashable, Tensor]]:
        """The prefetched columns, as :meth:`fetch` reads them."""
        batch = sampled.batch
        yield from self.reads_of("node", self._src_names, batch.input_nodes)
        yield from self.reads_of("node", self._dst_names, batch.blocks[-1].dst_nodes)
        for ids in sampled.edge_ids:
            yield from self.reads_of("edge", self._edge_names, ids)

    def fetch(self, sampled: SampledNodes, recorder: EpochRecorder) -> SampledNodes:
        """Read the prefetched columns."""
        begin, batch = time.perf_counter_ns(), sampled.batch
        src = self.read("node", self._src_names, batch.input_nodes, bounds=batch.hop_ends)
        dst = self.read("node", self._dst_names, batch.blocks[-1].dst_nodes)
        edges = []
        for place, ids in enumerate(sampled.edge_ids):
            hop = len(batch.blocks) - place  # the hop that drew them; the last block is hop 1
            bounds = {etype: [0] * hop + [len(ids[etype])] for etype in ids}
            edges.append(self.read("edge", self._edge_names, ids, bounds=bounds))
        recorder.spent("fetching", begin)
        return replace(sampled, src=src, dst=dst, edges=edges)

    def deliver(self, sampled: SampledNodes, recorder: EpochRecorder) -> Any:
        """DGL's ``(input_nodes, output_nodes, blocks)`` with columns as the graph holds them now."""
        begin = time.perf_counter_ns()
        input_nodes, blocks = self.build(sampled, recorder)
        item = self.to_device((input_nodes, sampled.seeds, blocks))
        recorder.spent("building", begin)
        self.count(sampled, recorder, seeds=sum(map(len, sampled.batch.output_nodes.values())))
        return item

    def build(self, sampled: SampledNodes, recorder: EpochRecorder) -> tuple[Any, list[Any]]:
        """DGL's input nodes and blocks, on the CPU."""
        graph, batch = self._graph, sampled.batch
        blocks, numbers = self.builder.build_all(batch.blocks, sampled.structures), self.builder.numbers
        for (ntype, name), rows in sampled.src.items():
            blocks[0]._node_frames[numbers[ntype]][name] = rows.current(recorder)
        for (ntype, name), rows in sampled.dst.items():
            blocks[-1]._node_frames[len(numbers) + numbers[ntype]][name] = rows.current(recorder)
        for block, edge_rows in zip(blocks, sampled.edges, strict=False):
            for (etype, name), rows in edge_rows.items():
                block._edge_frames[graph.get_etype_id(etype)][name] = rows.current(recorder)
        return self.as_dgls(batch.input_nodes), blocks

    def count(self, sampled: SampledNodes, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        recorder.delivered(
            seeds=seeds,
            edges=sum(block.num_edges for block in batch.blocks),
            input_nodes=sum(map(len, batch.input_nodes.values())),
        )
