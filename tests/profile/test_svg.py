import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagraph.profile.svg import element, round_ticks
from pagraph.profile.words import bytes_text, cache_argument


@given(st.floats(1e-6, 1e9), st.integers(4, 12))
def test_ticks_are_round_and_few(high, most):
    ticks = round_ticks(high, most=most)
    assert ticks[0] == 0 and 2 <= len(ticks) <= most
    assert ticks[-1] <= high * (1 + 1e-6)
    step = ticks[1]
    assert high - ticks[-1] < step * (1 + 1e-6)
    assert f"{step:.3e}".split("e")[0] in ("1.000", "2.000", "5.000")


def test_no_range_has_one_tick():
    assert round_ticks(0.0) == [0.0]


def test_attributes_are_escaped():
    assert element("a", "x", class_='"<&>"', y=None) == '<a class="&quot;&lt;&amp;&gt;&quot;">x</a>'


@given(st.integers(1, 10**8), st.floats(0, 1))
def test_cache_argument_buys_the_rows(num_nodes, share):
    from pagraph.cache.budget import Budget, rows_that_fit

    rows = max(1, int(share * num_nodes))
    budget = Budget.parse(cache_argument(rows, num_nodes))
    nbytes = budget.nbytes([(40, num_nodes)], free=int)
    assert rows_that_fit(nbytes, [40], num_nodes, table=False) == rows


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.00 kB"), (9994, "9.99 kB"), (99_940, "99.9 kB"), (999_400, "999 kB"),
     (999_600, "1.00 MB"), (2**31, "2.15 GB"), (5e15, "5000 TB")],
)  # fmt: skip
def test_bytes(nbytes, text):
    assert bytes_text(nbytes) == text
