"""Rows of DistDGL's tensors: of this machine's part from its memory, of other machines' from a
cache, else from their servers, by DGL."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache.division import Demand, divide
from ..cache.plan import auto_budget
from ..features.feature import output_for
from ..features.store import CachedFeature, FeatureCache, fill_cache, read_counted, slots_for
from ..graph.row_form import Decoding
from ..ranking.policy import Ranking, descending
from ..ranking.presample import AccessCounts
from ..stats.reads import ReadCounters
from ..system.budget import SLOT_BYTES, Budget
from ..system.buffers import BufferPool
from .graphbolt import import_dgl

dgl = import_dgl()

POLICIES = ("auto", "adaptive", "degree")
"""Rankings of other machines' rows. Others need the whole graph, of which a machine has its
part."""

_ENOUGH = 0.5
"""Share of a pass's batches that must have been read to rank by them."""


class DistFeature:
    """Rows of a ``dgl.distributed.DistTensor``, as DGL reads them; a
    :class:`~pagraph.features.feature.Feature`.

    Attributes:
        name: The tensor's, in DGL's servers.
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
        self.device: torch.device = torch.device("cpu")

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        # DGL asks every server once a call, and none where there is nothing to ask.
        rows = self._tensor[ids.long()] if len(ids) else None
        if isinstance(out, Tensor) or rows is None:
            to = output_for(self, len(ids), out)
            return to if rows is None else to.copy_(rows)
        return rows  # type: ignore[no-any-return]

    def are_remote(self, ids: Tensor) -> Tensor:
        """Which of the ids are other machines' rows, bool, shape ``(len(ids),)``."""
        policy = self._tensor.part_policy
        owners = torch.as_tensor(policy.to_partid(ids.long()))
        return owners.ne(policy.part_id)


class RemoteField:
    """A tensor that a loader reads ahead of its loop, by a cache of other machines' rows.

    Attributes:
        type: The vertex or edge type that it has rows of.
        label: Its name in statistics.
        source: Reads its rows by DGL.
        cache: Some of the rows that other machines have. None: none of them.
        cacheable: Whether it will have a cache.
        is_read: Whether a pass reads it ahead now.
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
        """The rows of ``ids``, counted: other machines' rows by the label, those of this machine's
        part apart from them, as no cache is asked for these."""
        begin = time.perf_counter()
        source = self.source
        cache = self.cache
        feature = source if cache is None else CachedFeature(source, cache)
        rows, hits = read_counted(feature, ids, None, None)
        remote = int(source.are_remote(ids).sum()) if len(ids) else 0
        seconds = time.perf_counter() - begin
        counters.record(
            self.label, source.tier, remote, hits, source.row_bytes, self.cacheable, seconds
        )
        counters.record(
            f"{self.label}, own part", "host", len(ids) - remote, None, source.row_bytes, False
        )
        return rows

    def feature(self) -> DistFeature | CachedFeature:
        """The rows as they are read now."""
        return self.source if self.cache is None else CachedFeature(self.source, self.cache)


_known: weakref.WeakSet[RemoteField] = weakref.WeakSet()


def refuse_writes(name: str) -> None:
    """Raise RuntimeError for a tensor of which rows are held that a write would make outdated."""
    for field in list(_known):
        if field.source.name == name and (field.is_read or field.cache is not None):
            what = "caches" if field.cache is not None else "reads ahead"
            raise RuntimeError(
                f"{field.label!r} must not be written while a loader {what} its rows: leave it out "
                "of the sampler's prefetch_... and read it in the loop, or close() the loader in "
                "every process before it is written"
            )


class RemoteCache:
    """Rows of other machines' vertices that are read most, under one budget for all fields.

    First those are cached that most edges of this machine's part come from (the degree, as far as
    it is known here); after a pass by "auto" and "adaptive" those that it read most, which
    ranks the neighbours of other machines' vertices, too.

    Args:
        graph: The ``DistGraph``.
        budget: What rows, and tables where it pays these, may take.
        policy: One of :data:`POLICIES`, else ValueError.
        batches: Batches of a pass.
    """

    def __init__(self, graph: Any, budget: Budget, policy: object, batches: int) -> None:
        if policy not in POLICIES:
            raise ValueError(
                f"cache_policy must be one of {list(POLICIES)} for a DistGraph, of which this "
                f"machine has a part, got {policy!r}"
            )
        self._graph = graph
        self._budget = budget
        self._batches = batches
        self._counts: AccessCounts | None = None
        # The field of each type whose reads are counted: those of the same vertices are read alike.
        self._counted: dict[str, Hashable] = {}
        self._learns = policy != "degree"
        self._filled = False

    def prepare(self, fields: Iterable[RemoteField]) -> None:
        """Fill the cache, or fill it again by what the passes so far have read; call before a
        pass."""
        cached = [field for field in fields if field.cacheable]
        if not cached:
            return
        if not self._filled:
            self._fill(cached, halo_degrees(self._graph))
            self._filled = True
            if self._learns:
                sizes = {field.type: field.source.num_rows for field in cached}
                self._counts = AccessCounts(sizes, 0, most=2**32 - 1)
        elif self._counts is not None and self._counts.batches >= max(1, _ENOUGH * self._batches):
            counts = self._counts
            self._counts = None  # once: a static cache
            self._fill(cached, {t: counts.reads(t) for t in counts.node_types})

    def count(self, field: RemoteField, ids: Tensor) -> None:
        """Count a read for the next filling; called by one thread."""
        counts = self._counts
        if counts is not None and self._counted.setdefault(field.type, field.label) == field.label:
            counts.add_reads(field.type, ids, [len(ids)])

    def batch_done(self) -> None:
        """Count a batch."""
        if self._counts is not None:
            self._counts.batches += 1

    def forget(self, fields: Iterable[RemoteField]) -> None:
        """Give all cached rows up; the next pass chooses and reads them again."""
        for field in fields:
            field.cache = None
        self._filled = False
        self._counts = None
        self._counted.clear()

    def _fill(self, cached: Sequence[RemoteField], reads: Mapping[str, Tensor]) -> None:
        groups: dict[str, list[RemoteField]] = {}
        for field in cached:
            groups.setdefault(field.type, []).append(field)
        widths = {t: sum(f.source.row_bytes for f in group) for t, group in groups.items()}
        sizes = {t: group[0].source.num_rows for t, group in groups.items()}
        room = self._budget.nbytes(
            [(widths[t], sizes[t]) for t in groups],
            free=lambda: auto_budget(torch.device("cpu")),
        )
        rankings = {t: _ranking(group[0].source, reads.get(t)) for t, group in groups.items()}
        table = SLOT_BYTES * self._budget.pays_tables
        counts = divide(
            room,
            [Demand(sizes[t], widths[t], table * sizes[t], rankings[t], order=t) for t in groups],
        )
        for (row_type, group), count in zip(groups.items(), counts, strict=True):
            ids = rankings[row_type].ids[:count].clone()
            slots = slots_for(ids, sizes[row_type])
            for field in group:
                # Rows that were cached before are not read again.
                field.cache = fill_cache(
                    field.feature(),
                    ids,
                    device=torch.device("cpu"),
                    num_nodes=sizes[row_type],
                    slots=slots,
                )


def _ranking(source: DistFeature, reads: Tensor | None) -> Ranking:
    """Other machines' rows that are read at all, those that are read most first."""
    if reads is None:
        return Ranking(torch.empty(0, dtype=torch.int64), torch.empty(0))
    ids = reads.nonzero().squeeze(1)
    if len(ids):
        ids = ids[source.are_remote(ids)]
    order = descending(reads[ids])
    return Ranking(ids[order], reads[ids][order].double())


def halo_degrees(graph: Any) -> dict[str, Tensor]:
    """Edges of this machine's part that come from each vertex of the graph, by vertex type, int64;
    empty where DGL keeps the part in a form of GraphBolt's."""
    part = graph.local_partition
    if not isinstance(part, dgl.DGLGraph):
        return {}
    _, sources, _ = part.adj_tensors("csc")
    counts = torch.bincount(sources, minlength=part.num_nodes())
    types, ids = graph.get_partition_book().map_to_per_ntype(part.ndata[dgl.NID])
    degrees = {}
    for number, name in enumerate(graph.ntypes):
        of_type = types == number
        degrees[name] = torch.zeros(graph.num_nodes(name), dtype=torch.int64)
        degrees[name][ids[of_type].long()] = counts[of_type]
    return degrees
