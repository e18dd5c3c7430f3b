"""Clusters of all vertices of a graph, for batches that are clusters."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.graph import Graph
from .auto import grown_parts
from .halo import equal_sizes
from .metis import has_pymetis, metis_clusters

__all__ = ["vertex_clusters"]


def vertex_clusters(graph: Graph, num_clusters: int, *, recursive: bool = False, seed: int = 0) -> Tensor:
    """Clusters of about equal sizes with few edges between them; none is empty.

    By ``pymetis`` where it is installed; otherwise grown one after the other, see ``grown_parts``.

    Args:
        graph: A graph with one vertex type and one edge type.
        num_clusters: From 1 to the number of vertices.
        recursive: METIS's recursive bisection in place of its k-way partitioning.
        seed: METIS's.

    Returns:
        The cluster of each vertex, shape ``(num_nodes,)``, int32.
    """
    if has_pymetis():
        return metis_clusters(graph, num_clusters, recursive=recursive, seed=seed)
    sizes = equal_sizes(graph.num_nodes, num_clusters)
    return torch.from_numpy(grown_parts(graph.csc, torch.arange(graph.num_nodes, device="cpu"), sizes))
