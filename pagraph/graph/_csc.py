"""Kernels over the offsets of a CSC."""

from .._jit import kernel


@kernel
def count_degrees(dst, counts):  # type: ignore[no-untyped-def]
    """Add the number of occurrences of each id of ``dst`` to ``counts[id]``."""
    for i in range(len(dst)):
        counts[dst[i]] += 1


@kernel
def fill_csc(src, dst, cursor, indices, edge_ids):  # type: ignore[no-untyped-def]
    """Stable counting sort by destination; ``cursor`` starts as ``indptr[:-1]`` and is consumed."""
    for e in range(len(dst)):
        slot = cursor[dst[e]]
        cursor[dst[e]] = slot + 1
        indices[slot] = src[e]
        edge_ids[slot] = e


@kernel
def expand_indptr(indptr, out):  # type: ignore[no-untyped-def]
    """Write the destination of every edge of a CSC: the inverse of compressing."""
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            out[e] = v


@kernel
def is_sorted(values):  # type: ignore[no-untyped-def]
    """Whether ``values`` never decreases."""
    for i in range(1, len(values)):  # noqa: SIM110 (numba compiles the loop, not the generator)
        if values[i] < values[i - 1]:
            return False
    return True


@kernel
def count_loops(indptr, indices, counts):  # type: ignore[no-untyped-def]
    """Add the number of self-loops of each vertex to ``counts``."""
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] == v:
                counts[v] += 1


@kernel
def count_up(out):  # type: ignore[no-untyped-def]
    """``out[i] = i``; on one thread, while ``torch.arange`` starts others beside the loader's own."""
    for i in range(len(out)):
        out[i] = i


@kernel
def find_rows(indptr, positions, begins, length, out):  # type: ignore[no-untyped-def]
    """The row that each edge is in, given a row at most ``length`` before it, where a block of rows begins."""
    for i in range(len(positions)):
        low = begins[i] + 1
        high = min(begins[i] + length, len(indptr))
        while low < high:
            middle = (low + high) >> 1
            if indptr[middle] > positions[i]:
                high = middle
            else:
                low = middle + 1
        out[i] = low - 1
