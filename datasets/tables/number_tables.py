"""Reads text that is a table of numbers, as many in every line.

What such a table is, :func:`_read_lines` defines. DuckDB reads large ones, in several times less
time, and gives up at what it might read otherwise: then they are read line by line, and the error
names the line that is wrong.
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
from ..numbers import Column, NumberColumn, NumberField
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
from .text_numbers import (
    KINDER,
    MOST_CHARACTERS,
    NoIntegerError,
    integer_columns,
    number_columns,
    numbers_of,
    real_columns,
)

# Texts that are read line by line at once: importing DuckDB takes longer.
_FEW_BYTES = 2**18
# Numbers of a line-by-line reading that are held as Python's objects.
_GROUP = 2**16
# Numbers that are added before their room is checked again, which takes a millisecond.
_CHECKED = 2**20


@dataclass(frozen=True)
class _Table:
    """A table that is read.

    Attributes:
        path: The file.
        block: The first lines that are not empty.
        begin: Where the first of the numbers begins in them.
        width: Numbers in a line.
        separator: What stands between them; None: blanks, as many as there are.
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
        """See how the numbers lie in the lines."""
        head = TableHead.of(block.data)
        named = head.is_comment or not all(map(_is_number, head.words))
        begin = head.behind if named else head.begin
        return cls(path, block, begin, max(len(head.words), 1), head.separator, scratch)

    def starts_whole(self) -> bool:
        """Whether the first line has integers alone; so of no lines."""
        _, line = first_line(self.block.data[self.begin :])
        words = cut(line.decode("utf-8", "replace"), self.separator) if line else []
        return all(word.strip(' "').lstrip("+-").isdigit() for word in words)

    def column(self, field: NumberField) -> NumberColumn:
        """An empty column for the numbers, row after row."""
        values = NumberColumn(self.path, field, self.scratch)
        values.width = self.width
        return values

    def error(self, line: int, wrong: str) -> FormatError:
        """The error for a line."""
        return FormatError(
            f"{self.path} must be a table of numbers, as many in every line: line {line} {wrong}"
        )


def read_numbers(path: StrPath, scratch: Scratch | None = None, *, field: str = "values") -> Tensor:
    """Read a text table of numbers, 2-D; packed ones are unpacked.

    A first line with a word in it names the columns. Empty fields are NaN. With ``scratch`` the
    numbers are in a file.

    Args:
        path: The file.
        scratch: See :func:`~pagraph.datasets.arrays.read_array`.
        field: The field that the table becomes. It gets the dtype that holds all of the numbers;
            the fractions of "feat" are rounded to float32.

    Raises:
        FormatError: A line has more or fewer numbers than the first, or something else; integers
            are wider than 64 bits, or than fractions beside them allow.
    """
    blocks = (block for block in read_blocks(path) if block.data.strip(b" #\r\n"))
    block = next(blocks, None)
    if block is None:
        return torch.empty((0, 1), dtype=torch.int64, device="cpu")
    table = _Table.of(path, block, scratch)
    # Quicker than to look for fractions, and features of integers stay integers.
    if table.starts_whole():
        with contextlib.suppress(NoIntegerError):
            return _read(table, NumberField(field, np.dtype(np.int64)), integer_columns)
    if field == "feat":
        return _read(table, NumberField(field, np.dtype(np.float32)), real_columns)
    return _read(table, NumberField(field), number_columns)


def _is_number(word: str) -> bool:
    try:
        float(word or "nan")  # an empty field is a missing number, and no name
    except ValueError:
        return False
    return True


def _read(table: _Table, field: NumberField, columns: Callable[..., str]) -> Tensor:
    """The numbers of a table; NoIntegerError if they are no integers, where a field of these is
    wanted."""
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
    """The ways to read lines whole."""
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
    """Lines as Unix ends them, without the quotation marks around fields."""
    data = unix_lines(data)
    if b'"' not in data:
        return data
    mark = separator.encode()
    return re.sub(rb'(^|%b)"([^"\n%b]+)"(?=%b|$)' % (mark, mark, mark), rb"\1\2", data, flags=re.M)


def _read_quickly(
    table: _Table, way: Way, values: NumberColumn, columns: Callable[..., str]
) -> None:
    """Add the numbers of a table; OtherLinesError where DuckDB may read them otherwise."""
    word = "c0"
    if table.width > 1:
        separator = text_literal(table.separator or " ")
        # One column of words: so a row of a hundred thousand takes no more memory than others.
        word = (
            f"unnest(CASE WHEN len(string_split(c0, {separator})) = {table.width} "
            f"THEN string_split(c0, {separator}) ELSE error('another width') END)"
        )
    with streamed(way) as (connection, relation):
        values_of = columns("w")
        if columns is not integer_columns:
            # Where blanks separate, a second one is no empty field.
            is_nan = table.separator is not None
            values_of = columns("w", empty_is_nan=is_nan, longest=MOST_CHARACTERS)
        if columns is real_columns:
            # Line by line, which is quicker than word by word.
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
    """What a way's columns say."""
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
    """Add the numbers of a table line by line: fields end at the separator, an empty one is NaN,
    and empty lines are none."""
    group: list[float] = []
    for block in read_blocks(table.path):
        if block.first_line < table.block.first_line:
            continue
        begin = table.begin if block.first_line == table.block.first_line else 0
        first = block.first_line + block.data.count(b"\n", 0, begin)
        text = block.data[begin:].decode("utf-8", "replace")
        for number, line in numbered_lines(text, first):
            words = cut(line, table.separator)
            if not words:  # blanks alone, where these separate
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
