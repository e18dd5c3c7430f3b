"""Readers of edge lists, block by block: text by Arrow (line by line without it, or where it refuses) and Parquet."""

from __future__ import annotations

import array
import bz2
import csv
import gzip
import logging
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, MissingDependencyError, how_to_install

__all__ = [
    *(
        "Block",
        "EdgeRows",
        "NotIntegersError",
        "arrow",
        "extended",
        "first_line",
        "read_blocks",
        "read_integers",
        "read_parquet",
    ),
    *("read_words", "require_arrow", "separator_of"),
]

_BLOCK_BYTES = 8 * 2**20
_BATCH_ROWS = 2**20
_LINE_LIMIT = 2**20
_FIELD_BYTES = 32
_PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    rb"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2.BZ2File,
    rb"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""First bytes of packed files, and what unpacks them."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SOURCE_WORDS = {"src", "source", "from", "u", "head", "node1", "id1", "node_1", "fromnodeid"}
_TARGET_WORDS = {"dst", "target", "to", "destination", "v", "tail", "node2", "id2", "node_2", "tonodeid"}
_HEADER_WORDS = _SOURCE_WORDS | _TARGET_WORDS
_LINE = re.compile(rb"[^\r\n]+")
_FIELD = re.compile(rb"[^ \t,;]+")
_COMMENT = re.compile(rb"^[ \t]*[#%][^\n]*", re.MULTILINE)
_HEAD = re.compile(rb"(?:[ \t]*(?:[#%][^\r\n]*)?(?:[\r\n]|\Z))*")  # comments and empty lines
_FURTHER_FIELDS = [re.compile(rb"^([^,\n]+,[^,\n]+%b),[^\n]*" % third, re.MULTILINE) for third in (b"", b",[^,\n]+")]
_EDGE = re.compile(
    rb"([+-]?\d{1,99})(?=[ \t,;])[ \t]*[,;]?[ \t]*([+-]?\d{1,99})(?![^ \t,;])[ \t]*[,;]?[ \t]*([^ \t,;]*)"
)

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]
Column = npt.NDArray[Any]
Columns = tuple[Column, Column] | tuple[Column, Column, Column]
"""Sources, destinations and, where they are asked for, weights."""

_log = logging.getLogger(__name__)


class EdgeRows:
    """Growing arrays of edges; ids take 32 bits as long as they fit, and number ``words`` where the file's are words;
    ``weight`` is empty where weights are not asked for."""

    def __init__(self, weight_dtype: Any = np.float32) -> None:
        self.src: Column = np.empty(0, dtype=np.int32)
        self.dst: Column = np.empty(0, dtype=np.int32)
        self.weight: Column = np.empty(0, dtype=weight_dtype)
        self.words: dict[str, int] | None = None

    def add(self, src: Column, dst: Column, weight: Column | None = None) -> None:
        """Append a block of edges."""
        self.src, self.dst = extended(self.src, src), extended(self.dst, dst)
        if weight is not None:
            self.weight = extended(self.weight, weight)

    def number(self, words: list[str]) -> npt.NDArray[np.int64]:
        """Number each word; new words get the next numbers."""
        numbers = self.words = {} if self.words is None else self.words
        return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)


def extended(values: Column, more: Column) -> Column:
    """Append in place: large memory is remapped and not copied, so that it is never needed twice."""
    if values.dtype == np.int32 and len(more) and not (more.min() >= -(2**31) and more.max() < 2**31):
        values = values.astype(np.int64)
    begin = len(values)
    values.resize(begin + len(more), refcheck=False)
    values[begin:] = more
    return values


@dataclass(frozen=True)
class Block:
    """The bytes of some whole lines of a file, and the number of the first line, from 1."""

    data: bytes
    first_line: int

    def line_at(self, offset: int) -> tuple[int, str]:
        """Get number and (shortened) text of the line that begins at ``offset``."""
        text = self.data[offset : offset + 80].split(b"\n")[0].decode("utf-8", "replace")
        return self.first_line + self.data.count(b"\n", 0, offset), text.rstrip("\r")


def read_blocks(path: Path, *, progress: Progress | None = None) -> Iterator[Block]:
    """Yield the file's lines in blocks of a few MiB; gzip, bzip2 and xz are recognised by their first bytes.

    ``progress`` is called with the bytes read from the disk and the file's size.
    """
    with open(path, "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        lead = raw.read(10)
        unpack = next((unpack for magic, unpack in _PACKED.items() if re.match(magic, lead)), None)
        raw.seek(0)
        rest, line, first = b"", 1, True
        for data in _read(unpack(raw) if unpack else raw, path):
            data = data.removeprefix(_BYTE_ORDER_MARK) if first else data
            first = False
            end = data.rfind(b"\n") + 1
            if end:
                yield (block := Block(b"".join([rest, memoryview(data)[:end]]), line))
                line += block.data.count(b"\n")
                rest = data[end:]
            else:
                rest += data
            if len(rest) > _LINE_LIMIT:
                raise FormatError(f"{path} must have lines of at most {_LINE_LIMIT} bytes, line {line} is longer")
            if progress is not None:
                progress(raw.tell(), size)
        if rest:
            yield Block(rest, line)


def _read(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        while data := stream.read(_BLOCK_BYTES):
            yield data
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        form = type(stream).__name__.removesuffix("File").lower()
        raise FormatError(f"{path} is no whole {form} file: {error}") from error


class NotIntegersError(Exception):
    """Raised for a line that does not begin with two integers: the file holds words, or is no edge list."""


@dataclass(frozen=True)
class WeightColumn:
    """Where an edge list holds its weights.

    Attributes:
        place: Number of the column, from 0.
        separator: What stands between the columns of a file with a header; None: spaces.
    """

    place: int = 2
    separator: str | None = None

    @classmethod
    def find(
        cls, path: Path, weight: str | None, header: list[str] | None, separator: str | None
    ) -> WeightColumn | None:
        """The third column without a header, else the one of this name; None where no weights are asked for."""
        if weight is None or header is None:
            return None if weight is None else cls()
        if weight in header[2:]:
            return cls(header.index(weight, 2), separator)
        further = ", ".join(map(repr, header[2:])) or "no further ones"
        raise FormatError(f"{path} must have a column {weight!r} for the weights after the ids', it has {further}")

    @property
    def ordinal(self) -> str:
        """The number in words, for errors."""
        return "third" if self.place == 2 else f"{self.place + 1}th"


def separator_of(line: bytes) -> str | None:
    """The first of tab, comma and semicolon that is in a line; None: fields end at spaces."""
    return next((mark for mark in "\t,;" if mark.encode() in line), None)


def read_integers(
    path: Path, *, weight: str | None, header: bool | None, progress: Progress | None, place: int = 2
) -> EdgeRows:
    """Read a text file whose ids are integers; raises as :func:`_read_lines` and :func:`read_blocks`.

    Weights are float32. Of a file without a header they may be taken from another ``place`` than the third column,
    and are then float64.
    """
    if arrow() is None:
        _log.warning("reading %s line by line, which is slow: pip install 'pagraph[arrow]' reads it with Arrow", path)
    rows, column = EdgeRows(np.float32 if place == 2 else np.float64), None
    begun = False
    for block in read_blocks(path, progress=progress):
        if not begun:
            block, line = _without_header(block, header)
            if line is not None:
                begun, column = True, _weights_of_header(path, weight, line, block)
                if place != 2:
                    text = first_line(block.data)[1]
                    column = WeightColumn(place, "\t" if b"\t" in text and b" " not in text else None)
        columns = _read_with_arrow(block.data, column)
        rows.add(*(_read_lines(path, block, column) if columns is None else columns))
    return rows


def _weights_of_header(path: Path, weight: str | None, line: bytes, block: Block) -> WeightColumn | None:
    separator = separator_of(line)
    names = [name.strip(' \t"') for name in line.decode("utf-8", "replace").split(separator)] if line else None
    try:
        return WeightColumn.find(path, weight, names, separator)
    except FormatError:
        _read_lines(path, block, None)  # raises NotIntegersError of words, whose first line need not be a header
        raise


def _without_header(block: Block, header: bool | None) -> tuple[Block, bytes | None]:
    """Comment out a header in the first line; also gives it, empty if there is none, None if the line comes later."""
    begin, line = first_line(block.data)
    if not line:
        return block, None
    fields = _FIELD.findall(line)[:2]
    if header is False or (header is None and (not fields or any(f.lstrip(b"+-").isdigit() for f in fields))):
        return block, b""
    return Block(block.data[:begin] + b"#" + block.data[begin:], block.first_line), line  # line numbers stay right


def first_line(data: bytes) -> tuple[int, bytes]:
    """Find the first line that is neither empty nor a comment: its place and text, which is empty without one."""
    head = _HEAD.match(data)
    begin = head.end() if head else 0
    line = _LINE.match(data, begin)
    return begin, line[0] if line else b""


def require_arrow(what: str) -> Any:
    """Import pyarrow, or raise MissingDependencyError saying what needs it."""
    pa = arrow()
    if pa is None:
        raise MissingDependencyError(f"{what} needs pyarrow, which is not installed: {how_to_install('arrow')}")
    return pa


def arrow() -> Any:
    """Import pyarrow; None where it is not installed."""
    try:
        import pyarrow.compute
        import pyarrow.csv
    except ImportError:
        return None
    return pyarrow


def _read_with_arrow(data: bytes, column: WeightColumn | None) -> Columns | None:
    """Parse a block with Arrow; None where it cannot, or would take other spellings of integers than we do."""
    if arrow() is None or any(x in data and b"0" + x in data for x in (b"x", b"X")):  # a search for one byte is fast
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
    data = _tidied(data)
    columns = _read_csv(data, *first_line(data), ",", column)
    if columns is None:  # the lines may have different numbers of fields
        data = _FURTHER_FIELDS[column is not None].sub(rb"\1", data)
        columns = _read_csv(data, *first_line(data), ",", column)
    return columns


def _read_csv(data: bytes, begin: int, line: bytes, separator: str, column: WeightColumn | None) -> Columns | None:
    """Parse the lines from ``begin`` on, of which ``line`` is the first; None unless all have as many fields."""
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
            read_options=pa.csv.ReadOptions(column_names=names),
            parse_options=pa.csv.ParseOptions(delimiter=separator, quote_char=False),
            convert_options=pa.csv.ConvertOptions(
                include_columns=["0", "1", *weights],
                column_types={"0": pa.int64(), "1": pa.int64(), **dict.fromkeys(weights, pa.string())},
                null_values=[],
            ),
        )
        if column is None:
            return table["0"].to_numpy(), table["1"].to_numpy()
        text = table[weights[0]]
        if column.place > 2:
            text = pa.compute.utf8_trim(text, " \t")
        if (pa.compute.max(pa.compute.binary_length(text)).as_py() or 0) > _FIELD_BYTES:
            return None
        return table["0"].to_numpy(), table["1"].to_numpy(), text.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return None


def _tidied(data: bytes) -> bytes:
    """Normalize lines: no comments, a single comma between fields; a field that was empty stays so."""
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


def _read_lines(path: Path, block: Block, column: WeightColumn | None) -> Columns:
    """Parse a block line by line: the definition of what is an edge list."""
    src, dst, weight = array.array("q"), array.array("q"), array.array("d")
    for match in _LINE.finditer(block.data):
        line = match[0].lstrip(b" \t")
        if not line or line[:1] in b"#%":
            continue
        edge = _EDGE.match(line)
        try:
            if edge is None:
                raise OverflowError
            src.append(int(edge[1]))
            dst.append(int(edge[2]))
        except OverflowError:
            number, text = block.line_at(match.start())
            raise NotIntegersError(f"{path}, line {number} must begin with two integers, got {text!r}") from None
        if column is None:
            continue
        try:
            value = edge[3] if column.place == 2 else _field(line, column)
            weight.append(float(value if len(value) <= _FIELD_BYTES else b""))
        except (IndexError, ValueError):
            number, _ = block.line_at(match.start())
            rule = f"must have a number of at most {_FIELD_BYTES} characters as its {column.ordinal} field"
            raise FormatError(f"{path}, line {number} {rule}") from None
    ends = np.asarray(src), np.asarray(dst)
    return ends if column is None else (*ends, np.asarray(weight))


def _field(line: bytes, column: WeightColumn) -> bytes:
    separator = None if column.separator is None else column.separator.encode()
    return line.split(separator)[column.place].strip()


def read_words(path: Path, *, weight: str | None, header: bool | None, progress: Progress | None) -> EdgeRows:
    """Read a text file (UTF-8) whose ids are any words, numbered as they appear."""
    rows, column = EdgeRows(), None
    delimiter: str | None = None
    begun, guessed = False, ""
    for block in read_blocks(path, progress=progress):
        lines = _text_lines(path, block)
        if not begun and lines:
            first = lines[0][1]
            delimiter = separator_of(first.encode())
            names = [word.strip() for word in _cut(first, delimiter)]
            named = header or (header is None and {word.lower() for word in names[:2]} <= _HEADER_WORDS)
            if header is None and not named and not any(word.lstrip("+-").isdigit() for word in names[:2]):
                guessed = first
            begun, column = True, WeightColumn.find(path, weight, names if named else None, delimiter)
            lines = lines[1:] if named else lines
        words: list[str] = []
        values = array.array("d")
        for number, line in lines:
            fields = [word.strip() for word in _cut(line, delimiter)]
            if len(fields) < 2 or not fields[0] or not fields[1]:
                raise FormatError(f"{path}, line {number} must hold two ids, got {line[:80]!r}")
            words += fields[:2]
            if column is not None:
                try:
                    values.append(float(fields[column.place]))
                except (IndexError, ValueError):
                    rule = f"must have a number as its {column.ordinal} field"
                    raise FormatError(f"{path}, line {number} {rule}") from None
        ends = rows.number(words)
        rows.add(ends[::2], ends[1::2], None if column is None else np.asarray(values))
    if guessed and len(rows.src) > 1 and not _comes_again(rows):
        raise FormatError(
            f"{path}, line {guessed[:80]!r} may be a header or an edge, as no other line has its ids: header=True or "
            "header=False says which"
        )
    return rows


def _comes_again(rows: EdgeRows) -> bool:
    """Whether an id of the first edge is one of another's, too."""
    first = rows.src[:1], rows.dst[:1]
    return any(np.any(ends[1:] == one) for ends in (rows.src, rows.dst) for one in first)


def _text_lines(path: Path, block: Block) -> list[tuple[int, str]]:
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
    return next(csv.reader([line], delimiter=delimiter))  # line by line: a stray quotation mark must not swallow others


def read_parquet(path: Path, *, weight: str | None, relabel: bool, progress: Progress | None) -> EdgeRows:
    """Read a Parquet file, batch by batch: ids are integers, or words with ``relabel``.

    The ends of the edges are the columns of well-known names ("source", "target"), or else the first two.
    """
    pa = require_arrow("reading Parquet")
    import pyarrow.parquet

    rows, size, done = EdgeRows(), os.path.getsize(path), 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=_LINE_LIMIT) as file:
            schema = _ends_first(file.schema_arrow)
            names = schema.names
            column = WeightColumn.find(path, weight, names, None)
            places = [0, 1] if column is None else [0, 1, column.place]
            types = _column_types(path, schema, places, relabel)
            chosen = [names[place] for place in places]
            for batch in file.iter_batches(_BATCH_ROWS, columns=chosen):
                batch = batch.select(chosen)  # they come in the file's order
                columns = [_values(path, batch, i, type_, done) for i, type_ in enumerate(types)]
                if pa.types.is_string(types[0]):
                    columns[:2] = [_numbered(rows, column) for column in columns[:2]]
                rows.add(*map(np.asarray, columns))
                done += len(batch)
                if progress is not None:
                    progress(size * done // file.metadata.num_rows, size)
    except FormatError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path} is no whole Parquet file: {error}") from error
    return rows


def _ends_first(schema: Any) -> Any:
    """The schema with the two columns in front that are called as the ends of edges, where there are such."""
    found = [[f for f in schema if f.name.lower() in words] for words in (_SOURCE_WORDS, _TARGET_WORDS)]
    if any(len(fields) != 1 for fields in found):
        return schema
    ends = [fields[0] for fields in found]
    return arrow().schema([*ends, *(f for f in schema if f.name not in (ends[0].name, ends[1].name))])


def _column_types(path: Path, schema: Any, places: list[int], relabel: bool) -> list[Any]:
    """Choose the Arrow types to read these columns as, or raise FormatError."""
    types = arrow().types
    if len(schema) < 2:
        raise FormatError(f"{path} must have at least 2 columns, got {len(schema)}")
    ids, values = [schema.field(0), schema.field(1)], [schema.field(place) for place in places[2:]]
    words = [not types.is_integer(column.type) for column in ids]
    for column, is_word in zip(ids, words, strict=True):
        value_type = column.type.value_type if types.is_dictionary(column.type) else column.type
        if is_word and not (types.is_string(value_type) or types.is_large_string(value_type)):
            raise FormatError(f"{path}, column {column.name!r} must hold integers or words, got {column.type}")
        if is_word and not relabel:
            message = f"{path}, column {column.name!r} must hold integers, got {column.type}"
            raise FormatError(f"{message}; relabel=True takes any words as ids")
    for column in values:
        if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
            raise FormatError(f"{path}, column {column.name!r} must hold numbers, got {column.type}")
    pa = arrow()
    return [pa.string() if any(words) else pa.int64()] * 2 + [pa.float64()] * len(values)


def _values(path: Path, batch: Any, place: int, type_: Any, rows_before: int) -> Any:
    """Cast a column of a batch to ``type_``, or raise FormatError where a row has no value or one that does not fit."""
    pa, column, name = arrow(), batch.column(place), batch.schema.names[place]
    try:
        cast = column.cast(type_, safe=place < 2)
    except pa.ArrowInvalid as error:
        raise FormatError(f"{path}, column {name!r} must hold {type_}: {error}") from None
    empty = column.is_null().index(True).as_py()
    if empty < 0 and pa.types.is_string(type_):
        empty = cast.index("").as_py()
    if empty >= 0:
        raise FormatError(f"{path}, row {rows_before + empty + 1} must have a value in column {name!r}, got none")
    return cast


def _numbered(rows: EdgeRows, words: Any) -> Any:
    distinct = words.dictionary_encode()
    return rows.number(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]
