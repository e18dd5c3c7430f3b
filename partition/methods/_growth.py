"""Kernel that grows parts one after the other from what they hold."""

import heapq

import numpy as np

from ..._jit import kernel


@kernel
def grow(indptr, indices, out_indptr, out_indices, starts, sizes, part_of):  # type: ignore[no-untyped-def]
    """Fill the parts to ``sizes`` one after the other, each time with the training vertex that brings least within one
    hop, or else the next of ``starts``. ``part_of`` has an entry for every vertex: -1 for training vertices, which get
    their part, and -2 for others."""
    vertices = len(part_of)
    held_by = np.full(vertices, -1, np.int32)
    missing = np.zeros(vertices, np.int64)  # of a vertex and its in-neighbours, how many the part does not hold
    asked_by = np.full(vertices, -1, np.int32)  # the part that ``missing`` is about
    begin = 0
    for part in range(len(sizes)):
        queue = [(np.int64(0), np.int64(-1))]
        queue.pop()
        for _ in range(sizes[part]):
            v = np.int64(-1)
            while v < 0 and len(queue) > 0:
                key, candidate = heapq.heappop(queue)
                if part_of[candidate] == -1 and missing[candidate] == key:
                    v = candidate
            while v < 0:
                if part_of[starts[begin]] == -1:
                    v = np.int64(starts[begin])
                begin += 1
            part_of[v] = part
            for e in range(indptr[v] - 1, indptr[v + 1]):
                u = v if e < indptr[v] else np.int64(indices[e])
                if held_by[u] == part:
                    continue
                held_by[u] = part
                for f in range(out_indptr[u] - 1, out_indptr[u + 1]):
                    w = u if f < out_indptr[u] else np.int64(out_indices[f])
                    if part_of[w] != -1:
                        continue
                    if asked_by[w] != part:
                        asked_by[w] = part
                        missing[w] = 1 + np.int64(indptr[w + 1]) - np.int64(indptr[w])
                    missing[w] -= 1
                    heapq.heappush(queue, (missing[w], w))
