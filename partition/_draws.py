"""Kernel that spreads draws over in-neighbours."""

from .._jit import kernel


@kernel
def spread(indptr, indices, frontier, draws, fanout, kept, drawn):  # type: ignore[no-untyped-def]
    """Add to ``drawn`` how often the frontier's in-neighbours are expected to be drawn, where ``kept``; returns the
    expected draws of all in-neighbours. ``draws`` says how often each frontier vertex draws ``fanout`` (-1: all)."""
    total = 0.0
    for i in range(len(frontier)):
        v = frontier[i]
        degree = indptr[v + 1] - indptr[v]
        if degree == 0:
            continue
        share = draws[i] if fanout < 0 or degree <= fanout else draws[i] * fanout / degree
        total += share * degree
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if kept[u]:
                drawn[u] += share
    return total
