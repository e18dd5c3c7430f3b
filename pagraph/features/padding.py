"""Padding: extra rows after those of each hop of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sampling.fixed_shapes import HopPart, hop_parts

IGNORED_LABEL = -100
"""Label of padding, which torch's losses ignore (``ignore_index``)."""


class Padding(NamedTuple):
    """Extra rows after those of each hop, which belong to no id.

    Attributes:
        sampled: Number of rows of each hop that are read.
        room: Number of rows of each hop with padding.
        marks: Whether padding is -100, or NaN for floats, as losses ignore it; else it is 0.
    """

    sampled: Sequence[int]
    room: Sequence[int]
    marks: bool = False

    def parts(self) -> Iterator[HopPart]:
        """Where the rows of each hop are, and its padding."""
        return hop_parts(self.sampled, self.room)

    def value(self, dtype: torch.dtype) -> float:
        """The value of padding; ValueError if a dtype cannot hold the mark."""
        if not self.marks:
            return 0
        if dtype.is_floating_point or dtype.is_complex:
            return math.nan
        if dtype == torch.bool or torch.iinfo(dtype).min > IGNORED_LABEL:
            raise ValueError(
                "labels must be signed integers or floats for shapes='fixed', whose padding has "
                f"the label {IGNORED_LABEL} or NaN, got {dtype}"
            )
        return IGNORED_LABEL

    def fill(self, rows: Tensor) -> None:
        """Write the padding into ``rows``, which have room for it."""
        value = self.value(rows.dtype)
        for part in self.parts():
            piece = rows[part.padding]
            if value == 0:
                _plain(piece)[:] = 0
            else:
                piece.fill_(value)

    def added_to(self, rows: Tensor) -> Tensor:
        """A copy of rows with padding, on the same device."""
        shape = sum(self.room), *rows.shape[1:]
        padded = torch.empty(shape, dtype=rows.dtype, device=rows.device)
        for part in self.parts():
            _plain(padded[part.placed])[:] = _plain(rows[part.sampled])
        self.fill(padded)
        return padded


def _plain(rows: Tensor) -> Any:
    """Contiguous rows; on the CPU as a NumPy array, since torch would wake its thread pool."""
    return rows.view(-1).view(torch.uint8).numpy() if rows.is_cpu else rows
