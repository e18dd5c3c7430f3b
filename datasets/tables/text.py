"""Text with columns as a DuckDB relation: from its file, or through a pipe that normalises it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from ...errors import FormatError
from ...system.arrays import Array
from ...system.checks import StrPath
from ...system.files import open_plain
from ...system.progress import Progress
from ..text_blocks import LINE_LIMIT, cut, is_packed, read_blocks, separator_of
from .connection import Connection, text_literal

# Linux's F_SETPIPE_SZ, which Python has from 3.10 on, but not on every system.
_SET_PIPE_SIZE = 1031
# The limit for ordinary users. Larger pipes need fewer switches between writer and DuckDB.
_PIPE_BYTES = 2**20
# A character that texts do not contain, so that lines are read whole.
_NO_SEPARATOR = "\x01"
# DuckDB's buffer. With its default of 32 MiB, a pipe's writer would wait while it is parsed.
_BUFFER_BYTES = 2**22

# Lines with only blanks and number signs, before a table.
_BLANK = re.compile(rb"\A(?:[ #]*[\r\n]+)*")
_LINE_END = re.compile(rb"[\r\n]")
_SCANNED_BYTES = 2**22
# DuckDB accepts any number of leading zeros; ids do not.
_LONG_DIGITS = b"0" * 20
# A line with an unclosed quotation mark.
_OPEN_QUOTE = re.compile(rb'^[^"\n]*"(?:[^"\n]*"[^"\n]*")*[^"\n]*$', re.MULTILINE)
# A quotation mark with blanks between it and a separator, if blanks do not separate.
_LOOSE_QUOTE = {
    mark: re.compile(rb'(?:^|%b)[%b]+"|"[%b]+(?:%b|$)' % (mark, blank, blank, mark), re.MULTILINE)
    for mark, blank in ((b",", b" \t"), (b";", b" \t"), (b"\t", b" "))
}


class OtherLinesError(Exception):
    """A text's lines do not have the shape that a way reads."""


@dataclass
class PlainText:
    """Text with only digits, minus signs, points, separators and line ends, and no long numbers.

    In such a text, DuckDB parses integers correctly, except that it reads 1.7 as 2. So points are
    counted, and compared with those in columns of fractions.

    Attributes:
        separator: One character.
        points: Number of points seen.
    """

    separator: str
    points: int = 0

    def checked(self, data: bytes) -> bytes:
        """The same bytes, with points counted; OtherLinesError for other text."""
        allowed = b"0123456789.-\n" + self.separator.encode()
        if data.translate(None, allowed) or _LONG_DIGITS in data:
            raise OtherLinesError
        self.points += data.count(b".")
        return data

    def is_in(self, path: StrPath, begin: int) -> bool:
        """Whether an uncompressed file is such a text from ``begin`` on.

        Takes 0.15 s for 10 million lines of two integers.
        """
        last = b""
        with open_plain(path) as file, contextlib.suppress(OtherLinesError):
            file.seek(begin)
            while data := file.read(_SCANNED_BYTES):
                if _LONG_DIGITS in last + data[: len(_LONG_DIGITS)]:
                    return False
                last = self.checked(data)[-len(_LONG_DIGITS) :]
            return True
        return False


@dataclass(frozen=True)
class TextLines:
    """How lines are split into text columns ``c0``, ``c1``, ...

    An empty column is NULL, even if quoted.

    Attributes:
        separator: One character.
        width: Number of columns; lines with more or fewer are errors.
        quoted: Whether columns in ``"`` may contain separators.
        integers: Columns that DuckDB parses as integers.
    """

    separator: str
    width: int
    quoted: bool = False
    integers: frozenset[int] = frozenset()

    def of(self, source: str, skip: int = 0) -> str:
        """The relation, in SQL, without any guessing by DuckDB.

        Args:
            source: A path.
            skip: Number of first lines to skip.
        """
        quote = '"' if self.quoted else ""
        kinds = ("BIGINT" if place in self.integers else "VARCHAR" for place in range(self.width))
        columns = ", ".join(f"'c{place}': '{kind}'" for place, kind in enumerate(kinds))
        return (
            f"read_csv({text_literal(source)}, auto_detect=false, header=false, skip={skip}, "
            f"delim={text_literal(self.separator)}, quote='{quote}', escape='{quote}', "
            f"max_line_size={LINE_LIMIT}, buffer_size={_BUFFER_BYTES}, columns={{{columns}}})"
        )


def whole_lines() -> TextLines:
    """Lines as one column."""
    return TextLines(_NO_SEPARATOR, 1)


@dataclass(frozen=True)
class TableHead:
    """The first non-empty line of a table.

    Attributes:
        begin: Its start in the file's first lines.
        behind: Its end.
        words: Its words.
        separator: Separator of columns; None: runs of blanks.
        is_comment: Whether it starts with a number sign, as headers may.
    """

    begin: int
    behind: int
    words: list[str]
    separator: str | None
    is_comment: bool

    @classmethod
    def of(cls, data: bytes) -> TableHead:
        """Find the line; columns end at tabs, commas or semicolons, else at blanks."""
        blank = _BLANK.match(data)
        begin = blank.end() if blank else 0
        line = _LINE_END.split(data[begin:], maxsplit=1)[0]
        text = line.decode("utf-8", "replace").lstrip("# ").rstrip("\r ")
        separator = separator_of(line)
        if separator is None and " " not in text:
            separator = ","  # a single column
        words = [word.strip(' "') for word in cut(text, separator)]
        return cls(begin, begin + len(line), words, separator, line.lstrip().startswith(b"#"))


@dataclass(frozen=True)
class Way:
    """A way to read the lines of a file.

    Attributes:
        lines: Their shape.
        source: Opens the path that DuckDB reads.
        skip: Number of first lines to skip.
        plain: The text's guaranteed form, valid once the source is read.
    """

    lines: TextLines
    source: Callable[[], AbstractContextManager[str]]
    skip: int = 0
    plain: PlainText | None = None

    @property
    def is_direct(self) -> bool:
        """Whether DuckDB reads the file itself, so that we do not see its progress."""
        return self.source.func is file_source  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def relation(self) -> Iterator[str]:
        """The lines as a relation, in SQL."""
        with self.source() as source:
            yield self.lines.of(source, self.skip)


@contextlib.contextmanager
def file_source(path: StrPath) -> Iterator[str]:
    """A path by which DuckDB reads a file itself, with all threads.

    It is the open file's descriptor, since names may contain glob characters.
    """
    with open_plain(path) as file:
        yield f"/dev/fd/{file.fileno()}"


def direct_way(path: StrPath, lines: TextLines, data: bytes, begin: int) -> Way:
    """The way in which DuckDB reads a file itself, from ``begin`` in its first lines on."""
    rest = data[begin:]
    begin += len(rest) - len(rest.lstrip(b"\r\n"))
    return Way(lines, partial(file_source, path), data.count(b"\n", 0, begin))


def column_ways(
    path: StrPath,
    data: bytes,
    begin: int,
    separator: str | None,
    width: int,
    *,
    tidy: Callable[[bytes], bytes] | None = None,
    progress: Progress | None = None,
) -> Iterator[Way]:
    """The ways to read lines of columns.

    Args:
        path: The file.
        data: Its first lines.
        begin: Start of the columns in them.
        separator: Separator of columns; None: runs of blanks.
        width: Number of columns.
        tidy: Normalises a block to Unix lines. Default: only the line ends.
        progress: Called with the bytes read from the disk and the file's size, if we read it.
    """
    is_clean = ends_alike(data) and not is_packed(path)
    if is_clean and (separator is None or not has_quotes(path)):
        yield direct_way(path, TextLines(separator or " ", width), data, begin)
    change = unpadded if separator is None else partial(closed_quotes, separator)
    tidied = tidy or unix_lines
    lines = TextLines(separator or " ", width, quoted=separator is not None)
    yield Way(lines, piped(path, lambda text: change(tidied(text)), begin, progress))


def piped(
    path: StrPath,
    change: Callable[[bytes], bytes],
    begin: int = 0,
    progress: Progress | None = None,
) -> Callable[[], AbstractContextManager[str]]:
    """A function that opens :func:`piped_source`."""
    return partial(piped_source, path, change, begin=begin, progress=progress)


def has_quotes(path: StrPath) -> bool:
    """Whether an uncompressed file has a quotation mark."""
    with open_plain(path) as file:
        return any(b'"' in data for data in iter(partial(file.read, _SCANNED_BYTES), b""))


@contextlib.contextmanager
def piped_source(
    path: StrPath,
    change: Callable[[bytes], bytes],
    *,
    begin: int,
    progress: Progress | None,
) -> Iterator[str]:
    """The path of a pipe into which a thread writes the file's lines, decompressed and changed.

    Half as fast as :func:`file_source`, since DuckDB reads a pipe with one thread.

    Args:
        path: The file.
        change: Maps blocks of whole lines to the bytes to be read.
        begin: Start of the lines in the file's first lines.
        progress: Called with the bytes read from the disk and the file's size.

    Raises:
        Exception: The thread's error, at the end of the ``with`` block. It caused DuckDB's error
            about a text that ends early.
    """
    reading, writing = os.pipe()
    fcntl.fcntl(writing, _SET_PIPE_SIZE, _PIPE_BYTES)
    failures: list[BaseException] = []
    blocks = read_blocks(path, progress=progress)

    stopped = threading.Event()

    def next_lines() -> bytes | None:
        block = next(blocks, None)
        if block is None:
            return None
        data = block.data[begin:] if block.first_line == 1 else block.data
        return change(data)

    def write() -> None:
        try:
            with ThreadPoolExecutor(1) as pool:
                # While a block is written, the next one is decompressed.
                ready = pool.submit(next_lines)
                while (lines := ready.result()) is not None and not stopped.is_set():
                    ready = pool.submit(next_lines)
                    left = memoryview(lines)
                    while left and not stopped.is_set():
                        left = left[os.write(writing, left) :]
        except BaseException as error:
            failures.append(error)
        finally:
            os.close(writing)

    thread = threading.Thread(target=write, name="pagraph-text", daemon=True)
    thread.start()
    try:
        yield f"/dev/fd/{reading}"
    except Exception:
        if not failures:
            raise
    finally:
        # Drain the pipe: the writer may be blocked while DuckDB keeps its end open.
        stopped.set()
        os.set_blocking(reading, False)
        while thread.is_alive():
            with contextlib.suppress(BlockingIOError):
                os.read(reading, _PIPE_BYTES)
            thread.join(0.001)
        os.close(reading)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def streamed(way: Way) -> Iterator[tuple[Connection, str]]:
    """A connection and relation for lines that are read once, in batches."""
    # No room needed: it never spills.
    with Connection(0) as connection, way.relation() as relation:
        yield connection, relation


def batches_of(connection: Connection, query: str) -> Iterator[list[Array]]:
    """The batches of a query over lines; OtherLinesError if DuckDB cannot read a line."""
    try:
        yield from connection.batches(query)
    except FormatError:
        raise OtherLinesError from None


def ends_alike(data: bytes) -> bool:
    """Whether all lines have Unix ends, or all have Windows ends; DuckDB refuses others."""
    returns = data.count(b"\r")
    return returns == 0 or returns == data.count(b"\r\n") == data.count(b"\n")


def unix_lines(data: bytes) -> bytes:
    """Lines with Unix line ends."""
    if b"\r" not in data:
        return data
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def unpadded(data: bytes) -> bytes:
    """Lines with single spaces between words, and none around them."""
    data = unix_lines(data).replace(b"\t", b" ")
    # Several times faster than a regular expression.
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data.replace(b"\n ", b"\n").replace(b" \n", b"\n").lstrip(b" ")


def has_open_quote(data: bytes) -> bool:
    """Whether a line has an odd number of quotation marks, so that a field may continue."""
    return b'"' in data and _OPEN_QUOTE.search(data) is not None


def closed_quotes(separator: str, data: bytes) -> bytes:
    """The same lines; OtherLinesError if DuckDB would split them differently.

    A stray quotation mark must not swallow later lines. After blanks it is part of the word, which
    DuckDB handles differently.
    """
    if b'"' not in data:
        return data
    if has_open_quote(data) or _LOOSE_QUOTE[separator.encode()].search(data):
        raise OtherLinesError
    return data
