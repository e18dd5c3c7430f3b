"""How often an epoch reads each vertex or edge of a DGL graph as a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..features.candidate import RowType
from ..sampling.seeds import DatasetOrder, SeedOrder
from .recognise import is_edge_sampler, native_sampler

__all__ = ["seed_reads"]


def seed_reads(graph: Any, sampler: Any, order: SeedOrder | DatasetOrder, row_type: RowType) -> Tensor | None:
    """Reads of each row as a seed, over all ranks, shape ``(num_rows,)``, int64.

    None where that is not known: of a user's own sampler or dataset, and of the vertices of edge-wise batches, which
    are the ends of seeds and of negative pairs.
    """
    edge_wise = is_edge_sampler(sampler)
    if not isinstance(order, SeedOrder) or native_sampler(graph, sampler) is None:
        return None
    if edge_wise != isinstance(row_type, tuple):
        return None
    ids: Any = order.ids
    if not isinstance(ids, Mapping):
        ids = {(graph.canonical_etypes if edge_wise else graph.ntypes)[0]: ids}
    elif edge_wise:
        ids = {graph.to_canonical_etype(etype): of_type for etype, of_type in ids.items()}
    num_rows = graph.num_edges(row_type) if edge_wise else graph.num_nodes(row_type)
    seeds = ids.get(row_type, torch.empty(0, dtype=torch.int64))
    return torch.bincount(seeds.long().cpu(), minlength=num_rows)
