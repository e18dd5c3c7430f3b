"""Reader of Parquet edge lists: two columns of ids, and columns that become fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import FormatError
from ..system.budget import check_fits
from .edge_rows import SOURCE_WORDS, TARGET_WORDS, EdgeColumn, Reading
from .edge_text import number_rows
from .numbers import NumberField
from .tables.choices import Filling
from .tables.columns import Rule, family, graph_unit, is_integer, look_at
from .tables.connection import Connection, quoted
from .tables.parquet import number_value, parquet_table
from .tables.schema import Column, Table
from .tables.text import file_source


@dataclass(frozen=True)
class _Edges:
    """A Parquet file of edges.

    Attributes:
        table: The file as a table.
        names: Its columns, those of the ends first.
    """

    table: Table
    names: Sequence[str]

    @property
    def ends(self) -> Sequence[str]:
        """The columns of sources and destinations."""
        return self.names[:2]

    @property
    def has_words(self) -> bool:
        """Whether ids are words. Both ends are treated alike, so that 7 and "7" are one vertex."""
        return not all(is_integer(self.table.columns[name]) for name in self.ends)

    @property
    def rows(self) -> str:
        """The rows, in SQL."""
        return quoted(self.table.relation)

    def kind(self, column: EdgeColumn) -> str:
        """DuckDB's type of a column."""
        return self.table.columns[self.names[column.place]]

    def no_value(self, row: int, name: str) -> FormatError:
        """The error for a row without a value."""
        return FormatError(
            f"{self.table.name}, row {row + 1} must have a value in column {name!r}, got none"
        )


def read_parquet(reading: Reading, *, relabel: bool) -> None:
    """Read a Parquet file: ids are integers, or words with ``relabel``.

    The ends of the edges are the columns of well-known names ("source", "target"), or else the
    first two.

    Raises:
        FormatError: The Parquet file is damaged, a column is missing or has a wrong type, or a row
            lacks a value.
    """
    rows = reading.rows
    with (
        Connection(reading.room_of_rows, rows.folder) as connection,
        file_source(rows.path) as source,
    ):
        table = parquet_table(connection, rows.path, source)
        edges = _Edges(table, _ends_first(list(table.columns)))
        _check_ids(edges, relabel)
        found = reading.asked.found(rows.path, edges.names, None)
        read = _values(connection, edges, found)
        rows.restart([values.column for values in read])
        for place, values in enumerate(read):
            if not values.sql:
                rows.leave(place)
        if edges.has_words:
            _read_words(connection, edges, reading)
        _read_numbers(connection, edges, reading, read)


def _ends_first(names: list[str]) -> list[str]:
    """The columns, with those of well-known names for ends first, if any."""
    found = [
        [name for name in names if name.lower() in words] for words in (SOURCE_WORDS, TARGET_WORDS)
    ]
    if any(len(of_end) != 1 for of_end in found):
        return names
    ends = [of_end[0] for of_end in found]
    return [*ends, *(name for name in names if name not in ends)]


def _check_ids(edges: _Edges, relabel: bool) -> None:
    path = edges.table.name
    if len(edges.names) < 2:
        raise FormatError(f"{path} must have at least 2 columns, got {len(edges.names)}")
    for name in edges.ends:
        kind = edges.table.columns[name]
        where = f"{path}, column {name!r}"
        if not is_integer(kind) and family(kind) != "text":
            raise FormatError(f"{where} must hold integers or words, got {kind}")
        if not is_integer(kind) and not relabel:
            message = f"{where} must hold integers, got {kind}"
            raise FormatError(f"{message}; relabel=True takes any words as ids")


@dataclass(frozen=True)
class _Values:
    """How a column of the file is read.

    Attributes:
        column: The field that it becomes.
        sql: Its numbers, in SQL; empty if it is left out.
        absent: Whether a row lacks one (0 or 1), in SQL.
    """

    column: EdgeColumn
    sql: str = ""
    absent: str = "0::TINYINT"


def _values(connection: Connection, edges: _Edges, columns: Sequence[EdgeColumn]) -> list[_Values]:
    """How each column is read: numbers directly, others by the rule of typed columns."""
    typed = [c for c in columns if family(edges.kind(c)) not in ("integer", "fraction")]
    known = _typed_values(connection, edges, typed) if typed else {}
    read = []
    for column in columns:
        values = known.get(column.place)
        if values is None:
            name = edges.names[column.place]
            absent = f"({quoted(name)} IS NULL)::TINYINT"
            if column.missing:
                absent = _Values.absent
            sql = number_value(name, edges.kind(column), column.field, column.missing or "0")
            values = _Values(column, sql, absent)
        read.append(values)
    return read


def _typed_values(
    connection: Connection, edges: _Edges, columns: Sequence[EdgeColumn]
) -> dict[int, _Values]:
    """How columns of times, words and booleans are read, by their place."""
    _, looks = look_at(connection, edges.table, [edges.names[c.place] for c in columns])
    unit = graph_unit([look for look in looks if look.family == "time"])
    missing = columns[0].missing  # the same for all
    filling = Filling(float(missing)) if missing else Filling()
    # One rule for all columns: it numbers the enum types that it makes in the connection.
    rule = Rule(connection, unit, filling)
    found = {}
    for column, look in zip(columns, looks, strict=True):
        try:
            made = rule.column(look, is_time=column.field.is_time)
        except ValueError:
            if column.required:
                raise
            made = Column(look.name)
        found[column.place] = _Values(column)
        if made.field and not made.width:
            # Codes and times stay integers, without the search for a dtype.
            kind = bool if made.dtype == "bool" else np.int64
            field = replace(column.field, dtype=np.dtype(kind))
            as_field = replace(column, field=field, note=made.note)
            found[column.place] = _Values(as_field, f"({made.sql})::BIGINT")
        elif column.required:
            raise FormatError(
                f"{edges.table.name}, column {look.name!r} must hold numbers, got {look.kind}"
                + (f": {made.why}" if made.why else "")
            )
    return found


def _read_words(connection: Connection, edges: _Edges, reading: Reading) -> None:
    source, target = (f"{quoted(name)}::VARCHAR" for name in edges.ends)
    connection.run(f"CREATE TABLE rows AS SELECT {source} AS s, {target} AS t FROM {edges.rows}")
    for name, end in zip(edges.ends, "st", strict=True):
        is_missing = f"{end} IS NULL OR {end} = ''"
        ((missing,),) = connection.run(f"SELECT min(rowid) FROM rows WHERE {is_missing}")
        if missing is not None:
            raise edges.no_value(missing, name)
    number_rows(connection, reading)


def _read_numbers(
    connection: Connection, edges: _Edges, reading: Reading, read: Sequence[_Values]
) -> None:
    """Add the columns of numbers, and the ids if they are integers."""
    rows = reading.rows
    kept = [place for place in range(len(read)) if rows.is_kept(place)]
    ends = [] if edges.has_words else edges.ends
    chosen = []
    for name in ends:
        number = number_value(name, edges.table.columns[name], NumberField("id"))
        chosen += [number, f"({quoted(name)} IS NULL)::TINYINT"]
    for place in kept:
        chosen += [read[place].sql, read[place].absent]
    if not chosen:
        return
    size = os.path.getsize(edges.table.name)
    total = connection.run(f"SELECT count(*) FROM {edges.rows}")[0][0]
    done = 0
    for batch in connection.batches(f"SELECT {', '.join(chosen)} FROM {edges.rows}"):
        values = batch[::2]
        absent = batch[1::2]
        for name, gaps in zip(ends, absent, strict=False):
            if gaps.any():
                raise edges.no_value(done + int(gaps.argmax()), name)
        for place, gaps in zip(kept, absent[len(ends) :], strict=True):
            column = read[place].column
            if gaps.any() and column.required:
                raise edges.no_value(done + int(gaps.argmax()), edges.names[column.place])
            if gaps.any():
                rows.leave(place)
        if ends:
            rows.add(values[0], values[1])
        for place, numbers in zip(kept, values[len(ends) :], strict=True):
            rows.add_numbers(place, numbers)
        check_fits(edges.table.name, rows.nbytes, "edges")
        done += len(values[0])
        if reading.progress is not None:
            reading.progress(size * done // total, size)
