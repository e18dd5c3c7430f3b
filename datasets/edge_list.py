"""Readers of edge lists: text with two ids per line (also compressed), KONECT, and Parquet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import CSC, EDGE_TYPE, EdgeType, Graph
from ..system.arrays import Int64Array
from ..system.budget import reading_room
from ..system.checks import StrPath
from ..system.memory import return_freed
from ..system.progress import Progress, part_of
from ..system.units import bytes_text
from .edge_parquet import read_parquet
from .edge_rows import AskedColumns, Column, EdgeColumn, EdgeRows, NotIntegersError, Reading
from .edge_sort import EdgeColumns, InFiles, append_reverse, build_graph, sort_edges
from .edge_text import read_integers, read_words
from .edge_typed import read_typed
from .edges import check_count, check_size, count_nodes, most_nodes
from .numbers import NumberColumn, NumberField
from .tables.choices import check_words
from .tables.schema import schema_of
from .text_blocks import first_line, read_blocks

LEFT_TO_RIGHT: EdgeType = ("left", "to", "right")
RIGHT_TO_LEFT: EdgeType = ("right", "rev_to", "left")

# KONECT's head: the kind of network, and perhaps a second line with the numbers of edges, sources
# and targets, of at most 19 digits (64 bits).
_HEAD = re.compile(rb"%\s*(sym|asym|bip)\b[^\n]*(?:\n%\s*(\d{1,19})\s+(\d{1,19})\s+(\d{1,19}))?")


# Edges whose ids are read together: 16 MiB.
_BLOCK_ROWS = 2**20
# Per id while ids are merged: 8 bytes each in the sorted ids, the concatenation, its sorted copy,
# and the result.
_ID_BYTES = 32


def asked_columns(
    *,
    weight: str | Sequence[str] | None = None,
    field: str | Sequence[str] | None = None,
    time: str | None = None,
    skip_columns: str | Sequence[str] = (),
    missing: float | None = None,
    words: int | None = None,
) -> AskedColumns:
    """The columns that options ask for. Without any: all named ones but ``skip_columns``.

    Raises:
        ValueError: Two columns would become one field, or one is asked for and skipped.
    """
    fields = [NumberField.of("weight", name) for name in _several(weight)]
    fields += [NumberField.of("field", name) for name in _several(field)]
    if time is not None:
        fields.append(NumberField.of("time", time))
    found = tuple(field for field in fields if field is not None)
    names = [field.name for field in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"weight, field and time must name different fields, got {name!r} twice"
            )
    skipped = tuple(_several(skip_columns))
    if found and skipped:
        raise ValueError(
            f"skip_columns must not be given with {found[0].option}, got {skipped[0]!r}: only the "
            "columns that are asked for become fields"
        )
    if isinstance(missing, bool) or not isinstance(missing, int | float | None):
        raise TypeError(f"missing must be a number for an edge list, got {missing!r}")
    check_words(words)
    return AskedColumns(found, not found, skipped, missing, words, is_strict=False)


def _several(names: str | Sequence[str] | None) -> Sequence[str]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else names


def read_edge_list(
    path: StrPath,
    *,
    num_nodes: int | None = None,
    relabel: bool = False,
    undirected: bool = False,
    weight: str | Sequence[str] | None = None,
    field: str | Sequence[str] | None = None,
    time: str | None = None,
    skip_columns: str | Sequence[str] = (),
    missing: float | None = None,
    words: int | None = None,
    header: bool | None = None,
    files: InFiles | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a graph from an edge list: a text file with one edge per line, or Parquet.

    Edge ids follow the lines. Empty lines are ignored, and lines that begin with ``#`` or ``%``. If
    columns have names and none is asked for, all columns become edge fields that can: numbers,
    booleans, times, categories and repeating texts. Others are named in a warning and in the
    graph's schema. The file is read in blocks, so memory is bounded apart from the edges.

    Args:
        path: Text, plain or gzipped, or Parquet if the name ends in ``.parquet``.
        num_nodes: Number of vertices. Default: the largest id plus 1.
        relabel: Accept any integers or words as ids, and number vertices in their sorted order. The
            vertex field ``original_id`` keeps them (words as zero-padded UTF-8 bytes).
        undirected: The file has every edge once: store both directions.
        weight: Name of one or several edge fields for weights: the columns of these names, or
            without names the third field of every line. A field gets the dtype that holds all of
            its numbers: int64, float32 or float64. "NAME:DTYPE" sets it, also to int32, and rounds
            floats.
        field: Further columns to keep, in the same way.
        time: The column that becomes the edge field ``time``; fractions are float64.
        skip_columns: Columns to ignore if none is asked for.
        missing: Replacement for missing values, such as -1 or ``float("nan")``. Missing words are
            always -1. Default: missing values are errors in columns that are asked for; of others,
            missing fractions are NaN, and other columns with any are left out.
        words: The most words of a text column: the most frequent ones are kept, and all others are
            one class. Default: a column of too many words is left out.
        header: Whether a text's first line names the fields. Default: if it has no numbers. For
            words: if both ids' names are well-known ("source", "target"), or an option names
            another column. It is an edge if one of its ids is in another line.
        files: For edges larger than memory, with their own progress. With ``relabel``, the sorted
            ids (8 bytes per vertex) or words stay in memory.
        progress: Called with the bytes read and the file's size.

    Raises:
        FormatError: A line or row cannot be read, no dtype holds all numbers of a field, a column
            is missing, a first line of words may be a header or an edge, or a gzip or Parquet file
            is incomplete.
        ValueError: An id is negative, not below ``num_nodes``, or much larger than the number of
            edges, without ``relabel``; or relabelled ids do not fit into memory.
    """
    asked = asked_columns(
        weight=weight,
        field=field,
        time=time,
        skip_columns=skip_columns,
        missing=missing,
        words=words,
    )
    if files is None:
        room = reading_room() // 2
        rows = EdgeRows(path)
    else:
        room = files.room
        rows = EdgeRows(path, files.scratch)
        progress = part_of(files.progress, 0, 0.6)
        files = replace(files, progress=part_of(files.progress, 0.6, 1))
    _read_columns(Reading(rows, header, asked, None, room, progress), num_nodes, relabel)
    # Give the memory of reading to the sort.
    return_freed()
    ids = None
    original_id = rows.original_id
    if original_id is None and relabel:
        # In sorted order rather than the file's, so that ids do not depend on the order of lines.
        ids = _distinct_ids(rows, room)
        original_id = torch.from_numpy(ids)
    elif original_id is None and len(rows):
        _check_sizes(path, *rows.bounds, len(rows), num_nodes)
    if original_id is not None:
        num_nodes = len(original_id)
    elif num_nodes is None:
        num_nodes = rows.bounds[1] + 1
    edges = EdgeColumns(num_nodes, *rows.ends, ids)
    csc = sort_edges(edges, files, mirrored=undirected, numbered=True)

    def numbers(column: NumberColumn) -> Tensor:
        values = column.finish()
        if undirected:
            append_reverse(edges, values)
        return values.mapped()

    edata = rows.fields(numbers)
    rows.remove()
    ndata = {} if original_id is None else {"original_id": original_id}
    graph = Graph(csc, ndata=ndata, edata=edata)
    fields = graph.edge_fields(EDGE_TYPE)
    fields.notes.update(rows.notes)
    fields.columns.update({said.field: said.name for said in rows.described if said.field})
    graph.tables = replace(schema_of(graph), edge_columns={EDGE_TYPE: rows.described})
    return graph


def _distinct_ids(rows: EdgeRows, room: int) -> Int64Array:
    """All distinct ids of the edges, sorted; ValueError if they do not fit into ``room``."""
    found: Int64Array = np.empty(0, dtype=np.int64)
    waiting: list[Column] = []
    for begin in range(0, len(rows), _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, len(rows))
        both = [ids.read(begin, end) for ids in rows.ends]
        waiting.append(np.unique(np.concatenate(both)))
        # Merged only when as many wait as were found, so that each id is copied O(log n) times
        # rather than once per block.
        if sum(map(len, waiting)) > len(found) or end == len(rows):
            found = np.unique(np.concatenate([found, *waiting])).astype(np.int64)
            waiting = []
            _check_room(room, len(found))
    return found


def _check_room(room: int, count: int) -> None:
    if count * _ID_BYTES > room:
        raise ValueError(
            f"memory must be at least {bytes_text(2 * count * _ID_BYTES)} to relabel ids, "
            f"{count:,} so far"
        )


def _read_columns(reading: Reading, num_nodes: int | None, relabel: bool) -> None:
    """Read a file with all of its columns; those of a text that hold no numbers come second."""
    strict = replace(reading, asked=replace(reading.asked, is_strict=True))
    if _is_parquet(reading.path):
        _read(strict, num_nodes, relabel)
        return
    _read(reading, num_nodes, relabel)
    lost = read_typed(reading)
    if not lost:
        return
    if reading.asked.missing is None:
        # Again, for the error that names the line; NaN is none.
        _read(strict, num_nodes, relabel)
        if not read_typed(strict):
            return
    reasons = {said.name: said.why for said in reading.rows.described}
    name = lost[0].field.column
    raise FormatError(
        f"{reading.path}, column {name!r} must hold numbers, times or repeating words: "
        f"{reasons[name]}"
    )


def _is_parquet(path: StrPath) -> bool:
    return Path(path).suffix.lower() == ".parquet"


def _read(reading: Reading, num_nodes: int | None, relabel: bool) -> None:
    """Read a file by its format; falls back from integers to words if ``relabel`` is set."""
    path = reading.path
    rows = reading.rows
    if relabel and num_nodes is not None:
        raise ValueError(f"num_nodes must be None with relabel=True, got {num_nodes}")
    is_text = not _is_parquet(path)
    if reading.header is not None and not is_text:
        raise ValueError(
            f"header must be None for Parquet, whose columns have names, got {reading.header}"
        )
    if not is_text:
        read_parquet(reading, relabel=relabel)
    else:
        try:
            read_integers(reading)
            # A file without integer edges may have a word edge after what looked like a header.
            has_words = relabel and len(rows) == 0
        except NotIntegersError as error:
            if not relabel:
                raise FormatError(f"{error}; relabel=True takes any words as ids") from None
            has_words = True
        if has_words:
            read_words(reading)
    if len(rows) == 0 and num_nodes is None:
        raise FormatError(f"{path} must hold at least 1 edge, got none")


def _check_sizes(path: StrPath, low: int, high: int, count: int, num_nodes: int | None) -> None:
    """Refuse sparse ids, such as a social network's account numbers."""
    if low < 0:
        raise ValueError(f"ids in {path} must be at least 0, got {low}; relabel=True takes any ids")
    if num_nodes is not None and high >= num_nodes:
        raise ValueError(f"ids in {path} must be below num_nodes={num_nodes}, got {high}")
    # The limit of `check_count`, with a message that names the option.
    limit = most_nodes(count)
    if num_nodes is None and high >= limit:
        raise ValueError(
            f"ids in {path} must be below {limit} for {count} edges, got {high}; relabel=True "
            "renumbers the vertices"
        )


def read_konect(
    path: StrPath,
    *,
    undirected: bool = False,
    weight: str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a KONECT network, with ``src dst [weight [time]]`` per line.

    Its ids start at 1, the graph's at 0. Undirected networks (``sym``) get both directions of each
    edge. Bipartite ones (``bip``) have the vertex types ``left`` and ``right`` and the edge type
    ``left/to/right``. A fourth column becomes the edge field ``time``. Both columns get the dtype
    that holds all of their numbers.

    Args:
        path: The file, also compressed.
        undirected: Add the other direction; for a bipartite network, as edge type
            ``right/rev_to/left``.
        weight: Name of an edge field for the third column, as in :func:`read_edge_list`. Default:
            the column is ignored.
        progress: Called with the bytes read and the file's size.

    Raises:
        FormatError: The head is missing, a line is not an edge, or an id is below 1 or above the
            head's counts.
        ValueError: ``undirected`` is set for an undirected network.
    """
    head = _describe(path)
    if undirected and head.kind == "sym":
        raise ValueError(
            f"undirected=True must not be given for {path}, whose header says that it is "
            "undirected (sym)"
        )
    field = NumberField.of("weight", weight)
    rows = EdgeRows(path)
    columns = [] if field is None else [EdgeColumn(field)]
    if head.width > 3:
        columns.append(EdgeColumn(NumberField("time", is_time=True), 3, head.separator))
    read_integers(Reading(rows, header=False, columns=columns, progress=progress))
    edata = {name: torch.from_numpy(values) for name, values in rows.arrays().items()}
    src = rows.src
    dst = rows.dst
    for ends in (src, dst):
        if len(ends) and int(ends.min()) < 1:
            raise FormatError(
                f"ids in {path} must be at least 1, as KONECT's are, got {int(ends.min())}"
            )
        ends -= 1  # in place, on the rows' own arrays
    if head.kind == "bip":
        return _bipartite(path, src, dst, head.counts, edata, both=undirected)
    count = None
    if head.counts is not None:
        # The head counts sources and targets, which share ids in a homogeneous graph.
        count = max(head.counts)
        check_count(path, count, len(rows))
    both = undirected or head.kind == "sym"
    return build_graph(path, src, dst, count, edata=edata, undirected=both)


class _Konect(NamedTuple):
    """What the beginning of a KONECT network says.

    Attributes:
        kind: "sym", "asym" or "bip".
        counts: Numbers of sources and targets, if given.
        width: Number of columns.
        separator: Separator of columns. With tabs only, blanks do not separate: fields may contain
            them.
    """

    kind: str
    counts: tuple[int, int] | None
    width: int
    separator: str | None


def _describe(path: StrPath) -> _Konect:
    block = next(read_blocks(path), None)
    head = _HEAD.match(block.data.replace(b"\r", b"")) if block is not None else None
    if block is None or head is None:
        raise FormatError(
            f"{path} must begin with KONECT's header (% sym, % asym or % bip); other edge lists "
            "end in .txt"
        )
    counts = None if head[2] is None else (int(head[3]), int(head[4]))
    line = first_line(block.data)[1]
    separator = "\t" if b"\t" in line and b" " not in line else None
    return _Konect(head[1].decode(), counts, len(line.split()), separator)


def _bipartite(
    path: StrPath,
    src: Column,
    dst: Column,
    counts: tuple[int, int] | None,
    edata: dict[str, Any],
    *,
    both: bool,
) -> Graph:
    left, right = counts or (
        count_nodes(path, src, src),
        count_nodes(path, dst, dst),
    )
    for count in (left, right):
        check_count(path, count, len(src))
        check_size(path, count)
    try:
        csc = {LEFT_TO_RIGHT: CSC.from_coo(src, dst, (left, right))}
        if both:
            csc[RIGHT_TO_LEFT] = CSC.from_coo(dst, src, (right, left))
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    graph = Graph(csc, {"left": left, "right": right})
    for edge_type in csc:
        for name, values in edata.items():
            graph.set_field(name, values, edge_type=edge_type)
    return graph
