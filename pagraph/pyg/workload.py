"""What a PyG loader samples, as the core's ``Workload``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..graph.graph import NODE_TYPE
from ..ranking.policy import RowType
from ..ranking.workload import Sampled, Workload
from ..sampling.batches import PairBatches, TimedSeeds
from ..seeds.order import BatchOrder, SeedOrder, num_seeds
from ..seeds.torch_order import takes_all
from .graphs import core_graph
from .links import end_types
from .package import import_pyg
from .sampler import NeighborSampler

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

if TYPE_CHECKING:
    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

__all__ = ["link_workload", "node_workload"]


def _workload(data: Any, sampler: Any, order: BatchOrder, seeds: Any, batches: Any) -> Workload:
    """The workload of a loader.

    Args:
        data: The loader's.
        sampler: Its sampler: ours or a user's own.
        order: Its batches.
        seeds: All seeds, for ``batches``.
        batches: Samples what our sampler does of these seeds.
    """
    if not isinstance(sampler, NeighborSampler):
        return Workload(order, _counts(data), None, partial(_structure, data))
    graph = sampler.graph
    counts: dict[RowType, int] = {t: graph.num_nodes_of(t) for t in graph.node_types}
    if not takes_all(order, num_seeds(seeds)):  # a user's own order: nobody else may call it
        return Workload(order, counts, None, lambda: Sampled(graph, {}, None))
    # The loader's order is one of places; this is the order of the seeds themselves.
    own = SeedOrder(seeds, order.batch_size or 1, shuffle=order.shuffle)
    return Workload(order, counts, batches, lambda: Sampled(graph, seeds, batches), source=graph, seeds=own)


def node_workload(data: Any, sampler: Any, order: BatchOrder, inputs: NodeSamplerInput) -> Workload:
    """The workload of a loader of vertices."""
    if not isinstance(sampler, NeighborSampler):
        return _workload(data, sampler, order, None, None)
    ntype = inputs.input_type or NODE_TYPE
    if sampler.is_temporal and inputs.time is not None:
        timed = torch.stack([inputs.node.long(), inputs.time.long()], 1)
        return _workload(data, sampler, order, timed, TimedSeeds(sampler.core, ntype))
    seeds: Any = inputs.node if sampler.graph.is_homogeneous else {ntype: inputs.node}
    return _workload(data, sampler, order, seeds, sampler.core)


def link_workload(
    data: Any, sampler: Any, order: BatchOrder, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None
) -> Workload:
    """The workload of a loader of links."""
    if not isinstance(sampler, NeighborSampler):
        return _workload(data, sampler, order, None, None)
    types = end_types(inputs.input_type)
    ends = [inputs.row, inputs.col, *([inputs.time] if sampler.is_temporal and inputs.time is not None else [])]
    counts, negatives = sampler.graph.num_nodes_by_type, sampler.link_negatives(neg_sampling, types)
    batches = PairBatches(sampler.core, types, counts, negatives)
    return _workload(data, sampler, order, torch.stack([end.long() for end in ends], 1), batches)


def _structure(data: Any) -> Sampled | None:
    """The graph of the data, where it has one."""
    if not isinstance(data, Data | HeteroData):
        return None
    try:
        return Sampled(core_graph(data), {}, None)
    except (TypeError, ValueError):  # the user's sampler may know what to make of it
        return None


def _counts(data: Any) -> dict[RowType, int]:
    """Vertices by type of a ``Data`` or ``HeteroData`` that says how many there are."""
    if isinstance(data, Data):
        return {NODE_TYPE: int(data.num_nodes or 0)}
    if not isinstance(data, HeteroData):
        return {}
    return {t: int(data[t].num_nodes) for t in data.node_types if data[t].num_nodes is not None}
