"""Kernel of label propagation."""

from ..._jit import kernel


@kernel
def propagate(indptr, indices, order, weights, limit, labels, sums, votes, voted):  # type: ignore[no-untyped-def]
    """Give each vertex in ``order`` the label that most of its in-neighbours have, if its cluster stays within
    ``limit``; returns how many changed. ``sums`` is each label's weight; ``votes`` is zero before and after."""
    changed = 0
    for i in range(len(order)):
        v = order[i]
        n = 0
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] == v:  # else graphs with self-loops would keep one vertex to a cluster
                continue
            label = labels[indices[e]]
            if votes[label] == 0:
                voted[n] = label
                n += 1
            votes[label] += 1
        own = labels[v]
        best, most = own, votes[own]
        for j in range(n):
            label = voted[j]
            if votes[label] > most and sums[label] + weights[v] <= limit:
                best, most = label, votes[label]
            votes[label] = 0
        if best != own:
            labels[v] = best
            sums[own] -= weights[v]
            sums[best] += weights[v]
            changed += 1
    return changed
