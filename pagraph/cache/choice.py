"""Choice of the rows of each field to cache, under one budget."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..accelerator import StagingRing
from ..features.feature import PlainFeature
from ..features.field import Field, Snapshot
from ..features.narrow import StoredFeature
from ..features.store import FeatureCache, slots_for
from ..ranking.policy import Rank, Ranking, RowType
from ..system.budget import SLOT_BYTES, rows_that_fit
from .division import Demand, divide


class Role(enum.Flag):
    """Which rows of a field a batch reads. A field may have both roles.

    INPUT: rows of the input nodes, or of the edges of all blocks. OUTPUT: rows of the seeds.
    """

    INPUT = enum.auto()
    OUTPUT = enum.auto()


@dataclass(frozen=True, eq=False)
class Candidate:
    """A field that is worth caching.

    ``seen`` has its current values and ``base`` reads them; ``stored`` is the form in the cache.
    """

    field: Field
    type: RowType
    role: Role
    seen: Snapshot
    base: PlainFeature
    stored: StoredFeature

    @property
    def cached_bytes(self) -> int:
        """Bytes of one cached row."""
        return self.stored.row_bytes


Outputs = Callable[[RowType], Tensor | None]
"""Reads per epoch of each row of a type as a seed, shape ``(num_rows,)``; None if unknown."""


@dataclass(frozen=True, eq=False)
class Index:
    """The cached vertices (or edges) of one type, in the same order for all fields.

    Attributes:
        ids: Shape ``(n,)``, int64, most valuable first.
        slots: Table from id to slot.
        scores: Expected reads per epoch of each as an input, shape ``(n,)``, float32. None:
            unknown.
        total: Sum of the scores over all vertices of the type. None: the ranking omits some.
        device_slots: Copy of the table on the accelerator, if rows are cached there.
    """

    ids: Tensor
    slots: Tensor
    scores: Tensor | None = None
    total: float | None = None
    device_slots: Tensor | None = None

    @classmethod
    def of(cls, ranking: Ranking, count: int, num_rows: int) -> Index:
        """The first ``count`` vertices of a ranking."""
        # A copy: a view would keep the whole ranking in memory.
        ids = ranking.ids[:count].to(torch.int64, copy=True)
        table_rows = num_rows if len(ids) else 0
        slots = slots_for(ids, table_rows)
        if ranking.scores is None or not ranking.per_epoch:
            return cls(ids, slots)
        # Reads of rows that the ranking omits are unknown.
        total = float(ranking.scores.sum()) if len(ranking.ids) == num_rows else None
        return cls(ids, slots, ranking.scores[:count].float(), total)

    @property
    def table_bytes(self) -> int:
        """Bytes of the table from id to slot."""
        return self.slots.numel() * self.slots.element_size()

    def cache(self, rows: Tensor) -> FeatureCache:
        """A cache of ``rows``, the first of this order."""
        return FeatureCache(rows, self.slots, self.device_slots)

    def expected(
        self, role: Role, count: int, seeds: Tensor | None
    ) -> tuple[float | None, float | None]:
        """Expected reads per epoch of a field, and of its first ``count`` rows; None: unknown."""
        reads: float | None = 0.0
        hits = 0.0
        if Role.INPUT in role:
            if self.scores is None:
                return None, None
            reads = self.total
            hits = float(self.scores[:count].double().sum())
            if reads is not None:
                hits = min(reads, hits)  # float32 scores may be rounded up
        if Role.OUTPUT in role:
            if seeds is None:
                return None, None
            reads = None if reads is None else reads + float(seeds.sum())
            hits += float(seeds[self.ids[:count]].double().sum())
        return reads, hits


@dataclass(frozen=True, eq=False)
class Choice:
    """The rows to cache: an index for each cached type, and the number of rows by field (>= 1)."""

    indices: Mapping[RowType, Index] = field(default_factory=dict)
    rows: Mapping[Hashable, int] = field(default_factory=dict)

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(index.table_bytes for index in self.indices.values())

    def sent(self, ring: StagingRing, known: Choice) -> Choice:
        """This choice with its tables on an accelerator, uploaded on the current stream.

        Tables that the ``known`` choice already has there are reused.
        """
        indices = {}
        for row_type, index in self.indices.items():
            old = known.indices.get(row_type)
            # Comparing two tables in memory is cheaper than uploading one.
            if old is not None and torch.equal(old.slots, index.slots):
                table = old.device_slots
            else:
                (table,) = ring.upload([index.slots])
            indices[row_type] = replace(index, device_slots=table)
        return Choice(indices, self.rows)


def memoized(rank: Rank) -> Rank:
    """``rank``, called once per type: ranking may take seconds, and several sizes may be tried."""
    # None: `rank` returned nothing for this type.
    known: dict[RowType, Ranking | None] = {}

    def ranked(types: Collection[RowType]) -> Mapping[RowType, Ranking]:
        new = [t for t in types if t not in known]
        if new:
            known.update(dict.fromkeys(new) | dict(rank(new)))
        return {t: ranking for t in types if (ranking := known[t]) is not None}

    return ranked


def choose(
    nbytes: int,
    found: Mapping[Hashable, Candidate],
    *,
    num_rows: Mapping[RowType, int],
    rank: Rank,
    outputs: Outputs,
    pays_tables: bool,
    ranks_all: bool = False,
) -> Choice:
    """Choose the rows to cache.

    If all scores are reads per epoch, fields of one type that are read differently (features and
    labels) get the numbers of rows that save most. Otherwise all fields of a type are cached for
    the same vertices.

    Args:
        nbytes: Bytes to spend.
        found: The fields, by key.
        num_rows: Number of rows of each type.
        rank: Called only for types with a row that fits.
        outputs: Reads of the seeds.
        pays_tables: Whether tables are paid from ``nbytes``.
        ranks_all: ``rank`` omits no row. It is not called if all rows fit.
    """
    # Ranking may take seconds, so first drop types whose narrowest row does not fit.
    widths: dict[RowType, list[int]] = {}
    for candidate in found.values():
        widths.setdefault(candidate.type, []).append(candidate.cached_bytes)
    types = []
    for t, count in num_rows.items():
        narrowest = min(widths.get(t, [0]))
        if rows_that_fit(nbytes, [narrowest], count, table=pays_tables):
            types.append(t)
    wanted = {key: candidate for key, candidate in found.items() if candidate.type in types}
    read_as_output = {c.type for c in wanted.values() if Role.OUTPUT in c.role}
    seeds = {t: outputs(t) for t in types if t in read_as_output}
    if ranks_all and _all_fit(nbytes, widths, num_rows, pays_tables):
        # If everything fits, any order will do.
        rankings = {t: Ranking(torch.arange(num_rows[t], device="cpu")) for t in types}
    else:
        rankings = _rankings(types, wanted, rank, seeds)
    if not rankings:
        return Choice()
    ranked = {key: candidate for key, candidate in wanted.items() if candidate.type in rankings}
    groups = _groups(ranked, rankings)
    demands = [_demand(group, rankings, num_rows, seeds, pays_tables) for group in groups]
    rows: dict[Hashable, int] = {}
    most: dict[RowType, int] = {}
    for group, count in zip(groups, divide(nbytes, demands), strict=True):
        if not count:
            continue
        for key, candidate in group.items():
            rows[key] = count
            most[candidate.type] = max(count, most.get(candidate.type, 0))
    indices = {t: Index.of(rankings[t], most[t], num_rows[t]) for t in num_rows if t in most}
    return Choice(indices, rows)


def _all_fit(
    nbytes: int,
    widths: Mapping[RowType, list[int]],
    num_rows: Mapping[RowType, int],
    pays_tables: bool,
) -> bool:
    """Whether all types are vertex types, and all rows of all fields fit."""
    needed = sum(num_rows[t] * (sum(w) + SLOT_BYTES * pays_tables) for t, w in widths.items())
    return all(isinstance(t, str) for t in widths) and needed <= nbytes


def _rankings(
    types: Collection[RowType],
    wanted: Mapping[Hashable, Candidate],
    rank: Rank,
    seeds: Mapping[RowType, Tensor | None],
) -> dict[RowType, Ranking]:
    """The ranking of each type, with comparable scores.

    Edges that are read only as seeds are ranked by these reads, without ``rank``.
    """
    known: dict[RowType, Ranking] = {}
    inputs = {candidate.type for candidate in wanted.values() if Role.INPUT in candidate.role}
    for t in types:
        reads = seeds.get(t)
        if isinstance(t, tuple) and reads is not None and t not in inputs:
            known[t] = Ranking.of_reads(reads.double())
    asked = [t for t in types if t not in known]
    ranked = rank(asked) if asked else {}
    answered = [t for t in asked if t in ranked]
    rankings = known | {t: ranked[t] for t in answered if len(ranked[t].ids)}
    # Reads of one type are not comparable with scores of another that are only proportional to
    # reads. Then only the order counts.
    if len({ranking.per_epoch for ranking in rankings.values()}) > 1:
        return {
            t: replace(ranking, scores=None, per_epoch=False) for t, ranking in rankings.items()
        }
    return rankings


def _groups(
    candidates: Mapping[Hashable, Candidate], rankings: Mapping[RowType, Ranking]
) -> list[dict[Hashable, Candidate]]:
    """Group the fields that are cached for the same vertices.

    They share a type and, if reads are known, the role and the cost per byte saved.
    """
    groups: dict[Hashable, dict[Hashable, Candidate]] = {}
    for key, candidate in candidates.items():
        kind: Hashable = candidate.type
        if rankings[candidate.type].per_epoch:
            kind = (
                candidate.type,
                candidate.role,
                candidate.cached_bytes / candidate.base.row_bytes,
            )
        groups.setdefault(kind, {})[key] = candidate
    return list(groups.values())


def _demand(
    group: Mapping[Hashable, Candidate],
    rankings: Mapping[RowType, Ranking],
    num_rows: Mapping[RowType, int],
    seeds: Mapping[RowType, Tensor | None],
    pays_tables: bool,
) -> Demand:
    first = next(iter(group.values()))
    ranking = rankings[first.type]
    num = num_rows[first.type]
    # The ranking counts reads as inputs only; add those of the seeds.
    reads = None
    outputs = seeds.get(first.type)
    scores = ranking.scores if ranking.per_epoch else None
    if scores is not None and outputs is not None and Role.OUTPUT in first.role:
        reads = outputs[ranking.ids.long()].double()
        if Role.INPUT in first.role:
            reads = reads + scores
    return Demand(
        num,
        sum(candidate.cached_bytes for candidate in group.values()),
        SLOT_BYTES * num * pays_tables,
        ranking,
        order=first.type,
        reads=reads,
        read_bytes=sum(candidate.base.row_bytes for candidate in group.values()),
    )
