"""Dividing a budget over vertex types, against a plain greedy one row at a time."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.cache import Demand, divide
from pagraph.ranking import Ranking
from pagraph.system.budget import SLOT_BYTES


def demand(num_nodes, row_bytes, scores=None, count=None):
    count = len(scores) if scores is not None else num_nodes if count is None else count
    scores = None if scores is None else torch.tensor(scores, dtype=torch.float64)
    return Demand(
        num_nodes, row_bytes, SLOT_BYTES * num_nodes, Ranking(torch.arange(count), scores)
    )


def reads_of(demands):
    """How often each row is read, as Python numbers."""
    if all(d.ranking.scores is not None for d in demands):
        return [(d.ranking.scores if d.reads is None else d.reads).tolist() for d in demands]
    return [[1 - i / d.num_nodes for i in range(len(d.ranking.ids))] for d in demands]


def plain_take(nbytes, demands, opened):
    """Rows of the opened types, those read most first, one at a time, each if it fits."""
    reads = reads_of(demands)
    rows = [(-reads[t][i], t, i) for t in opened for i in range(len(reads[t]))]
    left = nbytes - sum(demands[t].table_bytes for t in opened)
    counts, saved = [0] * len(demands), 0.0
    for _, t, i in sorted(rows):
        if demands[t].row_bytes <= left:
            left -= demands[t].row_bytes
            counts[t] += 1
            saved += reads[t][i] * demands[t].row_bytes
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


def saved_by(demands, counts):
    reads = reads_of(demands)
    return sum(
        sum(r[:n]) * (d.row_bytes if d.read_bytes is None else d.read_bytes)
        for d, r, n in zip(demands, reads, counts, strict=True)
    )


def spent(demands, counts):
    return sum(n * d.row_bytes + d.table_bytes for d, n in zip(demands, counts, strict=True) if n)


@st.composite
def demand_lists(draw, with_tables=False):
    demands = []
    for _ in range(draw(st.integers(1, 4))):
        num_nodes = draw(st.integers(0, 30))
        count = draw(st.integers(0, num_nodes))
        width = draw(st.integers(1, 64))
        scores = sorted(
            draw(st.lists(st.integers(0, 20), min_size=count, max_size=count)), reverse=True
        )
        demands.append(demand(num_nodes, width, scores))
    free = not with_tables and draw(st.booleans())  # as under a share of the rows
    return [replace(d, table_bytes=0) for d in demands] if free else demands


@settings(max_examples=examples(400))
@given(demand_lists(), st.integers(-10, 6000))
def test_equals_taking_one_row_after_another(demands, nbytes):
    assert divide(nbytes, demands) == plain_divide(nbytes, demands)


@settings(max_examples=examples(150))
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


@settings(max_examples=examples(150))
@given(demand_lists(with_tables=True), st.integers(0, 6000))
def test_saves_at_least_what_any_type_alone_does(demands, nbytes):
    saved = saved_by(demands, divide(nbytes, demands))
    for t in range(len(demands)):
        assert saved >= plain_choose(nbytes, demands, [t])[0][0]


@settings(max_examples=examples(100))
@given(demand_lists())
def test_with_bytes_for_everything_everything_is_taken(demands):
    everything = [len(d.ranking.ids) for d in demands]
    assert divide(spent(demands, everything), demands) == everything
    assert divide(2**70, demands) == everything


def test_the_row_that_is_read_more_goes_first_whatever_its_width():
    # tables: 8 + 8 bytes
    demands = [demand(2, 10, [9, 2]), demand(2, 5, [4, 4])]
    for nbytes, counts in [
        (17, [0, 1]),
        (18, [1, 0]),
        (25, [1, 0]),
        (31, [1, 1]),
        (36, [1, 2]),
        (46, [2, 2]),
    ]:
        assert divide(nbytes, demands) == counts, nbytes


def test_rows_cached_at_half_their_width_save_twice_as_much_per_byte():
    demands = [
        replace(d, table_bytes=0) for d in (demand(4, 8, [3, 3, 3, 3]), demand(4, 8, [2, 2, 2, 2]))
    ]
    assert divide(32, demands) == [4, 0]
    assert divide(32, [demands[0], replace(demands[1], read_bytes=16)]) == [0, 4]


def test_a_table_that_costs_more_than_it_saves_is_not_paid():
    large = demand(1000, 10, [5] + [1] * 999)
    small = demand(10, 50, [2] * 10)
    assert divide(4000 + 40 + 300, [large, small]) == [0, 10]
    assert divide(4000 + 40 + 500 + 100, [large, small]) == [10, 10]


def test_types_are_let_in_and_out_one_at_a_time():
    demands = [demand(1, 90, [5]), demand(4, 30, [6, 6, 6, 6]), demand(1, 40, [1])]
    assert divide(136, demands) == [0, 4, 0]  # all three together would leave out one of the second
    assert divide(24 + 210, demands) == [1, 4, 0]
    assert divide(24 + 250, demands) == [1, 4, 1]


def test_never_worse_than_one_pass_over_all_types_with_their_tables():
    rng = np.random.default_rng(1)
    for _ in range(200):
        demands = [
            demand(
                n, int(rng.integers(1, 60)), sorted(rng.integers(0, 9, n).tolist(), reverse=True)
            )
            for n in rng.integers(1, 20, 3).tolist()
        ]
        nbytes = int(rng.integers(0, 2000))
        saved = saved_by(demands, divide(nbytes, demands))
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


# -- orders whose best rows do not come first, and fields that share a table
# -------------------------------


def along(order, num_nodes, row_bytes, reads, table_bytes=0):
    """A demand of an order whose ids are those of all demands of it."""
    ranking = Ranking(torch.arange(len(reads)), torch.zeros(len(reads), dtype=torch.float64))
    reads = torch.tensor(reads, dtype=torch.float64)
    return Demand(num_nodes, row_bytes, table_bytes, ranking, order=order, reads=reads)


@st.composite
def shared_orders(draw):
    """Up to three fields of up to two orders, of few rows, read in any pattern."""
    demands = []
    for order in "ab"[: draw(st.integers(1, 2))]:
        count = draw(st.integers(0, 5))
        table = draw(st.sampled_from([0, 7, 30]))
        for _ in range(draw(st.integers(1, 2))):
            reads = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
            demands.append(along(order, count, draw(st.integers(1, 12)), reads, table))
    return demands


def taken(demands, counts):
    """Bytes of rows and tables; an order's table is paid once."""
    tables = {d.order: d.table_bytes for d, n in zip(demands, counts, strict=True) if n}
    return sum(n * d.row_bytes for d, n in zip(demands, counts, strict=True)) + sum(tables.values())


def blocks(reads):
    """The pieces of the least concave curve above the running sums: for each its end and its
    slope."""
    sums, at, pieces = [0, *itertools.accumulate(reads)], 0, []
    while at < len(reads):
        slope, end = max(((sums[j] - sums[at]) / (j - at), j) for j in range(at + 1, len(sums)))
        pieces.append((at, end, slope))
        at = end
    return pieces


def bound(demands, nbytes):
    """What no choice can exceed: pieces of all envelopes by slope, the last one cut where the bytes
    end; no tables."""
    pieces = sorted(
        ((s, (e - b) * d.row_bytes) for d in demands for b, e, s in blocks(d.reads.tolist())),
        reverse=True,
    )
    saved, left = 0.0, max(0, nbytes)
    for slope, width in pieces:
        saved += slope * min(width, left)
        left -= min(width, left)
    return saved


@settings(max_examples=examples(300))
@given(shared_orders(), st.integers(0, 150))
def test_as_much_as_any_choice_saves_but_for_one_block(demands, nbytes):
    counts = divide(nbytes, demands)
    assert taken(demands, counts) <= nbytes
    demands = [replace(d, table_bytes=0) for d in demands]
    saved = saved_by(demands, divide(nbytes, demands))
    every = itertools.product(*(range(len(d.ranking.ids) + 1) for d in demands))
    best = max(saved_by(demands, choice) for choice in every if taken(demands, choice) <= nbytes)
    assert saved <= best <= bound(demands, nbytes) + 1e-9
    if len(demands) > 1:
        largest = max(
            (s * (e - b) * d.row_bytes for d in demands for b, e, s in blocks(d.reads.tolist())),
            default=0,
        )
        assert saved >= bound(demands, nbytes) - largest - 1e-9


@settings(max_examples=examples(200))
@given(shared_orders(), st.integers(0, 150))
@example([along("a", 1, 1, [1]), along("b", 1, 2, [1]), along("b", 1, 1, [0])], 2)
def test_tables_of_orders_are_paid_once_and_no_order_alone_is_better(demands, nbytes):
    counts = divide(nbytes, demands)
    assert taken(demands, counts) <= nbytes
    if not any(d.table_bytes or (d.reads.diff() > 0).any() for d in demands):
        return  # all orders are let in, and less than one row is missing
    for order in {d.order for d in demands}:
        alone = [d for d in demands if d.order == order]
        table = alone[0].table_bytes
        free = [replace(d, table_bytes=0) for d in alone]
        assert (
            len(alone) == 1
            or saved_by(demands, counts) >= saved_by(free, divide(nbytes - table, free)) - 1e-9
        )


def test_labels_along_the_order_of_the_features_stop_after_the_last_seed():
    features = along("v", 6, 10, [9, 8, 7, 3, 2, 1])
    labels = along("v", 6, 2, [0, 1, 1, 0, 0, 0])
    # 3 label rows save 4 bytes, and half a feature row nothing.
    assert divide(40 + 6, [features, labels]) == [4, 3]
    assert divide(60 + 6, [features, labels]) == [6, 3]


def test_a_block_that_does_not_fit_is_left_out_if_others_save_more():
    late = along("a", 10, 10, [0] * 5 + [10] * 5)  # 5 a byte, but only if all ten fit
    even = along("b", 10, 10, [4] * 10)
    assert divide(50, [late, even]) == [0, 5]
    assert divide(100, [late, even]) == [10, 0]
    assert divide(130, [late, even]) == [10, 3]


def test_an_order_gives_way_to_a_block_that_else_does_not_fit():
    even, late = along("a", 1, 1, [1]), along("b", 3, 1, [0, 2, 0])
    assert divide(2, [even, replace(late, reads=torch.zeros(3, dtype=torch.float64)), late]) == [
        0,
        0,
        2,
    ]
    assert divide(3, [even, late]) == [1, 2]


def test_many_rows_in_any_order_are_as_good_as_the_bound():
    rng = np.random.default_rng(3)
    features = np.sort(rng.zipf(1.6, 20_000).clip(0, 500))[::-1].tolist()
    seeds = (rng.random(20_000) < 0.1).astype(float).tolist()
    demands = [along("v", 20_000, 400, features), along("v", 20_000, 8, seeds)]
    for nbytes in (10_000, 400_000, 3_000_000, 8_100_000):
        counts = divide(nbytes, demands)
        assert taken(demands, counts) <= nbytes
        assert saved_by(demands, counts) >= 0.999 * bound_of_sorted(demands, nbytes)


def bound_of_sorted(demands, nbytes):
    """An upper bound that needs no envelope: all rows by reads, as if any could be taken."""
    rows = sorted(((r, d.row_bytes) for d in demands for r in d.reads.tolist()), reverse=True)
    saved, left = 0.0, nbytes
    for reads, width in rows:
        saved += reads * min(width, left)
        left -= min(width, left)
    return saved
