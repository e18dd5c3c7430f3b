"""Kernels of HGSampling: shares of vertices in a budget, and draws in proportion to their
squares."""

import math

import numpy as np

from ..._jit import kernel
from .hop import _A, place_of
from .weighted import draw_unit


@kernel
def add_shares(indptr, places, shares):
    """Divide 1 among the edges of each row, and add each part to its source's share; -1 stays: a
    vertex taken."""
    for i in range(len(indptr) - 1):
        count = indptr[i + 1] - indptr[i]
        for e in range(indptr[i], indptr[i + 1]):
            if shares[places[e]] >= 0.0:
                shares[places[e]] += 1.0 / count


@kernel
def keep_known(offsets, positions, sources, nodes, table, shift, indptr):
    """Keep, in place, the drawn edges whose sources are among ``nodes``; ``sources`` become places
    there.

    ``offsets`` bound the edges of each row, ``indptr`` gets the bounds of those that are kept;
    returns their number.
    """
    mask = len(table) - 1
    at = np.int64(0)
    indptr[0] = 0
    for i in range(len(indptr) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            place = place_of(np.int64(sources[e]), nodes, table, mask, shift)
            if place >= 0:
                positions[at] = positions[e]
                sources[at] = place
                at += 1
        indptr[i + 1] = at
    return at


@kernel
def take_shares(nodes, shares, size, key, keys, out):
    """Draw ``size`` vertices without replacement, each in proportion to the squares of the shares
    that are left.

    Those with the smallest ``-log(u) / share**2`` (Efraimidis and Spirakis, IPL 2006), in the order
    of ``nodes``; all where there are no more. The shares of those taken become -1.

    Args:
        nodes, shares: The vertices with their shares; those of 0 and less are not drawn.
        size: How many to draw.
        key: Random key.
        keys: Scratch with an element for each vertex.
        out: Gets the vertices.

    Returns:
        How many were drawn.
    """
    count = 0
    for i in range(len(nodes)):
        if shares[i] > 0.0:
            u = draw_unit(key + np.uint64(nodes[i]) * _A, 0)
            keys[count] = -math.log(u) / (shares[i] * shares[i])
            count += 1
    limit, spare = math.inf, 0
    if count > size > 0:
        limit = np.partition(keys[:count], size - 1)[size - 1]
        spare = size - (keys[:count] < limit).sum()
    candidate, taken = 0, 0
    for i in range(len(nodes)):
        if shares[i] > 0.0 and taken < size:
            mine = keys[candidate]
            candidate += 1
            if mine < limit or spare > 0 and mine == limit:
                spare -= mine == limit
                out[taken] = nodes[i]
                taken += 1
                shares[i] = -1.0
    return taken
