"""Ranking edges by how often they are drawn: what a cache of edge fields holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..sampling.batches import expanded
from .policy import Ranking, descending

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..sampling.batches import Found
    from ..sampling.sampler import MiniBatchSampler

__all__ = ["edge_draws", "rank_edges"]


def edge_draws(
    expected: Found, graph: Graph, sampler: MiniBatchSampler, edge_type: EdgeType
) -> Tensor:
    """Expected draws of each in-edge of a vertex, over all hops and batches; with weights, the mean
    over its in-edges.

    Args:
        expected: Expected expansions of the vertices.
        graph: The graph, turned so that in-edges are drawn.
        sampler: One that knows its fan-outs; ValueError for others.
        edge_type: The type of the edges.

    Returns:
        Shape ``(num_dst,)``, float64.
    """
    blocks = sampler.hops
    if blocks is None or not blocks.has_fanouts:
        raise ValueError(
            "edges can be ranked for samplers with fan-outs only, got "
            f"{type(blocks or sampler).__name__}"
        )
    csc = graph.adjacency(blocks.edge_dir, edge_type)
    degrees = torch.diff(csc.indptr).double()
    weights = blocks.weights(
        graph, edge_type, lambda etype, name: graph.edge_fields(etype).get(name)
    )
    choice = (
        degrees
        if weights is None or weights.kept is None
        else torch.diff(weights.kept.indptr).double()
    )
    draws = torch.zeros(csc.num_dst, dtype=torch.float64, device="cpu")
    for hop in range(expected.num_hops):
        fanout, picks = blocks.fanout(hop, edge_type), choice
        if fanout >= 0:
            picks = (
                torch.where(choice > 0, float(fanout), 0.0)
                if blocks.replace
                else choice.clamp(max=fanout)
            )
        draws += expanded(expected, blocks, edge_type[2], hop) * picks
    return torch.where(degrees > 0, draws / degrees.clamp(min=1), 0.0)


def rank_edges(graph: Graph, edge_type: EdgeType, draws: Tensor) -> Ranking:
    """Rank all edges of a type by expected draws; the in-edges of a vertex are as likely as each
    other.

    Args:
        graph, edge_type: As for :func:`edge_draws`.
        draws: Shape ``(num_dst,)``: draws an epoch of each in-edge of a vertex, see
            :func:`edge_draws`.

    Returns:
        Edge ids (not positions), in the CSC's dtype, and their draws.

    Raises:
        ValueError: ``draws`` does not have one entry for each destination, or the graph is damaged.
    """
    from . import _vip

    csc = graph.csc_of(edge_type)
    if draws.shape != (csc.num_dst,):
        raise ValueError(f"draws must have shape ({csc.num_dst},), got {tuple(draws.shape)}")
    csc.validate()
    draws = draws.double()
    ids, scores = (
        torch.empty(csc.num_edges, dtype=csc.indices.dtype, device="cpu"),
        torch.empty(csc.num_edges, dtype=torch.float64, device="cpu"),
    )
    edge_ids = (
        np.empty(0, csc.indices.numpy().dtype) if csc.edge_ids is None else csc.edge_ids.numpy()
    )
    # Vertices are sorted, not edges: there are fewer of them.
    order = descending(draws).numpy()
    _vip.expand_rows(
        order, csc.indptr.numpy(), edge_ids, draws.numpy(), ids.numpy(), scores.numpy()
    )
    return Ranking(ids, scores, per_epoch=True)
