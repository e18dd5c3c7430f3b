"""The field `feat` from the other fields of a vertex type: standardised numbers, one-hot words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...graph.fields import FieldNote, Fields
from ...system.arrays import Array
from ...system.moments import Moments
from ..column_files import Scratch, new_column
from ..original_ids import ORIGINAL_ID
from .columns import TIME, is_mask

LABEL = "label"
FEATURES = "feat"

# Maximal words of a field to one-hot encode in `feat`; more are better embedded by the model.
_MOST_WORDS = 32
_BLOCK_ROWS = 2**16


def set_features(
    fields: Fields,
    count: int,
    scratch: Scratch | None,
    *,
    gaps: Mapping[str, Tensor],
    with_ones: bool,
    every_word: bool = False,
) -> dict[str, str]:
    """Set ``feat`` from standardised numbers and one-hot words, if there is none.

    Args:
        fields: The fields of a vertex type.
        count: Number of its vertices.
        scratch: For rows larger than memory; None: all is in memory.
        gaps: For fields where numbers stand for missing values: whether a row has one.
        with_ones: Whether a type without inputs gets a column of ones.
        every_word: Whether fields of any number of words are encoded.

    Returns:
        What ``feat`` has of each field, or why nothing.
    """
    if FEATURES in fields:
        return {name: "not in feat, which is a column" for name in fields if name != FEATURES}
    parts: list[_Words | _Numbers] = []
    found = {}
    for name, rows in fields.items():
        note = fields.notes.get(name, FieldNote())
        reason = _why_not(name, rows, note, every_word)
        if reason:
            found[name] = reason
            continue
        part = _Words(rows, len(note.words)) if note.words else _Numbers(rows, gaps.get(name))
        parts.append(part)
        found[name] = part.said
    width = sum(part.width for part in parts)
    if not width and not with_ones:
        return found
    store = new_column(scratch, "float32")
    for begin in range(0, count, _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, count)
        blocks = [part.read(begin, end) for part in parts]
        ones = np.ones((end - begin, 1), dtype=np.float32)
        store.append(np.concatenate(blocks or [ones], axis=1).reshape(-1))
    fields[FEATURES] = store.mapped().reshape(count, max(width, 1))
    return found


def _why_not(name: str, rows: Tensor, note: FieldNote, every_word: bool) -> str:
    """Why a field is no input of features; empty if it is one."""
    if name in (TIME, LABEL, ORIGINAL_ID) or is_mask(name):
        return f"not in feat, as {name} is no input"
    if note.unit:
        return "not in feat, as times are no numbers"
    if rows.dim() > 2:
        return f"not in feat, as it has {rows.dim()} dimensions"
    if len(note.words) > _MOST_WORDS and not every_word:
        return (
            f"not in feat, which takes at most {_MOST_WORDS} words, here {len(note.words):,}: "
            f"words={_MOST_WORDS} keeps the most frequent"
        )
    return ""


@dataclass(frozen=True)
class _Words:
    """A column of ``feat`` for each word of a field of codes."""

    rows: Tensor
    width: int

    @property
    def said(self) -> str:
        """What ``feat`` has of it."""
        return "in feat: a column a word"

    def read(self, begin: int, end: int) -> Array:
        """A block of rows, with 0 in all columns for missing words."""
        codes = self.rows[begin:end].numpy()
        found: Array = (codes[:, None] == np.arange(self.width)).astype(np.float32)
        return found


class _Numbers:
    """Columns of ``feat`` from a field of numbers, with mean 0 and deviation 1."""

    def __init__(self, rows: Tensor, gaps: Tensor | None) -> None:
        self.width = rows.shape[1] if rows.dim() == 2 else 1
        self._rows = rows
        self._gaps = gaps
        self._moments = Moments.of(self._blocks)

    @property
    def said(self) -> str:
        """What ``feat`` has of it."""
        if not self._moments.spreads.any():
            return "in feat: 0, as it is constant"
        return "in feat: scaled"

    def read(self, begin: int, end: int) -> Array:
        """A block of rows, with 0 (the mean) for missing values."""
        return self._moments.standardised(self._block(begin, end)).astype(np.float32)

    def _blocks(self) -> Iterator[Array]:
        for begin in range(0, len(self._rows), _BLOCK_ROWS):
            yield self._block(begin, min(begin + _BLOCK_ROWS, len(self._rows)))

    def _block(self, begin: int, end: int) -> Array:
        """A block of rows, with missing values masked."""
        values: Array = self._rows[begin:end].numpy().reshape(end - begin, self.width)
        if self._gaps is None:
            return values
        gaps = self._gaps[begin:end].numpy().astype(bool)
        masked: Array = np.ma.masked_array(values, np.repeat(gaps[:, None], self.width, axis=1))
        return masked
