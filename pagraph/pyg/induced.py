"""InducedView: subgraphs with all edges among their vertices, by source or by destination."""

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
    """A view of subgraphs whose edges may lead from the second row of their ``edge_index`` to the first.

    Attributes:
        flipped: They do. ``row`` and ``col`` of the output are then copied to recycled memory, in PyG's order:
            ``torch.stack``, which fills fresh memory, took a third of the time of large batches.
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
        if self.flipped:
            (edges,) = subgraph.edges.values()
            both = pools("edge_index").take(tuple(edges.edge_index.shape), edges.edge_index.dtype)
            both.numpy()[:] = edges.edge_index.numpy()[::-1]
            output.row, output.col = both
        return output
