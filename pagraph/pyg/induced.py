"""InducedView: subgraphs with all edges among their vertices, in the memory that batches are delivered in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..system.buffers import BufferPools
from .sampler import output_of
from .subgraphs import SubgraphView

if TYPE_CHECKING:
    from ..graph.subgraph import Subgraph

__all__ = ["InducedView"]


@dataclass(eq=False, kw_only=True)
class InducedView(SubgraphView):
    """A view whose outputs have the ``edge_index`` of the batch as their ``metadata``, in recycled memory.

    PyG's ``torch.stack`` of rows and columns would fill fresh memory: it took a third of the time of large batches.

    Attributes:
        flipped: The core's edges lead from the second row of their ``edge_index`` to the first.
    """

    flipped: bool = False

    def sample_ahead(self, inputs: Tensor, key: int, pools: BufferPools | None) -> Any:
        """See ``SubgraphView``."""
        core: Any = self.core
        pools = pools or BufferPools(max_free=0)
        subgraph = core.sample(self.graph, inputs, key, dtype=self.dtype, pools=pools)
        return self.output(subgraph, pools), subgraph.hop_ends

    def output(self, subgraph: Subgraph, pools: BufferPools) -> Any:
        """The output of PyG's samplers for a subgraph."""
        output = output_of(subgraph, hetero=False)
        (edges,) = subgraph.edges.values()
        output.metadata = edges.edge_index
        if self.flipped:
            output.metadata = pools("edge_index").take(tuple(edges.edge_index.shape), edges.edge_index.dtype)
            output.metadata.numpy()[:] = edges.edge_index.numpy()[::-1]
        return output
