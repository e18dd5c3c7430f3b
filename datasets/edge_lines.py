"""Line-by-line reader of text edge lists, which defines the format.

DuckDB reads large files 20x faster (:mod:`~pagraph.datasets.edge_text`) and must give the same
result. Files that it cannot read are read here, so that every error names the line.
"""

from __future__ import annotations

import array
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from ..errors import FormatError
from ..system.arrays import Int64Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from .edge_rows import (
    SOURCE_WORDS,
    TARGET_WORDS,
    EdgeColumn,
    EdgeRows,
    NotIntegersError,
    Reading,
)
from .numbers import FIELD_BYTES
from .original_ids import check_words, word_rows
from .text_blocks import (
    Block,
    OpenQuoteError,
    cut,
    first_line,
    numbered_lines,
    read_blocks,
    separator_of,
)

# Lines of Unix, Windows and old Macs.
_LINE = re.compile(rb"[^\r\n]+")
# Spaces, tabs, commas and semicolons separate; several spaces are one separator.
_FIELD = re.compile(rb"[^ \t,;]+")
# Two integers at the start of a line, and the text behind them. At most 99 digits, since Python
# takes quadratic time to parse the digits of a hostile line.
_EDGE = re.compile(
    rb"([+-]?\d{1,99})(?=[ \t,;])[ \t]*[,;]?[ \t]*([+-]?\d{1,99})(?![^ \t,;])[ \t]*[,;]?[ \t]*([^ "
    rb"\t,;]*)"
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
BLANKS = " \t\r\n"
"""Characters that are stripped from the ends of a word."""
_HEADER_WORDS = SOURCE_WORDS | TARGET_WORDS
# Measured for a word of 16 letters: 154 bytes in the dictionary, 232 while words are sorted.
_WORD_BYTES = 240


def header_of(line: bytes, header: bool | None) -> list[str] | None:
    """The names in the first line of a file of integers, or None if it is an edge.

    Args:
        line: The line.
        header: The user's choice; None: it is a header if it has no numbers.
    """
    fields = _FIELD.findall(line)[:2]
    # A line with a number among its first two words is no header.
    has_numbers = not fields or any(
        _is_number(field.decode("utf-8", "replace")) for field in fields
    )
    if not line or header is False or (header is None and has_numbers):
        return None
    return names_in(line.decode("utf-8", "replace"), separator_of(line))


def _is_number(word: str) -> bool:
    """Whether a word is a number, and so no column's name: 1.5 is neither an id nor a name."""
    return _NUMBER.fullmatch(word) is not None


def names_in(line: str, separator: str | None) -> list[str]:
    """The names of columns in a line."""
    try:
        words = cut(line, separator)
    except OpenQuoteError:  # reported when the lines are read
        words = line.split(separator)
    return [name.strip(' \t"') for name in words]


def read_integer_lines(reading: Reading) -> None:
    """Read a text whose ids are integers; see :func:`~pagraph.datasets.edge_text.read_integers`.

    Raises:
        NotIntegersError: A line does not begin with two integers.
        FormatError: A number that was asked for is none.
    """
    rows = reading.rows
    # The first line that is neither empty nor a comment may be a header, perhaps in a later block.
    begun = False
    separator: str | None = None
    for block in read_blocks(rows.path, progress=reading.progress):
        if not begun:
            begin, line = first_line(block.data)
            begun = bool(line)
            separator = separator_of(line)
            names = header_of(line, reading.header)
            if names is not None:
                # Turned into a comment, so that line numbers in errors stay right.
                block = Block(block.data[:begin] + b"#" + block.data[begin:], block.first_line)
            found = _columns(reading, names, line, block) if begun else []
            rows.restart(found)
        if separator is not None:
            _check_quotes(rows.path, block, separator)
        _add_lines(rows, found, block)
        # Checked after each block, so that huge files fail before the system runs out of memory.
        check_fits(rows.path, rows.nbytes, "edges")
    if not begun:  # no edges, but fields of them
        rows.restart(reading.columns or [EdgeColumn(field) for field in reading.asked.fields])


def _check_quotes(path: StrPath, block: Block, separator: str) -> None:
    """Refuse a field that continues in the next line, which might look like an edge."""
    if b'"' not in block.data:
        return
    number, counted = block.first_line, 0
    for match in _LINE.finditer(block.data):
        if b'"' in match[0] and match[0].lstrip(b" \t")[:1] not in b"#%":
            # From the last such line on: from the block's start, many would take minutes.
            number += block.data.count(b"\n", counted, match.start())
            counted = match.start()
            _cut(path, number, match[0].decode("utf-8", "replace"), separator)


def _columns(
    reading: Reading, names: list[str] | None, line: bytes, block: Block
) -> Sequence[EdgeColumn]:
    if reading.columns is not None:
        return reading.columns
    try:
        return reading.asked.found(reading.path, names, separator_of(line))
    except FormatError:
        # In a file of words, the first line may be an edge. Then NotIntegersError is raised here
        # first, and the caller falls back to words.
        _add_lines(EdgeRows(reading.path), [], block)
        raise


def _add_lines(rows: EdgeRows, columns: Sequence[EdgeColumn], block: Block) -> None:
    path = rows.path
    # Typed arrays take 8 bytes per number; a list of integers would take 36.
    src = array.array("q")
    dst = array.array("q")
    begins = array.array("q")
    numbers: list[list[float]] = [[] for _ in columns]
    for match in _LINE.finditer(block.data):
        line = match[0].lstrip(b" \t")
        if not line or line[:1] in b"#%":
            continue
        edge = _EDGE.match(line)
        try:
            if edge is None:
                raise OverflowError  # like an integer beyond 64 bits below
            src.append(int(edge[1]))
            dst.append(int(edge[2]))
        except OverflowError:
            number, text = block.line_at(match.start())
            raise NotIntegersError(
                f"{path}, line {number} must begin with two integers, got {text!r}"
            ) from None
        if not columns:
            continue
        begins.append(match.start())
        for place, column in enumerate(columns):
            if not rows.is_kept(place):
                continue
            try:
                numbers[place].append(_number(column, _field(line, column, edge[3])))
            except (IndexError, ValueError):
                if not column.required:
                    rows.leave(place)
                    continue
                line_number, _ = block.line_at(match.start())
                raise FormatError(
                    f"{path}, line {line_number} must have a number of at most {FIELD_BYTES} "
                    f"characters as its {column.ordinal} field"
                ) from None
    rows.add(np.asarray(src), np.asarray(dst))

    def where(place: int) -> str:
        return f"{path}, line {block.line_at(begins[place])[0]}"

    _add_numbers(rows, columns, numbers, where)


def _number(column: EdgeColumn, text: bytes | str) -> int | float:
    if len(text) > FIELD_BYTES:
        text = b""  # no number
    return column.field.number(text)


def _field(line: bytes, column: EdgeColumn, third: bytes) -> bytes | str:
    """The text of a column; ``third`` is the field after the ids, for any separator."""
    separator = (column.separator or "").encode()
    if column.place == 2 and (not separator or line.count(separator) < 2):
        return third
    if not separator:
        return line.split()[column.place]
    if b'"' in line:  # a quoted text may hold separators
        return cut(line.decode("utf-8", "replace"), column.separator)[column.place].strip()
    return line.split(separator)[column.place].strip()


def field_texts(
    data: bytes, columns: Sequence[EdgeColumn], separator: str | None, *, words: bool
) -> Iterator[list[str]]:
    """The texts of columns in the lines of a block that are neither empty nor comments.

    Args:
        data: The lines.
        columns: The columns; a line without one has an empty text there.
        separator: Separator of columns in the first line; None: blanks.
        words: Whether ids are words.
    """
    for match in _LINE.finditer(data):
        line = match[0].strip(BLANKS.encode())
        if not line or line[:1] in b"#%":
            continue
        if words:
            fields = cut(line.decode("utf-8"), separator)
            yield [fields[c.place].strip(BLANKS) if c.place < len(fields) else "" for c in columns]
            continue
        edge = _EDGE.match(line)
        third = b"" if edge is None else edge[3]
        texts = []
        for column in columns:
            try:
                text = _field(line, column, third)
            except IndexError:
                text = b""
            texts.append(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        yield texts


def _add_numbers(
    rows: EdgeRows,
    columns: Sequence[EdgeColumn],
    numbers: Sequence[Sequence[float]],
    where: Callable[[int], str],
) -> None:
    """Add the numbers of some lines; ``where`` names the file and line, for errors."""
    for place, (column, values) in enumerate(zip(columns, numbers, strict=True)):
        if not rows.is_kept(place):
            continue
        found, not_held = column.field.of_numbers(values)
        if not_held < 0:
            rows.add_numbers(place, found)
        elif column.required:
            raise column.field.not_held(where(not_held), values[not_held])
        else:
            rows.leave(place)


def read_word_lines(reading: Reading) -> None:
    """Read a UTF-8 text whose ids are words; vertices are numbered in byte order of the words.

    Raises:
        FormatError: A line lacks two ids, or a number that was asked for; it is not UTF-8; the
            first line may be a header or an edge.
    """
    rows = reading.rows
    path = rows.path
    places: dict[str, int] = {}
    ends: list[int] = []
    columns: list[EdgeColumn] = []
    delimiter: str | None = None
    begun = False
    guessed = ""  # the first line, if it is unknown whether it is a header
    for block in read_blocks(path, progress=reading.progress):
        lines = _text_lines(path, block)
        if not begun and lines:
            begun = True
            first = lines[0][1]
            delimiter = separator_of(first.encode())
            names = [word.strip(BLANKS) for word in _cut(path, *lines[0], delimiter)]
            named, unsure = words_are_header(names, reading)
            guessed = first if unsure else ""
            header = names if named else None
            columns = reading.asked.found(path, header, delimiter)
            rows.restart(columns)
            lines = lines[1:] if named else lines
        numbers: list[list[float]] = [[] for _ in columns]
        for number, line in lines:
            fields = [word.strip(BLANKS) for word in _cut(path, number, line, delimiter)]
            if len(fields) < 2 or not fields[0] or not fields[1]:
                raise FormatError(f"{path}, line {number} must hold two ids, got {line[:80]!r}")
            ends += [places.setdefault(word, len(places)) for word in fields[:2]]
            _append_fields(path, number, fields, rows, columns, numbers)
        lines_read = [f"{path}, line {number}" for number, _ in lines] if columns else []
        _add_numbers(rows, columns, numbers, lines_read.__getitem__)
        check_fits(path, rows.nbytes + 8 * len(ends) + _WORD_BYTES * len(places), "edges")
    # Vertices usually repeat. If the first line's words never do, it may be a header or an edge.
    if guessed and len(ends) > 2 and not set(ends[:2]) & set(ends[2:]):
        raise unsure_header(path, guessed)
    order, rows.original_id = _sorted_words(list(places))
    both = order[np.array(ends, dtype=np.int64)]
    rows.add(both[::2], both[1::2])


def _cut(path: StrPath, number: int, line: str, delimiter: str | None) -> list[str]:
    """The fields of a line of a file."""
    try:
        return cut(line, delimiter)
    except OpenQuoteError as error:
        raise error.at(path, number) from None


def words_are_header(names: Sequence[str], reading: Reading) -> tuple[bool, bool]:
    """Whether a first line of words is a header, and whether that is uncertain.

    It is a header if the user says so, if the columns of both ids have well-known names, or if an
    option names a later column.
    """
    if reading.header is not None:
        return reading.header, False
    known = {word.lower() for word in names[:2]} <= _HEADER_WORDS
    if known or any(field.column in names[2:] for field in reading.asked.fields):
        return True, False
    return False, not any(map(_is_number, names[:2]))


def unsure_header(path: StrPath, line: str) -> FormatError:
    """The error for a first line that may be a header or an edge."""
    return FormatError(
        f"{path}, line {line[:80]!r} may be a header or an edge, as no other line has its ids: "
        "set header=True or header=False"
    )


def _append_fields(
    path: StrPath,
    number: int,
    fields: Sequence[str],
    rows: EdgeRows,
    columns: Sequence[EdgeColumn],
    numbers: Sequence[list[float]],
) -> None:
    for place, column in enumerate(columns):
        if not rows.is_kept(place):
            continue
        try:
            numbers[place].append(_number(column, fields[column.place]))
        except (IndexError, ValueError):
            if column.required:
                raise FormatError(
                    f"{path}, line {number} must have a number as its {column.ordinal} field"
                ) from None
            rows.leave(place)


def _text_lines(path: StrPath, block: Block) -> list[tuple[int, str]]:
    """Number and stripped text of the lines that are neither empty nor comments."""
    try:
        text = block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} must be UTF-8 text: {error}") from None
    stripped = (
        (number, line.strip(BLANKS)) for number, line in numbered_lines(text, block.first_line)
    )
    # An empty line is left out, too: "" is in any text.
    return [(number, line) for number, line in stripped if line[:1] not in "#%"]


def _sorted_words(names: list[str]) -> tuple[Int64Array, Tensor]:
    """The rank of each word, and the sorted words as rows of bytes."""
    check_words(names)
    # Sorted by bytes, which in UTF-8 is the order of code points.
    encoded = np.array([name.encode() for name in names], dtype=np.bytes_)
    order = np.argsort(encoded, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place, word_rows(encoded[order])
