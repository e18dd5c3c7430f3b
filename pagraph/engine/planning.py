"""Planner: divides host memory among the parts of a loader."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..cache.choice import Role
from ..cache.memory_plan import MemoryNeeds, MemoryPlan, divide_memory, usable_memory
from ..features.disk import DiskFeature, on_disk
from ..features.feature import DeviceFeature
from ..features.field import Field, host_feature
from ..features.narrow import stored_as
from ..graph.graph import Graph
from ..graph.minibatch import Subgraph
from ..graph.resident import keep_resident, resident_bytes
from ..ranking.auto import adaptive, auto
from ..ranking.policies import BYTES_A_ROW, FewBatches, ranking_bytes, ranks_all, spread_seeds
from ..seeds.keys import derive_key
from ..system.budget import SLOT_BYTES, Budget
from ..system.memory import held_by_process, host_available, return_freed
from ..system.threads import fork_lock
from ..system.units import bytes_text
from .lookahead import GROUPS

if TYPE_CHECKING:
    import torch

    from ..cache.fields import FieldSet
    from ..graph.graph import EdgeType
    from ..options.pipeline import PipelineOptions
    from ..ranking.policy import Policy, Ranking, RowType
    from ..ranking.workload import Sampled, Workload


_PAGE = 4096
"""Minimum bytes that the system reads from a file."""

_MARGIN = 1.25
"""Factor applied to the sizes of trial batches, since later ones may be larger."""

_MOST_RANKED = 128 << 20
"""Most bytes of edges on disk that a ranking may read as a whole. For RMAT of scale 22, 40 batches
of 1000 seeds and 2 GiB of memory, the first epoch took 46 s with "auto" (256 MiB of edges), and 5.7
s with a ranking by a few batches; the second epoch took equally long."""

_STAGING = 30 << 20
"""Bytes of pinned memory: three buffers of 8 MiB for rows, three of 2 MiB for blocks."""

_KERNELS = 40 << 20
"""Bytes of machine code loaded with the first read of rows; 22 to 45 MB measured."""

_taken: weakref.WeakKeyDictionary[Planner, int] = weakref.WeakKeyDictionary()
"""Bytes that this process's plans have given to live loaders."""

_first_process = [0]
"""Bytes that the process held at its first plan, including kernels."""

# Guards both. Lock order: a planner's own lock, then this one; nothing called under it makes a
# plan. A fork lock, since a process may fork while a plan is made.
_taken_lock = fork_lock()


@dataclass(frozen=True, eq=False)
class _Rows:
    """A field's rows.

    Attributes:
        type: Their vertex or edge type.
        role: Whether they are read for input nodes, for seeds or both.
        num_rows: Number of rows.
        row_bytes: Bytes per row.
        cached_bytes: Bytes per row in a cache.
        is_on_disk: Whether they are in a file.
    """

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
        """The field's current rows; None for a field that cannot be read now, or is on a device."""
        try:
            seen = field.snapshot()
        except (KeyError, RuntimeError):
            # A field that cannot be read now is not planned for; its read raises the error.
            return None
        base = host_feature(seen.tensor, device)
        if isinstance(base, DeviceFeature):
            return None
        cached = stored_as(base, dtype, field.label).row_bytes
        return cls(
            row_type, role, base.num_rows, base.row_bytes, cached, isinstance(base, DiskFeature)
        )


class Ranker:
    """Ranks by the loader's policy, or by a few batches if memory is too small for that."""

    def __init__(self, workload: Workload, policy: Policy) -> None:
        self.workload = workload
        self.policy = policy

    def __call__(self, types: Collection[RowType]) -> Mapping[RowType, Ranking]:
        """Rank the rows of these types; see ``Workload.rank``."""
        ranked = self.workload.rank(self.policy, types)
        return_freed()
        return ranked

    def seed_reads(self, row_type: RowType) -> Tensor | None:
        """Reads of each row as a seed, see ``Workload``; None if memory is too small for them."""
        return None if isinstance(self.policy, FewBatches) else self.workload.seed_reads(row_type)

    def fit(self, plan: MemoryPlan, graph: Graph, num_hops: int, *, given: bool) -> MemoryPlan:
        """Rank by a few batches from now on if the policy needs more memory than the plan has while
        the cache is empty.

        With ``auto`` and ``adaptive``, also if many edges are on disk: reading them all takes
        longer than the better ranking saves.

        Raises:
            ValueError: Another policy needs too much, and the user has ``given`` the memory.
        """
        needed = ranking_bytes(self.policy, graph, num_hops)
        room = plan.cache + plan.left
        is_ours = self.policy in (auto, adaptive)
        takes_long = is_ours and plan.needs.topology > _MOST_RANKED
        if not plan.cache or (needed <= room and not takes_long):
            return plan
        if not is_ours and not given:  # a default, no limit that the user has set
            return plan
        if not is_ours:
            raise ValueError(
                f"memory must leave {needed} bytes ({bytes_text(needed)}) to rank by this "
                "cache_policy, it leaves "
                f"{room}; cache_policy='auto' needs less"
            )
        self.policy = FewBatches(max(1, room // 2 // BYTES_A_ROW))
        return replace(
            plan,
            ranked=f", by counting a few batches: to count all takes {bytes_text(needed)} and time",
        )


class Planner:
    """Divides a loader's memory once, at its first batch. Thread-safe.

    Memory planned for other loaders of this process does not count as held by the process. If
    nothing is on disk there is nothing to divide: a given ``memory`` has no effect, and the plan
    warns.

    Args:
        ranker: Ranks rows for the cache, for the loader's workload.
        fields: The fields that the loader reads.
        cache: Size of the static cache; None: no cache.
        memory: Bytes to divide. None: free memory, less a reserve.

    Raises:
        ValueError: ``cache`` is in host memory and larger than ``memory``.
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
        self._ranker = ranker
        self._workload = ranker.workload
        self._fields = fields
        self._cache = cache
        self._limit = limit
        # Held while the plan is made, which samples batches in the calling thread; other threads
        # wait for the plan. No deadlock: sampling needs no plan.
        self._lock = threading.Lock()
        self._plan: MemoryPlan | None = None

    def plan(self, options: PipelineOptions) -> MemoryPlan:
        """The plan, made on first use.

        Raises:
            ValueError: Memory is less than one batch needs.
        """
        with self._lock:
            if self._plan is None:
                self._plan = self._made(options)
                with _taken_lock:
                    _taken[self] = self._plan.taken
            return self._plan

    def prepare(self, options: PipelineOptions) -> None:
        """Make the plan, and bound the cache by it; called at the start of an epoch."""
        plan = self.plan(options)
        if not plan.reason and self._fields.accelerator is None:
            self._fields.allow(plan.cached, counts=not plan.ranked)
        self._fields.let_grow(plan.window > 0)
        self._fields.prepare()

    @property
    def fills_beside(self) -> bool:
        """Whether a thread may fill the cache while batches are made: only on the CPU, and not with
        a user's policy."""
        policy = self._ranker.policy
        return self._fields.accelerator is None and (
            ranks_all(policy) or isinstance(policy, FewBatches)
        )

    def after_first_step(self) -> None:
        """Keep edges in memory if that saves repeated reads.

        Not if files and plan fit into memory together, since the system's page cache then keeps
        them; and not if an epoch reads an edge less than twice on average.
        """
        plan = self._plan
        if plan is not None and plan.topology:
            needs = plan.needs
            now = self._workload.sampled()
            tight = needs.topology + needs.cache > plan.left
            if now is not None and tight and needs.topology_reads > 2 * plan.topology:
                keep_resident(now.graph, plan.topology)

    def _made(self, options: PipelineOptions) -> MemoryPlan:
        fields = self._fields
        source = self._workload.source
        rows = []
        for declared in fields.declared:
            of_field = _Rows.of(*declared, fields.device, fields.cache_dtype)
            if of_field is not None:
                rows.append(of_field)
        on_files = isinstance(source, Graph) and _disk_bytes(source) > 0
        if not on_files and not any(each.is_on_disk for each in rows):
            if self._limit is not None:
                warnings.warn(
                    f"memory={bytes_text(self._limit)} has no effect: it limits what is read "
                    "from graphs on disk, and this loader reads nothing from disk",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return MemoryPlan(
                self._total(held_by_process()), reason="as the loader reads nothing from disk"
            )
        now = self._workload.sampled()
        trial = None if now is None else Trial.of(now, self._workload.order.batch_size or 1)
        # Edges that an earlier loader has kept in memory; the plan counts them as topology.
        kept = 0 if now is None else resident_bytes(now.graph)
        with _taken_lock:
            held = held_by_process()  # after the trial, which loads kernels
            others = sum(taken for other, taken in list(_taken.items()) if other is not self)
            _first_process[0] = _first_process[0] or held + _KERNELS
            # Other loaders may hold less than planned, but not what the process held before them.
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
        order = self._workload.order
        on_device = self._fields.accelerator is not None
        batches = len(order) if order.has_length else 1
        counts = {
            each: trial.rows(each.type, each.role, self._workload.edge_types) for each in rows
        }
        every = sum(count * each.row_bytes for each, count in counts.items())
        files = [each for each in rows if each.is_on_disk]
        read = sum(counts[each] * each.row_bytes for each in files)
        # A row may begin anywhere on a page.
        paged = sum(counts[each] * (each.row_bytes + _PAGE) for each in files)
        widths = self._widths(files)
        no_cache = on_device or self._cache is None
        growing = 0
        if not no_cache:
            cached = [each for each in files if each.type in self._workload.num_rows]
            growing = sum(SLOT_BYTES * each.num_rows for each in cached)
        ahead = 0
        if read and options.lookahead != 0:
            # Rows of all groups, and sampled batches of two: those waiting for their rows to be
            # read, and those waiting to be fetched.
            ahead = int(_MARGIN * (2 * trial.nbytes + GROUPS * read))
        return MemoryNeeds(
            process=process,
            # Sampling takes the batch's size in scratch, too.
            batch=int(_MARGIN * (2 * trial.nbytes + (0 if on_device else every))),
            batches=options.max_batches + 1,  # the reader has the last one until it has the next
            staging=_STAGING if on_device else 0,
            ahead=ahead,
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
        """Cached bytes per row over all fields on disk, and the number of rows, by type."""
        counts = self._workload.num_rows
        types = dict.fromkeys(each.type for each in files if each.type in counts)
        return [
            (sum(each.cached_bytes for each in files if each.type == t), counts[t])
            for t in types
            if t is not None
        ]

    def _cache_given(self, widths: list[tuple[int, int]], growing: int) -> int | None:
        """Bytes of the cache with its tables; None if it gets what the plan leaves."""
        cache = self._cache
        if cache is None:
            return 0
        if cache.is_auto:
            return None
        tables = 0 if cache.pays_tables else SLOT_BYTES * sum(count for _, count in widths)
        rows = cache.nbytes(widths, free=lambda: 0)
        return growing + tables + rows if rows else 0


def _disk_bytes(graph: Graph) -> int:
    """Bytes of edges in files."""
    cscs = [graph.csc_of(etype) for etype in graph.edge_types]
    return sum(
        array.nbytes for csc in cscs for array in (csc.indptr, csc.indices) if on_disk(array)
    )


_SEEDS = 256
"""Seeds of all trial batches together: more batches if they are small, as these vary more."""

_MOST_TRIALS = 8
"""Maximum trial batches; few, as the first batch of an epoch waits for them."""

_KEY = 0x706C616E
"""The bytes "plan": separates the keys of trials from those of batches."""


@dataclass(frozen=True)
class Trial:
    """The largest of a few sampled batches.

    Attributes:
        inputs, outputs: Input nodes and seeds by vertex type.
        edges: Edges by edge type.
        frontier: Vertices that drew neighbours, each once.
        nbytes: Bytes without the rows of fields.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    edges: Mapping[EdgeType, int] = field(default_factory=dict)
    frontier: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, now: Sampled, batch_size: int) -> Trial | None:
        """Sample batches like the loader, from seeds spread over all; None if only user code can
        sample."""
        if now.sampler is None:
            return None
        count = max(1, min(_MOST_TRIALS, _SEEDS // batch_size))
        trials = []
        for place in range(count):
            seeds = spread_seeds(now.seeds, batch_size, place / count)
            trials.append(
                cls._of(now.sampler.sample(now.graph, seeds, derive_key(_KEY, place)), now.graph)
            )
        return max(trials, key=lambda trial: (sum(trial.inputs.values()), trial.nbytes))

    @classmethod
    def _of(cls, batch: Any, graph: Graph) -> Trial:
        nbytes = _tensor_bytes(batch, set())
        if isinstance(batch, Subgraph):
            # Edge ids are made on first use; loaders use them.
            nbytes += sum(
                8 * part.num_edges for part in batch.edges.values() if part.ids_of is not None
            )
            frontier = sum(ends[-2] for ends in batch.hop_ends.values() if len(ends) > 1)
            edges = {t: part.num_edges for t, part in batch.edges.items()}
            return cls(
                _lengths(batch.input_nodes, graph),
                _lengths(batch.output_nodes, graph),
                edges,
                frontier,
                nbytes,
            )
        edges = dict.fromkeys(graph.edge_types, 0)
        frontier = 0
        for block in batch.blocks:
            num_dst = block.num_dst
            if isinstance(num_dst, Mapping):
                num_dst = sum(num_dst.values())
            frontier = max(frontier, num_dst)
            for etype, part in getattr(block, "relations", {graph.edge_types[0]: block}).items():
                edges[etype] += part.num_edges
        return cls(
            _lengths(batch.input_nodes, graph),
            _lengths(batch.output_nodes, graph),
            edges,
            frontier,
            nbytes,
        )

    def rows(
        self, row_type: RowType | None, role: Role, edge_types: Mapping[EdgeType, EdgeType]
    ) -> int:
        """Number of rows that a batch reads of a field; ``edge_types`` maps the field's edge types
        to those of the sampled graph."""
        outputs = sum(self.outputs.values())
        if isinstance(row_type, tuple):
            inputs = self.edges.get(edge_types.get(row_type, row_type), 0)
        elif row_type is None:  # such as undeclared edges: as many as there may be
            inputs = sum(self.edges.values())
        else:
            inputs = self.inputs.get(row_type, 0)
            outputs = self.outputs.get(row_type, 0)
        return inputs * (Role.INPUT in role) + outputs * (Role.OUTPUT in role)


def _lengths(nodes: Tensor | Mapping[str, Tensor], graph: Graph) -> dict[str, int]:
    """Vertices by type."""
    by_type = nodes if isinstance(nodes, Mapping) else {graph.only_node_type: nodes}
    return {t: len(ids) for t, ids in by_type.items()}


def _tensor_bytes(value: Any, seen: set[int]) -> int:
    """Bytes of all tensors in a batch, each storage counted once."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() in seen:  # vertices of inner blocks are views of the outermost's
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if is_dataclass(value):
        return sum(_tensor_bytes(getattr(value, each.name), seen) for each in fields(value))
    if isinstance(value, Mapping):
        return sum(_tensor_bytes(part, seen) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(part, seen) for part in value)
    return 0
