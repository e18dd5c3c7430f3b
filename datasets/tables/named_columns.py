"""Loader of named columns of a text file, as texts."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from ...errors import FormatError
from ..text_blocks import cut, read_blocks
from .connection import Connection
from .text import OtherLinesError, TableHead, TextLines, Way, column_ways, piped, unix_lines


def load_text(connection: Connection, relation: str, file: Path, names: list[str]) -> None:
    """Make a relation with a file's columns as ``c0``, ``c1``, ...; empty texts are NULL.

    Raises:
        FormatError: A column is missing, or a line has more or fewer columns than the first.
    """
    block = next(read_blocks(file), None)
    head = TableHead.of(b"" if block is None else block.data)
    if block is None or not any(head.words):
        raise FormatError(f"{file} must begin with a line of column names, it is empty")
    check_columns(file, names, head.words)
    chosen = [f"c{head.words.index(name)} AS c{place}" for place, name in enumerate(names)]
    query = f"SELECT {', '.join(chosen) or '0 AS none'}"
    *quick, last = _ways(file, head, block.data)
    for way in quick:
        with contextlib.suppress(FormatError, OtherLinesError):
            return _load(connection, relation, way, query)
    _load(connection, relation, last, query)


def check_columns(file: Path, columns: list[str], names: list[str]) -> None:
    """Raise FormatError for a column that is missing or repeated."""
    for name in columns:
        if names.count(name) != 1:
            raise FormatError(f"{file} must have one column {name!r}, it has {names}"[:300])


def _ways(file: Path, head: TableHead, data: bytes) -> Iterator[Way]:
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


def _load(connection: Connection, relation: str, way: Way, query: str) -> None:
    # DuckDB skips empty lines, unless they may be an empty column.
    lines = "WHERE c0 IS NOT NULL" if way.lines.width == 1 else ""
    with way.relation() as rows:
        connection.run(f"CREATE OR REPLACE TABLE {relation} AS {query} FROM {rows} {lines}")
