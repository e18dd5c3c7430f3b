"""Batches that kernels draw in one call, uniform ones and by weight, against the same batches picked
by pickers, bit by bit; and what makes a kernel stop."""

import pickle
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from by_pickers import by_pickers
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_sampler import pick as plain_pick
from tiers import examples

from pagraph import CSC, FormatError, Graph, NeighborSampler
from pagraph.sampling import SubgraphSampler, whole_batch
from pagraph.sampling.hop import set_slots
from pagraph.sampling.kernels.batch import fill_fresh_table, hop_key, pick_as
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools

DTYPES = [torch.int32, torch.int64]


@st.composite
def graphs(draw):
    """Self-loops, parallel edges, isolated vertices, a hub with more neighbours than a scan
    remembers; both widths."""
    n = draw(st.integers(1, 30))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=120))
    hub = draw(st.sampled_from([0, 0, 90]))
    src = [e[0] for e in edges] + [i % n for i in range(hub)]
    dst = [e[1] for e in edges] + [0] * hub
    csc = CSC.from_coo(src, dst, n)
    if draw(st.booleans()):
        ids = None if csc.edge_ids is None else csc.edge_ids.long()
        csc = CSC(csc.indptr.long(), csc.indices.long(), n, ids)
    return Graph(csc)


def in_one_call(sampler, graph, seeds, *arguments, **settings):
    """The batch; fails if pickers pick some of it."""
    assert not sampler.plan(graph).asks
    return sampler.sample(graph, seeds, *arguments, **settings)


def flat(value):
    """Types, dtypes, shapes, contiguity and values of all that a batch holds."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), value.is_contiguous(), value.tolist()]
    if isinstance(value, dict):
        return [(key, flat(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(flat, value)]
    if hasattr(value, "__dataclass_fields__"):
        return [
            type(value).__name__,
            *(flat(getattr(value, name)) for name in value.__dataclass_fields__),
        ]
    assert value is None or type(value) in (int, str)
    return value


@settings(max_examples=examples(150), deadline=None)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([1, 2, 3, 7, 66, 80]), min_size=1, max_size=3),
    none=st.integers(0, 3),
    once=st.booleans(),
    replace=st.booleans(),
    edge_dir=st.sampled_from(["in", "out"]),
    key=st.integers(-(2**63), 2**64 - 1),
    dtype=st.sampled_from([*DTYPES, None]),
    seed_dtype=st.sampled_from(DTYPES),
    as_mapping=st.booleans(),
    data=st.data(),
)
def test_equals_pickers(
    graph, fanouts, none, once, replace, edge_dir, key, dtype, seed_dtype, as_mapping, data
):
    seeds = torch.tensor(
        data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8)), dtype=seed_dtype
    )
    if once:
        fanouts = [0 if hop == none else fanout for hop, fanout in enumerate(fanouts)]
    sampler = (SubgraphSampler if once else NeighborSampler)(
        fanouts, replace=replace, edge_dir=edge_dir
    )
    given = {"_N": seeds} if as_mapping else seeds
    pools = BufferPools(2)
    batch = in_one_call(sampler, graph, given, key, dtype=dtype, pools=pools)
    assert flat(batch) == flat(by_pickers(lambda: sampler.sample(graph, given, key, dtype=dtype)))
    again = sampler.sample(graph, given, key, dtype=dtype, pools=pools)
    assert flat(again) == flat(batch)


TYPES = [("a", "to", "a"), ("b", "of", "a"), ("a", "has", "b"), ("b", "again", "a")]


@st.composite
def typed_graphs(draw):
    """Two vertex types, of which the second may have no vertex, one without edges, and 1 to 4 edge
    types."""
    sizes = {"a": draw(st.integers(1, 20)), "b": draw(st.integers(0, 20)), "c": 3}
    long, csc = draw(st.booleans()), {}
    for src, name, dst in draw(st.permutations(TYPES))[: draw(st.integers(1, 4))]:
        ends = st.tuples(
            st.integers(0, max(0, sizes[src] - 1)), st.integers(0, max(0, sizes[dst] - 1))
        )
        edges = draw(st.lists(ends, max_size=60 if sizes[src] and sizes[dst] else 0))
        made = CSC.from_coo([e[0] for e in edges], [e[1] for e in edges], (sizes[src], sizes[dst]))
        if long:
            ids = None if made.edge_ids is None else made.edge_ids.long()
            made = CSC(made.indptr.long(), made.indices.long(), sizes[src], ids)
        csc[src, name, dst] = made
    return Graph(csc, sizes)


@contextmanager
def numbered(*, by_places):
    """Number vertices by their places, or all of them by hash tables."""
    most, whole_batch._MOST_PLACES = (
        whole_batch._MOST_PLACES,
        whole_batch._MOST_PLACES if by_places else -1,
    )
    whole_batch._Layout.of.cache_clear()
    try:
        yield
    finally:
        whole_batch._MOST_PLACES = most
        whole_batch._Layout.of.cache_clear()


@settings(max_examples=examples(150), deadline=None)
@given(
    graph=typed_graphs(),
    once=st.booleans(),
    replace=st.booleans(),
    by_places=st.booleans(),
    shared=st.sampled_from([1, 4]),
    key=st.integers(-(2**63), 2**64 - 1),
    dtype=st.sampled_from([*DTYPES, None]),
    data=st.data(),
)
def test_several_types_equal_pickers(graph, once, replace, by_places, shared, key, dtype, data):
    seeds = {}
    for ntype in data.draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True)):
        ids = st.lists(
            st.integers(0, max(0, graph.num_nodes_of(ntype) - 1)),
            max_size=5 * (graph.num_nodes_of(ntype) > 0),
        )
        seeds[ntype] = torch.tensor(data.draw(ids), dtype=data.draw(st.sampled_from(DTYPES)))
    number = st.sampled_from([0, 1, 2, 7, 66])
    fanouts = [
        {t: data.draw(number) for t in graph.edge_types}
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    make = SubgraphSampler if once else NeighborSampler
    sampler, pools = make(fanouts, replace=replace, batch_dependency=shared), BufferPools(2)
    with numbered(by_places=by_places):
        batch = in_one_call(sampler, graph, seeds, key, dtype=dtype, pools=pools)
        again = sampler.sample(graph, seeds, key, dtype=dtype, pools=pools)
    assert (
        flat(batch)
        == flat(by_pickers(lambda: sampler.sample(graph, seeds, key, dtype=dtype)))
        == flat(again)
    )


FEW_WEIGHTS = st.sampled_from([0.0, 0.0, 1.0, 2.0, 0.3, 1e-30, 1e30, 1e3])


def give_weights(graph, data):
    """Weights to some edge types: a mask, equal ones, zeros among others, or none but zeros."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.bool, torch.int16]))
    for etype in graph.edge_types:
        if data.draw(st.booleans()):
            few = data.draw(st.lists(FEW_WEIGHTS, min_size=1, max_size=6))
            count = graph.csc_of(etype).num_edges
            values = rng.choice(few, count) * data.draw(st.sampled_from([1.0, rng.random(count)]))
            if dtype == torch.int16:
                values = values.clip(max=9)
            graph.set_field("w", torch.from_numpy(values).to(dtype), edge_type=etype)


@settings(max_examples=examples(300), deadline=None)
@given(
    graph=st.one_of(graphs(), typed_graphs()),
    once=st.booleans(),
    replace=st.booleans(),
    by_places=st.booleans(),
    shared=st.sampled_from([1, 4]),
    key=st.integers(-(2**63), 2**64 - 1),
    of_user=st.booleans(),
    data=st.data(),
)
def test_weights_of_several_types_equal_pickers(
    graph, once, replace, by_places, shared, key, of_user, data
):
    give_weights(graph, data)
    seeds = {}
    for ntype in data.draw(st.lists(st.sampled_from(graph.node_types), min_size=1, unique=True)):
        count = graph.num_nodes_of(ntype)
        ids = st.lists(st.integers(0, max(0, count - 1)), max_size=5 * (count > 0))
        seeds[ntype] = torch.tensor(data.draw(ids), dtype=torch.int64)
    number = st.sampled_from([0, 1, 2, 7, 20, 66])
    fanouts = [
        {t: data.draw(number) for t in graph.edge_types}
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    kind = SubgraphSampler if once else NeighborSampler
    sampler = kind(fanouts, replace=replace, prob="w", batch_dependency=shared)
    options = {}
    if of_user:
        options["field"] = lambda etype, name: graph.edge_fields(etype).get(name)
    with numbered(by_places=by_places):
        batch = in_one_call(sampler, graph, seeds, key, **options)
    assert flat(batch) == flat(by_pickers(lambda: sampler.sample(graph, seeds, key)))


def weighted_types(dtypes=(torch.float32, torch.float32)):
    """Two edge types, with long rows, and weights of these dtypes."""
    rng = np.random.default_rng(3)
    types = [("a", "to", "a"), ("b", "of", "a")]
    csc = {
        types[0]: CSC.from_coo(rng.integers(0, 50, 4000), rng.integers(0, 50, 4000), (50, 50)),
        types[1]: CSC.from_coo(rng.integers(0, 30, 2000), rng.integers(0, 50, 2000), (30, 50)),
    }
    graph = Graph(csc, {"a": 50, "b": 30})
    for etype, dtype in zip(types, dtypes, strict=True):
        count = graph.csc_of(etype).num_edges
        graph.set_field("w", torch.from_numpy(rng.random(count)).to(dtype), edge_type=etype)
    return graph


WEIGHTED = [
    NeighborSampler([5, 20], prob="w"),
    SubgraphSampler([5, 20], prob="w"),
    SubgraphSampler([5, 20], prob="w", replace=True),
]


@pytest.mark.parametrize("sampler", WEIGHTED)
def test_weights_that_are_written_or_replaced_count_from_the_next_batch_on(sampler):
    graph, seeds = weighted_types(), {"a": torch.arange(20)}
    etype = graph.edge_types[0]

    def both():
        in_one = flat(in_one_call(sampler, graph, seeds, 1))
        assert in_one == flat(by_pickers(lambda: sampler.sample(graph, seeds, 1)))
        return in_one

    found = [both()]
    weights = graph.edge_fields(etype)["w"]
    weights[:] = weights.flip(0)
    found.append(both())
    weights[: len(weights) // 2] = 0
    found.append(both())
    graph.set_field("w", torch.ones(len(weights)), edge_type=etype)
    found.append(both())
    graph.edge_fields(etype).pop("w")
    found.append(both())
    assert len(set(map(str, found))) >= 4
    # A sampler that has sampled is copied without what it knows.
    assert flat(pickle.loads(pickle.dumps(sampler)).sample(graph, seeds, 1)) == found[-1]


@pytest.mark.parametrize("sampler", WEIGHTED)
def test_one_sampler_of_weights_for_two_graphs_in_turn(sampler):
    graphs = weighted_types(), weighted_types((torch.float64, torch.float64))
    graphs[1].edge_fields(graphs[1].edge_types[0])["w"][::2] = 0
    seeds = {"a": torch.arange(20)}
    expected = [flat(by_pickers(lambda: sampler.sample(g, seeds, 1))) for g in graphs]  # noqa: B023
    for _ in range(2):
        assert [flat(in_one_call(sampler, g, seeds, 1)) for g in graphs] == expected


def test_weights_of_several_dtypes():
    """Kernels take those of one dtype, pickers the others."""
    graph, seeds = weighted_types((torch.float32, torch.float64)), {"a": torch.arange(20)}
    alike = weighted_types((torch.float64, torch.float64))
    for etype in graph.edge_types:
        alike.set_field("w", graph.edge_fields(etype)["w"].double(), edge_type=etype)
    assert flat(WEIGHTED[0].sample(graph, seeds, 1)) == flat(WEIGHTED[0].sample(alike, seeds, 1))


@pytest.mark.parametrize("sampler", WEIGHTED)
def test_wrong_weights_are_the_error_of_pickers(sampler):
    graph = weighted_types()
    graph.edge_fields(("b", "of", "a"))["w"][3] = float("nan")
    for seeds, fails in ({"a": torch.arange(3)}, True), ({"b": torch.arange(3)}, False):
        # No hop comes from a vertex of type b to edges: their weights are not asked for.
        if fails:
            with pytest.raises(ValueError, match="^edge field 'w' must be finite and not negative"):
                sampler.sample(graph, seeds, 1)
        else:
            expected = flat(by_pickers(lambda: sampler.sample(graph, seeds, 1)))  # noqa: B023
            assert flat(sampler.sample(graph, seeds, 1)) == expected
    graph.edge_fields(("b", "of", "a"))["w"][3] = 1
    assert sampler.sample(graph, {"a": torch.arange(3)}, 1) is not None


@pytest.mark.parametrize("sampler", WEIGHTED)
def test_threads_share_weights(sampler):
    graph = weighted_types()
    expected = by_pickers(
        lambda: [flat(sampler.sample(graph, {"a": torch.arange(i, i + 9)}, i)) for i in range(40)]
    )
    # Nothing is known about this one: the threads meet while its weights are made.
    again, results = weighted_types(), {}

    def run(part):
        for i in range(part, 40, 4):
            results[i] = flat(sampler.sample(again, {"a": torch.arange(i, i + 9)}, i))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(40)] == expected


@pytest.mark.parametrize("sampler", WEIGHTED[:2])
def test_weights_that_moved_are_read_where_they_are(sampler):
    graph, seeds = weighted_types(), {"a": torch.arange(20)}
    before = flat(in_one_call(sampler, graph, seeds, 1))
    for etype in graph.edge_types:
        graph.edge_fields(etype)["w"].share_memory_()
        graph.csc_of(etype).indptr.share_memory_()
        graph.csc_of(etype).indices.share_memory_()
    assert flat(in_one_call(sampler, graph, seeds, 1)) == before


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
@pytest.mark.parametrize("weighed", [False, True])
def test_damage_among_weighted_edges_is_the_same_error(make, weighed):
    whole = weighted_types()
    damaged = {}
    for etype in whole.edge_types:
        csc = whole.csc_of(etype)
        indices = csc.indices.clone()
        indices[5:] = 50
        damaged[etype] = CSC(csc.indptr, indices, csc.num_src)
    graph = Graph(damaged, {"a": 50, "b": 30})
    for etype in graph.edge_types if weighed else []:
        graph.set_field("w", torch.rand(graph.csc_of(etype).num_edges), edge_type=etype)
    sampler, seeds = make([3, 3], prob="w"), {"a": torch.arange(9)}
    with pytest.raises(FormatError) as expected:
        by_pickers(lambda: sampler.sample(graph, seeds))
    with pytest.raises(FormatError) as got:
        sampler.sample(graph, seeds)
    assert str(got.value) == str(expected.value)


def test_an_error_leaves_no_place_behind():
    """A wrong seed, a damaged row and a damaged edge, each after vertices were given places in the
    batch."""
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, 30, 300), rng.integers(0, 30, 300), 30)
    sampler, seeds = SubgraphSampler([3, 3]), torch.arange(20)
    expected = flat(in_one_call(sampler, graph, seeds, 1))
    indptr, indices = graph.csc.indptr.clone(), graph.csc.indices.clone()
    indptr[25], indices[200:] = -1, 31
    wrong = {
        "row": (Graph(CSC(indptr, graph.csc.indices, 30)), seeds, FormatError),
        "edge": (Graph(CSC(graph.csc.indptr, indices, 30)), seeds, FormatError),
        "seed": (graph, torch.tensor([3, 4, 30]), IndexError),
    }
    for damaged, ids, error in wrong.values():
        with pytest.raises(error):
            sampler.sample(damaged, ids, 1)
        assert flat(sampler.sample(graph, seeds, 1)) == expected


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
def test_fanouts_by_edge_type_and_strided_seeds(make):
    graph = random_graph()
    sampler = make(
        [{("_N", "_E", "_N"): 0 if make is SubgraphSampler else 4}, {("_N", "_E", "_N"): 3}]
    )
    seeds = torch.arange(40)[::3]
    assert flat(in_one_call(sampler, graph, seeds, 5)) == flat(
        by_pickers(lambda: sampler.sample(graph, seeds, 5))
    )


def test_a_subgraph_without_hops_is_its_seeds():
    seeds = torch.tensor([4, 4, 1])
    batch = in_one_call(SubgraphSampler([]), random_graph(), seeds)
    assert flat(batch) == flat(
        by_pickers(lambda: SubgraphSampler([]).sample(random_graph(), seeds))
    )


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
def test_the_hash_table_grows_and_shrinks_from_batch_to_batch(make):
    graph = random_graph(20_000, 200_000)
    sampler = make([10, 5])
    for key, size in enumerate([1, 2000, 1, 300, 1, 1, 1, 1, 700]):
        seeds = torch.arange(size)
        batch = in_one_call(sampler, graph, seeds, key)
        assert flat(batch) == flat(by_pickers(lambda: sampler.sample(graph, seeds, key)))  # noqa: B023


@pytest.mark.parametrize(
    ("count", "room", "least", "bits"),
    [(0, 8, 4, 4), (4, 8, 4, 4), (5, 8, 4, 5), (16, 8, 4, 6), (16, 5, 4, 5), (3, 8, 7, 7)],
)
def test_a_fresh_table_is_a_quarter_full_where_there_is_room(count, room, least, bits):
    """A full one would be searched forever for a vertex that it does not have."""
    table = np.full(1 << room, 7, dtype=np.int64)
    assert fill_fresh_table(np.arange(100, 100 + count), count, table, least) == bits
    entries = table[: 1 << bits]
    assert sorted(entries[entries >= 0] & 0xFFFFFFFF) == list(range(count))
    assert (table[1 << bits :] == 7).all()


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
@pytest.mark.parametrize("fanout", [1, 5, 15, 16, 17, 65])
@pytest.mark.parametrize("more", [0, 1, 2, 30, 200])
def test_repeated_picks_are_found(make, fanout, more):
    """By scans and in a set, whose size follows the fan-out. No vertex has more neighbours than
    this one, which may have just one more than are drawn."""
    degree = fanout + more
    graph = Graph.from_coo(torch.arange(1, degree + 1), torch.zeros(degree, dtype=torch.int64))
    sampler = make([fanout])
    for key in range(5):
        batch = in_one_call(sampler, graph, torch.tensor([0]), key)
        nodes = batch.input_nodes
        found = (nodes["_N"] if isinstance(nodes, dict) else nodes).tolist()
        assert len(set(found)) == len(found) == fanout + 1


@given(
    degrees=st.lists(st.sampled_from([0, 1, 5, 16, 63, 64, 65, 66, 130, 5000]), max_size=8),
    fanout=st.sampled_from([1, 2, 5, 16, 17, 63, 64, 65, 300]),
    dtype=st.sampled_from([np.int32, np.int64]),
    first=st.sampled_from([0, 7, 2**31 - 9]),
    key=st.integers(0, 2**64 - 1),
)
def test_picks_of_rows_of_any_length_equal_the_plain_ones(degrees, fanout, dtype, first, key):
    """By words, by scans and in a set."""
    frontier = np.arange(first, first + len(degrees)).astype(dtype)
    starts = np.cumsum([0, *degrees], dtype=np.int64)[:-1]
    offsets = np.cumsum([0, *(min(degree, fanout) for degree in degrees)], dtype=np.int64)
    positions = np.empty(int(offsets[-1]), dtype=dtype)
    seen = np.full(set_slots(fanout), -1, dtype=np.int64)
    of_rows = starts, np.array(degrees, dtype=np.int64), offsets, seen, positions
    pick_as(frontier, fanout, False, np.uint64(key), *of_rows)
    rows = zip(frontier.tolist(), starts.tolist(), degrees, strict=True)
    expected = [plain_pick(v, start, degree, fanout, False, key) for v, start, degree in rows]
    assert positions.tolist() == [position for row in expected for position in row]
    assert (seen == -1).all()  # the next hop finds it empty


@given(key=st.integers(0, 2**64 - 1), hop=st.integers(0, 100))
def test_keys_of_hops_are_derived_as_elsewhere(key, hop):
    assert int(hop_key(np.uint64(key), hop, 0)) == derive_key(key, hop)
    assert int(hop_key(np.uint64(key), hop, 3)) == derive_key(key, hop, 3)


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 9, 2, 4], [0, 1, 2, 0]),
        ([0, -1, 2, 4], [0, 1, 2, 0]),
        ([0, 1, 2, 4], [0, 1, 3, 0]),
        ([0, 1, 2, 4], [2, 1, -5, 0]),
    ],
)
def test_damaged_arrays_are_the_same_error(make, dtype, indptr, indices):
    graph = Graph(CSC(torch.tensor(indptr, dtype=dtype), torch.tensor(indices, dtype=dtype), 3))
    sampler, seeds = make([3, 3]), torch.tensor([2, 0], dtype=torch.int32)
    with pytest.raises(FormatError) as expected:
        by_pickers(lambda: sampler.sample(graph, seeds))
    with pytest.raises(FormatError) as got:
        sampler.sample(graph, seeds)
    assert str(got.value) == str(expected.value)
    assert got.traceback[-2].name == "raise_reported"


def test_an_id_that_only_narrowing_would_make_right_is_damage():
    graph = Graph(CSC(torch.tensor([0, 1, 1]), torch.tensor([2**32 + 1]), 2))
    with pytest.raises(FormatError, match="got 4294967297"):
        NeighborSampler([2]).sample(graph, torch.tensor([0], dtype=torch.int32))


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
@pytest.mark.parametrize("bad", [[0, -1], [200, 3], [0, 2**32]])
@pytest.mark.parametrize("dtype", [*DTYPES, None])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_seeds_outside_the_graph_are_the_same_error(make, bad, dtype, as_mapping):
    graph, sampler, seeds = random_graph(), make([2, 2]), torch.tensor(bad)
    given = {"_N": seeds} if as_mapping else seeds
    with pytest.raises(IndexError) as expected:
        by_pickers(lambda: sampler.sample(graph, given, dtype=dtype))
    with pytest.raises(IndexError) as got:
        sampler.sample(graph, given, dtype=dtype)
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
def test_threads_share_sampler_graph_and_pools(make):
    graph, sampler, pools = random_graph(), make([4, 3, 2]), BufferPools(3)
    expected = by_pickers(
        lambda: [flat(sampler.sample(graph, torch.arange(i, i + 20), i)) for i in range(60)]
    )
    results = {}

    def run(part):
        for i in range(part, 60, 4):
            results[i] = flat(sampler.sample(graph, torch.arange(i, i + 20), i, pools=pools))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(60)] == expected


@pytest.mark.parametrize("make", [NeighborSampler, SubgraphSampler])
def test_memory_is_recycled_but_never_under_a_held_batch(make):
    graph, sampler, pools = random_graph(), make([5, 5]), BufferPools(2)
    held = [in_one_call(sampler, graph, torch.arange(i, i + 10), i, pools=pools) for i in range(5)]
    before = [flat(batch) for batch in held]
    for i in range(30):
        sampler.sample(graph, torch.arange(i, i + 10), 1000 + i, pools=pools)
    assert [flat(batch) for batch in held] == before
    pointers = set()
    for i in range(10):
        batch = sampler.sample(graph, {"_N": torch.arange(10)}, i, pools=pools)
        pointers.add(batch.input_nodes["_N"].data_ptr())
    assert len(pointers) < 10


def test_an_array_that_moved_is_read_where_it_is():
    """Sharing a graph with another process moves its arrays: nothing may remember where they
    were."""
    graph, sampler, seeds = random_graph(), NeighborSampler([4, 4]), torch.arange(10)
    before = flat(in_one_call(sampler, graph, seeds, 1))
    graph.csc.indptr.share_memory_()
    graph.csc.indices.share_memory_()
    assert flat(in_one_call(sampler, graph, seeds, 1)) == before


def random_graph(n=200, m=3000):
    rng = np.random.default_rng(0)
    return Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)
