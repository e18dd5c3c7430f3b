"""Reads the lines of an edge list: two integers each, or two words."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from .text_blocks import Block, read_blocks

__all__ = ["EdgeLines", "NotNumbersError", "read_numbers", "read_words"]

_FIELD_BYTES = 32
_HEADER_WORDS = {
    *("src", "source", "from", "u", "head", "node1", "id1", "node_1", "fromnodeid", "dst", "target", "to"),
    *("destination", "v", "tail", "node2", "id2", "node_2", "tonodeid"),
}

Progress = Callable[[int, int], None]


@dataclass
class EdgeLines:
    """The edges read so far, in pieces; ids are kept in 32 bits where a whole piece fits."""

    count: int = 0
    src: list[npt.NDArray[Any]] = field(default_factory=list)
    dst: list[npt.NDArray[Any]] = field(default_factory=list)
    weight: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def add(self, src: npt.NDArray[Any], dst: npt.NDArray[Any]) -> None:
        """Append a piece."""
        self.count += len(src)
        for pieces, ids in ((self.src, src), (self.dst, dst)):
            small = len(ids) == 0 or (ids.min() >= -(2**31) and ids.max() < 2**31)
            pieces.append(ids.astype(np.int32 if small else np.int64))

    def joined(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """All sources and destinations; the pieces are let go."""
        empty = [np.empty(0, dtype=np.int32)]
        src, dst = np.concatenate(self.src or empty), np.concatenate(self.dst or empty)
        self.src, self.dst = [], []
        return src, dst


class NotNumbersError(Exception):
    """A line does not begin with two integers: the file holds words, or is no edge list."""


def read_numbers(
    path: str | os.PathLike[str],
    *,
    weight: str | None = None,
    header: bool | None = None,
    progress: Progress | None = None,
) -> EdgeLines:
    """Read edges between integers.

    Raises:
        NotNumbersError: A line does not begin with two integers that fit int64.
        FormatError: The file is no whole gzip file, or a third field is no number and ``weight`` is set.
    """
    from . import _parse

    edges = EdgeLines()
    looked_for_header = False
    for block in read_blocks(path, progress=progress):
        if not looked_for_header:
            block, looked_for_header = _without_header(block, header)
        text = np.frombuffer(block.data, dtype=np.uint8)
        room = len(text) // 4 + 1  # the shortest edge is "1 2" and a newline
        src, dst, third = np.empty((3, room), dtype=np.int64)
        count, bad = _parse.parse_edges(text, src, dst, third)
        if bad >= 0:
            number, line = block.line_at(bad)
            raise NotNumbersError(f"{path}, line {number} must begin with two integers, got {line!r}")
        edges.add(src[:count], dst[:count])
        if weight is not None:
            edges.weight.append(_weights(path, block, text, third[:count]))
    return edges


def _without_header(block: Block, header: bool | None) -> tuple[Block, bool]:
    """The block without a first line that names the fields, and whether that line has been met."""
    at = 0
    while at < len(block.data):
        end = block.data.find(b"\n", at) + 1 or len(block.data)
        fields = block.data[at:end].replace(b",", b" ").replace(b";", b" ").split()
        if fields and fields[0][:1] not in (b"#", b"%"):
            if header is False or (header is None and any(_is_int(f) for f in fields[:2])):
                return block, True
            skipped = block.data[:at] + b"#" + block.data[at:]  # as a comment: line numbers stay right
            return Block(skipped, block.first_line), True
        at = end
    return block, False


def _is_int(text: bytes) -> bool:
    return text.lstrip(b"+-").isdigit()


def _weights(
    path: str | os.PathLike[str], block: Block, text: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    from . import _parse

    fields = np.zeros((len(places), _FIELD_BYTES), dtype=np.uint8)
    bad = int(_parse.copy_fields(text, places, fields))
    words = fields.view(f"S{_FIELD_BYTES}")[:, 0]
    if bad < 0:
        try:
            return words.astype(np.float64).astype(np.float32)
        except ValueError:
            bad = next(i for i, word in enumerate(words) if not _is_float(word))
    place = int(places[bad])
    line, _ = block.line_at(place if place >= 0 else -1 - place)
    raise FormatError(f"{path}, line {line} must have a number of at most {_FIELD_BYTES} characters as its third field")


def _is_float(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_words(
    path: str | os.PathLike[str],
    *,
    weight: str | None = None,
    header: bool | None = None,
    progress: Progress | None = None,
) -> tuple[EdgeLines, list[str]]:
    """Read edges between words, numbered as they appear; also gives the words.

    Raises:
        FormatError: The file is no UTF-8 text, or a line has no two words.
    """
    edges, numbers = EdgeLines(), dict[str, int]()
    delimiter: str | None = None
    begun = False
    for block in read_blocks(path, progress=progress):
        lines = _text_lines(path, block)
        if not begun and lines:
            delimiter = next((d for d in ",;\t" if d in lines[0][1]), None)
            first = {w.strip().lower() for w in _cut([lines[0][1]], delimiter)[0][:2]}
            lines = lines[1:] if header or (header is None and first <= _HEADER_WORDS) else lines
            begun = True
        rows = _cut([text for _, text in lines], delimiter)
        ends = np.empty((2, len(rows)), dtype=np.int64)
        for i, fields in enumerate(rows):
            if len(fields) < 2 or not fields[0].strip() or not fields[1].strip():
                raise FormatError(f"{path}, line {lines[i][0]} must hold two ids, got {lines[i][1][:80]!r}")
            ends[0, i] = numbers.setdefault(fields[0].strip(), len(numbers))
            ends[1, i] = numbers.setdefault(fields[1].strip(), len(numbers))
        edges.add(ends[0], ends[1])
        if weight is not None:
            values = [_third(path, line, fields) for (line, _), fields in zip(lines, rows, strict=True)]
            edges.weight.append(np.asarray(values, dtype=np.float32))
    return edges, list(numbers)


def _text_lines(path: str | os.PathLike[str], block: Block) -> list[tuple[int, str]]:
    """Number and text of every line of the block that is neither empty nor a comment."""
    try:
        lines = block.data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} must be UTF-8 text: {error}") from None
    numbered = ((i, line.strip()) for i, line in enumerate(lines, block.first_line))
    return [(i, line) for i, line in numbered if line and line[0] not in "#%"]


def _cut(lines: list[str], delimiter: str | None) -> list[list[str]]:
    """The fields of every line; ``None`` cuts at any space."""
    if delimiter is None:
        return [line.split() for line in lines]
    # One reader a line: a stray quotation mark must not swallow the lines after it.
    return [next(csv.reader([line], delimiter=delimiter)) if '"' in line else line.split(delimiter) for line in lines]


def _third(path: str | os.PathLike[str], line: int, fields: list[str]) -> float:
    try:
        return float(fields[2])
    except (IndexError, ValueError):
        raise FormatError(f"{path}, line {line} must have a number as its third field") from None
