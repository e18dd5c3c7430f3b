"""Columns of edge lists by their types: numbers with gaps, times, booleans, and words."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import FormatError
from ..system.budget import check_fits
from .edge_lines import field_texts
from .edge_rows import EdgeColumn, Reading
from .edge_text import tidied
from .tables.choices import Filling
from .tables.columns import Look, Rule, graph_unit, look_at
from .tables.connection import Connection, quoted
from .tables.parquet import number_value
from .tables.schema import Column, Table
from .tables.text import OtherLinesError, TextLines, Way, column_ways, piped
from .tables.texts import typed_texts
from .text_blocks import cut, first_line, read_blocks, separator_of

_RELATION = "pagraph columns"


@dataclass(frozen=True)
class TypedColumn:
    """How a column of a table is read.

    Attributes:
        column: The field that it becomes.
        said: What is said of it.
        sql: Its numbers, in SQL; empty if it is left out.
    """

    column: EdgeColumn
    said: Column
    sql: str = ""


def typed_columns(
    connection: Connection, table: Table, named: Sequence[tuple[str, EdgeColumn]], reading: Reading
) -> list[TypedColumn]:
    """How columns of a table are read, by the rule of typed columns.

    Only numbers are by that of text and Parquet: their dtype is found when all are read.

    Args:
        connection: Has the table.
        table: The table.
        named: The name of each column in it, and the column.
        reading: Has the replacement for missing values, and the most words of a column.

    Raises:
        FormatError: A column that must hold numbers holds none, or a row has none.
        ValueError: The replacement is no number of a column's dtype.
    """
    asked = reading.asked
    _, looks = look_at(connection, table, [name for name, _ in named])
    unit = graph_unit([look for look in looks if look.family == "time"])
    # One rule for all columns: it numbers the enum types that it makes in the connection.
    rule = Rule(connection, unit, Filling(asked.missing), words=asked.words)
    found = []
    for (_, column), look in zip(named, looks, strict=True):
        is_asked = column.field in asked.fields
        made = _typed(rule, look, column, asked.missing, is_asked=is_asked)
        if not made.sql and column.required:
            raise FormatError(
                f"{reading.path}, column {look.name!r} must hold numbers, got {look.kind}"
                f": {made.said.why}"
            )
        found.append(made)
    return found


def _typed(
    rule: Rule, look: Look, column: EdgeColumn, missing: float | None, *, is_asked: bool
) -> TypedColumn:
    name = column.field.column
    said = Column(name, look.kind, missing=look.missing)
    if look.rows and look.missing == look.rows:
        return TypedColumn(column, replace(said, why="no row has a value"))
    has_number = look.family in ("integer", "time", "bool") or column.field.is_time
    if look.missing and missing is None and has_number and not column.required:
        rows = "1 row has" if look.missing == 1 else f"{look.missing:,} rows have"
        why = f"{rows} no value: missing=-1 fills them"
        return TypedColumn(column, replace(said, why=look.unfit or why))
    if look.family in ("integer", "fraction") and not look.unfit:
        return _number(rule, look, column, missing, is_asked=is_asked)
    try:
        made = rule.column(look, is_time=column.field.is_time)
    except ValueError as error:
        if column.required:
            raise
        return TypedColumn(column, replace(said, why=str(error)))
    if not made.field or made.width:
        return TypedColumn(column, replace(said, why=made.why or "its rows are lists"))
    if column.field.dtype is not None or column.field.option == "weight":
        return TypedColumn(column, replace(said, why="its values are no numbers"))
    # Codes and times stay integers, without the search for a dtype.
    kind = bool if made.dtype == "bool" else np.int64
    field = replace(column.field, dtype=np.dtype(kind))
    made = replace(made, name=name, field=field.name)
    return TypedColumn(replace(column, field=field, note=made.note), made, f"({made.sql})::BIGINT")


def _number(
    rule: Rule, look: Look, column: EdgeColumn, missing: float | None, *, is_asked: bool
) -> TypedColumn:
    """How a column of numbers is read, in which some may be missing."""
    said = Column(column.field.column, look.kind, column.field.name, missing=look.missing)
    if not look.missing:
        return TypedColumn(column, said, number_value(look.name, look.kind, column.field))
    # NaN is a number, if a file has it.
    row = rule.first_missing(look, nan=False)
    if missing is None and column.required and row is not None:
        raise FormatError(
            f"{look.table}, row {row} must have a value in column {look.name!r}, got none"
        )
    if missing is None and is_asked and not column.required:
        return TypedColumn(column, replace(said, field="", why="some rows have no number"))
    filling = math.nan if missing is None else missing
    if look.family == "integer" and not float(filling).is_integer():
        why = rule.too_wide(look)
        if why:
            return TypedColumn(column, replace(said, field="", why=why))
    shown = "NaN" if math.isnan(filling) else f"{filling:g}"
    said = replace(said, why=f"{look.missing:,} missing ones are {shown}")
    text = str(int(filling)) if float(filling).is_integer() else repr(float(filling))
    return TypedColumn(column, said, number_value(look.name, look.kind, column.field, text))


# -- columns of text -------------------------------------------------------------------------------


def read_typed(reading: Reading) -> list[EdgeColumn]:
    """Read the columns of a text that are not only numbers; returns those that were asked for and
    hold nothing that a field can.

    The edges are known. Most files have no such column, and are not read again.
    """
    rows = reading.rows
    left = rows.left
    if not left or not len(rows):
        return [column for _, column in left if column.field in reading.asked.fields]
    lost = []
    with Connection(reading.room_of_rows, rows.folder) as connection:
        _load(connection, reading, [column for _, column in left])
        names = [f"c{place}" for place in range(len(left))]
        table = Table(str(reading.path), _RELATION, dict.fromkeys(names, "VARCHAR"))
        table = typed_texts(connection, table, names)
        named = list(zip(names, (column for _, column in left), strict=True))
        places = []
        values = []
        for (place, column), typed in zip(
            left, typed_columns(connection, table, named, reading), strict=True
        ):
            if typed.sql:
                is_asked = column.field in reading.asked.fields
                rows.take_up(place, replace(typed.column, required=is_asked), typed.said)
                places.append(place)
                values.append(typed.sql)
                continue
            rows.leave(place, typed.said)
            if column.field in reading.asked.fields:
                lost.append(column)
        query = f"SELECT {', '.join(values)} FROM {quoted(table.relation)}"
        for batch in connection.batches(query) if values else ():
            for place, numbers in zip(places, batch, strict=True):
                rows.add_numbers(place, numbers)
            check_fits(rows.path, rows.nbytes, "edges")
    return lost


def _load(connection: Connection, reading: Reading, columns: Sequence[EdgeColumn]) -> None:
    """Make a relation with a row per edge, of the texts of columns as ``c0``, ``c1``, ..."""
    for way, chosen in _ways(reading, columns):
        values = [f"trim({text}, ' \t') AS c{place}" for place, text in enumerate(chosen)]
        with contextlib.suppress(FormatError, OtherLinesError), way.relation() as relation:
            connection.run(
                f"CREATE OR REPLACE TABLE {quoted(_RELATION)} AS "
                f"SELECT {', '.join(values)} FROM {relation}"
            )
            ((count,),) = connection.run(f"SELECT count(*) FROM {quoted(_RELATION)}")
            # DuckDB may have taken a comment for a row.
            if count == len(reading.rows):
                return
    raise AssertionError("the lines of edges must be read again as they were")


def _ways(reading: Reading, columns: Sequence[EdgeColumn]) -> Iterator[tuple[Way, Sequence[str]]]:
    """The ways to read the lines, with the columns' texts in each; the last one reads all."""
    path = reading.path
    data = next(read_blocks(path)).data
    begin, line = first_line(data)
    separator = separator_of(line)
    is_named = columns[0].is_named
    if is_named:
        width = len(cut(line.decode("utf-8", "replace"), separator))
        chosen = [f"c{column.place}" for column in columns]
        after = begin + len(line)
        for way in column_ways(path, data, after, separator, width, tidy=tidied):
            yield way, chosen
    rewritten = _Rewritten(reading, columns, separator)
    lines = TextLines(",", len(columns) + 1, quoted=True)
    yield Way(lines, piped(path, rewritten)), [f"c{n + 1}" for n in range(len(columns))]


class _Rewritten:
    """Cuts lines one by one, and quotes the columns."""

    def __init__(
        self, reading: Reading, columns: Sequence[EdgeColumn], separator: str | None
    ) -> None:
        self._columns = columns
        self._separator = separator
        self._has_words = reading.rows.original_id is not None
        self._skips_header = columns[0].is_named

    def __call__(self, data: bytes) -> bytes:
        """The rewritten lines of a block."""
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for texts in field_texts(data, self._columns, self._separator, words=self._has_words):
            if self._skips_header:
                self._skips_header = False
                continue
            # A first column, since DuckDB skips lines of one empty column.
            writer.writerow(["", *texts])
        return out.getvalue().encode()
