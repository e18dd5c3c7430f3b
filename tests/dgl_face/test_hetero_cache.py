"""One cache over all vertex types: the same values with and without it, one budget, honest counts,
never stale."""

import gc
import weakref

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking, degree
from pagraph.system.budget import SLOT_BYTES

pytestmark = pytest.mark.usefixtures("no_threads_left")

COUNTS = {"user": 200, "item": 120, "tag": 50, "none": 0}
NAMES = {"user": ["feat", "age"], "item": ["feat"], "tag": ["absent"], "none": ["feat"]}
WIDTHS = {"user": 6 * 4 + 8, "item": 3 * 2 * 2}  # bytes of one vertex's rows of mapped columns
ETYPES = [
    ("user", "follows", "user"),
    ("user", "buys", "item"),
    ("user", "rates", "item"),
    ("item", "bought by", "user"),
    ("tag", "on", "item"),
    ("item", "has", "tag"),
    ("user", "is", "none"),
]


@pytest.fixture
def graph(tmp_path):
    """Users and items have mapped columns of one name and different widths and dtypes; tags none,
    "none" no rows."""
    rng = np.random.default_rng(0)
    edges = {}
    for i, (src, relation, dst) in enumerate(ETYPES):
        count = 600 if COUNTS[dst] else 0
        ends = (
            rng.zipf(1.5, count) % max(1, COUNTS[src]),
            rng.integers(0, max(1, COUNTS[dst] - i), count),
        )
        edges[src, relation, dst] = tuple(torch.from_numpy(x) for x in ends)
    graph = dgl.heterograph(edges, num_nodes_dict=COUNTS)

    def mapped(name, values):
        np.save(tmp_path / f"{name}.npy", values)
        return map_npy(tmp_path / f"{name}.npy")

    graph.nodes["user"].data["feat"] = mapped("user", rng.random((200, 6), dtype=np.float32))
    graph.nodes["user"].data["age"] = mapped("age", rng.integers(0, 2**40, 200))
    graph.nodes["item"].data["feat"] = mapped("item", rng.random((120, 3, 2)).astype(np.float16))
    graph.nodes["item"].data["price"] = torch.rand(120)
    graph.nodes["none"].data["feat"] = torch.empty(0, 4)
    graph.edges["buys"].data["w"] = torch.rand(graph.num_edges("buys"))
    return graph


def load(graph, seeds=None, names=NAMES, fanouts=(4, 3), **options):
    """A loader over heterogeneous seeds; options of the sampler and of the loader."""
    sampler_options = {k: options.pop(k) for k in ("edge_dir", "prefetch_labels") if k in options}
    sampler = dgl.dataloading.NeighborSampler(
        list(fanouts), prefetch_node_feats=present(graph, names), **sampler_options
    )
    seeds = {"item": torch.arange(100), "user": torch.arange(50)} if seeds is None else seeds
    defaults = dict(batch_size=25, seed=0)
    return ours(graph, seeds, sampler, **(defaults | options))


def present(graph, names):
    return {t: [n for n in of_type if n in graph.nodes[t].data] for t, of_type in names.items()}


def check(graph, batch, names=NAMES):
    """Every prefetched column of a batch is the graph's, bit for bit; returns the rows asked, by
    column."""
    input_nodes, _, blocks = batch
    asked = {}
    for ntype, of_type in present(graph, names).items():
        for name in of_type:
            got, expected = (
                blocks[0].srcnodes[ntype].data[name],
                graph.nodes[ntype].data[name][input_nodes[ntype]],
            )
            assert got.dtype == expected.dtype and torch.equal(got, expected), (ntype, name)
            asked[f"{ntype}/{name}"] = len(input_nodes[ntype])
    return asked


def run(graph, loader, names=NAMES):
    """An epoch, checked; returns the rows asked, by column."""
    totals = {}
    for batch in loader:
        for key, rows in check(graph, batch, names).items():
            totals[key] = totals.get(key, 0) + rows
    return totals


def cached_ids(loader, ntype, column):
    """The ids whose rows the cache holds."""
    static = loader._engine.fields._static
    (part,) = [p for plan in loader.cache_plan for p in plan if p.key == f"{ntype}/{column}"]
    return static._holding.choice.indices[ntype].ids[: part.rows]


def plans(loader):
    return {plan.node_type: plan for plan in loader.cache_plan}


def all_bytes(graph):
    return sum(COUNTS[t] * width for t, width in WIDTHS.items())


TABLES = SLOT_BYTES * (200 + 120)


@pytest.mark.every
@pytest.mark.parametrize("cache", [0, 700, 2000, "1%", "30%", 1.0, "auto"], ids=str)
@pytest.mark.parametrize(("prefetch", "workers"), [(0, 0), (1, 0), (4, 2)])
def test_values_are_the_same_with_any_budget_and_depth(graph, cache, prefetch, workers):
    loader = load(graph, cache=cache, prefetch=prefetch, num_workers=workers)
    for _ in range(2):
        run(graph, loader)
    held = sum(plan.nbytes for plan in loader.cache_plan)
    limits = {
        0: 0,
        700: 700,
        2000: 2000,
        "1%": all_bytes(graph) // 100 + TABLES,
        1.0: all_bytes(graph) + TABLES,
    }
    assert held <= limits.get(cache, all_bytes(graph) + TABLES)
    assert (held > 0) == (cache not in (0,))


@pytest.mark.every
@pytest.mark.parametrize("cache", [700, 1500, "5%", "30%", "80%"])
def test_hits_are_those_of_the_vertices_with_most_reads(graph, cache):
    loader = load(graph, cache=cache, cache_policy="degree", num_workers=2)
    asked = run(graph, loader)
    scores = {t: sum(graph.out_degrees(etype=e) for e in ETYPES if e[0] == t) for t in WIDTHS}
    cached = {t: torch.zeros(COUNTS[t], dtype=torch.bool) for t in WIDTHS}
    for ntype in WIDTHS:
        ranking = torch.argsort(scores[ntype], descending=True, stable=True)
        cached[ntype][ranking[: plans(loader)[ntype].rows]] = True
    # No row outside would save more per byte than one inside, but for what did not fit at the very
    # end.
    worst = min(float(scores[t][cached[t]].min()) for t in WIDTHS if cached[t].any())
    held = sum(plan.nbytes for plan in loader.cache_plan)
    for ntype, width in WIDTHS.items():
        if cached[ntype].any() and not cached[ntype].all():
            best = float(scores[ntype][~cached[ntype]].max())
            assert best <= worst or held + width > plans(loader)[ntype].budget_bytes
    again = load(graph, cache=0)
    hits = {"user": 0, "item": 0}
    for input_nodes, _, _ in again:
        for ntype in hits:
            hits[ntype] += int(cached[ntype][input_nodes[ntype]].sum())
    fields = loader.stats.total.reads.fields
    for key, rows in asked.items():
        expected = hits[key.split("/")[0]] if key != "none/feat" else 0
        assert (fields[key].asked, fields[key].hits, fields[key].misses) == (
            rows,
            expected,
            rows - expected,
        )
    assert loader.stats.total.hit_rate > 0


def test_at_full_capacity_no_row_is_read_from_disk(graph):
    loader = load(graph, cache=1.0)
    asked = run(graph, loader)
    fields = loader.stats.total.reads.fields
    for key in ("user/feat", "user/age", "item/feat"):
        assert fields[key].hits == fields[key].asked == asked[key] > 0
    assert loader.stats.total.hit_rate == 1.0
    assert {t: plan.rows for t, plan in plans(loader).items()} == {
        "user": 200,
        "item": 120,
        "tag": 0,
        "none": 0,
    }


def test_plans_and_statistics_name_type_and_column(graph):
    loader = load(graph, cache="50%")
    run(graph, loader)
    by_type = plans(loader)
    assert set(by_type) == set(COUNTS)
    assert {part.key for part in by_type["user"]} == {"user/feat", "user/age"}
    assert {part.key for part in by_type["item"]} == {"item/feat"}
    assert list(by_type["tag"]) == list(by_type["none"]) == []
    assert by_type["user"].num_nodes == 200 and by_type["tag"].table_bytes == 0
    assert "of 200 'user' vertices" in repr(by_type["user"]) and "'user/age': " in repr(
        by_type["user"]
    )
    assert set(loader.stats.total.reads.fields) == {
        "user/feat",
        "user/age",
        "item/feat",
        "none/feat",
    }
    assert "user/age" in str(loader.stats)


def test_auto_is_decided_once_for_all_types(graph):
    loader = load(graph, cache="auto", prefetch=0)
    batches = iter(loader)
    check(graph, next(batches))
    assert loader.stats.total.hit_rate == 0 and all(plan.nbytes == 0 for plan in loader.cache_plan)
    check(graph, next(batches))
    assert {plan.rows for plan in loader.cache_plan} == {200, 120, 0}
    assert len({plan.budget_bytes for plan in loader.cache_plan}) == 1
    fields = loader.stats.total.reads.fields
    assert fields["user/feat"].hits > 0 and fields["item/feat"].hits > 0


@pytest.mark.parametrize("kind", ["foreign", "edges", "labels", "out"])
def test_other_ways_to_read_columns_use_the_cache_too(graph, kind):
    full = dict(batch_size=20, cache=1.0, seed=0)
    names = present(graph, NAMES)
    if kind == "foreign":
        sampler = dgl.dataloading.LaborSampler([4, 3], prefetch_node_feats=names)
        loader = ours(graph, {"item": torch.arange(100)}, sampler, **full)
    elif kind == "edges":
        inner = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=names)
        sampler = dgl.dataloading.as_edge_prediction_sampler(inner)
        loader = ours(graph, {"buys": torch.arange(100)}, sampler, **full)
    elif kind == "labels":
        labels = {"user": ["age"]}
        loader = load(
            graph, names={}, prefetch_labels=labels, cache=1.0, seeds={"user": torch.arange(60)}
        )
    else:
        homogeneous = dgl.graph((torch.arange(50), torch.arange(50).flip(0)), num_nodes=50)
        two = dgl.heterograph(
            {("a", "r", "a"): homogeneous.edges(), ("a", "s", "a"): homogeneous.edges()}
        )
        two.nodes["a"].data["feat"] = graph.nodes["item"].data["feat"][:50]
        graph, names = two, {"a": ["feat"]}
        loader = load(graph, seeds={"a": torch.arange(50)}, names=names, edge_dir="out", cache=1.0)
    for _ in range(2):
        for input_nodes, *_, blocks in loader:
            if kind == "labels":
                ids = blocks[-1].dstnodes["user"].data[dgl.NID]
                assert torch.equal(
                    blocks[-1].dstnodes["user"].data["age"], graph.nodes["user"].data["age"][ids]
                )
            elif kind == "out":  # a graph with one vertex type has bare tensors
                ids = input_nodes["a"] if isinstance(input_nodes, dict) else input_nodes
                assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][ids])
            else:
                check(graph, (input_nodes, None, blocks))
    epoch = loader.stats.epochs[1]
    assert epoch.hit_rate == 1.0 and epoch.reads.total.hits > 0


CHANGES = {
    "replace": lambda d, n: d.__setitem__("feat", torch.full((len(d["feat"]), 6), float(n))),
    "other width": lambda d, n: d.__setitem__(
        "feat", torch.full((len(d["feat"]), 1 + n), float(n))
    ),
    "other dtype": lambda d, n: d.__setitem__("feat", torch.full((len(d["feat"]),), n)),
    "write": lambda d, n: d["feat"].__setitem__(slice(None), float(n)),
    "delete and set": lambda d, n: (
        d.pop("feat"),
        d.__setitem__("feat", torch.ones(COUNTS["user"], 2) * n),
    ),
}


@pytest.mark.every
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_change_of_one_type_is_seen_and_the_others_stay_cached(graph, change, prefetch):
    loader = load(graph, batch_size=10, cache=1.0, prefetch=prefetch)
    for step, batch in enumerate(loader):
        check(graph, batch)
        if step % 4 == 1:
            CHANGES[change](graph.nodes["user"].data, step)
    fields = loader.stats.total.reads.fields
    assert fields["item/feat"].hits == fields["item/feat"].asked
    assert fields["user/age"].hits == fields["user/age"].asked
    assert fields["user/feat"].hits < fields["user/feat"].asked


def test_a_deleted_column_of_one_type_is_an_error_at_the_next_batch(graph):
    loader = load(graph, cache=1.0)
    batches = iter(loader)
    next(batches)
    del graph.nodes["item"].data["feat"]
    with pytest.raises(KeyError, match="feat"):
        next(batches)


def test_writes_that_nobody_can_see_need_an_explicit_call(graph):
    loader = load(graph, cache=1.0)
    run(graph, loader)
    graph.nodes["item"].data["feat"].numpy()[:] = 7.0
    graph.nodes["user"].data["age"].numpy()[:] = 9
    loader.invalidate_cache()
    run(graph, loader)


def addresses(loader):
    return {
        field.label: field._cache.rows.data_ptr()
        for field in loader._engine.fields._fields.values()
        if field._cache is not None
    }


@pytest.mark.parametrize("cache", [1500, "20%", "auto"])
def test_loaders_of_the_same_columns_share_one_cache(graph, cache):
    train = load(graph, cache=cache)
    run(graph, train)
    val = load(graph, {"user": torch.arange(100, 150)}, cache=cache)
    run(graph, val)
    assert addresses(val) == addresses(train) != {}
    assert {t: p.nbytes for t, p in plans(val).items()} == {
        t: p.nbytes for t, p in plans(train).items()
    }
    graph.nodes["user"].data["feat"].numpy()[:] = 3.0
    train.invalidate_cache()
    run(graph, val)
    run(graph, train)


def test_a_loader_of_fewer_types_uses_the_cache_of_more(graph):
    both = load(graph, cache="50%")
    run(graph, both)
    names = {"user": ["feat"]}
    users = load(graph, names=names, cache="50%")
    run(graph, users, names)
    assert addresses(users) == {"user/feat": addresses(both)["user/feat"]}


def test_a_loader_of_more_types_has_its_own_cache(graph):
    names = {"user": ["feat"]}
    users = load(graph, names=names, cache="50%")
    run(graph, users, names)
    both = load(graph, cache="50%")
    run(graph, both)
    assert addresses(both)["user/feat"] != addresses(users)["user/feat"]
    assert "item/feat" in addresses(both)


def test_one_tensor_of_two_types_is_cached_by_the_ranking_of_each(graph):
    few, many = torch.arange(10), torch.arange(10).repeat(5)
    two = dgl.heterograph(
        {("a", "r", "b"): (many[:30] % 3, many[:30]), ("b", "s", "a"): (9 - many % 4, many)},
        {"a": 200, "b": 200},
    )
    for ntype in "ab":
        two.nodes[ntype].data["feat"] = graph.nodes["user"].data["feat"]
    names = {"a": ["feat"], "b": ["feat"]}
    policy = {"a": few, "b": few + 100}
    both = load(
        two, {"a": torch.arange(50)}, names=names, cache="10%", cache_policy=lambda *_: policy
    )
    run(two, both, names)
    assert [cached_ids(both, t, "feat").tolist() for t in "ab"] == [
        policy[t].tolist() for t in "ab"
    ]
    shared = [load(two, {"b": torch.arange(50)}, names=names, cache="10%") for _ in range(2)]
    for loader in shared:
        run(two, loader, names)
    assert addresses(shared[0]) == addresses(shared[1])
    assert addresses(shared[0])["a/feat"] != addresses(shared[0])["b/feat"]


def test_a_column_of_another_type_that_is_read_late_gets_the_bytes_that_are_left(graph):
    names = {"user": ["feat"]}
    loader = load(
        graph, names=names, cache=SLOT_BYTES * 320 + 24 * 200 + 12 * 40, cache_policy="degree"
    )
    run(graph, loader, names)
    columns = loader._columns
    ids = torch.arange(120)
    for _ in range(10):
        reads = columns.reads("node", [("item", "feat")], {"item": ids})
        (rows,) = loader._engine.fields.read_each(reads)
        assert torch.equal(rows.tensor, graph.nodes["item"].data["feat"])
    assert {t: p.rows for t, p in plans(loader).items()} == {
        "user": 200,
        "item": 40,
        "tag": 0,
        "none": 0,
    }
    assert sum(p.nbytes for p in loader.cache_plan) == loader.cache_plan[0].budget_bytes
    scores = sum(graph.out_degrees(etype=e) for e in ETYPES if e[0] == "item")
    best = torch.argsort(scores, descending=True, stable=True)[:40]
    assert cached_ids(loader, "item", "feat").tolist() == best.tolist()


def test_a_policy_by_type(graph):
    seen = {}

    def by_type(core, seeds, sampler, seed):
        seen.update(types=core.node_types, edges=core.edge_types, seeds=seeds, seed=seed)
        return {"item": torch.arange(120).flip(0), "user": torch.arange(200, dtype=torch.int32)}

    loader = load(graph, cache="10%", cache_policy=by_type, seed=5)
    run(graph, loader)
    assert (
        seen["types"] == graph.ntypes
        and seen["edges"] == graph.canonical_etypes
        and seen["seed"] == 5
    )
    assert {t: ids.tolist() for t, ids in seen["seeds"].items()} == {
        "item": list(range(100)),
        "user": list(range(50)),
    }
    # The same share of the vertices of each type: bytes in proportion to the bytes of all its rows.
    assert {t: p.rows for t, p in plans(loader).items()} == {
        "user": 20,
        "item": 12,
        "tag": 0,
        "none": 0,
    }
    assert cached_ids(loader, "item", "feat").tolist() == list(range(119, 107, -1))


def test_a_policy_may_leave_types_out_and_may_give_scores(graph):
    only_items = {"item": torch.tensor([5, 3, 9])}
    loader = load(graph, cache=1.0, cache_policy=lambda *_: only_items)
    run(graph, loader)
    assert {t: p.rows for t, p in plans(loader).items()} == {
        "user": 0,
        "item": 3,
        "tag": 0,
        "none": 0,
    }
    scored = {
        "item": Ranking(torch.arange(120), torch.full((120,), 2)),
        "user": Ranking(torch.arange(200), torch.full((200,), 1)),
    }
    loader = load(graph, cache=SLOT_BYTES * 320 + 120 * 12 + 32 * 5, cache_policy=lambda *_: scored)
    run(graph, loader)
    assert {t: p.rows for t, p in plans(loader).items()} == {
        "user": 5,
        "item": 120,
        "tag": 0,
        "none": 0,
    }


@pytest.mark.parametrize(
    ("ranked", "error", "text"),
    [
        (torch.arange(3), ValueError, r"mapping from vertex type to ids .*'user'.*got a Tensor"),
        ({"users": torch.arange(3)}, ValueError, "vertex types among .* got 'users'"),
        ({"item": torch.tensor([120])}, ValueError, r"ids in \[0, 120\), got 120"),
        ({"item": torch.tensor([1, 1])}, ValueError, "at most once"),
        ({"item": [1]}, TypeError, "int32 or int64 tensor, got list"),
    ],
    ids=["no types", "unknown type", "bad id", "twice", "no tensor"],
)
def test_wrong_policies(graph, ranked, error, text):
    with pytest.raises(error, match=text):
        collect(load(graph, cache=1.0, cache_policy=lambda *_: ranked))


def test_the_degree_policy_counts_edges_of_all_types(graph):
    from pagraph.dgl.convert import core_graph

    for edge_dir, count in (("in", "out_degrees"), ("out", "in_degrees")):
        rankings = degree(core_graph(graph, edge_dir), None, None, 0)
        for ntype, end in ((t, 0 if edge_dir == "in" else 2) for t in COUNTS):
            of_type = [getattr(graph, count)(etype=e) for e in ETYPES if e[end] == ntype]
            scores = sum(of_type, torch.zeros(COUNTS[ntype], dtype=torch.int64))
            expected = sorted(range(COUNTS[ntype]), key=lambda v, s=scores: (-int(s[v]), v))
            assert rankings[ntype].ids.tolist() == expected
            assert torch.equal(rankings[ntype].scores, scores[expected])


def test_columns_whose_names_look_alike_are_kept_apart(tmp_path):
    """ "a/b" + "c" and "a" + "b/c" are called the same."""
    edges = (torch.arange(20), torch.arange(20).flip(0))
    graph = dgl.heterograph({("a", "r", "a/b"): edges, ("a/b", "s", "a"): edges})
    for i, (ntype, name) in enumerate([("a", "b/c"), ("a/b", "c")]):
        np.save(tmp_path / f"{i}.npy", np.arange(20) + 100 * i)
        graph.nodes[ntype].data[name] = map_npy(tmp_path / f"{i}.npy")
    names = {"a": ["b/c"], "a/b": ["c"]}
    loader = load(graph, seeds={"a": torch.arange(20)}, names=names, cache=1.0)
    asked = [
        rows
        for batch in loader
        for rows in [len(batch[0]["a"]) + len(batch[0]["a/b"])]
        if check(graph, batch, names)
    ]
    assert loader.stats.total.reads.fields["a/b/c"].hits == sum(asked)


def test_cache_and_graph_are_freed_at_once(graph):
    """Without the garbage collector: a cycle would keep gigabytes of cache until it happens to
    run."""
    loader = load(graph, cache=1.0)
    gc.collect()
    gc.disable()
    try:
        run(graph, loader)
        static = loader._engine.fields._static
        watched = [weakref.ref(x) for x in (loader, loader._columns, static)]
        del loader, static
        assert [ref() for ref in watched] == [None] * 3
    finally:
        gc.enable()


@settings(max_examples=examples(15))
@given(
    counts=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10)),
    edges=st.integers(0, 100),
    cache=st.one_of(st.integers(1, 4000), st.sampled_from(["1%", "35%", "100%"])),
    seed=st.integers(0, 1000),
)
def test_any_heterograph_and_budget(tmp_path_factory, counts, edges, cache, seed):
    folder, rng = tmp_path_factory.mktemp("graph"), np.random.default_rng(seed)
    sizes = dict(zip("abc", counts, strict=True))
    data = {}
    for src, dst in ("ab", "ba", "aa", "cb"):
        m = edges if sizes[src] and sizes[dst] else 0
        ends = (rng.integers(0, max(1, sizes[src]), m), rng.integers(0, max(1, sizes[dst]), m))
        data[src, "to", dst] = tuple(torch.from_numpy(x) for x in ends)
    graph = dgl.heterograph(data, num_nodes_dict=sizes)
    names = {}
    for ntype, size in sizes.items():
        values = rng.random((size, int(rng.integers(1, 9)))).astype(
            [np.float32, np.float64, np.float16][seed % 3]
        )
        np.save(folder / f"{ntype}.npy", values)
        graph.nodes[ntype].data["feat"] = (
            map_npy(folder / f"{ntype}.npy") if size else torch.from_numpy(values)
        )
        names[ntype] = ["feat"]
    seeds = {"b": torch.arange(sizes["b"]), "a": torch.arange(sizes["a"])}
    loader = load(graph, seeds, names=names, cache=cache, fanouts=[-1], batch_size=7, prefetch=0)
    run(graph, loader, names)
    held = [plan.nbytes for plan in loader.cache_plan]
    assert sum(held) <= loader.cache_plan[0].budget_bytes
    if cache == "100%":
        assert loader.stats.total.hit_rate == 1.0
