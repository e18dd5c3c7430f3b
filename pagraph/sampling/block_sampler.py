"""BlockSampler: samples one block a hop, leaving excluded edges out; NeighborSampler, which picks
by fan-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import HeteroBlock, HeteroMiniBatch, MiniBatch, Relation
from ..system.arrays import Array
from .edge_values import EdgeField
from .hop import HopEdges
from .sampler import BatchRun, FanoutHops, FanoutSampler, HopSampler, MiniBatchSampler, id_dtype_of
from .uniform_batch import uniform_blocks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools


class ExcludedEdges:
    """A set of edges of one edge type, by position in its CSC.

    Args:
        positions: Shape ``(n,)``; repeated ones count once.
    """

    def __init__(self, positions: Tensor) -> None:
        from .kernels import edges as _excluded

        values: Array = positions.numpy()
        bits = max(6, (2 * len(values)).bit_length())
        self._table = np.full(1 << bits, -1, dtype=np.int64)
        # 16 bits for each slot, 32 to 64 for each edge: 16 KiB for 1000 edges and their reverse
        # ones.
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
        arrays = edges.indptr.numpy(), edges.positions.numpy(), weights
        kept = int(
            _excluded.drop(*arrays, self._table, self._shifts[0], self._marks, self._shifts[1])
        )
        weights_left = None if edges.weights is None else edges.weights[:kept]
        return HopEdges(edges.indptr, edges.indices[:kept], edges.positions[:kept], weights_left)

    def left_of(self, positions: Tensor) -> Tensor:
        """Places of the positions that are not excluded, in order, int64."""
        from .kernels import edges as _excluded

        places = np.empty(len(positions), dtype=np.int64)
        arrays = self._table, self._shifts[0], self._marks, self._shifts[1], places
        return torch.from_numpy(places[: int(_excluded.left(positions.numpy(), *arrays))])


class SampleOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`BlockSampler.sample`."""

    dtype: torch.dtype | None
    pools: BufferPools | None
    field: EdgeField | None
    exclude: Mapping[EdgeType, ExcludedEdges] | None


class BlockSampler(HopSampler):
    """Base of the samplers that make one block per hop. Subclasses say how edges are picked.

    Every known vertex is expanded again in each hop, as in DGL. The result depends on the graph,
    the seeds and the key alone, never on threads or on what was sampled before.
    """

    @overload
    def sample(
        self, graph: Graph, seeds: Tensor, key: int = 0, **options: Unpack[SampleOptions]
    ) -> MiniBatch: ...

    @overload
    def sample(
        self,
        graph: Graph,
        seeds: Mapping[str, Tensor],
        key: int = 0,
        **options: Unpack[SampleOptions],
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
            seeds: Shape ``(batch,)``, int32 or int64, or a mapping from vertex type to such
                tensors; repeated seeds keep their own rows.
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
        whole = None if exclude else uniform_blocks(self, graph, seeds, key, dtype, pools, field)
        if whole is not None:
            return whole
        batch = _BlockRun(self, graph, seeds, key, dtype, pools, field).blocks(exclude or {})
        return batch if isinstance(seeds, Mapping) else batch.only()


def foreign_sampler(sampler: Any, here: str) -> str | None:
    """The owner of a sampler and the loader that takes it; None for those of ``here`` and for a
    user's own.

    Args:
        sampler: Any object or class. The class that defines its ``sample`` counts: a user's
            subclass may adapt it.
        here: Whose samplers the asking loader takes: ``"pagraph"``, ``"DGL"`` or ``"PyG"``.
    """
    kind = sampler if isinstance(sampler, type) else type(sampler)
    kind = next((each for each in kind.__mro__ if "sample" in vars(each)), kind)
    module = f"{kind.__module__}."
    if module.startswith(("dgl.", "pagraph.dgl.")):
        return None if here == "DGL" else "DGL's samplers are for pagraph.dgl.DataLoader"
    if module.startswith(("torch_geometric.", "pagraph.pyg.")):
        return (
            None
            if here == "PyG"
            else "PyG's samplers are for pagraph.pyg.NeighborLoader and LinkNeighborLoader"
        )
    if not module.startswith("pagraph.") or not issubclass(kind, MiniBatchSampler):
        return None
    if issubclass(kind, BlockSampler):
        return (
            None
            if here == "pagraph"
            else "pagraph.sampling's samplers of blocks are for pagraph.Loader"
        )
    return (
        "this one makes no blocks; its batches come from pagraph.pyg.NeighborLoader or its own "
        "sample()"
    )


class _BlockRun(BatchRun):
    """One batch of blocks."""

    def blocks(self, exclude: Mapping[EdgeType, ExcludedEdges]) -> HeteroMiniBatch:
        """Sample all hops, and make their blocks."""
        graph = self.graph
        id_dtype = id_dtype_of(self.graph)
        for ntype, table in self.tables.items():
            table.reset(self.seeds.get(ntype), graph.num_nodes_of(ntype), id_dtype)
        counts = [self.counts()]
        hops: list[dict[EdgeType, HopEdges]] = []
        for number in range(self.sampler.num_hops):
            hops.append(self._hop(number, counts[-1], exclude))
            counts.append(self.counts())
        nodes = self.kept_nodes()
        blocks = [
            HeteroBlock(
                {
                    etype: Relation(e.indptr, e.indices, e.positions, e.weights)
                    for etype, e in hop.items()
                },
                {ntype: ids[: after[ntype]] for ntype, ids in nodes.items()},
                before,
            )
            for hop, before, after in zip(hops, counts, counts[1:], strict=False)
        ]
        return HeteroMiniBatch(dict(self.seeds), blocks[::-1], nodes)

    def _hop(
        self, number: int, known: Mapping[str, int], exclude: Mapping[EdgeType, ExcludedEdges]
    ) -> dict[EdgeType, HopEdges]:
        """One hop: every edge type from the vertices known when it began."""
        drawn = {}
        for index, etype in enumerate(self.graph.edge_types):
            frontier = self.tables[etype[2]].nodes[: known[etype[2]]]
            hop = self.hop(number, index, frontier, self.dtype, self.pools(("hop", number, index)))
            edges = self.sampler.pick(self.graph, hop, number, etype, self.field)
            excluded = exclude.get(etype)
            if excluded is not None and len(frontier):
                edges = excluded.drop_from(edges)
            self.tables[etype[0]].relabel(self.read_sources(hop, edges), edges.indices.numpy())
            drawn[etype] = edges
        return drawn


@dataclass(frozen=True)
class NeighborSampler(FanoutSampler, BlockSampler):
    """Draws neighbours hop by hop (GraphSAGE's sampling, as DGL's ``NeighborSampler`` does it),
    uniformly or by weight.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop in DGL's order: the last entry
            serves the seeds. -1 takes all. An entry may be a mapping from edge type to a number,
            where 0 draws nothing.
        replace: Draw with replacement.
        edge_dir: "in" draws from in-edges; "out" from out-edges (the out-neighbours become the
            block's sources), for graphs with one vertex type.
        prob: Name of an edge field: neighbours are drawn in proportion to it, those of weight 0 (or
            False) never. See ``edge_weights`` for what it may hold. An edge type without the field
            is drawn from uniformly, as in DGL.
        batch_dependency: Batches of an epoch for which a vertex keeps its picks before it draws
            anew, each vertex at a time of its own; so batches behind each other read many of the
            same rows (Balin and Catalyurek, NeurIPS 2023). Each batch by itself is distributed as
            with 1, where batches are independent. An epoch begins anew, and so does :meth:`sample`
            with a key that is not a loader's.

    Raises:
        TypeError: A fan-out or ``batch_dependency`` is not an integer, or ``prob`` not a string.
        ValueError: No fan-out, one that is 0 or below -1, a ``batch_dependency`` below 1, or an
            unknown direction.

    Example:
        >>> import torch
        >>> from pagraph.graph import Graph
        >>> batch = NeighborSampler([-1]).sample(Graph.from_coo([0, 1, 2], [1, 2, 2]), torch.tensor([2]))
        >>> batch.input_nodes.tolist(), batch.blocks
        ([2, 1], [Block(num_src=2, num_dst=1, num_edges=2)])
    """

    fanouts: Sequence[int | Mapping[EdgeType, int]]
    replace: bool = False
    edge_dir: str = "in"
    prob: str | None = None
    batch_dependency: int = 1

    def __post_init__(self) -> None:
        self.check_fanouts()

    def fanout_hops(self, graph: Graph) -> FanoutHops | None:
        """See :meth:`HopSampler.fanout_hops`; a subclass may pick otherwise."""
        return FanoutHops.of(self, graph) if type(self) is NeighborSampler else None
