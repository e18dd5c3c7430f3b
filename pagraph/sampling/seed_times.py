"""Seed times: how late the edges of each seed's tree may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .times import as_times

if TYPE_CHECKING:
    from ..graph import Graph
    from .hop_sampler import EdgeField

__all__ = ["check_time_field", "limits_of_trees"]


def check_time_field(graph: Graph, name: str, field: EdgeField) -> None:
    """Refuse a name that tells nothing, or that is both of vertices and of edges.

    Raises:
        ValueError: As said.
    """
    nodes = [ntype for ntype in graph.node_types if name in graph.node_fields(ntype)]
    edges = [etype for etype in graph.edge_types if field(etype, name) is not None]
    if bool(nodes) == bool(edges):
        got = f"of vertices {nodes} and of edges {edges}" if nodes else "neither"
        raise ValueError(f"time must name a field of vertices or a field of edges, got {name!r}: {got}")


def limits_of_trees(
    graph: Graph, name: str, seeds: Mapping[str, Tensor], seed_times: Tensor | Mapping[str, Tensor] | None
) -> Tensor:
    """The time of every seed, over all types in the graph's order, shape ``(num_seeds,)``, int64.

    Args:
        graph: What is sampled.
        name: The field of times.
        seeds: Vertex type to the seeds.
        seed_times: Their times, as ``SubgraphSampler.sample`` takes them; seeds of other types have their own values of
            the field.

    Raises:
        KeyError: There are times for a type without seeds.
        TypeError: Times are no integers on the CPU.
        ValueError: There is not one time per seed; or neither a time nor a field for the vertices of a type.
    """
    if seed_times is not None and not isinstance(seed_times, Tensor | Mapping):
        got = type(seed_times).__name__
        raise TypeError(f"seed_times must be a tensor or a mapping from vertex type, got {got}")
    given = {graph.only_node_type: seed_times} if isinstance(seed_times, Tensor) else seed_times or {}
    for ntype in given:
        if ntype not in seeds:
            raise KeyError(f"seed_times must be of the seeds' types {list(seeds)}, got {ntype!r}")
    limits = [_limits(graph, name, t, seeds[t], given.get(t)) for t in graph.node_types if t in seeds]
    return torch.cat(limits) if limits else torch.empty(0, dtype=torch.int64)


def _limits(graph: Graph, name: str, ntype: str, seeds: Tensor, times: Tensor | None) -> Tensor:
    if times is not None:
        return as_times(f"seed_times[{ntype!r}]", times, len(seeds), "seed").long()
    values = graph.node_fields(ntype).get(name)
    if values is None:
        raise ValueError(f"seed_times must be given for seeds of type {ntype!r}, which has no vertex field {name!r}")
    values = as_times(f"vertex field {name!r}", values, graph.num_nodes_of(ntype), "vertex")
    return values.index_select(0, seeds).long()
