"""Workload: what a loader samples and reads, as cache policies, cache sharing and the engine see it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..sampling.accesses import most_repeats
from .auto import Learned, refills
from .edge_ranking import edge_draws, rank_edges
from .first_epoch import FirstEpoch
from .policy import apply_policy
from .sharing import Share, share_of
from .vip import expected_accesses

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph import EdgeType, Graph
    from ..sampling.minibatch_sampler import MiniBatchSampler
    from ..sampling.seeds import BatchOrder, SeedOrder
    from .policy import Policy, Ranking, RowType

__all__ = ["Sampled", "Workload"]


class Sampled(NamedTuple):
    """What a loader samples from, at the moment.

    Attributes:
        graph: The graph, turned so that in-edges are drawn, with the fields that the sampler weighs edges by.
        seeds: As ``sampler`` takes them.
        sampler: Samples as the loader does; None where only a user's own code can.
    """

    graph: Graph
    seeds: Any
    sampler: MiniBatchSampler | None


@dataclass(frozen=True, eq=False)
class Workload:
    """Typed description of a loader's work, which each face fills in.

    Attributes:
        order: The batches.
        num_rows: Vertex and edge types to their numbers of rows.
        sampler: Samples as the loader does; None where only a user's own code can.
        sampled: Describes what is sampled, for policies; called when a ranking is made. None: it cannot be described.
        source: What two loaders of one graph have in common: a ``Graph``, or any object that is itself.
        edge_dir: "in" or "out": which edges of ``source`` are drawn.
        seeds: The order of the seeds, as ``sampler`` takes them; None where they are not known before they are drawn.
        seed_reads: Reads of each row of a type as a seed in an epoch, shape ``(num_rows,)``; None: not known.
        edge_types: Each edge type of ``num_rows`` to the same edges' type in the sampled graph.
    """

    order: BatchOrder
    num_rows: Mapping[RowType, int]
    sampler: MiniBatchSampler | None
    sampled: Callable[[], Sampled | None]
    source: object = None
    edge_dir: str = "in"
    seeds: SeedOrder | None = None
    seed_reads: Callable[[RowType], Tensor | None] = lambda row_type: None
    edge_types: Mapping[EdgeType, EdgeType] = field(default_factory=dict)

    def rank(self, policy: Policy, types: Collection[RowType]) -> dict[RowType, Ranking]:
        """Rank vertices by a policy, and edges by how often they are expected to be drawn.

        Types that cannot be ranked are left out: edges, where the sampler has no fan-outs.

        Raises:
            TypeError, ValueError: See ``pagraph.cache.apply_policy``.
        """
        now, batch_size = self.sampled(), self.order.batch_size or 1
        if now is None:
            return {}
        ranked: dict[RowType, Ranking] = {}
        vertices = [t for t in types if isinstance(t, str)]
        if vertices:
            settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": self.order.shuffle}
            by_type = apply_policy(policy, now.graph, now.seeds, now.sampler, self.order.seed or 0, **settings)
            ranked.update({t: by_type[t] for t in vertices})
        edges = [t for t in types if isinstance(t, tuple) and t in self.edge_types]
        expected = expected_accesses(*now, batch_size=batch_size) if edges else None
        if expected is not None and now.sampler is not None:
            for etype in edges:
                core_type = self.edge_types[etype]
                draws = edge_draws(expected, now.graph, now.sampler, core_type)
                ranked[etype] = rank_edges(now.graph, core_type, draws)
        return ranked

    def first_epoch(self, policy: Policy) -> FirstEpoch | None:
        """Counts the first epoch and ranks by it, for policies that ask for it; None for others and endless epochs."""
        if not refills(policy, self.sampler) or not self.order.has_length:
            return None
        batches = len(self.order)
        known = self.sampler is not None and self.seeds is not None
        return FirstEpoch(
            {t: n for t, n in self.num_rows.items() if isinstance(t, str)},
            num_hops=0 if self.sampler is None else self.sampler.num_hops,
            batches=batches,
            repeats=most_repeats(self.seeds, self.sampler) if known else None,  # type: ignore[arg-type]
            rank=lambda counts: partial(self.rank, Learned(counts, batches)),
        )

    def share(self, policy: Policy) -> Share | None:
        """Which loaders may use this one's cache; None: no other."""
        return share_of(policy, graph=self.source, edge_dir=self.edge_dir, sampler=self.sampler, order=self.seeds)
