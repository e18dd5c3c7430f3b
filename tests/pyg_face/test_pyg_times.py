"""Temporal sampling through the loader."""

import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.utils import to_csc, to_hetero_csc

from pagraph import Graph
from pagraph.graph.fields import FieldNote
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, to_pyg
from pagraph.pyg.sampler import NeighborSampler

SEEDS = torch.arange(60)


def random_data(num_nodes=200, num_edges=1500, seed=0, **attributes):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator), edge_index=edge_index, **attributes
    )


def node_times(num_nodes=200, latest=50, seed=1):
    return torch.randint(latest, (num_nodes,), generator=torch.Generator().manual_seed(seed))


def times_of_edges(data, batch):
    """The time of each sampled edge, and the limit of the seed it was drawn for."""
    times = (
        data.time[batch.n_id[batch.edge_index[0]]]
        if len(data.time) == data.num_nodes
        else data.time[batch.e_id]
    )
    return times, batch.seed_time[batch.batch[batch.edge_index[1]]]


@pytest.mark.parametrize("count", [200, 1500], ids=["nodes", "edges"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("replace", [False, True])
def test_no_edge_is_later_than_its_seed(count, strategy, replace):
    data = random_data(time=node_times(count))
    loader = NeighborLoader(
        data,
        [4, 2],
        input_nodes=SEEDS,
        input_time=SEEDS % 40,
        time_attr="time",
        temporal_strategy=strategy,
        replace=replace,
        batch_size=16,
    )
    drawn = 0
    for batch in loader:
        times, limits = times_of_edges(data, batch)
        assert (times <= limits).all()
        assert torch.equal(batch.seed_time, (SEEDS % 40)[batch.input_id])
        assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))
        drawn += batch.num_edges
    assert drawn > 100


def test_without_input_time_a_seeds_own_counts():
    data = random_data(time=node_times())
    for batch in NeighborLoader(data, [-1, -1], input_nodes=SEEDS, time_attr="time", batch_size=7):
        src, dst = batch.edge_index
        limits = data.time[batch.n_id[: batch.batch_size]][batch.batch]
        assert (data.time[batch.n_id[src]] <= limits[dst]).all() and "seed_time" not in batch
        # The time of the vertex in between does not count.
        found = {(int(t), int(v)) for t, v in zip(batch.batch, batch.n_id, strict=True)}
        for tree, seed in enumerate(batch.n_id[: batch.batch_size].tolist()):
            level, expected = {seed}, {seed}
            for _ in range(2):
                ends = torch.isin(data.edge_index[1], torch.tensor(sorted(level)))
                level = set(
                    data.edge_index[
                        0, ends & (data.time <= data.time[seed])[data.edge_index[0]]
                    ].tolist()
                )
                expected |= level
            assert {v for t, v in found if t == tree} == expected


@pytest.mark.parametrize("count", [200, 1500], ids=["nodes", "edges"])
def test_all_neighbours_come_in_the_order_in_which_pyg_sorts_them(count):
    """By time, and those of one time in the order of edge_index: exactly PyG's sorted edges."""
    data = random_data(time=node_times(count, latest=6))
    of_nodes, of_edges = (data.time, None) if count == 200 else (None, data.time)
    colptr, _, perm = to_csc(data, device="cpu", src_node_time=of_nodes, edge_time=of_edges)
    of_sorted = (data.time[data.edge_index[0]] if count == 200 else data.time)[perm]
    (batch,) = NeighborLoader(data, [-1], SEEDS, SEEDS % 6, time_attr="time", batch_size=60)
    expected = []
    for v in SEEDS.tolist():
        row = slice(int(colptr[v]), int(colptr[v + 1]))
        expected += perm[row][of_sorted[row] <= v % 6].tolist()
    assert batch.e_id.tolist() == expected
    assert batch.num_sampled_nodes == [60, batch.num_nodes - 60] and batch.num_sampled_edges == [
        len(expected)
    ]


@pytest.mark.parametrize("count", [200, 1500], ids=["nodes", "edges"])
def test_last_takes_the_newest_valid_ones(count):
    # No ties.
    data = random_data(time=torch.randperm(count, generator=torch.Generator().manual_seed(2)))
    of_edges = data.time[data.edge_index[0]] if count == 200 else data.time
    limits = torch.full((60,), count // 2)
    for k in (1, 3):
        loader = NeighborLoader(
            data,
            [k],
            SEEDS,
            limits,
            time_attr="time",
            temporal_strategy="last",
            batch_size=60,
            shuffle=True,
        )
        (batch,) = loader
        for i, v in enumerate(batch.n_id[:60].tolist()):
            valid = torch.nonzero((data.edge_index[1] == v) & (of_edges <= count // 2))[:, 0]
            newest = sorted(of_edges[valid].tolist())[-k:]
            # A vertex that has two edges to the seed gives both.
            assert sorted(of_edges[batch.e_id[batch.edge_index[1] == i]].tolist()) == newest


def test_a_seed_without_valid_neighbours_stays_alone():
    data = random_data(time=node_times() + 10)
    (batch,) = NeighborLoader(
        data, [3, 3], SEEDS, torch.zeros(60).long(), time_attr="time", batch_size=60
    )
    assert (
        batch.num_edges == 0
        and torch.equal(batch.n_id, SEEDS)
        and torch.equal(batch.x, data.x[:60])
    )
    assert batch.num_sampled_nodes == [60, 0, 0] and batch.num_sampled_edges == [0, 0]


def hetero_data(seed=0, **times):
    """Papers cite papers, authors write papers; ``times`` by name of a vertex or edge type."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(100, 3), torch.randn(40, 2)
    for (src, rel, dst), count in (
        (("paper", "cites", "paper"), 800),
        (("author", "writes", "paper"), 500),
        (("paper", "rev_writes", "author"), 500),
    ):
        ends = [torch.randint(len(data[t].x), (count,), generator=generator) for t in (src, dst)]
        data[src, rel, dst].edge_index = torch.stack(ends)
    for name, values in times.items():
        data[
            name
            if name in ("paper", "author")
            else next(t for t in data.edge_types if t[1] == name)
        ].time = values
    return data


def drawn_times(data, batch, etype):
    """As ``times_of_edges``; no times where the edge type has none."""
    src, dst = batch[etype].edge_index
    limits = batch["paper"].seed_time[batch[etype[2]].batch[dst]]
    if "time" in data[etype[0]]:
        return data[etype[0]].time[batch[etype[0]].n_id[src]], limits
    return (
        (data[etype].time[batch[etype].e_id], limits) if "time" in data[etype] else (None, limits)
    )


@pytest.mark.every
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize(
    ("holders", "timed"),
    [
        ({"paper": 100, "author": 40}, {"cites", "writes", "rev_writes"}),
        ({"paper": 100}, {"cites", "rev_writes"}),
        ({"author": 40}, {"writes"}),
        ({"cites": 800, "writes": 500, "rev_writes": 500}, {"cites", "writes", "rev_writes"}),
        ({"writes": 500}, {"writes"}),
    ],
)
def test_types_without_times_are_drawn_from_uniformly(strategy, holders, timed):
    data = hetero_data(
        **{name: node_times(count, seed=i) for i, (name, count) in enumerate(holders.items())}
    )
    seen, later = set(), 0
    inputs = torch.arange(50)
    loader = NeighborLoader(
        data,
        [5, 4],
        ("paper", inputs),
        inputs % 30,
        time_attr="time",
        temporal_strategy=strategy,
        batch_size=13,
    )
    for batch in loader:
        assert torch.equal(batch["paper"].seed_time, (inputs % 30)[batch["paper"].input_id])
        assert torch.equal(
            batch["paper"].batch[: batch["paper"].batch_size],
            torch.arange(batch["paper"].batch_size),
        )
        for etype in data.edge_types:
            src, dst = batch[etype].edge_index
            assert torch.equal(batch[etype[0]].batch[src], batch[etype[2]].batch[dst])
            times, limits = drawn_times(data, batch, etype)
            if times is not None:
                assert (times <= limits).all()
                seen |= {etype[1]} if len(times) else set()
            else:
                later += batch[etype].num_edges
    assert seen == timed
    assert (later > 0) == (len(timed) < 3)


def test_untimed_edge_types_give_as_many_neighbours_as_without_times():
    data = hetero_data(writes=torch.full((500,), 99))
    inputs = torch.arange(50)
    (batch,) = NeighborLoader(data, [5], ("paper", inputs), inputs, time_attr="time", batch_size=50)
    degrees = torch.bincount(data["paper", "cites", "paper"].edge_index[1], minlength=100)[:50]
    assert batch["paper", "cites", "paper"].num_edges == int(degrees.clamp(max=5).sum())
    assert batch["author", "writes", "paper"].num_edges == 0


@pytest.mark.parametrize("level", ["nodes", "edges"])
def test_hetero_neighbours_come_in_the_order_in_which_pyg_sorts_them(level):
    if level == "nodes":
        data = hetero_data(paper=node_times(100, 6), author=node_times(40, 6))
        colptrs, _, perms = to_hetero_csc(data, "cpu", node_time_dict=data.collect("time"))
    else:
        data = hetero_data(cites=node_times(800, 6), writes=node_times(500, 6))
        colptrs, _, perms = to_hetero_csc(data, "cpu", edge_time_dict=data.collect("time"))
    inputs = torch.arange(50)
    (batch,) = NeighborLoader(
        data, [-1], ("paper", inputs), inputs % 6, time_attr="time", batch_size=50
    )
    for etype in (("paper", "cites", "paper"), ("author", "writes", "paper")):
        perm, expected = perms[etype], []
        times = (
            data[etype[0]].time[data[etype].edge_index[0]] if level == "nodes" else data[etype].time
        )[perm]
        for v in inputs.tolist():
            row = slice(int(colptrs[etype][v]), int(colptrs[etype][v + 1]))
            expected += perm[row][times[row] <= v % 6].tolist()
        assert batch[etype].e_id.tolist() == expected and expected


def contents(batch):
    return [
        batch[key].tolist()
        for key in ("n_id", "e_id", "edge_index", "batch", "seed_time", "input_id")
    ]


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_same_batches_whatever_the_workers(strategy):
    data = random_data(time=node_times())
    settings = {
        "time_attr": "time",
        "temporal_strategy": strategy,
        "batch_size": 8,
        "shuffle": True,
        "seed": 3,
    }
    alone, *others = (
        [
            contents(batch)
            for batch in NeighborLoader(data, [4, 3], SEEDS, SEEDS % 40, **settings, **how)
        ]
        for how in ({}, {"num_workers": 2}, {"num_workers": 3, "prefetch": 4}, {"prefetch": 0})
    )
    assert len(alone) == 8 and all(other == alone for other in others)


def test_pygs_own_loader_with_our_sampler():
    data = random_data(time=node_times())
    sampler = NeighborSampler(data, [4, 3], time_attr="time")
    loader = NodeLoader(data, sampler, SEEDS, SEEDS % 40, batch_size=16)
    drawn = 0
    for batch in loader:
        times, limits = times_of_edges(data, batch)
        assert (times <= limits).all() and torch.equal(batch.x, data.x[batch.n_id])
        drawn += batch.num_edges
    assert drawn > 0


def test_what_pyg_reads_of_a_sampler():
    times = node_times()
    sampler = NeighborSampler(random_data(time=times), [2], time_attr="time")
    assert (
        sampler.num_nodes == 200
        and sampler.disjoint
        and sampler.is_temporal
        and sampler.edge_time is None
    )
    assert sampler.node_time.data_ptr() == times.data_ptr()
    of_edges = NeighborSampler(random_data(time=node_times(1500)), [2], time_attr="time")
    assert of_edges.node_time is None and len(of_edges.edge_time) == 1500 and of_edges.disjoint
    plain = NeighborSampler(random_data(time=times), [2])
    assert (
        not plain.disjoint
        and not plain.is_temporal
        and plain.node_time is None
        and plain.edge_time is None
    )
    data = hetero_data(paper=node_times(100))
    hetero = NeighborSampler(data, [2], time_attr="time")
    assert hetero.num_nodes == {"paper": 100, "author": 40} and list(hetero.node_time) == ["paper"]
    data = hetero_data(writes=node_times(500))
    assert list(NeighborSampler(data, [2], time_attr="time").edge_time) == [
        ("author", "writes", "paper")
    ]


def all_of(data, inputs=SEEDS, limit=20):
    loader = NeighborLoader(
        data, [-1], inputs, torch.full((len(inputs),), limit), time_attr="time", batch_size=60
    )
    return loader, lambda: [batch.e_id.tolist() for batch in loader]


def test_times_written_in_place_count_and_replaced_ones_do_not():
    data = random_data(time=node_times())
    _, draw = all_of(data)
    before = draw()
    data.time = torch.full((200,), 99)
    assert draw() == before  # the graph is that of the construction, as in PyG
    data = random_data(time=node_times())
    _, draw = all_of(data)
    data.time.add_(99)
    assert draw() == [[]]


@pytest.mark.parametrize("count", [200, 1500], ids=["nodes", "edges"])
def test_forms_of_times(count):
    times = node_times(count)
    _, draw = all_of(random_data(time=times))
    expected = draw()
    with torch.inference_mode():
        inferred = times.clone()
    mapped = times.numpy().copy()
    mapped.flags.writeable = False  # as a mapped file may be
    for form in (
        times.int(),
        times[:, None],
        times.numpy(),
        mapped,
        inferred,
        torch.nn.Parameter(times, requires_grad=False),
    ):
        assert all_of(random_data(time=form))[1]() == expected
    assert expected[0]


def test_inference_tensors_are_not_sorted_for_every_batch():
    with torch.inference_mode():
        times = node_times()
    sampler = all_of(random_data(time=times))[0].node_sampler
    (etype,) = sampler.graph.edge_types
    made = [sampler.core.times(sampler.graph, etype, lambda etype, name: None) for _ in range(2)]
    assert made[0] is made[1]


def test_sorted_edges_that_are_promised_and_edges_that_are_not():
    data = random_data(time=node_times(1500))
    order = np.lexsort([data.time.numpy(), data.edge_index[1].numpy()])
    in_order = random_data(time=data.time[order])
    in_order.edge_index = data.edge_index[:, order]
    limits = torch.full((60,), 20)
    results = []
    for these, promised in ((in_order, True), (in_order, False), (data, True), (data, False)):
        (batch,) = NeighborLoader(
            these, [-1], SEEDS, limits, time_attr="time", is_sorted=promised, batch_size=60
        )
        results.append(torch.stack([*batch.n_id[batch.edge_index], batch.time]).tolist())
    assert results[0] == results[1] == results[2] == results[3]  # a false promise does no harm


def test_errors_of_the_time_attribute():
    neither = "The time attribute 'time' is neither a node-level or edge-level attribute"
    for data in (
        random_data(),
        random_data(time=torch.arange(7)),
        random_data(time="noon"),
        hetero_data(),
    ):
        with pytest.raises(ValueError, match=neither):
            NeighborSampler(data, [2], time_attr="time")
    both = hetero_data(paper=node_times(100), writes=node_times(500).float())
    with pytest.raises(
        TypeError,
        match="times must all be integers or all be floats, got int64 in vertex field 'time'",
    ):
        NeighborSampler(both, [2], time_attr="time")
    with pytest.raises(
        TypeError,
        match="vertex field 'time' must be a tensor of integers or floats, got torch.comp",
    ):
        NeighborSampler(
            random_data(time=torch.zeros(200, dtype=torch.complex64)), [2], time_attr="time"
        )
    with pytest.raises(
        TypeError, match="edge field 'time' must be a tensor of integers or floats, got torch.bool"
    ):
        NeighborSampler(
            random_data(time=torch.zeros(1500, dtype=torch.bool)), [2], time_attr="time"
        )
    with pytest.raises(TypeError, match="times and weights must be tensors, got list"):
        NeighborSampler(random_data(time=[0] * 200), [2], time_attr="time")
    with pytest.raises(
        ValueError, match=r"field 'time' must have one row per vertex \(100\), got 99"
    ):
        NeighborSampler(hetero_data(paper=node_times(99)), [2], time_attr="time")


def of_seconds(count):
    """Seconds since 1970 as float32, which has them in steps of 128."""
    return (node_times(count) + 1_700_000_000).float()


def test_times_that_float32_rounds_are_refused_wherever_they_are():
    exact, ends = random_data(time=node_times().double()), torch.zeros(2, 200, dtype=torch.long)
    rule = " must fit into the 24 bits of float32, which rounds larger times, got 17000000.*: keep"

    def check(name, make, *arguments, **how):
        with pytest.raises(ValueError, match=name + rule):
            make(*arguments, **how)

    when = {"time_attr": "time"}
    for count in (200, 1500):
        check("time_attr 'time'", NeighborLoader, random_data(time=of_seconds(count)), [2], **when)
    rounded = hetero_data(author=of_seconds(40), paper=node_times(100).double())
    for loader, inputs in ((NeighborLoader, "paper"), (LinkNeighborLoader, rounded.edge_types[0])):
        check("time_attr 'time' of 'author'", loader, rounded, [2], inputs, **when)
    edges = hetero_data(writes=of_seconds(500), paper=node_times(100).double())
    writes = r"time_attr 'time' of \('author', 'writes', 'paper'\)"
    check(writes, NeighborSampler, edges, [2], **when)
    check("input_time", NeighborLoader, exact, [2], None, of_seconds(200), **when)
    links = {"edge_label_index": ends, "edge_label_time": of_seconds(200)}
    check("edge_label_time", LinkNeighborLoader, exact, [2], **links, **when)
    loader = NeighborLoader(exact, [2], SEEDS, torch.zeros(60).double(), **when)
    check("time", loader.batch, SEEDS, time=of_seconds(60))
    # PyG's own loader has our sampler alone.
    seeds = NodeSamplerInput(None, SEEDS, of_seconds(60))
    check(r"seed_times\['_N'\]", loader.node_sampler.sample_from_nodes, seeds)
    # A type from which nothing is drawn.
    seen_only = HeteroData(a={"x": torch.zeros(4, 1)}, b={"num_nodes": 4, "time": of_seconds(4)})
    seen_only["a", "to", "b"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    seen_only["a"].time = torch.zeros(4)
    check("time_attr 'time' of 'b'", NeighborLoader, seen_only, [2], "a", **when)


def test_times_that_are_rounded_later_are_refused_at_the_next_batch():
    data = random_data(time=torch.zeros(200))
    loader = NeighborLoader(data, [2], SEEDS, time_attr="time", batch_size=30)
    assert len(list(loader)) == 2
    data.time += 1_700_000_000
    with pytest.raises(ValueError, match="'time'.* must fit into the 24 bits of float32"):
        list(loader)


@pytest.mark.parametrize("strategy", ["newest", "", None])
def test_unknown_strategies(strategy):
    with pytest.raises(
        ValueError, match=f"temporal_strategy must be 'uniform' or 'last', got {strategy!r}"
    ):
        NeighborLoader(random_data(), [2], temporal_strategy=strategy)


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (
            torch.zeros(59, dtype=torch.int64),
            ValueError,
            r"input_time must have one time per input node \(60\), got shape",
        ),
        (torch.zeros(60, 1, dtype=torch.int64), ValueError, r"got shape \(60, 1\)"),
        ([0] * 60, TypeError, "input_time must be a tensor or None, got list"),
        (
            torch.zeros(60),
            TypeError,
            "input_time must be integers, like the data's 'time', got torch.float32",
        ),
        (
            torch.tensor([0] * 59 + [-(2**63)]),
            ValueError,
            r"input_time must not be missing \(NaN or NaT\), got -92",
        ),
    ],
)
def test_bad_input_times(times, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(random_data(time=node_times()), [2], SEEDS, times, time_attr="time")


def test_input_time_needs_a_time_attribute():
    with pytest.raises(
        ValueError, match="Received conflicting 'input_time' and 'time_attr' arguments"
    ):
        NeighborLoader(random_data(time=node_times()), [2], SEEDS, SEEDS)


def test_seeds_without_a_time_of_their_own_need_one():
    with pytest.raises(
        ValueError, match="input_time must be given, as the input nodes have no 'time' attribute"
    ):
        NeighborLoader(random_data(time=node_times(1500)), [2], SEEDS, time_attr="time")
    with pytest.raises(
        ValueError,
        match="input_time must be given, as the input nodes of type 'author' have no 'time'",
    ):
        NeighborLoader(hetero_data(paper=node_times(100)), [2], "author", time_attr="time")


@pytest.mark.parametrize(("name", "level"), [("time", "node_time"), ("edge_time", "edge_time")])
def test_as_many_edges_as_vertices(name, level):
    """Then the name tells whose an attribute is, as PyG has it."""
    data = random_data(num_nodes=300, num_edges=300, **{name: node_times(300)})
    sampler = NeighborSampler(data, [-1], time_attr=name)
    assert torch.equal(getattr(sampler, level), data[name])
    loader = NeighborLoader(
        data, [-1], torch.arange(300), node_times(300, seed=5), time_attr=name, batch_size=100
    )
    for batch in loader:
        times = (
            data[name][batch.n_id[batch.edge_index[0]]]
            if level == "node_time"
            else data[name][batch.e_id]
        )
        assert (
            times <= batch.seed_time[batch.batch[batch.edge_index[1]]]
        ).all() and batch.num_edges


def test_bidirectional_subgraphs_stay_within_their_trees():
    data = random_data(time=node_times())
    options = {"time_attr": "time", "subgraph_type": "bidirectional", "batch_size": 20}
    for batch in NeighborLoader(data, [3, 2], SEEDS, SEEDS % 40, **options):
        src, dst = batch.edge_index
        assert torch.equal(batch.batch[src], batch.batch[dst])
        ends = set(zip(src.tolist(), dst.tolist(), strict=True))
        assert ends and {(d, s) for s, d in ends} == ends
        assert batch.batch[:20].tolist() == list(range(20)) and torch.equal(
            batch.x, data.x[batch.n_id]
        )


@pytest.mark.parametrize("count", [200, 1500], ids=["nodes", "edges"])
def test_a_pickled_sampler_draws_the_same(count):
    sampler = NeighborSampler(random_data(time=node_times(count)), [3, 2], time_attr="time")
    inputs = NodeSamplerInput(None, SEEDS, SEEDS % 40)
    outputs = [
        these.sample_nodes(inputs, 7)[0] for these in (sampler, pickle.loads(pickle.dumps(sampler)))
    ]
    assert outputs[0].edge.tolist() == outputs[1].edge.tolist() and len(outputs[0].edge)
    assert outputs[0].batch.tolist() == outputs[1].batch.tolist()


@pytest.mark.many
@pytest.mark.parametrize("of_edges", [False, True])
def test_tables_whose_times_differ_in_unit_are_refused(of_edges):
    graph = Graph.from_tables(shop_of_two_tables(), times={"orders": None, "users": None})
    other = ("orders", "user_id", "users") if of_edges else "orders"
    for owner, unit in ("users", "seconds"), (other, "microseconds"):
        fields = graph.node_fields(owner) if isinstance(owner, str) else graph.edge_fields(owner)
        count = graph.csc_of(owner).num_edges if owner == other and of_edges else None
        count = graph.num_nodes_of(owner) if count is None else count
        fields["time"] = torch.arange(count)
        fields.notes["time"] = FieldNote(unit=unit)
    data = to_pyg(graph)
    name = "orders/user_id/users" if of_edges else "orders"
    error = f"one unit, got 'time' in seconds of 'users', microseconds of '{name}'"
    with pytest.raises(ValueError, match=error):
        NeighborLoader(data, [2], ("users", None), time_attr="time")
    with pytest.raises(ValueError, match=error):
        LinkNeighborLoader(
            data,
            [2],
            edge_label_index=(("orders", "user_id", "users"), None),
            edge_label_time=torch.arange(8),
            time_attr="time",
        )
    # One was converted: nothing is known of its unit now, and it is taken as it is.
    data["users"].time = data["users"].time * 1_000_000
    batch = next(iter(NeighborLoader(data, [2], ("users", None), time_attr="time")))
    assert batch["users"].batch_size == 1


def shop_of_two_tables():
    pandas = pytest.importorskip("pandas")
    users = pandas.DataFrame({"id": range(4), "age": range(4)})
    orders = pandas.DataFrame({"user_id": [0, 1, 2, 3] * 2, "price": range(8)})
    return {"users": users, "orders": orders}


LATEST = torch.iinfo(torch.int64).max


@pytest.mark.every
@pytest.mark.parametrize("window", [None, 1, float(2**62)])
def test_times_at_the_ends_of_their_range(window):
    """Nothing wraps round: neither a time, nor the beginning of its window."""
    times = torch.tensor([-LATEST, -LATEST + 1, 0, LATEST - 1, LATEST])
    ends = torch.cartesian_prod(torch.arange(5), torch.arange(5)).T
    data = Data(edge_index=ends, time=times, num_nodes=5)
    options = {} if window is None else {"time_window": window}
    loader = NeighborLoader(data, [-1], time_attr="time", batch_size=5, **options)
    batch = next(iter(loader))
    for seed in range(5):
        tree = batch.batch == seed
        found = sorted(batch.n_id[5:][tree[5:]].tolist())
        begin = -LATEST - 1 if window is None else int(times[seed]) - int(window)
        expected = [v for v in range(5) if begin < int(times[v]) <= int(times[seed])]
        assert [v for v in found if v != seed] == [v for v in expected if v != seed]
