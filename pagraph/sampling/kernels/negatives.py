"""Kernel of hard negatives: destinations for given sources, by weight, that are no neighbours of
them."""

import numpy as np

from ..._jit import kernel
from .hop import _A, first_above, is_among
from .weighted import draw_unit


@kernel
def _rest(u, ids, sums, count, indices, begin, end, own):
    """The candidate at the share ``u`` of the weight of all that are allowed, or -1 where none is;
    looks at all."""
    total, last = 0.0, np.int64(-1)
    for _ in range(2):  # the weight of those allowed, then the place in it
        point, before = u * total, 0.0
        total = 0.0
        for place in range(count):
            weight = 1.0
            if len(sums) > 0:
                weight, before = sums[place] - before, sums[place]
            v = np.int64(ids[place]) if len(ids) > 0 else np.int64(place)
            if v == own or is_among(indices, v, begin, end):
                continue
            total, last = total + weight, v
            if total > point > 0.0:
                return v
    return last


@kernel
def hard_ends(key, src, own, indptr, indices, ids, sums, count, tries, out):
    """``out[i]``: a destination for ``src[i]``, neither ``own[i]`` nor in its row; -1 where there
    is none.

    ``ids`` are the candidates (empty: all numbers below ``count``), ``sums`` the running sums of
    their positive weights (empty: all are as likely). Rows ascend; ``indptr`` is empty where no
    edge is excluded. Draws are thrown away until one is allowed, ``tries`` of them; then all
    candidates are looked at. Both give the weights' distribution among those that are allowed.
    """
    for i in range(len(src)):
        base, begin, end = key + np.uint64(i) * _A, np.int64(0), np.int64(0)
        if len(indptr) > 0:
            begin, end = np.int64(indptr[src[i]]), np.int64(indptr[src[i] + 1])
        out[i] = -1
        for t in range(tries if count > 0 else 0):
            u = draw_unit(base, t)
            if len(sums) > 0:
                place = first_above(sums, u * sums[count - 1], np.int64(0), np.int64(count - 1))
            else:
                place = np.int64(u * np.float64(count))
            v = np.int64(ids[place]) if len(ids) > 0 else np.int64(place)
            if v != own[i] and not is_among(indices, v, begin, end):
                out[i] = v
                break
        if out[i] < 0 and count > 0:
            out[i] = _rest(draw_unit(base, tries), ids, sums, count, indices, begin, end, own[i])
