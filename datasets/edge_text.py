"""Fast reader of text edge lists, through DuckDB.

:mod:`~pagraph.datasets.edge_lines` defines the format. Each way here reads lines of one shape,
checks every value, and gives up at the first unexpected one. Then the next way is tried, and the
definition last. So results equal those of reading line by line.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..errors import FormatError
from ..system.arrays import Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.progress import Progress
from ..system.units import bytes_text
from .edge_lines import (
    BLANKS,
    header_of,
    read_integer_lines,
    read_word_lines,
    unsure_header,
    words_are_header,
)
from .edge_rows import Column, EdgeColumn, EdgeRows, Reading
from .numbers import (
    FRACTION,
    integer_columns,
    number_columns,
    numbers_of,
    plain_columns,
)
from .tables.connection import LEAST_ROOM, Connection, padded_words, text_literal
from .tables.text import (
    OtherLinesError,
    PlainText,
    TextLines,
    Way,
    batches_of,
    column_ways,
    direct_way,
    ends_alike,
    piped,
    streamed,
    unix_lines,
    whole_lines,
)
from .text_blocks import OpenQuoteError, cut, first_line, is_packed, read_blocks, separator_of

# Smaller texts are read line by line, in 25 ms; importing DuckDB takes 200.
_FEW_BYTES = 2**18
# Lines to inspect for columns of integers.
_LOOK_LINES = 1000
# Per row: two words and their places, in tables and in the indexes of a join.
_ROW_BYTES = 64
_COMMENT = re.compile(rb"^[ \t]*[#%][^\n]*", re.MULTILINE)
# An edge as defined: two integers, and the text after them.
_BETWEEN = "(?:[ \t]+[,;]?|[,;])[ \t]*"
_EDGE = f"^[ \t]*([+-]?[0-9]+){_BETWEEN}([+-]?[0-9]+)(?:$|{_BETWEEN}([^ \t,;]*))"
_NO_EDGE = "^[ \t]*(?:[#%]|$)"


@dataclass(frozen=True)
class _Head:
    """The beginning of a file.

    Attributes:
        data: Its first lines.
        begin: Offset of the first edge in them.
        line: The first edge.
        names: The columns' names, or None without a header.
        separator: Separator of columns; None: blanks.
    """

    data: bytes
    begin: int
    line: bytes
    names: list[str] | None
    separator: str | None


class _Edges(NamedTuple):
    """The first columns of a query of :func:`_integer_ways`.

    Attributes:
        src, dst: The ids.
        no_source, no_target: Whether an id is missing (0 or 1).
        is_odd: Whether a line is unexpected (0 or 1).
    """

    src: Column
    no_source: Column
    dst: Column
    no_target: Column
    is_odd: Column


def read_integers(reading: Reading) -> None:
    """Read a text file whose ids are integers.

    Raises:
        NotIntegersError: A line does not begin with two integers.
        FormatError: The file is damaged, a column that was asked for is missing or not numeric, or
            the edges do not fit into the memory for reading.
    """
    head = _integer_head(reading.path, reading.header)
    found = reading.columns
    if head is not None and found is None:
        # The definition reports errors of the names later.
        with contextlib.suppress(FormatError):
            found = reading.asked.found(reading.path, head.names, head.separator)
    if head is None or found is None or not _read_quickly(reading, head, found):
        read_integer_lines(reading)


def _integer_head(path: StrPath, header: bool | None) -> _Head | None:
    """The head of a file; None if it is small enough to be read by lines."""
    data = _large_block(path)
    begin, line = first_line(data)
    names = header_of(line, header)
    if names is None:
        return _Head(data, begin, line, None, separator_of(line)) if line else None
    begin += len(line)
    lead, edge = first_line(data[begin:])
    return _Head(data, begin + lead, edge, names, separator_of(line)) if edge else None


def _large_block(path: StrPath) -> bytes:
    """The first lines of a file; empty if it is small enough to be read by lines."""
    block = next(read_blocks(path), None)
    if block is None or len(block.data) <= _FEW_BYTES:
        return b""
    return block.data


def _read_quickly(reading: Reading, head: _Head, columns: Sequence[EdgeColumn]) -> bool:
    """Read a file by the first way that can read all lines; False if none can."""
    rows = reading.rows
    for way, query in _integer_ways(reading, head, columns):
        rows.restart(columns)
        with contextlib.suppress(OtherLinesError), streamed(way) as (connection, relation):
            done = 0
            points = 0
            lines = f"WITH lines AS (SELECT * FROM {relation})"
            for batch in batches_of(connection, f"{lines} {query}"):
                edges = _Edges(*batch[: len(_Edges._fields)])
                numbers = batch[len(_Edges._fields) :]
                if edges.no_source.any() or edges.no_target.any() or edges.is_odd.any():
                    raise OtherLinesError
                rows.add(edges.src, edges.dst)
                _add_numbers(rows, columns, numbers)
                points += sum(np.count_nonzero(kinds == FRACTION) for kinds in numbers[2::3])
                check_fits(rows.path, rows.nbytes, "edges")
                done += len(edges.src)
                if reading.progress is not None and way.is_direct:
                    _say(reading.progress, rows.path, head, done)
            # A further point is inside an integer.
            if way.plain and way.plain.points != points:
                raise OtherLinesError
            return True
    return False


def _integer_ways(
    reading: Reading, head: _Head, columns: Sequence[EdgeColumn]
) -> Iterator[tuple[Way, str]]:
    """The ways to read a file, each with its query of ``lines``.

    A query returns the columns of :class:`_Edges`, and the numbers of the others.
    """
    path = reading.path
    progress = reading.progress
    needed = max([2, *(column.place + 1 for column in columns)])
    by_name = needed > 3 or any(column.separator for column in columns)
    separator = head.separator if by_name else separator_of(head.line)
    # Twice as fast as texts, which must be cast and compared.
    integers = _integer_places(head, separator or " ", columns)
    width = head.line.count((separator or " ").encode()) + 1
    if integers is not None and width >= needed:
        lines = TextLines(separator or " ", width, integers=integers)
        plain = PlainText(lines.separator)
        ends = [f"coalesce({c}, 0), ({c} IS NULL)::TINYINT" for c in ("c0", "c1")]
        values = [plain_columns(f"c{c.place}", is_integer=c.place in integers) for c in columns]
        query = f"SELECT {', '.join([*ends, '0::TINYINT', *values])} FROM lines"
        if is_packed(path):
            source = piped(path, lambda d: plain.checked(tidied(d)), head.begin, progress)
            yield Way(lines, source, plain=plain), query
        elif plain.is_in(path, head.begin):
            yield replace(direct_way(path, lines, head.data, head.begin), plain=plain), query
    for way, query in _column_ways(reading, head, separator, columns):
        # Without names, quotation marks are part of the text.
        if by_name or way.is_direct:
            yield way, query
    if by_name:
        return
    query = _edges_of_lines(head, columns)
    lines = whole_lines()
    if ends_alike(head.data) and not is_packed(path):
        yield direct_way(path, lines, head.data, head.begin), query
    else:
        yield Way(lines, piped(path, unix_lines, head.begin, progress)), query


def _column_ways(
    reading: Reading, head: _Head, separator: str | None, columns: Sequence[EdgeColumn]
) -> Iterator[tuple[Way, str]]:
    """The same for columns of text."""
    needed = max([2, *(column.place + 1 for column in columns)])
    try:
        width = len(cut(head.line.decode("utf-8", "replace"), separator))
    except OpenQuoteError:  # reported when the lines are read
        return
    if width < needed:
        return
    ends = [integer_columns(column) for column in ("c0", "c1")]
    values = [number_columns(f"c{column.place}") for column in columns]
    odd = "false"
    if separator is None and columns:
        # If blanks separate, a second blank makes an empty field, and a tab does not separate.
        behind = range(2, needed)
        odd = " OR ".join(f"c{i} IS NULL OR contains(c{i}, chr(9))" for i in behind)
    query = f"SELECT {', '.join([*ends, f'({odd})::TINYINT', *values])} FROM lines"
    found = column_ways(
        reading.path,
        head.data,
        head.begin,
        separator,
        width,
        tidy=tidied,
        progress=reading.progress,
    )
    yield from ((way, query) for way in found)


def _edges_of_lines(head: _Head, columns: Sequence[EdgeColumn]) -> str:
    """The query of whole lines, by the definition's own expression."""
    ends = []
    for end in ("e.s", "e.t"):
        number = f"try_cast({end} AS BIGINT)"
        ends.append(f"coalesce({number}, 0), ({number} IS NULL)::TINYINT")
    values = [number_columns("e.w") for _ in columns]
    odd = "false"
    if head.separator is not None:
        # A field with an open quote may continue in the next line.
        odd = "contains(c0, '\"') AND strlen(replace(c0, '\"', '')) % 2 <> strlen(c0) % 2"
    edge = f"regexp_extract(c0, '{_EDGE}', ['s', 't', 'w'])"
    return (
        f"SELECT {', '.join([*ends, f'({odd})::TINYINT', *values])} "
        f"FROM (SELECT c0, {edge} AS e FROM lines WHERE c0 IS NOT NULL) "
        f"WHERE e.s <> '' OR NOT regexp_matches(c0, '{_NO_EDGE}')"
    )


def _integer_places(
    head: _Head, separator: str, columns: Sequence[EdgeColumn]
) -> frozenset[int] | None:
    """The columns of integers in the first lines; None if ids are not, or others need text."""
    if columns and separator == " ":
        return None
    lines = head.data[head.begin :].split(b"\n", _LOOK_LINES)[:_LOOK_LINES]
    words = [line.split(separator.encode()) for line in lines]
    points = {place for line in words for place, word in enumerate(line) if b"." in word}
    if points & {0, 1}:
        return None
    return frozenset(range(max(map(len, words)))) - points


def tidied(data: bytes) -> bytes:
    """The lines with Unix line ends, without comments."""
    data = unix_lines(data)
    return _COMMENT.sub(b"", data) if b"#" in data or b"%" in data else data


def _add_numbers(rows: EdgeRows, columns: Sequence[EdgeColumn], numbers: Sequence[Column]) -> None:
    """Add the results of :func:`number_columns` for each column."""
    for place, column in enumerate(columns):
        if not rows.is_kept(place):
            continue
        values, refused = numbers_of(column.field, *numbers[3 * place : 3 * place + 3])
        if refused < 0:
            rows.add_numbers(place, values)
        elif column.required:
            raise OtherLinesError
        else:
            rows.leave(place)


def _say(progress: Progress, path: StrPath, head: _Head, rows: int) -> None:
    """Report DuckDB's progress in a file, estimated by the length of the first lines."""
    size = os.path.getsize(path)
    per_line = len(head.data) / max(head.data.count(b"\n"), 1)
    progress(min(int(rows * per_line), size), size)


def read_words(reading: Reading) -> None:
    """Read a text file whose ids are words; vertices are numbered in byte order of the words.

    Raises:
        FormatError: As :func:`~pagraph.datasets.edge_lines.read_word_lines`; also if the words do
            not fit into the room.
    """
    data = _large_block(reading.path)
    if not data or not _number_quickly(reading, data):
        read_word_lines(reading)


def _number_quickly(reading: Reading, data: bytes) -> bool:
    """Read and number words by the first way that can read all lines; False if none can."""
    rows = reading.rows
    begin, line = first_line(data)
    try:
        first = line.decode("utf-8").strip(BLANKS)
        separator = separator_of(first.encode())
        names = [word.strip(BLANKS) for word in cut(first, separator)]
        named, unsure = words_are_header(names, reading)
        header = names if named else None
        columns = reading.asked.found(rows.path, header, separator)
    except (FormatError, UnicodeDecodeError):  # the definition reports it later
        return False
    if named:
        begin += len(line)
        lead, line = first_line(data[begin:])
        begin += lead
        names = cut(line.decode("utf-8", "replace"), separator)
    if len(names) < 2:
        return False
    for way in column_ways(
        rows.path, data, begin, separator, len(names), tidy=tidied, progress=reading.progress
    ):
        rows.restart(columns)
        with contextlib.suppress(OtherLinesError), _table(reading, way, columns) as connection:
            found = number_rows(connection, reading)
            _number_values(connection, rows, columns)
            if unsure and len(rows) > 1 and not found.first_comes_again():
                raise unsure_header(rows.path, first)
            return True
    return False


@contextlib.contextmanager
def _table(reading: Reading, way: Way, columns: Sequence[EdgeColumn]) -> Iterator[Connection]:
    """A connection with the lines as the table ``rows``, for :func:`number_rows`."""
    chosen = [f"{_bare('c0')} AS s", f"{_bare('c1')} AS t"]
    chosen += [f"c{column.place} AS v{place}" for place, column in enumerate(columns)]
    # The definition reads these differently: an empty word, and a second blank if blanks separate.
    unusual = ["s IS NULL", "t IS NULL", "s = ''", "t = ''"]
    if way.lines.separator == " ":
        unusual += ["contains(s, chr(9))", "contains(t, chr(9))"]
    # A pipe removes comments, and a quoted word may begin like one.
    comment = "coalesce(starts_with(s, '#') OR starts_with(s, '%'), false)"
    edges = f"WHERE NOT {comment}" if way.is_direct else ""
    with Connection(reading.room_of_rows, reading.rows.folder) as connection:
        try:
            with way.relation() as relation:
                connection.run(
                    f"CREATE TABLE rows AS SELECT * FROM "
                    f"(SELECT {', '.join(chosen)} FROM {relation}) {edges}"
                )
        except FormatError:
            raise OtherLinesError from None
        found = connection.run(f"SELECT count(*) FROM rows WHERE {' OR '.join(unusual)}")
        if found[0][0]:
            raise OtherLinesError
        yield connection


def _bare(word: str) -> str:
    """A stripped word, in SQL."""
    blanks = text_literal(BLANKS)
    ends = [f"ends_with({word}, {text_literal(blank)})" for blank in BLANKS]
    # Checking the ends takes a tenth of the time of `trim`. All words below "!" begin with a blank
    # or a control character.
    padded = " OR ".join([f"{word} < '!'", *ends])
    return f"CASE WHEN {padded} THEN trim({word}, {blanks}) ELSE {word} END"


def _number_values(connection: Connection, rows: EdgeRows, columns: Sequence[EdgeColumn]) -> None:
    """Add the numbers of the table ``rows``, from its texts ``v0``, ``v1`` and so on."""
    query = ", ".join(number_columns(f"v{place}") for place in range(len(columns)))
    for numbers in batches_of(connection, f"SELECT {query} FROM rows") if columns else ():
        _add_numbers(rows, columns, numbers)
        check_fits(rows.path, rows.nbytes, "edges")


def number_rows(connection: Connection, reading: Reading) -> NumberedWords:
    """Add the edges of a connection's table ``rows``, whose ids are the words ``s`` and ``t``.

    Stores the words in ``rows.original_id``.

    Raises:
        ValueError: The words do not fit into the room, and it is too small to spill to disk.
    """
    rows = reading.rows
    left = 2 * reading.room
    ((count,),) = connection.run("SELECT count(*) FROM rows")
    if left < LEAST_ROOM < count * _ROW_BYTES:
        raise ValueError(
            f"memory must leave at least {bytes_text(LEAST_ROOM)} for {count:,} rows with words "
            f"as ids, got {bytes_text(left)} on top of what the process holds"
        )
    found = NumberedWords(connection)
    check_fits(rows.path, (4 if found.num_ids < 2**31 else 8) * 2 * found.count, "edges")
    # Scattering takes a tenth of the time of DuckDB's sort, which takes as long as both joins.
    rows.place(found.count, found.num_ids, [found.numbers("s"), found.numbers("t")])
    # The words come on top of the rows.
    connection.limit(reading.room)
    rows.original_id = found.words(rows.path, reading.room)
    return found


# -- numbers for words, in byte order and bounded memory -------------------------------------------


class NumberedWords:
    """Rows of two words each, as edges between numbers.

    The rows are the connection's table ``rows`` with the words ``s`` and ``t``. DuckDB keeps their
    order, and spills them to disk if needed.

    Attributes:
        count: Number of rows.
        num_ids: Number of distinct words.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.count = self._one("SELECT count(*) FROM rows")
        # Texts are compared by bytes, which in UTF-8 is the order of code points.
        connection.run(
            "CREATE TABLE ids AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM "
            "(SELECT s AS id FROM rows UNION SELECT t FROM rows)"
        )
        self.num_ids = self._one("SELECT count(*) FROM ids")

    def numbers(self, end: str) -> Iterator[list[Array]]:
        """Yield rows and the numbers of their words ``s`` or ``t``, in any order."""
        # One end at a time, so that one table of words must fit into memory rather than two.
        return self._connection.batches(f"SELECT rows.rowid, n FROM rows JOIN ids ON id = {end}")

    def first_comes_again(self) -> bool:
        """Whether an id of the first row is also in another row."""
        first = "(SELECT unnest([s, t]) FROM rows WHERE rowid = 0)"
        found = self._one(
            f"SELECT count(*) FROM (SELECT 1 FROM rows WHERE rowid > 0 AND "
            f"(s IN {first} OR t IN {first}) LIMIT 1)"
        )
        return found > 0

    def words(self, path: StrPath, room: int) -> Tensor:
        """The words in order, as zero-padded rows of bytes, shape ``(num_ids, longest)``.

        Raises:
            FormatError: Padded to the longest, the words exceed ``room``.
        """
        longest = max(self._one("SELECT coalesce(max(strlen(id)), 0) FROM ids"), 1)
        if self.num_ids * longest > room:
            raise FormatError(
                f"{path} must have ids that take at most {bytes_text(room)}, "
                f"{self.num_ids:,} of {longest:,} bytes take more"
            )
        query = "SELECT id FROM ids ORDER BY n"
        return padded_words(self._connection, query, self.num_ids, longest)

    def _one(self, query: str) -> int:
        return int(self._connection.run(query)[0][0])
