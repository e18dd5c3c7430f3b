"""Kernel that gives every vertex to one of the parts that hold it."""

from .._jit import kernel


@kernel
def take_nearest(hop_of, owner, counts):  # type: ignore[no-untyped-def]
    """Fill the entries of ``owner`` that are -1: nearest part first, then the one that has fewest; 255 is no hop.

    ``hop_of`` has one row a part. Vertices of low hops choose before those of high ones, so that ``counts`` (vertices
    of each part, kept up to date) evens out what is left. Vertices in no part go wherever there are fewest.
    """
    num_parts, num_nodes = hop_of.shape
    last = 0
    for p in range(num_parts):
        for v in range(num_nodes):
            if hop_of[p, v] != 255 and hop_of[p, v] > last:
                last = hop_of[p, v]
    for step in range(last + 2):
        hop = step if step <= last else 255
        for v in range(num_nodes):
            if owner[v] >= 0:
                continue
            best = -1
            for p in range(num_parts):
                if hop_of[p, v] == hop and (best < 0 or counts[p] < counts[best]):
                    best = p
            if best >= 0:
                owner[v] = best
                counts[best] += 1
