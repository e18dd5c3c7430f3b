"""Kernels that count how often vertices are read."""

from .._jit import kernel, prefetch

_AHEAD = 24


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
        for i in range(begin, ends[hop]):
            if i + _AHEAD < len(ids):
                prefetch(counts, ids[i + _AHEAD] * counts.shape[1])
            counts[ids[i], hop] += 1
        begin = ends[hop]
