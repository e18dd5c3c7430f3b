"""Edge-wise batches without a face: the ends of seed edges, negative pairs, and the blocks of their vertices."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..minibatch import HeteroMiniBatch
from .chances import chance_of_some
from .keys import derive_key
from .minibatch_sampler import MiniBatchSampler
from .pairs import compact_pairs

if TYPE_CHECKING:
    from ..csc import CSC
    from ..graph import EdgeType, Graph
    from .block_sampler import BlockSampler
    from .hop_sampler import HopSampler
    from .negative import NegativePairs

    Pairs = dict[EdgeType, tuple[Tensor, Tensor]]

__all__ = ["EdgeBatches", "edge_ends", "expanded", "negative_pairs"]

_NEGATIVES = -1  # the place of the negative pairs' key among those of the hops


def edge_ends(csc: Mapping[EdgeType, CSC], edges: Mapping[EdgeType, Tensor], dtype: torch.dtype) -> Pairs:
    """Sources and destinations of edges, given their ids.

    Raises:
        IndexError: An id is outside the graph.
    """
    ends = {}
    for etype, ids in edges.items():
        src, dst = csc[etype].ends_at(csc[etype].positions_of(ids))
        ends[etype] = (src.to(dtype), dst.to(dtype))
    return ends


def negative_pairs(csc: Mapping[EdgeType, CSC], positive: Pairs, negatives: NegativePairs, key: int) -> Pairs:
    """Pairs drawn for the ``positive`` ones of a batch with this ``key``; ``csc`` names all edge types, in order."""
    numbers = {etype: number for number, etype in enumerate(csc)}
    return {
        etype: negatives.draw(
            csc[etype], src, derive_key(key, _NEGATIVES, numbers[etype]), loops_possible=etype[0] == etype[2]
        )
        for etype, (src, _) in positive.items()
    }


class Found(Protocol):
    """``AccessCounts`` or ``ExpectedAccesses``."""

    @property
    def num_hops(self) -> int:
        """Hops of a mini-batch."""

    def by_hop(self, node_type: str) -> Tensor:
        """Reads of each vertex by the hop that found it."""

    def frontier(self, node_type: str, hop: int) -> Tensor:
        """In how many batches each vertex is known before a hop."""


def expanded(found: Found, sampler: HopSampler, node_type: str, hop: int) -> Tensor:
    """How often hop number ``hop`` (0 serves the seeds) of a sampler expands each vertex, shape ``(num_nodes,)``."""
    if sampler.expands_once:
        return found.by_hop(node_type)[:, hop]
    return found.frontier(node_type, hop)


@dataclass(frozen=True, eq=False)
class EdgeBatches(MiniBatchSampler):
    """Samples what an edge-wise batch reads: a sampler whose seeds are edges. Nothing is excluded.

    Excluding a batch's own edges takes one or two out of the many in-edges of some seeds: it hardly changes which
    vertices are read, and what a user's function excludes is not to be asked for.

    Args:
        blocks: Samples the blocks of the vertices.
        ends: The graph the edges belong to, as it is: the one that is sampled may be turned round.
        negatives: Draws negative pairs; None for no such pairs.
    """

    blocks: BlockSampler
    ends: Graph
    negatives: NegativePairs | None = None

    @property
    def hops(self) -> BlockSampler:
        """See :attr:`MiniBatchSampler.hops`."""
        return self.blocks

    @property
    def num_hops(self) -> int:
        """Blocks per mini-batch."""
        return self.blocks.num_hops

    @property
    def seeds_are_vertices(self) -> bool:
        """They are edges."""
        return False

    @property
    def cache_key(self) -> Hashable:
        """Of the same edges, the blocks and the negatives decide."""
        return type(self), self.blocks.cache_key, self.negatives

    def sample(self, graph: Graph, seeds: Tensor | Mapping[EdgeType, Tensor], key: int = 0) -> HeteroMiniBatch:
        """The blocks of one batch of edges; safe from any thread.

        Args:
            graph: The graph that is sampled.
            seeds: Edge ids, or a mapping from edge type.
            key: Any 64-bit number.

        Raises:
            IndexError: An edge id is outside the graph.
            ValueError: ``seeds`` is a tensor and there are several edge types.
        """
        edges = self._by_type(seeds)
        dtype = next((ids.dtype for ids in edges.values()), torch.int64)
        groups = [edge_ends(self._csc, edges, dtype)]
        if self.negatives is not None:
            groups.append(negative_pairs(self._csc, groups[0], self.negatives, key))
        nodes, _ = compact_pairs(graph, groups, dtype)
        return self.blocks.sample(graph, nodes, key)

    def seed_rates(self, seeds: Tensor | Mapping[EdgeType, Tensor], batch_size: int) -> dict[str, Tensor]:
        """How likely each vertex is an end of an edge or a negative pair in a batch of ``batch_size`` of the edges.

        Returns:
            Vertex type to float64, shape ``(num_nodes,)``.
        """
        edges = self._by_type(seeds)
        total = sum(map(len, edges.values()))
        sizes = self.ends.num_nodes_by_type
        counts = {t: torch.zeros(n, dtype=torch.int64) for t, n in sizes.items()}
        drawn = dict.fromkeys(sizes, 0.0)
        for etype, (src, dst) in edge_ends(self._csc, edges, torch.int64).items():
            src_type, _, dst_type = etype
            apart = dst if src_type != dst_type else dst[src != dst]  # a self-loop is one edge of its vertex
            counts[src_type] += torch.bincount(src, minlength=sizes[src_type])
            counts[dst_type] += torch.bincount(apart, minlength=sizes[dst_type])
            if self.negatives is not None and total:
                pairs = self.negatives.k * batch_size * len(src) / total
                for ntype in (dst_type,) if self.negatives.keeps_sources else (src_type, dst_type):
                    drawn[ntype] += pairs
        return {
            t: 1 - (1 - chance_of_some(counts[t], total, batch_size)) * (1 - 1 / max(1, n)) ** drawn[t]
            for t, n in sizes.items()
        }

    @property
    def _csc(self) -> dict[EdgeType, CSC]:
        return {etype: self.ends.csc_of(etype) for etype in self.ends.edge_types}

    def _by_type(self, seeds: Any) -> dict[EdgeType, Tensor]:
        if isinstance(seeds, Mapping):
            return dict(seeds)
        if len(self.ends.edge_types) != 1:
            raise ValueError(f"seeds must be a mapping from edge type for the types {self.ends.edge_types}")
        return {self.ends.edge_types[0]: seeds}
