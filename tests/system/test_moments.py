"""Mean and deviation against exact fractions, whatever the size of the numbers."""

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest

from pagraph.system.moments import Moments


def exact(values):
    """Mean and deviation, in fractions of integers."""
    numbers = [Fraction(int(v)) if v.dtype.kind == "i" else Fraction(float(v)) for v in values]
    mean = sum(numbers) / len(numbers)
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    scale = 10**400
    root = Fraction(isqrt(variance.numerator * scale**2 // variance.denominator), scale)
    return mean, root


DRAW = np.random.default_rng(0)
COLUMNS = {
    "milliseconds of one minute": 1_700_000_000_000 + DRAW.integers(0, 60_000, 1000),
    "1e15 with a deviation of 3e5": 1e15 + DRAW.normal(0, 3e5, 1000),
    "integers of 1e15": 10**15 + DRAW.integers(0, 3, 1000),
    "nanoseconds": 1_700_000_000_000_000_000 + DRAW.integers(0, 100, 1000),
    "all of 64 bits": DRAW.integers(-(2**63), 2**63 - 1, 1000),
    "both ends": np.array([-(2**63), 2**63 - 1, 0]),
    "small": DRAW.normal(0, 1e-12, 1000) + 1e-3,
    "one far away": np.array([1e15, *([3.0, 4.0] * 500)]),
    "the largest": np.array([1.7e308, -1.7e308, 1e308]),
    "the smallest": np.array([5e-324, 0.0, 1e-323]),
    "usual": DRAW.normal(5, 2, 1000).astype(np.float32),
    "booleans": DRAW.random(1000) < 0.3,
}


@pytest.mark.parametrize("block", [7, 10_000])
@pytest.mark.parametrize("name", COLUMNS)
def test_against_fractions(name, block):
    column = COLUMNS[name]
    rows = column.reshape(-1, 1)
    blocks = [rows[begin : begin + block] for begin in range(0, len(rows), block)]
    found = Moments.of(lambda: blocks)
    wide = column.astype(np.int64) if column.dtype.kind == "b" else column
    mean, deviation = exact(wide)
    assert float(found.mean[0]) == pytest.approx(float(mean), rel=1e-9, abs=float(deviation) * 1e-9)
    # What is below the smallest normal number has few digits.
    assert float(found.deviation[0]) == pytest.approx(float(deviation), rel=1e-6, abs=5e-324)
    scaled = np.concatenate([found.standardised(part) for part in blocks])[:, 0]
    expected = [
        float((Fraction(v.item()) - mean) / deviation) if v.dtype.kind != "b" else None
        for v in wide
    ]
    assert np.allclose(scaled, expected, rtol=1e-6, atol=1e-6)


def test_a_column_is_flat_only_if_all_are_equal():
    rows = np.array([[1e15, 1e15], [1e15, 1e15 + 0.125]])
    found = Moments.of(lambda: [rows])
    assert found.standardised(rows).tolist() == [[0, -1], [0, 1]]
    assert found.deviation.tolist() == [0, 0.0625]


def test_what_is_missing_does_not_count():
    rows = np.array([[1.0], [np.nan], [np.inf], [3.0]])
    found = Moments.of(lambda: [rows])
    assert (found.mean, found.deviation) == (2, 1)
    assert found.standardised(rows)[:, 0].tolist() == [-1, 0, 0, 1]
    masked = np.ma.masked_array([[1], [-1], [3]], [[False], [True], [False]])
    found = Moments.of(lambda: [masked[:2], masked[2:]])
    assert (found.mean, found.deviation) == (2, 1)
    assert found.standardised(masked)[:, 0].tolist() == [-1, 0, 1]


def test_no_values():
    assert Moments.of(lambda: [np.zeros((0, 2))]).mean.tolist() == []
    rows = np.full((3, 2), np.nan)
    assert Moments.of(lambda: [rows]).standardised(rows).tolist() == [[0, 0]] * 3
