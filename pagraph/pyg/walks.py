"""PyG's Node2Vec, MetaPath2Vec and random_walk, on our kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..graph.csc import CSC, check_range
from ..graph.graph import Graph
from ..sampling.walks import RandomWalks
from ..seeds.keys import random_key
from ..system.checks import as_integer
from .package import import_pyg

import_pyg()
from torch_geometric.index import index2ptr  # noqa: E402
from torch_geometric.nn import MetaPath2Vec as PyGMetaPath2Vec  # noqa: E402
from torch_geometric.nn import Node2Vec as PyGNode2Vec  # noqa: E402
from torch_geometric.utils import sort_edge_index  # noqa: E402
from torch_geometric.utils.num_nodes import maybe_num_nodes  # noqa: E402


def random_walk(
    rowptr: Tensor, col: Tensor, seed: Tensor, walk_length: int, p: float = 1.0, q: float = 1.0
) -> Tensor:
    """Random walks from vertices: ``torch.ops.pyg.random_walk`` without pyg-lib, for any p and q.

    Follows ``torch.manual_seed``. A walk stays at a vertex without out-edges. With ``p`` or ``q``
    other than 1, each call checks that rows ascend, and sorts them if not. :class:`Node2Vec` does
    so only once.

    Args:
        rowptr: Start of each vertex's out-edges in ``col``, shape ``(num_nodes + 1,)``, on the CPU.
        col: Destinations of the edges, shape ``(num_edges,)``, same dtype.
        seed: Vertices to start from, shape ``(n,)``.
        walk_length: Number of steps.
        p: Return parameter: the larger, the less likely a step back.
        q: In-out parameter: the larger, the closer a walk stays to visited vertices.

    Returns:
        Shape ``(n, walk_length + 1)``, the dtype of ``rowptr``.

    Raises:
        IndexError: A start vertex is out of range.
        ValueError: ``walk_length`` is below 1, or ``p`` or ``q`` is not positive and finite.
    """
    graph = Graph(CSC(rowptr, col, len(rowptr) - 1))
    walks = RandomWalks(
        as_integer("walk_length", walk_length, least=1), p=p, q=q, edge_dir="in", stay=True
    )
    return walks.sample(graph, seed, random_key()).vertices.to(rowptr.dtype)


class Node2Vec(PyGNode2Vec):
    """Drop-in for ``torch_geometric.nn.Node2Vec``, without pyg-lib.

    Supports any ``p`` and ``q``; pyg-lib, which PyG's model needs, only 1. Walks follow
    ``torch.manual_seed``, and stay at a vertex without out-edges.

    Args:
        edge_index: The edges, shape ``(2, num_edges)``.
        embedding_dim: Size of an embedding.
        walk_length: Vertices of a walk, at least 2.
        context_size: Window size: vertices of a positive sample, at most ``walk_length``.
        walks_per_node: Walks from each vertex.
        p: Return parameter: the larger, the less likely a step back.
        q: In-out parameter: the larger, the closer a walk stays to visited vertices.
        num_negative_samples: Random walks as negative samples, for each positive one.
        num_nodes: Number of vertices. Default: the largest id plus 1.
        sparse: Whether gradients of the embeddings are sparse.

    Raises:
        ValueError: ``walk_length`` is below 2 or ``context_size``, ``p`` or ``q`` is not positive
            and finite, or an edge has an end outside the graph.
    """

    def __init__(
        self,
        edge_index: Tensor,
        embedding_dim: int,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        sparse: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)  # not PyG's, which needs pyg-lib
        as_integer("walk_length", walk_length, least=max(2, context_size))
        self.num_nodes = maybe_num_nodes(edge_index, num_nodes)
        check_range("edge_index", edge_index.reshape(-1), self.num_nodes)
        row, self.col = sort_edge_index(edge_index, num_nodes=self.num_nodes).cpu()
        self.rowptr = index2ptr(row, self.num_nodes)
        self.EPS = 1e-15
        self.embedding_dim = embedding_dim
        self.walk_length: int = walk_length - 1
        self.context_size = context_size
        self.walks_per_node = walks_per_node
        self.p = p
        self.q = q
        self.num_negative_samples = num_negative_samples
        self._graph = Graph(CSC(self.rowptr, self.col, self.num_nodes))
        self._walks = RandomWalks(self.walk_length, p=p, q=q, edge_dir="in", stay=True)
        self.embedding = torch.nn.Embedding(self.num_nodes, embedding_dim, sparse=sparse)
        self.reset_parameters()

    def pos_sample(self, batch: Tensor) -> Tensor:
        """Windows of walks from the vertices of a batch, shape ``(num_windows, context_size)``."""
        walks = self._walks.sample(
            self._graph, batch.repeat(self.walks_per_node).cpu(), random_key()
        )
        return _windows(walks.vertices, self.context_size).to(batch.device)


class MetaPath2Vec(PyGMetaPath2Vec):
    """Drop-in for ``torch_geometric.nn.MetaPath2Vec``.

    One kernel call takes all steps of a batch's walks. Walks follow ``torch.manual_seed``.

    Args:
        edge_index_dict: The edges of each edge type, shape ``(2, num_edges)``.
        embedding_dim: Size of an embedding.
        metapath: The edge types of the steps, repeated for longer walks.
        walk_length: Steps of a walk, at least 1.
        context_size: Window size: vertices of a positive sample, at most ``walk_length + 1``.
        walks_per_node: Walks from each vertex.
        num_negative_samples: Random walks as negative samples, for each positive one.
        num_nodes_dict: Number of vertices of each type. Default: the largest id plus 1.
        sparse: Whether gradients of the embeddings are sparse.

    Raises:
        AttributeError: ``walk_length`` exceeds a metapath that is not a cycle.
        KeyError: A type of the metapath has no edges.
        ValueError: The edge types of the metapath do not connect; ``walk_length`` is below 1 or
            ``context_size - 1``.
    """

    def __init__(
        self,
        edge_index_dict: dict[tuple[str, str, str], Tensor],
        embedding_dim: int,
        metapath: list[tuple[str, str, str]],
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        num_nodes_dict: dict[str, int] | None = None,
        sparse: bool = False,
    ) -> None:
        as_integer("walk_length", walk_length, least=max(1, context_size - 1))
        super().__init__(
            edge_index_dict,
            embedding_dim,
            metapath,
            walk_length,
            context_size,
            walks_per_node,
            num_negative_samples,
            num_nodes_dict,
            sparse,
        )
        # Walks against the edges of the reversed graph.
        counts = self.num_nodes_dict
        csc = {
            t[::-1]: CSC(self.rowptr_dict[t], self.col_dict[t], counts[t[-1]])
            for t in dict.fromkeys(metapath)
        }
        path = [metapath[i % len(metapath)][::-1] for i in range(walk_length)]
        self._graph = Graph(
            csc, {t: counts[t] for t in {end for etype in csc for end in etype[::2]}}
        )
        self._walks = RandomWalks(path, edge_dir="in")

    def _pos_sample(self, batch: Tensor) -> Tensor:
        walks = self._walks.sample(
            self._graph, batch.repeat(self.walks_per_node).cpu(), random_key()
        ).vertices
        walks = torch.where(walks < 0, self.dummy_idx, walks + self.offset)
        return _windows(walks, self.context_size).to(batch.device)


def _windows(walks: Any, size: int) -> Tensor:
    """All windows of the walks, ordered by position, shape ``(num_windows, size)``."""
    windows: Tensor = walks.unfold(1, size, 1).transpose(0, 1).reshape(-1, size)
    return windows
