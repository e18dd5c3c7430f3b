"""Temporal sampling and disjoint trees: against the plain reference, statistics, borders, and what
is refused."""

import threading
from functools import partial

import exact_times
import numpy as np
import pytest
import torch
from exact_times import WINDOWS, exact, times
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_temporal import sample as plain_sample
from scipy import stats
from tiers import examples

from pagraph import CSC, Graph
from pagraph.sampling import SubgraphSampler
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools

EDGE = ("_N", "_E", "_N")
ETYPES = [("a", "x", "b"), ("a", "y", "b"), ("b", "x", "b"), ("b", "z", "a"), ("b", "to", "c")]
KINDS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("replace", "latest", "induced", "share_trees")}
).filter(
    lambda how: not (how["induced"] and how["share_trees"])  # refused
)
KEYS = st.integers(0, 2**64 - 1)


@st.composite
def csc_of(draw, num_src, num_dst, most):
    """Self-loops and parallel edges among them, vertices without any, and rows longer than a
    fan-out."""
    m = draw(st.integers(0, most)) if num_src and num_dst else 0
    src, dst = (
        draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=m, max_size=m))
        for n in (num_src, num_dst)
    )
    csc = CSC.from_coo(src, dst, (num_src, num_dst))
    if draw(st.booleans()):
        csc = CSC(csc.indptr.long(), csc.indices.long(), csc.num_src, csc.edge_ids)
    return csc


@st.composite
def single_graphs(draw):
    """A graph with times of vertices, of edges or of both; and their kind."""
    n, kind = draw(st.integers(1, 12)), draw(exact_times.KINDS)
    graph = Graph(draw(csc_of(n, n, 120)), n)
    owners = draw(st.sampled_from(["nodes", "edges", "both"]))
    if owners != "edges":
        graph.set_field("t", draw(times(n, kind)))
    if owners != "nodes":
        graph.set_field("t", draw(times(graph.csc.num_edges, kind)), edge_type=EDGE)
    return graph, kind


@st.composite
def typed_graphs(draw):
    """Times of some vertex types, of some edge types, or of both; and their kind."""
    counts, kind = {t: draw(st.integers(0, 8)) for t in "abc"}, draw(exact_times.KINDS)
    graph = Graph({e: draw(csc_of(counts[e[0]], counts[e[2]], 30)) for e in ETYPES}, counts)
    owners = draw(st.lists(st.sampled_from([*"abc", *ETYPES]), unique=True, min_size=1))
    for owner in owners:
        if isinstance(owner, str):
            graph.set_field("t", draw(times(counts[owner], kind)), node_type=owner)
        else:
            graph.set_field("t", draw(times(graph.csc_of(owner).num_edges, kind)), edge_type=owner)
    return graph, kind


def seed_times(draw, graph, ntype, seeds, kind):
    """Times for seeds, or None where their own count; and the same as exact numbers."""
    own = graph.node_fields(ntype).get("t")
    limits = [] if own is None else exact(own[seeds])
    if own is not None and None not in limits and draw(st.booleans()):
        return None, limits
    given = draw(times(len(seeds), kind, missing=False))
    return given, exact(given)


def check(batch, expected):
    assert {t: ids.tolist() for t, ids in batch.input_nodes.items()} == expected.nodes
    assert {t: ids.tolist() for t, ids in batch.trees.items()} == expected.trees
    assert batch.hop_ends == expected.node_ends
    assert {e: s.edge_index[0].tolist() for e, s in batch.edges.items()} == expected.src
    assert {e: s.edge_index[1].tolist() for e, s in batch.edges.items()} == expected.dst
    assert {e: s.edge_ids.tolist() for e, s in batch.edges.items()} == expected.edge_ids
    assert {e: s.hop_ends for e, s in batch.edges.items()} == expected.edge_ends


@settings(max_examples=examples(200))
@given(
    made=single_graphs(),
    fanouts=st.lists(st.sampled_from([-1, -1, 0, 1, 2, 3, 7, 70]), max_size=3),
    kind=KINDS,
    window=st.one_of(st.none(), WINDOWS),
    key=KEYS,
    data=st.data(),
)
def test_equals_the_plain_reference(made, fanouts, kind, window, key, data):
    graph, of_times = made
    # Repeated ones too.
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=6))
    given, limits = seed_times(data.draw, graph, "_N", seeds, of_times)
    sampler = SubgraphSampler(fanouts[::-1], time="t", time_window=window, **kind)
    batch = sampler.sample(graph, torch.tensor(seeds, dtype=torch.int64), key, seed_times=given)
    check(
        batch,
        plain_sample(graph, {"_N": seeds}, fanouts, "t", limits, key, window=window, **plain(kind)),
    )


@settings(max_examples=examples(200))
@given(made=typed_graphs(), kind=KINDS, key=KEYS, data=st.data())
def test_equals_the_plain_reference_over_types(made, kind, key, data):
    """Edge types without times are drawn from uniformly; seeds of several types make trees in the
    graph's order."""
    graph, of_times = made
    by_type = st.fixed_dictionaries({etype: st.sampled_from([-1, 0, 1, 3]) for etype in ETYPES})
    fanouts = data.draw(st.lists(st.one_of(st.sampled_from([-1, 0, 1, 2, 5]), by_type), max_size=3))
    timed = [e for e in ETYPES if "t" in graph.edge_fields(e) or "t" in graph.node_fields(e[0])]
    by_type = st.dictionaries(st.sampled_from(timed), WINDOWS) if timed else st.none()
    window = data.draw(st.one_of(st.none(), WINDOWS, by_type))
    seeds, given, limits = {}, {}, {}
    for t in data.draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1)):
        n = graph.num_nodes_of(t)
        seeds[t] = data.draw(st.lists(st.integers(0, n - 1), max_size=4)) if n else []
        tensor, limits[t] = seed_times(data.draw, graph, t, seeds[t], of_times)
        given |= {} if tensor is None else {t: tensor}
    tensors = {t: torch.tensor(ids, dtype=torch.int64) for t, ids in seeds.items()}
    sampler = SubgraphSampler(fanouts[::-1], time="t", time_window=window, **kind)
    batch = sampler.sample(graph, tensors, key, seed_times=given or None)
    of_trees = [limit for t in graph.node_types for limit in limits.get(t, [])]
    check(
        batch, plain_sample(graph, seeds, fanouts, "t", of_trees, key, window=window, **plain(kind))
    )


def plain(kind):
    """The same settings for the plain reference."""
    return {"share" if name == "share_trees" else name: value for name, value in kind.items()}


def star(times, level, order=None):
    """Vertex 0 with an in-edge from each other vertex; edge ids permuted by ``order``."""
    n = len(times)
    order = np.arange(n) if order is None else order
    graph = Graph.from_coo(1 + order, np.zeros(n, dtype=int), n + 1)
    values = torch.as_tensor(times)
    if level == "nodes":
        graph.set_field("t", torch.cat([torch.zeros(1, dtype=torch.int64), values]))
    else:
        graph.set_field("t", values[torch.as_tensor(order)], edge_type=EDGE)
    return graph


def drawn(graph, sampler, limit, key=0):
    """The neighbours of vertex 0 drawn, as numbers of the star's points."""
    batch = sampler.sample(graph, torch.tensor([0]), key, seed_times=torch.tensor([limit]))
    (edges,) = batch.edges.values()
    return (batch.input_nodes["_N"][edges.edge_index[0]] - 1).tolist()


LEVELS = pytest.mark.parametrize("level", ["nodes", "edges"])


@pytest.mark.every
@LEVELS
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("valid", "fanout"), [(2, 1), (3, 2), (7, 3), (20, 10), (13, 12)])
def test_every_valid_neighbour_is_drawn_equally_often(level, replace, valid, fanout):
    """The first and the last in time among them, and never a later one."""
    rng = np.random.default_rng(1)
    of_points = rng.permutation(valid + 6)
    graph = star(of_points, level, rng.permutation(valid + 6))
    sampler, rounds, counts = (
        SubgraphSampler([fanout], time="t", replace=replace),
        1500,
        np.zeros(valid + 6),
    )
    for key in range(rounds):
        np.add.at(counts, drawn(graph, sampler, valid - 1, derive_key(5, key)), 1)
    by_time = counts[np.argsort(of_points)]
    assert by_time.sum() == rounds * fanout and (by_time[valid:] == 0).all()
    expected = rounds * fanout / valid
    spread = 1 if replace else (valid - 1) / (valid - fanout)
    statistic = ((by_time[:valid] - expected) ** 2 / expected).sum() * spread
    assert 1e-4 < stats.chi2.sf(statistic, valid - 1) < 1 - 1e-4


@LEVELS
@pytest.mark.parametrize("fanout", [1, 3, 8, 100])
def test_the_latest_are_the_newest_valid_ones(level, fanout):
    of_points = np.random.default_rng(2).permutation(20) * 10
    graph = star(of_points, level)
    newest = sorted((int(t), p) for p, t in enumerate(of_points) if t <= 105)[-fanout:]
    for key in range(5):  # nothing is random
        assert drawn(graph, SubgraphSampler([fanout], time="t", latest=True), 105, key) == [
            p for _, p in newest
        ]
    with_replacement = drawn(
        graph, SubgraphSampler([fanout], time="t", latest=True, replace=True), 105
    )
    assert len(with_replacement) == fanout and set(with_replacement) <= {p for _, p in newest}


@LEVELS
def test_equal_times_are_allowed_and_later_ones_are_not(level):
    graph = star([7, 8, 7, 9, 8, 7], level)
    for limit, expected in [(6, []), (7, [0, 2, 5]), (8, [0, 2, 5, 1, 4]), (9, [0, 2, 5, 1, 4, 3])]:
        assert drawn(graph, SubgraphSampler([-1], time="t"), limit) == expected
        assert drawn(graph, SubgraphSampler([-1], time="t", latest=True), limit) == expected
        assert set(drawn(graph, SubgraphSampler([2], time="t", replace=True), limit)) <= set(
            expected
        )


def test_the_seeds_time_counts_in_every_hop():
    """Not the time of the vertex in between: 0 <- 1 (time 1) <- 2 (time 4)."""
    graph = Graph.from_coo([1, 2], [0, 1], 3, ndata={"t": torch.tensor([0, 1, 4])})
    sampler = SubgraphSampler([-1, -1], time="t")
    for limit, nodes in [(0, [0]), (1, [0, 1]), (3, [0, 1]), (4, [0, 1, 2])]:
        assert (
            sampler.sample(graph, torch.tensor([0]), seed_times=torch.tensor([limit]))
            .input_nodes["_N"]
            .tolist()
            == nodes
        )


def test_trees_of_one_seed_with_several_times():
    graph = star([1, 2, 3, 4], "edges")
    batch = SubgraphSampler([-1], time="t").sample(
        graph, torch.zeros(4).long(), seed_times=torch.tensor([3, 0, 1, 9])
    )
    assert batch.trees["_N"].tolist() == [0, 1, 2, 3, 0, 0, 0, 2, 3, 3, 3, 3]
    assert batch.input_nodes["_N"].tolist() == [0, 0, 0, 0, 1, 2, 3, 1, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [{"disjoint": True}, {"time": "t"}, {"time": "t", "latest": True}])
def test_many_trees_over_many_vertices(kind):
    """Vertices in trees have ids above 2**31: 60 000 vertices in 40 000 trees."""
    n = 60_000
    graph = Graph.from_coo(
        np.arange(n), (np.arange(n) + 1) % n, n, ndata={"t": torch.zeros(n, dtype=torch.int64)}
    )
    seeds = torch.arange(40_000).flip(0)
    batch = SubgraphSampler([2, -1], **kind).sample(graph, seeds)
    nodes, trees = batch.input_nodes["_N"], batch.trees["_N"]
    assert batch.hop_ends["_N"] == [40_000, 80_000, 120_000]
    assert torch.equal(trees, torch.arange(40_000).repeat(3))
    assert torch.equal(nodes, torch.cat([(seeds - hop) % n for hop in range(3)]))
    src, dst = batch.edges[EDGE].edge_index
    assert torch.equal(src, torch.arange(40_000, 120_000)) and torch.equal(
        dst, torch.arange(80_000)
    )


@pytest.mark.parametrize("num_src", [2**31 - 1, 2**31, 2**40])
@pytest.mark.parametrize("timed", [False, True])
def test_sources_at_the_int32_border(num_src, timed):
    dtype = torch.int32 if num_src < 2**31 else torch.int64
    top = num_src - 1
    csc = CSC(torch.tensor([0, 3], dtype=dtype), torch.tensor([top, 0, top], dtype=dtype), num_src)
    etype = ("far", "to", "near")
    graph = Graph({etype: csc}, edata={"t": torch.tensor([1, 2, 3])})
    seeds = {"near": torch.zeros(3, dtype=torch.int64), "far": torch.tensor([top])}
    limits = {"near": torch.tensor([3, 2, 0]), "far": torch.tensor([0])} if timed else None
    sampler = SubgraphSampler([-1], time="t") if timed else SubgraphSampler([-1], disjoint=True)
    batch = sampler.sample(graph, seeds, seed_times=limits)
    # Trees are numbered over the types in the graph's order.
    first = graph.node_types.index("far") * 3
    near = [t + (0 if first else 1) for t in range(3)]
    found = [2, 2, 0] if timed else [2, 2, 2]
    assert batch.input_nodes["far"].tolist() == [top] + [v for n in found for v in (top, 0)[:n]]
    assert batch.trees["far"].tolist() == [first] + [
        t for t, n in zip(near, found, strict=True) for _ in range(n)
    ]
    assert batch.edges[etype].num_edges == (5 if timed else 9)


def random_graph(n=200, m=3000, seed=0):
    rng = np.random.default_rng(seed)
    values = {"t": torch.from_numpy(rng.integers(0, 50, n))}
    return Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n, ndata=values)


@pytest.mark.parametrize("kind", [{}, {"latest": True}, {"replace": True}])
def test_same_key_same_bits_whatever_the_threads(kind):
    graph, sampler, pools, results = (
        random_graph(),
        SubgraphSampler([3, 4], time="t", **kind),
        BufferPools(3),
        {},
    )

    def one(i, pools):
        seeds = torch.arange(i, i + 20)
        batch = sampler.sample(graph, seeds, i, seed_times=seeds % 37, pools=pools)
        edges = batch.edges[EDGE]
        return [
            x.tolist()
            for x in (batch.input_nodes["_N"], batch.trees["_N"], edges.edge_index, edges.edge_ids)
        ]

    def run(part):
        for i in range(part, 40, 4):
            results[i] = one(i, pools)

    threads = [threading.Thread(target=partial(run, part)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(40)] == [one(i, None) for i in range(40)]
    assert sum(len(result[3]) for result in results.values()) > 1000


def test_times_written_in_place_count_from_the_next_batch_on():
    graph, sampler = star([5, 5, 5], "edges"), SubgraphSampler([-1], time="t")
    assert drawn(graph, sampler, 4) == []
    graph.edata["t"][1] = 4
    assert drawn(graph, sampler, 4) == [1]
    graph.set_field("t", torch.tensor([1, 9, 1]), edge_type=EDGE)
    assert drawn(graph, sampler, 4) == [0, 2]


def test_a_field_that_is_handed_in():
    """As the faces do: the graph itself has none."""
    graph = Graph.from_coo([1, 2], [0, 0], 3)
    values = torch.tensor([3, 1])
    batch = SubgraphSampler([-1], time="t").sample(
        graph,
        torch.tensor([0]),
        seed_times=torch.tensor([2]),
        field=lambda etype, name: values if name == "t" else None,
    )
    assert batch.edges[EDGE].edge_ids.tolist() == [1]


def test_no_seeds_no_edges():
    empty = torch.empty(0, dtype=torch.int64)
    batch = SubgraphSampler([2, -1], time="t").sample(random_graph(), empty)
    assert (
        batch.num_edges == 0
        and batch.trees["_N"].tolist() == []
        and batch.hop_ends == {"_N": [0, 0, 0]}
    )
    nothing = Graph.from_coo([], [], 3, ndata={"t": torch.tensor([1, 2, 3])})
    assert SubgraphSampler([2, -1], time="t").sample(nothing, torch.tensor([2, 2])).num_edges == 0
    no_edges = Graph.from_coo([], [], 3, edata={"t": empty})
    alone = SubgraphSampler([2], time="t").sample(
        no_edges, torch.tensor([1]), seed_times=torch.tensor([1])
    )
    assert alone.input_nodes["_N"].tolist() == [1]


def test_time_makes_the_trees_disjoint():
    assert SubgraphSampler([1], time="t").disjoint and not SubgraphSampler([1]).disjoint


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"time": 3}, TypeError, "time must be the name of a field, got 3"),
        ({"time": "t", "prob": "w"}, ValueError, "prob must be None if time is given, got 'w'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        SubgraphSampler([2], **arguments)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            torch.zeros(2, dtype=torch.int64),
            ValueError,
            r"seed_times\['_N'\] must have one time per seed \(3\), got shape",
        ),
        (
            torch.zeros(3),
            TypeError,
            r"times must all be integers or all be floats, got int64 in vertex field 't'",
        ),
        (
            torch.tensor([1, -(2**63), 2]),
            ValueError,
            r"seed_times\['_N'\] must not be missing \(NaN or NaT\), got -92",
        ),
        (
            [1, 2, 3],
            TypeError,
            "seed_times must be a tensor or a mapping from vertex type, got list",
        ),
        (
            {"b": torch.zeros(3, dtype=torch.int64)},
            KeyError,
            r"must name types of seeds among \['_N'\], got 'b'",
        ),
    ],
)
def test_bad_seed_times(given, error, message):
    with pytest.raises(error, match=message):
        SubgraphSampler([2], time="t").sample(random_graph(), torch.arange(3), seed_times=given)


def test_seed_times_without_a_time():
    with pytest.raises(ValueError, match="seed_times must be None for a sampler without time"):
        SubgraphSampler([2]).sample(random_graph(), torch.arange(3), seed_times=torch.arange(3))


def test_seeds_that_have_no_time():
    with pytest.raises(
        ValueError,
        match="seed_times must be given for seeds of type '_N', which has no vertex field 't'",
    ):
        SubgraphSampler([2], time="t").sample(star([1, 2], "edges"), torch.tensor([0]))


def test_fields_that_say_nothing_or_two_things():
    with pytest.raises(
        ValueError, match="time must be the name of a vertex or edge field, got 'u'"
    ):
        SubgraphSampler([2], time="u").sample(random_graph(), torch.arange(3))
    both = random_graph()
    both.set_field("t", torch.zeros(3000), edge_type=EDGE)
    with pytest.raises(
        TypeError,
        match="times must all be integers or all be floats, got int64 in vertex field 't' of",
    ):
        SubgraphSampler([2], time="t").sample(both, torch.arange(3))
    wrong = Graph.from_coo([0], [1], 2, ndata={"t": torch.zeros(2, dtype=torch.bool)})
    with pytest.raises(
        TypeError, match="vertex field 't' must be a tensor of integers or floats, got torch.bool"
    ):
        SubgraphSampler([2], time="t").sample(wrong, torch.tensor([1]))
