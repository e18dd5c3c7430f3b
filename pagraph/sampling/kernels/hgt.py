"""Kernels of HGSampling: shares of vertices in a budget, and draws in proportion to their
squares."""

import math

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, AHEAD, place_of, slot_of
from .weighted import draw_unit

# Rounding errs by less than 1e-15 of a key. A wider margin only takes a few logarithms more.
_ROUNDED_DOWN = 1.0 - 1e-9


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
    num_drawn = offsets[-1]
    kept = np.int64(0)
    indptr[0] = 0
    for i in range(len(indptr) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            # Edges behind e are still as they were drawn: what is kept never overtakes.
            if e + AHEAD < num_drawn:
                prefetch(table, slot_of(sources[e + AHEAD], shift))
            place = place_of(np.int64(sources[e]), nodes, table, mask, shift)
            if place >= 0:
                positions[kept] = positions[e]
                sources[kept] = place
                kept += 1
        indptr[i + 1] = kept
    return kept


@kernel
def take_shares(nodes, shares, size, key, keys, places, out):
    """Draw ``size`` vertices without replacement, each in proportion to the squares of the shares
    that are left.

    Those with the smallest ``-log(u) / share**2``, u uniform in (0, 1) (Efraimidis and Spirakis,
    IPL 2006), in the order of ``nodes``; all where there are no more. The shares of those taken
    become -1.

    Args:
        nodes, shares: The vertices with their shares; those of 0 and less are not drawn.
        size: How many to draw.
        key: Random key.
        keys, places: Scratch with an element for each vertex.
        out: Gets the vertices.

    Returns:
        How many were drawn.
    """
    if size == 0:
        return 0
    count = _smallest_keys(nodes, shares, size, key, keys, places)
    limit = math.inf
    at_limit = 0  # vertices to take whose key is the limit: hashes may collide
    if count > size:
        limit = np.partition(keys[:count], size - 1)[size - 1]
        at_limit = size - (keys[:count] < limit).sum()
    taken = 0
    for c in range(count):
        if keys[c] > limit:
            continue
        if keys[c] == limit:
            if at_limit == 0:
                continue
            at_limit -= 1
        out[taken] = nodes[places[c]]
        shares[places[c]] = -1.0
        taken += 1
    return taken


@kernel
def _smallest_keys(nodes, shares, size, key, keys, places):
    """Gather candidates: among them are the ``size`` smallest keys, and all that equal the largest
    of these; returns their number.

    A budget has many times the vertices that a hop draws. Each time twice as many keys as needed
    were gathered, those above the ``size``-th smallest are dropped, and it bounds what is gathered
    from there on: for most vertices no logarithm is taken.
    """
    count = 0
    full = 2 * size
    bound = math.inf
    for i in range(len(nodes)):
        if shares[i] <= 0.0:
            continue
        u = draw_unit(key + np.uint64(nodes[i]) * _A, 0)
        square = shares[i] * shares[i]
        # -log(u) >= 1 - u, so that the key is above the bound whatever its logarithm is.
        if (1.0 - u) * _ROUNDED_DOWN > bound * square:
            continue
        mine = -math.log(u) / square
        if mine > bound:
            continue
        keys[count] = mine
        places[count] = i
        count += 1
        if count == full:
            bound = np.partition(keys[:count], size - 1)[size - 1]
            count = _drop_above(bound, count, keys, places)
            full = max(full, 2 * count)  # where many keys equal the bound, all of them stay
    return count


@kernel
def _drop_above(bound, count, keys, places):
    """Drop the keys above a bound, with their places, in order; returns how many are left."""
    left = 0
    for c in range(count):
        if keys[c] <= bound:
            keys[left] = keys[c]
            places[left] = places[c]
            left += 1
    return left
