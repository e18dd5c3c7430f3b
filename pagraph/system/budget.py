"""Budgets in bytes: of a cache, of a whole task, and of a file that is read into memory."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Integral, Real

from ..errors import FormatError
from .checks import StrPath
from .memory import held_by_process, host_available, return_freed
from .units import bytes_text, in_mebibytes, in_units

SLOT_BYTES = 4
"""Bytes per vertex of the index table from vertex to cache slot. All fields of a vertex type share
the table."""

# Bytes that files may take in memory. A context variable, because readers are many calls below
# `memory=`, and two threads may import with different limits.
_reading_room: ContextVar[int | None] = ContextVar("reading_room", default=None)
# An eighth of `memory` is reserved for memory that the process already holds. A control group of
# 1.25 `memory` has a quarter on top; this is half of that.
_PROCESS_SHARE = 8

_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("IB", 1024))
}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)")
_RULE = '"auto", bytes (1048576, "500MB", "2GiB") or a share of the rows (0.1, "10%")'


@dataclass(frozen=True)
class Budget:
    """Size limit of a cache: bytes, a share of all rows, or "auto" for what is free later.

    Attributes:
        limit: Bytes, including the index tables; None unless given in bytes.
        share: Share of the bytes of all rows, excluding the index tables; None unless given as a
            share.
        name: Name of the argument, for errors.

    Example:
        >>> Budget.parse("2GiB")
        Budget(2147483648 bytes)
        >>> Budget.parse("10%")
        Budget(0.1 of the rows)
        >>> Budget.parse("auto").is_auto
        True
    """

    limit: int | None = None
    share: float | None = None
    name: str = field(default="cache", compare=False)

    def __post_init__(self) -> None:
        if self.limit is not None and self.share is not None:
            raise ValueError(
                f"a budget must be bytes or a share, got {self.limit} and {self.share}"
            )
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"{self.name} must be at least 0 bytes, got {self.limit}")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"{self.name} must be a share in (0, 1], got {self.share}")

    @classmethod
    def parse(cls, value: object, *, name: str = "cache") -> Budget | None:
        """Parse a budget; None, 0, "0" and "0%" give None, which means no cache.

        Args:
            value: ``"auto"``, bytes as an int or text with a unit (``"500MB"``, ``"2GiB"``), or a
                share of the rows' bytes as a float in (0, 1] or text with a percent sign. So 1 is a
                byte, 1.0 is all rows, and ``"1"`` is refused.
            name: Name of the argument, for errors.

        Raises:
            ValueError: A negative or too large number, NaN, text without a unit, or other text.
            TypeError: Anything else, a bool included.
        """
        if value is None:
            return None
        if isinstance(value, str):
            return cls._parse_text(value, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be {_RULE}, got {value!r}")
        if isinstance(value, Integral):
            return cls(limit=int(value), name=name) if value != 0 else None
        return cls(share=float(value), name=name) if value != 0 else None

    @classmethod
    def _parse_text(cls, text: str, name: str) -> Budget | None:
        stripped = text.strip()
        if stripped.lower() == "auto":
            return cls()
        match = _QUANTITY.fullmatch(stripped)
        unit = match.group(2).upper() if match else ""
        if match is None or (unit and unit != "%" and unit not in _UNITS):
            raise ValueError(f"{name} must be {_RULE}, got {text!r}")
        number = match.group(1)
        if unit == "%":
            return cls.parse(float(number) / 100, name=name)
        if unit:
            nbytes = float(number) * _UNITS[unit]
            if not math.isfinite(nbytes):
                raise ValueError(f"{name} must be a finite number of bytes, got {text!r}")
            return cls.parse(int(nbytes), name=name)
        if float(number):
            raise ValueError(
                f'{name} must have a unit as text ("{number}MiB", "{number}%"), got {text!r}'
            )
        return None

    @property
    def is_auto(self) -> bool:
        """Whether the size is decided later, when the memory of a training step is known."""
        return self.limit is None and self.share is None

    @property
    def pays_tables(self) -> bool:
        """Whether the budget includes the index tables; for a share they come on top."""
        return self.share is None

    def nbytes(self, types: Iterable[tuple[int, int]], *, free: Callable[[], int]) -> int:
        """The budget in bytes.

        Args:
            types: For each vertex type the bytes of a vertex's rows of all fields, and the number
                of vertices.
            free: Returns the bytes that "auto" may take; called only for "auto".
        """
        if self.limit is not None:
            return self.limit
        if self.share is None:
            return max(0, free())
        # 1e-6 keeps 0.29 of 100 rows from becoming 28.
        return sum(math.floor(self.share * n + 1e-6) * width for width, n in types)

    @property
    def text(self) -> str:
        """The budget in words."""
        if self.limit is not None:
            return bytes_text(self.limit)
        return "auto" if self.share is None else f"{self.share:.4g} of the rows"

    def __repr__(self) -> str:
        if self.is_auto:
            return "Budget(auto)"
        if self.share is None:
            return f"Budget({self.limit} bytes)"
        return f"Budget({self.share:.4g} of the rows)"


def curve_budget(value: object) -> int | float | Budget:
    """Parse one budget of a hit-rate curve.

    Returns:
        Rows as an int, a share as a float, or bytes as a ``Budget``.
    """
    problem = (
        "budgets must be rows (1000), shares in [0, 1] (0.1, '10%') or bytes ('2GiB'), got "
        f"{value!r}"
    )
    if isinstance(value, str):
        text = value.strip()
        if text.isdecimal():
            return int(text)
        # "0.1" on a command line is the share 0.1, but Budget.parse takes no text without a unit.
        is_share = re.fullmatch(r"[0-9]*\.[0-9]+", text)
        size = float(text) if is_share else text
        try:
            budget = Budget.parse(size)
        except ValueError:
            raise ValueError(problem) from None
        if budget is None:
            return 0
        if budget.is_auto:  # free memory is not a property of the graph
            raise ValueError(problem)
        return budget if budget.share is None else budget.share
    # True would count as an Integral.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(problem)
    # 1 is one row, 1.0 is all of them.
    if isinstance(value, Integral):
        return int(value)
    share = float(value)
    if math.isnan(share) or not 0 <= share <= 1:
        raise ValueError(problem)
    return share


def memory_budget(value: object, *, name: str = "memory") -> Budget | None:
    """Parse the bytes that a whole task may take; None and "auto" give None.

    Raises:
        ValueError: 0 bytes; or a share, since it would be unclear of what; or as in
            :meth:`Budget.parse`.
        TypeError: As in :meth:`Budget.parse`.

    Example:
        >>> memory_budget("4GiB")
        Budget(4294967296 bytes)
    """
    rule = f'{name} must be bytes (1048576, "500MB", "4GiB") or "auto"'
    try:
        budget = Budget.parse(value, name=name)
    except TypeError:
        raise TypeError(f"{rule}, got {value!r}") from None
    if budget is None and value is not None:
        raise ValueError(f"{rule}, and more than 0, got {value!r}")
    if budget is not None and budget.share is not None:
        raise ValueError(f"{rule}, not a share, got {value!r}")
    return None if budget is None or budget.is_auto else budget


def budget_text(nbytes: int) -> str:
    """Bytes as text that :meth:`Budget.parse` takes, rounded down to two or three digits.

    >>> budget_text(3_400_000_000)
    '3.1GiB'
    """
    size, unit = in_units(nbytes)
    if size >= 100 or unit == "B":
        return f"{math.floor(size)}{unit}"
    return f"{math.floor(size * 10) / 10:g}{unit}"


def rows_that_fit(
    nbytes: int, row_bytes: Sequence[int], num_nodes: int, *, table: bool = True
) -> int:
    """Number of vertices, at most ``num_nodes``, whose rows of all fields fit into ``nbytes``.

    Args:
        nbytes: Bytes to spend.
        row_bytes: Bytes of one row of each field.
        num_nodes: Number of vertices.
        table: Whether ``nbytes`` must also hold the index table.

    Example:
        >>> rows_that_fit(1000, [100, 8], 20)
        8
    """
    width = sum(row_bytes)
    if width <= 0:
        return 0
    left = nbytes - (SLOT_BYTES * num_nodes if table else 0)
    return max(0, min(num_nodes, left // width))


def memory_bytes(memory: object) -> int:
    """``memory`` in bytes; half of the free memory for None and "auto"."""
    budget = memory_budget(memory)
    return host_available() // 2 if budget is None or budget.limit is None else budget.limit


def work_memory(memory: object, needed: int, *, whom: str) -> int:
    """Bytes that a task may allocate on top of what the process holds.

    What the process holds beyond an eighth of ``memory`` is subtracted from it. So a control group
    of 1.25 ``memory`` suffices for both.

    Args:
        memory: Bytes, see :func:`memory_budget`. None and "auto": half of the free memory, at least
            ``needed``.
        needed: Fewest bytes that the task takes.
        whom: What ``needed`` depends on, for the error.

    Raises:
        ValueError: ``memory`` is given and leaves less than ``needed``; the error says how much is
            enough.
    """
    if memory_budget(memory) is None:
        return max(needed, memory_bytes(memory))
    # Memory that the allocator keeps for reuse would count as held by the process.
    return_freed()
    total = memory_bytes(memory)
    process = held_by_process()
    room = total - beyond_share(total, process)
    if room < needed:
        least = in_mebibytes(least_memory(needed, process))
        held = (
            f"{in_mebibytes(process)} that the process holds (one eighth of memory is reserved "
            "for it)"
        )
        raise ValueError(
            f"memory must be at least {least} for {whom} and the {held}; got {bytes_text(total)}"
        )
    return room


@contextlib.contextmanager
def in_memory(memory: object) -> Iterator[None]:
    """Set :func:`reading_room` to ``memory`` inside the block, which reads files into memory."""
    before = _reading_room.set(memory_bytes(memory))
    try:
        yield
    finally:
        _reading_room.reset(before)


def reading_room() -> int:
    """Bytes that a file may take in memory, once unpacked; by default half of what is free."""
    room = _reading_room.get()
    return memory_bytes(None) if room is None else room


def check_fits(path: StrPath, nbytes: int, what: str) -> None:
    """Raise FormatError if a file's content takes more than :func:`reading_room`.

    Args:
        path: The file.
        nbytes: Bytes that its content takes in memory.
        what: What these bytes are, for the error.
    """
    room = reading_room()
    if nbytes > room:
        raise FormatError(
            f"{path} must fit into memory, got {bytes_text(nbytes)} of {what} for "
            f"{bytes_text(room)} (set memory; by default it is half of what is free)"
        )


def beyond_share(total: int, process: int) -> int:
    """Bytes that the process holds beyond an eighth of ``total``, which reduce it."""
    return max(0, process - total // _PROCESS_SHARE)


def least_memory(needed: int, process: int) -> int:
    """The least total that leaves ``needed`` bytes on top of what the process holds."""
    # Solves total - (process - total / 8) = needed, rounded up.
    return max(needed, -(-(needed + process) * _PROCESS_SHARE // (_PROCESS_SHARE + 1)))
