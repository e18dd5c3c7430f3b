"""Keeps the ids that vertices had in a file as the field ``original_id``: numbers, or the bytes of words."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["id_field", "word_rows", "words_of"]


def id_field(words: Iterable[str]) -> Tensor | None:
    """The field that keeps ids: int64, or UTF-8 bytes padded with zeros; None where they count from 0."""
    words = list(words)
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if list(map(str, numbers)) == words and all(abs(number) < 2**63 for number in numbers):
        return None if numbers == list(range(len(words))) else torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return word_rows(np.array([word.encode() for word in words]))


def word_rows(words: npt.NDArray[np.bytes_]) -> Tensor:
    """Words as rows of bytes, padded with zeros."""
    return torch.from_numpy(words.view(np.uint8).reshape(len(words), words.dtype.itemsize))


def words_of(rows: Tensor) -> npt.NDArray[np.bytes_]:
    """The words that :func:`word_rows` made rows of."""
    return np.ascontiguousarray(rows.numpy()).view(f"S{max(rows.shape[1], 1)}").reshape(-1)
