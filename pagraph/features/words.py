"""Rows of any dtype as rows of integers, the widest that fit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["as_words", "word_bytes", "word_view"]

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def word_bytes(row_bytes: int, *tensors: Tensor) -> int:
    """The widest word of which rows consist and at whose multiples the tensors' memory begins: 8, 4, 2 or 1 bytes.

    >>> word_bytes(400), word_bytes(12), word_bytes(7), word_bytes(8, torch.zeros(4, dtype=torch.int16)[1:])
    (8, 4, 1, 2)
    """
    begins = (part for t in tensors for part in (t.data_ptr(), t.storage_offset() * t.element_size()))
    return math.gcd(8, row_bytes, *begins)


def as_words(tensor: Tensor, word: int) -> Tensor:
    """The memory of a contiguous tensor as words of ``word`` bytes, shape ``(nbytes // word,)``."""
    flat = torch.empty(0, dtype=_WORDS[word], device=tensor.device)
    nbytes, offset = tensor.numel() * tensor.element_size(), tensor.storage_offset() * tensor.element_size()
    return flat.set_(tensor.untyped_storage(), offset // word, (nbytes // word,), (1,))


def word_view(tensor: Tensor) -> Tensor:
    """A contiguous tensor as rows of the widest words: indexing then works for every dtype.

    >>> word_view(torch.zeros(3, 2, 2, dtype=torch.bfloat16)).shape
    torch.Size([3, 1])
    """
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    word = word_bytes(row_bytes, tensor)
    return as_words(tensor, word).view(tensor.shape[0], row_bytes // word)
