"""Limit on replication: drops the halo vertices that training would draw least often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.graph import Graph
from ..options.partitioning import FANOUT
from .partition import Numbering, Partition, vertices_within

# Of the search for the fewest that must go. Each step follows the edges of all parts; six leave at
# most 1/64 of the excess more than needed.
_STEPS = 6


def limit_replication(
    partition: Partition, factor: float, *, fanout: Sequence[int] | None = None
) -> Partition:
    """Drop halo vertices until all parts together hold at most ``factor`` times the graph's.

    Vertices that are expected to be drawn least often in an epoch go first, whichever part they are
    in, and with them those that only they led to. ``Partition.lost`` is the share of all draws that
    would have come to dropped vertices; training draws from the neighbours that are left. Takes
    about 50 bytes for each halo vertex of all parts, and 20 a vertex of the graph.

    Args:
        partition: Its ``dropped`` is not read.
        factor: Highest replication factor, sum of the parts' vertices / vertices of the graph.
        fanout: Neighbours that training samples per hop, along each edge type, the last entry for
            the seeds; -1 is all. Default: 10.

    Raises:
        ValueError: ``factor`` leaves no room for the training vertices themselves, or ``fanout`` is
            not one number for each hop.
    """
    graph = partition.graph
    hops = partition.hops
    fanout = [FANOUT] * hops if fanout is None else list(fanout)
    if len(fanout) != hops:
        raise ValueError(f"fanout must have one number for each of {hops} hops, got {len(fanout)}")
    seeds = [partition.seeds_of(part) for part in range(partition.num_parts)]
    needed = sum(len(s) for s in seeds)
    if not factor * graph.num_nodes >= needed:  # "not >=" and not "<": NaN is refused, too
        least = needed / graph.num_nodes
        raise ValueError(
            f"max_replication must be at least {least:.4g}, what parts train on, got {factor}"
        )
    # No part holds more than the whole graph; without the minimum, infinity is no integer.
    room = int(min(factor, partition.num_parts) * graph.num_nodes)
    held = [vertices_within(partition.merged, s, hops) for s in seeds]
    excess = sum(len(v.ids) for v in held) - room
    if excess <= 0:
        return replace(partition, dropped=None, lost=0.0)
    halo = [v.ids[v.num_seeds :] for v in held]
    draws = []
    total = 0.0
    for s, ids in zip(seeds, halo, strict=True):
        drawn, all_draws = _expected_draws(graph, s, fanout)
        draws.append(drawn[ids.numpy()])
        total += all_draws
    dropped = _fewest(partition.merged, seeds, halo, _ranks(draws), hops, excess)
    # Draws again, without the dropped: what they would have led to is lost as well.
    kept = 0.0
    for s, d in zip(seeds, dropped, strict=True):
        drawn, _ = _expected_draws(graph, s, fanout, without=d)
        kept += drawn.sum()
    # Rounding must not make a share below 0.
    return replace(partition, dropped=tuple(dropped), lost=float(max(0.0, 1 - kept / total)))


def _expected_draws(
    graph: Graph, seeds: Tensor, fanout: Sequence[int], *, without: Tensor | None = None
) -> tuple[npt.NDArray[np.float64], float]:
    """Expected draws of each vertex in an epoch, and the sum of all draws, dropped ones included.

    Vertices are numbered over all types. With fan-out f, a vertex v that is expected d(v) times
    draws each of its in-neighbours d(v) min(1, f / degree(v)) times.
    """
    from . import _kernels

    numbering = Numbering(graph.num_nodes_by_type)
    kept = np.ones(graph.num_nodes, np.bool_)
    if without is not None:
        kept[without.numpy()] = False
    drawn = np.zeros(graph.num_nodes)
    total = 0.0
    # How often each vertex of the hop at hand draws: a seed once in an epoch.
    draws = np.zeros(graph.num_nodes)
    draws[seeds.numpy()] = 1
    for number in reversed(fanout):
        found = np.zeros(graph.num_nodes)
        for edge_type in graph.edge_types:
            csc = graph.csc_of(edge_type)
            sources = numbering.rows(edge_type[0])
            targets = numbering.rows(edge_type[2])
            frontier = np.flatnonzero(draws[targets])
            edges = (csc.indptr.numpy(), csc.indices.numpy(), frontier, draws[targets][frontier])
            total += _kernels.spread(*edges, number, kept[sources], found[sources])
        drawn += found
        draws = found
    return drawn, total


def _ranks(draws: Sequence[npt.NDArray[np.float64]]) -> list[npt.NDArray[np.int64]]:
    """Rank of each entry among all entries of all arrays, the lowest first."""
    order = np.argsort(np.concatenate(draws), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return np.split(place, np.cumsum([len(d) for d in draws])[:-1])


def _fewest(
    graph: Graph,
    seeds: Sequence[Tensor],
    halo: Sequence[Tensor],
    ranks: Sequence[npt.NDArray[np.int64]],
    hops: int,
    excess: int,
) -> list[Tensor]:
    """Vertices each part drops, about as few as possible, all that follow included."""

    def without(count: int) -> list[Tensor]:
        lost = []
        for start, ids, rank in zip(seeds, halo, ranks, strict=True):
            left = vertices_within(
                graph, start, hops, without=ids[torch.from_numpy(rank < count)]
            ).ids
            # Also those that only dropped vertices led to.
            lost.append(ids[~torch.isin(ids, left)].sort().values)
        return lost

    # Dropping the ``excess`` lowest is always enough. Often fewer are, as others go with them:
    # bisect between that and none.
    best = without(excess)
    fits = excess
    too_few = 0
    for _ in range(_STEPS):
        middle = (fits + too_few) // 2
        lost = without(middle)
        if sum(len(ids) for ids in lost) >= excess:
            fits = middle
            best = lost
        else:
            too_few = middle
    return best
