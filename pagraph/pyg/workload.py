"""What a PyG loader samples, as cache policies want to know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from ..cache.auto import Learned, refills
from ..cache.policy import Policy, Ranking, apply_policy
from ..cache.sharing import Share, share_of
from ..features.candidate import RowType
from ..features.first_epoch import FirstEpoch
from ..graph import NODE_TYPE, Graph
from ..sampling.accesses import most_repeats
from ..sampling.pair_batches import PairBatches
from ..sampling.seeds import BatchOrder, SeedOrder, num_seeds
from ..sampling.timed_seeds import TimedSeeds
from .graphs import core_graph
from .links import end_types
from .order import takes_all
from .package import import_pyg
from .sampler import NeighborSampler
from .stream_order import StreamOrder

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

if TYPE_CHECKING:
    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

__all__ = ["Workload", "link_workload", "node_workload"]


@dataclass(frozen=True, eq=False)
class Workload:
    """What a loader samples, for cache policies.

    Attributes:
        make_graph: Gives what is sampled; None where it is no graph that the core can have. Not called for nothing.
        num_nodes: Vertex type to its number of vertices.
        order: The loader's.
        seeds: As ``sampler`` takes them; none without one.
        sampler: Turns seeds into mini-batches as the loader does; None where that cannot be run apart from it.
    """

    make_graph: Callable[[], Graph | None]
    num_nodes: Mapping[RowType, int]
    order: BatchOrder
    seeds: Any = field(default_factory=dict)
    sampler: Any = None

    @classmethod
    def of(cls, data: Any, sampler: Any, order: BatchOrder, seeds: Any, batches: Any) -> Workload:
        """The workload of a loader.

        Args:
            data: The loader's.
            sampler: Its sampler: ours or a user's own.
            order: Its batches.
            seeds: All seeds, for ``batches``.
            batches: Samples what our sampler does of these seeds.
        """
        if not isinstance(sampler, NeighborSampler):
            return cls(partial(_structure, data), _counts(data), order)
        graph = sampler.graph
        counts: dict[RowType, int] = {t: graph.num_nodes_of(t) for t in graph.node_types}
        if not takes_all(order, num_seeds(seeds)):  # a user's own order: nobody else may call it
            return cls(lambda: graph, counts, order)
        return cls(lambda: graph, counts, order, seeds, batches)

    def rank(self, policy: Policy, types: Collection[RowType]) -> dict[RowType, Ranking]:
        """The vertices of some types by a policy; none where the graph is not known."""
        if self.graph is None:
            return {}
        settings: dict[str, Any] = {"batch_size": self.batch_size, "shuffle": self.order.shuffle}
        ranked = apply_policy(policy, self.graph, self.seeds, self.sampler, self.seed, **settings)
        return {t: ranked[t] for t in types if isinstance(t, str)}

    def first_epoch(self, policy: Policy) -> FirstEpoch | None:
        """Counts a loader's first epoch and ranks by it, for policies that ask for it, where epochs have a length."""
        if not refills(policy, self.sampler) or isinstance(self.order, StreamOrder):
            return None
        batches = len(self.order)
        return FirstEpoch(
            {t: n for t, n in self.num_nodes.items() if isinstance(t, str)},
            num_hops=0 if self.sampler is None else self.sampler.num_hops,
            batches=batches,
            repeats=None if self.sampler is None else most_repeats(self._seed_order(), self.sampler),
            rank=lambda counts: partial(self.rank, Learned(counts, batches)),
        )

    def share(self, policy: Policy) -> Share | None:
        """Which loaders may use this one's cache."""
        if self.sampler is None:
            return share_of(policy, graph=None, edge_dir="in", sampler=None, order=self.order)
        return share_of(policy, graph=self.graph, edge_dir="in", sampler=self.sampler, order=self._seed_order())

    @cached_property
    def graph(self) -> Graph | None:
        """What is sampled; None where it is no graph that the core can have."""
        return self.make_graph()

    @property
    def batch_size(self) -> int:
        """Seeds a batch; 1 where batches are a user's own."""
        return getattr(self.order, "batch_size", None) or 1

    @property
    def seed(self) -> int:
        """The loader's; 0 if it has none."""
        return self.order.seed or 0

    def _seed_order(self) -> SeedOrder:
        """The order of the seeds themselves; the loader's is one of their places."""
        return SeedOrder(self.seeds, self.batch_size, shuffle=self.order.shuffle)


def node_workload(data: Any, sampler: Any, order: BatchOrder, inputs: NodeSamplerInput) -> Workload:
    """The workload of a loader of vertices."""
    if not isinstance(sampler, NeighborSampler):
        return Workload.of(data, sampler, order, None, None)
    ntype = inputs.input_type or NODE_TYPE
    if sampler.is_temporal and inputs.time is not None:
        timed = torch.stack([inputs.node.long(), inputs.time.long()], 1)
        return Workload.of(data, sampler, order, timed, TimedSeeds(sampler.core, ntype))
    seeds: Any = inputs.node if sampler.graph.is_homogeneous else {ntype: inputs.node}
    return Workload.of(data, sampler, order, seeds, sampler.core)


def link_workload(
    data: Any, sampler: Any, order: BatchOrder, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None
) -> Workload:
    """The workload of a loader of links."""
    if not isinstance(sampler, NeighborSampler):
        return Workload.of(data, sampler, order, None, None)
    types = end_types(inputs.input_type)
    ends = [inputs.row, inputs.col, *([inputs.time] if sampler.is_temporal and inputs.time is not None else [])]
    counts, negatives = sampler.graph.num_nodes_by_type, sampler.link_negatives(neg_sampling, types)
    batches = PairBatches(sampler.core, types, counts, negatives)
    return Workload.of(data, sampler, order, torch.stack([end.long() for end in ends], 1), batches)


def _structure(data: Any) -> Graph | None:
    """The graph of the data, where it has one."""
    if not isinstance(data, Data | HeteroData):
        return None
    try:
        return core_graph(data)
    except (TypeError, ValueError):  # the user's sampler may know what to make of it
        return None


def _counts(data: Any) -> dict[RowType, int]:
    """Vertices by type of a ``Data`` or ``HeteroData`` that says how many there are."""
    if isinstance(data, Data):
        return {NODE_TYPE: int(data.num_nodes or 0)}
    if not isinstance(data, HeteroData):
        return {}
    return {t: int(data[t].num_nodes) for t in data.node_types if data[t].num_nodes is not None}
