"""What cache policies are given: counting with it gives the rows that the loader really reads."""

import pytest
import torch
from cases import dgl, make_graph, ours
from worlds import BUYS, FOLLOWS, edge_seeds_of, make_world, mapped, seeds_of

from pagraph.dgl.workload import native_sampler, workload_of
from pagraph.graph import Graph
from pagraph.ranking import apply_policy, expected_accesses, resolve_policy
from pagraph.ranking.presample import count_accesses

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading
Uniform, GlobalUniform = d.negative_sampler.Uniform, d.negative_sampler.GlobalUniform


def given_of(loader):
    graph = loader.graph
    sampler = loader.graph_sampler
    native = native_sampler(graph, sampler)
    return workload_of(graph, sampler, loader._order, native).sampled()


def counted(given, epochs=(0,), threads=1, batch_size=8):
    counts = count_accesses(
        given.graph,
        given.seeds,
        given.sampler,
        batch_size=batch_size,
        seed=3,
        epochs=epochs,
        threads=threads,
    )
    return {ntype: counts.reads(ntype) for ntype in counts.node_types}


def read_by(loader, epochs=1):
    """How often the loader's batches have each vertex as an input node."""
    graph = loader.graph
    reads = {
        ntype: torch.zeros(graph.num_nodes(ntype), dtype=torch.int64) for ntype in graph.ntypes
    }
    for _ in range(epochs):
        for input_nodes, *_ in loader:
            nodes = input_nodes if isinstance(input_nodes, dict) else {graph.ntypes[0]: input_nodes}
            for ntype, ids in nodes.items():
                reads[ntype] += torch.bincount(ids, minlength=graph.num_nodes(ntype))
    return reads


def check(graph, seeds, sampler, *, batch_size=8, epochs=2):
    loader = ours(graph, seeds, sampler, batch_size=batch_size, shuffle=True, seed=3)
    given = given_of(loader)
    expected, real = counted(given, range(epochs), batch_size=batch_size), read_by(loader, epochs)
    assert {t: reads.tolist() for t, reads in expected.items()} == {
        t: reads.tolist() for t, reads in real.items()
    }
    return given


def neighbors(fanouts, **options):
    return d.NeighborSampler(fanouts, fused=False, **options)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("prob", [None, "p_float32", "m_bool"])
@pytest.mark.parametrize("replace", [False, True])
def test_vertices_of_a_homogeneous_graph(edge_dir, prob, replace):
    world = make_world("homogeneous")
    sampler = neighbors([2, 3], edge_dir=edge_dir, prob=prob, replace=replace)
    given = check(world.graph, seeds_of(world, "repeated"), sampler)
    assert given.sampler.edge_dir == "in"


@pytest.mark.parametrize("shape", ["heterograph", "relations", "bipartite"])
@pytest.mark.parametrize("prob", [None, "p_float64"])
def test_vertices_of_heterographs(shape, prob):
    world = make_world(shape)
    check(world.graph, seeds_of(world, "dict"), neighbors([2, 2], prob=prob))


@pytest.mark.parametrize("prob", [None, "p_float32"])
def test_labor(prob):
    world = make_world("homogeneous")
    check(world.graph, seeds_of(world, "several"), d.LaborSampler([2, 2], prob=prob))


@pytest.mark.every
@pytest.mark.parametrize("shape", ["homogeneous", "heterograph", "bipartite"])
@pytest.mark.parametrize(
    "negatives", [None, Uniform(2), GlobalUniform(1)], ids=["none", "uniform", "global"]
)
def test_edges(shape, negatives):
    world = make_world(shape)
    sampler = d.as_edge_prediction_sampler(neighbors([2, 2]), negative_sampler=negatives)
    given = check(
        world.graph,
        edge_seeds_of(world, "relations" if shape != "homogeneous" else "none"),
        sampler,
    )
    assert shape == "homogeneous" or all(len(etype) == 3 for etype in given.seeds)


@pytest.mark.parametrize(
    "negatives", [None, Uniform(2), GlobalUniform(1)], ids=["none", "uniform", "global"]
)
def test_edges_sampled_by_out_neighbours(negatives):
    world = make_world("homogeneous")
    inner = neighbors([2, 2], edge_dir="out", prob="p_float32")
    check(
        world.graph,
        torch.arange(40),
        d.as_edge_prediction_sampler(inner, negative_sampler=negatives),
    )


@pytest.mark.many
def test_seeds_and_rates_of_edges_agree_with_counting():
    """The first frontier: ends of edges and of negative pairs."""
    world = make_world("heterograph")
    for negatives in (None, Uniform(2), GlobalUniform(1)):
        sampler = d.as_edge_prediction_sampler(neighbors([1]), negative_sampler=negatives)
        loader = ours(
            world.graph,
            {BUYS: torch.arange(60), FOLLOWS: torch.arange(80)},
            sampler,
            batch_size=20,
            seed=0,
        )
        given = given_of(loader)
        counts = count_accesses(
            given.graph,
            given.seeds,
            given.sampler,
            batch_size=20,
            seed=1,
            epochs=range(250),
            threads=1,
        )
        rates = given.sampler.seed_rates(given.seeds, 20)
        for ntype in given.graph.node_types:
            seen = counts.by_hop(ntype)[:, 0].double() / counts.batches
            # Four standard deviations; and that no pair of GlobalUniform is an edge shows in a
            # graph as small as this.
            atol = 0.1 if isinstance(negatives, GlobalUniform) else 0.06
            assert torch.allclose(seen, rates[ntype], atol=atol), (negatives, ntype)


def test_a_users_own_negative_sampler_is_not_called_for_ranking():
    world, calls = make_world("homogeneous"), []

    def mine(graph, eids):
        calls.append(eids)
        return graph.find_edges(eids)

    sampler = d.as_edge_prediction_sampler(neighbors([2]), negative_sampler=mine)
    given = given_of(ours(world.graph, torch.arange(40), sampler, batch_size=8))
    assert sum(map(int, counted(given)["_N"])) > 0 and calls == []


def test_what_a_user_samples_himself_has_no_sampler():
    class Mine(d.NeighborSampler):
        def sample_blocks(self, *args, **kwargs):
            raise AssertionError("called for ranking")

    graph = make_graph()
    loader = ours(graph, torch.arange(30), Mine([2]), batch_size=8)
    assert given_of(loader).sampler is None
    order = [list(range(8)), list(range(8, 12))]
    loader = ours(graph, Batches(order), neighbors([2]))
    assert given_of(loader).sampler is None
    for name in ("degree", "random"):
        workload = workload_of(graph, Mine([2]), loader._order, None)
        ranking = workload.rank(resolve_policy(name), ["_N"])["_N"]
        assert sorted(ranking.ids.tolist()) == list(range(300))


class Batches(torch.utils.data.Dataset):
    device = torch.device("cpu")

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return torch.tensor(self.batches[i])


@pytest.mark.parametrize("policy", ["presample", "vip"])
def test_a_loader_caches_what_its_policy_says(policy):
    graph = make_graph(500, 3000)
    graph.ndata["feat"] = mapped(torch.rand(500, 8))
    graph.edata["p"] = (torch.arange(3000) % 3).float()
    sampler = neighbors([3, 3], prob="p", prefetch_node_feats=["feat"])
    seen = {}
    for name in ("degree", policy):
        loader = ours(
            graph,
            torch.arange(0, 500, 25),
            sampler,
            batch_size=5,
            shuffle=True,
            seed=1,
            cache=0.1,
            cache_policy=name,
        )
        read_by(loader, 20)
        seen[name] = loader.stats.total.hit_rate
    assert seen[policy] > seen["degree"]


def test_given_graph_shares_its_arrays_with_the_loaders():
    """Weights are kept by CSC and field: ranking makes none of its own."""
    graph = make_graph()
    graph.edata["p"] = torch.rand(2500)
    plain = given_of(ours(graph, torch.arange(30), neighbors([2])))
    weighted = given_of(ours(graph, torch.arange(30), neighbors([2], prob="p")))
    assert weighted.graph.csc is plain.graph.csc and plain.graph.edata == {}
    assert weighted.graph.edata["p"] is graph.edata["p"]


@pytest.mark.statistics
def test_edges_of_blocks_are_ranked_by_how_often_they_are_drawn():
    world = make_world("heterograph")
    loader = ours(
        world.graph, seeds_of(world, "dict"), neighbors([2, 3]), batch_size=8, shuffle=True, seed=0
    )
    native = native_sampler(world.graph, loader.graph_sampler)
    workload = workload_of(world.graph, loader.graph_sampler, loader._order, native)
    rankings = workload.rank(resolve_policy("auto"), [BUYS, FOLLOWS])
    drawn = {etype: torch.zeros(world.graph.num_edges(etype)) for etype in rankings}
    for _ in range(100):
        for *_, blocks in loader:
            for block in blocks:
                for etype, counts in drawn.items():
                    counts[block.edges[etype].data[dgl.EID]] += 1 / 100
    for etype, ranking in rankings.items():
        assert sorted(ranking.ids.tolist()) == list(range(world.graph.num_edges(etype)))
        real = drawn[etype][ranking.ids.long()]
        assert abs(float(real.sum() / ranking.scores.sum()) - 1) < 0.05
        assert float((real - ranking.scores).abs().sum() / real.sum()) < 0.2


def test_edges_are_not_ranked_for_samplers_without_fanouts():
    import pagraph.dgl

    graph = make_graph()
    loader = ours(graph, torch.arange(30), pagraph.dgl.LayerSampler([20]))
    native = native_sampler(graph, loader.graph_sampler)
    workload = workload_of(graph, loader.graph_sampler, loader._order, native)
    assert workload.rank(resolve_policy("auto"), graph.canonical_etypes) == {}
    given = given_of(loader)
    with pytest.raises(
        ValueError, match="'vip' needs a sampler with fan-outs .*, got LayerSampler"
    ):
        apply_policy(
            resolve_policy("vip"), given.graph, given.seeds, given.sampler, 0, batch_size=8
        )


def test_edge_batches_know_what_they_expect():
    """By the analytic way and by counting, the same graph and edges."""
    graph = make_graph(200, 1500)
    sampler = d.as_edge_prediction_sampler(neighbors([2, 2]), negative_sampler=GlobalUniform(1))
    given = given_of(ours(graph, torch.arange(0, 1500, 5), sampler, batch_size=20, seed=0))
    assert isinstance(given.graph, Graph)
    expected = expected_accesses(given.graph, given.seeds, given.sampler, batch_size=20)
    real = counted(given, range(60), batch_size=20)["_N"] / 60
    assert expected.batches == 15
    assert abs(float(expected.reads("_N").sum() / real.sum()) - 1) < 0.02
    assert float((expected.reads("_N") - real).abs().sum() / real.sum()) < 0.06
