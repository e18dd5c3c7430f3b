"""The rule of what a typed column becomes: dtype, unit, words, or why it is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError
from ...system.arrays import Array
from ...system.units import printable
from ..numbers import WIDE, check_beside, float32_holds
from .choices import MOST_WORDS, Filling
from .connection import Connection, quoted, text_literal
from .schema import Column, Table

TIME = "time"
"""The field with the time of a row: one name for all types, since samplers take one."""

# A text column is categorical if its values repeat twice on average. A word of a single row, such
# as a name or an address, tells a model nothing.
_LEAST_REPEATS = 2
# More words would make an embedding larger than most features, and the manifest stores them all.
_MOST_WORDS = 1000
# Longer ones are text, even if they repeat.
_LONGEST_WORD = 200
# If the first rows have too many distinct texts, the rest is not counted.
_LOOK_ROWS = 20_000
# Maximal length of a list; longer ones are probably encoded text, images or sound.
_LONGEST_LIST = 2**16
_INT64 = 2**63 - 1

DTYPES = {
    "BOOLEAN": "bool",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
}
"""DuckDB's numeric types, and NumPy's names for them."""
WIDE_KINDS = ("UBIGINT", "HUGEINT", "UHUGEINT")
"""Types with integers that may exceed int64."""
# Integer dtypes of fields: torch does not compute with unsigned ones above 8 bits.
_INTEGERS = {
    **{kind: name for kind, name in DTYPES.items() if "int" in name},
    "USMALLINT": "int32",
    "UINTEGER": "int64",
    **dict.fromkeys(WIDE_KINDS, "int64"),
}
# Booleans are read as bytes, since Arrow packs them into bits.
_SQL_TYPES = {name: kind for kind, name in DTYPES.items()} | {"bool": "UTINYINT"}
_TEXTS = ("VARCHAR", "UUID")
_UNITS = {"seconds": 1_000_000, "microseconds": 1}
"""Microseconds of each unit; nanoseconds need another function."""


def family(kind: str) -> str:
    """Family of a DuckDB type: integer, fraction, time, bool, text, list or other."""
    if kind.endswith("]"):
        inner = family(list_item(kind))
        return "list" if inner in ("integer", "fraction", "bool") else "other"
    scale = re.fullmatch(r"DECIMAL\(\d+,\s*(\d+)\)", kind)
    if kind in _INTEGERS or (scale and scale[1] == "0"):
        return "integer"
    if kind in ("FLOAT", "DOUBLE") or scale:
        return "fraction"
    if kind == "DATE" or (kind.startswith("TIMESTAMP") and "[" not in kind):
        return "time"
    if kind == "BOOLEAN":
        return "bool"
    return "text" if kind in _TEXTS or kind.startswith("ENUM(") else "other"


def is_integer(kind: str) -> bool:
    """Whether a type is an integer type; decimals are not."""
    return kind in _INTEGERS


def list_item(kind: str) -> str:
    """The type of the items of a list or an array."""
    return kind[: kind.rindex("[")]


@dataclass(frozen=True)
class Look:
    """Findings of a pass over a column.

    Attributes:
        table: The table's name.
        relation: Relation of its rows.
        name: The column.
        kind: DuckDB's type.
        rows: Number of rows.
        missing: Number of rows without a value.
        low: Smallest value, for wide integers and masks; shortest list.
        high: Largest value; longest list.
        unit: For times: the coarsest unit that holds all.
        has_holes: Whether a list has a missing item.
        unfit: Why no field holds its texts; empty: not known yet.
    """

    table: str
    relation: str
    name: str
    kind: str
    rows: int
    missing: int
    low: int = 0
    high: int = 0
    unit: str = ""
    has_holes: bool = False
    unfit: str = ""

    @property
    def family(self) -> str:
        """See :func:`family`."""
        return family(self.kind)

    @property
    def shown(self) -> str:
        """Table and column, for errors."""
        return printable(f"{self.table}.{self.name}")


def look_at(connection: Connection, table: Table, names: Sequence[str]) -> tuple[int, list[Look]]:
    """The number of rows of a table, and findings for its columns, in one pass."""
    parts = ["count(*)"]
    for name in names:
        parts += _measures(quoted(name), name, table.columns[name])
    (found,) = connection.run(f"select {', '.join(parts)} from {quoted(table.relation)}")
    rows = int(found[0])
    looks = []
    for place, name in enumerate(names):
        begin = 1 + place * len(_Measured._fields)
        measured = _Measured(*found[begin : begin + len(_Measured._fields)])
        missing = rows - measured.num_known
        look = Look(table.name, table.relation, name, table.columns[name], rows, missing)
        look = replace(look, unfit=table.unfit.get(name, ""))
        if look.family == "time":
            look = replace(look, unit=_unit_of(look, measured))
        else:
            low = int(measured.low or 0)
            high = int(measured.high or 0)
            look = replace(look, low=low, high=high, has_holes=bool(measured.has_holes))
        looks.append(look)
    return rows, looks


class _Measured(NamedTuple):
    """The aggregates of a column; those that its type does not need are None.

    Attributes:
        num_known: Number of rows with a value.
        low: Smallest value, as text; shortest list. For times: whether seconds hold all.
        high: Largest value; longest list. For times: whether microseconds hold all.
        is_finite: For times: whether none is infinite.
        has_holes: Whether a list has a missing item.
    """

    num_known: int
    low: Any
    high: Any
    is_finite: bool | None
    has_holes: bool | None


def _unit_of(look: Look, measured: _Measured) -> str:
    """The coarsest unit that holds all times of a column."""
    if measured.is_finite is False:
        raise FormatError(f"{look.shown} must hold dates, got an infinite one")
    if measured.low is not False:
        return "seconds"
    return "microseconds" if measured.high in (True, None) else "nanoseconds"


def _measures(value: str, name: str, kind: str) -> Sequence[str]:
    """SQL of the aggregates of a column, in the order of :class:`_Measured`."""
    count = f"count({value})"
    group = family(kind)
    if kind in ("FLOAT", "DOUBLE"):
        count = f"count({number_of(value)})"
    if group == "time":
        whole = f"bool_and(epoch_us({value}) % 1000000 = 0)"
        fine = "true"
        if kind.startswith("TIMESTAMP_NS"):
            whole = f"bool_and(epoch_ns({value}) % 1000000000 = 0)"
            fine = f"bool_and(epoch_ns({value}) % 1000 = 0)"
        # Only finite ones: an infinite date has no number.
        finite = f"isfinite({value})"
        return count, f"{whole} filter ({finite})", fine, f"bool_and({finite})", "null"
    if group == "list":
        items = f"{value}::{list_item(kind)}[]"
        holes = f"bool_or(len({items}) <> list_aggregate({items}, 'count'))"
        return count, f"min(len({items}))", f"max(len({items}))", "null", holes
    if group == "integer" and (kind in WIDE_KINDS or kind.startswith("DECIMAL") or is_mask(name)):
        # As text, for Python's unbounded integers.
        return count, f"min({value})::VARCHAR", f"max({value})::VARCHAR", "null", "null"
    return count, "null", "null", "null", "null"


def number_of(value: str) -> str:
    """A fraction in SQL, where NaN is missing."""
    return f"nullif({value}::DOUBLE, 'nan'::DOUBLE)"


def is_mask(name: str) -> bool:
    """Whether a field of this name with 0 and 1 is boolean."""
    return name.endswith("_mask")


def graph_unit(looks: Sequence[Look]) -> str:
    """The common unit of all times of a graph, since samplers compare them."""
    found = {look.unit for look in looks}
    for unit in ("nanoseconds", "microseconds"):
        if unit in found:
            return unit
    return "seconds"


class _NoFieldError(Exception):
    """A column becomes no field; the message says why."""


_EMPTY = "no row has a value"
# The word for all that are rarer than those that are kept.
_OTHER = "other"


def _apart(word: str, words: Sequence[str]) -> str:
    """A word that is not among ``words``."""
    while word in words:
        word += "_"
    return word


def _check_lengths(words: Sequence[str]) -> None:
    """Raise _NoFieldError if there are no words, or one is too long."""
    if not words:
        raise _NoFieldError(_EMPTY)
    if any(len(word) > _LONGEST_WORD for word in words):
        raise _NoFieldError(f"texts of more than {_LONGEST_WORD} characters")


class Rule:
    """The rule of dtypes, for the columns of one graph.

    Args:
        connection: Has the tables.
        unit: The unit of all times.
        missing: Replacements for missing values.
        words: The most words of a column, of which the rarer ones are one class. Default: a column
            of too many words is left out.
        hint: Advice about missing values, for errors.
    """

    def __init__(
        self,
        connection: Connection,
        unit: str,
        missing: Filling,
        *,
        words: int | None = None,
        hint: str = "missing=-1 fills them",
    ) -> None:
        self._words = words
        self._connection = connection
        self._unit = unit
        self._missing = missing
        self._hint = hint
        self._enums = 0

    def side_by_side(self, field: str, looks: Sequence[Look]) -> Column:
        """The field that columns become together, or why it is left out."""
        if len(looks) == 1:
            return self.column(looks[0], is_time=field == TIME, field=field)
        kinds = {list_item(look.kind) if look.family == "list" else look.kind for look in looks}
        is_mixed = {family(kind) for kind in kinds} == {"integer", "fraction"}
        columns = []
        read = []
        for look in looks:
            if is_mixed and look.family == "integer":
                wide = self.too_wide(look)
                if wide:
                    return Column(field, why=wide)
                look = replace(look, kind="DOUBLE")
            read.append(look)
            column = self.column(look, is_time=False, field=field)
            if not column.field or column.note is not None:
                return Column(field, why=column.why or f"{look.kind} beside other columns")
            columns.append(column)
        dtype = joint_dtype(columns).name
        kind = _SQL_TYPES[dtype]
        width = sum(column.width or 1 for column in columns)
        lists = []
        for look, column in zip(read, columns, strict=True):
            if column.width:
                lists.append(array_value(look.name, dtype, column.width))
            elif look.family == "fraction":
                # Not by a narrower dtype than that of all.
                lists.append(f"[{self._fraction_value(look)}]")
            else:
                lists.append(f"[{column.sql}]")
        flat = " || ".join(f"({value})::{kind}[]" for value in lists)
        gap = " or ".join(column.gap for column in columns if column.gap)
        why = "; ".join(filter(None, (column.why for column in columns)))
        missing = sum(column.missing for column in columns)
        sql = f"({flat})::{kind}[{width}]"
        return Column(
            field, looks[0].kind, field, dtype, sql, width, why=why, missing=missing, gap=gap
        )

    def column(self, look: Look, *, is_time: bool, field: str = "") -> Column:
        """The field that a column becomes, or why it is left out."""
        field = field or (TIME if is_time else look.name)
        column = Column(look.name, look.kind, field, missing=look.missing)
        try:
            if look.unfit:
                raise _NoFieldError(look.unfit)
            if look.kind.strip('"') == "NULL":
                raise _NoFieldError(_EMPTY)
            if look.family == "other":
                raise _NoFieldError(f"no field holds {_short(look.kind)}")
            if look.rows and look.missing == look.rows and not is_time:
                raise _NoFieldError(_EMPTY)
            make = getattr(self, f"_{look.family}")
            made: Column = make(column, look)
            has_number = look.missing and not made.words
            return replace(made, gap=f"{quoted(look.name)} is null") if has_number else made
        except _NoFieldError as reason:
            return replace(column, field="", why=str(reason))

    def _integer(self, column: Column, look: Look) -> Column:
        if max(look.high, -look.low - 1) > _INT64:
            wrong = look.high if look.high > _INT64 else look.low
            raise FormatError(
                f"{look.shown} must hold integers of 64 bits, got {wrong}: leave it out"
            )
        dtype = _INTEGERS.get(look.kind, "int64")
        if column.field in (TIME, "label"):
            dtype = "int64"  # required by losses, and for comparing times
        if is_mask(look.name) and look.low >= 0 and look.high <= 1 and not look.missing:
            return replace(column, dtype="bool", sql=cast_to(quoted(look.name), "bool"))
        filled, why = self._filled(quoted(look.name), look, dtype)
        return replace(column, dtype=dtype, sql=cast_to(filled, dtype), why=why)

    def _bool(self, column: Column, look: Look) -> Column:
        dtype = "int8" if look.missing else "bool"
        number = f"{quoted(look.name)}::TINYINT"
        filled, why = self._filled(number, look, dtype)
        return replace(column, dtype=dtype, sql=cast_to(filled, dtype), why=why)

    def _fraction(self, column: Column, look: Look) -> Column:
        named = self._missing.named_for(look.table, look.name)
        value = self._fraction_value(look)
        dtype = "float32"
        if column.field == TIME:
            dtype = "float64"
            if look.kind == "FLOAT":
                self._check_unrounded(look)
            if look.missing:
                self._filled(value, look, dtype)
        elif look.kind != "FLOAT" and column.field != "feat" and not self._fits(look, value):
            dtype = "float64"
        shown = "NaN" if named is None else f"{named:g}"
        why = f"{look.missing:,} missing ones are {shown}" if look.missing else ""
        return replace(column, dtype=dtype, sql=cast_to(value, dtype), why=why)

    def _fraction_value(self, look: Look) -> str:
        """The fractions of a column in SQL, with missing ones replaced."""
        named = self._missing.named_for(look.table, look.name)
        number = "'nan'" if named is None else repr(float(named))
        return f"coalesce({number_of(quoted(look.name))}, {number}::DOUBLE)"

    def _check_unrounded(self, look: Look) -> None:
        """Refuse times that were rounded before they came here, as float64 would hide that."""
        name = quoted(look.name)
        ((wrong,),) = self._connection.run(
            f"select max({name}) from {quoted(look.relation)} "
            f"where isfinite({name}) and abs({name}) > {2**24}"
        )
        if wrong is not None:
            raise FormatError(
                f"{look.shown} must fit into the 24 bits of FLOAT, which rounds larger times, got "
                f"{wrong}: keep times as integers or DOUBLE from the start"
            )

    def _fits(self, look: Look, value: str) -> bool:
        """Whether float32 preserves all numbers of a column."""
        rows = self._connection.batches(f"select {value} from {quoted(look.relation)}")
        return all(float32_holds(np.ascontiguousarray(block)) for (block,) in rows)

    def _time(self, column: Column, look: Look) -> Column:
        value = quoted(look.name)
        if self._unit == "nanoseconds":
            number = f"epoch_ns({value})"
        else:
            size = _UNITS[self._unit]
            number = f"epoch_us({value})"
            if size > 1:
                number = f"({number} // {size})"
        filled, why = self._filled(number, look, "int64")
        zone = "UTC" if look.kind.endswith("TIME ZONE") else "no zone"
        if look.kind == "DATE":
            zone = ""
        why = ", ".join(filter(None, [zone, why]))
        sql = cast_to(filled, "int64")
        return replace(column, dtype="int64", sql=sql, unit=self._unit, why=why)

    def _text(self, column: Column, look: Look) -> Column:
        if column.field == TIME:
            raise ValueError(
                f"times: {look.shown} must be a column of dates, timestamps or numbers, got "
                f"{_short(look.kind)}"
            )
        words, num_others = self._chosen_words(look)
        self._enums += 1
        kind = quoted(f"pagraph words {self._enums}")
        listed = ", ".join(map(text_literal, words))
        self._connection.run(f"create or replace type {kind} as enum ({listed})")
        value = f"{quoted(look.name)}::VARCHAR"
        code = f"enum_code(try_cast({value} as {kind}))::BIGINT"
        if self._missing.named_for(look.table, look.name) not in (None, -1):
            raise ValueError(
                f"missing must be -1 for the words of {look.shown}, as their codes are"
            )
        notes = []
        if num_others:
            # The last code; the word itself may be among those that it stands for.
            code = f"coalesce({code}, case when {value} is not null then {len(words)} end)"
            words.append(_apart(_OTHER, words))
            notes.append(f"{words[-1]}: {num_others:,} rows of rarer words")
        if look.missing:
            notes.append(f"missing: -1 in {look.missing:,} rows")
        return replace(
            column,
            dtype="int64",
            sql=f"coalesce({code}, -1)",
            words=tuple(words),
            why="; ".join(notes),
        )

    def _chosen_words(self, look: Look) -> tuple[list[str], int]:
        """A column's words in order, and the number of rows with others.

        Raises:
            _NoFieldError: The column is not categorical.
        """
        value = f"{quoted(look.name)}::VARCHAR"
        rows = quoted(look.relation)
        if look.kind.startswith("ENUM("):
            most = MOST_WORDS
            distinct = f"select unnest(enum_range(NULL::{look.kind}))::VARCHAR as word"
        else:
            most = min(_MOST_WORDS, (look.rows - look.missing) // _LEAST_REPEATS)
            distinct = f"select distinct {value} as word from {rows} where {value} is not null"
        if self._words is not None:
            return self._frequent_words(look, distinct)
        few = f"(select {value} as word from {rows} limit {_LOOK_ROWS})"
        if not look.kind.startswith("ENUM("):
            ((count,),) = self._connection.run(f"select count(distinct word) from {few}")
            if count > most:
                raise _NoFieldError("its texts differ from row to row")
        found = self._connection.run(
            f"select word from ({distinct}) order by word limit {most + 1}"
        )
        words = [str(word) for (word,) in found]
        if len(words) > most:
            raise _NoFieldError(
                f"more than {most:,} different texts: words={most} keeps the most frequent"
            )
        _check_lengths(words)
        return words, 0

    def _frequent_words(self, look: Look, distinct: str) -> tuple[list[str], int]:
        """The most frequent words, of those in two rows or more unless all are kept."""
        most = self._words or 0
        value = f"{quoted(look.name)}::VARCHAR"
        every = self._connection.run(f"select word from ({distinct}) limit {most + 1}")
        if len(every) <= most and not self._differs(look, len(every)):
            words = sorted(str(word) for (word,) in every)
            _check_lengths(words)
            return words, 0
        counted = (
            f"select {value} as word, count(*) as n from {quoted(look.relation)} "
            f"where {value} is not null group by word having n >= {_LEAST_REPEATS}"
        )
        found = self._connection.run(f"{counted} order by n desc, word limit {most}")
        if not found:
            raise _NoFieldError("its texts differ from row to row")
        words = sorted(str(word) for word, _ in found)
        _check_lengths(words)
        return words, look.rows - look.missing - sum(int(count) for _, count in found)

    def _differs(self, look: Look, num_words: int) -> bool:
        """Whether a column of texts has too few repetitions."""
        is_declared = look.kind.startswith("ENUM(")
        return not is_declared and num_words * _LEAST_REPEATS > look.rows - look.missing

    def _list(self, column: Column, look: Look) -> Column:
        if look.missing:
            raise _NoFieldError(f"{look.missing:,} rows have no list")
        if look.low != look.high:
            raise _NoFieldError(f"its lists have {look.low:,} to {look.high:,} items")
        if look.has_holes:
            raise _NoFieldError("its lists have missing items")
        if look.high > _LONGEST_LIST or (look.rows and not look.high):
            raise _NoFieldError(f"its lists have {look.high:,} items")
        item = list_item(look.kind)
        dtype = "float64"
        if family(item) == "bool":
            dtype = "bool"
        elif family(item) == "integer":
            dtype = _INTEGERS.get(item, "int64")
        elif item == "FLOAT" or column.field == "feat":
            dtype = "float32"
        else:
            flat = f"unnest({quoted(look.name)}::DOUBLE[])"
            dtype = "float32" if self._fits(look, flat) else "float64"
        width = max(look.high, 1)
        return replace(column, dtype=dtype, sql=array_value(look.name, dtype, width), width=width)

    def _filled(self, value: str, look: Look, dtype: str) -> tuple[str, str]:
        """SQL with missing values replaced, and a remark; FormatError without a replacement."""
        if not look.missing:
            return value, ""
        number = self._missing.number(look.table, look.name)
        if number is None:
            others = f" and {look.missing - 1:,} more" if look.missing > 1 else ""
            raise FormatError(
                f"{look.shown} must have a value in every row, as {_short(look.kind)} has no NaN; "
                f"row {self.first_missing(look)}{others} has none: {self._hint}"
            )
        if dtype.startswith("float"):
            return f"coalesce({value}, {float(number)!r}::DOUBLE)", ""
        limits = np.iinfo(dtype)
        if not float(number).is_integer() or not limits.min <= number <= limits.max:
            raise ValueError(f"missing must be a number of {dtype} for {look.shown}, got {number}")
        why = f"{look.missing:,} missing ones are {int(number)}"
        return f"coalesce({value}, {int(number)})", why

    def too_wide(self, look: Look) -> str:
        """Why integers of a column cannot be floats; empty if they can."""
        value = f"abs({quoted(look.name)}::HUGEINT)"
        ((most,),) = self._connection.run(f"select max({value}) from {quoted(look.relation)}")
        if most is None or int(most) < WIDE:
            return ""
        return f"integers of 2**53 and more would be rounded beside fractions, got {most}"

    def first_missing(self, look: Look, *, nan: bool = True) -> int | None:
        """The first row without a value, from 1; None if there is none, also of NaN if ``nan``."""
        value = quoted(look.name)
        if nan and look.family == "fraction":
            value = number_of(value)
        rows = f"select row_number() over () as n, {value} is null as gap"
        ((row,),) = self._connection.run(
            f"select min(n) from ({rows} from {quoted(look.relation)}) where gap"
        )
        return None if row is None else int(row)


def array_value(name: str, dtype: str, width: int) -> str:
    """The lists of a column as arrays of a dtype, in SQL."""
    kind = _SQL_TYPES[dtype]
    # Through a list: arrays of booleans do not cast to arrays of integers.
    return f"{quoted(name)}::{kind}[]::{kind}[{width}]"


def joint_dtype(columns: Sequence[Column]) -> np.dtype[Any]:
    """The dtype that holds the numbers of all columns."""
    return np.result_type(*(column.dtype for column in columns))


def side_by_side(
    connection: Connection, owner: str, relation: str, columns: Sequence[Column]
) -> Iterator[Array]:
    """Yield columns as one flattened row-major matrix, in blocks of rows.

    Raises:
        FormatError: Integers are too wide for the other columns' floats; ``owner`` has the columns.
    """
    dtype = joint_dtype(columns)
    # Columns of empty lists have no values, and do not cast to arrays.
    read = [column for column in columns if column.sql]
    query = f"select {', '.join(column.sql for column in read)} from {quoted(relation)}"
    for batch in connection.batches(query) if read else ():
        found = []
        for column, numbers in zip(read, batch, strict=True):
            rows = numbers.view(column.dtype).reshape(-1, column.width or 1)
            check_beside(f"{owner}, column {column.name!r}", rows, dtype)
            found.append(rows)
        yield np.concatenate(found, axis=1, dtype=dtype).reshape(-1)


def cast_to(value: str, dtype: str) -> str:
    """An SQL value, cast to the type that is read as a dtype."""
    return f"({value})::{_SQL_TYPES[dtype]}"


def _short(kind: Any) -> str:
    """A type, shortened for errors: an ENUM lists all its words."""
    return kind if len(kind) <= 60 else f"{kind[:57]}..."
