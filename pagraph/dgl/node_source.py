"""Node-wise batches of the DGL loader."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.choice import Role
from .blocks import BlockBuilder
from .columns import ColumnRows, Columns
from .convert import core_graph
from .deferred import frame_of, gather_others, map_leaves, moved
from .graphbolt import import_dgl

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..graph.graph import EdgeType
    from ..graph.minibatch import HeteroMiniBatch
    from ..sampling import BlockSampler
    from ..sampling.block_sampler import ExcludedEdges
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

__all__ = ["NodeSource", "SampledNodes", "edge_columns", "node_columns"]

dgl = import_dgl()


def node_columns(graph: Any, argument: str, names: Any) -> list[tuple[str, str]]:
    """(vertex type, name) of each column in a list or a mapping from type to lists.

    DGL's AssertionError for a list where there are several types, DGLError for an unknown type.
    """
    pairs = _pairs(argument, names, list(graph.ntypes))
    for ntype, _ in pairs:
        if ntype not in graph.ntypes:
            raise dgl.DGLError(f"{argument} must name types of the graph, {list(graph.ntypes)}; got {ntype!r}")
    return pairs


def edge_columns(graph: Any, argument: str, names: Any) -> list[tuple[Any, str]]:
    """(canonical edge type, name) of every column, see :func:`node_columns`; types may have their middle names."""
    pairs = _pairs(argument, names, list(graph.canonical_etypes))
    return [(graph.to_canonical_etype(etype), name) for etype, name in pairs]


def _pairs(argument: str, names: Any, types: list[Any]) -> list[tuple[Any, str]]:
    if isinstance(names, Mapping):
        return [(type_, name) for type_, of_type in names.items() for name in of_type]
    if names and len(types) > 1:
        raise AssertionError(f"{argument} must be a dict from type to names for a graph of several types, {types}")
    return [(types[0], name) for name in names or []]


Rows = dict[tuple[Any, str], ColumnRows]
"""Rows by type and column name."""


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


class NodeSource:
    """Batches of DGL blocks, sampled by our kernels.

    Args:
        graph: A DGL graph on the CPU.
        dgl_sampler: The user's sampler object: says which columns to prefetch.
        sampler: Ours.
        columns: Reads the columns.
        engine: Recycles memory, makes room.
        device: Device that batches are delivered on.

    Raises:
        DGLError, AssertionError: The sampler prefetches columns of types that the graph does not have, or does not say
            of which type (as DGL raises with the first batch).
    """

    draw = None
    is_pure = True

    def __init__(
        self,
        graph: Any,
        dgl_sampler: Any,
        sampler: BlockSampler,
        *,
        columns: Columns,
        engine: Engine[Any],
        device: torch.device,
    ) -> None:
        self._graph = graph
        self._ntype, self._idtype = graph.ntypes[0], graph.idtype
        self.columns = columns
        self._device = device
        self._fields, self._pools = engine.fields, engine.pools
        # For "out" the core graph is turned round already: what is sampled are its in-edges.
        self.core = core_graph(graph, sampler.edge_dir)
        self._sampler = sampler if sampler.edge_dir == "in" else sampler.with_in_edges()
        self.builder = BlockBuilder(graph, self.core, self._pools)
        self._src_names = node_columns(graph, "prefetch_node_feats", dgl_sampler.prefetch_node_feats)
        self._dst_names = node_columns(graph, "prefetch_labels", dgl_sampler.prefetch_labels)
        self._edge_names = edge_columns(graph, "prefetch_edge_feats", dgl_sampler.prefetch_edge_feats)
        gather_others(graph, (sampler.prob,))
        columns.declare("node", self._src_names, Role.INPUT)
        columns.declare("node", self._dst_names, Role.OUTPUT)
        columns.declare("edge", self._edge_names, Role.INPUT)

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> SampledNodes:
        """See ``BatchSource``."""
        return self.sample_blocks(ticket.seeds, ticket.key, recorder)

    def sample_blocks(
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
                seeds if isinstance(seeds, Mapping) else {self._ntype: seeds},
                key,
                dtype=self._idtype,
                pools=self._pools,
                field=self._edge_field,
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

    @staticmethod
    def reads_of(
        kind: str, names: list[tuple[Any, str]], ids: Mapping[Any, Tensor]
    ) -> Iterator[tuple[Hashable, Tensor]]:
        """Keys of columns ("node" or "edge"), each with the ids of its type."""
        return (((kind, type_, name), ids[type_]) for type_, name in names)

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

    def _edge_field(self, etype: EdgeType, name: str) -> Tensor | None:
        frame = frame_of(self._graph, "edge", etype)
        values: Tensor | None = frame[name] if name in frame._columns else None
        return values

    def read(
        self,
        kind: str,
        names: list[tuple[Any, str]],
        ids: Mapping[Any, Tensor],
        *,
        bounds: Mapping[Any, Sequence[int]] | None = None,
    ) -> Rows:
        """Rows of columns ("node" or "edge") at the ids of their types; ``bounds``: as ``Columns.read_ahead`` takes.

        Without ``bounds`` all ids are those of the seeds.
        """
        rows: Rows = {}
        for type_, name in names:
            of_type = ids[type_]
            ends = [of_type.shape[0]] if bounds is None else bounds[type_]
            rows[type_, name] = self.columns.read_ahead(kind, name, type_, of_type, ends)
        return rows

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
        single = batch.input_nodes[self._ntype] if len(numbers) == 1 else dict(batch.input_nodes)
        return single, blocks

    def to_device(self, item: Any) -> Any:
        """The item where batches are delivered."""
        if self._device.type == "cpu":
            return item
        return self._fields.with_room(partial(map_leaves, item, partial(moved, device=self._device)))

    def count(self, sampled: SampledNodes, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        recorder.delivered(
            seeds=seeds,
            edges=sum(block.num_edges for block in batch.blocks),
            input_nodes=sum(map(len, batch.input_nodes.values())),
        )
