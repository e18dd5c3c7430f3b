"""CachePlan: what a cache holds and what that is expected to save; one line for logs, a table for people."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .budget import in_units

__all__ = ["CachePlan", "CachePlans", "FieldPlan", "size_text"]


@dataclass(frozen=True)
class FieldPlan:
    """The part of one field.

    Attributes:
        key: The field.
        rows: Vertices (or edges) whose rows are cached.
        nbytes: Bytes of these rows in the cache.
        tier: Where its other rows are read from.
        row_bytes: Bytes that a read of one row moves.
        expected_reads: Rows that are expected to be read in an epoch, by all processes that share the seeds. None
            where that is not known: the policy's scores are not reads an epoch.
        expected_hits: How many of these are cached ones.
        complete: Whether all rows are cached.
    """

    key: Hashable
    rows: int
    nbytes: int
    tier: str
    row_bytes: int = 0
    expected_reads: float | None = None
    expected_hits: float | None = None
    complete: bool = False

    @property
    def expected_hit_rate(self) -> float | None:
        """Expected reads of cached rows / expected reads of all rows; None where they are not known."""
        return 1.0 if self.complete else _rate(self.expected_hits, self.expected_reads)

    @property
    def expected_bytes_saved(self) -> float | None:
        """Bytes an epoch that are expected not to be read from ``tier``; None where that is not known."""
        return None if self.expected_hits is None else self.expected_hits * self.row_bytes

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.rows} rows, {size_text(self.nbytes)}, others on {self.tier}"


@dataclass(frozen=True)
class CachePlan:
    """What a cache holds of the vertices, or edges, of one type. ``str()`` is a table with one line a field.

    Attributes:
        device: Where the rows are.
        num_nodes: Number of vertices (or edges).
        budget_bytes: What it could take, together with those of the other types.
        table_bytes: Bytes of the table from vertex to place.
        fields: One part per cached field.
        node_type: The vertex type; None where there is only one. An edge type for rows of edges.
    """

    device: torch.device
    num_nodes: int
    budget_bytes: int
    table_bytes: int
    fields: tuple[FieldPlan, ...]
    node_type: str | tuple[str, str, str] | None = None

    def __iter__(self) -> Iterator[FieldPlan]:
        return iter(self.fields)

    @property
    def rows(self) -> int:
        """Vertices of which at least one field is cached."""
        return max((f.rows for f in self.fields), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and the table."""
        return self.table_bytes + sum(f.nbytes for f in self.fields)

    @property
    def expected_hit_rate(self) -> float | None:
        """Of all rows of the cached fields that are expected to be read, the cached ones; None: not known."""
        if self.fields and all(f.complete for f in self.fields):
            return 1.0
        return _rate(_sum(f.expected_hits for f in self.fields), _sum(f.expected_reads for f in self.fields))

    @property
    def expected_bytes_saved(self) -> float | None:
        """Bytes an epoch that are expected to be saved by all fields; None where one is not known, or none cached."""
        return _sum(f.expected_bytes_saved for f in self.fields)

    def __repr__(self) -> str:
        parts = "; ".join(map(repr, self.fields)) or "no field"
        what = "vertices" if self.node_type is None else f"{self.node_type!r} vertices"
        if isinstance(self.node_type, tuple):
            what = f"{'-'.join(self.node_type)!r} edges"
        return (
            f"CachePlan({self.rows} of {self.num_nodes} {what} on {self.device}, "
            f"{size_text(self.nbytes)} of {size_text(self.budget_bytes)}; {parts})"
        )

    def __str__(self) -> str:
        return _table([self])


class CachePlans(list[CachePlan]):
    """What a cache holds of each type; ``str()`` is one table with all fields, and what they take together."""

    def __str__(self) -> str:
        return _table(self)


_HEAD = ("field", "rows", "of all", "bytes", "hit rate", "saved an epoch", "others on")


def _table(plans: Sequence[CachePlan]) -> str:
    """Fields, their rows and what they save; under them the tables and the total. Expected numbers are called so."""
    if not plans:
        return "cache: no field"
    budget, device = plans[0].budget_bytes, plans[0].device
    used = sum(plan.nbytes for plan in plans)
    title = f"cache on {device}: {size_text(used)} of {size_text(budget)}"
    if not any(plan.fields for plan in plans):
        return f"{title}; no field"
    lines = [_HEAD, *(_line(part, plan.num_nodes) for plan in plans for part in plan)]
    lines.append(("tables", "", "", size_text(sum(plan.table_bytes for plan in plans)), "", "", ""))
    parts = [part for plan in plans for part in plan]
    rate = _rate(_sum(part.expected_hits for part in parts), _sum(part.expected_reads for part in parts))
    saved = _sum(part.expected_bytes_saved for part in parts)
    lines.append(("total", "", "", size_text(used), _percent(rate), _known(saved), ""))
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    text = ["  ".join(_aligned(line, widths)).rstrip() for line in lines]
    note = "" if rate is None and saved is None else "; hit rates and bytes saved are expectations"
    return "\n".join([title + note, *text])


def _line(part: FieldPlan, num_nodes: int) -> tuple[str, ...]:
    return (
        str(part.key),
        str(part.rows),
        _percent(part.rows / num_nodes if num_nodes else None),
        size_text(part.nbytes),
        _percent(part.expected_hit_rate),
        _known(part.expected_bytes_saved),
        part.tier,
    )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    last = len(line) - 1
    for i, (text, width) in enumerate(zip(line, widths, strict=True)):
        yield text.ljust(width) if i in (0, last) else text.rjust(width)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if there is nothing to add, or anything is not known."""
    total: float | None = None
    for value in values:
        if value is None:
            return None
        total = (total or 0.0) + value
    return total


def _rate(hits: float | None, reads: float | None) -> float | None:
    if hits is None or reads is None:
        return None
    return hits / reads if reads else 0.0


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"


def _known(nbytes: float | None) -> str:
    return "?" if nbytes is None else size_text(nbytes)


def size_text(nbytes: float) -> str:
    """Bytes for people.

    >>> size_text(3 << 19)
    '1.5 MiB'
    """
    size, unit = in_units(nbytes)
    return f"{size:.4g} {unit}"
