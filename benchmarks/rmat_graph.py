"""The RMAT graph of the benchmarks: undirected, simple, with a few vertices of very high degree."""

import torch

import pagraph.dgl
from pagraph.datasets import rmat

__all__ = ["generate", "random_ids", "reverse_ids", "size_of"]


def generate(scale, num_edges, dim):
    """A DGL graph of ``2**scale`` vertices with ``num_edges`` drawn in both directions, and ``dim``
    random features."""
    graph = pagraph.dgl.to_dgl(
        rmat(scale, num_edges=num_edges, undirected=True, simple=True, seed=0)
    )
    if dim:
        graph.ndata["feat"] = torch.randn(
            graph.num_nodes(), dim, generator=torch.Generator().manual_seed(0)
        )
    graph.create_formats_()
    return graph


def size_of(graph):
    """What results say of a DGL graph."""
    return {"vertices": graph.num_nodes(), "edges": graph.num_edges()}


def random_ids(limit, count):
    """``count`` different ids below ``limit``, or all of them."""
    return torch.randperm(limit, generator=torch.Generator().manual_seed(1))[:count]


def reverse_ids(graph):
    """The id of every edge's reverse in a simple undirected graph."""
    src, dst = graph.edges()
    keys, turned = src * graph.num_nodes() + dst, dst * graph.num_nodes() + src
    result = torch.empty_like(keys)
    result[torch.argsort(keys)] = torch.argsort(turned)
    return result
