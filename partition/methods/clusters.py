"""Clusters of vertices of a limited size, found by label propagation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...csc import CSC

__all__ = ["cluster"]

_ROUNDS = 5
_WORTH = 0.01  # a round that changes a smaller share of the vertices is the last


def cluster(csc: CSC, weights: npt.NDArray[np.int64], limit: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The cluster of every vertex: any number below the number of vertices.

    Size-constrained label propagation (Meyerhenke, Sanders and Schulz, 2014) along in-edges.

    Args:
        csc: In-edges, checked.
        weights: Of every vertex.
        limit: Of the weight of a cluster.
        rng: Draws the order of each round.
    """
    from . import _clusters

    vertices = csc.num_dst
    labels, sums = np.arange(vertices), weights.copy()
    votes, voted = np.zeros(vertices, np.int64), np.empty(vertices, np.int64)
    edges = (csc.indptr.numpy(), csc.indices.numpy())
    for _ in range(_ROUNDS):
        order = rng.permutation(vertices)
        if _clusters.propagate(*edges, order, weights, limit, labels, sums, votes, voted) < _WORTH * vertices:
            break
    return labels
