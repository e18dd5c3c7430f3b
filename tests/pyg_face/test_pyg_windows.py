"""Windows, shared trees and times of every kind through the loaders: by brute force, and by
example."""

import math

import exact_times
import pytest
import torch
from exact_times import WINDOWS, exact, times, within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

TYPES = [("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")]
# torch has no index_select, which joins the attributes of a batch, for wider unsigned integers.
KINDS = st.sampled_from([exact_times.INTEGERS[:5], exact_times.FLOATS])
TRIALS = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))


@st.composite
def relational(draw):
    """Users and items with times of any of the tables, their kind, and a window."""
    data, kind = HeteroData(), draw(KINDS)
    for ntype in ("user", "item"):
        data[ntype].x = torch.arange(draw(st.integers(1, 6))).float()[:, None]
    for etype in TYPES:
        ends = [st.integers(0, len(data[ntype].x) - 1) for ntype in (etype[0], etype[2])]
        pairs = draw(st.lists(st.tuples(*ends), max_size=25))
        data[etype].edge_index = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t().contiguous()
    for owner in draw(st.lists(st.sampled_from(["user", "item", *TYPES]), unique=True, min_size=1)):
        count = len(data[owner].x) if isinstance(owner, str) else data[owner].edge_index.size(1)
        data[owner].time = draw(times(count, kind))
    timed = [etype for etype in TYPES if "time" in data[etype] or "time" in data[etype[0]]]
    by_type = st.dictionaries(st.sampled_from(timed), WINDOWS) if timed else st.none()
    return data, kind, draw(st.one_of(st.none(), WINDOWS, by_type))


HOW = st.fixed_dictionaries(
    {
        "num_neighbors": st.lists(st.sampled_from([-1, 1, 3]), min_size=1, max_size=2),
        "temporal_strategy": st.sampled_from(["uniform", "last"]),
        "subgraph_type": st.sampled_from(["directional", "induced"]),
        "replace": st.booleans(),
        "share_trees": st.booleans(),
    }
).filter(lambda how: not (how["subgraph_type"] == "induced" and how["share_trees"]))  # refused


def check(data, batch, limits, window):
    """No sampled edge is later than its tree, given by number, or outside of its window; nor is its
    source."""
    for etype in data.edge_types:
        src, dst = batch[etype].edge_index
        trees = batch[etype[0]].batch[src]
        assert torch.equal(trees, batch[etype[2]].batch[dst])
        own = [exact(data[etype].time[batch[etype].e_id])] if "time" in data[etype] else []
        own += (
            [exact(data[etype[0]].time[batch[etype[0]].n_id[src]])]
            if "time" in data[etype[0]]
            else []
        )
        length = window.get(etype) if isinstance(window, dict) else window
        for tree, *found in zip(trees.tolist(), *own, strict=True):
            assert all(within(limits[tree], time) for time in found)
            assert not found or within(limits[tree], max(found), length)


@pytest.mark.many
@TRIALS
@given(made=relational(), how=HOW, data=st.data())
def test_nothing_leaks_from_input_nodes(made, how, data):
    graph, kind, window = made
    ntype = data.draw(st.sampled_from(["user", "item"]))
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, len(graph[ntype].x) - 1), min_size=1, max_size=9))
    )
    given = data.draw(times(len(ids), kind, missing=False))
    options = {
        "time_attr": "time",
        "time_window": window,
        "batch_size": 4,
        "prefetch": 0,
        "cache": 0,
        **how,
    }
    for batch in NeighborLoader(graph, input_nodes=(ntype, ids), input_time=given, **options):
        of_seeds = exact(batch[ntype].seed_time)
        assert of_seeds == exact(given[batch[ntype].input_id])
        if how["share_trees"]:
            limits = sorted(set(of_seeds))
            assert [limits[t] for t in batch[ntype].batch[: len(of_seeds)].tolist()] == of_seeds
        else:
            limits = of_seeds
        check(graph, batch, limits, window)


@pytest.mark.many
@TRIALS
@given(
    made=relational(),
    how=HOW,
    negatives=st.sampled_from([None, "binary", ("triplet", 2)]),
    data=st.data(),
)
def test_nothing_leaks_from_links(made, how, negatives, data):
    graph, kind, window = made
    for ntype in ("user", "item"):
        if "time" in graph[ntype] and set(exact(graph[ntype].time)) == {None}:
            del graph[ntype].time  # no negatives to draw
    if not any("time" in graph[owner] for owner in ("user", "item", *TYPES)):
        return
    window = None if isinstance(window, dict) else window
    ends = [st.integers(0, len(graph[ntype].x) - 1) for ntype in ("user", "item")]
    links = torch.tensor(data.draw(st.lists(st.tuples(*ends), min_size=1, max_size=6))).t()
    given = data.draw(times(links.size(1), kind, missing=False))
    options = {
        "time_attr": "time",
        "time_window": window,
        "batch_size": 4,
        "prefetch": 0,
        "cache": 0,
        **how,
    }
    loader = LinkNeighborLoader(
        graph,
        edge_label_index=(TYPES[0], links),
        edge_label_time=given,
        neg_sampling=negatives,
        **options,
    )
    for batch in loader:
        store = batch["user"] if negatives == ("triplet", 2) else batch[TYPES[0]]
        of_links = given[store.input_id if "input_id" in store else batch[TYPES[0]].input_id]
        check(
            graph,
            batch,
            sorted(set(exact(of_links))) if how["share_trees"] else exact(of_links),
            window,
        )


def shop(count=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    data = Data(num_nodes=50, edge_index=torch.randint(50, (2, count), generator=generator))
    data.time = torch.rand(count, generator=generator)
    return data


def test_same_batches_whatever_the_workers():
    data, inputs = shop(), torch.arange(50)
    options = {
        "input_time": torch.arange(50) % 5 / 5 + 0.1,
        "time_attr": "time",
        "time_window": 0.3,
        "seed": 3,
    }
    for share in (False, True):
        made = [
            [
                (batch.n_id.tolist(), batch.e_id.tolist(), batch.batch.tolist())
                for batch in NeighborLoader(
                    data,
                    [3, 2],
                    inputs,
                    batch_size=16,
                    shuffle=True,
                    share_trees=share,
                    **options,
                    **how,
                )
            ]
            for how in ({}, {"num_workers": 3}, {"prefetch": 0})
        ]
        assert made[0] == made[1] == made[2] and len(made[0]) == 4


def test_shared_trees_hold_fewer_vertices():
    data, inputs, at = shop(), torch.arange(50), torch.full((50,), 0.9)
    options = {"input_time": at, "time_attr": "time", "batch_size": 50, "time_window": 0.8}
    (apart,) = NeighborLoader(data, [-1, -1], inputs, **options)
    (shared,) = NeighborLoader(data, [-1, -1], inputs, share_trees=True, **options)
    assert shared.num_nodes == 50 and shared.batch.tolist() == [0] * 50 and apart.num_nodes > 500
    assert set(shared.e_id.tolist()) == set(apart.e_id.tolist()) == set(
        torch.nonzero((data.time <= 0.9) & (data.time > 0.1)).view(-1).tolist()
    )  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("policy", ["presample", "auto", "degree"])
def test_policies_of_a_cache(policy, tmp_path):
    """On the CPU a cache holds rows of mapped files."""
    from pagraph.datasets import sbm, write_graph
    from pagraph.graph import Graph
    from pagraph.pyg import to_pyg

    write_graph(sbm(2000, num_features=8), tmp_path / "graph")
    data = to_pyg(Graph.open(tmp_path / "graph"))
    data.time = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(0))
    loader = NeighborLoader(
        data, [5, 5], torch.arange(500), torch.rand(500), time_attr="time", time_window=0.25, cache=0.2,
        cache_policy=policy, batch_size=50,
    )  # fmt: skip
    for batch in loader:
        limits = batch.seed_time[batch.batch[batch.edge_index[1]]]
        of_edges = data.time[batch.e_id]
        assert (of_edges <= limits).all() and (of_edges > limits - 0.25).all()
        assert torch.equal(batch.x, data.x[batch.n_id])
    assert loader.stats.epochs[0].reads.fields["x"].hits > 0


def test_pygs_own_loader_with_our_sampler_and_a_window():
    data, at = shop(), torch.rand(50)
    sampler = NeighborSampler(data, [4, 3], time_attr="time", time_window=0.2)
    for batch in NodeLoader(data, sampler, torch.arange(50), at, batch_size=16):
        limits = batch.seed_time[batch.batch[batch.edge_index[1]]]
        assert (
            (batch.time <= limits).all() and (batch.time > limits - 0.2).all() and batch.num_edges
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"time_attr": "time", "time_window": 0},
            ValueError,
            "time_window must be positive, got 0",
        ),
        (
            {"time_attr": "time", "time_window": math.nan},
            ValueError,
            "time_window must be positive, got nan",
        ),
        (
            {"time_attr": "time", "time_window": {("a", "to", "b"): 2}},
            ValueError,
            "must name edge types among",
        ),
        ({"time_window": 2}, ValueError, "time_window needs time, got 2 without it"),
        ({"share_trees": True}, ValueError, "share_trees needs time, got True without it"),
    ],
)
def test_bad_windows(options, error, message):
    with pytest.raises(error, match=message):
        NeighborSampler(shop(), [2], **options)
