"""Ends of negative pairs: the kernels against plain Python, their distribution, weights and
times."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_sampler import B, mix
from scipy import stats

from pagraph.sampling.negative import NegativeEnds
from pagraph.seeds import derive_key


def plain_draw(num_nodes, weight, time, count, key, until):
    """The same draws, one at a time."""
    order = (
        list(range(num_nodes)) if time is None else sorted(range(num_nodes), key=lambda v: time[v])
    )
    drawn = []
    for i in range(count):
        u = ((mix((key + i * B) % 2**64) >> 12) + 0.5) * 2.0**-52
        there = (
            order if until is None or time is None else [v for v in order if time[v] <= until[i]]
        )
        total = sum(weight[v] for v in there) if weight is not None else len(there)
        if not there or total == 0:
            drawn.append(order[0])
        elif weight is None:
            drawn.append(there[int(u * len(there))])
        else:
            total, sums = 0.0, []
            for v in there:
                total += weight[v]
                sums.append(total)
            drawn.append(
                next(v for v, reached in zip(there, sums, strict=True) if reached > u * total)
            )
    return drawn


@st.composite
def cases(draw):
    num_nodes, count = draw(st.integers(1, 12)), draw(st.integers(0, 20))
    weight = draw(
        st.none()
        | st.lists(st.sampled_from([0.0, 0.25, 1.0, 1e6]), min_size=num_nodes, max_size=num_nodes)
    )
    if weight is not None and not any(weight):
        weight[-1] = 1.0
    time = draw(st.none() | st.lists(st.integers(-3, 3), min_size=num_nodes, max_size=num_nodes))
    until = draw(st.none() | st.lists(st.integers(-4, 4), min_size=count, max_size=count))
    return num_nodes, weight, time, count, draw(st.integers(0, 2**64 - 1)), until


@given(case=cases())
def test_draws_are_those_of_plain_python(case):
    num_nodes, weight, time, count, key, until = case
    ends = NegativeEnds(
        num_nodes,
        None if weight is None else torch.tensor(weight),
        None if time is None else torch.tensor(time),
    )
    drawn = ends.draw(count, key, None if until is None else torch.tensor(until, dtype=torch.int64))
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == plain_draw(*case)


def test_uniform_first_and_last_vertex_included():
    drawn = torch.cat([NegativeEnds(37).draw(2000, derive_key(3, i)) for i in range(10)])
    assert stats.chisquare(torch.bincount(drawn, minlength=37).numpy()).pvalue > 1e-4


def test_draws_above_int32():
    drawn = NegativeEnds(2**40).draw(4000, 5).double() / 2**40
    assert drawn.max() < 1
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_in_proportion_to_weights(dtype):
    weight = torch.tensor([0, 3, 1, 0, 0, 5, 2, 0]).to(dtype)
    ends = NegativeEnds(8, weight)
    counts = torch.bincount(ends.draw(20_000, 11), minlength=8).double()
    assert not counts[weight == 0].any()
    there = weight > 0
    expected = 20_000 * weight[there].double() / weight.double().sum()
    assert stats.chisquare(counts[there].numpy(), expected.numpy()).pvalue > 1e-4
    torch.testing.assert_close(ends.chances, weight.double() / weight.double().sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_no_vertex_that_is_there_too_late(weighted):
    time = torch.tensor([5, 1, 9, 3, 1, 7])
    weight = torch.tensor([1.0, 4.0, 1.0, 2.0, 0.0, 2.0]) if weighted else None
    ends, until = NegativeEnds(6, weight, time), torch.tensor([5]).expand(20_000)
    counts = torch.bincount(ends.draw(20_000, 2, until), minlength=6).double()
    chances = (torch.ones(6) if weight is None else weight).double() * (time <= 5)
    assert not counts[chances == 0].any()
    there = chances > 0
    expected = 20_000 * chances[there] / chances.sum()
    assert stats.chisquare(counts[there].numpy(), expected.numpy()).pvalue > 1e-4


def test_the_earliest_vertex_where_none_is_early_enough():
    time = torch.tensor([5, 2, 9])
    assert NegativeEnds(3, time=time).draw(3, 0, torch.tensor([1, 0, -5])).tolist() == [1, 1, 1]
    no_weight_so_early = NegativeEnds(3, torch.tensor([1.0, 0.0, 1.0]), time)
    assert no_weight_so_early.draw(2, 0, torch.tensor([4, 1])).tolist() == [1, 1]


def test_a_function_of_the_key_in_any_thread():
    ends = NegativeEnds(1000, torch.arange(1000))
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda key: ends.draw(500, key), [1, 2] * 8))
    assert all(torch.equal(a, b) for a, b in zip(drawn, drawn[2:], strict=False))
    assert not torch.equal(drawn[0], drawn[1])


def test_later_writes_to_the_weight_change_nothing():
    weight = torch.tensor([0.0, 1.0])
    ends = NegativeEnds(2, weight)
    weight[0] = 1e9
    assert ends.draw(50, 0).tolist() == [1] * 50


def test_representation_tells_draws_apart():
    weight = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    other = weight.clone()
    other[2500] = 0.5
    assert repr(NegativeEnds(5000, weight)) == repr(NegativeEnds(5000, weight.clone()))
    assert (
        len(
            {
                repr(ends)
                for ends in (
                    NegativeEnds(5000),
                    NegativeEnds(5000, weight),
                    NegativeEnds(5000, other),
                )
            }
        )
        == 3
    )
    assert repr(NegativeEnds(2, time=torch.tensor([1, 2]))) != repr(
        NegativeEnds(2, time=torch.tensor([1, 3]))
    )


def test_pickles():
    ends = NegativeEnds(10, torch.rand(10), torch.arange(10))
    assert torch.equal(pickle.loads(pickle.dumps(ends)).draw(20, 1), ends.draw(20, 1))


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (
            torch.ones(3),
            ValueError,
            r"dst_weight must have one number per vertex \(4\), got shape \(3,\)",
        ),
        (torch.ones(4, 1), ValueError, "one number per vertex"),
        (torch.tensor([1.0, -1.0, 0.0, 0.0]), ValueError, "finite and not negative, got -1.0"),
        (torch.tensor([1.0, np.nan, 0.0, 0.0]), ValueError, "finite and not negative, got nan"),
        (torch.tensor([1.0, np.inf, 0.0, 0.0]), ValueError, "finite and not negative, got inf"),
        (torch.zeros(4), ValueError, "must have a positive number, got only 0"),
        ([1.0] * 4, TypeError, "must be a tensor of numbers, got list"),
    ],
)
def test_bad_weights(weight, error, message):
    with pytest.raises(error, match=message):
        NegativeEnds(4, weight, name="dst_weight")


def test_nothing_to_draw_from():
    assert NegativeEnds(0).draw(0, 1).tolist() == []
    with pytest.raises(ValueError, match="need at least 1 vertex to draw from, got 0 for 3 pairs"):
        NegativeEnds(0).draw(3, 1)
