"""BlockSampler: hop by hop from seeds to input nodes, over any number of vertex and edge types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from ..buffers import BufferPools
from ..csc import check_range
from ..minibatch import HeteroBlock, HeteroMiniBatch, MiniBatch, Relation
from .hop import Hop, HopEdges, Picker
from .keys import derive_key
from .scratch import Scratch, VertexTable
from .weights import EdgeWeights, edge_weights

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..graph import EdgeType, Graph
    from .excluded import ExcludedEdges

__all__ = ["BlockSampler", "EdgeField", "check_per_hop", "id_dtype_of", "of_edge_type"]

EdgeField = Callable[["EdgeType", str], "Tensor | None"]
"""Gives an edge field by edge type and name, in the order of the edge ids; None where there is none."""


def check_per_hop(name: str, entries: Any, check: Callable[[Any, int], int]) -> tuple[Any, ...]:
    """The entries of all hops, checked; only a mapping may say 0, for a type that draws nothing.

    Args:
        name: What errors call them.
        entries: A number, or a mapping from edge type to numbers, for each hop.
        check: Gives a number, and the least it may be, as an int, or raises.

    Raises:
        ValueError: There is no entry.
    """
    entries = tuple(entries)
    if not entries:
        raise ValueError(f"{name} must have at least 1 entry, got none")
    return tuple(
        {etype: check(number, 0) for etype, number in entry.items()} if isinstance(entry, Mapping) else check(entry, 1)
        for entry in entries
    )


def of_edge_type(entry: int | Mapping[EdgeType, int], edge_type: EdgeType) -> int:
    """What a hop's entry says of an edge type.

    Raises:
        KeyError: It does not name the edge type.
    """
    return entry[edge_type] if isinstance(entry, Mapping) else entry


class BlockSampler:
    """Base of the samplers that make one block per hop. Subclasses say how edges are picked.

    Every known vertex is expanded again in each hop, as in DGL. The result depends on the graph, the seeds and the
    key alone, never on threads or on what was sampled before.
    """

    edge_dir: str
    prob: str | None

    def check_edges(self) -> None:
        """Refuse an unknown direction, and a ``prob`` that names nothing.

        Raises:
            ValueError, TypeError: As said.
        """
        if self.edge_dir not in ("in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out', got {self.edge_dir!r}")
        if self.prob is not None and not isinstance(self.prob, str):
            raise TypeError(f"prob must be the name of an edge field, got {self.prob!r}")

    def weights(self, graph: Graph, edge_type: EdgeType, field: EdgeField) -> EdgeWeights | None:
        """The weights in the field ``prob``; None where there is no such field, or none is named.

        Raises:
            TypeError: The field holds something else than numbers.
            ValueError: It does not hold one finite number per edge, or a negative one.
        """
        values = None if self.prob is None else field(edge_type, self.prob)
        if values is None:
            return None
        return edge_weights(graph.adjacency(self.edge_dir, edge_type), values, name=f"edge field {self.prob!r}")

    @property
    def num_hops(self) -> int:
        """Blocks per mini-batch."""
        raise NotImplementedError

    @property
    def weighs_edges(self) -> bool:
        """Whether blocks have edge weights; those without any edge then have an empty tensor of them."""
        return False

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker | None:
        """What picks the edges of ``edge_type`` in hop number ``hop`` (0 serves the seeds); None: no edges."""
        raise NotImplementedError

    def with_in_edges(self) -> Self:
        """The same sampler for in-edges: for graphs that are turned round already."""
        return replace(self, edge_dir="in")  # type: ignore[type-var]

    @overload
    def sample(
        self,
        graph: Graph,
        seeds: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        field: EdgeField | None = None,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> MiniBatch: ...

    @overload
    def sample(
        self,
        graph: Graph,
        seeds: Mapping[str, Tensor],
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        field: EdgeField | None = None,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> HeteroMiniBatch: ...

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        field: EdgeField | None = None,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    ) -> MiniBatch | HeteroMiniBatch:
        """Sample the blocks of one mini-batch; safe from any number of threads at once.

        Args:
            graph: The graph; with one vertex type and one edge type if ``seeds`` is a tensor.
            seeds: Shape ``(batch,)``, int32 or int64, or a mapping from vertex type to such tensors; repeated seeds
                keep their own rows.
            key: Any 64-bit number; equal keys give equal batches. See ``derive_key``.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Where output memory is recycled. Default: fresh memory.
            field: Where edge weights come from. Default: the graph's own fields.
            exclude: Edges that no block may hold.

        Raises:
            KeyError: A vertex type that the graph does not have.
            IndexError: A seed is outside ``[0, num_nodes)`` of its type.
            FormatError: The graph's arrays lead out of the graph (a damaged file).
        """
        by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
        for ntype, ids in by_type.items():
            name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
            # Narrowing would wrap a wrong id round into a right one.
            check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
        run = _Run(
            sampler=self,
            graph=graph,
            key=key,
            dtype=dtype or next((ids.dtype for ids in by_type.values()), torch.int64),
            pools=pools if pools is not None else BufferPools(max_free=0),
            field=field or _own_fields(graph),
            exclude=exclude or {},
            scratch=Scratch.of_this_thread(),
        )
        batch = run.blocks(by_type)
        return batch if isinstance(seeds, Mapping) else batch.only()


def _own_fields(graph: Graph) -> EdgeField:
    return lambda edge_type, name: graph.edge_fields(edge_type).get(name)


@dataclass(frozen=True, eq=False)
class _Run:
    """One batch on its way."""

    sampler: BlockSampler
    graph: Graph
    key: int
    dtype: torch.dtype
    pools: BufferPools
    field: EdgeField
    exclude: Mapping[EdgeType, ExcludedEdges]
    scratch: Scratch

    def blocks(self, seeds: Mapping[str, Tensor]) -> HeteroMiniBatch:
        """All hops, and the blocks they make."""
        graph, id_dtype = self.graph, id_dtype_of(self.graph)
        types = graph.node_types
        tables = dict(zip(types, self.scratch.tables(len(types)), strict=True))
        for ntype, table in tables.items():
            table.reset(seeds.get(ntype), graph.num_nodes_of(ntype), id_dtype)
        counts = [{ntype: table.count for ntype, table in tables.items()}]
        hops: list[dict[EdgeType, HopEdges]] = []
        for number in range(self.sampler.num_hops):
            hops.append(self._hop(number, tables, counts[-1]))
            counts.append({ntype: table.count for ntype, table in tables.items()})
        nodes = {ntype: self._output(ntype, table) for ntype, table in tables.items()}
        blocks = [
            HeteroBlock(
                {etype: Relation(e.indptr, e.indices, e.positions, e.weights) for etype, e in hop.items()},
                {ntype: ids[: after[ntype]] for ntype, ids in nodes.items()},
                before,
            )
            for hop, before, after in zip(hops, counts, counts[1:], strict=False)
        ]
        return HeteroMiniBatch(dict(seeds), blocks[::-1], nodes)

    def _hop(
        self, number: int, tables: Mapping[str, VertexTable], known: Mapping[str, int]
    ) -> dict[EdgeType, HopEdges]:
        """One hop: every edge type from the vertices known when it began."""
        edges = {}
        layer_key = derive_key(self.key, number)
        for index, etype in enumerate(self.graph.edge_types):
            csc = self.graph.adjacency(self.sampler.edge_dir, etype)
            src_type, dst_type = etype[0], etype[2]
            hop = Hop(
                csc=csc,
                frontier=tables[dst_type].nodes[: known[dst_type]],
                key=np.uint64(derive_key(self.key, number, index) if index else layer_key),
                layer_key=np.uint64(layer_key),
                batch_key=np.uint64(self.key % 2**64),
                scratch=self.scratch,
                dtype=self.dtype,
                pool=self.pools(("hop", number, index)),
            )
            edges[etype] = self._pick(hop, number, etype)
            self._read(csc.indices, edges[etype], tables[src_type])
        return edges

    def _pick(self, hop: Hop, number: int, etype: EdgeType) -> HopEdges:
        picker = self.sampler.picker(self.graph, number, etype, self.field) if len(hop.frontier) else None
        if picker is None:
            offsets = np.zeros(len(hop.frontier) + 1, dtype=np.int64)
            return hop.edges(offsets, weighted=self.sampler.weighs_edges)
        picked = picker.pick(hop)
        excluded = self.exclude.get(etype)
        return picked if excluded is None else excluded.drop_from(picked)

    def _read(self, indices: Tensor, edges: HopEdges, table: VertexTable) -> None:
        """Read the neighbours at the chosen positions, and give them local ids."""
        from . import _cpu

        neighbors = self.scratch.array("neighbors", len(edges.positions), indices.numpy().dtype)
        _cpu.read_neighbors(indices.numpy(), edges.positions.numpy(), neighbors)
        table.relabel(neighbors, edges.indices.numpy())

    def _output(self, ntype: str, table: VertexTable) -> Tensor:
        out = self.pools(("nodes", ntype)).take((table.count,), self.dtype)
        out.numpy()[:] = table.nodes
        return out


def id_dtype_of(graph: Graph) -> Any:
    """The widest id dtype of the graph's edge types."""
    wide = any(graph.csc_of(etype).indices.dtype == torch.int64 for etype in graph.edge_types)
    return np.dtype(np.int64 if wide else np.int32)
