"""LABOR: the distributions of DGL's LaborSampler, edges that share a source included."""

import math

import numpy as np
import pytest
import torch
from cases import collect, dgl, edges_of, make_graph, ours, theirs
from comparing import edge_rows
from distributions import (
    ALARM,
    assert_distribution,
    assert_same_distribution,
    draw,
    make_forest,
    outcomes,
)
from scipy import stats
from worlds import make_world, seeds_of

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds"),
]

LaborSampler = dgl.dataloading.LaborSampler
EDGE = ("_N", "_E", "_N")
WEIGHTS = torch.tensor([1.0, 1.0, 2.0, 0.0, 3.0])
VARIANTS = {
    "uniform": {},
    "weighted": {"prob": "p"},
    "importance": {"importance_sampling": 1},
    "converged": {"importance_sampling": -1},
    "weighted importance": {"prob": "p", "importance_sampling": 2},
}


@pytest.mark.parametrize(("degree", "fanout"), [(6, 2), (4, 3), (5, 1)])
def test_edges_from_sources_of_their_own_are_drawn_apart(degree, fanout):
    """Each with probability fan-out / degree."""
    forest, p = make_forest([degree], in_order=degree != 4), fanout / degree
    chances = {
        code: math.prod(p if code >> i & 1 else 1 - p for i in range(degree))
        for code in range(2**degree)
    }
    for make in (ours, theirs):
        assert_distribution(draw(make, forest, LaborSampler([fanout]))[EDGE].ravel(), chances)


@pytest.mark.every
@pytest.mark.parametrize("variant", VARIANTS)
def test_outcomes_have_dgls_distribution(variant):
    forest = make_forest([5], p=[WEIGHTS], in_order=True)
    mine, reference = (
        draw(make, forest, LaborSampler([2], **VARIANTS[variant]))[EDGE].ravel()
        for make in (ours, theirs)
    )
    assert_same_distribution(mine, reference)
    if "prob" in VARIANTS[variant]:
        assert all(not code >> 3 & 1 for code in mine)  # what weighs nothing is never drawn


@pytest.mark.parametrize("variant", ["weighted", "weighted importance"])
def test_weights_belong_to_edge_ids(variant):
    """The order of the edges must not matter. DGL reads prob in that of the CSC, so its own is in
    order here."""
    sampler = LaborSampler([2], **VARIANTS[variant])
    mine, reference = (
        draw(make, make_forest([5], p=[WEIGHTS], in_order=make is theirs), sampler)[EDGE].ravel()
        for make in (ours, theirs)
    )
    assert_same_distribution(mine, reference)


def crossed_graph():
    """Vertices 0 to 39 share 25 sources; 0 and 1 have the same ones."""
    rng = np.random.default_rng(4)
    sources = np.array([rng.permutation(25)[:6] + 40 for _ in range(40)])
    sources[1] = sources[0]
    graph = dgl.graph(
        (torch.from_numpy(sources.ravel()), torch.arange(40).repeat_interleave(6)), num_nodes=65
    )
    graph.edata["p"] = WEIGHTS[[0, 2, 1, 4, 2, 4]].repeat(40)
    return graph


def crossed_batches(make, *, fanouts=(2,), batches=800, **options):
    dgl.seed(21)
    sampler = LaborSampler(list(fanouts), **options)
    seeds = torch.arange(40).repeat(batches)
    only_ours = {"seed": 13} if make is ours else {}
    return collect(make(crossed_graph(), seeds, sampler, batch_size=40, **only_ours))


@pytest.mark.every
@pytest.mark.parametrize("variant", VARIANTS)
def test_input_nodes_edges_and_weights_are_dgls(variant):
    """What LABOR is for: vertices choose the same sources. Counts and weights are distributed
    alike."""
    found = {make: crossed_batches(make, **VARIANTS[variant]) for make in (ours, theirs)}
    inputs = {make: [len(batch[0]) for batch in batches] for make, batches in found.items()}
    assert_same_distribution(inputs[ours], inputs[theirs])
    assert np.mean(inputs[ours]) < 65 == len(crossed_batches(ours, fanouts=(6,), batches=1)[0][0])
    edges = {
        make: [batch[2][0].num_edges() // 4 for batch in batches] for make, batches in found.items()
    }
    assert_same_distribution(edges[ours], edges[theirs])
    weights = {make: edge_weights(batches, variant != "uniform") for make, batches in found.items()}
    if variant != "uniform":
        spread = np.sqrt(sum(w.var(0) / len(w) for w in weights.values())) + 1e-9
        z = np.abs(weights[ours].mean(0) - weights[theirs].mean(0)) / spread
        assert 2 * stats.norm.sf(z.max()) * len(z) > ALARM


def edge_weights(batches, expected):
    """Shape ``(batches, edges of the graph)``; 0 for edges that were not drawn."""
    weights = np.zeros((len(batches), 240))
    for i, (_, _, (block,)) in enumerate(batches):
        assert ("edge_weights" in block.edata) == expected
        if expected:
            assert block.edata["edge_weights"].dtype == torch.float32
            weights[i, block.edata[dgl.EID]] = block.edata["edge_weights"]
    return weights


def test_vertices_with_the_same_sources_choose_the_same():
    for make in (ours, theirs):
        for _, _, (block,) in crossed_batches(make, batches=50):
            by_vertex = [{src for src, dst, _ in edges_of(block) if dst == v} for v in (0, 1)]
            assert by_vertex[0] == by_vertex[1]


@pytest.mark.parametrize(
    "options", [{"layer_dependency": True}, {"layer_dependency": False}], ids=str
)
def test_hops_depend_on_each_other_as_dgls_do(options):
    forest = make_forest([4])
    joint = {}
    for make in (ours, theirs):
        dgl.seed(5)
        only_ours = {"seed": 2} if make is ours else {}
        seeds = torch.arange(250).repeat(40)
        loader = make(
            forest.graph, seeds, LaborSampler([2, 2], **options), batch_size=250, **only_ours
        )
        batches = [blocks for _, _, blocks in collect(loader)]
        hops = [
            outcomes(forest, [blocks[hop] for blocks in batches])[EDGE].ravel().tolist()
            for hop in (0, 1)
        ]
        joint[make] = list(zip(*hops, strict=True))
    assert_same_distribution(joint[ours], joint[theirs])
    alike = np.mean([a == b for a, b in joint[ours]])
    assert (alike == 1) == options["layer_dependency"]


def test_batches_depend_on_each_other_as_asked():
    forest = make_forest([4])
    for make in (ours, theirs):
        alike = {}
        for dependency in (1, 8):
            codes = draw(make, forest, LaborSampler([2], batch_dependency=dependency))[EDGE]
            alike[dependency] = float((codes[1:] == codes[:-1]).mean())
        assert 0.05 < alike[1] < 0.08 < 0.5 < alike[8]


@pytest.mark.parametrize("shape", ["homogeneous", "heterograph", "relations"])
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_full_neighbourhoods(shape, idtype):
    """A fan-out no smaller than the degree takes all, with the weights that DGL gives them."""
    world = make_world(shape, idtype, "sorted")
    graph, seeds = world.graph, seeds_of(world, "plain")
    for etype in graph.canonical_etypes[::2]:
        graph.edges[etype].data["q"] = torch.rand(graph.num_edges(etype)) + 0.5
    sampler = LaborSampler([-1, 1000], prob="q")
    for mine, reference in zip(
        ours(graph, seeds, sampler, batch_size=18),
        collect(theirs(graph, seeds, sampler, batch_size=18)),
        strict=True,
    ):
        for my_block, block in zip(mine[2], reference[2], strict=True):
            for etype in graph.canonical_etypes:
                assert edge_rows(my_block, etype) == edge_rows(block, etype)
                data, expected = my_block.edges[etype].data, block.edges[etype].data
                assert data[dgl.EID].dtype == idtype
                # DGL loses the weights of heterographs.
                assert set(data) - {"edge_weights"} == set(expected) - {"edge_weights"}
                if my_block.num_edges(etype):
                    assert ("edge_weights" in data) == ("q" in graph.edges[etype].data)
                if "edge_weights" in expected:
                    by_edge = [
                        frame["edge_weights"][frame[dgl.EID].argsort()]
                        for frame in (data, expected)
                    ]
                    # DGL's chances are approximate.
                    torch.testing.assert_close(*by_edge, rtol=0.02, atol=0.0)


@pytest.mark.parametrize("variant", ["weighted", "weighted importance"])
@pytest.mark.parametrize("fanout", [-1, 2])
def test_vertices_whose_edges_weigh_nothing_have_none(variant, fanout):
    """DGL gives them all their edges, with weights of NaN."""
    forest = make_forest([4], p=[torch.zeros(4)])
    sampler = LaborSampler([fanout, fanout], **VARIANTS[variant])
    for _, _, blocks in ours(forest.graph, torch.arange(250), sampler, batch_size=50):
        assert all(
            block.num_edges() == 0 and block.edata["edge_weights"].shape == (0,) for block in blocks
        )


def test_sampled_edges_are_the_graphs():
    graph = make_graph()
    for input_nodes, _, blocks in ours(
        graph, torch.arange(60), LaborSampler([3, 4]), batch_size=20
    ):
        assert torch.equal(input_nodes, blocks[0].srcdata[dgl.NID])
        for block in blocks:
            src, dst, eids = zip(*edges_of(block), strict=True)
            parent = graph.find_edges(torch.tensor(eids))
            assert (
                parent[0].tolist() == list(src)
                and parent[1].tolist() == list(dst)
                and len(set(eids)) == len(eids)
            )
