"""Pairs of vertices as small graphs that share one numbering: what edge-wise batches are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .hop_sampler import id_dtype_of
from .scratch import Scratch

if TYPE_CHECKING:
    from ..graph import EdgeType, Graph

    Pairs = Mapping[EdgeType, tuple[Tensor, Tensor]]

__all__ = ["compact_pairs"]


def compact_pairs(
    graph: Graph, groups: Sequence[Pairs], dtype: torch.dtype
) -> tuple[dict[str, Tensor], list[dict[EdgeType, tuple[Tensor, Tensor]]]]:
    """Number the vertices of all pairs by first appearance, as ``dgl.compact_graphs`` does.

    Args:
        graph: Says which vertex and edge types there are.
        groups: Sources and destinations by edge type, as the graph's ids; types may be missing.
        dtype: Id dtype of the result.

    Returns:
        The graph's id of each vertex by type, for all types, and the groups with local ids, for all edge types. Ids
        appear in the order group, edge type, sources, destinations.
    """
    types = graph.node_types
    tables = dict(zip(types, Scratch.of_this_thread().tables(len(types)), strict=True))
    for ntype, table in tables.items():
        table.reset(None, graph.num_nodes_of(ntype), id_dtype_of(graph))
    nothing = torch.empty(0, dtype=dtype)
    local = []
    for group in groups:
        numbered = {}
        for etype in graph.edge_types:
            ends = group.get(etype, (nothing, nothing))
            places = tuple(torch.empty(len(ids), dtype=dtype) for ids in ends)
            for ntype, ids, place in zip((etype[0], etype[2]), ends, places, strict=True):
                if len(ids):
                    tables[ntype].relabel(np.ascontiguousarray(ids.numpy()), place.numpy())
            numbered[etype] = (places[0], places[1])
        local.append(numbered)
    return {ntype: torch.from_numpy(table.nodes).to(dtype, copy=True) for ntype, table in tables.items()}, local
