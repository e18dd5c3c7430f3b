"""Kernels that add up the rows of in-neighbours, a block of sources at a time."""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row

_LINE = 16  # float32 values of a cache line
_AHEAD = 8


@kernel
def mark_sources(indptr, indices, targets, mask):
    """Set ``mask`` for some vertices and all of their sources."""
    for v in targets:
        mask[v] = True
        first, last = np.int64(indptr[v]), np.int64(indptr[v + 1])
        check_row(first, last, len(indices))
        for e in range(first, last):
            u = indices[e]
            check_id(u, len(mask))
            mask[u] = True


@kernel
def take_marked(mask, begin, place, found):
    """Collect the marked vertices from ``begin`` on while ``place`` and ``found`` have room, and
    number them.

    Vertex ``found[i]`` gets ``place[found[i] - begin] = i``. Returns the first vertex that was not
    looked at, and how many were collected.
    """
    count, v = 0, begin
    while v < min(len(mask), begin + len(place)):
        if mask[v]:
            if count == len(found):
                break
            place[v - begin] = count
            found[count] = v
            count += 1
        v += 1
    return v, count


@kernel
def add_block(indptr, indices, targets, begin, end, place, rows, looped, counts, out):
    """Add the rows of the sources in ``[begin, end)`` to ``out[i]``, the sum of vertex
    ``targets[i]``.

    Row ``place[u - begin]`` is source ``u``'s, or row ``u - begin`` where ``place`` is empty. With
    ``looped`` every vertex has one self-loop, whatever its own. ``counts[i]`` goes up by the edges
    added. All in float32.
    """
    width = rows.shape[1]
    for i in range(len(targets)):
        v = targets[i]
        if looped and begin <= v < end:
            p = np.int64(place[v - begin]) if len(place) else np.int64(v - begin)
            check_id(p, len(rows))
            counts[i] += 1
            for j in range(width):
                out[i, j] += rows[p, j]
        first, last = np.int64(indptr[v]), np.int64(indptr[v + 1])
        check_row(first, last, len(indices))
        for e in range(first, last):
            if e + _AHEAD < len(indices):
                u = np.int64(indices[e + _AHEAD])
                if begin <= u < end:
                    start = (np.int64(place[u - begin]) if len(place) else u - begin) * width
                    for j in range(0, width, _LINE):
                        prefetch(rows, start + j)
            u = np.int64(indices[e])
            if u < begin or u >= end or (looped and u == v):
                continue
            p = np.int64(place[u - begin]) if len(place) else u - begin
            # Its place is old where the source was not there when sources were marked.
            check_id(p, len(rows))
            counts[i] += 1
            for j in range(width):
                out[i, j] += rows[p, j]


@kernel
def _leaky_relu(x):
    return max(x, np.float32(0.2) * x)


@kernel
def add_attended(
    indptr, indices, targets, begin, end, place, sources, own, rows, most, totals, out
):
    """:func:`add_block` for GAT: every vertex attends to its sources other than itself, and once to
    itself.

    Head ``h`` weighs source ``u`` for ``v`` by the exponential of
    ``leaky_relu(sources[u, h] + own[v, h])``, less the largest such value so far, ``most``;
    ``totals`` are sums of the weights. All in float32.

    Args:
        indptr, indices, targets, begin, end, place, rows, out: As for :func:`add_block`.
        sources: Scores of the block's rows, ``(len(rows), heads)``.
        own: Scores of the targets, ``(len(targets), heads)``.
        most: Shape of ``own``; -inf before the first block.
        totals: Shape of ``own``; 0 before the first block.
    """
    heads = sources.shape[1]
    width = rows.shape[1] // heads
    for i in range(len(targets)):
        v = np.int64(targets[i])
        before, after = np.int64(indptr[v]), np.int64(indptr[v + 1])
        check_row(before, after, len(indices))
        row = indices[before:after]
        for h in range(heads):
            first, highest = h * width, most[i, h]
            for e in range(-1, len(row)):
                u = v if e < 0 else np.int64(row[e])
                if begin <= u < end:
                    p = np.int64(place[u - begin]) if len(place) else u - begin
                    check_id(p, len(rows))
                    highest = max(highest, _leaky_relu(sources[p, h] + own[i, h]))
            if highest > most[i, h]:
                scale = np.exp(most[i, h] - highest)
                totals[i, h] *= scale
                for j in range(width):
                    out[i, first + j] *= scale
                most[i, h] = highest
            for e in range(-1, len(row)):
                u = v if e < 0 else np.int64(row[e])
                if u < begin or u >= end or (e >= 0 and u == v):
                    continue
                p = np.int64(place[u - begin]) if len(place) else u - begin
                check_id(p, len(rows))
                weight = np.exp(_leaky_relu(sources[p, h] + own[i, h]) - highest)
                totals[i, h] += weight
                for j in range(width):
                    out[i, first + j] += weight * rows[p, first + j]
