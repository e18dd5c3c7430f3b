"""ShaDow, Cluster-GCN and GraphSAINT by our kernels: the subgraphs that DGL makes of the same
vertices, bit by bit."""

import copy
import pickle

import numpy as np
import pytest
import torch
from cases import collect, dgl, make_graph, ours, theirs
from comparing import assert_same_columns
from dgl.sampling.utils import EidExcluder
from scipy import stats
from worlds import edge_seeds_of, make_world, mapped, seeds_of

import pagraph.dgl
from pagraph.dgl.workload import native_sampler, workload_of
from pagraph.ranking import resolve_policy
from pagraph.sampling import NeighborSampler
from pagraph.sampling.induced import InducedBatches

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading
SHAPES = ["homogeneous", "heterograph", "relations", "bipartite"]


def cluster_sampler(graph, folder, count=6, **options):
    """DGL's sampler of random clusters, one of them empty, from a file such as it writes itself."""
    of = np.random.default_rng(0).integers(0, count - 1, graph.num_nodes())
    bounds = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=count))])
    path = folder / "clusters.pkl"
    path.write_bytes(
        pickle.dumps((torch.from_numpy(bounds), torch.from_numpy(np.argsort(of, kind="stable"))))
    )
    return d.ClusterGCNSampler(graph, count, str(path), **options)


def samplers(graph, folder, names=("feat",)):
    options = {"prefetch_ndata": list(names), "prefetch_edata": ["w"]}
    return {
        "shadow": d.ShaDowKHopSampler(
            [3, 2], prefetch_node_feats=list(names), prefetch_edge_feats=["w"]
        ),
        "cluster": cluster_sampler(graph, folder, **options),
        "node": d.SAINTSampler("node", 40, **options),
        "edge": d.SAINTSampler("edge", 30, **options),
        "walk": d.SAINTSampler("walk", (10, 3), **options),
    }


by_name = pytest.mark.parametrize("name", ["shadow", "cluster", "node", "edge", "walk"])


def subgraph_of(item):
    return item[2] if isinstance(item, tuple) else item


def assert_same_subgraph(graph, mine, reference):
    """Equal in vertices, edges, their order and ids, and in every column."""
    assert type(mine) is type(reference) and mine.idtype == reference.idtype and not mine.is_block
    assert (mine.ntypes, mine.canonical_etypes) == (reference.ntypes, reference.canonical_etypes)
    for ntype in graph.ntypes:
        ours_, theirs_ = mine.nodes[ntype].data, reference.nodes[ntype].data
        assert torch.equal(ours_[dgl.NID], theirs_[dgl.NID])
        assert_same_columns(graph.nodes[ntype].data, ours_, theirs_, dgl.NID)
    for etype in graph.canonical_etypes:
        assert all(
            map(
                torch.equal,
                mine.edges(etype=etype, order="eid"),
                reference.edges(etype=etype, order="eid"),
            )
        )
        ours_, theirs_ = mine.edges[etype].data, reference.edges[etype].data
        assert ours_[dgl.EID].dtype == graph.idtype and torch.equal(
            ours_[dgl.EID], theirs_[dgl.EID]
        )
        assert_same_columns(graph.edges[etype].data, ours_, theirs_, dgl.EID)


def bits(item):
    sub = subgraph_of(item)
    return [
        t.tolist()
        for t in (
            *sub.edges(order="eid"),
            sub.ndata[dgl.NID],
            sub.edata[dgl.EID],
            sub.ndata["feat"],
        )
    ]


# DGL 2.1 takes sources for destinations where the two are of different types and the graph has
# in-edges only.
@pytest.mark.parametrize(
    ("shape", "layout"), [*((s, "unsorted") for s in SHAPES), ("homogeneous", "csc only")]
)
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_shadow_is_dgls_subgraph_of_its_vertices(shape, idtype, layout):
    world = make_world(shape, idtype, layout)
    graph, seeds = world.graph, seeds_of(world, "")
    for options in ({}, {"prob": "p_float32"}, {"replace": True}):
        sampler = d.ShaDowKHopSampler([2, 3], **options)
        assert isinstance(native_sampler(graph, sampler), InducedBatches)
        for input_nodes, output_nodes, sub in ours(
            graph, seeds, sampler, batch_size=16, prefetch=0
        ):
            assert_same_subgraph(graph, sub, graph.subgraph(input_nodes))
            for ntype, ids in (
                output_nodes if isinstance(output_nodes, dict) else {graph.ntypes[0]: output_nodes}
            ).items():
                assert torch.equal(sub.nodes[ntype].data[dgl.NID][: len(ids)], ids)


@pytest.mark.parametrize("shape", SHAPES)
def test_shadow_finds_dgls_vertices_where_it_takes_all(shape):
    world = make_world(shape)
    graph, seeds = world.graph, seeds_of(world, "")
    sampler = d.ShaDowKHopSampler([-1, -1])
    pairs = zip(
        *(collect(make(graph, seeds, sampler, batch_size=12)) for make in (ours, theirs)),
        strict=True,
    )
    for (inputs, outputs, sub), (in_, out, reference) in pairs:
        assert type(inputs) is type(in_) and type(outputs) is type(out)
        for ntype in graph.ntypes:
            mine, expected = (g.nodes[ntype].data[dgl.NID].sort().values for g in (sub, reference))
            assert torch.equal(mine, expected)
        assert [sub.num_edges(t) for t in graph.canonical_etypes] == [
            reference.num_edges(t) for t in graph.canonical_etypes
        ]


@pytest.mark.parametrize("shape", ["homogeneous", "heterograph"])
@pytest.mark.parametrize("negatives", [None, d.negative_sampler.Uniform(2)])
def test_shadow_around_edges_leaves_the_excluded_out(shape, negatives):
    world = make_world(shape)
    graph = world.graph
    excluded = {
        etype: torch.arange(0, graph.num_edges(etype), 3) for etype in graph.canonical_etypes
    }
    for exclude in (
        "self",
        excluded if shape == "heterograph" else excluded[graph.canonical_etypes[0]],
    ):
        sampler = d.as_edge_prediction_sampler(
            d.ShaDowKHopSampler([3, 2]), exclude=exclude, negative_sampler=negatives
        )
        seeds = edge_seeds_of(world, "none")
        for inputs, pair, *negative, sub in ours(graph, seeds, sampler, batch_size=20):
            given = exclude
            if exclude == "self":
                given = {etype: pair.edges[etype].data[dgl.EID] for etype in graph.canonical_etypes}
                given = given if shape == "heterograph" else given[graph.canonical_etypes[0]]
            assert len(negative) == (negatives is not None)
            assert_same_subgraph(graph, sub, EidExcluder(given)(graph.subgraph(inputs)))
            for ntype in graph.ntypes:
                ends = pair.nodes[ntype].data[dgl.NID]
                assert torch.equal(sub.nodes[ntype].data[dgl.NID][: len(ends)], ends)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_clusters_are_dgls(idtype, tmp_path):
    graph = make_graph(idtype=torch.int64)
    sampler = cluster_sampler(
        graph, tmp_path, prefetch_ndata=["feat", "wide"], prefetch_edata=["w"]
    )
    mine = make_graph(idtype=idtype)
    ids = torch.tensor([4, 0, 5, 2, 1])  # of 5 there is no vertex
    pairs = zip(
        ours(mine, ids, sampler, batch_size=2),
        collect(theirs(graph, ids, sampler, batch_size=2)),
        strict=True,
    )
    for sub, reference in pairs:
        assert_same_subgraph(mine, sub, mine.subgraph(reference.ndata[dgl.NID].to(idtype)))
        assert torch.equal(sub.ndata[dgl.NID], reference.ndata[dgl.NID].to(idtype))


@pytest.mark.parametrize("mode", ["node", "edge", "walk"])
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_saint_is_dgls_subgraph_of_its_vertices(mode, idtype):
    graph = make_graph(idtype=idtype)
    sampler = d.SAINTSampler(mode, (10, 3) if mode == "walk" else 30)
    batches = list(ours(graph, torch.arange(12), sampler, batch_size=3))
    assert len({tuple(sub.ndata[dgl.NID].tolist()) for sub in batches}) == 4
    for sub in batches:
        assert_same_subgraph(graph, sub, graph.subgraph(sub.ndata[dgl.NID]))


@pytest.mark.every
@pytest.mark.parametrize("mode", ["node", "edge", "walk"])
def test_saint_draws_vertices_as_often_as_dgl(mode):
    """The number of batches that each vertex is in, by DGL's sampler and ours (chi-square, fixed
    seeds)."""
    graph = make_graph(n=60, m=200, sort=True)
    sampler, batches = d.SAINTSampler(mode, (4, 2) if mode == "walk" else 6), 2000
    torch.manual_seed(3), dgl.seed(3), np.random.seed(3)
    native, core = native_sampler(graph, sampler), pagraph.dgl.core_graph(graph)
    drawn = (
        [native.draw(core, key) for key in range(batches)],
        [sampler.sampler(graph) for _ in range(batches)],
    )
    counts = [
        torch.bincount(torch.cat(of_batches), minlength=60).double().numpy() for of_batches in drawn
    ]
    mine, reference = counts
    seen = (mine + reference) > 0
    variance = sum(c * (1 - c / batches) for c in counts)[seen]
    distance = ((mine - reference)[seen] ** 2 / variance.clip(1)).sum()
    assert stats.chi2.sf(distance, seen.sum()) > 1e-6
    uniform = np.full(graph.num_nodes(), reference.mean())
    # The test would see another distribution.
    assert ((mine - uniform) ** 2 / uniform).sum() > 3 * distance


@by_name
def test_the_same_bits_for_any_depth_and_workers_and_after_a_break(name, tmp_path):
    graph = make_graph()
    sampler = samplers(graph, tmp_path)[name]
    ids = torch.arange(6 if name == "cluster" else 60)
    settings = {"batch_size": len(ids) // 3, "shuffle": True, "seed": 7}
    epochs = None
    for options in ({"prefetch": 0}, {"num_workers": 1}, {"num_workers": 3, "prefetch": 4}):
        loader = ours(graph, ids, sampler, **settings, **options)
        made = [[bits(item) for item in loader] for _ in range(2)]
        epochs = epochs or made
        assert made == epochs and made[0] != made[1]
    loader = ours(graph, ids, sampler, **settings)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    copied = pickle.loads(pickle.dumps(copy.copy(loader)))
    del iterator
    for other in (ours(graph, ids, sampler, **settings), copied):
        other.load_state_dict(state)
        assert [bits(item) for item in other] == epochs[0][1:]
        assert [bits(item) for item in other] == epochs[1]


@by_name
def test_columns_come_through_the_cache_and_are_never_stale(name, tmp_path):
    graph = make_graph()
    graph.ndata["feat"] = mapped(graph.ndata["feat"])
    sampler = samplers(graph, tmp_path)[name]
    ids = torch.arange(6 if name == "cluster" else 60)
    loader = ours(graph, ids, sampler, batch_size=len(ids) // 3, cache=1.0)
    for epoch in range(3):
        if epoch == 2:
            graph.ndata["feat"] = torch.randn(300, 4)
            graph.edata["w"] = torch.randn(2500, 2)
        for item in loader:
            sub = subgraph_of(item)
            for data, parent, key, ids_name in (
                (sub.ndata, graph.ndata, "feat", dgl.NID),
                (sub.ndata, graph.ndata, "label", dgl.NID),
                (sub.edata, graph.edata, "w", dgl.EID),
            ):
                assert torch.equal(data[key], parent[key][data[ids_name]])
    assert loader.stats.epochs[1].hit_rate == 1
    totals = loader.stats.epochs[1].counts
    assert totals["edges"] > 0 and totals["seeds"] == len(ids)


@pytest.mark.every
@by_name
@pytest.mark.parametrize("policy", ["auto", "adaptive", "degree", "presample", "random"])
def test_every_policy_ranks(name, policy, tmp_path):
    graph = make_graph()
    graph.ndata["feat"] = mapped(graph.ndata["feat"])
    ids = torch.arange(6 if name == "cluster" else 60)
    sampler = samplers(graph, tmp_path)[name]
    loaders = [
        ours(graph, ids, sampler, batch_size=2, cache=0.5, cache_policy=policy, seed=1)
        for _ in range(2)
    ]
    for loader in loaders:  # the second may take the first one's cache
        for _ in range(2):
            for item in loader:
                sub = subgraph_of(item)
                assert torch.equal(sub.ndata["feat"], graph.ndata["feat"][sub.ndata[dgl.NID]])
        assert 0.2 < loader.stats.epochs[1].hit_rate < 1


def test_expected_reads_of_shadow_are_those_of_its_hops():
    graph = make_graph()
    orders = [
        ours(graph, torch.arange(50), sampler, batch_size=10, seed=1)._order
        for sampler in (d.ShaDowKHopSampler([3, 2]), d.NeighborSampler([3, 2]))
    ]
    ranked = [
        workload_of(graph, sampler, order, native_sampler(graph, sampler)).rank(
            resolve_policy("vip"), ["_N"]
        )["_N"]
        for sampler, order in zip(
            (d.ShaDowKHopSampler([3, 2]), d.NeighborSampler([3, 2])), orders, strict=True
        )
    ]
    assert torch.equal(ranked[0].scores, ranked[1].scores)


def test_weights_with_zeros_are_never_expanded():
    graph = make_graph()
    graph.edata["p"] = torch.zeros(2500)
    for input_nodes, output_nodes, sub in ours(
        graph, torch.arange(40), d.ShaDowKHopSampler([5, 5], prob="p"), batch_size=20
    ):
        assert torch.equal(input_nodes, output_nodes)
        assert_same_subgraph(graph, sub, graph.subgraph(input_nodes))


def test_what_runs_its_own_code(tmp_path):
    graph, typed = make_graph(), make_world("heterograph").graph

    class Own(d.ShaDowKHopSampler):
        def sample(self, g, seed_nodes, exclude_eids=None):
            return super().sample(g, seed_nodes, exclude_eids)

    saint = d.SAINTSampler("node", 5)
    saint.sampler = lambda g: torch.arange(3)
    patched = d.ShaDowKHopSampler([2])
    patched.sample = lambda g, ids: ids
    assert native_sampler(graph, d.as_edge_prediction_sampler(d.ShaDowKHopSampler([2]))) is not None
    for name in ("cluster", "node", "edge", "walk"):  # DGL's own refusal
        with pytest.raises(TypeError, match="does not support edge or link prediction"):
            d.as_edge_prediction_sampler(samplers(graph, tmp_path)[name])
    assert native_sampler(typed, d.SAINTSampler("node", 5)) is None
    for sampler in (
        Own([2]),
        saint,
        patched,
        d.ShaDowKHopSampler([]),
        d.ShaDowKHopSampler([2], output_device="cuda"),
    ):
        assert native_sampler(graph, sampler) is None
    assert native_sampler(graph.formats("coo"), d.ShaDowKHopSampler([2])) is None
    assert native_sampler(graph, d.ShaDowKHopSampler([2, 3])) == InducedBatches(
        NeighborSampler([2, 3]), "out"
    )
    used = d.SAINTSampler("node", 5)
    used.sample(graph, None)  # DGL keeps the probabilities
    assert native_sampler(graph, used) is not None
    assert [sub.num_nodes() for sub in ours(graph, torch.arange(2), saint)] == [3, 3]


def test_bad_arguments(tmp_path):
    graph = make_graph()
    with pytest.raises(
        ValueError, match=r"fanouts must be positive or -1 \(all neighbours\), got 0"
    ):
        ours(graph, torch.arange(3), d.ShaDowKHopSampler([0]))
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        ours(graph, torch.arange(3), d.SAINTSampler("edge", 0))
    with pytest.raises(IndexError, match=r"indices must be in \[0, 6\), got 6"):
        ours(graph, torch.tensor([0, 6]), cluster_sampler(graph, tmp_path))
    for error, options in ((dgl.DGLError, {"nobody": ["feat"]}), (AssertionError, ["feat"])):
        with pytest.raises(error, match="prefetch_node_feats must"):
            ours(
                make_world("heterograph").graph,
                {"user": torch.arange(3)},
                d.ShaDowKHopSampler([2], prefetch_node_feats=options),
            )
    loader = ours(dgl.graph(([], []), num_nodes=4), torch.arange(2), d.SAINTSampler("edge", 3))
    with pytest.raises(ValueError, match="at least 1 edge for mode 'edge', got 0"):
        list(loader)


def test_a_repeated_seed_has_a_place_of_its_own():
    """Its edges lead to the first one. DGL's own numbers are off by one behind it."""
    graph = make_graph()
    ((input_nodes, output_nodes, sub),) = ours(
        graph, torch.tensor([25, 25, 30]), d.ShaDowKHopSampler([-1]), batch_size=3
    )
    assert input_nodes[:3].tolist() == output_nodes.tolist() == [25, 25, 30]
    src, dst = (sub.ndata[dgl.NID][ends] for ends in sub.edges(order="eid"))
    assert torch.equal(torch.stack([src, dst]), torch.stack(graph.find_edges(sub.edata[dgl.EID])))
    assert not (sub.edges()[1] == 1).any() and (sub.edges()[0] == 1).any()
