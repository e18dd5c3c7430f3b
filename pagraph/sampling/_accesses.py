"""Kernels that count how often vertices are read."""

from .._jit import kernel, prefetch

# A count takes 1 ns, a cache miss 100: for 80 000 vertices of a million, 0.47 ms with 24 ahead, 0.12 ms with 256.
_AHEAD = 256


@kernel
def add_accesses(ids, ends, counts):  # type: ignore[no-untyped-def]
    """Add 1 to ``counts[v, h]`` for every vertex ``v`` that hop ``h`` found.

    Args:
        ids: Shape ``(n,)``, the vertices in the order in which they were found.
        ends: Shape ``(num_hops + 1,)``: how many are known after each hop.
        counts: Shape ``(num_nodes, num_hops + 1)``.
    """
    begin = 0
    for hop in range(len(ends)):
        stop = min(ends[hop], len(ids) - _AHEAD)
        for i in range(begin, stop):
            prefetch(counts, ids[i + _AHEAD] * counts.shape[1])
            counts[ids[i], hop] += 1
        for i in range(max(begin, stop), ends[hop]):
            counts[ids[i], hop] += 1
        begin = ends[hop]
