"""SQL that parses numbers in text columns; integers stay exact."""

from __future__ import annotations

import numpy as np

from ...system.arrays import Array
from ..numbers import FIELD_BYTES, WIDE, Column, NumberField

MOST_CHARACTERS = 1000
"""Maximal length of a number in a table: Python parses integers in quadratic time."""

# Kinds of text in :func:`number_columns`.
_INTEGER = 1
FRACTION = 2
"""Kind of a fraction in :func:`number_columns`."""
_OTHER = 3
KINDER = ("_", "(", "+-")
"""Signs of texts that only DuckDB accepts as numbers: 1_000, nan(1) and +-1."""
# An integer beyond 64 bits: a float would round it silently.
_TOO_WIDE = 4


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
    """The same in a :class:`~.text.PlainText`, for a column of integers or of text."""
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
