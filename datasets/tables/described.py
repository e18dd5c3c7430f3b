"""Reader of tables described by a YAML file, which names their ids and fields, as a heterograph."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import FormatError
from ...graph.graph import CSC, EdgeType, Graph
from ...system.arrays import Array
from ...system.budget import check_fits, reading_room
from ...system.checks import StrPath
from ...system.files import load_yaml, named_file
from ..arrays import array_tensor, bool_mask, has_ending, read_array
from ..manifest import take
from ..numbers import (
    MOST_CHARACTERS,
    WIDE,
    NoIntegerError,
    NumberColumn,
    NumberField,
    number_columns,
    numbers_of,
    tensor_of,
)
from ..paths import TEXTS
from ..text_blocks import cut, read_blocks
from .columns import family
from .connection import Connection, padded_words, quoted
from .parquet import columns_side_by_side, parquet_table
from .schema import Table
from .text import (
    OtherLinesError,
    TableHead,
    TextLines,
    Way,
    column_ways,
    file_source,
    piped,
    unix_lines,
)

_IS_INTEGER = re.compile(r"[ \t]*[+-]?[0-9]+[ \t]*")


def read_tables(path: StrPath) -> Graph:
    """Read tables with any ids as a graph, described by a YAML file in their folder::

        nodes:
          paper:
            file: papers.csv
            id: paper_id
            fields: {feat: [f0, f1, f2], label: field_of_study, year: year}
          author: {file: authors.parquet, id: name, fields: [h_index]}
          venue: {}
        edges:
          author:writes:paper: {file: writes.csv, src: name, dst: paper_id, fields: [position]}
          paper:at:venue: {file: papers.csv, src: paper_id, dst: venue}

    Vertices are numbered in table order, or without a table (``venue``) in the order of first use
    by edges. ``original_id`` keeps the ids, unless they count from 0. A field is a column of
    numbers, a list of columns, a Parquet column of lists, or ``{file: feat.npy}`` with a row per
    row of the table. In text tables, a field gets the dtype that holds all of its numbers, but
    fractions of ``feat`` are float32. 0 and 1 in fields named ``..._mask`` become bool. Tables are
    text with a header (``.csv``, ``.tsv``, ``.txt``, also compressed) or Parquet.

    Raises:
        FormatError: The description or a table is damaged, an id is repeated or in no table, or a
            field is not numeric.
    """
    room = reading_room() // 2
    with Connection(room) as connection:
        return _read(connection, Path(path))


def _read(connection: Connection, file: Path) -> Graph:
    description = load_yaml(file)
    where = str(file)
    nodes = take(description, "nodes", dict, where)
    edges = take(description, "edges", dict, where)
    if not edges:
        raise FormatError(f"{where}: edges must name at least 1 edge type, got none")
    types = {}
    # All vertex tables come first, since edges look up ids in them.
    for number, (ntype, value) in enumerate(nodes.items()):
        table = None
        if value:
            table = _Table(connection, f"nodes{number}", file, value, f"{where}: {ntype}")
        types[_printable(ntype, where)] = _NodeTable(connection, f"ids{number}", table)
    ends = {}
    for number, (name, value) in enumerate(edges.items()):
        etype = _edge_type(name, types, where)
        table = _Table(connection, f"edges{number}", file, value, f"{where}: {name}")
        ends[etype] = (
            types[etype[0]].numbers(table, "src"),
            types[etype[2]].numbers(table, "dst"),
            table.fields(),
        )
    # Only now: types without a table grow with the edges.
    counts = {ntype: table.count for ntype, table in types.items()}
    csc = {}
    for etype, (src, dst, _) in ends.items():
        sizes = counts[etype[0]], counts[etype[2]]
        csc[etype] = CSC.from_coo(src, dst, sizes)
    graph = Graph(csc, counts)
    for ntype, nodes_of in types.items():
        for name, values in nodes_of.fields().items():
            graph.set_field(name, values, node_type=ntype)
    for etype, (_, _, fields) in ends.items():
        for name, values in fields.items():
            graph.set_field(name, values, edge_type=etype)
    return graph


def _printable(name: Any, where: str) -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise FormatError(f"{where}: names must be printable characters, got {name!r}"[:300])
    return name


def _edge_type(name: Any, types: Mapping[str, Any], where: str) -> EdgeType:
    words = _printable(name, where).split(":")
    if len(words) != 3 or words[0] not in types or words[2] not in types:
        raise FormatError(
            f"{where}: edges must be named source:relation:target with types of {list(types)}, got "
            f"{name!r}"
        )
    return words[0], words[1], words[2]


class _NodeTable:
    """The vertices of one type: their ids as words, in order, and their fields.

    Attributes:
        count: Number of vertices.
    """

    def __init__(self, connection: Connection, relation: str, table: _Table | None) -> None:
        self._connection = connection
        self._relation = relation
        self._table = table
        rows = "(SELECT '' AS id, 0::BIGINT AS n WHERE false)"
        if table is not None:
            rows = f"(SELECT {table.words('id')} AS id, rowid AS n FROM {table.relation})"
        connection.run(f"CREATE TABLE {relation} AS FROM {rows}")
        self.count = 0 if table is None else table.rows
        twice = connection.run(
            f"SELECT id FROM {relation} GROUP BY id HAVING count(*) > 1 ORDER BY min(n) LIMIT 1"
        )
        if table is not None and twice:
            raise FormatError(f"{table.file}: ids must be unique, got {twice[0][0]!r} twice")

    def numbers(self, edges: _Table, end: str) -> Array:
        """The vertices at one end of a table's edges; FormatError for ids not in our table."""
        rows = f"(SELECT rowid AS row, {edges.words(end)} AS word FROM {edges.relation})"
        if self._table is None:
            self._add(rows)
        else:
            self._check_known(rows, edges, end, self._table)
        numbers = np.empty(edges.rows, dtype=np.int64)
        check_fits(edges.file, numbers.nbytes, "edges")
        # Joined rows come in any order.
        for places, found in self._connection.batches(
            f"SELECT row, n FROM {rows} JOIN {self._relation} ON id = word"
        ):
            numbers[places] = found
        return numbers

    def _add(self, rows: str) -> None:
        """Number new words in the order of first use."""
        self._connection.run(
            f"INSERT INTO {self._relation} SELECT word, {self.count} - 1 + row_number() OVER "
            f"(ORDER BY first) FROM (SELECT word, min(row) AS first FROM {rows} "
            f"ANTI JOIN {self._relation} ON id = word GROUP BY word)"
        )
        ((self.count,),) = self._connection.run(f"SELECT count(*) FROM {self._relation}")

    def _check_known(self, rows: str, edges: _Table, end: str, table: _Table) -> None:
        unknown = self._connection.run(
            f"SELECT word FROM {rows} ANTI JOIN {self._relation} ON id = word ORDER BY row LIMIT 1"
        )
        if unknown:
            raise FormatError(
                f"{edges.file}: {end} must be an id of {table.file}, got {unknown[0][0]!r}"
            )

    def fields(self) -> dict[str, Tensor]:
        fields = {} if self._table is None else self._table.fields()
        kept = self._original_ids()
        return fields if kept is None else {**fields, "original_id": kept}

    def _original_ids(self) -> Tensor | None:
        """See :func:`~pagraph.datasets.original_ids.id_field`."""
        # Only if they round-trip: "007" and "+7" are words.
        is_plain = "coalesce(try_cast(id AS BIGINT)::VARCHAR, '') = id"
        ((counts_up, are_numbers, longest),) = self._connection.run(
            f"SELECT bool_and(id = n::VARCHAR), bool_and({is_plain}), max(strlen(id)) "
            f"FROM {self._relation}"
        )
        if not self.count or counts_up:
            return None
        if not are_numbers:
            check_fits(self._relation, self.count * longest, "ids")
            query = f"SELECT id FROM {self._relation} ORDER BY n"
            return padded_words(self._connection, query, self.count, longest)
        query = f"SELECT id::BIGINT FROM {self._relation} ORDER BY n"
        return torch.from_numpy(np.concatenate([ids for (ids,) in self._connection.batches(query)]))


class _Table:
    """A table of a description: the file, and its columns of ids and fields."""

    def __init__(
        self, connection: Connection, relation: str, description: Path, value: Any, where: str
    ) -> None:
        self._connection = connection
        self.relation = relation
        self._folder = description.parent
        self._value = value
        self._where = where
        self.file = named_file(self._folder, take(value, "file", str, where), f"{where}: file")
        fields = value.get("fields") or {}
        named = (
            {_printable(name, where): name for name in fields}
            if isinstance(fields, list)
            else fields
        )
        if not isinstance(named, dict):
            raise FormatError(
                f"{where}: fields must be a list of columns, or a mapping from name, got "
                f"{fields!r}"[:300]
            )
        self._fields = {_printable(name, where): source for name, source in named.items()}
        ids = [value[key] for key in ("id", "src", "dst") if key in value]
        columns = [
            c
            for s in self._fields.values()
            if not isinstance(s, dict)
            for c in (s if s and isinstance(s, list) else [s])
        ]
        names = list(dict.fromkeys(_printable(name, where) for name in [*ids, *columns]))
        self._is_parquet = has_ending(self.file, (".parquet",))
        if self._is_parquet:
            kinds = _load_parquet(connection, relation, self.file, names)
        elif has_ending(self.file, TEXTS):
            _load_text(connection, relation, self.file, names)
            kinds = ["VARCHAR"] * len(names)
        else:
            raise FormatError(f"{self.file} must end in .parquet, {', '.join(TEXTS)}")
        self._columns = {
            name: (f"c{place}", kind)
            for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
        ((self.rows,),) = connection.run(f"SELECT count(*) FROM {relation}")

    def words(self, key: str) -> str:
        """The ids of a column as words, in SQL."""
        column, kind = self._columns[take(self._value, key, str, self._where)]
        group = family(kind)
        if group in ("list", "other"):
            raise FormatError(
                f"{self.file}: {key} must be a column of integers or words, got {kind}"
            )
        word = f"{column}::VARCHAR"
        if kind in ("FLOAT", "DOUBLE"):
            # pandas stores integers with missing values as floats.
            is_whole = f"{column} = round({column}) AND abs({column}) < {WIDE}"
            word = f"CASE WHEN {is_whole} THEN {column}::BIGINT::VARCHAR ELSE {word} END"
        ((missing,),) = self._connection.run(
            f"SELECT min(rowid) FROM {self.relation} WHERE {word} IS NULL OR {word} = ''"
        )
        if missing is not None:
            raise FormatError(
                f"{self.file}, row {missing + 1} must have an id in the column of {key}, got none"
            )
        return f"({word})"

    def fields(self) -> dict[str, Tensor]:
        """The fields, each with a row per row of the table."""
        found = {}
        for name, source in self._fields.items():
            if isinstance(source, dict):
                file = named_file(self._folder, source.get("file"), f"{self._where}: {name}")
                found[name] = read_array(file, field=name)
                if len(found[name]) != self.rows:
                    rule = f"must have a row per row of {self.file} ({self.rows})"
                    raise FormatError(f"{self._where}: {name} {rule}, got {len(found[name])}")
            elif isinstance(source, list):
                found[name] = self._tensor(name, source)
            else:
                found[name] = bool_mask(name, self._tensor(name, [source]))
        return found

    def _tensor(self, name: str, sources: list[str]) -> Tensor:
        """Columns as one field, 1-D for a single one; typed columns keep their dtype if able."""
        columns = [self._numbers(name, source) for source in sources]
        dtypes = {values.dtype for values in columns}
        is_mixed = len(dtypes) > 1 and all(
            values.ndim == 1 and values.dtype.kind in "if" for values in columns
        )
        if name != "feat" and (is_mixed or not self._is_parquet):
            wide = [
                values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
                for values in columns
            ]
            return tensor_of(self.file, NumberField(name), wide)
        tensors = [array_tensor(self.file, values) for values in columns]
        return tensors[0] if len(tensors) == 1 else torch.column_stack(tensors)

    def _numbers(self, name: str, source: str) -> Array:
        """The numbers of a column; from text, int64, float64, or float32 for features."""
        if self._is_parquet:
            return self._parquet_numbers(source)
        if name != "feat":
            # Fractions stay float64 until all columns of the field are read.
            return self._text_numbers(NumberField(name, is_time=True), source)
        try:
            return self._text_numbers(NumberField(name, np.dtype(np.int64)), source)
        except NoIntegerError:
            return self._text_numbers(NumberField(name, np.dtype(np.float32)), source)

    def _parquet_numbers(self, source: str) -> Array:
        column, kind = self._columns[source]
        # Under its own name, for errors.
        view = "pagraph column"
        rows = f"SELECT {column} AS {quoted(source)} FROM {self.relation}"
        self._connection.run(f"CREATE OR REPLACE VIEW {quoted(view)} AS {rows}")
        table = Table(str(self.file), view, {source: kind})
        values, width = columns_side_by_side(self._connection, table, None)
        found: Array = values.mapped().numpy()
        return found.reshape(self.rows, width) if kind.endswith("]") else found

    def _text_numbers(self, field: NumberField, source: str) -> Array:
        """The numbers of a text column; NoIntegerError if integers are wanted and one is not."""
        column, _ = self._columns[source]
        query = f"SELECT {number_columns(column, longest=MOST_CHARACTERS)} FROM {self.relation}"
        values = NumberColumn(self.file, field)
        for batch in self._connection.batches(query):
            numbers, refused = numbers_of(field, *batch)
            if field.dtype == np.int64 and (refused >= 0 or numbers.dtype.kind == "f"):
                raise NoIntegerError
            if refused >= 0:
                raise self._refused(field, source, len(values) + refused)
            values.append(numbers)
            check_fits(self.file, values.nbytes, "numbers")
        found: Array = values.finish().mapped().numpy()
        return found

    def _refused(self, field: NumberField, source: str, row: int) -> FormatError:
        column, _ = self._columns[source]
        ((word,),) = self._connection.run(
            f"SELECT coalesce({column}, '') FROM {self.relation} WHERE rowid = {row}"
        )
        where = f"{self.file}, row {row + 1}"
        if _IS_INTEGER.fullmatch(word):
            return field.not_held(where, word)
        return FormatError(
            f"{self.file}, column {source!r} must hold numbers, got {word[:80]!r} in row {row + 1}"
        )


def _load_parquet(connection: Connection, relation: str, file: Path, names: list[str]) -> list[str]:
    """Make a relation with a file's columns as ``c0``, ``c1``, ...; returns their types."""
    with file_source(file) as source:
        table = parquet_table(connection, file, source)
        _check_columns(file, names, list(table.columns))
        rows = quoted(table.relation)
        chosen = ", ".join(f"{quoted(name)} AS c{place}" for place, name in enumerate(names))
        try:
            connection.run(f"CREATE TABLE {relation} AS SELECT {chosen or '0 AS none'} FROM {rows}")
        except FormatError as error:
            raise FormatError(f"{file} cannot be read: {error}") from None
    return [table.columns[name] for name in names]


def _load_text(connection: Connection, relation: str, file: Path, names: list[str]) -> None:
    """Make a relation with a file's columns as ``c0``, ``c1``, ...; empty texts are NULL.

    Raises:
        FormatError: A column is missing, or a line has more or fewer columns than the first.
    """
    block = next(read_blocks(file), None)
    head = TableHead.of(b"" if block is None else block.data)
    if block is None or not any(head.words):
        raise FormatError(f"{file} must begin with a line of column names, it is empty")
    _check_columns(file, names, head.words)
    chosen = [f"c{head.words.index(name)} AS c{place}" for place, name in enumerate(names)]
    query = f"SELECT {', '.join(chosen) or '0 AS none'}"
    *quick, last = _text_ways(file, head, block.data)
    for way in quick:
        with contextlib.suppress(FormatError, OtherLinesError):
            return _load_way(connection, relation, way, query)
    _load_way(connection, relation, last, query)


def _check_columns(file: Path, columns: list[str], names: list[str]) -> None:
    """Raise FormatError for a column that is missing or repeated."""
    for name in columns:
        if names.count(name) != 1:
            raise FormatError(f"{file} must have one column {name!r}, it has {names}"[:300])


def _text_ways(file: Path, head: TableHead, data: bytes) -> Iterator[Way]:
    """The ways to read the lines; the last one reads all, and reports errors."""
    width = len(head.words)
    for way in column_ways(file, data, head.behind, head.separator, width):
        # If blanks separate, a tab would stay in a word.
        if head.separator is not None or not way.is_direct:
            yield way
    rewritten = piped(file, _Rewritten(file, head), head.behind)
    yield Way(TextLines(",", width, quoted=True), rewritten)


class _Rewritten:
    """Splits lines one by one, and quotes every column."""

    def __init__(self, file: Path, head: TableHead) -> None:
        self._file = file
        self._head = head
        self._line = 0

    def __call__(self, data: bytes) -> bytes:
        """The rewritten lines of a block, with Unix line ends."""
        try:
            lines = unix_lines(data).decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._file} must be UTF-8 text: {error}") from None
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for number, line in enumerate(lines, self._line):
            if line:
                writer.writerow(self._words(number, line))
        # The last line ends with this block.
        self._line += len(lines) - 1
        return out.getvalue().encode()

    def _words(self, number: int, line: str) -> list[str]:
        words = cut(line, self._head.separator)
        if len(words) != len(self._head.words):
            raise FormatError(
                f"{self._file} cannot be read: row {number} has {len(words)} columns, and the "
                f"first line {len(self._head.words)}"
            )
        return words


def _load_way(connection: Connection, relation: str, way: Way, query: str) -> None:
    # DuckDB skips empty lines, unless they may be an empty column.
    lines = "WHERE c0 IS NOT NULL" if way.lines.width == 1 else ""
    with way.relation() as rows:
        connection.run(f"CREATE OR REPLACE TABLE {relation} AS {query} FROM {rows} {lines}")
