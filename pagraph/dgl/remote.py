"""Rows of DistDGL's tensors, read by DGL, with a static cache of other machines' rows."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._compiling import kernels_seconds
from ..cache.division import Demand, divide
from ..cache.plan import auto_budget
from ..features.store import CachedFeature, FeatureCache, fill_cache, read_counted, slots_for
from ..graph.row_form import Decoding
from ..ranking.auto import learned_reads
from ..ranking.policy import Ranking, descending, out_degrees
from ..ranking.presample import AccessCounts
from ..ranking.vip import expected_accesses
from ..sampling.block_sampler import NeighborSampler
from ..stats.reads import CountedRead, ReadCounters
from ..system.budget import SLOT_BYTES, Budget
from ..system.buffers import BufferPool
from .convert import core_graph
from .graphbolt import import_dgl
from .workload import native_sampler

dgl = import_dgl()

POLICIES = ("auto", "degree", "vip")
"""Rankings of other machines' rows. Other policies need the whole graph, but a machine has only its
part."""

_ENOUGH = 0.5
"""Share of a pass's batches that must be counted before ranking by the counts."""

_CPU = torch.device("cpu")


class DistFeature:
    """Rows of a ``DistTensor``, read by DGL; a :class:`~pagraph.features.feature.Feature`.

    Attributes:
        name: The tensor's name in DGL's servers.
    """

    tier = "remote"
    decoding: Decoding | None = None

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.name: str = tensor.kvstore_key
        self.num_rows: int = int(tensor.shape[0])
        self.row_shape: tuple[int, ...] = tuple(tensor.shape[1:])
        self.dtype: torch.dtype = tensor.dtype
        self.row_bytes: int = math.prod(self.row_shape) * self.dtype.itemsize
        self.device: torch.device = _CPU

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        rows: Tensor = self._tensor[ids.long()]
        return out.copy_(rows) if isinstance(out, Tensor) else rows

    def are_remote(self, ids: Tensor) -> Tensor:
        """Which of the ids are other machines' rows, bool, shape ``(len(ids),)``."""
        policy = self._tensor.part_policy
        owners: Tensor = policy.to_partid(ids.long())
        return owners.ne(policy.part_id)


class RemoteField:
    """A tensor that a loader reads ahead of its loop.

    Attributes:
        tensor: The ``DistTensor``.
        type: Its vertex or edge type.
        label: Its name in statistics.
        source: Reads its rows by DGL.
        cacheable: Whether a cache may hold its rows.
        cache: Some of other machines' rows, or None.
        is_read: Whether a pass now reads it ahead.
    """

    def __init__(self, tensor: Any, row_type: Any, label: str, *, cacheable: bool) -> None:
        self.tensor = tensor
        self.type = row_type
        self.label = label
        self.source = DistFeature(tensor)
        self.cacheable = cacheable and self.source.row_bytes > 0
        self.cache: FeatureCache | None = None
        self.is_read = False
        _known.add(self)

    def read(self, ids: Tensor, counters: ReadCounters) -> Tensor:
        """The rows of ``ids``; rows of other machines and of this one are counted separately."""
        begin = time.perf_counter()
        source = self.source
        rows, hits = read_counted(self.feature(), ids, None, None)
        remote = int(source.are_remote(ids).sum()) if len(ids) else 0
        own = len(ids) - remote
        end = time.perf_counter()
        kernels = kernels_seconds(begin, end, threading.get_ident())
        width = source.row_bytes
        of_others = self.label, source.tier, remote, hits, width, self.cacheable, end - begin
        of_own = f"{self.label}, own part", "host", own, None, width, False
        counters.record_each([CountedRead(*of_others, kernels=kernels), CountedRead(*of_own)])
        return rows

    def feature(self) -> DistFeature | CachedFeature:
        """The rows, read through the cache if there is one."""
        return self.source if self.cache is None else CachedFeature(self.source, self.cache)


_known: weakref.WeakSet[RemoteField] = weakref.WeakSet()


def refuse_writes(name: str) -> None:
    """Raise RuntimeError for a tensor of which a loader holds rows that a write would outdate."""
    for field in list(_known):
        if field.source.name == name and (field.is_read or field.cache is not None):
            what = "caches" if field.cache is not None else "reads ahead"
            raise RuntimeError(
                f"{field.label!r} must not be written while a loader {what} its rows: leave it out "
                "of the sampler's prefetch_... and read it in the loop, or close() the loader in "
                "every process before it is written"
            )


class RemoteCache:
    """Caches the most read rows of other machines, with one budget for all fields.

    Args:
        budget: Memory of the rows, and of their index tables if it includes these.
        first: Returns the reads of each vertex by type, up to a factor, for the first ranking.
        batches: Batches of a pass. After the first pass the cache is filled again by its counts.
            None to keep the first ranking.
    """

    def __init__(
        self, budget: Budget, first: Callable[[], Mapping[str, Tensor]], batches: int | None
    ) -> None:
        self._budget = budget
        self._first = first
        self._batches = batches
        self._counts: AccessCounts | None = None
        # Type to the ranking for all its fields; empty before the first ranking.
        self._rankings: dict[str, Ranking] = {}

    def prepare(self, fields: Iterable[RemoteField]) -> None:
        """Fill the cache if it is due; called between passes."""
        cached = [field for field in fields if field.cacheable]
        if not cached:
            return
        counts = self._counts
        if not self._rankings:
            self._rank(cached)
            if self._batches is not None:
                sizes = {field.type: field.source.num_rows for field in cached}
                self._counts = AccessCounts(sizes, 0, most=2**32 - 1)
        elif counts is not None and counts.batches >= max(1.0, _ENOUGH * (self._batches or 0)):
            self._learn(counts)
            self._counts = None  # only once, since the cache is static
        elif all(field.cache is not None for field in cached):
            return
        self._fill(cached)

    def count(self, reads: Mapping[str, Tensor]) -> None:
        """Count the ids that a batch has read, by type; called by one thread."""
        counts = self._counts
        if counts is not None:
            for row_type, ids in reads.items():
                counts.add_reads(row_type, ids, [len(ids)])
            counts.batches += 1

    def _rank(self, cached: Sequence[RemoteField]) -> None:
        """Rank other machines' vertices by expected reads."""
        reads = self._first()
        for field in cached:
            num_rows = field.source.num_rows
            every = torch.arange(num_rows, device="cpu")
            ids = every[field.source.are_remote(every)]
            of_type = reads.get(field.type, torch.zeros(num_rows, device="cpu"))
            self._rankings[field.type] = _ranking(ids, of_type[ids])

    def _learn(self, counts: AccessCounts) -> None:
        """Rank other machines' vertices by a pass's counts, corrected for chance."""
        for row_type, before in self._rankings.items():
            assert before.scores is not None
            read = counts.reads(row_type)[before.ids]
            learned = learned_reads(before.scores, read, counts.batches)
            self._rankings[row_type] = _ranking(before.ids, learned)

    def _fill(self, cached: Sequence[RemoteField]) -> None:
        groups: dict[str, list[RemoteField]] = {}
        for field in cached:
            groups.setdefault(field.type, []).append(field)
        widths = {t: sum(f.source.row_bytes for f in group) for t, group in groups.items()}
        sizes = {t: group[0].source.num_rows for t, group in groups.items()}
        room = self._budget.nbytes(
            [(widths[t], sizes[t]) for t in groups], free=lambda: auto_budget(_CPU)
        )
        table = SLOT_BYTES * self._budget.pays_tables
        counts = divide(
            room,
            [
                Demand(sizes[t], widths[t], table * sizes[t], self._rankings[t], order=t)
                for t in groups
            ],
        )
        for (row_type, group), count in zip(groups.items(), counts, strict=True):
            ids = self._rankings[row_type].ids[:count]
            slots = slots_for(ids, sizes[row_type])
            for field in group:
                # Read through the previous cache, so that its rows are not fetched again.
                field.cache = fill_cache(
                    field.feature(),
                    ids,
                    device=_CPU,
                    num_nodes=sizes[row_type],
                    slots=slots,
                )


def _ranking(ids: Tensor, reads: Tensor) -> Ranking:
    order = descending(reads)
    return Ranking(ids[order], reads[order].double())


def check_policy(policy: object) -> None:
    """Raise ValueError unless a policy is one of :data:`POLICIES`."""
    if policy not in POLICIES:
        raise ValueError(
            f"cache_policy must be one of {list(POLICIES)} for a DistGraph, of which this "
            f"machine holds a part, got {policy!r}"
        )


def expected_reads(
    graph: Any, policy: str, sampler: Any, seeds: Any, batch_size: int
) -> dict[str, Tensor]:
    """Expected reads of each vertex of a ``DistGraph``, by type, up to a factor.

    They are computed on this machine's part: the expected reads of a pass for "vip", and for "auto"
    if possible, else the out-degree. A part has the in-edges of its own vertices, so paths through
    other parts are missing.

    Args:
        graph: The graph.
        policy: One of :data:`POLICIES`.
        sampler: DGL's sampler.
        seeds: This process's vertices. Anything but a tensor means that they are of several types.
        batch_size: Seeds per batch.

    Raises:
        ValueError: "vip", but the expected reads are unknown.
    """
    part = _local_part(graph)
    # DGL stores a part with several types as a graph with one type.
    core = core_graph(part)
    native = native_sampler(part, sampler) if len(graph.ntypes) == 1 else None
    if not isinstance(native, NeighborSampler) or native.edge_dir != "in":
        native = None
    reads = None
    if policy != "degree" and native is not None and isinstance(seeds, Tensor):
        # Without its weights, which the servers have.
        uniform = NeighborSampler(native.fanouts, replace=native.replace)
        reads = _expected(graph, core, uniform, seeds, batch_size)
    elif policy == "vip":
        raise ValueError(
            "cache_policy must be 'auto' or 'degree' unless a NeighborSampler samples from "
            "vertices of a graph of one type, got 'vip'"
        )
    if reads is None:
        (reads,) = out_degrees(core).values()
    return _by_type(graph, part, reads)


def _local_part(graph: Any) -> Any:
    """This machine's part as a DGL graph, converted if it is a GraphBolt graph."""
    part = graph.local_partition
    if isinstance(part, dgl.DGLGraph):
        return part
    # GraphBolt's arrays differ in dtype; DGL's graphs have one id dtype.
    width = torch.promote_types(part.csc_indptr.dtype, part.indices.dtype)
    edges = (part.csc_indptr.to(width), part.indices.to(width), part.indices[:0].to(width))
    converted = dgl.graph(("csc", edges), num_nodes=part.total_num_nodes)
    converted.ndata[dgl.NID] = part.node_attributes[dgl.NID]
    return converted


def _expected(
    graph: Any, core: Any, sampler: NeighborSampler, seeds: Tensor, batch_size: int
) -> Tensor | None:
    book = graph.get_partition_book()
    own = seeds[book.nid2partid(seeds) == book.partid]
    local = book.nid2localnid(own, book.partid)
    expected = expected_accesses(core, local, sampler, batch_size=batch_size)
    return None if expected is None else expected.reads(core.only_node_type)


def _by_type(graph: Any, part: Any, reads: Tensor) -> dict[str, Tensor]:
    """Values of a part's vertices as values of the graph's vertices, by type."""
    types, ids = graph.get_partition_book().map_to_per_ntype(part.ndata[dgl.NID])
    by_type = {}
    for number, name in enumerate(graph.ntypes):
        of_type = types == number
        by_type[name] = reads.new_zeros(graph.num_nodes(name))
        by_type[name][ids[of_type].long()] = reads[of_type]
    return by_type
