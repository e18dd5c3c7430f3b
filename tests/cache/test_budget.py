"""What budgets may be said in, and how they become rows."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagraph.system import Budget, rows_that_fit
from pagraph.system.budget import SLOT_BYTES


def never():
    raise AssertionError("free memory was asked for")


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (1, 1),
        (1048576, 1048576),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        ("1048576B", 1048576),
        ("500MB", 500_000_000),
        ("500 mb", 500_000_000),
        ("2GiB", 2 * 1024**3),
        (" 2gib ", 2 * 1024**3),
        ("1.5KiB", 1536),
        ("1.5kB", 1500),
        ("3TiB", 3 * 1024**4),
        ("1TB", 10**12),
        (2**70, 2**70),
    ],
)
def test_bytes(value, limit):
    budget = Budget.parse(value)
    assert budget == Budget(limit=limit) and not budget.is_auto
    assert budget.nbytes([(4, 10)], free=never) == limit


@pytest.mark.parametrize(
    ("value", "share"),
    [
        (0.1, 0.1),
        (1.0, 1.0),
        (np.float32(0.5), 0.5),
        (Fraction(1, 4), 0.25),
        ("10%", 0.1),
        ("100 %", 1.0),
        ("0.5%", 0.005),
    ],
)
def test_shares(value, share):
    budget = Budget.parse(value)
    assert budget.limit is None and budget.share == pytest.approx(share) and not budget.is_auto


@pytest.mark.parametrize("value", [None, 0, 0.0, "0", "0%", "0B", "0GiB", "0.0", np.int64(0)])
def test_off(value):
    assert Budget.parse(value) is None


@pytest.mark.parametrize("value", ["auto", "AUTO", " auto "])
def test_auto(value):
    assert Budget.parse(value).is_auto
    assert Budget.parse(value).nbytes([(4, 10)], free=lambda: 123) == 123
    assert Budget.parse(value).nbytes([(4, 10)], free=lambda: -5) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("lots", "cache must be \"auto\", bytes .* or a share of the rows .* got 'lots'"),
        ("", "got ''"),
        ("2 GiB of it", "got '2 GiB of it'"),
        ("2XB", "got '2XB'"),
        ("-1", "got '-1'"),
        ("-5%", "got '-5%'"),
        ("1e9", "got '1e9'"),
        ("nan", "got 'nan'"),
        ("inf", "got 'inf'"),
        ("%", "got '%'"),
        ("1_000", "got '1_000'"),
        ("٣GiB", "got '٣GiB'"),
        ("101%", r"cache must be a share in \(0, 1\], got 1.01"),
        ("1.5", r'must have a unit as text \("1.5MiB", "1.5%"\), got'),
        ("10", r'must have a unit as text \("10MiB", "10%"\), got'),
        (1.5, r"share in \(0, 1\], got 1.5"),
        (-0.1, r"share in \(0, 1\], got -0.1"),
        (math.nan, r"share in \(0, 1\], got nan"),
        (math.inf, r"share in \(0, 1\], got inf"),
        (-1, "cache must be at least 0 bytes, got -1"),
        (np.int64(-3), "at least 0 bytes, got -3"),
    ],
)
def test_wrong_values(value, text):
    with pytest.raises(ValueError, match=text):
        Budget.parse(value)


@pytest.mark.parametrize(
    "value", [True, False, np.True_, [1], {"node": 1}, 1j, b"1GiB", Decimal(1)]
)
def test_wrong_types(value):
    with pytest.raises(TypeError, match="cache must be"):
        Budget.parse(value)


def test_is_bytes_or_a_share():
    with pytest.raises(ValueError, match="a budget must be bytes or a share, got 5 and 0.5"):
        Budget(limit=5, share=0.5)
    assert Budget(limit=0).nbytes([(4, 3)], free=never) == 0


def test_reprs():
    assert [repr(Budget.parse(v)) for v in ("auto", "2KiB", "10%")] == [
        "Budget(auto)",
        "Budget(2048 bytes)",
        "Budget(0.1 of the rows)",
    ]


@pytest.mark.parametrize(
    ("nbytes", "row_bytes", "num_nodes", "rows"),
    [
        (0, [4], 10, 0),
        (-1000, [4], 10, 0),
        (SLOT_BYTES * 10, [4], 10, 0),
        (SLOT_BYTES * 10 + 3, [4], 10, 0),
        (SLOT_BYTES * 10 + 4, [4], 10, 1),
        (SLOT_BYTES * 10 + 39, [4], 10, 9),
        (SLOT_BYTES * 10 + 40, [4], 10, 10),
        (10**18, [4], 10, 10),
        (10**18, [4], 0, 0),
        (10**18, [], 10, 0),
        (10**18, [0, 0], 10, 0),
        (SLOT_BYTES * 100 + 130 * 7 + 129, [128, 2], 100, 7),
        (SLOT_BYTES * 100 + 130 * 7, [128, 2, 0], 100, 7),
    ],
)
def test_rows(nbytes, row_bytes, num_nodes, rows):
    assert rows_that_fit(nbytes, row_bytes, num_nodes) == rows


def test_rows_without_a_table():
    assert rows_that_fit(40, [4], 100, table=False) == 10
    assert rows_that_fit(-40, [4], 100, table=False) == 0


@given(
    st.integers(-(2**60), 2**60),
    st.lists(st.integers(0, 10_000), max_size=4),
    st.integers(0, 10**10),
)
def test_rows_fit_and_no_more_would(nbytes, row_bytes, num_nodes):
    rows = rows_that_fit(nbytes, row_bytes, num_nodes)
    width, table = sum(row_bytes), SLOT_BYTES * num_nodes
    assert 0 <= rows <= num_nodes
    if rows:
        assert rows * width + table <= nbytes
    if width and rows < num_nodes:
        assert (rows + 1) * width + table > nbytes


@given(
    st.floats(0.0001, 1.0),
    st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    st.integers(1, 10**8),
)
def test_a_share_gives_that_share_of_the_rows(share, row_bytes, num_nodes):
    nbytes = Budget.parse(share).nbytes([(sum(row_bytes), num_nodes)], free=never)
    rows = rows_that_fit(nbytes, row_bytes, num_nodes, table=False)
    assert abs(rows - share * num_nodes) < 1.001
    assert rows <= num_nodes


@pytest.mark.parametrize(("percent", "rows"), [(29, 29), (57, 57), (58, 58), (1, 1), (100, 100)])
def test_percentages_do_not_lose_a_row_to_rounding(percent, rows):
    nbytes = Budget.parse(f"{percent}%").nbytes([(12, 100)], free=never)
    assert rows_that_fit(nbytes, [12], 100, table=False) == rows


def test_one_budget_for_several_types():
    types = [(12, 100), (100, 29), (5, 0)]
    assert Budget.parse("10%").nbytes(types, free=never) == 10 * 12 + 2 * 100
    assert Budget.parse("100%").nbytes(types, free=never) == 1200 + 2900
    assert Budget.parse("1KiB").nbytes(types, free=never) == 1024
    assert Budget.parse("auto").nbytes(types, free=lambda: 77) == 77
    assert Budget.parse("10%").nbytes([], free=never) == 0
    assert [Budget.parse(value).pays_tables for value in ("10%", "1KiB", "auto")] == [
        False,
        True,
        True,
    ]
