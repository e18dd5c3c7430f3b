"""Reads edge lists into graphs: text with two ids per line, plain or packed, KONECT's variant, and
columns of Parquet."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ..errors import FormatError
from ..graph.graph import CSC, EDGE_TYPE, EdgeType, Graph
from ..system.arrays import Int64Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.progress import Progress, part_of
from .column_files import Scratch
from .edge_rows import (
    SOURCE_WORDS,
    TARGET_WORDS,
    EdgeRows,
    NotIntegersError,
    WeightColumn,
    read_integers,
    read_words,
)
from .edge_sort import sort_edges
from .edges import ANY_ID, build_graph, check_count, check_size, count_nodes, mirror
from .numbers import NumberColumn, NumberField
from .original_ids import word_rows
from .spooled_rows import SpooledEdges, SpooledRows
from .text_blocks import arrow, first_line, read_blocks, require_arrow

LEFT_TO_RIGHT: EdgeType = ("left", "to", "right")
RIGHT_TO_LEFT: EdgeType = ("right", "rev_to", "left")

# KONECT's head: the kind of network, and perhaps a second line with the numbers of edges, sources and
# targets. At most 19 digits, as of the largest 64-bit integer.
_HEAD = re.compile(rb"%\s*(sym|asym|bip)\b[^\n]*(?:\n%\s*(\d{1,19})\s+(\d{1,19})\s+(\d{1,19}))?")
# Rows of Parquet at a time: 8 MiB a column.
_BATCH_ROWS = 2**20
# Parquet's reader would hold whole columns of a row group otherwise.
_BUFFER_BYTES = 2**20

_Rows = TypeVar("_Rows", bound=EdgeRows)


def read_edge_list(
    path: StrPath,
    *,
    num_nodes: int | None = None,
    relabel: bool = False,
    undirected: bool = False,
    weight: str | None = None,
    header: bool | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a graph from an edge list: a text file with one edge a line, or Parquet; edge ids follow
    the lines.

    Further fields are ignored, but for the weights; so are empty lines, and those that begin with
    ``#`` or ``%``. The file is read in blocks: besides the edges only a fixed amount is held.
    pyarrow reads it where that is installed; without it text is read about 20 times as slowly, and
    Parquet not at all.

    Args:
        path: Text, plain or gzipped, or Parquet if the name ends in ``.parquet``.
        num_nodes: Number of vertices. Default: the largest id plus 1.
        relabel: Take any integers or words as ids and number the vertices in their sorted order;
            the vertex field ``original_id`` keeps them (words as UTF-8 bytes, padded with zeros).
        undirected: The file names every edge once: store both directions.
        weight: Name of an edge field for the weights: the column of this name where the columns
            have names, else the third field of every line. It gets the dtype that holds all of
            them, int64, float32 or float64; "NAME:DTYPE" says which, or int32, and rounds floats to
            it.
        header: Whether a text's first line names the fields. Default: where it has no numbers; of
            words where both are well-known ("source", "target"), and an edge where one of them is
            an id of another line.
        progress: Called with the bytes read and the file's size.

    Raises:
        FormatError: A line or row cannot be read, no dtype holds all weights, there is no column of
            their name, a first line of words may be a header or an edge, or the file is no whole
            gzip or Parquet file.
        MissingDependencyError: Parquet without pyarrow.
        ValueError: An id is negative, not below ``num_nodes``, or much larger than the number of
            edges, and ``relabel`` is not set.
    """
    field = NumberField.of("weight", weight)
    rows = _read(
        *(path, num_nodes, relabel, header, progress),
        lambda: EdgeRows(None if field is None else NumberColumn(path, field)),
    )
    src = rows.src
    dst = rows.dst
    values = rows.weight
    ndata = {}
    if rows.words is not None:
        places, ndata["original_id"] = _sorted_words(list(rows.words))
        src = places[src]
        dst = places[dst]
        num_nodes = len(places)
    elif relabel:
        # In sorted order, not in that of the file: the same graph gets the same numbers however its
        # lines are ordered.
        ids, places = np.unique(np.concatenate([src, dst]), return_inverse=True)
        src, dst = places[: len(src)], places[len(src) :]
        num_nodes, ndata["original_id"] = len(ids), torch.from_numpy(ids.astype(np.int64))
    elif len(src):
        low, high = int(min(src.min(), dst.min())), int(max(src.max(), dst.max()))
        _check_sizes(path, low, high, len(src), num_nodes)
    if undirected:
        # Both directions of an edge have its weight.
        src, dst, origin = mirror(src, dst)
        values = values[origin] if field is not None else values
    graph = Graph.from_coo(src, dst, num_nodes, ndata=ndata)
    if field is not None:
        graph.set_field(field.name, torch.from_numpy(values), edge_type=EDGE_TYPE)
    return graph


def store_edge_list(
    path: StrPath,
    scratch: Scratch,
    room: int,
    *,
    num_nodes: int | None = None,
    relabel: bool = False,
    undirected: bool = False,
    weight: str | None = None,
    header: bool | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read an edge list as :func:`read_edge_list` does, with edges in files instead of memory.

    With ``relabel`` the sorted ids are in memory, 8 bytes a vertex, or a dictionary of the words;
    ``room`` is what they, and later the edges in work, may take.

    Raises:
        ValueError: Also where the ids that are numbered anew do not fit into ``room``.
    """
    field = NumberField.of("weight", weight)
    rows = _read(
        *(path, num_nodes, relabel, header, part_of(progress, 0, 0.6)),
        lambda: SpooledRows(
            scratch, room, None if field is None else NumberColumn(path, field, scratch)
        ),
    )
    original_id = ids = places = None
    if rows.words is not None:
        places, original_id = _sorted_words(list(rows.words))
        rows.words = None  # the dictionary is the larger part: gone before the sort
        num_nodes = len(places)
    elif relabel:
        ids = rows.distinct()
        num_nodes = len(ids)
        original_id = torch.from_numpy(ids)
    else:
        low, high = rows.bounds
        if len(rows):
            _check_sizes(path, low, high, len(rows), num_nodes)
        num_nodes = high + 1 if num_nodes is None else num_nodes
    edges = SpooledEdges(rows, num_nodes, ids, places)
    step = part_of(progress, 0.6, 1)
    csc = sort_edges(edges, scratch, room=room, mirrored=undirected, numbered=True, progress=step)
    edata = {} if field is None else {field.name: rows.take_weights(mirrored=undirected)}
    rows.remove()
    return Graph(
        csc, ndata={} if original_id is None else {"original_id": original_id}, edata=edata
    )


def _read(
    path: StrPath,
    num_nodes: int | None,
    relabel: bool,
    header: bool | None,
    progress: Progress | None,
    make: Callable[[], _Rows],
) -> _Rows:
    """Read the rows of a file by its format; falls back from integers to words if ``relabel`` is
    set."""
    # The fallback calls `make` again, as the first rows may hold a part of the file.
    if relabel and num_nodes is not None:
        raise ValueError(f"num_nodes must be None with relabel=True, got {num_nodes}")
    rows = make()
    is_text = Path(path).suffix.lower() != ".parquet"
    if header is not None and not is_text:
        raise ValueError(f"header must be None for Parquet, whose columns have names, got {header}")
    try:
        if is_text:
            read_integers(path, header=header, progress=progress, rows=rows)
        else:
            read_parquet(path, relabel=relabel, progress=progress, rows=rows)
        # A file without an edge of integers may hold one of words, behind what was taken for a header.
        has_words = is_text and relabel and len(rows) == 0
    except NotIntegersError as error:
        if not relabel:
            raise FormatError(f"{error}; relabel=True takes any words as ids") from None
        has_words = True
    if has_words:
        rows.remove()
        rows = make()
        read_words(path, header=header, progress=progress, rows=rows)
    if len(rows) == 0 and num_nodes is None:
        raise FormatError(f"{path} must hold at least 1 edge, got none")
    return rows


def _check_sizes(path: StrPath, low: int, high: int, count: int, num_nodes: int | None) -> None:
    """Refuse ids of which nearly all would have no edges, such as account numbers of a social
    network."""
    if low < 0:
        raise ValueError(f"ids in {path} must be at least 0, got {low}; relabel=True takes any ids")
    if num_nodes is not None and high >= num_nodes:
        raise ValueError(f"ids in {path} must be below num_nodes={num_nodes}, got {high}")
    # The limit of `check_count`, with an option in the message that helps.
    limit = max(ANY_ID, 16 * count)
    if num_nodes is None and high >= limit:
        raise ValueError(
            f"ids in {path} must be below {limit} for {count} edges, got {high}; relabel=True "
            "numbers the vertices anew"
        )


def _sorted_words(names: list[str]) -> tuple[Int64Array, torch.Tensor]:
    """The place of each word among the sorted ones, and these as rows of bytes."""
    # Sorted by bytes, which in UTF-8 is the order of the characters' code points.
    encoded = np.array([name.encode() for name in names])
    order = np.argsort(encoded, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place, word_rows(encoded[order])


def read_parquet(
    path: StrPath, *, relabel: bool, progress: Progress | None, rows: EdgeRows
) -> EdgeRows:
    """Read a Parquet file into ``rows``, batch by batch: ids are integers, or words with
    ``relabel``.

    The ends of the edges are the columns of well-known names ("source", "target"), or else the
    first two.
    """
    pa = require_arrow("reading Parquet")
    import pyarrow.parquet

    size = os.path.getsize(path)
    done = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES) as file:
            schema = _ends_first(file.schema_arrow)
            names = schema.names
            column = WeightColumn.find(path, rows.field, names, None)
            places = [0, 1] if column is None else [0, 1, column.place]
            types = _id_types(path, schema, relabel)
            if column is not None:
                types.append(_weight_type(path, schema.field(column.place), column.field))
            chosen = [names[place] for place in places]
            for batch in file.iter_batches(_BATCH_ROWS, columns=chosen):
                batch = batch.select(chosen)  # they come in the file's order
                columns = [_values(path, batch, i, type_, done) for i, type_ in enumerate(types)]
                if pa.types.is_string(types[0]):
                    columns[:2] = [_numbered(rows, column) for column in columns[:2]]
                rows.add(*map(np.asarray, columns))
                check_fits(path, rows.nbytes, "edges")
                done += len(batch)
                if progress is not None:
                    progress(size * done // file.metadata.num_rows, size)
    except FormatError:
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        raise FormatError(f"{path} is no whole Parquet file: {error}") from error
    return rows


def _ends_first(schema: Any) -> Any:
    """The schema with the two columns in front that are called as the ends of edges, where there
    are such."""
    found = [
        [f for f in schema if f.name.lower() in words] for words in (SOURCE_WORDS, TARGET_WORDS)
    ]
    if any(len(fields) != 1 for fields in found):
        return schema
    ends = [fields[0] for fields in found]
    return arrow().schema(
        [*ends, *(f for f in schema if f.name not in (ends[0].name, ends[1].name))]
    )


def _id_types(path: StrPath, schema: Any, relabel: bool) -> list[Any]:
    """Choose the Arrow type to read both columns of ids as, or raise FormatError."""
    types = arrow().types
    if len(schema) < 2:
        raise FormatError(f"{path} must have at least 2 columns, got {len(schema)}")
    ids = [schema.field(0), schema.field(1)]
    words = [not types.is_integer(column.type) for column in ids]
    for column, is_word in zip(ids, words, strict=True):
        # pandas writes categories as dictionaries.
        value_type = column.type.value_type if types.is_dictionary(column.type) else column.type
        if is_word and not (types.is_string(value_type) or types.is_large_string(value_type)):
            raise FormatError(
                f"{path}, column {column.name!r} must hold integers or words, got {column.type}"
            )
        if is_word and not relabel:
            message = f"{path}, column {column.name!r} must hold integers, got {column.type}"
            raise FormatError(f"{message}; relabel=True takes any words as ids")
    # Both ends alike: vertices are numbered over the ids of both, and 7 and "7" are one vertex.
    return [arrow().string() if any(words) else arrow().int64()] * 2


def _weight_type(path: StrPath, column: Any, field: NumberField) -> Any:
    """Choose the Arrow type to read the column of weights as, or raise FormatError."""
    types = arrow().types
    is_decimal = types.is_decimal(column.type)
    is_integer = types.is_integer(column.type) or (is_decimal and column.type.scale <= 0)
    if not (is_integer or is_decimal or types.is_floating(column.type)):
        raise FormatError(f"{path}, column {column.name!r} must hold numbers, got {column.type}")
    return arrow().int64() if is_integer and not field.is_float else arrow().float64()


def _values(path: StrPath, batch: Any, place: int, type_: Any, rows_before: int) -> Any:
    """Cast a column of a batch to ``type_``, or raise FormatError where a row has no value or one
    that does not fit."""
    pa = arrow()
    column = batch.column(place)
    name = batch.schema.names[place]
    try:
        # Safe for integers: an id of 1.5 is an error. Decimals become floats, rounded.
        cast = column.cast(type_, safe=pa.types.is_integer(type_))
    except pa.ArrowInvalid as error:
        raise FormatError(f"{path}, column {name!r} must hold {type_}: {error}") from None
    empty = column.is_null().index(True).as_py()
    # An empty word is no id either: in text two separators in a row make one.
    if empty < 0 and pa.types.is_string(type_):
        empty = cast.index("").as_py()
    if empty >= 0:
        raise FormatError(
            f"{path}, row {rows_before + empty + 1} must have a value in column {name!r}, got none"
        )
    return cast


def _numbered(rows: EdgeRows, words: Any) -> Any:
    # Python sees each distinct word of a batch once, not one for each edge.
    distinct = words.dictionary_encode()
    return rows.number(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]


def read_konect(
    path: StrPath,
    *,
    undirected: bool = False,
    weight: str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a KONECT network, ``src dst [weight [time]]`` per line. Its ids begin at 1, the graph's
    at 0.

    The edges of an undirected network (``sym``) go both ways. A bipartite one (``bip``) has the
    vertex types ``left`` and ``right`` and the edge type ``left/to/right``. A fourth column becomes
    the edge field ``time``. Both columns get the dtype that holds all of their numbers.

    Args:
        path: The file, also packed.
        undirected: Add the other direction: for a bipartite network as the edge type
            ``right/rev_to/left``.
        weight: Name of an edge field for the third column, as :func:`read_edge_list` takes it.
            Default: it is left.
        progress: Called with the bytes read and the file's size.

    Raises:
        FormatError: The head is missing, a line is none, or an id is below 1 or above the head's
            counts.
        ValueError: ``undirected`` for a network that is undirected.
    """
    kind, counts, width = _describe(path)
    if undirected and kind == "sym":
        raise ValueError(
            f"undirected=True must not be given for {path}, whose head says that it is undirected "
            "(sym)"
        )
    field = NumberField.of("weight", weight)
    rows = EdgeRows(None if field is None else NumberColumn(path, field))
    read_integers(path, header=False, progress=progress, rows=rows)
    edata = {} if field is None else {field.name: torch.from_numpy(rows.weight)}
    if width > 3:
        # The file is read a second time: the readers know one column of numbers besides the ids.
        times = EdgeRows(NumberColumn(path, NumberField("time")))
        read_integers(path, header=False, progress=None, place=3, rows=times)
        edata["time"] = torch.from_numpy(times.weight)
    for ends in (rows.src, rows.dst):
        if len(ends) and int(ends.min()) < 1:
            raise FormatError(
                f"ids in {path} must be at least 1, as KONECT's are, got {int(ends.min())}"
            )
        ends -= 1  # in place: these are the rows' own arrays
    if kind != "bip":
        count = None
        if counts is not None:
            # The head counts sources and targets, which share their ids in a graph of one type.
            count = max(counts)
            check_count(path, count, len(rows))
        return build_graph(
            path, rows.src, rows.dst, count, edata=edata, undirected=undirected or kind == "sym"
        )
    return _bipartite(path, rows, counts, edata, both=undirected)


def _describe(path: StrPath) -> tuple[str, tuple[int, int] | None, int]:
    """Kind, numbers of sources and targets where they are told, and number of columns."""
    block = next(read_blocks(path), None)
    head = _HEAD.match(block.data.replace(b"\r", b"")) if block is not None else None
    if block is None or head is None:
        raise FormatError(
            f"{path} must begin with KONECT's head (% sym, % asym or % bip); other edge lists end "
            "in .txt"
        )
    counts = None if head[2] is None else (int(head[3]), int(head[4]))
    return head[1].decode(), counts, len(first_line(block.data)[1].split())


def _bipartite(
    path: StrPath,
    rows: EdgeRows,
    counts: tuple[int, int] | None,
    edata: dict[str, Any],
    *,
    both: bool,
) -> Graph:
    left, right = counts or (
        count_nodes(path, rows.src, rows.src),
        count_nodes(path, rows.dst, rows.dst),
    )
    for count in (left, right):
        check_count(path, count, len(rows))
        check_size(path, count)
    try:
        csc = {LEFT_TO_RIGHT: CSC.from_coo(rows.src, rows.dst, (left, right))}
        if both:
            csc[RIGHT_TO_LEFT] = CSC.from_coo(rows.dst, rows.src, (right, left))
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    graph = Graph(csc, {"left": left, "right": right})
    for edge_type in csc:
        for name, values in edata.items():
            graph.set_field(name, values, edge_type=edge_type)
    return graph
