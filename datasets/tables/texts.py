"""The types of columns of texts, by all of their values: numbers, booleans, times, or words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from ...system.units import printable
from ..numbers import MOST_CHARACTERS, WIDE
from .connection import Connection, quoted, text_literal
from .schema import Table

_GAPS = (
    *("", "na", "n/a", "#n/a", "#na", "#n/a n/a", "<na>", "nan", "-nan", "null", "none"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
)
"""Texts that stand for missing values among numbers, booleans and times, in any case, as in pandas.
Among words they are words, except the empty one: NA is a country."""

_INTEGER = "[+-]?[0-9]+"
_NUMBER = "[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?|inf|infinity)"
_DATE = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_CLOCK = "[T ][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
_ZONE = " ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)"


class _Kind(IntEnum):
    """What a text is."""

    GAP = 0
    INTEGER = 1
    LARGE = 2  # an integer that floats round
    WIDE = 3  # an integer of more than 64 bits
    FRACTION = 4
    BOOLEAN = 5
    DATE = 6
    TIME = 7
    ZONED = 8
    WORD = 9


_INTEGERS = {_Kind.INTEGER, _Kind.LARGE, _Kind.WIDE}
_NUMBERS = _INTEGERS | {_Kind.FRACTION}
_TIMES = {_Kind.DATE, _Kind.TIME, _Kind.ZONED}
_FAMILIES = {"number": _NUMBERS, "time": _TIMES, "boolean": {_Kind.BOOLEAN}}


def is_gap(value: str) -> str:
    """Whether a text stands for a missing value, in SQL of DuckDB and SQLite."""
    listed = ", ".join(map(text_literal, _GAPS))
    return f"lower(trim({value}, ' \t')) in ({listed})"


def typed_texts(connection: Connection, table: Table, names: Sequence[str]) -> Table:
    """A table whose columns of texts have the types of their values; reads all rows once.

    A column fits no type if most of its texts are of one type, but not all: it would be words, most
    of which are numbers.

    Args:
        connection: Has the table.
        table: The table.
        names: The columns to look at; those of other types stay as they are.
    """
    texts = [name for name in names if table.columns[name] == "VARCHAR"]
    if not texts:
        return table
    kinds = ", ".join(f"{_kind(quoted(name))} as k{i}" for i, name in enumerate(texts))
    counts = ", ".join(f"histogram(k{i})" for i in range(len(texts)))
    (found,) = connection.run(
        f"select {counts} from (select {kinds} from {quoted(table.relation)})"
    )
    types = {}
    unfit = dict(table.unfit)
    for name, counted in zip(texts, found, strict=True):
        known = {_Kind(kind): int(count) for kind, count in (counted or {}).items()}
        known.pop(_Kind.GAP, None)
        reason = _misfit(connection, table, name, known)
        if reason:
            unfit[name] = reason
        types[name] = "VARCHAR" if reason else _type(set(known))
    relation = f"{table.relation} typed"
    values = ", ".join(
        f"{_cast(quoted(name), kind)} as {quoted(name)}" for name, kind in types.items()
    )
    connection.run(
        f"create or replace view {quoted(relation)} as "
        f"select * replace ({values}) from {quoted(table.relation)}"
    )
    columns = {**table.columns, **types}
    return replace(table, relation=relation, columns=columns, unfit=unfit)


def _kind(value: str) -> str:
    """The number of a text's :class:`_Kind`, in SQL."""
    word = f"trim({value}, ' \t')"
    number = f"try_cast({word} as bigint)"

    def is_it(pattern: str, kind: str) -> str:
        # The pattern, since DuckDB's own casts take more than they should.
        return (
            f"regexp_full_match({word}, '(?i){pattern}') and try_cast({word} as {kind}) is not null"
        )

    return (
        f"(case when {value} is null or {is_gap(value)} then {_Kind.GAP:d} "
        f"when {number} between {1 - WIDE} and {WIDE - 1} and regexp_full_match({word}, "
        f"'{_INTEGER}') then {_Kind.INTEGER:d} "
        f"when strlen({word}) > {MOST_CHARACTERS} then {_Kind.WORD:d} "
        f"when regexp_full_match({word}, '{_INTEGER}') then "
        f"case when {number} is null then {_Kind.WIDE:d} else {_Kind.LARGE:d} end "
        f"when {is_it(_NUMBER, 'double')} then {_Kind.FRACTION:d} "
        f"when lower({word}) in ('true', 'false') then {_Kind.BOOLEAN:d} "
        f"when {is_it(_DATE, 'date')} then {_Kind.DATE:d} "
        f"when {is_it(_DATE + _CLOCK, 'timestamp')} then {_Kind.TIME:d} "
        f"when {is_it(_DATE + _CLOCK + _ZONE, 'timestamptz')} then {_Kind.ZONED:d} "
        f"else {_Kind.WORD:d} end)"
    )


def _type(kinds: set[_Kind]) -> str:
    """DuckDB's type for texts of these kinds."""
    if not kinds:
        return "VARCHAR"
    if kinds <= _INTEGERS:
        return "BIGINT"
    if kinds <= _NUMBERS:
        return "DOUBLE"
    if kinds == {_Kind.BOOLEAN}:
        return "BOOLEAN"
    if kinds == {_Kind.ZONED}:
        return "TIMESTAMP WITH TIME ZONE"
    if kinds <= _TIMES:
        return "DATE" if kinds == {_Kind.DATE} else "TIMESTAMP"
    return "VARCHAR"


def _cast(value: str, kind: str) -> str:
    """A text as a value of a type, in SQL."""
    if kind == "VARCHAR":
        return f"nullif({value}, '')"
    return f"case when not {is_gap(value)} then trim({value}, ' \t')::{kind} end"


def _misfit(connection: Connection, table: Table, name: str, counts: Mapping[_Kind, int]) -> str:
    """Why no type fits a column of texts; empty if one does."""

    def example(kinds: Collection[_Kind]) -> str:
        listed = ", ".join(f"{kind:d}" for kind in kinds)
        ((word,),) = connection.run(
            f"select {quoted(name)} from {quoted(table.relation)} "
            f"where {_kind(quoted(name))} in ({listed}) limit 1"
        )
        return printable(repr(str(word)[:80]))

    kinds = set(counts)
    if kinds <= _INTEGERS and _Kind.WIDE in kinds:
        return f"an integer has more than 64 bits: {example([_Kind.WIDE])}"
    if kinds <= _NUMBERS and kinds & {_Kind.WIDE, _Kind.LARGE} and _Kind.FRACTION in kinds:
        large = example([_Kind.WIDE, _Kind.LARGE])
        return f"integers of 2**53 and more would be rounded beside its fractions: {large}"
    if kinds <= _TIMES and _Kind.ZONED in kinds and len(kinds) > 1:
        zoned = example([_Kind.ZONED])
        return f"some of its times have a zone ({zoned}), and others none"
    total = sum(counts.values())
    for what, group in _FAMILIES.items():
        fitting = sum(counts.get(kind, 0) for kind in group)
        if total / 2 < fitting < total:
            word = example(kinds - group)
            return f"{word} is no {what}, as {fitting:,} of its {total:,} texts are"
    return ""
