"""BlockSampler: samples one block a hop, leaving excluded edges out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import HeteroBlock, HeteroMiniBatch, MiniBatch, Relation
from ..seeds.keys import derive_key
from ..system.buffers import BufferPools
from .hop import Hop, HopEdges, Scratch, VertexTable
from .sampler import EdgeField, HopSampler, MiniBatchSampler, id_dtype_of, own_fields, read_sources, seeds_by_type
from .small_batch import small_blocks

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph.graph import EdgeType, Graph

__all__ = ["BlockSampler", "ExcludedEdges", "foreign_sampler"]


class ExcludedEdges:
    """A set of edges of one edge type, by position in its CSC.

    Args:
        positions: Shape ``(n,)``; repeated ones count once.
    """

    def __init__(self, positions: Tensor) -> None:
        from .kernels import edges as _excluded

        values: npt.NDArray[Any] = positions.numpy()
        bits = max(6, (2 * len(values)).bit_length())
        self._table = np.full(1 << bits, -1, dtype=np.int64)
        # 16 bits for each slot, 32 to 64 for each edge: 16 KiB for 1000 edges and their reverse ones.
        self._marks = np.zeros(1 << (bits + 1), dtype=np.uint8)
        self._shifts = np.uint64(64 - bits), np.uint64(64 - bits - 4)
        self._count = len(values)
        _excluded.insert(values, self._table, self._shifts[0], self._marks, self._shifts[1])

    def drop_from(self, edges: HopEdges) -> HopEdges:
        """The edges without the excluded ones, in order; the arrays are changed in place."""
        from .kernels import edges as _excluded

        if self._count == 0 or len(edges.positions) == 0:
            return edges
        weights = np.empty(0, dtype=np.float32) if edges.weights is None else edges.weights.numpy()
        kept = _excluded.drop(
            edges.indptr.numpy(),
            edges.positions.numpy(),
            weights,
            self._table,
            self._shifts[0],
            self._marks,
            self._shifts[1],
        )
        return edges.head(int(kept))


class BlockSampler(HopSampler):
    """Base of the samplers that make one block per hop. Subclasses say how edges are picked.

    Every known vertex is expanded again in each hop, as in DGL. The result depends on the graph, the seeds and the
    key alone, never on threads or on what was sampled before.
    """

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
        small = None if exclude else small_blocks(self, graph, seeds, key, dtype, pools)
        if small is not None:
            return small
        by_type = seeds_by_type(graph, seeds)
        run = _Run(
            sampler=self,
            graph=graph,
            key=key,
            dtype=dtype or next((ids.dtype for ids in by_type.values()), torch.int64),
            pools=pools if pools is not None else BufferPools(max_free=0),
            field=field or own_fields(graph),
            exclude=exclude or {},
            scratch=Scratch.of_this_thread(),
        )
        batch = run.blocks(by_type)
        return batch if isinstance(seeds, Mapping) else batch.only()


def foreign_sampler(sampler: Any, here: str) -> str | None:
    """Whose sampler it is and which loader takes it; None for those of ``here`` and for a user's own.

    Args:
        sampler: Any object or class. The class that defines its ``sample`` counts: a user's subclass may adapt it.
        here: Whose samplers the asking loader takes: ``"pagraph"``, ``"DGL"`` or ``"PyG"``.
    """
    kind = sampler if isinstance(sampler, type) else type(sampler)
    kind = next((each for each in kind.__mro__ if "sample" in vars(each)), kind)
    module = f"{kind.__module__}."
    if module.startswith(("dgl.", "pagraph.dgl.")):
        return None if here == "DGL" else "DGL's samplers are for pagraph.dgl.DataLoader"
    if module.startswith(("torch_geometric.", "pagraph.pyg.")):
        return None if here == "PyG" else "PyG's samplers are for pagraph.pyg.NeighborLoader and LinkNeighborLoader"
    if not module.startswith("pagraph.") or not issubclass(kind, MiniBatchSampler):
        return None
    if issubclass(kind, BlockSampler):
        return None if here == "pagraph" else "pagraph.sampling's samplers of blocks are for pagraph.Loader"
    return "this one makes no blocks; its batches come from pagraph.pyg.NeighborLoader or its own sample()"


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
            tables[src_type].relabel(read_sources(hop, edges[etype]), edges[etype].indices.numpy())
        return edges

    def _pick(self, hop: Hop, number: int, etype: EdgeType) -> HopEdges:
        picked = self.sampler.pick(self.graph, hop, number, etype, self.field)
        excluded = self.exclude.get(etype)
        return picked if excluded is None or not len(hop.frontier) else excluded.drop_from(picked)

    def _output(self, ntype: str, table: VertexTable) -> Tensor:
        out = self.pools(("nodes", ntype)).take((table.count,), self.dtype)
        out.numpy()[:] = table.nodes
        return out
