"""What a DataLoader samples, as the core's ``Workload``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..graph.graph import Graph
from ..ranking.policy import RowType
from ..ranking.workload import Sampled, Workload
from ..sampling import BlockSampler
from ..sampling.batches import EdgeBatches
from ..seeds.order import SeedOrder
from .columns import row_counts
from .convert import core_graph
from .recognise import is_edge_sampler, native_negatives, native_sampler

if TYPE_CHECKING:
    from ..seeds.order import DatasetOrder

__all__ = ["workload_of"]


def workload_of(graph: Any, sampler: Any, order: SeedOrder | DatasetOrder) -> Workload:
    """The workload of a loader of this DGL graph, sampler and order; graph and sampler are looked at when it is asked.

    A user's own negative sampler is not called: it may count its calls, and its pairs are left out.
    """
    native = None
    if isinstance(order, SeedOrder):
        native = _as_loader(graph, sampler, native_sampler(graph, sampler))
    rows, direction = row_counts(graph), _edge_dir(sampler)
    edge_types = [t for t in rows if isinstance(t, tuple)]
    return Workload(
        order,
        rows,
        native,
        partial(_sampled, graph, sampler, order),
        source=graph,
        edge_dir=direction,
        seeds=order if isinstance(order, SeedOrder) else None,
        seed_reads=partial(_seed_reads, graph, sampler, order),
        # In the core graph that is turned round, types are too.
        edge_types={t: t[:: 1 if direction == "in" else -1] for t in edge_types},  # type: ignore[misc]
    )


def _sampled(graph: Any, sampler: Any, order: SeedOrder | DatasetOrder) -> Sampled:
    blocks = native_sampler(graph, sampler) if isinstance(order, SeedOrder) else None
    if blocks is not None and blocks.edge_dir != "in":
        blocks = blocks.with_in_edges()
    core, seeds = _with_weights(graph, core_graph(graph, _edge_dir(sampler)), blocks), order.ids
    if blocks is None or not is_edge_sampler(sampler):
        return Sampled(core, _by_type(core, seeds), blocks)
    if isinstance(seeds, Mapping):
        seeds = {graph.to_canonical_etype(etype): ids for etype, ids in seeds.items()}
    return Sampled(core, seeds, _as_loader(graph, sampler, blocks))


def _as_loader(graph: Any, sampler: Any, blocks: BlockSampler | None) -> BlockSampler | EdgeBatches | None:
    """What samples as the loader does: whole batches, from edges where these are the seeds."""
    if blocks is None or not is_edge_sampler(sampler):
        return blocks
    return EdgeBatches(blocks, core_graph(graph), native_negatives(sampler.negative_sampler))


def _seed_reads(graph: Any, sampler: Any, order: SeedOrder | DatasetOrder, row_type: RowType) -> Tensor | None:
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


def _edge_dir(sampler: Any) -> str:
    """Which neighbours a sampler draws; "in" where it does not say. An edge sampler has a sampler of nodes inside."""
    direction = getattr(getattr(sampler, "sampler", sampler), "edge_dir", "in")
    return "out" if direction == "out" else "in"


def _by_type(graph: Graph, seeds: Any) -> Any:
    """Seeds of a graph with several edge types by vertex type: only so can the core sample."""
    return seeds if graph.is_homogeneous or isinstance(seeds, Mapping) else {graph.node_types[0]: seeds}


def _with_weights(graph: Any, core: Graph, sampler: BlockSampler | None) -> Graph:
    """The core graph with the column that the sampler weighs edges by; the arrays are shared.

    Without it a policy that samples would draw uniformly.
    """
    name = None if sampler is None else sampler.prob
    if name is None:
        return core
    weighted = Graph({etype: core.csc_of(etype) for etype in core.edge_types}, core.num_nodes_by_type)
    for core_type, frame in zip(core.edge_types, graph._edge_frames, strict=True):
        if name in frame._columns:
            weighted.set_field(name, frame[name], edge_type=core_type)
    return weighted
