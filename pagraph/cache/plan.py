"""Cache plans: rows, bytes and expected hit rates; automatic budgets; room on a device."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..accelerator import Accelerator, accelerator_for
from ..system.budget import SLOT_BYTES, Budget, budget_text
from ..system.memory import host_available
from ..system.tables import Table, Tabled
from ..system.units import bytes_text


@dataclass(frozen=True)
class FieldPlan:
    """The cached rows of one field.

    Attributes:
        key: The field.
        rows: Number of vertices (or edges) whose rows are cached.
        nbytes: Bytes of these rows in the cache.
        tier: Where its other rows are read from.
        row_bytes: Bytes that a read of one row moves.
        expected_reads: Rows that are expected to be read in an epoch, by all processes that share
            the seeds. None where that is not known: the policy's scores are not reads an epoch.
        expected_hits: Those of them that are cached.
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
        """Expected reads of cached rows / expected reads of all rows; None where they are not
        known."""
        return 1.0 if self.complete else _rate(self.expected_hits, self.expected_reads)

    @property
    def expected_bytes_saved(self) -> float | None:
        """Bytes an epoch that are expected not to be read from ``tier``; None where that is not
        known."""
        return None if self.expected_hits is None else self.expected_hits * self.row_bytes

    def to_dict(self) -> dict[str, float]:
        """Its numbers by the names above: "rows", "nbytes", and those that are expected, as far as
        they are known."""
        names = (
            "rows",
            "nbytes",
            "expected_reads",
            "expected_hits",
            "expected_hit_rate",
            "expected_bytes_saved",
        )
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.rows} rows, {bytes_text(self.nbytes)}, others on {self.tier}"


@dataclass(frozen=True)
class CachePlan(Tabled):
    """The cached rows of the vertices, or edges, of one type. ``str()`` is a table with one line a
    field.

    Attributes:
        device: Where the rows are.
        num_nodes: Number of vertices (or edges).
        budget_bytes: Bytes that the rows of all types may take.
        table_bytes: Bytes of the table from vertex to place.
        fields: One part per cached field.
        node_type: The vertex type; None where there is only one. An edge type for rows of edges.
        reason: Why nothing is cached; empty where something is, of this type or another.
        batches_bytes: Bytes of the device that batches of one launch take besides, those on their
            way and the one that is read; 0 where there are none.
    """

    device: torch.device
    num_nodes: int
    budget_bytes: int
    table_bytes: int
    fields: tuple[FieldPlan, ...]
    node_type: str | tuple[str, str, str] | None = None
    reason: str = ""
    batches_bytes: int = 0

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
        """Expected reads of cached rows / expected reads of all rows of the cached fields; None:
        not known."""
        if self.fields and all(f.complete for f in self.fields):
            return 1.0
        return _rate(
            _sum(f.expected_hits for f in self.fields), _sum(f.expected_reads for f in self.fields)
        )

    @property
    def expected_bytes_saved(self) -> float | None:
        """Bytes an epoch that are expected to be saved by all fields; None where one is not known,
        or none cached."""
        return _sum(f.expected_bytes_saved for f in self.fields)

    def __repr__(self) -> str:
        parts = "; ".join(map(repr, self.fields)) or "no field"
        what = "vertices" if self.node_type is None else f"{self.node_type!r} vertices"
        if isinstance(self.node_type, tuple):
            what = f"{'-'.join(self.node_type)!r} edges"
        return (
            f"CachePlan({self.rows} of {self.num_nodes} {what} on {self.device}, "
            f"{bytes_text(self.nbytes)} of {bytes_text(self.budget_bytes)}; {parts})"
        )

    def to_dict(self) -> dict[str, float]:
        """All numbers by flat names, see :meth:`CachePlans.to_dict`."""
        return _numbers([self])

    def _tables(self) -> list[Table]:
        return [_table([self])]


class CachePlans(Tabled, list[CachePlan]):
    """The cached rows of each type; ``str()`` is one table with all fields and their total, as in a
    notebook."""

    def to_dict(self) -> dict[str, float]:
        """All numbers by flat names, for TensorBoard or W&B.

        "budget_bytes", "table_bytes", "nbytes" (tables included), "batches_bytes",
        "expected_hit_rate" and "expected_bytes_saved" as far as they are known, and
        "field/NAME/..." with the names of :meth:`FieldPlan.to_dict`.
        """
        return _numbers(self)

    def _tables(self) -> list[Table]:
        return [_table(self)]


def _numbers(plans: Sequence[CachePlan]) -> dict[str, float]:
    rate, saved = _expected(plans)
    totals = {
        "budget_bytes": max((plan.budget_bytes for plan in plans), default=0),
        "table_bytes": sum(plan.table_bytes for plan in plans),
        "nbytes": sum(plan.nbytes for plan in plans),
        "batches_bytes": _batches_bytes(plans) or None,
        "expected_hit_rate": rate,
        "expected_bytes_saved": saved,
    }
    numbers = {name: value for name, value in totals.items() if value is not None}
    parts = [part for plan in plans for part in plan]
    return numbers | {
        f"field/{part.key}/{name}": n for part in parts for name, n in part.to_dict().items()
    }


def _batches_bytes(plans: Sequence[CachePlan]) -> int:
    """Bytes of batches; they are of all types."""
    return max((plan.batches_bytes for plan in plans), default=0)


def _expected(plans: Sequence[CachePlan]) -> tuple[float | None, float | None]:
    """Hit rate and bytes saved an epoch that are expected of all fields; None where they are not
    known."""
    parts = [part for plan in plans for part in plan]
    rate = _rate(
        _sum(part.expected_hits for part in parts), _sum(part.expected_reads for part in parts)
    )
    return rate, _sum(part.expected_bytes_saved for part in parts)


_HEAD = ("field", "rows", "of all", "bytes", "hit rate", "saved an epoch", "others on")


def _table(plans: Sequence[CachePlan]) -> Table:
    """One line a field, then the tables and the total; expected numbers are named so."""
    if not plans:
        return Table([["cache: no field"]])
    # One budget and one device serve all types.
    budget = plans[0].budget_bytes
    device = plans[0].device
    used = sum(plan.nbytes for plan in plans)
    title = f"cache on {device}: {bytes_text(used)} of {bytes_text(budget)}"
    batches = _batches_bytes(plans)
    if batches:
        title += f", besides {bytes_text(batches)} of batches"
    if not any(plan.fields for plan in plans):
        return Table([[f"{title}; no field{plans[0].reason and ', '}{plans[0].reason}"]], left=(0,))
    lines = [_HEAD, *(_line(part, plan.num_nodes) for plan in plans for part in plan)]
    lines.append(
        ("tables", "", "", bytes_text(sum(plan.table_bytes for plan in plans)), "", "", "")
    )
    rate, saved = _expected(plans)
    lines.append(("total", "", "", bytes_text(used), _percent(rate), _known(saved), ""))
    note = "" if rate is None and saved is None else "; hit rates and bytes saved are expectations"
    # Names to the left, numbers to the right.
    return Table(lines, title + note, left=(0, len(_HEAD) - 1))


def _line(part: FieldPlan, num_nodes: int) -> tuple[str, ...]:
    return (
        str(part.key),
        str(part.rows),
        _percent(part.rows / num_nodes if num_nodes else None),
        bytes_text(part.nbytes),
        _percent(part.expected_hit_rate),
        _known(part.expected_bytes_saved),
        part.tier,
    )


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
    return "?" if nbytes is None else bytes_text(nbytes)


HOST_SHARE = 0.5
"""Share of the available system memory that "auto" takes on a CPU.

The other half is for the model, the batches, and pages of files that the system keeps.
"""

_GIB = 1 << 30


def auto_budget(device: torch.device, *, reserve: int | None = None) -> int:
    """Bytes that a cache on ``device`` may take now; 0 where torch cannot tell. Call after a full
    training step.

    Args:
        device: Where the cache will be.
        reserve: Bytes to leave on a CUDA device. Default: :func:`device_reserve`.
    """
    if device.type == "cpu":
        return host_bytes(host_available())
    accelerator = accelerator_for(device)
    return 0 if accelerator is None else accelerator_budget(accelerator, reserve=reserve)


def accelerator_budget(accelerator: Accelerator, *, reserve: int | None = None) -> int:
    """Bytes, at least 0, that a cache on an accelerator may take now; call after a full training
    step.

    The peak memory of that step stays free, whether it is in use now or not: the model, its
    gradients and the optimiser's state, activations, and the batches that were in flight.
    ``reserve`` (default: :func:`device_reserve`) stays free on top, for larger batches, batches in
    flight that were not there during the first step, and fragments between tensors.
    """
    free, total = accelerator.free_bytes()
    allocated = peak = 0  # other devices than CUDA's do not tell
    if accelerator.device.type == "cuda":
        allocated = torch.cuda.memory_allocated(accelerator.device)
        peak = torch.cuda.max_memory_allocated(accelerator.device)
    reserve = device_reserve(total) if reserve is None else reserve
    return device_bytes(free=free, allocated=allocated, peak=peak, reserve=reserve)


def device_reserve(total: int) -> int:
    """Bytes to leave free on a device of ``total`` bytes: 5 %, at least 1 GiB, but no more than a
    quarter of it."""
    # 5 % are fragments between tensors, as torch's allocator leaves them; a small device still needs
    # room for a batch.
    return max(min(_GIB, total // 4), total // 20)


def device_bytes(*, free: int, allocated: int, peak: int, reserve: int) -> int:
    """Bytes left on a device after the largest step so far.

    Args:
        free: Bytes that could be allocated now, including those that torch's allocator keeps for
            reuse.
        allocated: Bytes in use by tensors now.
        peak: The most bytes in use by tensors at any time.
        reserve: Bytes to leave.

    Example:
        >>> device_bytes(free=6000, allocated=1000, peak=2500, reserve=500)
        4000
    """
    return max(0, free - max(0, peak - allocated) - reserve)


def host_bytes(available: int, *, share: float = HOST_SHARE) -> int:
    """The share of ``available`` bytes of system memory that a cache may take; never negative."""
    return max(0, int(available * share))


# A read takes milliseconds. One that takes longer is of a thread that waits for memory itself.
_PATIENCE_SECONDS = 1.0


def check_budget(budget: Budget, accelerator: Accelerator) -> None:
    """Raise ValueError for a budget of more bytes than an accelerator has."""
    total = accelerator.free_bytes()[1]
    if budget.limit is not None and budget.limit > total:
        raise ValueError(
            f"cache must be at most {total} bytes ({bytes_text(total)}) on {accelerator.device}, "
            f"got {budget.limit}"
        )


def room_for(
    budget: Budget,
    wanted: Sequence[tuple[int, int]],
    accelerator: Accelerator,
    batches_bytes: int = 0,
) -> int:
    """The budget in bytes, with the tables if it pays for them; less, with a warning, where they
    are not free.

    Then the reserve of "auto" stays free, and ``batches_bytes``. ``wanted`` has the bytes of one
    vertex's rows of all fields, and the number of vertices, for each type.
    """
    free, total = accelerator.free_bytes()
    reserve = device_reserve(total) + batches_bytes
    room = budget.nbytes(wanted, free=lambda: accelerator_budget(accelerator, reserve=reserve))
    if budget.is_auto:
        return room
    tables = SLOT_BYTES * sum(count for _, count in wanted)
    everything = tables + sum(width * count for width, count in wanted)
    taken = min(everything, room if budget.pays_tables else room + tables)
    if taken <= free:
        return room
    # With a cache of all that is free the device would be full to the last byte.
    less = max(0, free - reserve)
    warnings.warn(
        f"the cache was to take {bytes_text(taken)} on {accelerator.device}, where "
        f"{bytes_text(free)} are free: "
        f"{_advice(less)}",
        RuntimeWarning,
        stacklevel=2,
    )
    return less if budget.pays_tables else max(0, less - tables)


def warn_of_memory(device: torch.device, nbytes: int) -> None:
    """Warn that a cache is smaller than planned, because memory ran out while it was filled."""
    warnings.warn(
        f"{device} ran out of memory while the cache was filled: {_advice(nbytes)}",
        RuntimeWarning,
        stacklevel=2,
    )


def wait_until_gone(memory: Sequence[weakref.ref[torch.UntypedStorage]]) -> None:
    """Wait until nothing holds this memory, but not for ever.

    Its holder may be a thread that waits, too.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while any(ref() is not None for ref in memory) and time.monotonic() < end:
        time.sleep(0.001)


def _advice(nbytes: int) -> str:
    if not nbytes:
        return 'nothing is cached; set cache="0"'
    return f'it takes {bytes_text(nbytes)}; set cache="{budget_text(nbytes)}" or less'
