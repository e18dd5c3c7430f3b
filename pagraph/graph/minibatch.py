"""What samplers and loaders return: blocks, mini-batches of one or several types, subgraphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._late import call_late
from ..system.checks import as_integer
from .csc import check_range
from .fields import Named, rows_text

if TYPE_CHECKING:
    from typing_extensions import Self

    from .graph import EdgeType, Graph


def edge_pairs(indptr: Tensor, indices: Tensor) -> Tensor:
    """Sources and destinations of the edges in CSC order, shape ``(2, num_edges)``, int64."""
    pairs = torch.empty((2, len(indices)), dtype=torch.int64, device=indices.device)
    pairs[0] = indices
    vertices = torch.arange(len(indptr) - 1, device=indptr.device)
    pairs[1] = torch.repeat_interleave(vertices, indptr.diff(), output_size=len(indices))
    return pairs


def compressed(edge_index: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Check an ``edge_index`` and sort it by destination.

    Returns:
        ``indptr`` and ``indices``, both of its dtype, and the position of each edge in it, int64.
    """
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a tensor, got {type(edge_index).__name__}")
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise ValueError(
            f"edge_index must have the shape (2, num_edges), got {tuple(edge_index.shape)}"
        )
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"edge_index must hold int32 or int64, got {edge_index.dtype}")
    src, dst = plain_tensor(edge_index)
    check_range("edge_index[0]", src, num_src)
    check_range("edge_index[1]", dst, num_dst)
    dst, order = torch.sort(dst, stable=True)
    # The first edge of each destination. The sort was stable, so its edges kept their order.
    bounds = torch.arange(num_dst + 1, dtype=dst.dtype, device=dst.device)
    return torch.searchsorted(dst, bounds).to(dst.dtype), src[order], order


def plain_tensor(edge_index: Tensor) -> Tensor:
    """An ``edge_index``, or PyG's ``EdgeIndex``, as a plain tensor."""
    if hasattr(edge_index, "as_tensor"):
        # An EdgeIndex is a wrapper, whose memory torch does not see.
        plain: Tensor = edge_index.as_tensor()
        return plain
    return edge_index.as_subclass(Tensor)


class BatchPart:
    """Base of batches and of the dataclasses in them."""

    def to(self, device: torch.device | str) -> Self:
        """The same with all tensors on ``device``; copies to an accelerator are asynchronous."""
        device = torch.device(device)
        # An accelerator's stream runs the copy before later work. A copy to the CPU must be
        # complete, because the next line may read the values.
        return self.apply(partial(Tensor.to, device=device, non_blocking=device.type != "cpu"))

    def apply(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same with ``function`` applied to each tensor, like ``apply`` of PyG's batches."""
        made: Self = _with(self, function)
        return made


def _with(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A batch, or a part of one, with ``function`` applied to all its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        # Named must stay Named, since its KeyError lists the names.
        kind = Named if isinstance(value, Named) else dict
        return kind((key, _with(part, function)) for key, part in value.items())
    if isinstance(value, list):
        return [_with(part, function) for part in value]
    if is_dataclass(value):
        # Not vars(value): users may have set further attributes on a batch.
        names = [part.name for part in fields(value)]
        made: Any = type(value)
        return made(**{name: _with(getattr(value, name), function) for name in names})
    return value


@dataclass(frozen=True, eq=False, repr=False)
class Block(BatchPart):
    """One bipartite layer of a mini-batch (DGL's block, the MFG), compressed by destination.

    The destination vertices are the first ``num_dst`` source vertices. All ids are local to the
    block except ``src_nodes`` and ``positions``.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``, local source ids.
        src_nodes: Shape ``(num_src,)``, the graph's id of each source vertex.
        positions: Shape ``(num_edges,)``, each edge's position in the graph's CSC.
        num_dst: Number of destination vertices.
        weights: Shape ``(num_edges,)``, float32: the sampler's edge weights, if it weighs edges.
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
        return self.src_nodes.shape[0]

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]

    def to_pyg(self) -> Tensor:
        """The edges as an ``edge_index`` for PyG's layers, on the block's device; needs no PyG.

        With one row of ``x`` for each source vertex, call
        ``conv((x, x[:block.num_dst]), block.to_pyg())``, or for a layer that takes no pair, such as
        ``GCNConv``, ``conv(x, block.to_pyg())[:block.num_dst]``. Edges are in the order of
        ``weights`` and ``positions``.

        It is a plain tensor, like the ``edge_index`` of PyG's own batches: in PyG 2.6 to 2.8 the
        backward pass of layers such as ``GraphConv`` fails for a non-square ``EdgeIndex``. To make
        one, call
        ``EdgeIndex(block.to_pyg(), sparse_size=(block.num_src, block.num_dst), sort_order="col")``.

        Returns:
            Local sources and local destinations, shape ``(2, num_edges)``, int64; destinations are
            non-decreasing.
        """
        return edge_pairs(self.indptr, self.indices)

    @classmethod
    def from_pyg(
        cls,
        edge_index: Tensor,
        src_nodes: Tensor,
        num_dst: int,
        *,
        positions: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Block:
        """Build from an ``edge_index`` with edges in any order; the reverse of :meth:`to_pyg`.

        Edges are sorted by destination; those of one destination keep their order.

        Args:
            edge_index: Shape ``(2, num_edges)``, int32 or int64, on any device: local sources and
                local destinations.
            src_nodes: Shape ``(num_src,)``, the graph's id of each source vertex, the destinations
                first.
            num_dst: Number of destination vertices.
            positions: Shape ``(num_edges,)``, in the order of ``edge_index``. Default: places in
                ``edge_index``.
            weights: Shape ``(num_edges,)``, in the order of ``edge_index``.

        Raises:
            TypeError: ``edge_index`` is not a tensor of int32 or int64, ``src_nodes`` not a tensor,
                or ``num_dst`` no integer.
            ValueError: A shape does not fit, or an id is out of range.
        """
        num_dst = as_integer("num_dst", num_dst)
        if not isinstance(src_nodes, Tensor):
            raise TypeError(f"src_nodes must be a tensor, got {type(src_nodes).__name__}")
        if not 0 <= num_dst <= len(src_nodes):
            raise ValueError(f"num_dst must be in [0, num_src={len(src_nodes)}], got {num_dst}")
        indptr, indices, order = compressed(edge_index, len(src_nodes), num_dst)
        for name, values in (("positions", positions), ("weights", weights)):
            if values is not None and len(values) != len(order):
                raise ValueError(
                    f"{name} must have one entry per edge ({len(order)}), got {len(values)}"
                )
        positions = order.to(indices.dtype) if positions is None else positions[order]
        if weights is not None:
            weights = weights[order]
        return cls(indptr, indices, src_nodes, positions, num_dst, weights)

    def to_dgl(self, graph: Graph | None = None) -> Any:
        """The block as a DGL block, for DGL's layers; needs DGL, for a GPU one built with CUDA.

        It is a copy with int64 ids. ``srcdata`` and ``dstdata`` hold ``dgl.NID``. If the sampler
        weighs edges, ``edata["edge_weights"]`` holds the weights.

        Args:
            graph: The sampled graph; ``edata[dgl.EID]`` then holds its edge ids.

        Raises:
            MissingDependencyError: DGL is not installed.
            DGLError: The block is on a GPU and DGL was built without CUDA.
        """
        return call_late("dgl_block", self, graph)

    def __repr__(self) -> str:
        return f"Block(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


@dataclass(frozen=True, eq=False, repr=False)
class Links(BatchPart):
    """The seed edges of a batch and their negatives, of one edge type.

    Ends are positions in the batch's ``output_nodes``.

    Attributes:
        positive: Shape ``(2, p)``: sources and destinations of the seeds, in order.
        negative: Shape ``(2, q)``: those of the sampled negative pairs.
        edge_ids: The graph's id of each positive edge, shape ``(p,)``; None where the seeds were
            pairs of vertices.
    """

    positive: Tensor
    negative: Tensor
    edge_ids: Tensor | None = None

    def __repr__(self) -> str:
        return f"Links(positive={self.positive.shape[1]}, negative={self.negative.shape[1]})"


def _rows_text(**parts: dict[str, Tensor]) -> str:
    """The rows of a batch in its repr; "" if it has none."""
    return "".join(f", {name}={{{rows_text(rows)}}}" for name, rows in parts.items() if rows)


@dataclass(eq=False, repr=False)
class MiniBatch(BatchPart):
    """A sampled mini-batch; ``blocks[0]`` is the outermost layer.

    Attributes:
        output_nodes: Shape ``(batch,)``: the seeds, in order; for links each end once.
        blocks: One per hop, outermost first.
        features: Field name to the rows of ``input_nodes``.
        labels: Field name to the rows of ``output_nodes``.
        links: The seed pairs and negatives, if the seeds were edges or pairs.
        seed_mask: With ``shapes="fixed"``, which of ``output_nodes`` are seeds, shape ``(batch,)``,
            bool; the others, at least the last one, are padding. None if all are seeds.
        shape_number: With ``shapes="fixed"``, which of the loader's sizes the batch has. None if it
            has a size of its own.
    """

    output_nodes: Tensor
    blocks: list[Block]
    features: dict[str, Tensor] = field(default_factory=Named)
    labels: dict[str, Tensor] = field(default_factory=Named)
    links: Links | None = None
    seed_mask: Tensor | None = None
    shape_number: int | None = None

    @property
    def input_nodes(self) -> Tensor:
        """The vertices whose rows the first layer reads, shape ``(num_input,)``."""
        return self.blocks[0].src_nodes if self.blocks else self.output_nodes

    @property
    def hop_ends(self) -> list[int]:
        """Ends of the hops: hop ``h`` is ``input_nodes[hop_ends[h - 1]:hop_ends[h]]``.

        Hop 0 is the seeds.
        """
        # Not `len`, which for tensors calls Python code: every batch comes here.
        return [
            self.output_nodes.shape[0],
            *[block.src_nodes.shape[0] for block in reversed(self.blocks)],
        ]

    def __repr__(self) -> str:
        counts = f"output={len(self.output_nodes)}, input={len(self.input_nodes)}"
        rows = _rows_text(features=self.features, labels=self.labels)
        links = "" if self.links is None else f", links={self.links}"
        size = "" if self.shape_number is None else f", shape_number={self.shape_number}"
        return f"MiniBatch({counts}, blocks={self.blocks}{rows}{links}{size})"


@dataclass(frozen=True, eq=False, repr=False)
class Relation(BatchPart):
    """The edges of one edge type in a block; ids are local to their vertex types.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``, local source ids.
        positions: Shape ``(num_edges,)``, each edge's position in the graph's CSC of this type.
        weights: Shape ``(num_edges,)``, float32: the sampler's edge weights, if it weighs edges.
    """

    indptr: Tensor
    indices: Tensor
    positions: Tensor
    weights: Tensor | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]


@dataclass(frozen=True, eq=False, repr=False)
class HeteroBlock(BatchPart):
    """One layer of a mini-batch over several vertex and edge types.

    For each vertex type the destination vertices are the first source vertices.

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

    def to_pyg(self) -> dict[EdgeType, Tensor]:
        """The edges as an ``edge_index_dict`` for PyG's heterogeneous layers; see ``Block.to_pyg``.

        ``HeteroConv`` takes the features of all source vertices of each type. In its output, the
        first ``num_dst[vertex type]`` rows are the destinations'.
        """
        return {etype: edge_pairs(r.indptr, r.indices) for etype, r in self.relations.items()}

    def only(self) -> Block:
        """The block of a graph with one vertex type and one edge type."""
        (relation,) = self.relations.values()
        (src_nodes,) = self.src_nodes.values()
        (num_dst,) = self.num_dst.values()
        return Block(
            relation.indptr,
            relation.indices,
            src_nodes,
            relation.positions,
            num_dst,
            relation.weights,
        )

    def __repr__(self) -> str:
        edges = {"-".join(etype): relation.num_edges for etype, relation in self.relations.items()}
        num_src = {ntype: len(ids) for ntype, ids in self.src_nodes.items()}
        return f"HeteroBlock(num_src={num_src}, num_dst={self.num_dst}, num_edges={edges})"


@dataclass(eq=False, repr=False)
class HeteroMiniBatch(BatchPart):
    """A mini-batch over several vertex and edge types; ``blocks[0]`` is the outermost layer.

    Attributes:
        output_nodes: Vertex type to the seeds, in order; only the types that have any.
        blocks: One per hop, outermost first.
        input_nodes: Vertex type to the vertices whose rows the first layer reads, for every type.
        features: Vertex type, then field name, to the rows of its ``input_nodes``.
        labels: Vertex type, then field name, to the rows of its ``output_nodes``.
        links: Edge type to the seed pairs and negatives, if the seeds were edges or pairs.
    """

    output_nodes: dict[str, Tensor]
    blocks: list[HeteroBlock]
    input_nodes: dict[str, Tensor]
    features: dict[str, dict[str, Tensor]] = field(default_factory=Named)
    labels: dict[str, dict[str, Tensor]] = field(default_factory=Named)
    links: dict[EdgeType, Links] | None = None

    @property
    def hop_ends(self) -> dict[str, list[int]]:
        """Vertex type to the number of its ``input_nodes`` after each hop; see ``MiniBatch``."""
        ends = {ntype: [len(self.output_nodes.get(ntype, ()))] for ntype in self.input_nodes}
        for block in reversed(self.blocks):
            for ntype, of_type in ends.items():
                of_type.append(len(block.src_nodes[ntype]))
        return ends

    def only(self) -> MiniBatch:
        """The mini-batch of a graph with one vertex type and one edge type."""
        (output_nodes,) = self.output_nodes.values()
        links = None if self.links is None else next(iter(self.links.values()))
        return MiniBatch(output_nodes, [block.only() for block in self.blocks], links=links)

    def __repr__(self) -> str:
        output = {ntype: len(ids) for ntype, ids in self.output_nodes.items()}
        inputs = {ntype: len(ids) for ntype, ids in self.input_nodes.items()}
        rows = ""
        for name, by_type in (("features", self.features), ("labels", self.labels)):
            rows += _rows_text(**{f"{name}[{t!r}]": fields for t, fields in by_type.items()})
        links = "" if self.links is None else f", links={self.links}"
        counts = f"output={output}, input={inputs}"
        return f"HeteroMiniBatch({counts}, blocks={self.blocks}{rows}{links})"


@dataclass(frozen=True, eq=False, repr=False)
class SampledEdges:
    """The sampled edges of one type.

    Attributes:
        edge_index: Shape ``(2, num_edges)``: local ids of the source and of the destination of each
            edge, contiguous. Destinations never decrease, unless a sampler orders edges by their
            sources.
        numbers: Shape ``(num_edges,)``: the argument of ``ids_of``; if that is None, the edge ids,
            int64.
        hop_ends: Number of edges after each hop, with a first 0 for the seeds. Induced edges belong
            to no hop, so it is just the 0.
        ids_of: Looks up the edge ids, when ``edge_ids`` is first read. Few models read them, and
            for 0.75 M edges it took 2 of a batch's 12 ms.
    """

    edge_index: Tensor
    numbers: Tensor
    hop_ends: list[int]
    ids_of: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def edge_ids(self) -> Tensor:
        """The graph's id of each edge, shape ``(num_edges,)``, int64."""
        return self.numbers if self.ids_of is None else self.ids_of(self.numbers)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.numbers)


@dataclass(frozen=True, eq=False, repr=False)
class Subgraph:
    """A sampled mini-batch over any number of vertex and edge types.

    A vertex has one local id in the batch, or one in each tree of disjoint sampling. The vertices
    of a type are in order of discovery, seeds first. A repeated seed has one local id each time,
    and its edges lead to the first.

    Attributes:
        output_nodes: Vertex type to the seeds, in order; only the types that have any.
        input_nodes: Vertex type to the graph's ids of the vertices, for every type.
        edges: Edge type to the sampled edges, for every type.
        hop_ends: Vertex type to the number of its vertices after each hop; hop 0 is the seeds.
        trees: Vertex type to the seed that each vertex was sampled for, shape ``(num_nodes,)``,
            int64. Seeds are numbered over all types in the graph's order. None unless the trees
            are disjoint.
    """

    output_nodes: dict[str, Tensor]
    input_nodes: dict[str, Tensor]
    edges: dict[EdgeType, SampledEdges]
    hop_ends: dict[str, list[int]]
    trees: dict[str, Tensor] | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges, over all types."""
        return sum(edges.num_edges for edges in self.edges.values())

    def __repr__(self) -> str:
        output = {ntype: len(ids) for ntype, ids in self.output_nodes.items()}
        inputs = {ntype: len(ids) for ntype, ids in self.input_nodes.items()}
        edges = {"-".join(etype): edges.num_edges for etype, edges in self.edges.items()}
        return f"Subgraph(output={output}, nodes={inputs}, edges={edges})"
