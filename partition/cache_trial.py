"""Cache trial: hit rate of a cache in one sampled epoch, on a part or on the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.division import Demand, divide
from ..graph.csc import no_ids
from ..graph.fields import stored_row_bytes
from ..graph.graph import Graph
from ..options.partitioning import CacheTrial
from ..ranking.policies import resolve_policy
from ..ranking.policy import apply_policy
from ..ranking.presample import count_accesses
from ..sampling import NeighborSampler
from ..system.budget import SLOT_BYTES
from .partition import Numbering

_FEATURES = "feat"  # the field that DGL's and OGB's graphs have

Seeds = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class CacheUse:
    """Cached vertices, and the cache's hits among the input rows of one epoch.

    ``ids`` are int64; for several types, numbers over all types.
    """

    ids: Tensor
    reads: int
    hits: int

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for; 0 if nothing was asked for."""
        return self.hits / self.reads if self.reads else 0.0


def row_bytes(trial: CacheTrial, graph: Graph) -> dict[str, int]:
    """Bytes of a vertex's rows of all cached fields, by vertex type.

    Types without cached fields are left out.
    """
    fields = {node_type: graph.node_fields(node_type) for node_type in graph.node_types}
    known = {name for own in fields.values() for name in own}
    # The default field may be missing; one that the user named may not.
    names = ({_FEATURES} & known) if trial.fields is None else trial.fields
    for name in names:
        if name not in known:
            raise ValueError(f"fields must be among {sorted(known)}, got {name!r}")
    widths = {}
    for node_type, own in fields.items():
        width = sum(stored_row_bytes(own[name]) for name in names if name in own)
        if width:
            widths[node_type] = width
    return widths


def budget_bytes(trial: CacheTrial, graph: Graph) -> int | None:
    """Budget in bytes for the whole ``graph``; None without a field that gives the row size."""
    widths = row_bytes(trial, graph)
    return _nbytes(trial, graph, widths) if widths else None


def _nbytes(trial: CacheTrial, graph: Graph, widths: Mapping[str, int]) -> int:
    rows = [(width, graph.num_nodes_of(node_type)) for node_type, width in widths.items()]
    return trial.size.nbytes(rows, free=int)


def measure(
    trial: CacheTrial,
    whole: Graph,
    graph: Graph,
    seeds: Seeds,
    hops: int,
    *,
    progress: Callable[[], object] | None = None,
) -> CacheUse:
    """Fill a cache by the policy, and count its hits in an epoch over ``seeds``.

    Args:
        trial: Budget, policy and batches.
        whole: The whole graph, whose rows the budget is a share of.
        graph: The graph that is sampled, a part or the whole.
        seeds: Ids in it, by vertex type where there are several.
        hops: Hops that it holds.
        progress: Called after each batch, by the threads that sample.

    Raises:
        ValueError: The graph lacks a field, or the budget is in bytes and no field gives the size
            of a row.
    """
    sampler = NeighborSampler(list(trial.fanout_of(hops)))
    widths = row_bytes(trial, whole)
    if not widths and trial.share is None:
        raise ValueError(
            f"cache must be a share if the graph has no field {_FEATURES}, got {trial.budget!r}"
        )
    # Without fields every vertex counts the same, so a share of bytes is a share of vertices.
    widths = widths or dict.fromkeys(whole.node_types, 1)
    # A part's share is also taken of the whole graph: each GPU has the same memory.
    cached = _fill(trial, graph, seeds, sampler, widths, _nbytes(trial, whole, widths))
    counts = count_accesses(
        graph, seeds, sampler, batch_size=trial.batch_size, seed=trial.seed, progress=progress
    )
    reads = {node_type: counts.reads(node_type) for node_type in widths}
    numbering = Numbering(graph.num_nodes_by_type)
    ids = torch.cat([own + numbering.begin(node_type) for node_type, own in cached.items()])
    asked = sum(int(count.sum()) for count in reads.values())
    hits = sum(int(reads[node_type][own].sum()) for node_type, own in cached.items())
    return CacheUse(ids, asked, hits)


def _fill(
    trial: CacheTrial,
    graph: Graph,
    seeds: Seeds,
    sampler: NeighborSampler,
    widths: Mapping[str, int],
    nbytes: int,
) -> dict[str, Tensor]:
    """Ids of the cached vertices of each type that has rows."""
    counts = {node_type: graph.num_nodes_of(node_type) for node_type in widths}
    # Bytes of a type's table from vertex to place, if the budget is to pay for it.
    tables = {node_type: SLOT_BYTES * n * trial.size.pays_tables for node_type, n in counts.items()}
    # Caching all or nothing needs no ranking, which may have to sample epochs.
    if nbytes >= sum(widths[t] * n + tables[t] for t, n in counts.items()):
        return {node_type: torch.arange(n, device="cpu") for node_type, n in counts.items()}
    if nbytes < min(widths[t] + tables[t] for t in widths):
        return dict.fromkeys(widths, no_ids())
    policy = resolve_policy(trial.policy)
    rankings = apply_policy(policy, graph, seeds, sampler, trial.seed, batch_size=trial.batch_size)
    demands = [Demand(counts[t], width, tables[t], rankings[t]) for t, width in widths.items()]
    rows = divide(nbytes, demands)
    return {t: rankings[t].ids[:count] for t, count in zip(widths, rows, strict=True)}
