"""Batches of trees that kernels draw in one call against the same batches picked by pickers, bit by
bit, with one type and several."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from by_pickers import by_pickers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.sampling import SubgraphSampler, whole_batch
from pagraph.sampling.hop import Scratch
from pagraph.system.buffers import BufferPools

TYPE = "_N"
MISSING = -(2**63)
ONE = [("a", "to", "a")]
SEVERAL = [
    ("a", "to", "a"),
    ("b", "of", "a"),
    ("a", "has", "b"),
    ("c", "in", "b"),
    ("b", "again", "a"),
    ("a", "late", "c"),
]


@st.composite
def graphs(draw):
    """Self-loops, parallel edges, isolated vertices, hubs, types without vertices or edges; both
    widths; times of any types, of 32 bits or more."""
    edge_types = draw(st.sampled_from([ONE, SEVERAL]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    sizes = {t: int(rng.integers(0, 12)) for t in "abc"} | {"a": int(rng.integers(1, 40))}
    if edge_types is ONE:
        sizes = {"a": sizes["a"]}
    is_wide = draw(st.booleans())
    csc = {}
    for etype in edge_types:
        num_src = sizes[etype[0]]
        num_dst = sizes[etype[2]]
        count = draw(st.sampled_from([0, 5, 60, 300])) if num_src and num_dst else 0
        dst = (num_dst * rng.random(count) ** 2).astype(int)
        made = CSC.from_coo(rng.integers(0, max(1, num_src), count), dst, (num_src, num_dst))
        if is_wide:
            ids = None if made.edge_ids is None else made.edge_ids.long()
            made = CSC(made.indptr.long(), made.indices.long(), num_src, ids)
        csc[etype] = made
    graph = Graph(csc, sizes)
    scale = draw(st.sampled_from([1, 2**40]))
    owners = draw(st.lists(st.sampled_from([*sizes, *edge_types]), unique=True, max_size=4))
    for owner in owners:
        is_vertex = isinstance(owner, str)
        count = sizes[owner] if is_vertex else csc[owner].num_edges
        # Where some are wide, others may still be narrow: all of them 0.
        times = torch.from_numpy(rng.integers(0, draw(st.sampled_from([1, 9])), count)) * scale
        if count and draw(st.booleans()):
            times[0] = MISSING
        graph.set_field("t", times, **{"node_type" if is_vertex else "edge_type": owner})
    return graph, scale if owners else 0


def arrays(batch):
    """All that a batch holds."""
    held = []
    for ntype, nodes in batch.input_nodes.items():
        for each in (nodes, batch.trees[ntype]):
            held.append((ntype, each.dtype, each.is_contiguous(), each.tolist()))
        held.append(batch.hop_ends[ntype])
    for etype, edges in batch.edges.items():
        for each in (edges.edge_index, edges.edge_ids):
            held.append((etype, each.dtype, each.is_contiguous(), each.tolist()))
        held.append(edges.hop_ends)
    return held


def drawn_seeds(data, graph):
    """Seeds of some types, in any order of the types, repeated ones among them."""
    seeds = {}
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    for ntype in data.draw(st.lists(st.sampled_from(graph.node_types), min_size=1, unique=True)):
        count = graph.num_nodes_of(ntype)
        ids = data.draw(st.lists(st.integers(0, max(0, count - 1)), max_size=12 if count else 0))
        seeds[ntype] = torch.tensor(ids, dtype=dtype)
    return seeds


def give_weights(graph, rng, data):
    """Weights to some edge types: a mask, equal ones, zeros among others, or none but zeros."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.bool]))
    for etype in graph.edge_types:
        if data.draw(st.booleans()):
            count = graph.csc_of(etype).num_edges
            few = data.draw(st.sampled_from([[0.0], [1.0], [0.0, 1.0], [0.0, 1e-3, 2.0, 1e30]]))
            values = rng.choice(few, count) * (rng.random(count) + 0.5)
            graph.set_field("p", torch.from_numpy(values).to(dtype), edge_type=etype)


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data())
def test_the_same_bits_as_by_pickers(data):
    graph, scale = data.draw(graphs())
    key = data.draw(st.integers(0, 2**64 - 1))
    seeds = drawn_seeds(data, graph)
    replace = data.draw(st.booleans())
    # 70 are more than a scan remembers.
    numbers = st.sampled_from([-1, 0, 1, 2, 5, 70])
    fanouts = [
        {etype: data.draw(numbers) for etype in graph.edge_types}
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    how = {"replace": replace, "disjoint": True}
    more = {}
    if scale:
        timed = [
            etype
            for etype in graph.edge_types
            if "t" in graph.edge_fields(etype) or "t" in graph.node_fields(etype[0])
        ]
        windows = [None, 2 * scale, {etype: 3 * scale for etype in timed[1:]}]
        how |= {
            "time": "t",
            "latest": data.draw(st.booleans()),
            "time_window": data.draw(st.sampled_from(windows)),
            "share_trees": data.draw(st.booleans()),
        }
        rng = np.random.default_rng(key)
        more["seed_times"] = {
            ntype: torch.from_numpy(rng.integers(-1, 10, len(ids))) * scale
            for ntype, ids in seeds.items()
        }
    if not scale and data.draw(st.booleans()):
        how["prob"] = "p"
        give_weights(graph, np.random.default_rng(key), data)
    sampler = SubgraphSampler(fanouts, **how)
    with pytest.MonkeyPatch.context() as patch:
        expected = arrays(by_pickers(lambda: sampler.sample(graph, seeds, key, **more)))
        # Room for nothing at first has to grow.
        patch.setattr(whole_batch, "_MOST_EDGES", data.draw(st.sampled_from([0, 2**23])))
        patch.setattr(Scratch.of_this_thread(), "room", data.draw(st.sampled_from([1, 2**16])))
        whole_batch._Layout.of.cache_clear()
        assert arrays(sampler.sample(graph, seeds, key, pools=BufferPools(1), **more)) == expected
    whole_batch._Layout.of.cache_clear()


@pytest.mark.parametrize("replace", [False, True])
def test_many_weighted_trees_with_long_rows(replace):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 200, 20_000), rng.integers(0, 200, 20_000)
    weights = rng.random(20_000) ** 3
    graph = Graph.from_coo(*ends, 200, edata={"p": np.where(weights < 0.01, 0, weights)})
    sampler = SubgraphSampler([5, 20, 10], replace=replace, disjoint=True, prob="p")
    seeds = torch.arange(64)
    expected = by_pickers(lambda: [arrays(sampler.sample(graph, seeds, key)) for key in range(3)])
    assert [arrays(sampler.sample(graph, seeds, key)) for key in range(3)] == expected


def test_wrong_weights_of_trees_are_one_error_and_the_next_batch_works():
    graph = Graph.from_coo([0, 1, 2], [1, 2, 0], edata={"p": torch.tensor([1.0, -2.0, 3.0])})
    sampler = SubgraphSampler([2], disjoint=True, prob="p")
    with pytest.raises(ValueError, match="^edge field 'p' must be finite and not negative, got -2"):
        sampler.sample(graph, torch.tensor([0, 1]))
    graph.edata["p"][1] = 2
    assert sampler.sample(graph, torch.tensor([0, 1])).input_nodes["_N"].tolist()[:2] == [0, 1]


def large_graph():
    """Two vertex types, few of whose vertices have most of the edges, and times."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, 5000, 40_000)
    dst = (5000 * rng.random(40_000) ** 3).astype(int)
    back = rng.integers(0, 5000, 20_000)
    sizes = {"a": 5000, "b": 5000}
    csc = {
        ("a", "to", "a"): CSC.from_coo(src, dst, (5000, 5000)),
        ("b", "of", "a"): CSC.from_coo(back, dst[:20_000], (5000, 5000)),
        ("a", "has", "b"): CSC.from_coo(dst[:20_000], back, (5000, 5000)),
    }
    graph = Graph(csc, sizes)
    graph.set_field("t", torch.from_numpy(rng.integers(0, 50, 5000)), node_type="a")
    graph.set_field("t", torch.from_numpy(rng.integers(0, 50, 20_000)), edge_type=("b", "of", "a"))
    seeds = np.concatenate([rng.integers(0, 100, 100), rng.integers(4000, 5000, 200)])
    return graph, {"a": torch.from_numpy(seeds)}


def test_many_trees_with_tables_that_grow_and_shrink():
    """Some trees of one vertex, others of hundreds: against pickers, at the size of a real
    batch."""
    graph, seeds = large_graph()
    sampler = SubgraphSampler([10, 10, 5], time="t")
    expected = arrays(by_pickers(lambda: sampler.sample(graph, seeds, 3)))
    assert arrays(sampler.sample(graph, seeds, 3)) == expected
    assert sum(len(ids) for ids in sampler.sample(graph, seeds, 3).input_nodes.values()) > 10_000


def test_threads_share_a_sampler():
    """Each has scratch of its own, and derives the times of a field that was written for itself."""
    graph, seeds = large_graph()
    sampler = SubgraphSampler([5, 5], time="t")
    pools = BufferPools(3)
    expected = [arrays(sampler.sample(graph, seeds, key)) for key in range(12)]
    graph.node_fields("a")["t"].add_(0)
    found = {}

    def run(part):
        for key in range(part, 12, 3):
            found[key] = arrays(sampler.sample(graph, seeds, key, pools=pools))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[key] for key in range(12)] == expected


def test_memory_is_never_recycled_under_a_held_batch():
    graph, seeds = large_graph()
    sampler = SubgraphSampler([3, 3], time="t")
    pools = BufferPools(2)
    held = [sampler.sample(graph, seeds, key, pools=pools) for key in range(4)]
    before = [arrays(batch) for batch in held]
    for key in range(10):
        sampler.sample(graph, seeds, 100 + key, pools=pools)
    assert [arrays(batch) for batch in held] == before


@pytest.mark.parametrize("write", [lambda t: t.fill_(60), lambda t: torch.full_like(t, 60)])
def test_times_that_were_written_or_replaced_count_from_the_next_batch_on(write):
    graph, seeds = large_graph()
    sampler = SubgraphSampler([4], time="t")
    times = {"a": torch.full_like(seeds["a"], 55)}
    assert sampler.sample(graph, seeds, seed_times=times).edges["a", "to", "a"].num_edges > 0
    graph.set_field("t", write(graph.node_fields("a")["t"]), node_type="a")
    after = sampler.sample(graph, seeds, seed_times=times)
    assert after.edges["a", "to", "a"].num_edges == 0
    assert after.edges["b", "of", "a"].num_edges > 0


def test_a_sampler_that_has_sampled_is_copied_and_pickled():
    """What it knows of a graph's times stays behind."""
    graph, seeds = large_graph()
    sampler = SubgraphSampler([3], time="t")
    expected = arrays(sampler.sample(graph, seeds, 1))
    for other in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        assert other == sampler
        assert arrays(other.sample(graph, seeds, 1)) == expected


def test_one_sampler_for_two_graphs_in_turn():
    """Their times are not mixed up."""
    graphs = [
        Graph.from_coo([0, 1], [2, 2], ndata={"t": torch.tensor(t)}) for t in ([1, 9, 9], [9, 1, 9])
    ]
    sampler = SubgraphSampler([-1], time="t")
    for _ in range(2):
        for place, graph in enumerate(graphs):
            batch = sampler.sample(graph, torch.tensor([2]), seed_times=torch.tensor([5]))
            assert batch.input_nodes[TYPE].tolist() == [2, place]


def test_damaged_files_are_an_error():
    seeds, sampler = torch.tensor([0, 1]), SubgraphSampler([2, 2], disjoint=True)
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2), 2)
    with pytest.raises(FormatError, match="indptr must be non-decreasing, it is not at vertex 0"):
        sampler.sample(bent, seeds)
    far = Graph(CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 9]), 2), 2)
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 9"):
        sampler.sample(far, seeds)


def test_a_damaged_edge_of_one_of_several_types_is_an_error():
    sizes = {"a": 2, "b": 3}
    good = CSC(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2)
    far = CSC(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 3)
    graph = Graph({("a", "to", "a"): good, ("b", "of", "a"): far}, sizes)
    with pytest.raises(FormatError, match=r"indices must be in \[0, 3\), got 3"):
        SubgraphSampler([2, 2], disjoint=True).sample(graph, {"a": torch.tensor([0, 1])})
