"""What a sampler and the loader return: blocks and mini-batches of plain tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Block", "MiniBatch"]


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """One bipartite layer of a mini-batch (DGL's block, the MFG), compressed by destination.

    The destination vertices are the first ``num_dst`` source vertices. All ids are local to the block except
    ``src_nodes`` and ``positions``.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``, local source ids.
        src_nodes: Shape ``(num_src,)``, the graph's id of each source vertex.
        positions: Shape ``(num_edges,)``, each edge's position in the graph's CSC.
        num_dst: Number of destination vertices.
    """

    indptr: Tensor
    indices: Tensor
    src_nodes: Tensor
    positions: Tensor
    num_dst: int

    @property
    def dst_nodes(self) -> Tensor:
        """The graph's id of each destination vertex, shape ``(num_dst,)``."""
        return self.src_nodes[: self.num_dst]

    @property
    def num_src(self) -> int:
        """Number of source vertices."""
        return len(self.src_nodes)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    def to(self, device: torch.device | str) -> Block:
        """The block with its tensors on ``device``; copies to an accelerator are not waited for."""
        ahead = torch.device(device).type != "cpu"
        indptr, indices, src_nodes, positions = (
            tensor.to(device, non_blocking=ahead)
            for tensor in (self.indptr, self.indices, self.src_nodes, self.positions)
        )
        return Block(indptr, indices, src_nodes, positions, self.num_dst)

    def __repr__(self) -> str:
        return f"Block(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


@dataclass(eq=False, repr=False)
class MiniBatch:
    """A sampled mini-batch; ``blocks[0]`` is the outermost layer.

    Attributes:
        output_nodes: Shape ``(batch,)``: the seeds, in order.
        blocks: One per hop, outermost first.
        features: Field name to the rows of ``input_nodes``.
        labels: Field name to the rows of ``output_nodes``.
    """

    output_nodes: Tensor
    blocks: list[Block]
    features: dict[str, Tensor] = field(default_factory=dict)
    labels: dict[str, Tensor] = field(default_factory=dict)

    @property
    def input_nodes(self) -> Tensor:
        """The vertices whose rows the first layer reads, shape ``(num_input,)``."""
        return self.blocks[0].src_nodes if self.blocks else self.output_nodes

    def to(self, device: torch.device | str) -> MiniBatch:
        """The mini-batch with its tensors on ``device``; copies to an accelerator are not waited for."""
        ahead = torch.device(device).type != "cpu"
        return MiniBatch(
            self.output_nodes.to(device, non_blocking=ahead),
            [block.to(device) for block in self.blocks],
            {name: rows.to(device, non_blocking=ahead) for name, rows in self.features.items()},
            {name: rows.to(device, non_blocking=ahead) for name, rows in self.labels.items()},
        )

    def __repr__(self) -> str:
        return f"MiniBatch(output={len(self.output_nodes)}, input={len(self.input_nodes)}, blocks={self.blocks})"
