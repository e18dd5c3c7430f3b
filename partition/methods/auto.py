"""Method ``auto``: tries several starts, and improves the best one by moving whole clusters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...graph.csc import CSC
from ...graph.graph import Graph
from ...system.arrays import Int32Array, Int64Array
from ...system.progress import Progress, Ticks
from .halo import LEVELS, PASSES, HaloSearch, Tick, by_in_degree, equal_sizes
from .metis import (
    METIS_EDGE_BYTES,
    has_pymetis,
    metis_clusters,
    metis_parts,
    without_directions,
)
from .paper import paper_parts

MOST_METIS_EDGES = 2**24
"""Larger graphs only get streams, which copy no edges and take seconds for 4.2 M vertices."""
# Most memory for the counts of `halo`, a byte per vertex, part and level. Beyond it, vertices are
# only placed in one stream.
_COUNT_BYTES = 2**32
# How strongly each stream avoids large parts, as squarings of a part's size. The best one differs
# by graph: in 26 cases it was power 32 in 7, 4 in 6, 2 in 5, 8 in 2, and METIS in 6. On average the
# best of these is within 0.1 % of the best of 12 starts; without METIS within 1.2 %.
_SQUARINGS = (1, 2, 3, 5)
# Over several hops the other powers take five times as long: with many parts of about one size, the
# search can exclude none early.
_FAST_SQUARINGS = (1, 5)
# Whole clusters are moved, from large to small ones; each size finds moves that others miss.
_CLUSTERS_IN_A_PART = (4, 16, 64, 256)
_MOVES = 3  # passes over the clusters of one size
# Rounds of label propagation; later ones change little.
_ROUNDS = 5
# Maximum size of a cluster of `vertex_clusters`, as a factor of the mean. With 1.2, 5 to 14 % fewer
# edges were cut, but the smallest cluster was a tenth of the mean instead of a half.
_EXCESS = 1.05
_WORTH = 0.01  # the first round that changes less than this share of the vertices is the last

Start = Callable[[HaloSearch, Tick], None]
Parts = Int32Array


def grown_parts(csc: CSC, train: Tensor, sizes: Int64Array) -> Int32Array:
    """Parts by neighbourhood expansion (Zhang et al., KDD 2017) for vertices.

    Part after part, up to its size, takes the training vertex that adds the fewest vertices within
    one hop. Takes 4 bytes per edge for reversed edges, up to 16 for the queue, and the time of one
    pass over the edges per part.

    Args:
        csc: The edges.
        train: Training vertices, shape ``(n,)``.
        sizes: Number of training vertices of each part; they sum to ``n``.

    Returns:
        The part of each training vertex, shape ``(n,)``, int32.
    """
    from . import _halo

    ids = train.numpy()
    out = csc.transpose()
    part_of = np.full(csc.num_dst, -2, np.int32)
    part_of[ids] = -1
    edges = (*csc.arrays, *out.arrays)
    _halo.grow(*edges, ids, sizes, part_of)
    grown: Int32Array = part_of[ids]
    return grown


def cluster(csc: CSC, weights: Int64Array, limit: int, rng: np.random.Generator) -> Int64Array:
    """Clusters by size-constrained label propagation (Meyerhenke, Sanders and Schulz, 2014) along
    in-edges.

    Args:
        csc: The edges.
        weights: Weight of each vertex.
        limit: Maximum weight of a cluster.
        rng: Draws the order of vertices.

    Returns:
        The cluster of each vertex, any numbers below the number of vertices, int64.
    """
    from . import _halo

    vertices = csc.num_dst
    labels = np.arange(vertices)
    sums = weights.copy()
    votes = np.zeros(vertices, np.int64)
    voted = np.empty(vertices, np.int64)
    edges = csc.arrays
    for _ in range(_ROUNDS):
        order = rng.permutation(vertices)
        changed = _halo.propagate(*edges, order, weights, limit, labels, sums, votes, voted)
        if changed < _WORTH * vertices:
            break
    return labels


def auto_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Improve several starts as in ``halo``, and take the one whose largest part holds the fewest
    vertices; which is best differs by graph.

    The starts are streams of training vertices by in-degree as in ``halo``, which avoid large parts
    more or less strongly, and METIS by ``pymetis`` if that is installed (not DGL's METIS, which is
    not deterministic). In the best one, clusters of several sizes are then moved as a whole.

    For more than 16 M edges, there are only streams, of which the best is improved. If the counts
    of ``halo`` would take more than 4 GiB (parts x vertices x hops), the result is the paper's
    stream.
    """
    if num_parts == 1:
        return torch.zeros(len(train), dtype=torch.int32, device="cpu")
    if num_parts * graph.num_nodes * min(hops, LEVELS) > _COUNT_BYTES:
        return paper_parts(graph, train, num_parts, hops, seed=seed, progress=progress)
    divide = _better_stream if graph.num_edges > MOST_METIS_EDGES else _best_start
    return torch.from_numpy(divide(graph, train, num_parts, hops, seed, progress))


def auto_bytes(graph: Graph, num_parts: int, hops: int) -> int:
    """Memory in bytes that :func:`auto_parts` takes in addition to that of ``halo``: for METIS on
    small graphs."""
    counts = num_parts * graph.num_nodes * min(hops, LEVELS)
    if num_parts == 1 or graph.num_edges > MOST_METIS_EDGES or counts > _COUNT_BYTES:
        return 0
    if not has_pymetis():
        return 0
    return graph.num_edges * METIS_EDGE_BYTES


def _better_stream(
    graph: Graph, train: Tensor, num_parts: int, hops: int, seed: int, progress: Progress | None
) -> Parts:
    powers = _SQUARINGS if hops == 1 else _FAST_SQUARINGS
    search = HaloSearch(graph.csc, train, num_parts, hops)
    ticks = Ticks(progress, len(train) * (len(powers) + PASSES))
    order = by_in_degree(graph.csc, train)
    best = _Best()
    for squarings in powers:
        ticks.step(len(train))
        search.place(order, squarings=squarings, tick=ticks.add)
        best.take(search)
    ticks.step(len(train) * PASSES)
    search.adopt(best.parts)
    search.improve(np.random.default_rng(seed), tick=ticks.add)
    best.take(search)
    ticks.finish()
    return best.parts


class _Best:
    """The best of a search's parts: those whose largest part holds the fewest vertices."""

    def __init__(self) -> None:
        self.parts: Parts = np.empty(0, np.int32)
        self._score = (2**63, 0)

    def take(self, search: HaloSearch) -> None:
        """Keep the search's current parts if they are better."""
        if search.score < self._score:
            self.parts = search.parts.copy()
            self._score = search.score


def _best_start(
    graph: Graph, train: Tensor, num_parts: int, hops: int, seed: int, progress: Progress | None
) -> Parts:
    search = HaloSearch(graph.csc, train, num_parts, hops)
    rng = np.random.default_rng(seed)
    starts = _starts(graph, train, num_parts, hops, seed)
    passes = len(starts) * (1 + PASSES) + len(_CLUSTERS_IN_A_PART) * _MOVES + PASSES
    ticks = Ticks(progress, len(train) * passes)
    best = _Best()
    for start in starts:
        ticks.step(len(train) * (1 + PASSES))
        start(search, ticks.add)
        # The same order of moves as in `halo`, so that its result is among the candidates.
        search.improve(np.random.default_rng(seed), tick=ticks.add)
        best.take(search)
    search.adopt(best.parts)
    weights = np.zeros(graph.num_nodes, np.int64)
    weights[train.numpy()] = 1
    for pieces in _CLUSTERS_IN_A_PART:
        ticks.step(len(train) * _MOVES)
        limit = max(2, len(train) // (num_parts * pieces))
        labels = cluster(graph.csc, weights, limit, rng)
        # A cluster in several parts is several groups, since a group moves out of one part.
        groups = labels[train.numpy()] * num_parts + search.parts
        search.improve_groups(groups, rng, passes=_MOVES, tick=ticks.add)
    ticks.step(len(train) * PASSES)
    search.improve(rng, tick=ticks.add)
    ticks.finish()
    # The load has fallen, and nearly always the largest part, too.
    best.take(search)
    return best.parts


def _starts(graph: Graph, train: Tensor, num_parts: int, hops: int, seed: int) -> list[Start]:
    order = by_in_degree(graph.csc, train)

    def stream(squarings: int) -> Start:
        return lambda search, tick: search.place(order, squarings=squarings, tick=tick)

    starts = [stream(squarings) for squarings in _SQUARINGS]
    if has_pymetis():
        starts.append(
            lambda search, _: search.adopt(
                metis_parts(graph, train, num_parts, hops, seed=seed).numpy()
            )
        )
    return starts


def vertex_clusters(
    graph: Graph,
    num_clusters: int,
    *,
    weights: Int64Array | None = None,
    recursive: bool = False,
    seed: int = 0,
) -> Tensor:
    """Clusters of about equal sizes with few edges between them; none is empty.

    Uses ``pymetis`` if installed. Else clusters are grown one after the other (see
    ``grown_parts``), and improved by size-constrained label propagation (Meyerhenke, Sanders and
    Schulz, 2014). On five real graphs, METIS cut 11 to 60 % of the edges, this 20 to 69 %.

    Args:
        graph: A graph with one vertex type and one edge type.
        num_clusters: From 1 to the number of vertices.
        weights: Weight of each vertex; METIS's clusters then have about equal weights. Not used
            without METIS.
        recursive: Use METIS's recursive bisection instead of its k-way partitioning.
        seed: Seed of METIS, or of the order in which vertices change clusters.

    Returns:
        The cluster of each vertex, shape ``(num_nodes,)``, int32.
    """
    if has_pymetis():
        return metis_clusters(graph, num_clusters, weights=weights, recursive=recursive, seed=seed)
    sizes = equal_sizes(graph.num_nodes, num_clusters)
    grown = grown_parts(graph.csc, torch.arange(graph.num_nodes, device="cpu"), sizes)
    return torch.from_numpy(_improved(graph, grown, sizes, np.random.default_rng(seed)))


def _improved(
    graph: Graph,
    parts: Int32Array,
    sizes: Int64Array,
    rng: np.random.Generator,
) -> Int32Array:
    """Move each vertex, in random order, to the cluster of most of its neighbours if that has
    room."""
    from . import _halo

    count = graph.num_nodes
    both = without_directions(graph)
    edges = (both.indptr.astype(np.int64), both.indices.astype(np.int64))
    labels = parts.astype(np.int64)
    weights = np.ones(count, np.int64)
    limit = int(sizes.max() * _EXCESS)
    votes = np.zeros(count, np.int64)
    voted = np.empty(count, np.int64)
    sums = np.bincount(labels, minlength=count)
    for _ in range(_ROUNDS):
        _halo.propagate(*edges, rng.permutation(count), weights, limit, labels, sums, votes, voted)
    # Propagation may have emptied a cluster, which the interface forbids.
    return labels.astype(np.int32) if sums[: len(sizes)].all() else parts
