"""Reads edge lists in Parquet: two columns of ids, and columns of numbers that become fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import FormatError
from ..graph.fields import FieldNote
from ..system.arrays import Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.progress import Progress
from .edge_rows import SOURCE_WORDS, TARGET_WORDS, AskedColumns, EdgeColumn, EdgeRows
from .edge_text import number_rows
from .numbers import NumberField
from .tables.choices import Filling
from .tables.columns import Rule, graph_unit, look_at
from .tables.connection import Connection, quoted, room_of_rows
from .tables.parquet import ParquetColumn, parquet_columns
from .tables.schema import Column, Table
from .tables.text import file_source


@dataclass(frozen=True)
class _Table:
    """A Parquet file of edges.

    Attributes:
        path: The file, for errors.
        relation: The file for SQL.
        columns: Its columns, those of the ends first.
    """

    path: StrPath
    relation: str
    columns: Sequence[ParquetColumn]

    @property
    def ends(self) -> Sequence[ParquetColumn]:
        """The columns of sources and destinations."""
        return self.columns[:2]

    @property
    def has_words(self) -> bool:
        """Whether ids are words: both ends alike, so that 7 and "7" are one vertex."""
        return not all(column.is_integer for column in self.ends)


def read_parquet(
    path: StrPath,
    rows: EdgeRows,
    *,
    relabel: bool,
    asked: AskedColumns,
    room: int,
    progress: Progress | None = None,
) -> None:
    """Read a Parquet file into ``rows``: ids are integers, or words with ``relabel``.

    The ends of the edges are the columns of well-known names ("source", "target"), or else the
    first two.

    Args:
        path: The file.
        rows: Get the edges in the order of the file's rows.
        relabel: Ids may be words.
        asked: Columns that become fields.
        room: Bytes that words may take.
        progress: Called with the bytes read and the file's size.

    Raises:
        FormatError: It is no whole Parquet file, a column is missing or of another type, or a row
            has no value.
    """
    with (
        rows.folder() as folder,
        Connection(folder, room_of_rows(room)) as connection,
        file_source(path) as source,
    ):
        relation, columns = parquet_columns(connection, path, source)
        table = _Table(path, relation, _ends_first(columns))
        _check_ids(table, relabel)
        found = asked.found(path, [column.name for column in table.columns], None)
        read = _values(connection, table, found)
        rows.restart([values.column for values in read])
        for place, values in enumerate(read):
            if not values.sql:
                rows.leave(place)
        if table.has_words:
            _read_words(connection, table, rows, room)
        _read_numbers(connection, table, rows, read, progress)


def _ends_first(columns: Sequence[ParquetColumn]) -> list[ParquetColumn]:
    """The columns with the two in front that are called as the ends of edges, where there are
    such."""
    found = [
        [column for column in columns if column.name.lower() in words]
        for words in (SOURCE_WORDS, TARGET_WORDS)
    ]
    if any(len(of_end) != 1 for of_end in found):
        return list(columns)
    ends = [of_end[0] for of_end in found]
    return [*ends, *(column for column in columns if column not in ends)]


def _check_ids(table: _Table, relabel: bool) -> None:
    path = table.path
    if len(table.columns) < 2:
        raise FormatError(f"{path} must have at least 2 columns, got {len(table.columns)}")
    for column in table.ends:
        where = f"{path}, column {column.name!r}"
        if not column.is_integer and not column.is_text:
            raise FormatError(f"{where} must hold integers or words, got {column.type}")
        if not column.is_integer and not relabel:
            message = f"{where} must hold integers, got {column.type}"
            raise FormatError(f"{message}; relabel=True takes any words as ids")


@dataclass(frozen=True)
class _Values:
    """How a column of the file is read.

    Attributes:
        column: The field that it becomes.
        sql: Its numbers for SQL; empty where it stays behind.
        absent: Whether a row has none, for SQL: 0 or 1.
    """

    column: EdgeColumn
    sql: str = ""
    absent: str = "0::TINYINT"


def _values(connection: Connection, table: _Table, columns: Sequence[EdgeColumn]) -> list[_Values]:
    """How each column is read: numbers as they are, others by the rule of typed columns."""
    typed = [column for column in columns if not table.columns[column.place].is_number]
    known = _typed_values(connection, table, typed) if typed else {}
    read = []
    for column in columns:
        values = known.get(column.place)
        if values is None:
            of_file = table.columns[column.place]
            absent = f"({quoted(of_file.name)} IS NULL)::TINYINT"
            if column.missing:
                absent = _Values.absent
            sql = of_file.numbers(column.field, column.missing or "0")
            values = _Values(column, sql, absent)
        read.append(values)
    return read


def _typed_values(
    connection: Connection, table: _Table, columns: Sequence[EdgeColumn]
) -> dict[int, _Values]:
    """How columns of times, words and booleans are read, by their place."""
    connection.run(f"CREATE VIEW typed AS SELECT * FROM {table.relation}")
    types = {column.name: column.type for column in table.columns}
    source = Table(str(table.path), "typed", types)
    _, looks = look_at(connection, source, [table.columns[c.place].name for c in columns])
    unit = graph_unit([look for look in looks if look.family == "time"])
    missing = columns[0].missing  # the same for all
    # One for all: it counts the types of words that it makes in the connection.
    rule = Rule(connection, unit, Filling(float(missing)) if missing else Filling())
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
            # What becomes an integer keeps it, and is not looked at as numbers are.
            dtype = np.dtype(bool if made.dtype == "bool" else np.int64)
            note = FieldNote(made.unit, made.words) if made.unit or made.words else None
            field = replace(column.field, dtype=dtype)
            as_field = replace(column, field=field, note=note)
            found[column.place] = _Values(as_field, f"({made.sql})::BIGINT")
        elif column.required:
            raise FormatError(
                f"{table.path}, column {look.name!r} must hold numbers, got {look.kind}"
                + (f": {made.why}" if made.why else "")
            )
    return found


def _read_words(connection: Connection, table: _Table, rows: EdgeRows, room: int) -> None:
    names = [column.name for column in table.ends]
    ends = ", ".join(
        f"{quoted(name)}::VARCHAR AS {end}" for name, end in zip(names, "st", strict=True)
    )
    connection.run(f"CREATE TABLE rows AS SELECT {ends} FROM {table.relation}")
    for name, end in zip(names, "st", strict=True):
        missing = connection.run(f"SELECT min(rowid) FROM rows WHERE {end} IS NULL OR {end} = ''")[
            0
        ][0]
        if missing is not None:
            raise _no_value(table, missing, name)
    number_rows(connection, table.path, rows, room)


def _read_numbers(
    connection: Connection,
    table: _Table,
    rows: EdgeRows,
    read: Sequence[_Values],
    progress: Progress | None,
) -> None:
    """Add the columns of numbers, and the ids where they are integers."""
    kept = [place for place in range(len(read)) if rows.is_kept(place)]
    ends = [] if table.has_words else table.ends
    chosen = []
    for column in ends:
        chosen += [column.numbers(NumberField("id")), f"({quoted(column.name)} IS NULL)::TINYINT"]
    for place in kept:
        chosen += [read[place].sql, read[place].absent]
    if not chosen:
        return
    size = os.path.getsize(table.path)
    total = connection.run(f"SELECT count(*) FROM {table.relation}")[0][0]
    done = 0
    for batch in connection.batches(f"SELECT {', '.join(chosen)} FROM {table.relation}"):
        values = batch[::2]
        for place, absent in enumerate(batch[1::2], -len(ends)):
            _check_present(table, rows, place, kept, read, absent, done)
        if ends:
            rows.add(values[0], values[1])
        for place, numbers in zip(kept, values[len(ends) :], strict=True):
            rows.add_numbers(place, numbers)
        check_fits(table.path, rows.nbytes, "edges")
        done += len(values[0])
        if progress is not None:
            progress(size * done // total, size)


def _check_present(
    table: _Table,
    rows: EdgeRows,
    place: int,
    kept: Sequence[int],
    read: Sequence[_Values],
    absent: Array,
    done: int,
) -> None:
    """FormatError where a row has no id (``place`` below 0), or no number that was asked for."""
    if not absent.any():
        return
    if place < 0:
        name = table.ends[2 + place].name
    else:
        column = read[kept[place]].column
        name = table.columns[column.place].name
        if not column.required:
            rows.leave(kept[place])
            return
    raise _no_value(table, done + int(absent.argmax()), name)


def _no_value(table: _Table, row: int, name: str) -> FormatError:
    return FormatError(
        f"{table.path}, row {row + 1} must have a value in column {name!r}, got none"
    )
