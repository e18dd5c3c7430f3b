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
        tier: Where its uncached rows are read from.
        row_bytes: Bytes that reading one row moves.
        expected_reads: Expected row reads per epoch, by all processes that share the seeds. None
            if unknown, since the policy's scores are not reads per epoch.
        expected_hits: Expected reads of cached rows.
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
        """Expected reads of cached rows / expected reads of all rows; None if unknown."""
        return 1.0 if self.complete else _rate(self.expected_hits, self.expected_reads)

    @property
    def expected_bytes_saved(self) -> float | None:
        """Expected bytes per epoch that need not be read from ``tier``; None if unknown."""
        return None if self.expected_hits is None else self.expected_hits * self.row_bytes

    def to_dict(self) -> dict[str, float]:
        """Its numbers by name: "rows", "nbytes", and the expected ones that are known."""
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
    """The cached rows of one vertex or edge type. ``str()`` is a table with one line per field.

    Attributes:
        device: Where the rows are.
        num_nodes: Number of vertices (or edges).
        budget_bytes: Bytes that the rows of all types may take.
        table_bytes: Bytes of the table from id to slot.
        fields: One part per cached field.
        node_type: The vertex type; None if there is only one. An edge type for rows of edges.
        reason: Why nothing is cached; empty if something is, of this type or another.
        batches_bytes: Further bytes of the device for recorded batches, in flight and in use; 0
            without.
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
        """Expected hits / expected reads, over the cached fields; None if unknown."""
        if self.fields and all(f.complete for f in self.fields):
            return 1.0
        return _rate(
            _sum(f.expected_hits for f in self.fields), _sum(f.expected_reads for f in self.fields)
        )

    @property
    def expected_bytes_saved(self) -> float | None:
        """Expected bytes saved per epoch by all fields; None if unknown, or nothing is cached."""
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
        """All numbers by flat name, see :meth:`CachePlans.to_dict`."""
        return _numbers([self])

    def _tables(self) -> list[Table]:
        return [_table([self])]


class CachePlans(Tabled, list[CachePlan]):
    """The cached rows of each type. ``str()`` and notebooks show a table of all fields."""

    def to_dict(self) -> dict[str, float]:
        """All numbers by flat name, for TensorBoard or W&B.

        These are "budget_bytes", "table_bytes", "nbytes" (tables included), and if known
        "batches_bytes", "expected_hit_rate" and "expected_bytes_saved". "field/NAME/..." has the
        names of :meth:`FieldPlan.to_dict`.
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
    """Bytes of recorded batches, which each plan counts for all types."""
    return max((plan.batches_bytes for plan in plans), default=0)


def _expected(plans: Sequence[CachePlan]) -> tuple[float | None, float | None]:
    """Expected hit rate and bytes saved per epoch, over all fields; None if unknown."""
    parts = [part for plan in plans for part in plan]
    rate = _rate(
        _sum(part.expected_hits for part in parts), _sum(part.expected_reads for part in parts)
    )
    return rate, _sum(part.expected_bytes_saved for part in parts)


_HEAD = ("field", "rows", "of all", "bytes", "hit rate", "saved an epoch", "others on")


def _table(plans: Sequence[CachePlan]) -> Table:
    """One line per field, then the tables and the total."""
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
        return Table(
            [[f"{title}; nothing is cached{plans[0].reason and ', '}{plans[0].reason}"]], left=(0,)
        )
    lines = [_HEAD, *(_line(part, plan.num_nodes) for plan in plans for part in plan)]
    lines.append(
        ("tables", "", "", bytes_text(sum(plan.table_bytes for plan in plans)), "", "", "")
    )
    rate, saved = _expected(plans)
    lines.append(("total", "", "", bytes_text(used), _percent(rate), _known(saved), ""))
    note = "" if rate is None and saved is None else "; hit rates and bytes saved are estimates"
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
    """The sum; None without values, or if one is unknown."""
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
"""Share of the available host memory that "auto" takes on the CPU.

The other half is for the model, the batches, and the page cache.
"""

_GIB = 1 << 30


def auto_budget(device: torch.device, *, reserve: int | None = None) -> int:
    """Bytes that a cache on ``device`` may take now; 0 if torch cannot tell.

    Call after a full training step.

    Args:
        device: Where the cache will be.
        reserve: Bytes to leave on a CUDA device. Default: :func:`device_reserve`.
    """
    if device.type == "cpu":
        return host_bytes(host_available())
    accelerator = accelerator_for(device)
    return 0 if accelerator is None else accelerator_budget(accelerator, reserve=reserve)


def accelerator_budget(accelerator: Accelerator, *, reserve: int | None = None) -> int:
    """Bytes that a cache on an accelerator may take now, at least 0.

    Call after a full training step. Its peak memory stays free: the model, gradients, optimiser
    state, activations, and batches in flight. ``reserve`` (default: :func:`device_reserve`) stays
    free on top, for larger or more batches, and for fragmentation.
    """
    free, total = accelerator.free_bytes()
    allocated = peak = 0  # only known for CUDA
    if accelerator.device.type == "cuda":
        allocated = torch.cuda.memory_allocated(accelerator.device)
        peak = torch.cuda.max_memory_allocated(accelerator.device)
    reserve = device_reserve(total) if reserve is None else reserve
    return device_bytes(free=free, allocated=allocated, peak=peak, reserve=reserve)


def device_reserve(total: int) -> int:
    """Bytes to leave free on a device: 5 %, at least 1 GiB, but at most a quarter of ``total``."""
    # 5 % for the fragmentation of torch's allocator; a small device still needs room for a batch.
    return max(min(_GIB, total // 4), total // 20)


def device_bytes(*, free: int, allocated: int, peak: int, reserve: int) -> int:
    """Bytes left on a device after the largest step so far.

    Args:
        free: Bytes that can be allocated now, including what torch's allocator has reserved.
        allocated: Bytes in use by tensors now.
        peak: Peak bytes in use by tensors.
        reserve: Bytes to leave free.

    Example:
        >>> device_bytes(free=6000, allocated=1000, peak=2500, reserve=500)
        4000
    """
    return max(0, free - max(0, peak - allocated) - reserve)


def host_bytes(available: int, *, share: float = HOST_SHARE) -> int:
    """The share of ``available`` bytes of host memory that a cache may take; never negative."""
    return max(0, int(available * share))


# A read takes milliseconds. A longer one belongs to a thread that waits for memory itself.
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
    """The budget in bytes, with the tables if it pays for them.

    If so much is not free, warns and returns less, which leaves ``batches_bytes`` and the reserve
    of "auto" free. ``wanted`` has for each type the bytes of a vertex's rows of all fields, and the
    number of vertices.
    """
    free, total = accelerator.free_bytes()
    reserve = device_reserve(total) + batches_bytes
    room = budget.nbytes(wanted, free=lambda: accelerator_budget(accelerator, reserve=reserve))
    if budget.is_auto:
        return room
    tables = SLOT_BYTES * sum(count for _, count in wanted)
    everything = tables + sum(width * count for width, count in wanted)
    most = room if budget.pays_tables else room + tables
    taken = min(everything, most)
    if taken <= free:
        return room
    # A cache of all free bytes would leave no room for batches.
    less = max(0, free - reserve)
    warnings.warn(
        f"the cache needs {bytes_text(taken)} on {accelerator.device}, which has "
        f"{bytes_text(free)} free: {_advice(less)}",
        RuntimeWarning,
        stacklevel=2,
    )
    return less if budget.pays_tables else max(0, less - tables)


def warn_of_memory(device: torch.device, nbytes: int) -> None:
    """Warn that memory ran out while a cache was filled, so it is smaller than planned."""
    warnings.warn(
        f"{device} ran out of memory while the cache was filled: {_advice(nbytes)}",
        RuntimeWarning,
        stacklevel=2,
    )


def wait_until_gone(memory: Sequence[weakref.ref[torch.UntypedStorage]]) -> None:
    """Wait until nothing holds this memory, for at most a second.

    A holder may itself be waiting.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while any(ref() is not None for ref in memory) and time.monotonic() < end:
        time.sleep(0.001)


def _advice(nbytes: int) -> str:
    if not nbytes:
        return 'nothing is cached; set cache="0"'
    return f'it takes {bytes_text(nbytes)}; set cache="{budget_text(nbytes)}" or less'
