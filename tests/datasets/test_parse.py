"""The kernels that read text, against Python's own int()."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagraph.datasets import _parse


def as_array(text):
    return np.frombuffer(text.encode(), dtype=np.uint8)


@given(st.integers(-(2**65), 2**65), st.sampled_from(["", " ", "\t", "\n", ",", ";", "\r\n"]))
def test_read_int_equals_python(value, after):
    text = f"{value}{after}"
    got, at = _parse.read_int(as_array(text), 0)
    if -(2**63) < value < 2**63:
        assert (int(got), int(at)) == (value, len(str(value)))
    else:
        assert at == -1


@pytest.mark.parametrize("text", ["", "-", "+", "x", "1x", "1.5", "--1", "1-", "0x10", " 1", "1_000", "١"])
def test_read_int_refuses(text):
    assert _parse.read_int(as_array(text), 0)[1] == -1


def parse(text):
    array = as_array(text)
    src, dst, third = np.zeros((3, len(array) // 4 + 1), dtype=np.int64)
    count, bad = _parse.parse_edges(array, src, dst, third)
    return src[:count].tolist(), dst[:count].tolist(), third[:count].tolist(), bad


def test_parse_edges_tells_the_third_field_or_the_line():
    assert parse("1 2 3\n4 5\n6 7") == ([1, 4, 6], [2, 5, 7], [4, -1 - 6, -1 - 10], -1)
    assert parse("1 2\n 3 x\n") == ([1], [2], [-1], 4)


def test_shortest_lines_fit():
    assert parse("1 2\n" * 50)[0] == [1] * 50
    assert parse("1 2\n" * 50 + "1 2")[0] == [1] * 51


def test_copy_fields():
    text = as_array("ab,cde\nf")
    out = np.zeros((3, 3), dtype=np.uint8)
    assert _parse.copy_fields(text, np.array([0, 3, 7]), out) == -1
    assert out.view("S3")[:, 0].tolist() == [b"ab", b"cde", b"f"]
    assert _parse.copy_fields(text, np.array([0, -4]), out) == 1
    assert _parse.copy_fields(text, np.array([0, 3]), out[:, :2].copy()) == 1
