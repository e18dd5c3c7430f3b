"""Edge arrays: adding reverse edges, dropping repeats, making a CSC, and bounding vertex counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import FormatError
from ..graph.graph import CSC, Graph, id_dtype
from ..system.arrays import Array, Int64Array
from ..system.budget import reading_room
from ..system.checks import StrPath
from ..system.units import bytes_text

Ids = Array

ANY_ID = 10_000_000
"""Below this, ids may be arbitrarily sparse: the index of so many vertices takes 80 MB."""

# Repeated edges are found by comparing pairs of ids, packed into one int64.
_SIMPLE_LIMIT = 2**31


def array_id_dtype(num_nodes: int, num_edges: int) -> np.dtype[Any]:
    """:func:`~pagraph.graph.csc.id_dtype` for NumPy."""
    return np.dtype(str(id_dtype(num_nodes, num_edges)).removeprefix("torch."))


def mirror(src: Ids, dst: Ids) -> tuple[Ids, Ids, Ids]:
    """Add the reverse of every edge but self-loops; also returns each edge's place in the input.

    >>> mirror(np.array([0, 1]), np.array([1, 1]))
    (array([0, 1, 1]), array([1, 1, 0]), array([0, 1, 0]))
    """
    turned = np.flatnonzero(src != dst)
    origin = np.concatenate([np.arange(len(src)), turned])
    sources = np.concatenate([src, dst[turned]])
    targets = np.concatenate([dst, src[turned]])
    return sources, targets, origin


def drop_repeats(
    src: Ids, dst: Ids, num_nodes: int, *, undirected: bool = False
) -> tuple[Ids, Ids]:
    """Sort edges and drop repeats and self-loops; ``undirected``: u-v and v-u are one edge."""
    check_simple(num_nodes)
    low = np.minimum(src, dst) if undirected else src
    high = np.maximum(src, dst) if undirected else dst
    # In place: a temporary array would take 8 more bytes per edge.
    keys = low.astype(np.int64)
    keys *= num_nodes
    keys += high
    first, second = np.divmod(_distinct(keys[src != dst]), num_nodes)
    return first.astype(src.dtype), second.astype(dst.dtype)


def check_simple(num_nodes: int) -> None:
    """Raise ValueError if a pair of ids does not fit into 64 bits."""
    if num_nodes > _SIMPLE_LIMIT:
        raise ValueError(
            f"num_nodes must be at most {_SIMPLE_LIMIT} to drop repeated edges, got {num_nodes}"
        )


def csc_of_pairs(src: Ids, dst: Ids, num_src: int, num_dst: int) -> CSC:
    """Build a CSC of the distinct edges with sorted sources; an edge's id is its position.

    At most 2**31 vertices at either end.
    """
    keys = dst.astype(np.int64)
    keys *= num_src
    keys += src
    # `max`: without sources there are no keys, but NumPy warns of a division by 0.
    targets, sources = np.divmod(_distinct(keys), max(num_src, 1))
    dtype = id_dtype(max(num_src, num_dst), len(sources))
    indptr = torch.zeros(num_dst + 1, dtype=dtype, device="cpu")
    indptr[1:] = torch.from_numpy(np.bincount(targets, minlength=num_dst).cumsum())
    return CSC(indptr, torch.from_numpy(sources).to(dtype), num_src)


def _distinct(keys: Int64Array) -> Int64Array:
    """Sort ``keys`` in place and drop repeated ones."""
    keys.sort()
    keep = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    return keys[keep]


def graph_of(src: Ids, dst: Ids, num_nodes: int) -> Graph:
    """Build a graph whose edge ids are positions in the CSC, for edges in arbitrary order."""
    # Without the ids of `from_coo`, which cost 4 or 8 bytes and a read per edge.
    csc = Graph.from_coo(src, dst, num_nodes).csc
    return Graph(CSC(csc.indptr, csc.indices, csc.num_src))


def check_size(path: StrPath, num_nodes: int) -> None:
    """Raise FormatError if the index of ``path``'s claimed vertices does not fit into memory."""
    # One int64 offset per vertex. Checked before allocation: Linux overcommits, and kills the
    # process when the memory is touched.
    least = 8 * num_nodes
    free = reading_room()
    if num_nodes < 0 or least > free:
        raise FormatError(
            f"{path} must have no more vertices than fit into memory, got {num_nodes:,}, whose "
            "index takes "
            f"{bytes_text(least)} of {bytes_text(free)}"
        )


def count_nodes(path: StrPath, src: Ids, dst: Ids) -> int:
    """The largest id plus 1, or FormatError if nearly all vertices would be isolated."""
    largest = (int(ids.max()) for ids in (src, dst) if len(ids))
    count = 1 + max(largest, default=-1)
    limit = most_nodes(len(src))
    if count > limit:
        raise FormatError(
            f"ids in {path} must be below {limit} for {len(src)} edges, got {count - 1}"
        )
    return count


def check_count(path: StrPath, num_nodes: int, num_edges: int) -> None:
    """Raise FormatError if ``path`` claims more vertices than its edges make plausible."""
    limit = most_nodes(num_edges)
    if num_nodes > limit:
        raise FormatError(
            f"{path} must have at most {limit} vertices for {num_edges} edges, it says {num_nodes}"
        )


def most_nodes(num_edges: int) -> int:
    """The largest plausible number of vertices for this number of edges."""
    # One id in 16 must be used. Otherwise they are probably account numbers, or a hostile file
    # claims gigabytes of index with a line of text.
    return max(ANY_ID, 16 * num_edges)
