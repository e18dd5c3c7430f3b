"""Trial of a cache on a part or on the whole graph: its hit rate in one sampled epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..cache.division import Demand, divide
from ..graph.csc import no_ids
from ..graph.fields import stored_row_bytes
from ..graph.graph import Graph
from ..ranking.policies import resolve_policy
from ..ranking.policy import apply_policy
from ..ranking.presample import count_accesses
from ..sampling import NeighborSampler
from ..sampling.sampler import check_fanout
from ..seeds.order import check_batch_size
from ..system.budget import SLOT_BYTES, Budget
from .partition import Numbering
from .partitioning import FANOUT

_FEATURES = "feat"  # the field that DGL's and OGB's graphs have

Seeds = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class CacheUse:
    """Vertices that a cache held, and its hits among the input rows read in one epoch.

    ``ids`` are int64; for several types, numbers over all types.
    """

    ids: Tensor
    reads: int
    hits: int

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for; 0 if nothing was asked for."""
        return self.hits / self.reads if self.reads else 0.0


@dataclass(frozen=True)
class CacheTrial:
    """Settings of a cache trial: one real epoch is sampled, without reading any feature.

    Args:
        budget: Bytes (``"2GiB"``) or a share (0.1, ``"10%"``) of the rows of the whole graph, see
            :class:`pagraph.system.budget.Budget`, for every process: each GPU has its own memory.
        fanout: Neighbours sampled per hop, the last entry serves the seeds. None: 10 in every hop.
        batch_size: Seeds a batch.
        policy: Cache policy that ranks the vertices.
        fields: The cached fields, whose widths turn bytes into rows; types without any of them are
            not read. None: ``feat``, if there is such a field.
        seed: Seed of order and sampling.

    Raises:
        TypeError, ValueError: A setting breaks its rule.
    """

    budget: Any = field(
        default="10%",
        metadata={
            "help": "Report what a cache of each part would serve: 2GiB, or a share of all rows; 0 "
            "saves sampling for "
            "that.",
            "flags": ("--cache",),
        },
    )
    fanout: tuple[int, ...] | None = field(
        default=None,
        metadata={"help": "Neighbours that training samples per hop.  [default: 10 in each]"},
    )
    batch_size: int = field(default=1000, metadata={"help": "Seeds per mini-batch."})
    policy: str = field(
        default="auto",
        metadata={
            "help": "auto, adaptive, degree, presample[:K], vip or random.",
            "flags": ("--cache-policy",),
        },
    )
    fields: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        budget = Budget.parse(self.budget)
        # "auto" is what is free here and now; the report is for other machines.
        if budget is None or budget.is_auto:
            raise ValueError(
                'cache must be bytes ("2GiB") or a share ("10%") to try it out, got '
                f"{self.budget!r}"
            )
        resolve_policy(self.policy)
        check_batch_size(self.batch_size)
        for fanout in self.fanout or ():
            check_fanout(fanout, replace=False)
        # An empty one is not the default: `--fanout ,` would be taken for it.
        if self.fanout is not None and not self.fanout:
            raise ValueError("fanout must have at least 1 entry, got 0")

    def fanout_of(self, hops: int) -> tuple[int, ...]:
        """Fan-out on parts of ``hops`` hops; ValueError if it has more entries."""
        if self.fanout is not None and len(self.fanout) > hops:
            raise ValueError(
                f"fanout must have at most {hops} entries for {hops} hops, got {list(self.fanout)}"
            )
        return self.fanout or (FANOUT,) * hops

    def row_bytes(self, graph: Graph) -> dict[str, int]:
        """Vertex type to the bytes of a vertex's rows of all cached fields; types without any are
        left out."""
        fields = {node_type: graph.node_fields(node_type) for node_type in graph.node_types}
        known = {name for own in fields.values() for name in own}
        # The default may be missing, a field that was named may not.
        names = ({_FEATURES} & known) if self.fields is None else self.fields
        for name in names:
            if name not in known:
                raise ValueError(f"fields must be among {sorted(known)}, got {name!r}")
        widths = {}
        for node_type, own in fields.items():
            width = sum(stored_row_bytes(own[name]) for name in names if name in own)
            if width:
                widths[node_type] = width
        return widths

    def nbytes(self, graph: Graph) -> int | None:
        """Budget in bytes for the whole ``graph``; None if no field says what a row takes."""
        widths = self.row_bytes(graph)
        return self._nbytes(graph, widths) if widths else None

    def _nbytes(self, graph: Graph, widths: Mapping[str, int]) -> int:
        return self._budget.nbytes(
            [(width, graph.num_nodes_of(t)) for t, width in widths.items()], free=int
        )

    @property
    def share(self) -> float | None:
        """Budget as a share of the rows of the whole graph; None where it is in bytes."""
        return self._budget.share

    @property
    def _budget(self) -> Budget:
        budget = Budget.parse(self.budget)
        assert budget is not None
        return budget

    def measure(
        self,
        whole: Graph,
        graph: Graph,
        seeds: Seeds,
        hops: int,
        *,
        progress: Callable[[], object] | None = None,
    ) -> CacheUse:
        """Fill a cache by the policy, and count its hits in an epoch over ``seeds``.

        Args:
            whole: The whole graph, whose rows the budget is a share of.
            graph: The graph that is sampled, a part or the whole.
            seeds: Ids in it, by vertex type where there are several.
            hops: Hops that it holds.
            progress: Called after each batch, by the threads that sample.

        Raises:
            ValueError: The graph lacks a field; the budget is in bytes, and no field says what a
                row takes.
        """
        sampler = NeighborSampler(list(self.fanout_of(hops)))
        widths = self.row_bytes(whole)
        if not widths and self.share is None:
            raise ValueError(
                f"cache must be a share where the graph has no field {_FEATURES}, got "
                f"{self.budget!r}"
            )
        # Without fields all vertices count the same: a share of the bytes is one of the vertices.
        widths = widths or dict.fromkeys(whole.node_types, 1)
        # Bytes of the whole graph, on a part as well: each GPU has the same memory.
        cached = self._fill(graph, seeds, sampler, widths, self._nbytes(whole, widths))
        counts = count_accesses(
            graph, seeds, sampler, batch_size=self.batch_size, seed=self.seed, progress=progress
        )
        reads = {node_type: counts.reads(node_type) for node_type in widths}
        numbering = Numbering(graph.num_nodes_by_type)
        ids = torch.cat([own + numbering.begin(node_type) for node_type, own in cached.items()])
        hits = sum(int(reads[node_type][own].sum()) for node_type, own in cached.items())
        return CacheUse(ids, sum(int(count.sum()) for count in reads.values()), hits)

    def _fill(
        self,
        graph: Graph,
        seeds: Seeds,
        sampler: NeighborSampler,
        widths: Mapping[str, int],
        nbytes: int,
    ) -> dict[str, Tensor]:
        """Ids of the cached vertices of each type that has rows."""
        counts = {node_type: graph.num_nodes_of(node_type) for node_type in widths}
        # Bytes of a type's table from vertex to place, if the budget is to pay for it.
        tables = {
            node_type: SLOT_BYTES * n * self._budget.pays_tables for node_type, n in counts.items()
        }
        # All or nothing needs no ranking, which may sample epochs.
        if nbytes >= sum(widths[t] * n + tables[t] for t, n in counts.items()):
            return {node_type: torch.arange(n, device="cpu") for node_type, n in counts.items()}
        if nbytes < min(widths[t] + tables[t] for t in widths):
            return dict.fromkeys(widths, no_ids())
        policy = resolve_policy(self.policy)
        rankings = apply_policy(
            policy, graph, seeds, sampler, self.seed, batch_size=self.batch_size
        )
        demands = [Demand(counts[t], width, tables[t], rankings[t]) for t, width in widths.items()]
        rows = divide(nbytes, demands)
        return {t: rankings[t].ids[:count] for t, count in zip(widths, rows, strict=True)}
