"""Curves in memory that does not hold the arrays of all policies; sums by segment against sets of
ids."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph, NeighborSampler
from pagraph.profile import DEFAULT_POLICIES, compared, hit_rate_curve, recommend
from pagraph.profile.arguments import FieldSizes, RowSizes, Spending
from pagraph.profile.hit_rates import Tally
from pagraph.ranking import Ranking
from pagraph.ranking.policies import FewBatches
from pagraph.report.words import answer
from pagraph.system import budget

TIGHT = 32 << 10
"""Bytes: holds the counts of 300 vertices, but not what auto, presample and vip take."""


@pytest.fixture(autouse=True)
def small_process(monkeypatch):
    """As if Python and its libraries took no memory: these graphs take less."""
    for module in (budget, compared):
        monkeypatch.setattr(module, "held_by_process", lambda: 0)


def curve(**options):
    rng = np.random.default_rng(0)
    src = (rng.random(2500) ** 3 * 300).astype(np.int64)
    graph = Graph.from_coo(
        src, rng.integers(0, 300, 2500), 300, ndata={"feat": torch.zeros(300, 5)}
    )
    seeds, sampler = torch.arange(0, 300, 3), NeighborSampler([4, 3])
    return hit_rate_curve(
        graph, seeds, sampler, fields=["feat"], batch_size=16, epochs=2, seed=5, **options
    )


def test_policies_in_both_sets_have_the_same_hits():
    lean, full = curve(memory=TIGHT), curve()
    assert lean.policies == ["auto", "degree", "random", "oracle"] and full.policies == list(
        DEFAULT_POLICIES
    )
    for policy in lean.policies[1:]:
        assert lean.whole(policy) == [
            replace(record, predicted_hit_rate=None) for record in full.whole(policy)
        ]
    assert all(record.predicted_hit_rate is None for record in lean)
    assert (full.left_out, full.few_batches) == ({}, False)


def test_auto_ranks_as_a_loader_with_this_memory_does():
    lean, few = curve(memory=TIGHT), curve(policies=[FewBatches(TIGHT // 2 // 64, 2**20)])
    assert [replace(r, policy="auto", predicted_hit_rate=None) for r in few] == lean.of("auto")
    assert lean.few_batches and 0 < lean.of("auto")[5].hit_rate < 1


def test_says_what_is_left_out_and_what_it_needs():
    lean, full = curve(memory=TIGHT), curve()
    assert set(lean.left_out) == {"presample", "vip"} and all(
        TIGHT < n < 4 * TIGHT for n in lean.left_out.values()
    )
    assert lean.to_json()["left_out"] == lean.left_out
    said = (
        "Because memory is short, auto ranks by a few batches, as a loader with this memory does; "
        "presample and vip are"
    )
    assert [text for text in answer(lean, recommend(lean)) if text.startswith(said)] == [
        f"{said} left out and need --memory 1MiB."
    ]
    assert not any("memory" in text for text in answer(full, recommend(full)))


@pytest.mark.parametrize("memory", [None, "auto", "1MiB"])
def test_enough_memory_changes_nothing(memory):
    assert curve(memory=memory).records == curve().records


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"memory": 10_000},
            ValueError,
            "memory must be at least 1MiB for the counts of this graph and .*; got 9.766 KiB",
        ),
        (
            {"memory": TIGHT, "policies": ["degree", "vip"]},
            ValueError,
            "1MiB for the policies vip on this graph",
        ),
        (
            {"memory": TIGHT, "policies": ["presample:2", "adaptive"]},
            ValueError,
            "the policies presample:2, adaptive",
        ),
        ({"memory": "10%"}, ValueError, "memory must be bytes .* not a share"),
        ({"memory": [1]}, TypeError, "memory must be bytes"),
    ],
)
def test_bad_input(options, error, text):
    with pytest.raises(error, match=text):
        curve(**options)


@given(data=st.data(), kind=st.sampled_from([np.uint8, np.uint16, np.float64]))
def test_sums_by_segment_equal_sums_over_sets(data, kind):
    num_nodes = data.draw(st.integers(1, 600))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ids = rng.permutation(num_nodes)[: data.draw(st.integers(0, num_nodes))]
    budgets = data.draw(
        st.lists(st.integers(0, num_nodes), min_size=1, max_size=4)
        | st.just(list(range(num_nodes)))
    )
    counts = rng.integers(0, 200, (num_nodes, 3)).astype(kind)
    tally = Tally(
        FieldSizes({}, {}, RowSizes({"_N": num_nodes}, None)), [Spending(n) for n in budgets]
    )
    cut = tally.cut({"_N": Ranking(torch.from_numpy(ids))})
    expected = [[counts[v].astype(np.float64) for v in set(ids[:n].tolist())] for n in budgets]
    assert np.array_equal(
        cut.hits({"_N": counts})[0], [sum(rows, np.zeros(3)) for rows in expected]
    )
    assert cut.segments["_N"].itemsize == (
        1 if len({min(n, len(ids)) for n in budgets}) < 256 else 2
    )
