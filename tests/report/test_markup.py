from hypothesis import given
from hypothesis import strategies as st

from pagraph.report.markup import round_ticks
from pagraph.report.words import cache_argument
from pagraph.system.tables import element


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
    from pagraph.system.budget import Budget, rows_that_fit

    rows = max(1, int(share * num_nodes))
    budget = Budget.parse(cache_argument(rows, num_nodes))
    nbytes = budget.nbytes([(40, num_nodes)], free=int)
    assert rows_that_fit(nbytes, [40], num_nodes, table=False) == rows
