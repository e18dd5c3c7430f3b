"""Kernels for parts: merging edge types, L-hop search, expected draws, relabelling and owners."""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row
from ..sampling.kernels.hop import _A, _B, mix

# Edges to prefetch ahead: random reads of `local`, which is larger than the caches, then overlap.
_AHEAD = 32
# A float has 53 bits: the lowest 11 of 64 are dropped to make a number in [0, 1).
_S11 = np.uint64(11)


@kernel
def mark_sources(indptr, indices, frontier, hop, hop_of):
    """Write ``hop`` for every source of the frontier's in-edges that still has 255.

    Returns the number of entries written.
    """
    count = np.int64(0)
    for i in range(len(frontier)):
        v = frontier[i]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(hop_of))
            if hop_of[u] == 255:
                hop_of[u] = hop
                count += 1
    return count


@kernel
def spread(indptr, indices, frontier, draws, fanout, kept, drawn):
    """Add the expected draws of the frontier's in-neighbours to ``drawn``.

    Only ``kept`` vertices receive draws. Frontier vertex ``i`` samples ``fanout`` in-neighbours
    (-1: all) ``draws[i]`` times. Returns the expected draws of all in-neighbours, kept or not.
    """
    total = 0.0
    for i in range(len(frontier)):
        v = frontier[i]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        degree = end - begin
        if degree == 0:
            continue
        # Each in-neighbour is among ``fanout`` of ``degree`` with a chance of fanout / degree.
        share = draws[i]
        if 0 <= fanout < degree:
            share = draws[i] * fanout / degree
        total += share * degree
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(kept))
            if kept[u]:
                drawn[u] += share
    return total


@kernel
def append_rows(indptr, indices, first, ends, out):
    """Append each row to ``out`` at ``ends[v]``, with ``first`` added to its sources.

    ``ends[v]`` is then the position after the row.
    """
    for v in range(len(indptr) - 1):
        at = ends[v]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        check_row(at, at + (end - begin), len(out))
        for e in range(begin, end):
            out[at] = indices[e] + first
            at += 1
        ends[v] = at


@kernel
def count_inside(indptr, indices, ids, local, counts):
    """Count the in-edges of each of ``ids`` whose source has a local id (``local >= 0``).

    Returns the number of in-edges whose source has none, and the number of these sources that were
    not counted before. Their entries of ``local`` change from -1 to -2.
    """
    missing = np.int64(0)
    sources = np.int64(0)
    for i in range(len(ids)):
        v = ids[i]
        found = 0
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            prefetch(local, indices[min(e + _AHEAD, len(indices) - 1)])
            u = indices[e]
            check_id(u, len(local))
            if local[u] >= 0:
                found += 1
            # -2: absent and counted, so that a source with several edges is counted once.
            elif local[u] == -1:
                local[u] = -2
                sources += 1
        counts[i] = found
        missing += end - begin - found
    return missing, sources


@kernel
def copy_inside(indptr, indices, ids, local, edge_ids, out_indices, out_ids):
    """Copy the edges that :func:`count_inside` counted, in order.

    Writes the source's local id and the edge's id. Without ``edge_ids`` the id is the position.
    """
    at = 0
    for i in range(len(ids)):
        v = ids[i]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            prefetch(local, indices[min(e + _AHEAD, len(indices) - 1)])
            source = indices[e]
            check_id(source, len(local))
            u = local[source]
            if u >= 0:
                check_row(at, at + 1, len(out_indices))  # as many as were counted
                out_indices[at] = u
                out_ids[at] = edge_ids[e] if len(edge_ids) else e
                at += 1


@kernel
def take_nearer(ids, hop_ends, part, owner, nearest, sizes, tied):
    """Give ``part`` the vertices of ``ids`` that no earlier part holds at the same or a lower hop.

    ``ids`` are ordered by hop. ``sizes`` is updated to the number of vertices of each part.
    ``tied[p]`` receives the number of vertices that parts ``p`` and ``part`` hold at the same hop.
    """
    begin = np.int64(0)
    for hop in range(len(hop_ends)):
        for i in range(begin, hop_ends[hop]):
            v = ids[i]
            if hop < nearest[v]:
                # The previous owner loses it.
                if owner[v] >= 0:
                    sizes[owner[v]] -= 1
                owner[v] = part
                nearest[v] = hop
                sizes[part] += 1
            elif hop == nearest[v]:
                tied[owner[v]] += 1
        begin = hop_ends[hop]


@kernel
def take_ties(ids, hop_ends, part, owner, nearest, sizes, shares):
    """Give ``part`` a share ``shares[p]`` of the vertices that part ``p`` holds at the same hop.

    A hash chooses them.
    """
    begin = np.int64(0)
    for hop in range(len(hop_ends)):
        for i in range(begin, hop_ends[hop]):
            v = ids[i]
            own = owner[v]
            if own != part and hop == nearest[v]:
                # A hash of vertex and part rather than a generator: the order of visits must not
                # change the result.
                drawn = mix(np.uint64(v) * _A + np.uint64(part) * _B)
                if np.float64(drawn >> _S11) * 2.0**-53 < shares[own]:
                    owner[v] = part
                    sizes[own] -= 1
                    sizes[part] += 1
        begin = hop_ends[hop]
