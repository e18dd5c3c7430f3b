"""Reads edge lists in Parquet: two columns of ids, and columns of numbers that become fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import FormatError
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.progress import Progress
from .edge_rows import SOURCE_WORDS, TARGET_WORDS, AskedColumns, Column, EdgeColumn, EdgeRows
from .edge_text import number_rows
from .numbers import NumberField
from .tables.connection import Connection, quoted
from .tables.parquet import ParquetColumn, parquet_columns
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
        Connection(folder, room) as connection,
        file_source(path) as source,
    ):
        relation, columns = parquet_columns(connection, path, source)
        table = _Table(path, relation, _ends_first(columns))
        _check_ids(table, relabel)
        found = asked.found(path, [column.name for column in table.columns], None)
        kept = [column for column in found if _holds_numbers(table, column)]
        rows.restart(found)
        for place, column in enumerate(found):
            if column not in kept:
                rows.leave(place)
        if table.has_words:
            _read_words(connection, table, rows, room)
        _read_numbers(connection, table, rows, found, progress)


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


def _holds_numbers(table: _Table, column: EdgeColumn) -> bool:
    found = table.columns[column.place]
    if found.is_number:
        return True
    if column.required:
        raise FormatError(
            f"{table.path}, column {found.name!r} must hold numbers, got {found.type}"
        )
    return False


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
    columns: Sequence[EdgeColumn],
    progress: Progress | None,
) -> None:
    """Add the columns of numbers, and the ids where they are integers."""
    kept = [place for place in range(len(columns)) if rows.is_kept(place)]
    chosen = [] if table.has_words else list(table.ends)
    chosen += [table.columns[columns[place].place] for place in kept]
    if not chosen:
        return
    fields = [NumberField("id")] * (len(chosen) - len(kept))
    fields += [columns[place].field for place in kept]
    # Behind each column, whether a row has no value.
    query = ", ".join(
        f"{column.numbers(field)}, ({quoted(column.name)} IS NULL)::TINYINT"
        for column, field in zip(chosen, fields, strict=True)
    )
    size = os.path.getsize(table.path)
    total = connection.run(f"SELECT count(*) FROM {table.relation}")[0][0]
    done = 0
    for batch in connection.batches(f"SELECT {query} FROM {table.relation}"):
        values = batch[::2]
        for place, absent in enumerate(batch[1::2]):
            _check_present(
                table, rows, place - len(chosen) + len(kept), kept, columns, absent, done
            )
        if not table.has_words:
            rows.add(values[0], values[1])
        for place, numbers in zip(kept, values[len(values) - len(kept) :], strict=True):
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
    columns: Sequence[EdgeColumn],
    absent: Column,
    done: int,
) -> None:
    """FormatError where a row has no id (``place`` below 0), or no number that was asked for."""
    if not absent.any():
        return
    if place < 0:
        name = table.ends[2 + place].name
    else:
        column = columns[kept[place]]
        name = table.columns[column.place].name
        if not column.required:
            rows.leave(kept[place])
            return
    raise _no_value(table, done + int(absent.argmax()), name)


def _no_value(table: _Table, row: int, name: str) -> FormatError:
    return FormatError(
        f"{table.path}, row {row + 1} must have a value in column {name!r}, got none"
    )
