"""Dividing a budget over vertex types, against a plain greedy one row at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph.cache import Demand, Ranking, divide
from pagraph.cache.budget import SLOT_BYTES


def demand(num_nodes, row_bytes, scores=None, count=None):
    count = len(scores) if scores is not None else num_nodes if count is None else count
    scores = None if scores is None else torch.tensor(scores, dtype=torch.float64)
    return Demand(num_nodes, row_bytes, SLOT_BYTES * num_nodes, Ranking(torch.arange(count), scores))


def scores_of(demands):
    """What each row saves, as Python numbers."""
    if all(d.ranking.scores is not None for d in demands):
        return [d.ranking.scores.tolist() for d in demands]
    return [[d.row_bytes * (1 - i / d.num_nodes) for i in range(len(d.ranking.ids))] for d in demands]


def plain_take(nbytes, demands, opened):
    """Rows of the opened types, best score per byte first, one at a time, each if it fits."""
    scores = scores_of(demands)
    rows = [(-scores[t][i] / demands[t].row_bytes, t, i) for t in opened for i in range(len(scores[t]))]
    left = nbytes - sum(demands[t].table_bytes for t in opened)
    counts, saved = [0] * len(demands), 0.0
    for _, t, i in sorted(rows):
        if demands[t].row_bytes <= left:
            left -= demands[t].row_bytes
            counts[t] += 1
            saved += scores[t][i]
    return (saved, sum(counts)), counts


def plain_choose(nbytes, demands, opened):
    """A type without rows pays no table."""
    while True:
        worth, counts = plain_take(nbytes, demands, opened)
        if all(counts[t] for t in opened):
            return worth, counts
        opened = [t for t in opened if counts[t]]


def plain_divide(nbytes, demands):
    types = range(len(demands))
    scored = all(d.ranking.scores is not None for d in demands)
    best = plain_choose(nbytes, demands, list(types))
    if len(demands) == 1 or (any(best[1]) and not (scored and any(d.table_bytes for d in demands))):
        return best[1]
    for t in types:
        best = max(best, plain_choose(nbytes, demands, [t]), key=lambda choice: choice[0])
    while True:
        let_in = {t for t in types if best[1][t]}
        trials = [plain_choose(nbytes, demands, sorted(let_in ^ {t})) for t in types]
        better = max(trials, key=lambda trial: trial[0])
        if better[0] <= best[0]:
            return best[1]
        best = better


def spent(demands, counts):
    return sum(n * d.row_bytes + d.table_bytes for d, n in zip(demands, counts, strict=True) if n)


@st.composite
def demand_lists(draw, with_tables=False):
    demands = []
    for _ in range(draw(st.integers(1, 4))):
        num_nodes = draw(st.integers(0, 30))
        count = draw(st.integers(0, num_nodes))
        width = draw(st.integers(1, 64))
        scores = sorted(draw(st.lists(st.integers(0, 20), min_size=count, max_size=count)), reverse=True)
        demands.append(demand(num_nodes, width, scores))
    free = not with_tables and draw(st.booleans())  # as under a share of the rows
    return [replace(d, table_bytes=0) for d in demands] if free else demands


@settings(max_examples=400)
@given(demand_lists(), st.integers(-10, 6000))
def test_equals_taking_one_row_after_another(demands, nbytes):
    assert divide(nbytes, demands) == plain_divide(nbytes, demands)


@settings(max_examples=150)
@given(demand_lists(), st.booleans(), st.integers(-10, 6000))
def test_fits_and_leaves_no_room(demands, scored, nbytes):
    if not scored:
        demands = [replace(d, ranking=Ranking(d.ranking.ids)) for d in demands]
    counts = divide(nbytes, demands)
    assert spent(demands, counts) <= max(0, nbytes)
    for t, (d, n) in enumerate(zip(demands, counts, strict=True)):
        assert 0 <= n <= len(d.ranking.ids)
        if n and n < len(d.ranking.ids):
            more = [m + (u == t) for u, m in enumerate(counts)]
            assert spent(demands, more) > nbytes


@settings(max_examples=150)
@given(demand_lists(with_tables=True), st.integers(0, 6000))
def test_saves_at_least_what_any_type_alone_does(demands, nbytes):
    counts = divide(nbytes, demands)
    scores = scores_of(demands)
    saved = sum(sum(s[:n]) for s, n in zip(scores, counts, strict=True))
    for t in range(len(demands)):
        assert saved >= plain_choose(nbytes, demands, [t])[0][0]


@settings(max_examples=100)
@given(demand_lists())
def test_with_bytes_for_everything_everything_is_taken(demands):
    everything = [len(d.ranking.ids) for d in demands]
    assert divide(spent(demands, everything), demands) == everything
    assert divide(2**70, demands) == everything


def test_the_row_that_is_read_more_per_byte_goes_first():
    # tables: 8 + 8 bytes; per byte the wide rows save 2 and 0.4, the narrow ones 1 and 1
    demands = [demand(2, 10, [20, 4]), demand(2, 5, [5, 5])]
    for nbytes, counts in [(17, [0, 1]), (18, [1, 0]), (25, [1, 0]), (31, [1, 1]), (36, [1, 2]), (46, [2, 2])]:
        assert divide(nbytes, demands) == counts, nbytes


def test_a_table_that_costs_more_than_it_saves_is_not_paid():
    large = demand(1000, 10, [5] + [1] * 999)
    small = demand(10, 50, [7] * 10)
    assert divide(4000 + 40 + 300, [large, small]) == [0, 10]
    assert divide(4000 + 40 + 500 + 100, [large, small]) == [10, 10]


def test_types_are_let_in_and_out_one_at_a_time():
    demands = [demand(1, 90, [50]), demand(4, 30, [20, 20, 20, 20]), demand(1, 40, [1])]
    assert divide(136, demands) == [0, 4, 0]  # all three together would leave out one of the second
    assert divide(24 + 210, demands) == [1, 4, 0]
    assert divide(24 + 250, demands) == [1, 4, 1]


def test_never_worse_than_one_pass_over_all_types_with_their_tables():
    rng = np.random.default_rng(1)
    for _ in range(200):
        demands = [
            demand(n, int(rng.integers(1, 60)), sorted(rng.integers(0, 9, n).tolist(), reverse=True))
            for n in rng.integers(1, 20, 3).tolist()
        ]
        nbytes = int(rng.integers(0, 2000))
        saved = sum(sum(s[:n]) for s, n in zip(scores_of(demands), divide(nbytes, demands), strict=True))
        assert saved >= plain_take(nbytes, demands, range(3))[0][0]


def test_without_scores_every_type_gets_the_same_share_of_its_vertices():
    demands = [demand(1000, 100), demand(200, 400), demand(5000, 8)]
    tables = SLOT_BYTES * 6200
    rows = [100_000, 80_000, 40_000]
    for share in (0.1, 0.25, 0.5, 0.9):
        counts = divide(tables + int(share * sum(rows)), demands)
        for d, n in zip(demands, counts, strict=True):
            assert abs(n - share * d.num_nodes) <= 1 + 400 / d.row_bytes, (share, counts)


def test_one_ranking_without_scores_makes_all_scores_unknown():
    demands = [demand(100, 10, [100] * 100), demand(100, 10)]
    assert divide(800 + 1000, demands) == [50, 50]


def test_a_short_ranking_leaves_its_bytes_to_others():
    assert divide(800 + 1000, [demand(100, 10, count=5), demand(100, 10)]) == [5, 95]


@pytest.mark.parametrize("nbytes", [-5, 0, 3])
def test_nothing_for_nothing(nbytes):
    assert divide(nbytes, [demand(10, 4, [1] * 10), demand(1, 4, [1])]) == [0, 0]
    assert divide(1000, [demand(0, 4, []), demand(10, 4, [])]) == [0, 0]


def test_many_distinct_scores_and_large_numbers():
    rng = np.random.default_rng(0)
    demands = [
        demand(n, width, sorted(rng.random(n).tolist(), reverse=True))
        for n, width in [(3000, 40), (2000, 7), (10, 999)]
    ]
    for nbytes in (25_000, 60_000, 100_000, 150_000):
        assert divide(nbytes, demands) == plain_divide(nbytes, demands)
    wide = [demand(3, 2**40, [9, 2, 1]), demand(3, 2**41, [9, 9, 9])]
    assert divide(24 + 2**40 * 6, wide) == plain_divide(24 + 2**40 * 6, wide)
