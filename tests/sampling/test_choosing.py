"""How many vertices the pivotal method draws, also where probabilities are 1 to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph.sampling.kernels import layerwise

CALM = settings(deadline=None)

fractions = st.builds(lambda a, b: a / b, st.integers(0, 9), st.integers(1, 9))


def chosen(importance, size, key=5):
    factors = np.full(len(importance), np.nan)
    layerwise.choose(np.array(importance, dtype=np.float64), size, np.uint64(key), factors)
    return factors


@pytest.mark.parametrize(
    ("importance", "size"),
    [
        ([8 / 3, 1.0, 5 / 3], 2),
        ([4 / 3, 7 / 6, 2.0, 1 / 6], 3),
        ([3.0, 8 / 3, 5 / 3, 1.0], 3),
    ],
)
def test_a_vertex_that_is_certain_but_for_rounding(importance, size):
    """The largest reaches 1 with one constant, the next constant takes it back by one bit: this
    went on for ever."""
    for key in range(200):
        factors = chosen(importance, size, key)
        assert np.count_nonzero(factors) == size and factors[
            np.argmax(importance)
        ] == pytest.approx(1.0)


@CALM
@given(st.lists(fractions, min_size=1, max_size=12), st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_draws_so_many(importance, size, key):
    factors = chosen(importance, size, key)
    assert np.count_nonzero(factors) == min(size, np.count_nonzero(importance))
    assert (factors[np.array(importance) == 0] == 0).all()
    assert ((factors == 0) | (factors >= 1 - 1e-12)).all()


def test_importance_that_vanishes_beside_the_rest():
    """The constant is infinite then; vertices of importance 0 are none the less never chosen."""
    for key in range(50):
        factors = chosen([1.0, 0.0, 1e-320, 1e-320, 0.0], 2, key)
        assert factors[0] == 1.0 and factors[1] == factors[4] == 0.0 and np.isfinite(factors).all()
