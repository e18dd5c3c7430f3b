"""Numbers of text as fields, in the dtype that holds all of them; and the SQL that parses them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..system.arrays import Array, Float64Array
from ..system.checks import StrPath
from .column_files import Scratch, Store, new_column

Column = Array

_DTYPES = {name: np.dtype(name) for name in ("float32", "float64", "int32", "int64")}
FIELD_BYTES = 32
"""Maximal length of a number in text. Longer ones exceed floats and integers, and a field of
megabytes need not be copied to find out."""
_SIGNS = ("+", "-", b"+", b"-")
WIDE = 2**53
"""From here on, float64 skips integers."""
# Numbers that are checked or converted at once: 8 MiB.
_BLOCK_ROWS = 2**20
_RULE = "an integer of 64 bits, and below 2**53 together with fractions,"
MOST_CHARACTERS = 1000
"""Maximal length of a number in a table: Python parses integers in quadratic time."""
KINDER = ("_", "(", "+-")
"""Signs of texts that only DuckDB accepts as numbers: 1_000, nan(1) and +-1."""

# Kinds of text in :func:`number_columns`.
_INTEGER = 1
FRACTION = 2
"""Kind of a fraction in :func:`number_columns`."""
_OTHER = 3
# An integer beyond 64 bits: a float would round it silently.
_TOO_WIDE = 4


@dataclass(frozen=True)
class NumberField:
    """A field from a column of numbers, and how its text is parsed.

    Attributes:
        name: The field's name.
        dtype: The requested dtype; None: the one that holds all numbers.
        option: The option that names it, for errors. Default: none.
        source: The column's name. Default: the field's.
        is_time: Whether it holds times. Fractions then stay float64, since rounding could reorder
            them.
    """

    name: str
    dtype: np.dtype[Any] | None = None
    option: str = ""
    source: str = ""
    is_time: bool = False

    @classmethod
    def of(cls, option: str, text: str | None) -> NumberField | None:
        """The field of an option "NAME" or "NAME:DTYPE"; None for None."""
        if text is None:
            return None
        name, _, dtype = text.rpartition(":")
        if dtype not in _DTYPES:
            name = text
            dtype = ""
        if not name:
            raise ValueError(f"{option} must be NAME or NAME:DTYPE, got {text!r}")
        if option == "time":  # samplers look for this field, whatever the column's name
            return cls("time", _DTYPES.get(dtype), option, source=name, is_time=True)
        return cls(name, _DTYPES.get(dtype), option)

    @property
    def column(self) -> str:
        """Name of the column."""
        return self.source or self.name

    @property
    def text(self) -> str:
        """The option's text."""
        return self.column if self.dtype is None else f"{self.column}:{self.dtype}"

    def number(self, text: bytes | str) -> int | float:
        """One number: an integer if the text is one, unless the field's dtype is a float."""
        # Python parses 1_000 as a thousand; a file may mean something else.
        if (b"_" if isinstance(text, bytes) else "_") in text:  # type: ignore[operator]
            raise ValueError(text)
        digits = text[1:] if text[:1] in _SIGNS else text
        if digits.isdigit() and not self.is_float:
            return int(text)
        return float(text)

    def of_numbers(self, numbers: Sequence[float]) -> tuple[Column, int]:
        """Numbers as int64 if all are integers, else float64; and a lossy one's place, or -1."""
        if all(type(number) is int for number in numbers):
            place = next(
                (i for i, number in enumerate(numbers) if not -(2**63) <= number < 2**63), -1
            )
            return np.array([] if place >= 0 else numbers, dtype=np.int64), place
        wide = (
            i for i, number in enumerate(numbers) if type(number) is int and abs(number) >= WIDE
        )
        return np.array(numbers, dtype=np.float64), next(wide, -1)

    def not_held(self, where: str, number: Any) -> FormatError:
        """The error for a number that no dtype holds with the others; ``where``: file and line."""
        option = f"; {self.option}={self.name}:float64 rounds it" if self.option else ""
        return FormatError(
            f"{where} must hold {_RULE} in the field {self.name!r}, got {number}{option}"
        )

    @property
    def is_float(self) -> bool:
        """Whether a float dtype was requested."""
        return self.dtype is not None and self.dtype.kind == "f"


class NumberColumn:
    """A column of numbers that arrive in blocks; its final dtype holds all of them.

    Integers become int64. Otherwise it is float32 if that preserves every number (see
    :func:`float32_holds`), else float64. A requested dtype only rounds floats.

    Args:
        path: The file, for errors.
        field: The field.
        scratch: For the numbers. Default: memory.
        real: The numbers are floats, even if all are integers.

    Attributes:
        field: The field.
        width: Numbers per row, for errors.
    """

    def __init__(
        self,
        path: StrPath,
        field: NumberField,
        scratch: Scratch | None = None,
        *,
        real: bool = False,
    ) -> None:
        self.field = field
        self.width = 1
        self._path = path
        dtype = field.dtype or np.dtype(np.float64 if real else np.int64)
        self._store = new_column(scratch, dtype)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._store.nbytes

    def append(self, values: Column) -> None:
        """Append a block of int64 or float64; FormatError if no dtype holds it with the others."""
        if self.field.dtype is not None:
            values = self._as_asked(values, self.field.dtype)
        elif values.dtype.kind == "i" and self._store.dtype.kind == "f":
            self._check_held(values, len(self._store))
        # The first fractions: stored integers become float64, if that holds them.
        elif values.dtype.kind == "f" and self._store.dtype.kind == "i":
            for begin, block in self._blocks():
                self._check_held(block, begin)
            self._store.cast(np.float64)
        self._store.append(values)

    def finish(self) -> Store:
        """The numbers in their final dtype; nothing may be appended afterwards."""
        is_open = self.field.dtype is None and not self.field.is_time
        is_open = is_open and self._store.dtype == np.float64
        if is_open and all(float32_holds(block) for _, block in self._blocks()):
            self._store.cast(np.float32)
        return self._store

    def remove(self) -> None:
        """Drop the numbers."""
        self._store.remove()

    def _blocks(self) -> Any:
        self._store.flush()
        for begin in range(0, len(self._store), _BLOCK_ROWS):
            yield begin, self._store.read(begin, min(begin + _BLOCK_ROWS, len(self._store)))

    def _check_held(self, integers: Column, begin: int) -> None:
        place = first_wide(integers)
        if place >= 0:
            raise self.field.not_held(self.row_of(begin + place), integers[place])

    def _as_asked(self, values: Column, dtype: np.dtype[Any]) -> Column:
        """A block in the requested dtype; FormatError if more than floats' digits are lost."""
        # Overflow gives infinity for float32, and any integer for integers; both are found below.
        with np.errstate(over="ignore", invalid="ignore"):
            asked = values.astype(dtype)
        if dtype.kind == "f":
            lost = np.isinf(asked) & np.isfinite(values)
        elif values.dtype.kind == "i":
            lost = asked != values
        else:
            lost = ~((asked == values) & (np.abs(values) < WIDE))
        if lost.any():
            place = int(np.argmax(lost))
            row = self.row_of(len(self._store) + place)
            raise FormatError(
                f"{row} must hold a number of {dtype} for {self.field.text!r}, got {values[place]}"
            )
        return asked

    def row_of(self, place: int) -> str:
        """The file and the row of a number, for errors."""
        return f"{self._path}, row {place // self.width + 1}"


def first_wide(integers: Column) -> int:
    """The place of the first integer that float64 may not hold exactly, or -1."""
    wide = (integers >= WIDE) | (integers <= -WIDE)
    return int(np.argmax(wide)) if wide.any() else -1


def check_beside(name: str, values: Array, dtype: np.dtype[Any]) -> None:
    """Raise FormatError if the integers of ``name`` are lossy in the common float ``dtype``."""
    if dtype.kind != "f" or values.dtype.kind not in "iu":
        return
    numbers = values.reshape(-1)
    place = first_wide(numbers)
    if place >= 0:
        raise FormatError(
            f"{name} must hold integers below 2**53 together with fractions, got {numbers[place]}"
        )


def float32_holds(values: Float64Array) -> bool:
    """Whether float32 holds every number exactly, or prints it as its decimal of up to 9 digits."""
    from ._numbers import first_unsure

    place = first_unsure(values, 0)
    while place < len(values) and _gives_back(float(values[place])):
        place = first_unsure(values, place + 1)
    return bool(place == len(values))


def _gives_back(value: float) -> bool:
    """The rule for one number. Decimals below 6 digits are 6-digit ones that end in zeros."""
    with np.errstate(over="ignore"):
        held = float(np.float32(value))
    if held == value or math.isnan(value):
        return True
    # In float32, 6 digits always survive, and 9 always tell two numbers apart.
    return any(float(f"{held:.{digits - 1}e}") == value for digits in range(6, 10))


def tensor_of(path: StrPath, field: NumberField, columns: Sequence[Column]) -> Tensor:
    """Columns of int64 and float64, stacked in the dtype that holds all; a single one is 1-D."""
    real = any(values.dtype.kind == "f" for values in columns)
    dtypes = []
    for values in columns:
        found = NumberColumn(path, field, real=real)
        found.append(values)
        dtypes.append(found.finish().dtype)
    cast = [values.astype(np.result_type(*dtypes)) for values in columns]
    return torch.from_numpy(cast[0] if len(cast) == 1 else np.stack(cast, axis=1))


def number_array(path: StrPath, field: NumberField, array: Column) -> Column:
    """An array in the field's requested dtype, or unchanged without one."""
    if field.dtype is None:
        return array
    if array.dtype.kind not in "biuf":
        raise FormatError(f"{path} must hold real numbers for {field.text!r}, got {array.dtype}")
    # uint64 from 2**63 on wraps to negative int64, which is checked below.
    integers = array.dtype.kind != "f" and not field.is_float
    values = array.astype(np.int64 if integers else np.float64)
    if integers and array.dtype.kind == "u" and (values < 0).any():
        raise field.not_held(str(path), int(array.max()))
    found = NumberColumn(path, field)
    found.append(values)
    asked: Column = found.finish().mapped().numpy()
    return asked


# -- SQL that parses text columns; integers stay exact ---------------------------------------------


class NoIntegerError(Exception):
    """Not all numbers are integers of 64 bits."""


def integer_columns(column: str) -> str:
    """An id in text, in SQL: its integer, and whether it is not a 64-bit integer (0 or 1).

    DuckDB's cast is too lenient: it accepts 1.7 as 2, 1e3 as 1000 and 0x10 as 16. Usually the
    integer prints as the id, which is faster to compare than to match a pattern.
    """
    value = f"try_cast({column} AS BIGINT)"
    is_integer = (
        f"CASE WHEN {value}::VARCHAR = {column} THEN 0 "
        f"WHEN {value} IS NOT NULL AND "
        f"regexp_full_match({column}, '[ \t]*[+-]?[0-9]{{1,99}}[ \t]*') THEN 0 ELSE 1 END"
    )
    return f"coalesce({value}, 0), ({is_integer})::TINYINT"


def number_columns(column: str, *, empty_is_nan: bool = False, longest: int = FIELD_BYTES) -> str:
    """A number in text, in SQL: as an integer, as a float, and its kind; see :func:`numbers_of`.

    An empty text is no number or NaN. A text longer than ``longest`` is no number.
    """
    # A point marks fractions, and integers print as their text. So each is cast once, and most
    # columns need no further checks.
    has_point = f"contains({column}, '.')"
    integer = f"CASE WHEN {has_point} THEN NULL ELSE try_cast({column} AS BIGINT) END"
    is_plain = f"({integer})::VARCHAR = {column}"
    real = f"CASE WHEN {is_plain} THEN ({integer})::DOUBLE ELSE try_cast({column} AS DOUBLE) END"
    text = f"trim({column}, ' \t')"
    empty = f"WHEN {column} = '' THEN {FRACTION} " if empty_is_nan else ""
    kinder = " OR ".join(f"contains({column}, '{sign}')" for sign in KINDER)
    kind = (
        f"CASE WHEN {is_plain} THEN {_INTEGER} {empty}"
        f"WHEN ({real}) IS NULL OR strlen({column}) > {longest} AND strlen({text}) > "
        f"{longest} OR {kinder} THEN {_OTHER} "
        f"WHEN {has_point} OR NOT regexp_full_match({text}, '[+-]?[0-9]+') THEN {FRACTION} "
        f"WHEN ({integer}) IS NULL THEN {_TOO_WIDE} ELSE {_INTEGER} END"
    )
    return f"coalesce({integer}, 0), coalesce({real}, 'nan'), ({kind})::TINYINT"


def plain_columns(column: str, *, is_integer: bool) -> str:
    """The same in a :class:`~.tables.text.PlainText`, for a column of integers or of text."""
    if is_integer:
        value = f"coalesce({column}, 0)"
        kind = f"CASE WHEN {column} IS NULL THEN {_OTHER} ELSE {_INTEGER} END"
        return f"{value}, {value}::DOUBLE, ({kind})::TINYINT"
    has_point = f"contains({column}, '.')"
    integer = f"CASE WHEN {has_point} THEN NULL ELSE try_cast({column} AS BIGINT) END"
    real = f"try_cast({column} AS DOUBLE)"
    kind = (
        f"CASE WHEN {real} IS NULL OR strlen({column}) > {FIELD_BYTES} THEN {_OTHER} "
        f"WHEN {has_point} THEN {FRACTION} "
        f"WHEN ({integer}) IS NULL THEN {_TOO_WIDE} ELSE {_INTEGER} END"
    )
    return f"coalesce({integer}, 0), coalesce({real}, 'nan'), ({kind})::TINYINT"


def real_columns(column: str, *, empty_is_nan: bool = False, longest: int = FIELD_BYTES) -> str:
    """The same for fractions: as a float, and whether it is no number (0 or 1).

    Texts must not have a sign of :data:`KINDER`.
    """
    value = f"try_cast({column} AS DOUBLE)"
    wrong = f"{value} IS NULL AND {column} <> ''" if empty_is_nan else f"{value} IS NULL"
    wrong += f" OR strlen({column}) > {longest}"
    return f"coalesce({value}, 'nan'), ({wrong})::TINYINT"


def numbers_of(
    field: NumberField, integers: Array, reals: Array, kinds: Array
) -> tuple[Column, int]:
    """The numbers of :func:`number_columns`: int64 if all are integers, else float64.

    Returns:
        The numbers, and the place of one that is not a number, or that no dtype holds with the
        others, or -1.
    """
    refused = kinds == _OTHER
    if field.is_float:
        return reals, _first(refused)
    refused |= kinds == _TOO_WIDE
    if not (kinds == FRACTION).any():
        return integers, _first(refused)
    is_integer = kinds == _INTEGER
    refused |= is_integer & ((integers >= WIDE) | (integers <= -WIDE))
    # The text "-0" is the integer 0, without a sign.
    return np.where(is_integer & (integers == 0), 0.0, reals), _first(refused)


def _first(places: Array) -> int:
    return int(np.argmax(places)) if places.any() else -1
