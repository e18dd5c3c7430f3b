"""Reader of text tables of numbers, with the same count in every line.

:func:`_read_lines` defines the format. DuckDB reads large tables several times faster, and gives up
at text that it might read differently. Then they are read line by line, so that errors name the
line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...errors import FormatError
from ...system.budget import check_fits
from ...system.checks import StrPath
from ..column_files import Scratch
from ..numbers import (
    KINDER,
    MOST_CHARACTERS,
    Column,
    NoIntegerError,
    NumberColumn,
    NumberField,
    integer_columns,
    number_columns,
    numbers_of,
    real_columns,
)
from ..text_blocks import Block, cut, first_line, is_packed, numbered_lines, read_blocks
from .connection import text_literal
from .text import (
    OtherLinesError,
    TableHead,
    Way,
    batches_of,
    direct_way,
    ends_alike,
    piped,
    streamed,
    unix_lines,
    unpadded,
    whole_lines,
)

# Smaller texts are read line by line: importing DuckDB takes longer.
_FEW_BYTES = 2**18
# Numbers that line-by-line reading holds as Python objects.
_GROUP = 2**16
# Numbers between checks of the room, which take a millisecond.
_CHECKED = 2**20


@dataclass(frozen=True)
class _Table:
    """A table to read.

    Attributes:
        path: The file.
        block: The first non-empty lines.
        begin: Offset of the first number in them.
        width: Numbers per line.
        separator: Separator of numbers; None: runs of blanks.
        scratch: For the numbers; None: memory.
    """

    path: StrPath
    block: Block
    begin: int
    width: int
    separator: str | None
    scratch: Scratch | None

    @classmethod
    def of(cls, path: StrPath, block: Block, scratch: Scratch | None) -> _Table:
        """Detect the layout from the first lines."""
        head = TableHead.of(block.data)
        named = head.is_comment or not all(map(_is_number, head.words))
        begin = head.behind if named else head.begin
        return cls(path, block, begin, max(len(head.words), 1), head.separator, scratch)

    def starts_whole(self) -> bool:
        """Whether the first line has only integers; also without lines."""
        _, line = first_line(self.block.data[self.begin :])
        words = cut(line.decode("utf-8", "replace"), self.separator) if line else []
        return all(word.strip(' "').lstrip("+-").isdigit() for word in words)

    def column(self, field: NumberField) -> NumberColumn:
        """An empty column for the numbers, row by row."""
        values = NumberColumn(self.path, field, self.scratch)
        values.width = self.width
        return values

    def error(self, line: int, wrong: str) -> FormatError:
        """The error for a line."""
        return FormatError(
            f"{self.path} must be a table of numbers with lines of equal length: line {line} "
            f"{wrong}"
        )


def read_numbers(path: StrPath, scratch: Scratch | None = None, *, field: str = "values") -> Tensor:
    """Read a text table of numbers, perhaps compressed, as a 2-D tensor.

    A first line with a word is a header. Empty fields are NaN. With ``scratch`` the numbers are in
    a file.

    Args:
        path: The file.
        scratch: See :func:`~pagraph.datasets.arrays.read_array`.
        field: The field that the table becomes. It gets the dtype that holds all of the numbers;
            fractions of "feat" are rounded to float32.

    Raises:
        FormatError: A line has more or fewer numbers than the first, or not only numbers; integers
            exceed 64 bits, or what float64 holds if there are fractions.
    """
    blocks = (block for block in read_blocks(path) if block.data.strip(b" #\r\n"))
    block = next(blocks, None)
    if block is None:
        return torch.empty((0, 1), dtype=torch.int64, device="cpu")
    table = _Table.of(path, block, scratch)
    # Faster than looking for fractions, and integer features stay integers.
    if table.starts_whole():
        with contextlib.suppress(NoIntegerError):
            return _read(table, NumberField(field, np.dtype(np.int64)), integer_columns)
    if field == "feat":
        return _read(table, NumberField(field, np.dtype(np.float32)), real_columns)
    return _read(table, NumberField(field), number_columns)


def _is_number(word: str) -> bool:
    try:
        float(word or "nan")  # an empty field is a missing number rather than a name
    except ValueError:
        return False
    return True


def _read(table: _Table, field: NumberField, columns: Callable[..., str]) -> Tensor:
    """The numbers of a table; NoIntegerError if integers are wanted and some are not."""
    for way in _ways(table) if len(table.block.data) > _FEW_BYTES else ():
        values = table.column(field)
        try:
            _read_quickly(table, way, values, columns)
            break
        except OtherLinesError:
            values.remove()
        except NoIntegerError:
            values.remove()
            raise
    else:
        values = table.column(field)
        _read_lines(table, values)
    return values.finish().mapped().reshape(-1, table.width)


def _ways(table: _Table) -> Iterator[Way]:
    """The ways to read whole lines."""
    lines = whole_lines()
    data = table.block.data
    begin = table.begin
    rest = data[begin:]
    if table.block.first_line > 1 or not rest.strip():
        return
    if not is_packed(table.path) and ends_alike(data) and b'"' not in rest:
        yield direct_way(table.path, lines, data, begin)
    change = unpadded if table.separator is None else partial(_bare, table.separator)
    yield Way(lines, piped(table.path, change, begin))


def _bare(separator: str, data: bytes) -> bytes:
    """Lines with Unix line ends, without quotation marks around fields."""
    data = unix_lines(data)
    if b'"' not in data:
        return data
    mark = separator.encode()
    return re.sub(rb'(^|%b)"([^"\n%b]+)"(?=%b|$)' % (mark, mark, mark), rb"\1\2", data, flags=re.M)


def _read_quickly(
    table: _Table, way: Way, values: NumberColumn, columns: Callable[..., str]
) -> None:
    """Add the numbers of a table; OtherLinesError if DuckDB may read them differently."""
    word = "c0"
    if table.width > 1:
        separator = text_literal(table.separator or " ")
        # One column of words, so that very wide rows take no more memory.
        word = (
            f"unnest(CASE WHEN len(string_split(c0, {separator})) = {table.width} "
            f"THEN string_split(c0, {separator}) ELSE error('another width') END)"
        )
    with streamed(way) as (connection, relation):
        values_of = columns("w")
        if columns is not integer_columns:
            # If blanks separate, a second blank does not make an empty field.
            is_nan = table.separator is not None
            values_of = columns("w", empty_is_nan=is_nan, longest=MOST_CHARACTERS)
        if columns is real_columns:
            # Checked per line, which is faster than per word.
            odd = " OR ".join(f"contains(c0, '{sign}')" for sign in KINDER)
            relation = (
                f"(SELECT CASE WHEN {odd} THEN error('odd') ELSE c0 END AS c0 FROM {relation})"
            )
        # An empty line has no words.
        words = f"SELECT {word} AS w FROM {relation} WHERE c0 <> ''"
        checked = 0
        for batch in batches_of(connection, f"SELECT {values_of} FROM ({words})"):
            values.append(_numbers(values.field, batch))
            if len(values) - checked >= _CHECKED:
                check_fits(table.path, values.nbytes, "numbers")
                checked = len(values)


def _numbers(field: NumberField, batch: list[Column]) -> Column:
    """The numbers of a batch of a way's columns."""
    if field.dtype is None:
        integers, reals, kinds = batch
        numbers, refused = numbers_of(field, integers, reals, kinds)
        if refused >= 0:
            raise OtherLinesError
        return numbers
    numbers, wrong = batch
    if wrong.any():
        raise OtherLinesError if field.is_float else NoIntegerError
    return numbers


def _read_lines(table: _Table, values: NumberColumn) -> None:
    """Add the numbers of a table line by line.

    Fields end at the separator. Empty fields are NaN, and empty lines are skipped.
    """
    group: list[float] = []
    for block in read_blocks(table.path):
        if block.first_line < table.block.first_line:
            continue
        begin = table.begin if block.first_line == table.block.first_line else 0
        first = block.first_line + block.data.count(b"\n", 0, begin)
        text = block.data[begin:].decode("utf-8", "replace")
        for number, line in numbered_lines(text, first):
            words = cut(line, table.separator)
            if not words:  # only blanks, if these separate
                continue
            if len(words) != table.width:
                raise table.error(number, f"has {len(words)}, and the first {table.width}")
            for word in words:
                try:
                    group.append(_number(values.field, word))
                except ValueError:
                    raise _wrong(table, number, words, word) from None
            if len(group) >= _GROUP:
                _add(table, values, group)
                group = []
    _add(table, values, group)


def _number(field: NumberField, word: str) -> int | float:
    if not word:
        return float("nan")
    bare = word.strip()
    if len(bare) > MOST_CHARACTERS or not bare.isascii():
        raise ValueError(word)
    return field.number(bare)


def _wrong(table: _Table, line: int, words: list[str], word: str) -> FormatError:
    return table.error(line, f"has {word[:80]!r} as number {words.index(word) + 1}")


def _add(table: _Table, values: NumberColumn, group: list[float]) -> None:
    field = values.field
    numbers, not_held = field.of_numbers(group)
    if field.dtype == np.int64 and (not_held >= 0 or numbers.dtype != np.int64):
        raise NoIntegerError
    if not_held >= 0:
        raise field.not_held(values.row_of(len(values) + not_held), group[not_held])
    values.append(numbers)
    check_fits(table.path, values.nbytes, "numbers")
