"""Rows of any dtype as the widest words that fit."""

import pytest
import torch

from pagraph.features.feature import as_words, word_bytes, word_view


@pytest.mark.parametrize(
    ("shape", "dtype", "width", "words"),
    [
        ((3, 2, 2), torch.bfloat16, 1, torch.int64),
        ((3, 3), torch.float32, 3, torch.int32),
        ((3, 3), torch.float16, 3, torch.int16),
        ((3, 5), torch.bool, 5, torch.uint8),
        ((3,), torch.complex128, 2, torch.int64),
        ((3, 0), torch.float32, 0, torch.int64),
        ((0, 2), torch.float32, 1, torch.int64),
    ],
)
def test_word_view_takes_the_widest_word(shape, dtype, width, words):
    view = word_view(torch.zeros(shape, dtype=dtype))
    assert view.shape == (shape[0], width) and view.dtype == words


def test_word_view_shares_memory_and_minds_the_offset():
    base = torch.zeros(9, dtype=torch.int32)
    view = word_view(base[1:].view(4, 2))
    assert view.dtype == torch.int32
    view[0, 1] = 5
    assert base.tolist() == [0, 0, 5, 0, 0, 0, 0, 0, 0]


def test_words_mind_where_memory_begins():
    base = torch.zeros(64, dtype=torch.uint8)
    begin = -base.data_ptr() % 16
    assert [word_bytes(16, base[begin + shift :]) for shift in (0, 8, 4, 2, 1)] == [8, 8, 4, 2, 1]
    assert word_bytes(6, base[begin:]) == 2
    words = as_words(base[begin + 4 : begin + 12], 4)
    words[1] = -1
    assert base[begin + 8 : begin + 12].tolist() == [255] * 4 and int(base.sum()) == 4 * 255
