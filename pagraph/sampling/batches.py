"""Batches whose seeds are pairs of vertices, or vertices with times; for edges see
``edge_batches``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..seeds.keys import derive_key
from .negative import HardPairs
from .sampler import MiniBatchSampler
from .times import known_ticks, times_of_bits, widened, window_starts

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..graph.minibatch import Subgraph
    from .negative import NegativeEnds
    from .sampler import HopSampler
    from .subgraph_sampler import SubgraphSampler

NEGATIVES = -1
"""Number of the negative pairs' key, in place of a hop's number; see ``derive_key``."""


def chance_of_some(counts: Tensor, total: int, drawn: int) -> Tensor:
    """Probability that ``drawn`` of ``total`` distinct items include at least one of a given number
    of items.

    Args:
        counts: Numbers of given items, int64.
        total: Number of all items.
        drawn: Number of items drawn, without replacement.

    Returns:
        The probability for each of ``counts``, float64.

    >>> chance_of_some(torch.tensor([0, 1, 2, 4]), 5, 2).tolist()
    [0.0, 0.4, 0.7, 1.0]
    """
    most = int(counts.max()) if len(counts) else 0
    missed = torch.arange(most, dtype=torch.float64, device="cpu")
    log = torch.log(((total - drawn - missed) / (total - missed)).clamp(min=0.0))
    table = torch.cat(
        [torch.zeros(1, dtype=torch.float64, device="cpu"), -torch.expm1(log.cumsum(0))]
    )
    if len(table) > 1:
        table[1] = drawn / total  # the usual case, without rounding
    return table[counts]


class Found(Protocol):
    """Interface of ``AccessCounts`` and ``ExpectedAccesses``."""

    @property
    def num_hops(self) -> int:
        """Number of hops."""

    def by_hop(self, node_type: str) -> Tensor:
        """Reads of each vertex by the hop that found it."""

    def frontier(self, node_type: str, hop: int) -> Tensor:
        """Number of batches in which each vertex is known before a hop."""


def expanded(found: Found, sampler: HopSampler, node_type: str, hop: int) -> Tensor:
    """How often hop ``hop`` (0 serves the seeds) of a sampler expands each vertex, shape
    ``(num_nodes,)``."""
    if sampler.expands_once:
        return found.by_hop(node_type)[:, hop]
    return found.frontier(node_type, hop)


def count_ends(counts: dict[str, Tensor], types: tuple[str, str], src: Tensor, dst: Tensor) -> None:
    """Add to ``counts`` the number of pairs of which each vertex is an end; a pair of a vertex with
    itself counts once."""
    apart = dst if types[0] != types[1] else dst[src != dst]
    for ntype, ids in zip(types, (src, apart), strict=True):
        counts[ntype] += torch.bincount(ids, minlength=len(counts[ntype]))


class FromHops(MiniBatchSampler):
    """Base of the samplers that choose the first vertices, and whose hops are those of the sampler
    ``blocks``."""

    blocks: Any

    @property
    def hops(self) -> HopSampler:  # noqa: D102
        hops: HopSampler = self.blocks.hops
        return hops

    @property
    def num_hops(self) -> int:  # noqa: D102
        return self.hops.num_hops


@dataclass(frozen=True)
class PairNegatives:
    """Negatives of a batch of pairs; they may be edges of the graph.

    Attributes:
        amount: Negatives per pair. A batch of ``p`` pairs gets ``ceil(p * amount)``; number ``j``
            belongs to pair ``j % p``.
        dst: Draws their destinations.
        src: Draws their sources. None: a negative is another destination for its pair's source.
        window: Length of the time window before the pair's time in which their times, if any, must
            lie. None: there is no window.
    """

    amount: float
    dst: NegativeEnds
    src: NegativeEnds | None = None
    window: float | None = None

    @property
    def has_sources(self) -> bool:
        """Whether negatives have sources of their own."""
        return self.src is not None


@dataclass(frozen=True, eq=False)
class PairSeeds:
    """The seeds of a batch of ``p`` pairs and ``q`` negatives.

    Attributes:
        nodes: Vertex type to seeds. If each seed has its own tree: sources of pairs, sources of
            negatives, destinations of pairs, destinations of negatives. Else sorted (by time first,
            if there are times) and without repeats.
        src: Index of each source among the seeds of its type, shape ``(p + q,)``; ``(p,)`` if
            negatives have no sources of their own.
        dst: Index of each destination, shape ``(p + q,)``.
        owners: Vertex type to the pair of each seed; None unless each seed has its own tree.
        times: Vertex type to the time of each seed; None without times.
    """

    nodes: dict[str, Tensor]
    src: Tensor
    dst: Tensor
    owners: dict[str, Tensor] | None
    times: dict[str, Tensor] | None


def pair_seeds(
    types: tuple[str, str],
    src: Tensor,
    dst: Tensor,
    key: int,
    *,
    negatives: PairNegatives | HardPairs | None = None,
    disjoint: bool = False,
    times: Tensor | None = None,
) -> PairSeeds:
    """Draw the negatives of a batch of pairs, and collect the seeds.

    Args:
        types: Vertex types of sources and destinations.
        src: Sources, shape ``(p,)``, int64.
        dst: Destinations, shape ``(p,)``, int64.
        key: The batch's key, any 64-bit number. Negatives get other random numbers than hops.
        negatives: Draws the negatives; None: there are none.
        disjoint: Whether each seed has its own tree.
        times: Time of each pair, and of its ends and negatives, shape ``(p,)``, integers or floats.
    """
    if times is not None:
        times = widened("times", times)
    src, src_owners, dst, dst_owners = _with_negatives(src, dst, key, negatives, times)
    if types[0] == types[1]:
        # With one type, destinations follow the sources.
        first_dst = len(src)
        nodes = {types[0]: torch.cat([src, dst])}
        owned = {types[0]: torch.cat([src_owners, dst_owners])}
    else:
        first_dst = 0
        nodes = {types[0]: src, types[1]: dst}
        owned = {types[0]: src_owners, types[1]: dst_owners}
    of_seeds = None
    if times is not None:
        of_seeds = {ntype: times[owners] for ntype, owners in owned.items()}
    places = {ntype: torch.arange(len(ids), device="cpu") for ntype, ids in nodes.items()}
    # Without disjoint trees, equal vertices (with equal times) become one seed.
    for ntype, ids in nodes.items() if not disjoint else ():
        if of_seeds is None:
            nodes[ntype], places[ntype] = torch.unique(ids, return_inverse=True)
        else:
            nodes[ntype], of_seeds[ntype], places[ntype] = _distinct(ids, of_seeds[ntype])
    return PairSeeds(
        nodes,
        places[types[0]][: len(src)],
        places[types[1]][first_dst:],
        owned if disjoint else None,
        of_seeds,
    )


def _with_negatives(
    src: Tensor,
    dst: Tensor,
    key: int,
    negatives: PairNegatives | HardPairs | None,
    times: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sources of a batch of pairs and of their negatives, the pair of each, and the same of the
    destinations; see :func:`pair_seeds`.

    The time of an end is that of its pair.
    """
    src_owners = dst_owners = torch.arange(len(src), device="cpu")
    if negatives is None:
        return src, src_owners, dst, dst_owners
    target_key = derive_key(key, NEGATIVES, 1)
    if isinstance(negatives, HardPairs):
        owners, ends = negatives.draw(src, dst, target_key)
        if negatives.has_sources:
            src = torch.cat([src, src[owners]])
            src_owners = torch.cat([src_owners, owners])
        dst = torch.cat([dst, ends])
        dst_owners = torch.cat([dst_owners, owners])
    else:
        # Negative j belongs to pair j % p, so that all pairs get about the same number.
        num_negatives = math.ceil(len(src) * negatives.amount)
        owners = torch.arange(num_negatives, device="cpu") % max(1, len(src))
        until = None
        since = None
        if times is not None:
            until, since = _limits(times[owners], negatives.window)
        if negatives.src is not None:
            # Another key than that of destinations, to draw both independently.
            source_key = derive_key(key, NEGATIVES, 0)
            src = torch.cat([src, negatives.src.draw(len(owners), source_key, until, since)])
            src_owners = torch.cat([src_owners, owners])
        dst = torch.cat([dst, negatives.dst.draw(len(owners), target_key, until, since)])
        dst_owners = torch.cat([dst_owners, owners])
    return src, src_owners, dst, dst_owners


def _limits(times: Tensor, window: float | None) -> tuple[Tensor, Tensor | None]:
    """The ticks of times, and the lower limits of the windows before them."""
    until = known_ticks("times", times)
    return until, window_starts(until, window, times.is_floating_point())


def _distinct(ids: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct vertices in the order of time and id, their times, and the index among them of
    each given vertex."""
    # Time and id as one integer; ranks of times, since times may be too large for that.
    of_ranks, ranks = torch.unique(times, return_inverse=True)
    size = int(ids.max()) + 1 if len(ids) else 1
    distinct, places = torch.unique(ranks * size + ids, return_inverse=True)
    return distinct % size, of_ranks[distinct // size], places


@dataclass(frozen=True, eq=False)
class PairBatches(FromHops):
    """Samples subgraphs of batches of pairs. Seeds are rows of source and destination, shape
    ``(n, 2)``.

    With times, rows have the pair's time as a third number, as ``time_bits`` returns it.

    Args:
        blocks: Samples from the vertices.
        types: Vertex types of sources and destinations.
        num_nodes: Number of the graph's vertices by type.
        negatives: Draws negatives; None: there are none.
        floats: Whether times are floats.
    """

    blocks: SubgraphSampler
    types: tuple[str, str]
    num_nodes: Mapping[str, int]
    negatives: PairNegatives | HardPairs | None = None
    floats: bool = False
    seeds_are_vertices = False

    @property
    def trees_per_seed(self) -> int:
        """Maximum disjoint trees of a pair: one per end, and those of its negatives."""
        negatives = self.negatives
        if negatives is None:
            return 2
        return 2 + math.ceil(negatives.amount) * (1 + negatives.has_sources)

    def sample(self, graph: Graph, seeds: Tensor, key: int = 0) -> Subgraph:
        """Sample the subgraph of one batch of pairs.

        Raises:
            IndexError: An end is outside the graph.
        """
        src, dst, *rest = seeds.unbind(1)
        times = times_of_bits(rest[0], self.floats) if rest else None
        disjoint = self.blocks.disjoint and not self.blocks.share_trees
        start = pair_seeds(
            self.types, src, dst, key, negatives=self.negatives, disjoint=disjoint, times=times
        )
        return self.blocks.sample(graph, start.nodes, key, seed_times=start.times)

    def seed_rates(self, seeds: Tensor, batch_size: int) -> dict[str, Tensor]:
        """Probability of each vertex to be an end of a pair or of a negative in a batch of
        ``batch_size`` pairs."""
        src_type, dst_type = self.types
        src, dst = seeds[:, :2].unbind(1)
        counts = {
            t: torch.zeros(n, dtype=torch.int64, device="cpu") for t, n in self.num_nodes.items()
        }
        count_ends(counts, self.types, src, dst)
        # A batch misses a vertex if no pair and no negative has it; these are independent.
        missed = {
            t: 1 - chance_of_some(of_type, len(seeds), batch_size) for t, of_type in counts.items()
        }
        if self.negatives is not None:
            drawn = math.ceil(batch_size * self.negatives.amount)
            for ntype, ends in ((src_type, self.negatives.src), (dst_type, self.negatives.dst)):
                if ends is not None:
                    missed[ntype] *= (1 - ends.chances) ** drawn
        return {t: 1 - rates for t, rates in missed.items()}


@dataclass(frozen=True)
class TimedSeeds(FromHops):
    """Samples from vertices with times. Seeds are rows of a vertex and its time, shape ``(n, 2)``;
    for cache policies.

    Args:
        blocks: Samples from the vertices, by time.
        node_type: The type of the vertices.
        floats: Whether times are floats; rows have them as ``time_bits`` returns them.
    """

    blocks: SubgraphSampler
    node_type: str
    floats: bool = False

    def sample(self, graph: Graph, seeds: Tensor, key: int = 0) -> Subgraph:
        """Sample the subgraph of one batch.

        Raises:
            IndexError: A seed is outside the graph.
        """
        nodes, bits = seeds.unbind(1)
        times = times_of_bits(bits, self.floats)
        return self.blocks.sample(
            graph, {self.node_type: nodes}, key, seed_times={self.node_type: times}
        )
