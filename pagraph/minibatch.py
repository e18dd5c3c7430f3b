"""What a sampler and the loader return: blocks and mini-batches of plain tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .graph import EdgeType

__all__ = ["Block", "HeteroBlock", "HeteroMiniBatch", "MiniBatch", "Relation"]


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
        weights: Shape ``(num_edges,)``, float32: what the sampler weighs each edge with, if it does.
    """

    indptr: Tensor
    indices: Tensor
    src_nodes: Tensor
    positions: Tensor
    num_dst: int
    weights: Tensor | None = None

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
        weights = None if self.weights is None else self.weights.to(device, non_blocking=ahead)
        return Block(indptr, indices, src_nodes, positions, self.num_dst, weights)

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

    @property
    def hop_ends(self) -> list[int]:
        """How many of ``input_nodes`` are known after each hop; the seeds are hop 0.

        Vertices come in the order in which they are found: those of hop ``h`` are
        ``input_nodes[hop_ends[h - 1]:hop_ends[h]]``.
        """
        return [len(self.output_nodes), *(block.num_src for block in reversed(self.blocks))]

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


@dataclass(frozen=True, eq=False, repr=False)
class Relation:
    """The edges of one edge type in a block; ids are local to their vertex types.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``, local source ids.
        positions: Shape ``(num_edges,)``, each edge's position in the graph's CSC of this type.
        weights: Shape ``(num_edges,)``, float32: what the sampler weighs each edge with, if it does.
    """

    indptr: Tensor
    indices: Tensor
    positions: Tensor
    weights: Tensor | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)


@dataclass(frozen=True, eq=False, repr=False)
class HeteroBlock:
    """One layer of a mini-batch over several vertex and edge types.

    Of each vertex type the destination vertices are the first source vertices.

    Attributes:
        relations: The edges of every edge type.
        src_nodes: Vertex type to the graph's ids of the source vertices, for every type.
        num_dst: Vertex type to the number of destination vertices.
    """

    relations: dict[EdgeType, Relation]
    src_nodes: dict[str, Tensor]
    num_dst: dict[str, int]

    @property
    def dst_nodes(self) -> dict[str, Tensor]:
        """Vertex type to the graph's ids of the destination vertices."""
        return {ntype: ids[: self.num_dst[ntype]] for ntype, ids in self.src_nodes.items()}

    @property
    def num_edges(self) -> int:
        """Number of edges, over all types."""
        return sum(relation.num_edges for relation in self.relations.values())

    def only(self) -> Block:
        """The block of a graph with one vertex type and one edge type."""
        ((relation,), (src_nodes,), (num_dst,)) = (
            self.relations.values(),
            self.src_nodes.values(),
            self.num_dst.values(),
        )
        return Block(relation.indptr, relation.indices, src_nodes, relation.positions, num_dst, relation.weights)

    def __repr__(self) -> str:
        edges = {"-".join(etype): relation.num_edges for etype, relation in self.relations.items()}
        num_src = {ntype: len(ids) for ntype, ids in self.src_nodes.items()}
        return f"HeteroBlock(num_src={num_src}, num_dst={self.num_dst}, num_edges={edges})"


@dataclass(frozen=True, eq=False, repr=False)
class HeteroMiniBatch:
    """A mini-batch over several vertex and edge types; ``blocks[0]`` is the outermost layer.

    Attributes:
        output_nodes: Vertex type to the seeds, in order; only the types that have any.
        blocks: One per hop, outermost first.
        input_nodes: Vertex type to the vertices whose rows the first layer reads, for every type.
    """

    output_nodes: dict[str, Tensor]
    blocks: list[HeteroBlock]
    input_nodes: dict[str, Tensor]

    @property
    def hop_ends(self) -> dict[str, list[int]]:
        """Vertex type to how many of its ``input_nodes`` are known after each hop; see ``MiniBatch.hop_ends``."""
        return {
            ntype: [len(self.output_nodes.get(ntype, ())), *(len(b.src_nodes[ntype]) for b in reversed(self.blocks))]
            for ntype in self.input_nodes
        }

    def only(self) -> MiniBatch:
        """The mini-batch of a graph with one vertex type and one edge type."""
        (output_nodes,) = self.output_nodes.values()
        return MiniBatch(output_nodes, [block.only() for block in self.blocks])

    def __repr__(self) -> str:
        output, inputs = ({t: len(ids) for t, ids in nodes.items()} for nodes in (self.output_nodes, self.input_nodes))
        return f"HeteroMiniBatch(output={output}, input={inputs}, blocks={self.blocks})"
