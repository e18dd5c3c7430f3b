"""The core loader on edges and pairs: their ends, negative pairs, and blocks without the batch's
own edges."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples, pairs
from typed_csc import typed_csc

from pagraph import CSC, Graph, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.sampling import EdgeBatches, GlobalUniformNegatives, UniformNegatives
from pagraph.seeds import derive_key
from pagraph.seeds.keys import Ranks, batch_key, epoch_key

pytestmark = pytest.mark.usefixtures("no_threads_left")

A = ("user", "buys", "item")
B = ("item", "bought", "user")
C = ("user", "knows", "user")


def typed_graph(seed=0, users=30, items=20, count=150):
    """Edge ``i`` of "bought" is edge ``i`` of "buys" reversed; users know each other, themselves
    and some twice."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, max(users, 1), count), rng.integers(0, max(items, 1), count)
    csc = {A: typed_csc(src, dst, users, items), B: typed_csc(dst, src, items, users)}
    csc[C] = CSC.from_coo(rng.integers(0, users, count), rng.integers(0, users, count), users)
    ndata = {"user": {"feat": torch.rand(users, 3)}, "item": {"feat": torch.rand(items, 2)}}
    return Graph(csc, {"user": users, "item": items}, ndata=ndata)


def ends_of(graph, etype):
    """Sources and destinations of all edges by id."""
    csc = graph.csc_of(etype)
    return csc.ends_at(csc.positions_of(torch.arange(csc.num_edges)))


def keys(index):
    return batch_key(epoch_key(1, 0, None), index, Ranks(0, 1))


def make(graph, seeds, sampler, **options):
    return Loader(
        graph, seeds, sampler, **({"batch_size": 8, "shuffle": True, "seed": 1} | options)
    )


def plain_batch(graph, edges, negatives, key):
    """Links by edge type as the graph's ids, and the vertices in the order in which they are
    named."""
    pairs, named = [], {t: {} for t in graph.node_types}
    positive = {
        t: torch.stack([side[ids] for side in ends_of(graph, t)]) for t, ids in edges.items()
    }
    pairs.append(positive)
    if negatives is not None:
        drawn = {}
        for number, etype in enumerate(graph.edge_types):
            if etype in positive:
                own = derive_key(key, -1, number)
                drawn[etype] = torch.stack(
                    negatives.draw(graph.csc_of(etype), etype, tuple(positive[etype]), own)
                )
        pairs.append(drawn)
    for group in pairs:
        for etype in graph.edge_types:
            for ntype, ids in zip(etype[::2], group.get(etype, ()), strict=False):
                for vertex in ids.tolist():
                    named[ntype].setdefault(vertex, len(named[ntype]))
    return pairs, {t: list(of) for t, of in named.items()}


def as_ids(batch, etype, ends):
    """Ends of links as the graph's ids."""
    return torch.stack(
        [batch.output_nodes[t][places.long()] for t, places in zip(etype[::2], ends, strict=True)]
    )


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 50),
    users=st.integers(1, 30),
    count=st.integers(0, 60),
    negatives=st.sampled_from([None, UniformNegatives(2), GlobalUniformNegatives(1)]),
    exclude=st.sampled_from([{}, {"exclude": True}, {"exclude": True, "reverse": {A: B, B: A}}]),
)
def test_batches_against_a_plain_reference(seed, users, count, negatives, exclude):
    graph = typed_graph(seed, users, 5, count)
    seeds = {A: torch.arange(0, count, 2), C: torch.arange(count)}
    sampler = EdgeBatches(NeighborSampler([-1, -1]), negatives=negatives, **exclude)
    for index, batch in enumerate(make(graph, seeds, sampler)):
        edges = {etype: links.edge_ids for etype, links in batch.links.items()}
        groups, named = plain_batch(graph, edges, negatives, keys(index))
        assert {t: ids.tolist() for t, ids in batch.output_nodes.items()} == named
        for etype, links in batch.links.items():
            assert as_ids(batch, etype, links.positive).tolist() == groups[0][etype].tolist()
            drawn = (
                groups[1][etype] if negatives is not None else torch.empty(2, 0, dtype=torch.int64)
            )
            assert as_ids(batch, etype, links.negative).tolist() == drawn.tolist()
        left_out = {t: set() for t in graph.edge_types}
        if exclude:
            for etype, ids in edges.items():
                left_out[etype] |= set(ids.tolist())
                if "reverse" in exclude and etype in exclude["reverse"]:
                    left_out[exclude["reverse"][etype]] |= set(ids.tolist())
        for block in batch.blocks:
            for etype, relation in block.relations.items():
                csc, ends = graph.csc_of(etype), block.num_dst[etype[2]]
                into = block.src_nodes[etype[2]][:ends]
                every = [
                    e for v in into.tolist() for e in _in_edges(csc, v) if e not in left_out[etype]
                ]
                assert csc.ids_at(relation.positions).tolist() == every


def _in_edges(csc, vertex):
    begin, end = int(csc.indptr[vertex]), int(csc.indptr[vertex + 1])
    return csc.ids_at(torch.arange(begin, end)).tolist()


def test_every_edge_comes_once_an_epoch():
    graph = typed_graph()
    loader = make(
        graph,
        {A: range(150), C: range(0, 150, 3)},
        EdgeBatches(NeighborSampler([2])),
        batch_size=32,
    )
    ids = {A: [], C: []}
    for batch in loader:
        for etype, links in batch.links.items():
            ids[etype] += links.edge_ids.tolist()
            assert links.negative.shape == (2, 0)
    assert sorted(ids[A]) == list(range(150)) and sorted(ids[C]) == list(range(0, 150, 3))
    assert len(loader) == 7 and loader.stats.total.counts["seeds"] == 200


def plain_graph(**more):
    rng = np.random.default_rng(2)
    src, dst = rng.integers(0, 40, 200), rng.integers(0, 40, 200)
    ndata = {"feat": torch.rand(40, 4), "label": torch.arange(40)}
    return Graph.from_coo(np.r_[src, dst], np.r_[dst, src], 40, ndata=ndata, **more)


def bits(batch):
    links = [x.tolist() for x in (batch.links.positive, batch.links.negative)]
    blocks = [(b.indptr.tolist(), b.indices.tolist(), b.positions.tolist()) for b in batch.blocks]
    rows = {name: rows.tolist() for name, rows in (batch.features | batch.labels).items()}
    return batch.output_nodes.tolist(), batch.input_nodes.tolist(), links, blocks, rows


def test_one_type_has_no_types_in_its_batches():
    graph, reverse = plain_graph(), torch.arange(400).roll(200)
    sampler = EdgeBatches(
        NeighborSampler([-1, -1]), negatives=UniformNegatives(1), exclude=True, reverse=reverse
    )
    src, dst = graph.csc.ends_at(graph.csc.positions_of(torch.arange(400)))
    for batch in make(graph, torch.arange(200), sampler, fields=["feat"], labels=["label"]):
        ids, nodes = batch.links.edge_ids, batch.output_nodes
        assert torch.equal(nodes[batch.links.positive[0]], src[ids]) and len(nodes.unique()) == len(
            nodes
        )
        assert torch.equal(nodes[batch.links.positive[1]], dst[ids])
        assert torch.equal(nodes[batch.links.negative[0]], src[ids])
        assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes])
        assert torch.equal(batch.labels["label"], nodes)
        for block in batch.blocks:
            drawn = graph.csc.ids_at(block.positions)
            assert not torch.isin(drawn, torch.cat([ids, reverse[ids]])).any()


def test_an_edge_without_a_reverse_one_excludes_itself():
    graph = Graph.from_coo([0, 1, 2], [1, 0, 1], 3)
    reverse = torch.tensor([1, 0, -1])
    sampler = EdgeBatches(NeighborSampler([-1]), exclude=True, reverse=reverse)
    alone, pair = make(graph, [2, 0], sampler, batch_size=1, shuffle=False)
    assert graph.csc.ids_at(alone.blocks[0].positions).tolist() == [0]
    assert graph.csc.ids_at(pair.blocks[0].positions).tolist() == [2]


def test_pairs_need_be_no_edges():
    graph = plain_graph()
    pairs = torch.tensor([[0, 1], [2, 3], [0, 0], [39, 2]])
    sampler = EdgeBatches(NeighborSampler([3]), negatives=GlobalUniformNegatives(1))
    (batch,) = make(graph, pairs, sampler, shuffle=False)
    assert (
        batch.output_nodes[batch.links.positive].T.tolist() == pairs.tolist()
        and batch.links.edge_ids is None
    )
    assert batch.output_nodes.tolist()[:6] == [0, 2, 39, 1, 3, batch.output_nodes[5]]
    typed = {A: np.array([[29, 19], [0, 0]], np.int32)}
    (batch,) = make(typed_graph(), typed, sampler, shuffle=False)
    assert as_ids(batch, A, batch.links[A].positive).T.tolist() == typed[A].tolist()
    assert batch.output_nodes["user"].dtype == torch.int32


@pytest.mark.every
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2}, {"prefetch": 0}, {"cache": 400, "device": "accelerator"}],
    ids=str,
)
def test_the_same_bits_however_it_runs(options, edge_dir):
    graph = plain_graph()
    sampler = EdgeBatches(
        NeighborSampler([3, 2], edge_dir=edge_dir), negatives=UniformNegatives(2), exclude=True
    )
    given = {"fields": ["feat"], "labels": ["label"], "seed": 5}
    expected = [bits(batch) for batch in make(graph, range(100), sampler, **given)]
    if options.get("device") == "accelerator":
        pytest.importorskip("triton")
        options = options | {"device": HostAccelerator()}
    loader = make(graph, range(100), sampler, **given, **options)
    batches = iter(loader)
    assert [bits(next(batches)) for _ in range(5)] == expected[:5]
    if "device" not in options:
        again = copy.deepcopy(loader)
        assert [bits(batch) for batch in again] == expected
    loader.close()


NEGATIVES = [None, UniformNegatives(2), GlobalUniformNegatives(1)]


@pytest.mark.every
@pytest.mark.parametrize(*pairs(negatives=NEGATIVES, typed=[False, True], workers=[0, 2]), ids=repr)
def test_sampled_on_an_accelerator(negatives, typed, workers):
    pytest.importorskip("triton")
    graph = typed_graph() if typed else plain_graph()
    seeds = {A: torch.arange(0, 60), C: torch.arange(20)} if typed else torch.arange(60)
    fields = {"user": ["feat"], "item": ["feat"]} if typed else ["feat"]
    sampler = EdgeBatches(NeighborSampler([2, 3]), negatives=negatives)
    options = {"fields": fields, "num_workers": workers, "cache": 0.3}
    device = HostAccelerator()
    there = make(graph, seeds, sampler, device=device, sampling_device=device, **options)
    assert there.sampling_placement == "device"
    plain = make(graph, seeds, sampler, **options)
    for _ in range(2):
        for batch, other in zip(there, plain, strict=True):
            assert all_tensors(batch) == all_tensors(other)
    there.close()


def all_tensors(batch):
    found = []
    batch.apply(lambda tensor: found.append((tensor.dtype, tensor.tolist())) or tensor)
    return found


def test_what_a_device_cannot_leave_out():
    sampler = EdgeBatches(NeighborSampler([2]), exclude=True)
    device = HostAccelerator()
    with pytest.raises(ValueError, match="exclude must be False for sampling on a device"):
        make(plain_graph(), torch.arange(9), sampler, device=device, sampling_device=device)


@pytest.mark.every
@pytest.mark.parametrize("policy", ["auto", "vip", "presample", "degree"])
def test_policies_know_what_links_read(policy, tmp_path):
    from pagraph.datasets import open_graph, write_graph

    write_graph(typed_graph(), tmp_path / "folder")
    graph = open_graph(tmp_path / "folder")
    for seeds in ({C: range(100)}, {C: torch.stack(ends_of(graph, C), 1)}):
        sampler = EdgeBatches(NeighborSampler([3, 2]), negatives=UniformNegatives(1))
        loader = make(
            graph, seeds, sampler, fields={"user": ["feat"]}, cache=300, cache_policy=policy
        )
        for batch in loader:
            assert torch.equal(
                batch.features["user"]["feat"],
                graph.node_fields("user")["feat"][batch.input_nodes["user"]],
            )
        assert 0 < loader.stats.total.hit_rate < 1


@pytest.mark.parametrize(
    ("seeds", "settings", "error", "text"),
    [
        ([1], {}, ValueError, r"seeds must be a mapping from edge type for the types \[\('user', "
                              r"'buys', 'item'\)"),
        ({"buys": [1]}, {}, KeyError, "seeds must be of edge types among .*, got 'buys'"),
        ({A: [150]}, {}, IndexError, r"seeds\[.*\] must be in \[0, 150\), got 150"),
        ({A: [True]}, {}, ValueError, r"seeds\[.*\] must have shape \(150,\) as a mask of all "
                                      r"edges, got \(1,\)"),
        ({A: [[0, 20]]}, {}, IndexError, r"seeds\[.*\] must be in \[0, 20\), got 20"),
        ({A: [[0, 1, 2]]}, {}, ValueError, r"shape \(n, 2\) as pairs of a source and a "
                                           r"destination, got \(1, 3\)"),
        ({A: [[0, 1]]}, {"exclude": True}, ValueError, "must be ids of edges, .* excluded, got "
                                                       "pairs"),
        ({A: [0], C: [[0, 1]]}, {}, ValueError, "seeds must have rows of one shape for all types"),
        ({A: [0]}, {"reverse": {A: B}}, ValueError, "reverse must be None unless exclude is True"),
        ({A: [0]}, {"ends": Graph.from_coo([0], [1])}, ValueError, "sampler.ends must be None"),
        ({A: [0]}, {"exclude": True, "reverse": {A: C}}, ValueError, "reverse must name an edge "
                                                                     "type from 'item'"),
        ({A: [0]}, {"exclude": True, "reverse": {A: "bought"}}, ValueError, "reverse must name an "
                                                                            "edge type"),
        ({A: [0]}, {"exclude": True, "reverse": torch.arange(3)}, ValueError, "reverse must be a "
                                                                              "mapping from edge"),
    ],
)  # fmt: skip
def test_bad_input(seeds, settings, error, text):
    with pytest.raises(error, match=text):
        make(typed_graph(), seeds, EdgeBatches(NeighborSampler([2]), **settings))


def test_reverse_ids_are_as_many_as_edges():
    with pytest.raises(
        ValueError, match=r"reverse must hold an edge id for each of 400 edges, got shape \(3,\)"
    ):
        sampler = EdgeBatches(NeighborSampler([2]), exclude=True, reverse=torch.arange(3))
        make(plain_graph(), [1], sampler)
