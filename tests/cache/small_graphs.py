"""Small random graphs whose expected accesses can be compared with many sampled epochs."""

import numpy as np
import torch

from pagraph.graph import Graph


def directed(n=300, m=1800, seed=0, **fields):
    """Out-degrees by a power law, some self-loops and parallel edges, some vertices without
    edges."""
    rng = np.random.default_rng(seed)
    src, dst = rng.zipf(1.6, m) % n, rng.integers(0, n - n // 10, m)
    return Graph.from_coo(src, dst, n, edata=fields)


def undirected(n=300, m=700, seed=1, **fields):
    ends = np.random.default_rng(seed).integers(0, n, (2, m))
    return Graph.from_coo(np.r_[ends[0], ends[1]], np.r_[ends[1], ends[0]], n, edata=fields)


def weights(m, seed=0):
    """Over five orders of magnitude, a quarter of them 0."""
    generator = torch.Generator().manual_seed(seed)
    w = 10.0 ** (5 * torch.rand(m, generator=generator) - 3)
    return torch.where(torch.rand(m, generator=generator) < 0.25, 0.0, w)


def weighted(make):
    """A graph with edge weights ``w`` and a ``mask`` of those above 0; an edge and the edge back
    weigh the same."""
    m = make().num_edges
    w = weights(m)
    if make is undirected:
        w[m // 2 :] = w[: m // 2]
    return make(w=w, mask=w > 0)
