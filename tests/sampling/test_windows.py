"""Windows of time, times in every dtype, shared trees: arithmetic, cost, policies of a cache, and
what is refused."""

import math
import time

import numpy as np
import pytest
import torch
from exact_times import FLOATS, INTEGERS, WINDOWS, exact, times, within
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, Graph
from pagraph.ranking.presample import count_accesses
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.batches import TimedSeeds, pair_seeds
from pagraph.sampling.kernels.hop import first_above
from pagraph.sampling.negative import NegativeEnds
from pagraph.sampling.times import (
    MISSING,
    edge_times,
    ticks_of,
    time_bits,
    times_of_bits,
    window_starts,
)

EDGE = ("_N", "_E", "_N")


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_ticks_have_the_order_of_the_times(dtype, data):
    values = data.draw(times(data.draw(st.integers(0, 12)), [dtype]))
    ticks, exactly = ticks_of("times", values), exact(values)
    assert ticks.dtype == torch.int64
    for tick, value in zip(ticks.tolist(), exactly, strict=True):
        assert (tick == MISSING) == (value is None)
        for other, of_other in zip(ticks.tolist(), exactly, strict=True):
            if value is not None and of_other is not None:
                assert (tick < other) == (value < of_other) and (tick == other) == (
                    value == of_other
                )
    again = times_of_bits(time_bits(values), dtype.is_floating_point)
    assert exact(again) == exactly


@pytest.mark.parametrize("kind", [INTEGERS, FLOATS], ids=["integers", "floats"])
@settings(max_examples=examples(100))
@given(
    data=st.data(),
    window=st.one_of(WINDOWS, st.floats(min_value=0, exclude_min=True, allow_infinity=False)),
)
def test_windows_begin_where_exact_numbers_do(kind, data, window):
    limits, others = (data.draw(times(6, kind, missing=missing)) for missing in (False, True))
    ticks = ticks_of("times", limits)
    starts = window_starts(ticks, window, kind is FLOATS)
    found = ticks_of("times", others)[None] <= ticks[:, None]
    found &= found if starts is None else ticks_of("times", others)[None] > starts[:, None]
    found &= (ticks_of("times", others) != MISSING)[None]
    expected = [
        [within(limit, value, window) for value in exact(others)] for limit in exact(limits)
    ]
    assert found.tolist() == expected


def test_differences_that_are_rounded():
    """2**53 - 0.3 is no float64; nor is the time one step below in the window of that length."""
    limit, step = torch.tensor([2.0**53], dtype=torch.float64), 1.0
    ticks = ticks_of("times", limit)
    (start,) = window_starts(ticks, 0.3, True).tolist()
    assert start == int(ticks) - 1
    below = int(ticks_of("times", limit - step))
    assert int(window_starts(ticks, step, True)) == below  # not in the window of its own length
    assert int(window_starts(ticks, math.nextafter(step, 3), True)) < below


def hub(count=1_000_000):
    """A vertex with that many in-edges, edge ``e`` at time ``e``."""
    csc = CSC(torch.tensor([0, count]), torch.zeros(count, dtype=torch.int64), 1)
    return Graph(csc, 1, edata={"t": torch.arange(count)})


def test_a_row_of_a_million_edges_is_searched():
    """Scanning it for each of 20 000 trees would look at 10 000 000 000 edges, which takes
    seconds."""
    graph, seeds = hub(), torch.zeros(20_000, dtype=torch.int64)
    limits = torch.arange(20_000) + 700_000
    for how in ({}, {"latest": True}, {"replace": True}):
        sampler = SubgraphSampler([2], time="t", time_window=100_000, **how)
        sampler.sample(graph, seeds[:1], seed_times=limits[:1])
        begin = time.process_time()
        batch = sampler.sample(graph, seeds, seed_times=limits)
        assert time.process_time() - begin < 1.0
        (edges,) = batch.edges.values()
        of_edges = edges.edge_ids.view(-1, 2)
        if not how.get("latest"):
            assert (of_edges <= limits[:, None]).all() and (
                of_edges > limits[:, None] - 100_000
            ).all()
        else:
            assert torch.equal(of_edges, limits[:, None] + torch.tensor([-1, 0]))


def test_a_search_looks_at_twenty_of_a_million():
    class Counted:
        looks = 0

        def __getitem__(self, place):
            self.looks += 1
            return place

    for limit in (-1, 0, 123_456, 999_999, 10**7):
        values = Counted()
        assert (
            first_above.py_func(values, limit, 0, 10**6) == min(limit + 1, 10**6)
            and values.looks <= 20
        )


def star(of_points, **how):
    """The edges drawn for vertex 0, which has an in-edge with each of these times, and for the
    limits."""
    n = len(of_points)
    graph = Graph.from_coo(np.arange(1, n + 1), np.zeros(n, dtype=int), n + 1)
    graph.set_field("t", torch.as_tensor(of_points), edge_type=EDGE)

    def drawn(limits, fanout=-1):
        sampler = SubgraphSampler([fanout], time="t", **how)
        batch = sampler.sample(
            graph, torch.zeros(len(limits)).long(), seed_times=torch.as_tensor(limits)
        )
        trees = batch.trees["_N"][batch.edges[EDGE].edge_index[1]].tolist()
        found = [[] for _ in limits]
        for tree, e in zip(trees, batch.edges[EDGE].edge_ids.tolist(), strict=True):
            found[tree].append(e)
        return found

    return drawn


def test_a_window_is_open_at_its_beginning():
    drawn = star([1, 2, 3, 4, 5], time_window=2)
    assert drawn([0, 1, 2, 3, 5, 6, 7]) == [[], [0], [0, 1], [1, 2], [3, 4], [4], []]
    assert star([1, 2, 3, 4, 5], time_window=1.5)([3]) == [[1, 2]]
    assert star([1.0, 1.5, 2.0, 3.0], time_window=1.5)([3.0]) == [[2, 3]]
    assert star([1, 2, 3], time_window=math.inf)([3]) == [[0, 1, 2]]


def test_induced_edges_of_trees_whose_windows_lie_far_apart():
    sampler = SubgraphSampler([-1], time="t", time_window=10, induced=True)
    limits = torch.tensor([20, 990, 500, 20])
    edges = sampler.sample(hub(1000), torch.zeros(4, dtype=torch.int64), seed_times=limits).edges[
        EDGE
    ]
    assert edges.edge_ids.tolist() == [
        e for limit in limits.tolist() for e in range(limit - 9, limit + 1)
    ]
    assert edges.edge_index.tolist() == [[tree for tree in range(4) for _ in range(10)]] * 2


def test_the_last_ones_of_a_window():
    drawn = star([1, 2, 3, 4, 5, 6], time_window=3, latest=True)
    assert drawn([6, 5, 1], 2) == [[4, 5], [3, 4], [0]] and drawn([6, 2, 9], 5) == [
        [3, 4, 5],
        [0, 1],
        [],
    ]
    repeated = star([1, 2, 3, 4, 5, 6], time_window=3, latest=True, replace=True)([6] * 50, 2)
    assert all(len(edges) == 2 and set(edges) <= {4, 5} for edges in repeated)


def test_an_edge_is_as_late_as_the_later_of_its_own_time_and_its_sources():
    graph = Graph.from_coo(
        [1, 2, 3, 4], [0, 0, 0, 0], 5, ndata={"t": torch.tensor([0.0, 5, 1, math.nan, 3])}
    )
    graph.set_field("t", torch.tensor([1.0, 5, 2, math.nan]), edge_type=EDGE)
    for limit, window, expected in [
        (4, None, []),
        (5, None, [0, 1]),
        (5, 1, [0, 1]),
        (9, 4, []),
        (9, 4.5, [0, 1]),
    ]:
        sampler = SubgraphSampler([-1], time="t", time_window=window)
        batch = sampler.sample(graph, torch.tensor([0]), seed_times=torch.tensor([float(limit)]))
        assert sorted(batch.edges[EDGE].edge_ids.tolist()) == expected


def test_trees_that_seeds_of_one_time_share():
    graph = Graph.from_coo([2, 2, 3], [0, 1, 1], 4, ndata={"t": torch.tensor([0, 0, 1, 5])})
    sampler = SubgraphSampler([-1], time="t", share_trees=True)
    batch = sampler.sample(graph, torch.tensor([1, 0, 1]), seed_times=torch.tensor([7, 2, 2]))
    assert batch.trees["_N"].tolist() == [1, 0, 0, 1, 1, 0]
    # Vertex 2 once for both seeds of time 2.
    assert batch.input_nodes["_N"].tolist() == [1, 0, 1, 2, 3, 2]
    assert batch.edges[EDGE].edge_index.tolist() == [[3, 4, 5, 5], [0, 0, 1, 2]]


def test_seeds_of_pairs_are_distinct_within_shared_trees():
    src, dst, at = torch.tensor([3, 3, 1]), torch.tensor([1, 1, 3]), torch.tensor([5, 5, 2])
    start = pair_seeds(("v", "v"), src, dst, 0, times=at)
    assert start.nodes["v"].tolist() == [1, 3, 1, 3] and start.times["v"].tolist() == [2, 2, 5, 5]
    assert (
        start.src.tolist() == [3, 3, 0] and start.dst.tolist() == [2, 2, 1] and start.owners is None
    )


def test_negatives_are_drawn_equally_often_within_the_window():
    ends = NegativeEnds(8, time=torch.tensor([0, 1, 2, 3, 4, 5, 6, MISSING]))
    until, since = (torch.full((6000,), limit) for limit in (5, 2))
    counts = torch.bincount(ends.draw(6000, 3, until, since), minlength=8)
    assert counts[3:6].sum() == 6000 and (counts[3:6] - 2000).abs().max() < 200
    weighted = NegativeEnds(
        8, torch.tensor([9.0, 9, 9, 1, 0, 3, 9, 9]), torch.tensor([0, 1, 2, 3, 4, 5, 6, MISSING])
    )
    counts = torch.bincount(weighted.draw(6000, 3, until, since), minlength=8)
    assert counts[3] + counts[5] == 6000 and abs(int(counts[3]) - 1500) < 200


def test_negatives_where_nothing_is_in_the_window():
    """The last before it; where there is none either, the earliest, as in PyG."""
    at, weight = torch.tensor([4.0, 2.0, 9.0, math.nan]), torch.tensor([0.0, 1, 1, 1])
    limits = ticks_of("times", torch.tensor([8.0, 1.0]))
    since = window_starts(limits, 2.0, True)
    assert NegativeEnds(4, time=at).draw(2, 0, limits, since).tolist() == [0, 1]
    assert NegativeEnds(4, weight, at).draw(2, 0, limits, since).tolist() == [1, 1]
    with pytest.raises(
        ValueError, match="need at least 1 vertex with a time to draw from, got 0 for 2 pairs"
    ):
        NegativeEnds(2, time=torch.full((2,), math.nan)).draw(2, 0, limits, since)


def test_presampled_counts_are_those_of_the_window():
    """Vertex 1 is too old for every seed: it is never read, without a window it is."""
    graph = Graph.from_coo([1, 2], [0, 0], 3)
    graph.set_field("t", torch.tensor([0.25, 7.5]), edge_type=EDGE)
    rows = torch.stack([torch.zeros(10).long(), time_bits(torch.linspace(8, 9, 10))], 1)
    for window, reads in ((None, 1), (5, 0)):
        sampler = TimedSeeds(SubgraphSampler([-1], time="t", time_window=window), "_N", True)
        counts = count_accesses(graph, rows, sampler, batch_size=5, seed=0, threads=1)
        assert (int(counts.reads("_N")[1]) > 0) == bool(reads) and int(counts.reads("_N")[2]) > 0


def test_caches_tell_windows_apart():
    made = [
        SubgraphSampler([2], time="t", time_window=w, share_trees=s)
        for w in (None, 2, {EDGE: 2})
        for s in (0, 1)
    ]
    assert len({sampler.cache_key for sampler in made}) == 6


def test_times_of_edges_and_sources_are_made_once_for_their_versions():
    csc = CSC.from_coo([0, 1, 2], [2, 2, 2], 3)
    of_edges, of_nodes = torch.tensor([3, 2, 1]), torch.tensor([5, MISSING, 0])
    both = edge_times(csc, of_edges, of_nodes)
    assert both.values.tolist() == [MISSING, 1, 5] and both.has_missing
    assert edge_times(csc, of_edges, of_nodes) is both and not edge_times(csc, of_edges).has_missing
    of_nodes[1] = 4
    assert edge_times(csc, of_edges, of_nodes).values.tolist() == [1, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"time": "t", "time_window": 0}, ValueError, "time_window must be positive, got 0"),
        ({"time": "t", "time_window": -1.5}, ValueError, "time_window must be positive, got -1.5"),
        (
            {"time": "t", "time_window": math.nan},
            ValueError,
            "time_window must be positive, got nan",
        ),
        (
            {"time": "t", "time_window": {EDGE: 0}},
            ValueError,
            r"time_window\[\('_N', '_E', '_N'\)\] must be positive",
        ),
        (
            {"time": "t", "time_window": "2 days"},
            TypeError,
            "time_window must be a number, got '2 days'",
        ),
        ({"time": "t", "time_window": True}, TypeError, "time_window must be a number, got True"),
        ({"time_window": 3}, ValueError, "time_window needs time, got 3 without it"),
        ({"share_trees": True}, ValueError, "share_trees needs time, got True without it"),
        (
            {"time": "t", "share_trees": True, "induced": True},
            ValueError,
            "share_trees must be False for an induced",
        ),
    ],
)
def test_bad_windows(arguments, error, message):
    with pytest.raises(error, match=message):
        SubgraphSampler([2], **arguments)


def test_windows_of_what_has_no_times():
    graph, etype = hub(3), ("_N", "typo", "_N")
    with pytest.raises(
        ValueError,
        match=r"time_window must name edge types among \[.*\], got \('_N', 'typo', '_N'\)",
    ):
        SubgraphSampler([2], time="t", time_window={etype: 1}).sample(graph, torch.tensor([0]))
    n = graph.num_nodes
    graph = Graph(
        {etype: graph.csc, ("a", "b", "_N"): CSC.from_coo([0], [0], (1, n))}, {"_N": n, "a": 1}
    )
    graph.set_field("t", torch.arange(n), node_type="_N")
    with pytest.raises(
        ValueError,
        match=r"time_window must name edge types with times, got \('a', 'b'",
    ):
        SubgraphSampler([2], time="t", time_window={("a", "b", "_N"): 1}).sample(
            graph, {"_N": torch.tensor([0])}
        )


def test_times_that_int64_does_not_hold():
    graph = hub(2)
    graph.set_field(
        "t", torch.tensor([1, 2**63], dtype=torch.uint64), edge_type=graph.edge_types[0]
    )
    with pytest.raises(
        ValueError, match=r"edge field 't' must be below 2\*\*63, got 9223372036854775808"
    ):
        SubgraphSampler([2], time="t").sample(
            graph, torch.tensor([0]), seed_times=torch.tensor([3])
        )


def test_seeds_whose_own_time_is_missing():
    graph = Graph.from_coo([0], [1], 2, ndata={"t": torch.tensor([0.5, math.nan])})
    with pytest.raises(
        ValueError,
        match=r"vertex field 't' of the seeds must not be missing \(NaN or NaT\), got nan",
    ):
        SubgraphSampler([2], time="t").sample(graph, torch.tensor([1]))
