"""Trial of a cache of one size on a part or on the whole graph: its hit rate in one sampled epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..graph.field_value import stored_row_bytes
from ..graph.graph import Graph
from ..ranking.policies import resolve_policy
from ..ranking.policy import apply_policy
from ..ranking.presample import count_accesses
from ..sampling import NeighborSampler
from ..sampling.sampler import check_fanout
from ..seeds.order import check_batch_size
from ..system.budget import Budget, rows_that_fit
from .limit import FANOUT

__all__ = ["CacheTrial", "CacheUse"]

_FEATURES = "feat"


@dataclass(frozen=True, eq=False)
class CacheUse:
    """Ids of the vertices that a cache held, int64, and its hits of the rows of input nodes read in one epoch."""

    ids: Tensor
    reads: int
    hits: int

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for; 0 where nothing was."""
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
        fields: The cached fields, whose widths turn bytes into rows. None: ``feat``, if there is such a field.
        seed: Seed of order and sampling.

    Raises:
        TypeError, ValueError: A setting breaks its rule.
    """

    budget: Any = field(
        default="10%",
        metadata={
            "help": "Report what a cache of each part would serve: 2GiB, or a share of all rows; 0 saves sampling for "
            "that.",
            "flags": ("--cache",),
        },
    )
    fanout: tuple[int, ...] | None = field(
        default=None, metadata={"help": "Neighbours that training samples per hop.  [default: 10 in each]"}
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
        if budget is None or budget.is_auto:
            raise ValueError(f'cache must be bytes ("2GiB") or a share ("10%") to try it out, got {self.budget!r}')
        resolve_policy(self.policy)
        check_batch_size(self.batch_size)
        for fanout in self.fanout or ():
            check_fanout(fanout, replace=False)
        if self.fanout is not None and not self.fanout:
            raise ValueError("fanout must have at least 1 entry, got 0")

    def fanout_of(self, hops: int) -> tuple[int, ...]:
        """Fan-out on parts of so many hops; ValueError if it has more, which parts do not hold."""
        if self.fanout is not None and len(self.fanout) > hops:
            raise ValueError(f"fanout must have at most {hops} entries for {hops} hops, got {list(self.fanout)}")
        return self.fanout or (FANOUT,) * hops

    def row_bytes(self, graph: Graph) -> int | None:
        """Bytes of a vertex's rows of all cached fields; None where no field is cached."""
        names = self.fields
        if names is None:
            names = (_FEATURES,) if _FEATURES in graph.ndata else ()
        for name in names:
            if name not in graph.ndata:
                raise ValueError(f"fields must be among {sorted(graph.ndata)}, got {name!r}")
        values = [graph.ndata[name] for name in names]
        return sum(map(stored_row_bytes, values)) or None

    def rows(self, graph: Graph, num_nodes: int) -> int:
        """Number of vertices that a graph of ``num_nodes`` caches; the budget is of the rows of the whole ``graph``.

        Raises:
            ValueError: The graph lacks a field; the budget is in bytes, and no field says what a row takes.
        """
        budget, width = self._budget, self.row_bytes(graph)
        if width is None and budget.share is None:
            raise ValueError(f"cache must be a share where the graph has no field {_FEATURES}, got {self.budget!r}")
        nbytes = budget.nbytes([(width or 1, graph.num_nodes)], free=int)
        return rows_that_fit(nbytes, [width or 1], num_nodes, table=budget.pays_tables)

    def nbytes(self, graph: Graph) -> int | None:
        """Budget in bytes; None where no field says what a row takes."""
        width = self.row_bytes(graph)
        return None if width is None else self._budget.nbytes([(width, graph.num_nodes)], free=int)

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
        self, graph: Graph, seeds: Tensor, rows: int, hops: int, *, progress: Callable[[], object] | None = None
    ) -> CacheUse:
        """Fill a cache of ``rows`` vertices by the policy, and count its hits in an epoch over ``seeds``, on a part or
        the whole ``graph``; ``progress`` is called after each batch, by the threads that sample."""
        sampler = NeighborSampler(list(self.fanout_of(hops)))
        if rows <= 0:
            ids = torch.empty(0, dtype=torch.int64, device="cpu")
        elif rows >= graph.num_nodes:
            ids = torch.arange(graph.num_nodes, device="cpu")
        else:
            policy = resolve_policy(self.policy)
            (ranking,) = apply_policy(policy, graph, seeds, sampler, self.seed, batch_size=self.batch_size).values()
            ids = ranking.ids[:rows]
        counts = count_accesses(graph, seeds, sampler, batch_size=self.batch_size, seed=self.seed, progress=progress)
        reads = counts.reads(graph.only_node_type)
        return CacheUse(ids, int(reads.sum()), int(reads[ids].sum()))
