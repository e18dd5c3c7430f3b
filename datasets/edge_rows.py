"""Edges in the file's order while they are read: ends and numbers, and their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import FormatError
from ..graph.fields import FieldNote
from ..system.arrays import Array
from ..system.checks import StrPath
from ..system.progress import Progress
from .arrays import left_behind
from .column_files import Scratch, Store, new_column
from .numbers import NumberColumn, NumberField
from .tables.schema import Column as Said

# Column names of published edge lists, such as SNAP's "FromNodeId", "node_1" and "id1".
SOURCE_WORDS = {"src", "source", "from", "u", "head", "node1", "id1", "node_1", "fromnodeid"}
TARGET_WORDS = {
    "dst",
    "target",
    "to",
    "destination",
    "v",
    "tail",
    "node2",
    "id2",
    "node_2",
    "tonodeid",
}

Column = Array


class NotIntegersError(FormatError):
    """A line does not begin with two integers: the file has words, or is not an edge list."""


@dataclass(frozen=True)
class EdgeColumn:
    """A column of numbers that becomes an edge field.

    Attributes:
        field: The field.
        place: Number of the column, from 0.
        separator: Separator of columns in a file with a header; None: blanks.
        required: Whether it must hold numbers; others are left for later.
        is_named: Whether the file has a header.
        note: Meaning of the numbers, if they are times or codes.
    """

    field: NumberField
    place: int = 2
    separator: str | None = None
    required: bool = True
    is_named: bool = False
    note: FieldNote | None = None

    @property
    def ordinal(self) -> str:
        """The number in words, for errors."""
        return "third" if self.place == 2 else f"{self.place + 1}th"


@dataclass(frozen=True)
class AskedColumns:
    """Which columns of an edge list become fields.

    Attributes:
        fields: Fields that were asked for by name.
        every: Also take all other named columns of numbers.
        skipped: Names of columns to leave out.
        missing: Replacement for missing values; None: none.
        words: The most words of a text column; see :class:`~.tables.columns.Rule`.
        is_strict: Whether ``fields`` must hold numbers; otherwise any values may come later.
    """

    fields: tuple[NumberField, ...] = ()
    every: bool = False
    skipped: tuple[str, ...] = ()
    missing: float | None = None
    words: int | None = None
    is_strict: bool = True

    def found(
        self, path: StrPath, header: Sequence[str] | None, separator: str | None
    ) -> list[EdgeColumn]:
        """The columns of a file, by name; without a header, the third for a single field.

        Args:
            path: The file, for errors.
            header: Names of all columns, those of the ids first.
            separator: Separator of columns.
        """
        if header is None:
            if len(self.fields) > 1 or self.skipped:
                names = ", ".join(repr(field.name) for field in self.fields)
                why = f"{names} are several fields" if len(self.fields) > 1 else "some are skipped"
                raise FormatError(f"{path} must have a line of column names, as {why}")
            return [EdgeColumn(field, required=self._requires(field)) for field in self.fields]
        for name in self.skipped:
            if name not in header[2:]:
                shown = ", ".join(map(repr, header[2:])) or "no further ones"
                raise FormatError(
                    f"{path} must have a column {name!r} to skip after the ids', it has {shown}"
                )
        columns = [
            EdgeColumn(
                field,
                self._place(path, field, header),
                separator,
                self._requires(field),
                is_named=True,
            )
            for field in self.fields
        ]
        if self.every:
            columns += self._all_named(header, separator)
        return columns

    def _requires(self, field: NumberField) -> bool:
        """Whether a column must hold numbers, and cannot be read in another way."""
        return self.is_strict or (field.dtype is not None and self.missing is None)

    def _all_named(self, header: Sequence[str], separator: str | None) -> list[EdgeColumn]:
        """The columns after the ids whose names are valid for fields."""
        columns = []
        for place, name in enumerate(header[2:], 2):
            is_valid = name.isprintable() and header.count(name) == 1
            if not is_valid or name in ("", *self.skipped):
                continue
            field = NumberField(name)
            columns.append(EdgeColumn(field, place, separator, required=False, is_named=True))
        return columns

    def _place(self, path: StrPath, field: NumberField, header: Sequence[str]) -> int:
        further = list(header[2:])
        # "w:int64" means column w as int64, but a file may also have a column of that name.
        if field.dtype is not None and field.text in further:
            raise ValueError(
                f"{field.option} must not be both a column and a column with a dtype, got "
                f"{field.text!r}, which is a "
                f"column of {path}; {field.text + ':float64'!r} is this one as float64"
            )
        if field.column in further:
            return 2 + further.index(field.column)
        shown = ", ".join(map(repr, further)) or "no further ones"
        purpose = "weights" if field.option == "weight" else field.option
        raise FormatError(
            f"{path} must have a column {field.column!r} for the {purpose} after the ids', it has "
            f"{shown}"
        )


class EdgeRows:
    """Growing columns of edges; ids take 32 bits as long as they fit.

    Args:
        path: The file, for errors.
        scratch: For the columns. Default: memory.
        real: Fields are floats, even if all numbers are integers.

    Attributes:
        original_id: The original ids of relabelled vertices, in order, or None.
        bounds: The smallest and the largest id so far.
    """

    def __init__(
        self, path: StrPath, scratch: Scratch | None = None, *, real: bool = False
    ) -> None:
        self.path = path
        self.original_id: Tensor | None = None
        self.bounds = 0, -1
        self._scratch = scratch
        self._real = real
        self._columns: list[EdgeColumn] = []
        self._numbers: list[NumberColumn | None] = []
        self._said: dict[int, Said] = {}
        self._ends = self._new_ends()

    def restart(self, columns: Sequence[EdgeColumn]) -> None:
        """Drop all edges, to read them in another way, with these columns."""
        self.remove()
        self._columns = list(columns)
        self._said = {}
        self.bounds = 0, -1
        self._ends = self._new_ends()
        self._numbers = [self._new_numbers(column) for column in columns]

    def __len__(self) -> int:
        return len(self._ends[0])

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        numbers = [column for column in self._numbers if column is not None]
        return sum(column.nbytes for column in (*self._ends, *numbers))

    @property
    def src(self) -> Column:
        """Sources, in memory."""
        return self._ends[0].read(0, len(self))

    @property
    def dst(self) -> Column:
        """Destinations, in memory."""
        return self._ends[1].read(0, len(self))

    def add(self, src: Column, dst: Column) -> None:
        """Append some edges; :meth:`add_numbers` follows."""
        if len(src):
            low = int(min(src.min(), dst.min()))
            high = int(max(src.max(), dst.max()))
            known = self.bounds if len(self) else (low, high)
            self.bounds = min(low, known[0]), max(high, known[1])
        self._ends[0].append(src)
        self._ends[1].append(dst)

    def add_numbers(self, place: int, values: Column) -> None:
        """Append numbers to a column, by its place among those of :meth:`restart`."""
        numbers = self._numbers[place]
        if numbers is None:
            return
        # NaN in a text is a missing number, unless the column must hold numbers as they are.
        is_open = not self._columns[place].required and place not in self._said
        if is_open and values.dtype.kind == "f" and np.isnan(values).any():
            self.leave(place)
            return
        try:
            numbers.append(values)
        except FormatError:
            if self._columns[place].required:
                raise
            self.leave(place)

    @property
    def left(self) -> list[tuple[int, EdgeColumn]]:
        """The columns that are not only numbers, with their places."""
        return [pair for pair in enumerate(self._columns) if not self.is_kept(pair[0])]

    def take_up(self, place: int, column: EdgeColumn, said: Said) -> None:
        """Read a column that was left in another way; :meth:`add_numbers` follows."""
        self._columns[place] = column
        self._said[place] = said
        self._numbers[place] = self._new_numbers(column)

    def leave(self, place: int, said: Said | None = None) -> None:
        """Leave out a column that is not only numbers, for a reason if it is known."""
        if said is not None:
            self._said[place] = said
        numbers = self._numbers[place]
        if numbers is None:
            return
        numbers.remove()
        self._numbers[place] = None

    def is_kept(self, place: int) -> bool:
        """Whether a column is not left out so far."""
        return self._numbers[place] is not None

    def place(self, count: int, num_nodes: int, ends: Sequence[Iterable[Sequence[Column]]]) -> None:
        """Add ``count`` edges between vertices below ``num_nodes``.

        ``ends`` has the sources, then the targets, as blocks of places and numbers in any order.
        """
        self.bounds = 0, num_nodes - 1
        dtype = np.int32 if num_nodes < 2**31 else np.int64
        for column, found in zip(self._ends, ends, strict=True):
            column.cast(dtype)
            column.place(count, found)

    @property
    def ends(self) -> tuple[Store, Store]:
        """The columns of sources and destinations, flushed, so that any thread may read them."""
        for column in self._ends:
            column.flush()
        return self._ends

    @property
    def folder(self) -> Path | None:
        """Folder for temporary data larger than memory; None: the system's."""
        return None if self._scratch is None else self._scratch.folder

    def fields(self, take: Callable[[NumberColumn], Any]) -> dict[str, Any]:
        """``take`` of the numbers of each field; warns of columns that were left out."""
        for place, column in self.left:
            left_behind(self.path, [column.field.column], self._said_of(place).why)
        return {
            column.field.name: take(numbers)
            for column, numbers in zip(self._columns, self._numbers, strict=True)
            if numbers is not None
        }

    @property
    def described(self) -> tuple[Said, ...]:
        """What became of each column."""
        return tuple(self._said_of(place) for place in range(len(self._columns)))

    def _said_of(self, place: int) -> Said:
        field = self._columns[place].field
        if place in self._said:
            said = self._said[place]
            is_lost = said.field and not self.is_kept(place)
            return replace(said, field="", why="no dtype holds its numbers") if is_lost else said
        if self.is_kept(place):
            return Said(field.column, "number", field.name)
        return Said(field.column, "text", why="it does not hold a number in every row")

    @property
    def notes(self) -> dict[str, FieldNote]:
        """The notes of the fields that have one."""
        notes = {}
        for place, column in enumerate(self._columns):
            if column.note is not None and self.is_kept(place):
                notes[column.field.name] = column.note
        return notes

    def arrays(self) -> dict[str, Column]:
        """The numbers of each field, in memory."""
        return self.fields(lambda numbers: numbers.finish().mapped().numpy())

    def remove(self) -> None:
        """Delete the files, if any."""
        for column in (*self._ends, *self._numbers):
            if column is not None:
                column.remove()

    def _new_numbers(self, column: EdgeColumn) -> NumberColumn:
        return NumberColumn(self.path, column.field, self._scratch, real=self._real)

    def _new_ends(self) -> tuple[Store, Store]:
        return new_column(self._scratch, np.int32), new_column(self._scratch, np.int32)


@dataclass(frozen=True)
class Reading:
    """How an edge list is read.

    Attributes:
        rows: Receives the edges in the file's order, and the words if these are ids.
        header: Whether the first line names the columns; None: if it has no numbers. For words see
            :func:`~pagraph.datasets.edge_lines.words_are_header`.
        asked: Columns that become fields, by name.
        columns: The same by position, regardless of names. Default: those of ``asked``.
        room: Bytes for words; the rest is spilled to disk.
        progress: Called with the bytes read and the file's size.
    """

    rows: EdgeRows
    header: bool | None = None
    asked: AskedColumns = AskedColumns()
    columns: Sequence[EdgeColumn] | None = None
    room: int = 0
    progress: Progress | None = None

    @property
    def path(self) -> StrPath:
        """The file, plain or compressed."""
        return self.rows.path

    @property
    def room_of_rows(self) -> int:
        """Bytes for rows until their edges are sorted.

        Sorting gets ``room``, half of the memory. The rest is for kernels, and for DuckDB's excess
        over its limit while it numbers words.
        """
        return self.room * 5 // 4
