"""The contract of cache policies, which rank vertices by the reads that caching them saves, and the
policy by degree."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import id_range, no_ids
from ..graph.graph import EdgeType

if TYPE_CHECKING:
    from ..graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Ranking:
    """Vertices of one type, most valuable first, with scores if they are known.

    Attributes:
        ids: Shape ``(n,)``, int32 or int64, without repeats.
        scores: Shape ``(n,)``, non-increasing: the reads that caching each saves, up to a factor
            that is the same for all types.
        per_epoch: Whether the factor is 1, so that scores are expected reads per epoch.
    """

    ids: Tensor
    scores: Tensor | None = None
    per_epoch: bool = False

    @classmethod
    def of_reads(cls, reads: Tensor) -> Ranking:
        """All vertices by their expected reads per epoch, shape ``(num_nodes,)``; ties by id."""
        ids = descending(reads)
        return cls(ids, reads[ids], per_epoch=True)


RowType = str | EdgeType
"""The vertex type or edge type of a field."""

Rank = Callable[[Collection[RowType]], Mapping[RowType, Ranking]]
"""Vertex and edge types to checked rankings. Types without a ranking are not cached."""


def descending(values: Tensor) -> Tensor:
    """Positions of the values from the largest to the smallest; ties keep their order."""
    keys = values.numpy()
    if keys.dtype.kind not in "iu" or len(keys) == 0:
        return torch.from_numpy(np.argsort(-keys, kind="stable"))
    # NumPy sorts 16 bits by radix: 3 ms for a million vertices, against 48 ms with more bits (torch
    # 80 ms). So distances from ``most`` are sorted. Values at or above it, few if they are degrees,
    # all have distance 0 and are sorted afterwards.
    most = np.int64(min(int(keys.min()) + 2**16 - 1, 2**63 - 1))
    distances = np.empty(len(keys), np.uint16)
    np.minimum(keys, most, out=distances, casting="unsafe")
    np.subtract(np.uint16(most & 0xFFFF), distances, out=distances)
    order = np.argsort(distances, kind="stable")
    first = order[: np.count_nonzero(distances == 0)]
    first[:] = first[np.argsort(-keys[first], kind="stable")]
    return torch.from_numpy(order)


Ranked = Tensor | Ranking | Mapping[str, Tensor | Ranking]
"""Result of a policy: ids, most valuable first, with or without scores. By type if there are
several vertex types."""

Policy = Callable[..., Ranked]
"""``(graph, seeds, sampler, seed)`` to vertex ids, most valuable first, without repeats.

``graph`` is the sampled graph (reversed for out-neighbours). ``seeds`` are the loader's training
vertices or edges, by type if it got them so. ``sampler`` is its sampler. ``seed`` makes random
policies repeatable. A policy with the keyword ``batch_size`` gets the number of seeds per batch,
and one with ``shuffle`` whether every epoch shuffles them. A ranking may leave out vertices that
are not worth caching.

For a graph with several vertex types a policy returns a mapping from type to ids, and may leave
types out. All types share one budget. If all rankings have scores (:class:`Ranking`), the highest
scores are cached, which saves most bytes. Otherwise the budget is divided in proportion to the
bytes of all rows of each type.
"""


def apply_policy(
    policy: Policy,
    graph: Graph,
    seeds: Any,
    sampler: Any,
    seed: int,
    *,
    batch_size: int,
    shuffle: bool = True,
) -> dict[str, Ranking]:
    """Call a policy with the settings that it has keywords for, and check its rankings.

    Raises:
        TypeError: As in :func:`check_rankings`.
        ValueError: As in :func:`check_rankings`. Exceptions of the policy pass through.
    """
    settings = {"batch_size": batch_size, "shuffle": shuffle}
    try:
        parameters = inspect.signature(policy).parameters
        settings = {name: value for name, value in settings.items() if name in parameters}
    except (TypeError, ValueError):  # a callable without a signature
        settings = {}
    return check_rankings(policy(graph, seeds, sampler, seed, **settings), graph.num_nodes_by_type)


def check_rankings(ranked: Ranked, num_nodes: Mapping[str, int]) -> dict[str, Ranking]:
    """Check what a policy returned, and give every vertex type a ranking.

    Types that the policy left out get no ids.

    Args:
        ranked: Result of the policy; a mapping, unless there is one type.
        num_nodes: Vertex type to its number of vertices.

    Raises:
        TypeError: Ids or scores are not numbers, see :func:`check_ranking`.
        ValueError: As in :func:`check_ranking`; types that the graph does not have, or no types
            though there are several; scores that are not one per id, finite, at least 0 and
            non-increasing.
    """
    if not isinstance(ranked, Mapping):
        if len(num_nodes) != 1:
            raise ValueError(
                "a cache policy must return a mapping from vertex type to ids for the types "
                f"{list(num_nodes)}, got a {type(ranked).__name__}"
            )
        ranked = {next(iter(num_nodes)): ranked}
    for ntype in ranked:
        if ntype not in num_nodes:
            raise ValueError(
                f"a cache policy must return vertex types among {list(num_nodes)}, got {ntype!r}"
            )
    return {ntype: _check(ranked.get(ntype, no_ids()), count) for ntype, count in num_nodes.items()}


def _check(ranking: Tensor | Ranking, num_nodes: int) -> Ranking:
    if not isinstance(ranking, Ranking):
        return Ranking(check_ranking(ranking, num_nodes))
    ids = check_ranking(ranking.ids, num_nodes)
    scores = ranking.scores
    count = len(ids)
    if scores is None:
        return Ranking(ids)
    if not isinstance(scores, Tensor) or scores.is_complex():
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores of a ranking must be a tensor of real numbers, got {got}")
    if scores.shape != (count,):
        raise ValueError(
            f"scores of a ranking must have shape ({count},) as its ids, got {tuple(scores.shape)}"
        )
    scores = scores.detach().cpu().double()
    # With a NaN among the scores ``aminmax`` gives NaN, which the comparison refuses too.
    low, high = map(float, scores.aminmax()) if count else (0.0, 0.0)
    if not 0 <= low <= high < math.inf:
        raise ValueError(
            f"scores of a ranking must be finite and at least 0, got {high if low >= 0 else low}"
        )
    if bool((scores[1:] > scores[:-1]).any()):
        raise ValueError("scores of a ranking must not increase, got an increase")
    return Ranking(ids, scores, ranking.per_epoch)


def check_ranking(ranking: Tensor, num_nodes: int) -> Tensor:
    """The ids of a ranking as an int64 CPU tensor.

    Raises TypeError or ValueError unless they are distinct 1-D integers in ``[0, num_nodes)``.
    """
    if not isinstance(ranking, Tensor) or ranking.dtype not in (torch.int32, torch.int64):
        got = ranking.dtype if isinstance(ranking, Tensor) else type(ranking).__name__
        raise TypeError(f"a cache policy must return an int32 or int64 tensor, got {got}")
    if ranking.dim() != 1:
        raise ValueError(
            f"a cache policy must return a 1-D tensor, got shape {tuple(ranking.shape)}"
        )
    ids = ranking.detach().cpu().long()
    low, high = id_range(ids)
    if low < 0 or high >= num_nodes:
        raise ValueError(
            f"a cache policy must return ids in [0, {num_nodes}), got {low if low < 0 else high}"
        )
    seen = np.zeros(num_nodes, dtype=bool)  # 700,000 of 4 M vertices: 1.2 ms, by torch 55
    seen[ids.numpy()] = True
    distinct = int(np.count_nonzero(seen))
    if distinct != len(ids):
        raise ValueError(
            f"a cache policy must return each id at most once, got {len(ids)} ids, {distinct} of "
            "them distinct"
        )
    return ids


def degree(graph: Graph, seeds: Any, sampler: object, seed: int) -> Tensor | dict[str, Ranking]:
    """Rank by out-degree, the number of edges that can draw a vertex (PaGraph's policy).

    Ties go by id. With several types, edges of all types count, and the scores are these degrees.
    """
    if graph.is_homogeneous:
        return descending(graph.csc.source_counts)
    rankings = {}
    # Scores make the types comparable. Without them each would get its share of the budget.
    for ntype, counts in out_degrees(graph).items():
        order = descending(counts)
        rankings[ntype] = Ranking(order, counts[order])
    return rankings


def out_degrees(graph: Graph) -> dict[str, Tensor]:
    """Out-degree of each vertex over all edge types, by vertex type, int64."""
    degrees = {
        ntype: torch.zeros(graph.num_nodes_of(ntype), dtype=torch.int64, device="cpu")
        for ntype in graph.node_types
    }
    for etype in graph.edge_types:
        degrees[etype[0]] += graph.csc_of(etype).source_counts
    return degrees


def turned(graph: Graph, edge_dir: str) -> Graph:
    """The graph whose in-edges a sampler with this ``edge_dir`` draws; for "in" the graph itself.

    Arrays are shared, also with :meth:`Graph.adjacency`. Edge fields are kept, for weighted
    samplers; vertex fields are not.

    Raises:
        ValueError: "out" for an edge type between different vertex types.
    """
    if edge_dir == "in":
        return graph
    csc = {etype: graph.adjacency(edge_dir, etype) for etype in graph.edge_types}
    fields = {etype: graph.edge_fields(etype) for etype in graph.edge_types}
    edata: Any = fields
    if len(fields) == 1:
        (edata,) = fields.values()
    return type(graph)(csc, graph.num_nodes_by_type, edata=edata)
