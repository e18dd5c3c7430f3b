"""Row numbers of a table by key, which turn foreign keys into vertices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...system.arrays import Array
from ..column_files import Store
from .connection import Connection, quoted
from .keys import KeyColumn, Matched, as_key
from .schema import End, VertexTable

NONE = -1
"""For a row without a reference."""
LOST = -2
"""For a key that no row has."""

# Integer keys within this range, or within 16 times the rows, are looked up in an array of 4 bytes
# each. A join takes 30x longer, measured for 10 M rows.
_ANY_RANGE = 2**20
_MOST_SPARSE = 16
_BLOCK_ROWS = 2**20


@dataclass(frozen=True)
class Kinds:
    """DuckDB's types of the columns of all tables."""

    by_relation: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, connection: Connection, relations: set[str]) -> Kinds:
        """Query the types."""
        return cls({relation: connection.columns(relation) for relation in relations})

    def key(self, relation: str, names: tuple[str, ...]) -> list[KeyColumn]:
        """Columns of a relation as those of a key."""
        return [KeyColumn(name, self.by_relation[relation][name]) for name in names]


class RowNumbers:
    """The vertices of a table by the columns to which other tables refer.

    Args:
        connection: Has the tables.
        vertex: The table, with unique keys.
        to: The referenced columns.
        kinds: Types of the columns.
        room: Bytes for a table of numbers.
        store: Makes a column, for numbers that come out of order.
    """

    def __init__(
        self,
        connection: Connection,
        vertex: VertexTable,
        to: tuple[str, ...],
        kinds: Kinds,
        room: int,
        store: Callable[[str], Store],
    ) -> None:
        self._connection = connection
        self._vertex = vertex
        self._columns = kinds.key(vertex.relation, to)
        self._kinds = kinds
        self._store = store
        self._low = 0
        self._numbers: Array | None = self._by_value(room)

    def _by_value(self, room: int) -> Array | None:
        """Row numbers by key, if keys are dense integers."""
        if len(self._columns) != 1 or not self._columns[0].is_number:
            return None
        value = as_key(self._columns[0])
        rows = quoted(self._vertex.relation)
        ((low, high),) = self._connection.run(f"select min({value}), max({value}) from {rows}")
        if low is None:
            return np.empty(0, dtype=np.int32)
        size = int(high) - int(low) + 1
        dtype = np.dtype(np.int32 if self._vertex.rows < 2**31 else np.int64)
        most = max(_ANY_RANGE, _MOST_SPARSE * self._vertex.rows)
        if size > most or size * dtype.itemsize > room or abs(int(low)) >= 2**62:
            return None
        self._low = int(low)
        numbers = np.full(size, LOST, dtype=dtype)
        first = 0
        for (keys,) in self._connection.batches(
            f"select {value}::BIGINT from {rows} where {value} is not null"
        ):
            numbers[keys - self._low] = np.arange(first, first + len(keys), dtype=dtype)
            first += len(keys)
        return numbers

    def of(self, relation: str, end: End) -> Iterator[Array]:
        """Numbers of the vertices to which a relation's rows refer, in order, in blocks."""
        columns = self._kinds.key(relation, end.columns)
        if self._numbers is not None and columns[0].is_number:
            yield from self._looked_up(relation, columns[0], self._numbers)
        else:
            yield from self._joined(relation, columns)

    def _looked_up(self, relation: str, column: KeyColumn, numbers: Array) -> Iterator[Array]:
        key = as_key(column)
        # Integers beyond 64 bits are not keys of this table.
        value = f"coalesce(try_cast({key} as BIGINT), {-(2**63)})"
        ((gaps,),) = self._connection.run(f"select count(*) - count({key}) from {quoted(relation)}")
        gap = f", ({key} is null)::UTINYINT" if gaps else ""
        for keys, *gap_of in self._connection.batches(
            f"select {value}{gap} from {quoted(relation)}"
        ):
            places = keys - self._low
            inside = (keys >= self._low) & (places < len(numbers)) & (places >= 0)
            if inside.all():
                found = numbers[places]
            else:
                found = np.full(len(keys), LOST, dtype=numbers.dtype)
                found[inside] = numbers[places[inside]]
            if gap_of:
                found[gap_of[0].view(bool)] = NONE
            yield found

    def _joined(self, relation: str, columns: list[KeyColumn]) -> Iterator[Array]:
        keys = Matched.of(columns, self._columns)
        gap = " or ".join(f"a.k{i} is null" for i in range(len(columns)))
        row = "row_number() over () - 1 as n"
        ((count,),) = self._connection.run(f"select count(*) from {quoted(relation)}")
        store = self._store("int64")
        # Joined rows come in any order, so each number is written to its row's place.
        joined = self._connection.batches(
            f"select a.n, coalesce(b.n, case when {gap} then {NONE} else {LOST} end)::BIGINT "
            f"from (select {row}, {keys.here} from {quoted(relation)}) as a left join "
            f"(select {row}, {keys.there} from {quoted(self._vertex.relation)}) as b "
            f"on {keys.equal}"
        )
        store.place(count, joined)
        store.flush()
        for begin in range(0, count, _BLOCK_ROWS):
            yield store.read(begin, min(begin + _BLOCK_ROWS, count))
        store.remove()
