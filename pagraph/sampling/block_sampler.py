"""BlockSampler, the base of samplers of one block per hop, and NeighborSampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, overload

import torch
from torch import Tensor

from ..graph.minibatch import HeteroMiniBatch, MiniBatch
from .drawing import ExcludedEdges
from .edge_values import EdgeField
from .sampler import FanoutSampler, HopSampler, MiniBatchSampler
from .whole_batch import sample_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools


class SampleOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`BlockSampler.sample`."""

    dtype: torch.dtype | None
    pools: BufferPools | None
    field: EdgeField | None
    exclude: Mapping[EdgeType, ExcludedEdges] | None


class BlockSampler(HopSampler):
    """Base of the samplers that make one block per hop. Subclasses pick the edges.

    Each hop expands all known vertices again, as in DGL. The result depends on the graph, the seeds
    and the key alone, not on threads or earlier batches.
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
        """Sample the blocks of one mini-batch; thread-safe.

        Args:
            graph: The graph; with one vertex type and one edge type if ``seeds`` is a tensor.
            seeds: Shape ``(batch,)``, int32 or int64, or a mapping from vertex type to such
                tensors. Repeated seeds keep their own rows.
            key: Any 64-bit number; equal keys give equal batches. See ``derive_key``.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Recycled memory for the result. Default: fresh memory.
            field: Returns edge weights. Default: the graph's own fields.
            exclude: Edges to leave out of all blocks, by edge type.

        Raises:
            KeyError: The graph does not have a vertex type.
            IndexError: A seed is outside ``[0, num_nodes)`` of its type.
            FormatError: The graph's arrays point outside the graph (a damaged file).
        """
        batch: MiniBatch | HeteroMiniBatch
        batch = sample_batch(self, graph, seeds, key, dtype, pools, field, exclude)
        # Of a graph with several types.
        if isinstance(batch, HeteroMiniBatch) and isinstance(seeds, Tensor):
            return batch.only()
        return batch


def foreign_sampler(sampler: Any, here: str) -> str | None:
    """A hint which loader takes a sampler of another library; None for samplers of ``here`` and
    users' own.

    Args:
        sampler: Any object or class. Judged by the class that defines its ``sample``, since a
            user's subclass may adapt it.
        here: The library whose samplers the caller takes: ``"pagraph"``, ``"DGL"`` or ``"PyG"``.
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


@dataclass(frozen=True)
class NeighborSampler(FanoutSampler, BlockSampler):
    """Samples neighbours hop by hop, uniformly or by weight: GraphSAGE's sampling, like DGL's
    ``NeighborSampler``.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop, in DGL's order: the last entry
            serves the seeds. -1 takes all. An entry may be a mapping from edge type to a number,
            where 0 draws nothing.
        replace: Draw with replacement.
        edge_dir: "in" draws from in-edges; "out" from out-edges (out-neighbours become the block's
            sources), for graphs with one vertex type.
        prob: Name of an edge field: neighbours are drawn in proportion to it, and never with weight
            0 (or False). For its dtypes and values see ``edge_weights``. An edge type without the
            field is drawn from uniformly, as in DGL.
        batch_dependency: Number of batches of an epoch for which a vertex keeps its picks. Each
            vertex renews them at its own phase, so consecutive batches read many of the same rows
            (Balin and Catalyurek, NeurIPS 2023). Each batch on its own is distributed as with 1,
            where batches are independent. Picks are also renewed in each epoch, and for each call
            of :meth:`sample` whose key is not a loader's.

    Raises:
        TypeError: A fan-out or ``batch_dependency`` is not an integer, or ``prob`` is not a string.
        ValueError: There is no fan-out, one is 0 or below -1, ``batch_dependency`` is below 1, or
            ``edge_dir`` is unknown.

    Example:
        >>> import torch
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 2])
        >>> batch = NeighborSampler([-1]).sample(graph, torch.tensor([2]))
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
