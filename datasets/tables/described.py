"""Reader of tables described by a YAML file, which names their ids and fields, as a heterograph."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import FormatError
from ...graph.graph import EdgeType, Graph
from ...system.budget import reading_room
from ...system.checks import StrPath
from ...system.files import load_yaml, named_file
from ...system.progress import Progress
from ..arrays import has_ending, read_array
from ..manifest import take
from ..paths import TEXTS
from ..text_blocks import cut, read_blocks
from .assembly import Found, Wishes
from .choices import check_orphans
from .columns import TIME, Look, Rule, graph_unit, look_at
from .connection import Connection, quoted
from .keys import KeyColumn, as_key, check_keys, check_whole
from .parquet import parquet_table
from .schema import Column, End, Link, Schema, Table, VertexTable, alike
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
from .texts import typed_texts

# The ids of a type without a table.
_ID = "id"
# Edges of a description that differ in their place, and the rows of each.
_MOST_ROWS = 2**40


def read_tables(
    path: StrPath, *, orphans: str = "error", progress: Progress | None = None, **wishes: Any
) -> Graph:
    """Read tables with any ids as a graph, described by a YAML file in their folder::

        nodes:
          paper:
            file: papers.csv
            id: paper_id
            fields: {feat: [f0, f1], label: field_of_study, year: year}
          author: {file: authors.parquet, id: name, fields: [h_index]}
          venue: {}
        edges:
          author:writes:paper: {file: writes.csv, src: name, dst: paper_id, fields: [position]}
          paper:at:venue: {file: papers.csv, src: paper_id, dst: venue}

    Vertices are numbered in table order, or without a table (``venue``) in the order of first use
    by edges. ``original_id`` keeps the ids, unless they count from 0. A field is a column, a list
    of columns of numbers, or ``{file: feat.npy}`` with a row per row of the table. Columns become
    fields by the rule of typed columns; those of text have the type of all of their values.
    Fractions of ``feat`` are float32. Tables are text with a header (``.csv``, ``.tsv``, ``.txt``,
    also compressed) or Parquet.

    Args:
        path: The YAML file.
        orphans: "error", or "drop": edges without an id, or with one that no table has, are left
            out.
        progress: Called with the work done and all work, in rows.
        wishes: Those of :class:`~.assembly.Wishes`, with types and fields as tables and columns.

    Raises:
        FormatError: The description or a table is damaged, an id is missing, repeated or in no
            table, or no field can hold a column.
        ValueError: An option has unknown names.
    """
    check_orphans(orphans)
    wished = Wishes(**wishes)
    room = reading_room() // 2
    with Connection(room) as connection:
        described = _Described.read(connection, Path(path), is_strict=orphans == "error")
        found = wished.found_in(described.columns)
        schema = found.with_label(connection, described.schema(connection, found))
        graph, gaps = found.graph(
            connection, schema, None, room, orphans=orphans, progress=progress
        )
    described.add_files(graph)
    found.finish(graph, gaps, None)
    return graph


@dataclass(frozen=True)
class _Described:
    """The tables of a description, with their rows in a connection.

    Attributes:
        nodes: The table of each type, or None.
        edges: The table of each edge type.
    """

    nodes: dict[str, _Source | None]
    edges: dict[EdgeType, _Source]

    @classmethod
    def read(cls, connection: Connection, file: Path, *, is_strict: bool) -> _Described:
        """Read all tables; if ``is_strict``, every row of an edge table must have two ids."""
        description = load_yaml(file)
        where = str(file)
        nodes = take(description, "nodes", dict, where)
        edges = take(description, "edges", dict, where)
        if not edges:
            raise FormatError(f"{where}: edges must name at least 1 edge type, got none")
        types: dict[str, _Source | None] = {}
        for number, (ntype, value) in enumerate(nodes.items()):
            name = _printable(ntype, where)
            types[name] = None
            if value:
                source = _Source.read(connection, f"nodes {number}", file, name, value, ("id",))
                source.check_ids(connection, is_strict=True)
                source.check_unique(connection)
                types[name] = source
        ends = {}
        for number, (name, value) in enumerate(edges.items()):
            etype = _edge_type(name, types, where)
            source = _Source.read(connection, f"edges {number}", file, name, value, ("src", "dst"))
            source.check_ids(connection, is_strict=is_strict)
            ends[etype] = source
        return cls(types, ends)

    @property
    def columns(self) -> dict[str, list[str]]:
        """The fields of each table, by its name in the description."""
        sources = [*filter(None, self.nodes.values()), *self.edges.values()]
        return {source.name: list(source.fields) for source in sources}

    def schema(self, connection: Connection, found: Found) -> Schema:
        """The schema of the graph."""
        found.missing.check(self.columns)
        sources = [*filter(None, self.nodes.values()), *self.edges.values()]
        looks = {source.name: source.looks(connection) for source in sources}
        times = [look for of in looks.values() for look in of.values() if look.family == "time"]
        rule = Rule(connection, graph_unit(times), found.missing, words=found.words)
        vertices = []
        for name, source in self.nodes.items():
            if source is None:
                relation = self._ids_of(connection, name)
                ((rows,),) = connection.run(f"select count(*) from {quoted(relation)}")
                vertices.append(VertexTable(name, relation, rows, (_ID,)))
                continue
            columns = source.made(rule, looks[source.name])
            time = TIME if TIME in source.fields else ""
            key = (source.ids["id"],)
            vertices.append(
                VertexTable(name, source.table.relation, source.rows, key, time, columns)
            )
        keys = {vertex.name: vertex.key for vertex in vertices}
        links = []
        for etype, source in self.edges.items():
            first = End(etype[0], (source.ids["src"],), keys[etype[0]])
            last = End(etype[2], (source.ids["dst"],), keys[etype[2]])
            columns = source.made(rule, looks[source.name])
            relation = source.table.relation
            links.append(
                Link(etype, None, str(source.file), relation, first, last, source.rows, columns)
            )
        return Schema(tuple(vertices), tuple(links))

    def _ids_of(self, connection: Connection, name: str) -> str:
        """A relation with the ids of a type without a table, in the order of first use."""
        uses = []
        for number, (etype, source) in enumerate(self.edges.items()):
            for place, key, ntype in ((0, "src", etype[0]), (1, "dst", etype[2])):
                if ntype == name:
                    first = (2 * number + place) * _MOST_ROWS
                    word = as_key(source.key(key), as_text=True)
                    uses.append(
                        f"select {word} as word, {first} + rowid as place "
                        f"from {quoted(source.base)}"
                    )
        relation = f"pagraph ids of {name}"
        union = " union all ".join(uses) or "select '' as word, 0 as place where false"
        connection.run(
            f"create table {quoted(relation)} as select word as {_ID} from "
            f"(select word, min(place) as place from ({union}) where word is not null "
            "group by word) order by place"
        )
        _to_integers(connection, relation, _ID)
        return relation

    def add_files(self, graph: Graph) -> None:
        """Set the fields that are files of arrays."""
        for name, nodes in self.nodes.items():
            for key, rows in {} if nodes is None else nodes.arrays().items():
                graph.set_field(key, rows, node_type=name)
        for etype, source in self.edges.items():
            for key, rows in source.arrays().items():
                if graph.csc_of(etype).num_edges != source.rows:
                    raise FormatError(
                        f"{source.where}: {key} must be a column of the table, as orphans='drop' "
                        "leaves out some of its edges"
                    )
                graph.set_field(key, rows, edge_type=etype)


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


@dataclass(frozen=True)
class _Source:
    """A table of a description.

    Attributes:
        name: Its type, or the text of its edge type.
        where: The same with the description, for errors.
        file: Its file.
        base: Relation with its rows as they are in the file.
        table: Relation with columns of texts by the types of their values.
        rows: Number of rows.
        ids: The columns of "id", or "src" and "dst", in the relations.
        fields: The columns of each field, in the relations; empty for a file.
        files: The file of each field that is one.
    """

    name: str
    where: str
    file: Path
    base: str
    table: Table
    rows: int
    ids: Mapping[str, str]
    fields: Mapping[str, Sequence[str]]
    files: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        connection: Connection,
        relation: str,
        description: Path,
        name: str,
        value: Any,
        keys: Sequence[str],
    ) -> _Source:
        """Read the columns of a table that are ids or fields."""
        where = f"{description}: {name}"
        file = named_file(description.parent, take(value, "file", str, where), f"{where}: file")
        given = value.get("fields") or {}
        if isinstance(given, list):
            given = {_printable(column, where): column for column in given}
        if not isinstance(given, dict):
            raise FormatError(
                f"{where}: fields must be a list of columns, or a mapping from name, got {given!r}"[
                    :300
                ]
            )
        sources: dict[str, str] = {}
        fields = {}
        files = {}
        for key, source in given.items():
            _printable(key, where)
            if isinstance(source, dict):
                files[key] = named_file(description.parent, source.get("file"), f"{where}: {key}")
            elif isinstance(source, list) and source:
                fields[key] = [f"{key} {place}" for place in range(len(source))]
                sources |= dict(zip(fields[key], source, strict=True))
            else:
                fields[key] = [key]
                sources[key] = source
        ids = {}
        for key in keys:
            given_key = value[key] if key in value else take(value, key, str, where)
            column = _printable(given_key, where)
            # A column may be an id, whose text counts, and a field.
            alias = column
            while alias.lower() in {known.lower() for known in sources}:
                alias += "_"
            ids[key] = alias
            sources[alias] = column
        for source in sources.values():
            _printable(source, where)
        twice = alike(sources)
        if twice is not None:
            raise FormatError(
                f"{where}: names of fields must differ by more than case, got {twice[0]!r} and "
                f"{twice[1]!r}"
            )
        _load(connection, relation, file, sources)
        for alias in set(ids.values()):
            _to_integers(connection, relation, alias)
        table = Table(name, relation, connection.columns(relation))
        table = typed_texts(connection, table, [n for n in sources if n not in ids.values()])
        ((rows,),) = connection.run(f"select count(*) from {quoted(relation)}")
        return cls(name, where, file, relation, table, rows, ids, fields, files)

    def key(self, key: str) -> KeyColumn:
        """The column of an id."""
        name = self.ids[key]
        return KeyColumn(name, self.table.columns[name])

    def check_ids(self, connection: Connection, *, is_strict: bool) -> None:
        """Raise FormatError for ids of another kind, and if ``is_strict`` for missing ones."""
        for key in self.ids:
            column = self.key(key)
            if column.family in ("list", "other"):
                raise FormatError(
                    f"{self.file}: {key} must be a column of integers or words, got {column.kind}"
                )
            check_whole(connection, self.table, column)
            value = as_key(column, as_text=True)
            ((missing,),) = connection.run(
                f"select min(rowid) from {quoted(self.base)} where {value} is null"
            )
            if missing is not None and is_strict:
                raise FormatError(
                    f"{self.file}, row {missing + 1} must have an id in the column of {key}, got "
                    "none"
                )

    def check_unique(self, connection: Connection) -> None:
        """Raise FormatError if an id is repeated."""
        wrong = check_keys(connection, self.base, [self.key("id")])
        if wrong:
            raise FormatError(f"{self.file}: {wrong}")

    def looks(self, connection: Connection) -> dict[str, Look]:
        """Findings for the columns of fields."""
        names = [name for of_field in self.fields.values() for name in of_field]
        _, looks = look_at(connection, self.table, names)
        return dict(zip(names, looks, strict=True))

    def made(self, rule: Rule, looks: Mapping[str, Look]) -> tuple[Column, ...]:
        """The fields of the columns.

        Raises:
            FormatError: A field cannot hold a column.
        """
        columns = []
        for key, names in self.fields.items():
            of_field = [looks[name] for name in names]
            made = rule.side_by_side(key, of_field)
            if not made.field:
                raise FormatError(
                    f"{self.where}: field {key!r} must be a column that a field can hold, got one "
                    f"of {self.file}: {made.why}"
                )
            columns.append(made)
        return tuple(columns)

    def arrays(self) -> dict[str, Tensor]:
        """The fields that are files."""
        found = {}
        for key, file in self.files.items():
            found[key] = read_array(file, field=key)
            if len(found[key]) != self.rows:
                rule = f"must have a row per row of {self.file} ({self.rows})"
                raise FormatError(f"{self.where}: {key} {rule}, got {len(found[key])}")
        return found


def _load(connection: Connection, relation: str, file: Path, sources: Mapping[str, str]) -> None:
    """Make a relation of a file's columns, under other names."""
    if has_ending(file, (".parquet",)):
        _load_parquet(connection, relation, file, sources)
    elif has_ending(file, TEXTS):
        _load_text(connection, relation, file, sources)
    else:
        raise FormatError(f"{file} must end in .parquet, {', '.join(TEXTS)}")


def _to_integers(connection: Connection, relation: str, name: str) -> None:
    """Let a column of ids hold integers, if all are; joins of these are much faster."""
    value = quoted(name)
    if connection.columns(relation)[name] != "VARCHAR":
        return
    # Only if they print as their texts: "007" and "+7" are words.
    is_plain = f"coalesce(try_cast({value} as bigint)::varchar, '') = {value}"
    ((are_plain,),) = connection.run(
        f"select bool_and({is_plain}) from {quoted(relation)} where {value} is not null"
    )
    if are_plain:
        connection.run(f"alter table {quoted(relation)} alter column {value} type bigint")


def _load_parquet(
    connection: Connection, relation: str, file: Path, sources: Mapping[str, str]
) -> None:
    with file_source(file) as source:
        table = parquet_table(connection, file, source)
        _check_columns(file, sources.values(), list(table.columns))
        values = []
        for alias, name in sources.items():
            # An empty text is a missing one, as in text.
            value = quoted(name)
            if table.columns[name] == "VARCHAR":
                value = f"nullif({value}, '')"
            values.append(f"{value} as {quoted(alias)}")
        rows = f"select {', '.join(values)} from {quoted(table.relation)}"
        try:
            connection.run(f"create table {quoted(relation)} as {rows}")
        except FormatError as error:
            raise FormatError(f"{file} cannot be read: {error}") from None


def _load_text(
    connection: Connection, relation: str, file: Path, sources: Mapping[str, str]
) -> None:
    """The same for text; empty texts are NULL.

    Raises:
        FormatError: A column is missing, or a line has more or fewer columns than the first.
    """
    block = next(read_blocks(file), None)
    head = TableHead.of(b"" if block is None else block.data)
    if block is None or not any(head.words):
        raise FormatError(f"{file} must begin with a line of column names, it is empty")
    _check_columns(file, sources.values(), head.words)
    values = [f"c{head.words.index(name)} AS {quoted(alias)}" for alias, name in sources.items()]
    query = f"SELECT {', '.join(values)}"
    *quick, last = _text_ways(file, head, block.data)
    for way in quick:
        with contextlib.suppress(FormatError, OtherLinesError):
            return _load_way(connection, relation, way, query)
    _load_way(connection, relation, last, query)


def _check_columns(file: Path, columns: Iterable[str], names: list[str]) -> None:
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
        connection.run(f"CREATE OR REPLACE TABLE {quoted(relation)} AS {query} FROM {rows} {lines}")
