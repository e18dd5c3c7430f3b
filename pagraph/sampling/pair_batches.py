"""Batches of pairs given by their ends: negative pairs, and the vertices that such a batch starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .chances import chance_of_some
from .keys import derive_key
from .minibatch_sampler import MiniBatchSampler

if TYPE_CHECKING:
    from ..graph import Graph
    from ..subgraph import Subgraph
    from .negative_ends import NegativeEnds
    from .subgraph_sampler import SubgraphSampler

__all__ = ["PairBatches", "PairNegatives", "PairSeeds", "pair_seeds"]

_NEGATIVES = -1  # the place of the negative pairs' keys among those of the hops


@dataclass(frozen=True)
class PairNegatives:
    """Which negatives a batch of pairs gets; they may be edges of the graph.

    Attributes:
        amount: Negatives for each pair; a batch of ``p`` pairs gets ``ceil(p * amount)``, of which number ``j`` belongs
            to pair ``j % p``.
        dst: Draws their destinations.
        src: Draws their sources. None: a negative is another destination for the source of its pair.
    """

    amount: float
    dst: NegativeEnds
    src: NegativeEnds | None = None


@dataclass(frozen=True, eq=False)
class PairSeeds:
    """What a batch of ``p`` pairs and ``q`` negatives starts from.

    Attributes:
        nodes: Vertex type to seeds: sources of pairs, of negatives, destinations of pairs, of negatives. Sorted and
            without repeats, unless each has a tree of its own.
        src: Place of each source among the seeds of its type, shape ``(p + q,)``, or ``(p,)`` where negatives have
            none of their own.
        dst: The same of the destinations, shape ``(p + q,)``.
        owners: Vertex type to the pair that each seed belongs to; None unless each seed has a tree of its own.
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
    negatives: PairNegatives | None = None,
    disjoint: bool = False,
    times: Tensor | None = None,
) -> PairSeeds:
    """Draw the negatives of a batch of pairs, and collect the vertices.

    Args:
        types: Vertex types of sources and destinations.
        src: Sources, shape ``(p,)``, int64.
        dst: Destinations, the same.
        key: Any 64-bit number; that of the batch, hops do not share random numbers with it.
        negatives: What to draw.
        disjoint: Each seed gets a tree of its own.
        times: Shape ``(p,)``, int64: of each pair, and so of its ends and its negatives. Only with ``disjoint``.
    """
    src_owners = dst_owners = torch.arange(len(src))
    if negatives is not None:
        owners = torch.arange(math.ceil(len(src) * negatives.amount)) % max(1, len(src))
        until = None if times is None else times[owners]
        if negatives.src is not None:
            src = torch.cat([src, negatives.src.draw(len(owners), derive_key(key, _NEGATIVES, 0), until)])
            src_owners = torch.cat([src_owners, owners])
        dst = torch.cat([dst, negatives.dst.draw(len(owners), derive_key(key, _NEGATIVES, 1), until)])
        dst_owners = torch.cat([dst_owners, owners])
    if types[0] == types[1]:
        first_dst = len(src)
        nodes, owned = {types[0]: torch.cat([src, dst])}, {types[0]: torch.cat([src_owners, dst_owners])}
    else:
        first_dst = 0
        nodes, owned = {types[0]: src, types[1]: dst}, {types[0]: src_owners, types[1]: dst_owners}
    if disjoint:
        places = {ntype: torch.arange(len(ids)) for ntype, ids in nodes.items()}
    else:
        unique = {ntype: torch.unique(ids, return_inverse=True) for ntype, ids in nodes.items()}
        nodes, places = ({ntype: pair[part] for ntype, pair in unique.items()} for part in (0, 1))
    return PairSeeds(
        nodes,
        places[types[0]][: len(src)],
        places[types[1]][first_dst:],
        owned if disjoint else None,
        None if times is None else {ntype: times[owners] for ntype, owners in owned.items()},
    )


@dataclass(frozen=True, eq=False)
class PairBatches(MiniBatchSampler):
    """Samples what a batch of pairs reads: a sampler whose seeds are rows of two ends, shape ``(n, 2)``.

    With times a row has a third number, the time of the pair.

    Args:
        blocks: Samples from the vertices.
        types: Vertex types of sources and destinations.
        num_nodes: Vertices of each type of the graph.
        negatives: What to draw beside the pairs; None for no such pairs.
    """

    blocks: SubgraphSampler
    types: tuple[str, str]
    num_nodes: Mapping[str, int]
    negatives: PairNegatives | None = None

    @property
    def hops(self) -> SubgraphSampler:
        """See :attr:`MiniBatchSampler.hops`."""
        return self.blocks

    @property
    def num_hops(self) -> int:
        """Hops from the ends."""
        return self.blocks.num_hops

    @property
    def seeds_are_vertices(self) -> bool:
        """They are pairs."""
        return False

    @property
    def trees_per_seed(self) -> int:
        """At most so many disjoint trees has a pair: two, and those of its negatives."""
        negatives = self.negatives
        return 2 if negatives is None else 2 + math.ceil(negatives.amount) * (1 + (negatives.src is not None))

    def sample(self, graph: Graph, seeds: Tensor, key: int = 0) -> Subgraph:
        """The subgraph of one batch of pairs; safe from any thread.

        Args:
            graph: The graph.
            seeds: Shape ``(n, 2)`` or ``(n, 3)``, int64.
            key: Any 64-bit number.

        Raises:
            IndexError: An end is outside the graph.
        """
        src, dst, *rest = seeds.unbind(1)
        times = rest[0] if rest else None
        settings: dict[str, Any] = {"negatives": self.negatives, "disjoint": self.blocks.disjoint, "times": times}
        start = pair_seeds(self.types, src, dst, key, **settings)
        return self.blocks.sample(graph, start.nodes, key, seed_times=start.times)

    def seed_rates(self, seeds: Tensor, batch_size: int) -> dict[str, Tensor]:
        """How likely each vertex is an end of a pair or of a negative one in a batch of ``batch_size`` of the pairs.

        Returns:
            Vertex type to float64, shape ``(num_nodes,)``.
        """
        src_type, dst_type = self.types
        src, dst = seeds[:, :2].unbind(1)
        apart = dst if src_type != dst_type else dst[src != dst]  # a pair of a vertex with itself is one of its pairs
        counts = {t: torch.zeros(n, dtype=torch.int64) for t, n in self.num_nodes.items()}
        for ntype, ids in ((src_type, src), (dst_type, apart)):
            counts[ntype] += torch.bincount(ids, minlength=self.num_nodes[ntype])
        missed = {t: 1 - chance_of_some(of_type, len(seeds), batch_size) for t, of_type in counts.items()}
        if self.negatives is not None:
            drawn = math.ceil(batch_size * self.negatives.amount)
            for ntype, ends in ((src_type, self.negatives.src), (dst_type, self.negatives.dst)):
                if ends is not None:
                    missed[ntype] *= (1 - ends.chances) ** drawn
        return {t: 1 - rates for t, rates in missed.items()}
