"""Reader of Parquet edge lists: two columns of ids, and columns that become fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import FormatError
from ..system.budget import check_fits
from .edge_rows import SOURCE_WORDS, TARGET_WORDS, Reading
from .edge_text import number_rows
from .edge_typed import TypedColumn, typed_columns
from .numbers import NumberField
from .tables.columns import family, is_integer
from .tables.connection import Connection, quoted
from .tables.parquet import number_value, parquet_table
from .tables.schema import Table
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
        named = [(edges.names[column.place], column) for column in found]
        read = typed_columns(connection, table, named, reading) if named else []
        rows.restart([typed.column for typed in read])
        for place, typed in enumerate(read):
            if typed.sql:
                rows.take_up(place, typed.column, typed.said)
            else:
                rows.leave(place, typed.said)
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
    connection: Connection, edges: _Edges, reading: Reading, read: Sequence[TypedColumn]
) -> None:
    """Add the columns of numbers, and the ids if they are integers."""
    rows = reading.rows
    kept = [place for place in range(len(read)) if rows.is_kept(place)]
    ends = [] if edges.has_words else edges.ends
    chosen = []
    for name in ends:
        number = number_value(name, edges.table.columns[name], NumberField("id"))
        chosen += [number, f"({quoted(name)} IS NULL)::TINYINT"]
    chosen += [read[place].sql for place in kept]
    if not chosen:
        return
    size = os.path.getsize(edges.table.name)
    total = connection.run(f"SELECT count(*) FROM {edges.rows}")[0][0]
    done = 0
    for batch in connection.batches(f"SELECT {', '.join(chosen)} FROM {edges.rows}"):
        for place, name in enumerate(ends):
            gaps = batch[2 * place + 1]
            if gaps.any():
                raise edges.no_value(done + int(gaps.argmax()), name)
        if ends:
            rows.add(batch[0], batch[2])
        for place, numbers in zip(kept, batch[2 * len(ends) :], strict=True):
            rows.add_numbers(place, numbers)
        check_fits(edges.table.name, rows.nbytes, "edges")
        done += len(batch[0])
        if reading.progress is not None:
            reading.progress(size * done // total, size)
