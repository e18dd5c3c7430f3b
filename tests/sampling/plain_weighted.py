"""Weighted picks in plain Python: slow, obvious, and the same as the kernels'; and graphs to try
them on."""

import itertools
import math

import numpy as np
from plain_sampler import MASK, A, B, mix

from pagraph import Graph

CHUNK = 16
KEYS = 1 << 40


def unit(base, j):
    return ((mix(base + j * B) >> 12) + 0.5) * 2.0**-52


def running_sums(values):
    sums, total = [], 0.0
    for value in values:
        total += value
        sums.append(total)
    return sums


def groups(start, end):
    """The edges of each group of a row."""
    cuts = [c * CHUNK for c in range(-(-start // CHUNK), end // CHUNK + 1)]
    if len(cuts) < 2:
        return []
    cuts[0], cuts[-1] = start, end
    return list(zip(cuts, cuts[1:], strict=False))


def scan(weights, lo, hi, x):
    for e in range(lo, hi - 1):
        x -= weights[e]
        if x < 0:
            return e
    return hi - 1


def draw(base, j, start, end, weights):
    """An edge in proportion to the weights: its group by the running sums, then a scan."""
    parts = groups(start, end)
    last = len(parts) - 1
    row_sums = running_sums(weights[start:end])
    sums = [row_sums[hi - 1 - start] for _, hi in parts]
    u = unit(base, j)
    bound = sums[-1] * (int(u * len(parts)) / len(parts))
    x = u * sums[-1]
    g = next((g for g, s in enumerate(sums) if s > max(x, bound)), last)
    return scan(weights, *parts[g], x - sums[g - 1] if g else x)


def by_keys(base, start, end, weights, count, taken):
    """The ``count`` edges with the smallest keys."""
    keys = [
        (-math.log(1.0 - unit(base, KEYS + e - start)) / weights[e], e)
        for e in range(start, end)
        if e not in taken
    ]
    return [e for _, e in sorted(keys)[:count]]


def pick(vertex, start, end, weights, fanout, replace, key):
    """Positions for one vertex; all weights are positive. In the order of the kernels only with
    replacement."""
    base, degree = (key + vertex * A) & MASK, end - start
    if degree == 0:
        return []
    if fanout == -1 or (not replace and degree <= fanout):
        return list(range(start, end))
    if replace:
        if groups(start, end):
            return [draw(base, j, start, end, weights) for j in range(fanout)]
        total = running_sums(weights[start:end])[-1]
        return [scan(weights, start, end, unit(base, j) * total) for j in range(fanout)]
    taken = []
    if groups(start, end) and 2 * fanout <= degree and fanout <= 64:
        for j in range(2 * fanout + degree // 16):
            e = draw(base, j, start, end, weights)
            if e not in taken and len(taken) < fanout:
                taken.append(e)
    return taken + by_keys(base, start, end, weights, fanout - len(taken), taken)


def sample(indptr, weights, seeds, fanout, key, replace=False):
    """Positions for each seed; ``weights`` in CSC order, zeros among them."""
    kept = [p for p, weight in enumerate(weights) if weight > 0]
    before = [0]
    for weight in weights:
        before.append(before[-1] + (weight > 0))
    positive = [weights[p] for p in kept]
    return [
        [
            kept[e]
            for e in pick(
                v, before[indptr[v]], before[indptr[v + 1]], positive, fanout, replace, key
            )
        ]
        for v in seeds
    ]


def graph_of(degrees, weights, order=None):
    """Vertex ``v`` has ``degrees[v]`` in-edges; ``weights`` in CSC order; edge ids are permuted by
    ``order``."""
    degrees, weights = np.asarray(degrees), np.asarray(weights)
    n, m = len(degrees), int(np.sum(degrees))
    dst = np.repeat(np.arange(n), degrees)
    order = np.arange(m) if order is None else order
    src = np.arange(m) % n  # self-loops and parallel edges among them
    return Graph.from_coo(src[order], dst[order], n, edata={"w": weights[order]})


def rows_of(block):
    """Positions drawn for each vertex."""
    ends = block.indptr.tolist()
    positions = block.positions.tolist()
    return [positions[a:b] for a, b in itertools.pairwise(ends)]
