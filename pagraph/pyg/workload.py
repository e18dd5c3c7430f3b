"""Workloads of PyG's loaders: what they sample, for the policies of a cache."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..graph.graph import NODE_TYPE, Graph
from ..ranking.policy import RowType
from ..ranking.workload import Sampled, Workload
from ..seeds.order import BatchOrder, SeedOrder, num_seeds
from ..seeds.torch_order import takes_all
from .graphs import core_graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402


def core_workload(graph: Graph, order: BatchOrder, seeds: Any, batches: Any) -> Workload:
    """The workload of a loader whose sampler is ours: ``batches`` samples what it does of these
    seeds."""
    counts: dict[RowType, int] = {t: graph.num_nodes_of(t) for t in graph.node_types}
    if not takes_all(order, num_seeds(seeds)):  # a user's own order: nobody else may call it
        return Workload(order, counts, None, lambda: Sampled(graph, {}, None))
    # The loader's order is one of places; this is the order of the seeds themselves.
    own = SeedOrder(seeds, order.batch_size or 1, shuffle=order.shuffle)
    return Workload(
        order, counts, batches, lambda: Sampled(graph, seeds, batches), source=graph, seeds=own
    )


def foreign_workload(data: Any, order: BatchOrder) -> Workload:
    """The workload of a loader with a user's own sampler; vertices are counted where the data says
    how many."""
    counts: dict[RowType, int] = {}
    if isinstance(data, Data):
        counts = {NODE_TYPE: int(data.num_nodes or 0)}
    elif isinstance(data, HeteroData):
        counts = {
            t: int(data[t].num_nodes) for t in data.node_types if data[t].num_nodes is not None
        }
    return Workload(order, counts, None, partial(_structure, data))


def _structure(data: Any) -> Sampled | None:
    """The graph of the data, where it has one."""
    if not isinstance(data, Data | HeteroData):
        return None
    try:
        return Sampled(core_graph(data), {}, None)
    except (TypeError, ValueError):  # the user's sampler may know what to make of it
        return None
