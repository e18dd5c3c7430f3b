from hypothesis import given
from hypothesis import strategies as st

from pagraph.report.words import cache_argument


@given(st.integers(1, 10**8), st.floats(0, 1))
def test_cache_argument_buys_the_rows(num_nodes, share):
    from pagraph.system.budget import Budget, rows_that_fit

    rows = max(1, int(share * num_nodes))
    budget = Budget.parse(cache_argument(rows, num_nodes))
    nbytes = budget.nbytes([(40, num_nodes)], free=int)
    assert rows_that_fit(nbytes, [40], num_nodes, table=False) == rows
