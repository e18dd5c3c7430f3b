"""Planner: what the parts of a loader need of the host's memory, and what each of them gets."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..cache.choice import Role
from ..cache.memory_plan import MemoryNeeds, MemoryPlan, divide_memory, usable_memory
from ..features.disk import DiskFeature, on_disk
from ..features.feature import DeviceFeature
from ..features.field import Field, host_feature
from ..features.narrow import stored_as
from ..graph.graph import Graph
from ..graph.resident import keep_resident, resident_bytes
from ..ranking.auto import adaptive, auto
from ..ranking.policies import BYTES_A_ROW, FewBatches, ranking_bytes, ranks_all
from ..system.budget import SLOT_BYTES, Budget
from ..system.memory import held_by_process, host_available, return_freed
from ..system.threads import ForkLock
from ..system.units import bytes_text
from .lookahead import GROUPS
from .trial import Trial

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..cache.fields import FieldSet
    from ..ranking.policy import Policy, Ranking, RowType
    from ..ranking.workload import Sampled, Workload
    from .epochs import PipelineOptions

__all__ = ["Planner"]

_PAGE = 4096
_MARGIN = 1.25  # batches differ: a trial says what one takes, not what the largest does
# Edges on disk that are all looked at for a ranking. RMAT of scale 22, 40 batches of 1000 seeds, 2
# GiB: the first epoch took 46 s with auto (4.2 M vertices, 67 M edges, 256 MiB), 5.7 s with a few
# batches, and the second one as long.
_MOST_RANKED = 128 << 20
_STAGING = 30 << 20  # three pinned buffers of 8 MiB for rows, and three of 2 MiB for blocks

_KERNELS = 40 << 20  # that come with the first rows read: 22 to 45 MB

_taken: weakref.WeakKeyDictionary[Planner, int] = weakref.WeakKeyDictionary()
_taken_lock = ForkLock()
_first_process = [0]
"""Bytes that the process held when the first plan was made in it, and those of kernels."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """A field's rows: what they belong to, which of a batch's are read, where they are, and bytes
    of one."""

    type: RowType | None
    role: Role
    num_rows: int
    row_bytes: int
    cached_bytes: int
    is_on_disk: bool

    @classmethod
    def of(
        cls,
        field: Field,
        row_type: RowType | None,
        role: Role,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> _Rows | None:
        """The rows as they are now; None for a field that cannot be read now, or that lies on a
        device."""
        try:
            seen = field.snapshot()
        except (KeyError, RuntimeError):
            return None
        base = host_feature(seen.tensor, device)
        if isinstance(base, DeviceFeature):
            return None
        cached = stored_as(base, dtype, field.label).row_bytes
        return cls(
            row_type, role, base.num_rows, base.row_bytes, cached, isinstance(base, DiskFeature)
        )


class Ranker:
    """Ranks by the loader's policy, or where memory does not allow that by a few batches."""

    def __init__(self, workload: Workload, policy: Policy) -> None:
        self.workload, self.policy = workload, policy

    def __call__(self, types: Collection[RowType]) -> Mapping[RowType, Ranking]:
        """Rank the rows of these types; see ``Workload.rank``."""
        ranked = self.workload.rank(self.policy, types)
        return_freed()
        return ranked

    def seed_reads(self, row_type: RowType) -> Tensor | None:
        """Reads of each row as a seed, see ``Workload``; None where memory does not allow a number
        for each."""
        return None if isinstance(self.policy, FewBatches) else self.workload.seed_reads(row_type)

    def fit(self, plan: MemoryPlan, graph: Graph, num_hops: int, *, given: bool) -> MemoryPlan:
        """Rank by a few batches from now on if the policy takes more than the plan has while the
        cache is empty.

        With ``auto`` and ``adaptive`` also if many edges lie on disk: to go through them all takes
        longer than what the better ranking saves. ValueError for another policy that takes too
        much, if memory was ``given``.
        """
        needed, room = ranking_bytes(self.policy, graph, num_hops), plan.cache + plan.left
        is_ours, is_long = self.policy in (auto, adaptive), plan.needs.topology > _MOST_RANKED
        if not plan.cache or (needed <= room and not (is_ours and is_long)):
            return plan
        if not is_ours:
            if not given:
                return plan
            raise ValueError(
                f"memory must leave {needed} bytes ({bytes_text(needed)}) to rank by this "
                "cache_policy, it leaves "
                f"{room}; cache_policy='auto' needs less"
            )
        self.policy = FewBatches(max(1, room // 2 // BYTES_A_ROW))
        return replace(
            plan,
            ranked=f", those of a few batches: to rank all takes {bytes_text(needed)} and time",
        )


class Planner:
    """Divides a loader's memory once, when its first batch is asked for. Safe from any thread.

    What other loaders of this process have planned is theirs: it does not count as held by the
    process. Where nothing lies on disk there is nothing to divide, and a ``memory`` that was given
    has no effect, of which the plan warns.

    Args:
        ranker: Ranks the rows for the cache, of the loader's workload.
        fields: The fields that it reads.
        cache: Size of the static cache; None: there is none.
        memory: Bytes to divide. None: what is free, less a reserve.

    Raises:
        ValueError: ``cache``, in memory, is more than ``memory``.
    """

    def __init__(
        self, ranker: Ranker, fields: FieldSet, *, cache: Budget | None, memory: Budget | None
    ) -> None:
        limit = None if memory is None else memory.limit
        given = None if cache is None or fields.accelerator is not None else cache.limit
        if limit is not None and given is not None and given > limit:
            raise ValueError(
                f"cache must be at most memory, {limit} bytes ({bytes_text(limit)}), got {given}"
            )
        self._ranker, self._workload, self._fields = ranker, ranker.workload, fields
        self._cache, self._limit = cache, limit
        self._lock = threading.Lock()
        self._plan: MemoryPlan | None = None

    def plan(self, options: PipelineOptions) -> MemoryPlan:
        """The plan, made when it is first asked for; ValueError for memory below what one batch
        needs."""
        with self._lock:
            if self._plan is None:
                self._plan = self._made(options)
                with _taken_lock:
                    _taken[self] = self._plan.taken
            return self._plan

    def prepare(self, options: PipelineOptions) -> None:
        """Make the plan, and let the cache be filled by it; for the start of an epoch."""
        plan = self.plan(options)
        if not plan.reason and self._fields.accelerator is None:
            self._fields.allow(plan.cached, counts=not plan.ranked)
        self._fields.let_grow(plan.window > 0)
        self._fields.prepare()

    @property
    def fills_beside(self) -> bool:
        """Whether a thread may fill the cache beside batches: on the CPU, and not by a policy of
        the user's own."""
        policy = self._ranker.policy
        return self._fields.accelerator is None and (
            ranks_all(policy) or isinstance(policy, FewBatches)
        )

    def after_first_step(self) -> None:
        """Keep edges in memory where that spares reading them again and again.

        Where files and plan fit into memory the system keeps them; and what an epoch reads less
        often than twice is read when it is needed.
        """
        plan = self._plan
        if plan is not None and plan.topology:
            needs, now = plan.needs, self._workload.sampled()
            tight = needs.topology + needs.cache > plan.left
            if now is not None and tight and needs.topology_reads > 2 * plan.topology:
                keep_resident(now.graph, plan.topology)

    def _made(self, options: PipelineOptions) -> MemoryPlan:
        fields, source = self._fields, self._workload.source
        found = [
            _Rows.of(*declared, fields.device, fields.cache_dtype) for declared in fields.declared
        ]
        rows = [each for each in found if each is not None]
        on_files = isinstance(source, Graph) and _disk_bytes(source) > 0
        if not on_files and not any(each.is_on_disk for each in rows):
            if self._limit is not None:
                warnings.warn(
                    f"memory={bytes_text(self._limit)} has no effect: it bounds what is read of "
                    "graphs opened from "
                    "disk, and nothing that this loader reads lies on disk",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return MemoryPlan(
                self._total(held_by_process()), reason="as nothing that is read lies on disk"
            )
        now = self._workload.sampled()
        trial = None if now is None else Trial.of(now, self._workload.order.batch_size or 1)
        # Only now: to sample has loaded the kernels.
        # By a loader that is gone; the plan has it as topology.
        kept = 0 if now is None else resident_bytes(now.graph)
        with _taken_lock:
            held, others = (
                held_by_process(),
                sum(taken for other, taken in list(_taken.items()) if other is not self),
            )
            _first_process[0] = _first_process[0] or held + _KERNELS
            # Others may have taken less than they planned, and what was there before them is not
            # theirs.
            process = max(_first_process[0], held - max(others, kept))
        needs = self._needs(options, rows, now, trial or Trial(), process)
        given = self._limit is not None
        plan = divide_memory(self._total(process), needs, given=given)
        hops = 0 if now is None or now.sampler is None else now.sampler.num_hops
        return plan if now is None else self._ranker.fit(plan, now.graph, hops, given=given)

    def _total(self, process: int) -> int:
        return usable_memory(host_available(), process) if self._limit is None else self._limit

    def _needs(
        self,
        options: PipelineOptions,
        rows: list[_Rows],
        now: Sampled | None,
        trial: Trial,
        process: int,
    ) -> MemoryNeeds:
        order, on_device = self._workload.order, self._fields.accelerator is not None
        batches = len(order) if order.has_length else 1
        counts = {
            each: trial.rows(each.type, each.role, self._workload.edge_types) for each in rows
        }
        every = sum(count * each.row_bytes for each, count in counts.items())
        files = [each for each in rows if each.is_on_disk]
        read = sum(counts[each] * each.row_bytes for each in files)
        # A row may begin anywhere on a page.
        paged = sum(counts[each] * (each.row_bytes + _PAGE) for each in files)
        widths, no_cache = self._widths(files), on_device or self._cache is None
        growing = (
            0
            if no_cache
            else sum(
                SLOT_BYTES * each.num_rows for each in files if each.type in self._workload.num_rows
            )
        )
        return MemoryNeeds(
            process=process,
            # Sampling takes as much again.
            batch=int(_MARGIN * (2 * trial.nbytes + (0 if on_device else every))),
            batches=options.max_batches + 1,  # the reader has the last one until it has the next
            staging=_STAGING if on_device else 0,
            # Groups of rows, and twice the sampled batches of one: what waits to be read, and to be
            # fetched.
            ahead=int(_MARGIN * (2 * trial.nbytes + GROUPS * read))
            if read and options.lookahead != 0
            else 0,
            ahead_rows=int(_MARGIN * read),
            lookahead=options.lookahead,
            num_batches=batches,
            topology=0 if now is None else _disk_bytes(now.graph),
            topology_reads=2.0 * _PAGE * trial.frontier * batches,
            cache=0 if no_cache else growing + sum((SLOT_BYTES + w) * n for w, n in widths),
            growing=growing,
            cache_reads=float(paged * batches),
            cache_given=self._cache_given(widths, growing),
        )

    def _widths(self, files: list[_Rows]) -> list[tuple[int, int]]:
        """Cached bytes of a row of all fields on disk, and the number of rows, for each type."""
        counts = self._workload.num_rows
        types = dict.fromkeys(each.type for each in files if each.type in counts)
        return [
            (sum(each.cached_bytes for each in files if each.type == t), counts[t])
            for t in types
            if t is not None
        ]

    def _cache_given(self, widths: list[tuple[int, int]], growing: int) -> int | None:
        """Bytes of the cache, its tables included; None where they are what the plan leaves."""
        cache = self._cache
        if cache is None or cache.is_auto:
            return None if cache is not None else 0
        tables = 0 if cache.pays_tables else SLOT_BYTES * sum(count for _, count in widths)
        rows = cache.nbytes(widths, free=lambda: 0)
        return growing + tables + rows if rows else 0


def _disk_bytes(graph: Graph) -> int:
    """Bytes of the edges that lie in files."""
    cscs = [graph.csc_of(etype) for etype in graph.edge_types]
    return sum(
        array.nbytes for csc in cscs for array in (csc.indptr, csc.indices) if on_disk(array)
    )
