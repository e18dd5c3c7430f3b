"""Batches of one subgraph for the DGL loader: ShaDow, Cluster-GCN, GraphSAINT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..cache.choice import Role
from ..engine.steps import Sampled
from ..features.field import Read
from .convert import core_graph, core_graph_both_ways
from .native_source import NativeSource, by_type, edge_columns, node_columns, num_ids

if TYPE_CHECKING:
    from ..graph.graph import EdgeType
    from ..graph.subgraph import Subgraph
    from ..sampling.block_sampler import ExcludedEdges
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

_ARGUMENTS = {
    True: ("prefetch_node_feats", "prefetch_edge_feats"),
    False: ("prefetch_ndata", "prefetch_edata"),
}
"""Names of the arguments of DGL's samplers that begin with vertices, and of the others."""


class _Sampled(NamedTuple):
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
        hops, self._by_source = sampler.hops, sampler.edge_dir == "out"
        core = core_graph_both_ways(graph) if self._by_source else core_graph(graph)
        super().__init__(graph, core, weights=None if hops is None else hops.prob, **settings)
        self._sampler = sampler
        of_nodes, of_edges = _ARGUMENTS[sampler.seeds_are_vertices]
        self._node_names = node_columns(graph, of_nodes, getattr(dgl_sampler, of_nodes))
        self._edge_names = edge_columns(graph, of_edges, getattr(dgl_sampler, of_edges))
        # Not those of edges: how often both ends are in a batch is not known beforehand.
        self.columns.declare("node", self._node_names, Role.INPUT)

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
        return Sampled(_Sampled(seeds, batch, structure), reads)

    def deliver(
        self, sampled: _Sampled, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """DGL's subgraph, of ShaDow ``(input_nodes, output_nodes, subgraph)``, with columns as the
        graph's are now."""
        seeds = sampled.seeds
        with recorder.time("building"):
            input_nodes, subgraph = self.put_together(sampled, iter(rows or ()))
            item = (input_nodes, seeds, subgraph) if self._sampler.seeds_are_vertices else subgraph
            item = self.to_device(item)
        self.count(
            sampled,
            recorder,
            seeds=num_ids(seeds) if isinstance(seeds, Mapping) else len(seeds),
        )
        return item

    def put_together(self, sampled: _Sampled, rows: Iterator[Tensor]) -> tuple[Any, Any]:
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

    def count(self, sampled: _Sampled, recorder: EpochRecorder, *, seeds: int) -> None:
        """Record a delivered batch."""
        batch = sampled.batch
        recorder.delivered(
            seeds=seeds,
            edges=batch.num_edges,
            input_nodes=num_ids(batch.input_nodes),
        )
