"""Reads edge lists in text block by block: with Arrow, or line by line if it is missing or refuses
a block."""

from __future__ import annotations

import array
import csv
import logging
import re
from dataclasses import dataclass

import numpy as np

from ..errors import FormatError
from ..system.arrays import Array, Int64Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.progress import Progress
from .column_files import extended
from .numbers import NumberColumn, NumberField
from .text_blocks import Block, arrow, first_line, read_blocks, separator_of

# Characters of a weight. A longer one is no number that a float or an integer could hold, and a field
# of megabytes is not copied to find that out.
_FIELD_BYTES = 32
WORD_BYTES = 240
"""Of a word of 16 letters, measured: 154 in the dictionary, 232 while the words are sorted."""
# Bytes of a block that is read line by line. That takes 25 ms; to import Arrow, and pandas which it
# looks for, takes half a second.
_FEW_BYTES = 2**18
# Column names of published edge lists, such as SNAP's "FromNodeId", "node_1" and "id1".
SOURCE_WORDS = {"src", "source", "from", "u", "head", "node1", "id1", "node_1", "fromnodeid"}
TARGET_WORDS = {
    "dst",
    "target",
    "to",
    "destination",
    "v",
    "tail",
    "node2",
    "id2",
    "node_2",
    "tonodeid",
}
_HEADER_WORDS = SOURCE_WORDS | TARGET_WORDS
# Lines of Unix, Windows and old Macs alike.
_LINE = re.compile(rb"[^\r\n]+")
# Spaces, tabs, commas and semicolons separate; several spaces are one separator.
_FIELD = re.compile(rb"[^ \t,;]+")
_COMMENT = re.compile(rb"^[ \t]*[#%][^\n]*", re.MULTILINE)
# What follows the second field of a line, or the third where that is a weight. Arrow wants lines of
# equally many fields.
_FURTHER_FIELDS = [
    re.compile(rb"^([^,\n]+,[^,\n]+%b),[^\n]*" % third, re.MULTILINE)
    for third in (b"", b",[^,\n]+")
]
# Two integers at the beginning of a line, and the text behind them. At most 99 digits: Python takes
# quadratic time for the digits of a hostile line.
_EDGE = re.compile(
    rb"([+-]?\d{1,99})(?=[ \t,;])[ \t]*[,;]?[ \t]*([+-]?\d{1,99})(?![^ \t,;])[ \t]*[,;]?[ \t]*([^ "
    rb"\t,;]*)"
)

Column = Array
Columns = tuple[Column, Column] | tuple[Column, Column, Column]
"""Sources, destinations and, where they are asked for, weights."""

_log = logging.getLogger(__name__)


class EdgeRows:
    """Growing arrays of edges; ids take 32 bits as long as they fit, and number ``words`` where the
    file's are words.

    Args:
        values: For the weights. Default: none are asked for.
    """

    def __init__(self, values: NumberColumn | None = None) -> None:
        self.src: Column = np.empty(0, dtype=np.int32)
        self.dst: Column = np.empty(0, dtype=np.int32)
        self.words: dict[str, int] | None = None
        self._values = values

    @property
    def field(self) -> NumberField | None:
        """The field of the weights."""
        return None if self._values is None else self._values.field

    @property
    def weight(self) -> Column:
        """The weights, when all are there; empty where none are asked for."""
        if self._values is None:
            return np.empty(0, dtype=np.float32)
        values: Column = self._values.finish().mapped().numpy()
        return values

    def __len__(self) -> int:
        return len(self.src)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, those of words estimated."""
        weights = 0 if self._values is None else self._values.nbytes
        return self.src.nbytes + self.dst.nbytes + weights + WORD_BYTES * len(self.words or ())

    def add(self, src: Column, dst: Column, weight: Column | None = None) -> None:
        """Append a block of edges."""
        self.src = extended(self.src, src)
        self.dst = extended(self.dst, dst)
        if self._values is not None and weight is not None:
            self._values.append(weight)

    def number(self, words: list[str]) -> Int64Array:
        """Number each word; new words get the next numbers."""
        numbers = self.words = {} if self.words is None else self.words
        return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)

    def first_comes_again(self) -> bool:
        """Whether an id of the first edge is one of another's, too."""
        first = self.src[:1], self.dst[:1]
        return any(np.any(ends[1:] == one) for ends in (self.src, self.dst) for one in first)

    def remove(self) -> None:
        """Do nothing: memory needs no cleaning up, unlike the files of a subclass."""


class NotIntegersError(FormatError):
    """A line does not begin with two integers: the file holds words, or is no edge list."""


@dataclass(frozen=True)
class WeightColumn:
    """Where an edge list holds its weights.

    Attributes:
        field: The field that they become.
        place: Number of the column, from 0.
        separator: What stands between the columns of a file with a header; None: spaces.
    """

    field: NumberField
    place: int = 2
    separator: str | None = None

    @classmethod
    def find(
        cls,
        path: StrPath,
        field: NumberField | None,
        header: list[str] | None,
        separator: str | None,
    ) -> WeightColumn | None:
        """The third column without a header, else the one of this name; None where no weights are
        asked for."""
        if field is None or header is None:
            return None if field is None else cls(field)
        # "w:int64" is the column w as int64; a file may have a column of that very name, too.
        if field.dtype is not None and field.text in header[2:]:
            raise ValueError(
                f"{field.option} must not be both a column and a column with a dtype, got "
                f"{field.text!r}, which is a "
                f"column of {path}; {field.text + ':float64'!r} is this one as float64"
            )
        if field.name in header[2:]:
            return cls(field, header.index(field.name, 2), separator)
        further = ", ".join(map(repr, header[2:])) or "no further ones"
        raise FormatError(
            f"{path} must have a column {field.name!r} for the weights after the ids', it has "
            f"{further}"
        )

    @property
    def ordinal(self) -> str:
        """The number in words, for errors."""
        return "third" if self.place == 2 else f"{self.place + 1}th"


def read_integers(
    path: StrPath,
    *,
    header: bool | None,
    progress: Progress | None,
    place: int | None = None,
    rows: EdgeRows | None = None,
) -> EdgeRows:
    """Read a text file whose ids are integers into ``rows``; raises as :func:`_read_lines` and
    :func:`read_blocks`.

    Weights are in the column of ``place``, whatever its name. Default: where
    :meth:`WeightColumn.find` finds them.
    """
    rows = EdgeRows() if rows is None else rows
    # A header is looked for in the first line that is neither empty nor a comment, which may come in
    # a later block.
    begun = False
    column = None
    for block in read_blocks(path, progress=progress):
        if not begun:
            block, line = _without_header(block, header)
            begun = line is not None
            if line is not None and place is None:
                column = _weights_of_header(path, rows.field, line, block)
            elif line is not None:
                column = _weights_at(place, rows.field, block)
        columns = None
        if len(block.data) > _FEW_BYTES:
            _warn_without_arrow(path, block)
            columns = _read_with_arrow(block.data, column)
        rows.add(*(_read_lines(path, block, column) if columns is None else columns))
        # After each block: a file of terabytes is refused before the system runs out of memory.
        check_fits(path, rows.nbytes, "edges")
    return rows


def _warn_without_arrow(path: StrPath, block: Block) -> None:
    if block.first_line == 1 and arrow() is None:
        _log.warning(
            "reading %s line by line, which is slow: pip install 'pagraph[arrow]' reads it with "
            "Arrow",
            path,
        )


def _weights_at(place: int | None, field: NumberField | None, block: Block) -> WeightColumn | None:
    if field is None or place is None:
        return None
    # Tabs alone separate: a text between two of them may hold blanks.
    text = first_line(block.data)[1]
    return WeightColumn(field, place, "\t" if b"\t" in text and b" " not in text else None)


def _weights_of_header(
    path: StrPath, field: NumberField | None, line: bytes, block: Block
) -> WeightColumn | None:
    separator = separator_of(line)
    names = (
        [name.strip(' \t"') for name in line.decode("utf-8", "replace").split(separator)]
        if line
        else None
    )
    try:
        return WeightColumn.find(path, field, names, separator)
    except FormatError:
        # In a file of words the first line need not be a header: NotIntegersError comes first, by
        # which the caller falls back to words.
        _read_lines(path, block, None)
        raise


def _without_header(block: Block, header: bool | None) -> tuple[Block, bytes | None]:
    """Comment out a header in the first line; also returns it, empty if there is none, and None if
    the block has only comments."""
    begin, line = first_line(block.data)
    if not line:
        return block, None
    # An edge of integers begins with one; a header whose second word is a number is none of ours.
    fields = _FIELD.findall(line)[:2]
    if header is False or (
        header is None and (not fields or any(f.lstrip(b"+-").isdigit() for f in fields))
    ):
        return block, b""
    # As a comment the header stays in the block, so that line numbers in errors stay right.
    return Block(block.data[:begin] + b"#" + block.data[begin:], block.first_line), line


def _read_with_arrow(data: bytes, column: WeightColumn | None) -> Columns | None:
    """Parse a block with Arrow; None where it cannot, or would take other spellings of integers
    than we do."""
    # Arrow reads 0x10 as 16, which is no integer here. First a search for one byte, which is fast.
    if arrow() is None or any(x in data and b"0" + x in data for x in (b"x", b"X")):
        return None
    begin, line = first_line(data)
    named = column is not None and column.place > 2
    separator = (column.separator if column is not None and named else separator_of(line)) or " "
    is_loose = named and separator == " " and b"  " in data  # Arrow would find empty fields
    if data.find(b"#", begin) < 0 and data.find(b"%", begin) < 0 and not is_loose:
        columns = _read_csv(data, begin, line, separator, column)
        if columns is not None:
            return columns
    if named:  # what is tidied loses empty fields, and words with spaces in them become several
        return None
    # The way of most files ends above. Tidying passes over a block a few times, still much less
    # than reading it line by line.
    data = _tidied(data)
    columns = _read_csv(data, *first_line(data), ",", column)
    if columns is None:  # the lines may have different numbers of fields
        data = _FURTHER_FIELDS[column is not None].sub(rb"\1", data)
        columns = _read_csv(data, *first_line(data), ",", column)
    return columns


def _read_csv(
    data: bytes, begin: int, line: bytes, separator: str, column: WeightColumn | None
) -> Columns | None:
    """Parse the lines from ``begin`` on, of which ``line`` is the first; None unless all have as
    many fields."""
    if not line:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    pa = arrow()
    names = [str(i) for i in range(line.count(separator.encode()) + 1)]
    weights = [] if column is None else [str(column.place)]
    if len(names) < 2 or not set(weights) <= set(names):
        return None
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(pa.py_buffer(memoryview(data)[begin:])),
            # With Arrow's threads it took 8 % less time on 2 cores, and a process that ended soon
            # after a text was refused aborted in 1 of 4 runs, in the destructor of Arrow's pool.
            read_options=pa.csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter=separator, quote_char=False),
            convert_options=pa.csv.ConvertOptions(
                include_columns=["0", "1", *weights],
                column_types={
                    "0": pa.int64(),
                    "1": pa.int64(),
                    **dict.fromkeys(weights, pa.string()),
                },
                null_values=[],
            ),
        )
        if column is None:
            return table["0"].to_numpy(), table["1"].to_numpy()
        # Weights are taken as text: Arrow's own floats would round what is to be an integer.
        text = table[weights[0]]
        if column.place > 2:
            text = pa.compute.utf8_trim(text, " \t")
        if (pa.compute.max(pa.compute.binary_length(text)).as_py() or 0) > _FIELD_BYTES:
            return None
        values, not_held = column.field.of_words(text)
        # Reading line by line finds it again, with the number of its line.
        return None if not_held >= 0 else (table["0"].to_numpy(), table["1"].to_numpy(), values)
    except pa.ArrowInvalid:
        return None


def _tidied(data: bytes) -> bytes:
    """Normalize lines: no comments, a single comma between fields. Empty fields stay empty."""
    # `bytes.replace` and `translate` are several times as fast as one regular expression for all.
    data = data.replace(b"\r", b"\n")
    if b"#" in data or b"%" in data:
        data = _COMMENT.sub(b"", data)
    data = data.replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    for mark in (b",", b";"):
        data = data.replace(b" " + mark, mark).replace(mark + b" ", mark)
    data = data.replace(b"\n ", b"\n").replace(b" \n", b"\n").lstrip(b" ")
    return data.translate(bytes.maketrans(b" ;", b",,"))


def _read_lines(path: StrPath, block: Block, column: WeightColumn | None) -> Columns:
    """Parse a block line by line: the definition of what is an edge list."""
    # Typed arrays grow at 8 bytes a number; a list of integers would take 36.
    src = array.array("q")
    dst = array.array("q")
    begins = array.array("q")
    numbers: list[float] = []
    for match in _LINE.finditer(block.data):
        line = match[0].lstrip(b" \t")
        if not line or line[:1] in b"#%":
            continue
        edge = _EDGE.match(line)
        try:
            if edge is None:
                raise OverflowError  # as an integer beyond 64 bits does below
            src.append(int(edge[1]))
            dst.append(int(edge[2]))
        except OverflowError:
            number, text = block.line_at(match.start())
            raise NotIntegersError(
                f"{path}, line {number} must begin with two integers, got {text!r}"
            ) from None
        if column is None:
            continue
        try:
            value = edge[3] if column.place == 2 else _field(line, column)
            numbers.append(column.field.number(value if len(value) <= _FIELD_BYTES else b""))
            begins.append(match.start())
        except (IndexError, ValueError):
            number, _ = block.line_at(match.start())
            rule = (
                f"must have a number of at most {_FIELD_BYTES} characters as its "
                f"{column.ordinal} field"
            )
            raise FormatError(f"{path}, line {number} {rule}") from None
    ends = np.asarray(src), np.asarray(dst)
    if column is None:
        return ends
    values, not_held = column.field.of_numbers(numbers)
    if not_held >= 0:
        raise column.field.not_held(
            f"{path}, line {block.line_at(begins[not_held])[0]}", numbers[not_held]
        )
    return (*ends, values)


def _field(line: bytes, column: WeightColumn) -> bytes:
    separator = None if column.separator is None else column.separator.encode()
    return line.split(separator)[column.place].strip()


def read_words(
    path: StrPath, *, header: bool | None, progress: Progress | None, rows: EdgeRows
) -> EdgeRows:
    """Read a text file (UTF-8) whose ids are any words, numbered as they appear, into ``rows``;
    returns them."""
    column: WeightColumn | None = None
    delimiter: str | None = None
    begun = False
    guessed = ""  # the first line, where nothing says whether it is a header
    for block in read_blocks(path, progress=progress):
        lines = _text_lines(path, block)
        if not begun and lines:
            first = lines[0][1]
            delimiter = separator_of(first.encode())
            names = [word.strip() for word in _cut(first, delimiter)]
            named = header or (
                header is None and {word.lower() for word in names[:2]} <= _HEADER_WORDS
            )
            if (
                header is None
                and not named
                and not any(word.lstrip("+-").isdigit() for word in names[:2])
            ):
                guessed = first
            begun = True
            column = WeightColumn.find(path, rows.field, names if named else None, delimiter)
            lines = lines[1:] if named else lines
        words: list[str] = []
        numbers: list[float] = []
        for number, line in lines:
            fields = [word.strip() for word in _cut(line, delimiter)]
            if len(fields) < 2 or not fields[0] or not fields[1]:
                raise FormatError(f"{path}, line {number} must hold two ids, got {line[:80]!r}")
            words += fields[:2]
            if column is not None:
                try:
                    numbers.append(column.field.number(fields[column.place]))
                except (IndexError, ValueError):
                    rule = f"must have a number as its {column.ordinal} field"
                    raise FormatError(f"{path}, line {number} {rule}") from None
        values = None
        if column is not None:
            values, not_held = column.field.of_numbers(numbers)
            if not_held >= 0:
                raise column.field.not_held(f"{path}, line {lines[not_held][0]}", numbers[not_held])
        ends = rows.number(words)
        rows.add(ends[::2], ends[1::2], values)
        check_fits(path, rows.nbytes, "edges")
    # A vertex of an edge list usually comes again. A first line of words that never do is either.
    if guessed and len(rows) > 1 and not rows.first_comes_again():
        raise FormatError(
            f"{path}, line {guessed[:80]!r} may be a header or an edge, as no other line has its "
            "ids: header=True or "
            "header=False says which"
        )
    return rows


def _text_lines(path: StrPath, block: Block) -> list[tuple[int, str]]:
    """List number and text of the lines that are neither empty nor comments."""
    try:
        lines = block.data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} must be UTF-8 text: {error}") from None
    numbered = ((i, line.strip()) for i, line in enumerate(lines, block.first_line))
    return [(i, line) for i, line in numbered if line and line[0] not in "#%"]


def _cut(line: str, delimiter: str | None) -> list[str]:
    """Split a line into fields; ``None`` splits at any space."""
    if delimiter is None or '"' not in line:
        return line.split(delimiter)
    # Line by line: a stray quotation mark must not swallow others.
    return next(csv.reader([line], delimiter=delimiter))
