"""Reads several tables as a graph of several types: a YAML file says which columns are ids and
fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import FormatError
from ...graph.graph import CSC, EdgeType, Graph
from ...system.arrays import Array
from ...system.budget import check_fits
from ...system.checks import StrPath
from ...system.units import one_line
from ..arrays import array_tensor, bool_mask, has_ending, parquet_values, read_array
from ..manifest import take
from ..numbers import NumberField, tensor_of
from ..original_ids import id_field
from ..paths import TEXTS
from ..text_blocks import arrow, read_columns, require_arrow
from ..yaml_file import load_yaml, named_file


def read_tables(path: StrPath) -> Graph:
    """Read tables with ids of any kind as a graph, as a YAML file beside them describes it::

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

    Vertices are numbered in the order of their table, those of a type without one (``venue``) in
    the order in which the edges name them; ``original_id`` keeps the ids, unless they count from 0.
    A field is a column of numbers, a list of columns, a Parquet column of lists, or
    ``{file: feat.npy}`` with a row per row of the table. Of text tables a field gets the dtype that
    holds all of its numbers, but the fractions of ``feat`` are float32; 0 and 1 in a field named
    ``..._mask`` are bools. Tables are text with a header (``.csv``, ``.tsv``, ``.txt``, also
    packed) or Parquet.

    Raises:
        FormatError: The description or a table is damaged, an id is repeated or in no table, or a
            field is no numbers.
        MissingDependencyError: pyarrow is not installed.
    """
    require_arrow("reading tables")
    file = Path(path)
    description, where = load_yaml(file), str(file)
    nodes, edges = take(description, "nodes", dict, where), take(description, "edges", dict, where)
    if not edges:
        raise FormatError(f"{where}: edges must name at least 1 edge type, got none")
    types = {}
    # All vertex tables before any edges, whose ids are looked up in them.
    for ntype, value in nodes.items():
        types[_printable(ntype, where)] = _NodeTable(
            _Table(file, value, f"{where}: {ntype}") if value else None
        )
    ends = {}
    for name, value in edges.items():
        etype = _edge_type(name, types, where)
        table = _Table(file, value, f"{where}: {name}")
        ends[etype] = (
            types[etype[0]].numbers(table, "src"),
            types[etype[2]].numbers(table, "dst"),
            table.fields(),
        )
    # Only now: types without a table grow with the edges that name them.
    counts = {ntype: len(table.ids) for ntype, table in types.items()}
    csc = {
        t: CSC.from_coo(src, dst, (counts[t[0]], counts[t[2]])) for t, (src, dst, _) in ends.items()
    }
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
    """The vertices of one type: their ids as words, in order, and their fields."""

    def __init__(self, table: _Table | None) -> None:
        self._table = table
        self.ids = arrow().array([], arrow().string())
        if table is not None:
            self.ids = table.words("id")
            if len(self.ids.unique()) != len(self.ids):
                raise FormatError(
                    f"{table.file}: ids must be given once each, {_repeated(self.ids)!r} is there "
                    "again"
                )

    def numbers(self, edges: _Table, end: str) -> Any:
        """The numbers of the vertices at one end of a table's edges; FormatError for ids that are
        not in our table."""
        import pyarrow.compute

        words = edges.words(end)
        if self._table is None:
            self.ids = arrow().concat_arrays([self.ids, words]).unique()
        places = pyarrow.compute.index_in(words, value_set=self.ids)
        if self._table is not None and places.null_count:
            unknown = words[places.is_null().index(True).as_py()].as_py()
            raise FormatError(
                f"{edges.file}: {end} must be an id of {self._table.file}, got {unknown!r}"
            )
        return places.to_numpy().astype(np.int64)

    def fields(self) -> dict[str, Tensor]:
        fields = {} if self._table is None else self._table.fields()
        kept = id_field(self.ids.to_pylist())
        return fields if kept is None else {**fields, "original_id": kept}


def _repeated(ids: Any) -> str:
    counts = ids.value_counts()
    return str(counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py())


class _Table:
    """A table as a description has it: the file, and which of its columns are ids and fields."""

    def __init__(self, description: Path, value: Any, where: str) -> None:
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
        self._columns = _read(
            self.file, list(dict.fromkeys(_printable(name, where) for name in [*ids, *columns]))
        )

    def words(self, key: str) -> Any:
        """The ids of a column as an Arrow array of words."""
        column = self._columns[take(self._value, key, str, self._where)].combine_chunks()
        pa = arrow()
        try:
            words = column.cast(pa.string())
        except pa.ArrowException as error:
            raise FormatError(
                f"{self.file}: {key} must be a column of integers or words: {error}"
            ) from error
        # An empty field of text is an empty word, of Parquet null.
        missing = words.is_null().index(True).as_py()
        missing = missing if missing >= 0 else words.index("").as_py()
        if missing >= 0:
            raise FormatError(
                f"{self.file}, row {missing + 1} must have an id in the column of {key}, got none"
            )
        return words

    def fields(self) -> dict[str, Tensor]:
        """The fields, each with a row per row of the table."""
        found = {}
        for name, source in self._fields.items():
            if isinstance(source, dict):
                file = named_file(self._folder, source.get("file"), f"{self._where}: {name}")
                found[name] = read_array(file, field=name)
                if len(found[name]) != self._columns.num_rows:
                    rule = f"must have a row per row of {self.file} ({self._columns.num_rows})"
                    raise FormatError(f"{self._where}: {name} {rule}, got {len(found[name])}")
            elif isinstance(source, list):
                found[name] = self._tensor(name, source)
            else:
                found[name] = bool_mask(name, self._tensor(name, [source]))
        return found

    def _tensor(self, name: str, sources: list[str]) -> Tensor:
        """Some columns as one field, 1-D for a single one; what is no text keeps its dtype where it
        can."""
        columns = [self._numbers(name, source) for source in sources]
        dtypes = {values.dtype for values in columns}
        is_mixed = len(dtypes) > 1 and all(
            values.ndim == 1 and values.dtype.kind in "if" for values in columns
        )
        if name != "feat" and (is_mixed or not has_ending(self.file, (".parquet",))):
            wide = [
                values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
                for values in columns
            ]
            return tensor_of(self.file, NumberField(name), wide)
        tensors = [array_tensor(self.file, values) for values in columns]
        return tensors[0] if len(tensors) == 1 else torch.column_stack(tensors)

    def _numbers(self, name: str, source: str) -> Array:
        """The numbers of a column: of text int64, float64, or for features float32."""
        column = self._columns[source]
        pa = arrow()
        if has_ending(self.file, (".parquet",)):
            return parquet_values(self.file, source, column)
        field = NumberField(name)
        try:
            values, not_held = field.of_words(column)
        except pa.ArrowInvalid as error:
            reason = one_line(error)
            raise FormatError(
                f"{self.file}, column {source!r} must hold numbers: {reason}"
            ) from None
        if name == "feat":
            return values if values.dtype == np.int64 else values.astype(np.float32)
        if not_held >= 0:
            raise field.not_held(f"{self.file}, row {not_held + 1}", column[not_held].as_py())
        return values


def _read(file: Path, columns: list[str]) -> Any:
    """Read these columns as an Arrow table: those of text as words, of Parquet as they are."""
    pa = arrow()
    import pyarrow.parquet

    try:
        if has_ending(file, (".parquet",)):
            about = pyarrow.parquet.read_metadata(file)
            _check_columns(file, columns, about.schema.to_arrow_schema().names)
            groups = (
                about.row_group(place).total_byte_size for place in range(about.num_row_groups)
            )
            # What the file says of itself, and 8 bytes a number where it says too little.
            check_fits(file, max(sum(groups), 8 * about.num_rows * len(columns)), "columns")
            return pyarrow.parquet.read_table(file, columns=columns)
        if has_ending(file, TEXTS):
            return _read_text(file, columns)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{file} cannot be read: {one_line(error)}") from error
    raise FormatError(f"{file} must end in .parquet, {', '.join(TEXTS)}")


def _check_columns(file: Path, columns: list[str], names: list[str]) -> None:
    for name in columns:
        if names.count(name) != 1:
            raise FormatError(f"{file} must have one column {name!r}, it has {names}"[:300])


def _read_text(file: Path, columns: list[str]) -> Any:
    pa = arrow()
    texts = dict.fromkeys(columns, arrow().string())
    names: list[str] = []

    def plan(words: list[str]) -> tuple[list[str], bool, dict[str, Any]]:
        names.extend(words)
        _check_columns(file, columns, names)
        return names, True, {"include_columns": columns, "column_types": texts, "null_values": []}

    tables = []
    size = 0
    for table in read_columns(file, plan):
        tables.append(table)
        size += table.nbytes
        check_fits(file, size, "columns")
    if not names:
        raise FormatError(f"{file} must begin with a line of column names, it is empty")
    return (
        pa.concat_tables(tables)
        if tables
        else pa.table({name: pa.array([], pa.string()) for name in columns})
    )
