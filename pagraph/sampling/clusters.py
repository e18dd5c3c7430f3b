"""ClusterSampler: the subgraph induced by the vertices of some clusters (Cluster-GCN)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import as_ids, check_range
from .induced import induced_subgraph
from .sampler import MiniBatchSampler, check_edge_dir

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..graph.subgraph import Subgraph
    from ..system.buffers import BufferPools


@dataclass(frozen=True, eq=False)
class ClusterSampler(MiniBatchSampler):
    """Makes one subgraph of the vertices of clusters, with all edges among them (Chiang et al., KDD
    2019, section 3.2).

    Seeds are numbers of clusters. Vertices lie in the order of the seeds, and in a cluster in that
    of ``nodes``.

    Args:
        bounds: Shape ``(num_clusters + 1,)``, integers: the vertices of cluster ``i`` are
            ``nodes[bounds[i]:bounds[i + 1]]``.
        nodes: Shape ``(num_nodes,)``, integers: vertices by cluster. None: ``0, 1, ...``, of a
            graph whose vertices are in the order of their clusters.
        edge_dir: In which order edges lie: "in" by destination; "out" by source, see
            ``induced_subgraph``.

    Raises:
        TypeError: An array does not hold integers.
        ValueError: ``bounds`` decrease, or are not those of ``nodes``; an unknown direction.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3], [2, 3, 0, 0])
        >>> batch = ClusterSampler(torch.tensor([0, 2, 4]), torch.tensor([0, 2, 1, 3])).sample(graph, torch.tensor([0]))
        >>> batch.input_nodes["_N"].tolist(), batch.edges["_N", "_E", "_N"].edge_index.tolist()
        ([0, 2], [[1, 0], [0, 1]])
    """

    bounds: Tensor
    nodes: Tensor | None = None
    edge_dir: str = "in"
    seeds_are_vertices = False

    def __post_init__(self) -> None:
        bounds = as_ids("bounds", self.bounds)
        if len(bounds) == 0 or int(bounds[0]) != 0 or bool((torch.diff(bounds) < 0).any()):
            raise ValueError(
                f"bounds must begin with 0 and never decrease, got {bounds.tolist()[:5]}"
            )
        object.__setattr__(self, "bounds", bounds)
        if self.nodes is not None:
            object.__setattr__(self, "nodes", as_ids("nodes", self.nodes))
            if int(bounds[-1]) != len(self.nodes):
                raise ValueError(
                    f"bounds must end with the number of nodes {len(self.nodes)}, got "
                    f"{int(bounds[-1])}"
                )
        check_edge_dir(self.edge_dir)

    @cached_property
    def cache_key(self) -> Hashable:
        """See ``MiniBatchSampler``; clusters are compared by value, tensors could not be."""
        digest = hashlib.blake2b(self.bounds.numpy().data, digest_size=16)
        if self.nodes is not None:
            digest.update(self.nodes.numpy().data)
        return type(self), digest.hexdigest(), self.edge_dir

    @property
    def num_hops(self) -> int:
        """Hops from the clusters' vertices: none."""
        return 0

    @property
    def num_clusters(self) -> int:
        """Number of clusters."""
        return len(self.bounds) - 1

    def sample(
        self,
        graph: Graph,
        seeds: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        turned: bool = False,
    ) -> Subgraph:
        """Sample one mini-batch; safe from any number of threads at once.

        Args:
            graph: A graph with one vertex type.
            seeds: Shape ``(batch,)``, numbers of clusters.
            key: Ignored: nothing is drawn.
            dtype: Id dtype of the result. Default: that of the seeds.
            pools: Where output memory is recycled. Default: fresh memory.
            turned: The rows of ``edge_index`` change places.

        Raises:
            IndexError: A seed is not a cluster's number, or a vertex not in the graph.
            FormatError: The graph's arrays lead out of the graph (a damaged file).
        """
        check_range("seeds", seeds, self.num_clusters, IndexError)
        dtype = dtype or seeds.dtype
        bounds = self.bounds.numpy()
        chosen = seeds.numpy()
        begins = bounds[chosen]
        ends = bounds[chosen + 1]
        if self.nodes is None:
            sizes = ends - begins
            found = np.arange(sizes.sum()) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
        else:
            own = self.nodes.numpy()
            found = np.concatenate(
                [own[:0], *(own[i:j] for i, j in zip(begins, ends, strict=True))]
            )
        nodes = torch.from_numpy(found)
        # Narrowing would wrap a wrong id round.
        check_range("nodes", nodes, graph.num_nodes, IndexError)
        return induced_subgraph(
            graph, nodes.to(dtype), edge_dir=self.edge_dir, turned=turned, pools=pools
        )
