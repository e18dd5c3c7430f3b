"""Padding of batches to fixed sizes, hop by hop.

The padding of a hop follows its sampled vertices and edges. Padding vertices have the id -1. The
padding edges of a hop lead from its last padding vertex to the last one of the previous hop: no
sampled vertex is at either end, and destinations still never decrease. Local ids shift with the
begins of the hops; sampled vertices and edges keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import Block, MiniBatch
from .labor import LaborSampler

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..system.buffers import BufferPools
    from .sampler import HopSampler


class Sizes(NamedTuple):
    """Sizes of a batch of one vertex type and one edge type.

    Attributes:
        nodes: Number of seeds, then of the vertices that each hop finds.
        edges: Number of edges that each hop draws.
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    @classmethod
    def of(cls, hop_ends: Sequence[int], edges: Sequence[int]) -> Sizes:
        """Sizes from the ends of each hop's vertices, and the number of edges of each hop."""
        nodes = tuple(end - begin for begin, end in pairwise([0, *hop_ends]))
        return cls(nodes, tuple(edges))

    @property
    def node_ends(self) -> list[int]:
        """The ends of each hop's vertices."""
        return list(accumulate(self.nodes))

    def has_room_for(self, sampled: Sizes) -> bool:
        """Whether a sampled batch fits, with at least one padding vertex in each hop for padding
        edges."""
        nodes = zip(sampled.nodes, self.nodes, strict=True)
        edges = zip(sampled.edges, self.edges, strict=True)
        return all(n < most for n, most in nodes) and all(n <= most for n, most in edges)


def largest_sizes(sampler: HopSampler, graph: Graph, batch_size: int) -> Sizes:
    """Sizes with room for any batch of ``batch_size`` seeds, in a graph of one vertex and one edge
    type.

    Each hop is bounded on its own, so their sum may exceed the graph's number of vertices.
    """
    csc = graph.adjacency(sampler.edge_dir)
    num_nodes = graph.num_nodes
    known = frontier = batch_size
    nodes = [batch_size + 1]
    edges = []
    for hop in range(sampler.num_hops):
        # LABOR's fan-outs are averages, not bounds.
        known_number = sampler.has_fanouts and not isinstance(sampler, LaborSampler)
        fanout = sampler.fanout(hop, graph.edge_types[0]) if known_number else -1
        if fanout >= 0:
            drawn = frontier * fanout
        else:
            widest = int(csc.indptr.diff().max()) if num_nodes else 0
            # Repeated seeds repeat their edges.
            drawn = min(frontier * widest, csc.num_edges + batch_size * widest)
        found = min(drawn, num_nodes)
        known = min(known + found, batch_size + num_nodes)
        frontier = found if sampler.expands_once else known
        nodes.append(found + 1)
        edges.append(drawn)
    return Sizes(tuple(nodes), tuple(edges))


Empty = Callable[[Any, int, Tensor], Tensor]
"""Allocates a number of elements with the dtype and device of another tensor; the first argument is
a name for recycling."""


def empty_of(pools: BufferPools) -> Empty:
    """Recycled memory on the CPU, fresh memory elsewhere."""

    def empty(kind: Any, count: int, like: Tensor) -> Tensor:
        if like.is_cpu:
            return pools(("padded", kind)).take((count,), like.dtype)
        return torch.empty(count, dtype=like.dtype, device=like.device)

    return empty


def _plain(tensor: Tensor) -> Any:
    """A tensor for plain reads and writes; on the CPU, as a NumPy array.

    Torch would split such work among the threads of its pool, which wait for each other if cores
    are busy: in two of a loader's threads, batches of 7 ms took 0.5 s.
    """
    return tensor.numpy() if tensor.is_cpu else tensor


def _moved(local: Tensor, moved: Tensor, out: Tensor) -> None:
    """Write the padded local ids of sampled ones."""
    if out.is_cpu:
        # Local ids are in range. With mode="raise", NumPy would write to a copy first.
        np.take(moved.numpy(), local.numpy(), out=out.numpy(), mode="clip")
    else:
        torch.index_select(moved, 0, local, out=out)


class HopPart(NamedTuple):
    """A hop's part of an array.

    Attributes:
        sampled: Its elements in the sampled array.
        placed: The same elements in the padded array.
        padding: Its padding, which follows them there.
    """

    sampled: slice
    placed: slice
    padding: slice


def hop_parts(sampled: Sequence[int], padded: Sequence[int]) -> Iterator[HopPart]:
    """The part of each hop, given its number of elements without and with padding."""
    begin = 0
    first = 0
    for count, room in zip(sampled, padded, strict=True):
        middle = first + count
        yield HopPart(
            slice(begin, begin + count), slice(first, middle), slice(middle, first + room)
        )
        begin += count
        first += room


def padded_nodes(
    nodes: Tensor, sampled: Sizes, sizes: Sizes, ids: Tensor, empty: Empty
) -> tuple[Tensor, Tensor]:
    """The padded array of the vertices' ids in the graph, and the padded local id of each sampled
    vertex, in the dtype of ``ids``."""
    padded = empty("nodes", sum(sizes.nodes), nodes)
    moved = empty("moved", len(nodes), ids)
    out = _plain(padded)
    ids_of_nodes = _plain(nodes)
    for part in hop_parts(sampled.nodes, sizes.nodes):
        out[part.placed] = ids_of_nodes[part.sampled]
        out[part.padding] = -1
        begin = part.placed.start
        end = part.placed.stop
        if nodes.is_cpu:
            moved.numpy()[part.sampled] = np.arange(begin, end)
        else:
            torch.arange(begin, end, out=moved[part.sampled])
    return padded, moved


def pad_blocks(batch: MiniBatch, sampled: Sizes, sizes: Sizes, empty: Empty) -> MiniBatch:
    """The blocks of a batch, padded to ``sizes``, which have room for it; without fields."""
    ends = sizes.node_ends
    (*others, outer) = reversed(batch.blocks)
    nodes, moved = padded_nodes(batch.input_nodes, sampled, sizes, outer.indices, empty)
    blocks = []
    for hop, block in enumerate([*others, outer]):
        room = sizes.edges[hop]
        count = sampled.edges[hop]
        num_dst = ends[hop]
        indptr = empty(("indptr", hop), num_dst + 1, block.indptr)
        begins = _plain(indptr)
        sampled_begins = _plain(block.indptr)
        for part in hop_parts(sampled.nodes[: hop + 1], sizes.nodes[: hop + 1]):
            begins[part.placed] = sampled_begins[part.sampled]
            # Padding rows are empty; the last one begins where the sampled edges end.
            begins[part.padding] = sampled_begins[part.sampled.stop]
        begins[num_dst] = room
        indices = empty(("indices", hop), room, block.indices)
        _moved(block.indices, moved, indices[:count])
        _plain(indices)[count:] = ends[hop + 1] - 1
        positions = _extended(block.positions, room, -1, empty, ("positions", hop))
        weights = block.weights
        if weights is not None:
            # Not 0: a layer that divides by the sum of weights would make NaN, also of gradients.
            weights = _extended(weights, room, 1, empty, ("weights", hop))
        blocks.append(Block(indptr, indices, nodes[: ends[hop + 1]], positions, num_dst, weights))
    return MiniBatch(nodes[: ends[0]], blocks[::-1])


def _extended(values: Tensor, room: int, fill: int, empty: Empty, kind: Any) -> Tensor:
    padded = empty(kind, room, values)
    out = _plain(padded)
    out[: len(values)] = _plain(values)
    out[len(values) :] = fill
    return padded


def pad_edges(
    edge_index: tuple[Tensor, Tensor],
    edge_ids: Tensor,
    moved: Tensor,
    sampled: Sizes,
    sizes: Sizes,
    empty: Empty,
) -> tuple[Tensor, Tensor]:
    """The edges of a subgraph, hop by hop, padded to ``sizes``.

    Args:
        edge_index: Local ids of sources, and of destinations.
        edge_ids: The graph's id of each edge.
        moved: The padded local ids that :func:`padded_nodes` returns.
        sampled: The subgraph's sizes.
        sizes: Sizes with room for it.
        empty: Allocates memory.

    Returns:
        The padded ``edge_index``, shape ``(2, num_edges)``, and ids, with -1 for padding.
    """
    room = sum(sizes.edges)
    last = [end - 1 for end in sizes.node_ends]
    padded = empty("edge_index", 2 * room, moved).view(2, room)
    ids = empty("edge_ids", room, edge_ids)
    src, dst = padded
    local_src, local_dst = edge_index
    sources = _plain(src)
    destinations = _plain(dst)
    sampled_destinations = _plain(local_dst)
    out_ids = _plain(ids)
    sampled_ids = _plain(edge_ids)
    # No edges lead to the last hop's vertices.
    vertices = hop_parts(sampled.nodes[:-1], sizes.nodes[:-1])
    edges = hop_parts(sampled.edges, sizes.edges)
    for hop, (part, found) in enumerate(zip(edges, vertices, strict=True)):
        _moved(local_src[part.sampled], moved, src[part.placed])
        # All destinations are vertices of the previous hop, which shift by the same number.
        shift = found.placed.start - found.sampled.start
        destinations[part.placed] = sampled_destinations[part.sampled] + shift
        sources[part.padding] = last[hop + 1]
        destinations[part.padding] = last[hop]
        out_ids[part.placed] = sampled_ids[part.sampled]
        out_ids[part.padding] = -1
    return padded, ids
