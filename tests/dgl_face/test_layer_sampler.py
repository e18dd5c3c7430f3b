"""LayerSampler as one of DGL's samplers: in DGL's loader and ours, alone and for edges."""

import copy
import pickle

import numpy as np
import pytest
import torch
from cases import collect, make_graph, ours, theirs

import pagraph.dgl
from pagraph.dgl import LayerSampler

import dgl  # isort: skip

pytestmark = pytest.mark.kernels


LIMIT = 4.5  # standard errors; the seeds are fixed


def weighted_graph(idtype=torch.int64):
    graph = make_graph(idtype=idtype)
    graph.edata["w"] = torch.rand(graph.num_edges(), generator=torch.Generator().manual_seed(1))
    graph.edata["w"][::7] = 0
    return graph


def two_types():
    rng = np.random.default_rng(2)
    return dgl.heterograph(
        {
            ("user", "likes", "item"): (rng.integers(0, 50, 400), rng.integers(0, 40, 400)),
            ("item", "liked", "user"): (rng.integers(0, 40, 300), rng.integers(0, 50, 300)),
        },
        num_nodes_dict={"user": 50, "item": 40},
    )


def check_structure(graph, batch, seeds):
    """What every batch must be, and the weights of what each vertex has."""
    input_nodes, output_nodes, blocks = batch
    assert torch.equal(output_nodes, seeds) and torch.equal(input_nodes, blocks[0].srcdata[dgl.NID])
    assert torch.equal(blocks[-1].dstdata[dgl.NID], seeds)
    for outer, inner in zip(blocks, blocks[1:], strict=False):
        assert torch.equal(outer.dstdata[dgl.NID], inner.srcdata[dgl.NID])
    for block in blocks:
        assert block.idtype == graph.idtype and block.is_block
        weights = block.edata["edge_weights"]
        assert weights.dtype == torch.float32 and (weights > 0).all()
        src, dst = block.edges()
        far, near = graph.find_edges(block.edata[dgl.EID])
        assert torch.equal(block.srcdata[dgl.NID][src], far) and torch.equal(
            block.dstdata[dgl.NID][dst], near
        )
        assert torch.equal(block.edata["w"], graph.edata["w"][block.edata[dgl.EID].long()])


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
@pytest.mark.parametrize("make_loader", [ours, theirs])
def test_batches_have_the_structure_of_dgls(idtype, method, make_loader):
    graph = weighted_graph(idtype)
    sampler = LayerSampler(
        [30, 20], method, edge_weight="w", prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    indices = torch.arange(0, 250, dtype=idtype)
    loader = make_loader(graph, indices, sampler, batch_size=64, shuffle=False)
    batches = collect(loader)
    assert len(batches) == 4
    for batch, seeds in zip(batches, indices.split(64), strict=True):
        check_structure(graph, batch, seeds)
        input_nodes, output_nodes, blocks = batch
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes.long()])
        assert torch.equal(blocks[-1].dstdata["label"], graph.ndata["label"][output_nodes.long()])


def test_worker_processes_of_dgls_loader_draw_their_own_batches():
    graph = weighted_graph()
    seeds = torch.arange(0, 60)
    loader = theirs(graph, seeds.repeat(8), LayerSampler([15]), batch_size=60, num_workers=2)
    batches = collect(loader)
    for batch in batches:
        check_structure(graph, batch, seeds)
    assert len({tuple(batch[0].tolist()) for batch in batches}) == 8


def test_our_loader_runs_it_in_its_threads_with_the_same_bits():
    graph = weighted_graph()
    sampler = LayerSampler([15, 9], edge_weight="w")

    def epoch(**options):
        loader = ours(
            graph, torch.arange(250), sampler, batch_size=50, shuffle=True, seed=5, **options
        )
        blocks = [block for batch in collect(loader) for block in batch[2]]
        return [
            (block.edata[dgl.EID].tolist(), block.edata["edge_weights"].tolist())
            for block in blocks
        ]

    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert epoch() == epoch(num_workers=3, prefetch=4)
    assert torch.equal(torch.get_rng_state(), state)  # its own code, which draws a key, did not run


class Shouting(LayerSampler):
    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        input_nodes, output_nodes, blocks = super().sample_blocks(g, seed_nodes, exclude_eids)
        blocks[0].srcdata["loud"] = torch.ones(len(input_nodes))
        return input_nodes, output_nodes, blocks


def test_a_subclass_that_samples_otherwise_is_asked_itself():
    for _, _, blocks in collect(
        ours(weighted_graph(), torch.arange(60), Shouting([9]), batch_size=20)
    ):
        assert blocks[0].srcdata["loud"].sum() == blocks[0].num_src_nodes()


@pytest.mark.statistics
@pytest.mark.parametrize("edge_weight", [None, "w"])
def test_the_weighted_sum_estimates_the_mean(edge_weight):
    graph, rounds = weighted_graph(), 1500
    seeds, rows = torch.arange(30), graph.ndata["feat"][:, :2].double()
    weights = torch.ones(graph.num_edges()) if edge_weight is None else graph.edata["w"]
    src, dst = graph.edges()
    sums = torch.zeros(graph.num_nodes(), 2, dtype=torch.double)
    sums.index_add_(0, dst, rows[src] * weights[:, None])
    totals = torch.zeros(graph.num_nodes()).index_add_(0, dst, weights)
    expected = (sums / totals.clamp(min=1e-30)[:, None])[:30]
    sampler = LayerSampler([25], edge_weight=edge_weight)
    torch.manual_seed(0)
    got = torch.zeros(rounds, 30, 2, dtype=torch.double)
    for i in range(rounds):
        input_nodes, _, (block,) = sampler.sample(graph, seeds)
        with block.local_scope():
            block.srcdata["h"] = rows[input_nodes]
            edge_weights = block.edata["edge_weights"].double()
            got[i] = dgl.ops.u_mul_e_sum(block, rows[input_nodes], edge_weights)
    spread = got.std(0) / rounds**0.5
    assert ((got.mean(0) - expected).abs() <= LIMIT * spread + 1e-9).all()


def test_the_random_key_comes_from_torchs_generator():
    graph, seeds = weighted_graph(), torch.arange(20)
    sampler = LayerSampler([10, 10])
    torch.manual_seed(3)
    first = [sampler.sample(graph, seeds)[0].tolist() for _ in range(3)]
    torch.manual_seed(3)
    assert [sampler.sample(graph, seeds)[0].tolist() for _ in range(3)] == first
    assert first[0] != first[1]


def test_edge_prediction_excludes_what_it_predicts():
    graph = weighted_graph()
    edges = torch.arange(0, 400)
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        LayerSampler([400, 400]),
        exclude="self",
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(2),
    )
    for make_loader in (ours, theirs):
        for batch in collect(make_loader(graph, edges, sampler, batch_size=100)):
            _, pairs, negatives, blocks = batch
            assert pairs.num_edges() == 100 and negatives.num_edges() == 200
            for block in blocks:
                assert not torch.isin(block.edata[dgl.EID], pairs.edata[dgl.EID]).any()
                assert len(block.edata["edge_weights"]) == block.num_edges() > 0


@pytest.mark.parametrize("make_loader", [ours, theirs])
def test_several_vertex_and_edge_types(make_loader):
    graph = two_types()
    graph.edges["likes"].data["w"] = torch.rand(400)
    seeds = {"user": torch.arange(10), "item": torch.arange(5)}
    sampler = LayerSampler([{"likes": 4, "liked": 0}, 3], edge_weight="w")
    ((input_nodes, output_nodes, blocks),) = collect(
        make_loader(graph, seeds, sampler, batch_size=15)
    )
    assert {ntype: sorted(ids.tolist()) for ntype, ids in output_nodes.items()} == {
        ntype: ids.tolist() for ntype, ids in seeds.items()
    }
    assert torch.equal(input_nodes["user"], blocks[0].srcnodes["user"].data[dgl.NID])
    assert blocks[0].num_edges("liked") == 0 < blocks[0].num_edges("likes")
    for block in blocks:
        for etype in graph.canonical_etypes:
            weights, ids = block.edges[etype].data["edge_weights"], block.edges[etype].data[dgl.EID]
            assert len(weights) == len(ids) == block.num_edges(etype)
            assert len(graph.find_edges(ids, etype=etype)[0].unique()) <= 4
    excluded = {"likes": blocks[-1].edges["likes"].data[dgl.EID]}
    _, _, blocks = LayerSampler([100]).sample_blocks(graph, seeds, excluded)
    assert not torch.isin(blocks[0].edges["likes"].data[dgl.EID], excluded["likes"]).any()


def test_out_edges():
    graph = weighted_graph()
    _, _, (block,) = LayerSampler([400], edge_dir="out").sample(graph, torch.arange(20))
    src, dst = graph.find_edges(block.edata[dgl.EID])
    here, there = block.edges()
    assert torch.equal(block.dstdata[dgl.NID][there], src) and torch.equal(
        block.srcdata[dgl.NID][here], dst
    )
    assert block.num_edges() == graph.out_degrees(torch.arange(20)).sum()


def test_copies_and_pickles_are_the_same_sampler():
    graph, seeds = weighted_graph(), torch.arange(20)
    sampler = LayerSampler([9, 5], "fastgcn", edge_weight="w", output_device="cpu")
    for twin in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert vars(twin) == vars(sampler)
        torch.manual_seed(1)
        expected = sampler.sample(graph, seeds)[0]
        torch.manual_seed(1)
        assert torch.equal(twin.sample(graph, seeds)[0], expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sizes": []}, ValueError, "sizes must have at least 1 entry"),
        ({"sizes": [0]}, ValueError, "sizes must be at least 1, got 0"),
        ({"sizes": [1.5]}, TypeError, "sizes must be integers, got 1.5"),
        ({"sizes": [2], "method": "gcn"}, ValueError, "method must be one of .*, got 'gcn'"),
        ({"sizes": [2], "edge_dir": "up"}, ValueError, "edge_dir must be 'in' or 'out', got 'up'"),
        (
            {"sizes": [2], "edge_weight": 1},
            TypeError,
            "edge_weight must be the name of an edge column, got 1",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LayerSampler(**arguments)


def test_what_it_cannot_sample():
    graph, seeds = weighted_graph(), torch.arange(5)
    with pytest.raises(
        KeyError, match="edge_weight must name an edge column of the graph, .*'w'.*; got 'v'"
    ):
        LayerSampler([2], edge_weight="v").sample(graph, seeds)
    with pytest.raises(KeyError, match="got 'v'"):
        ours(graph, seeds, LayerSampler([2], edge_weight="v"))
    with pytest.raises(TypeError, match="whole dgl.DGLGraph objects, got int"):
        LayerSampler([2]).sample(3, seeds)
    with pytest.raises(IndexError, match="got 300"):
        LayerSampler([2]).sample(graph, torch.tensor([300]))
    with pytest.raises(dgl.DGLError):
        LayerSampler([2]).sample(graph, seeds.int())
    graph.edata["w"][3] = -1
    with pytest.raises(ValueError, match="edge field 'w' must be finite and not negative, got -1"):
        LayerSampler([2], edge_weight="w").sample(graph, seeds)
    several = two_types()
    with pytest.raises(dgl.DGLError, match="must name every edge type, .*liked.* missing"):
        LayerSampler([{"likes": 3}]).sample(several, {"user": seeds})
    with pytest.raises(dgl.DGLError, match="seed_nodes must be a mapping"):
        LayerSampler([3]).sample(several, seeds)
    with pytest.raises(
        ValueError, match="edge_dir must be 'in' for graphs of several types, got 'out'"
    ):
        LayerSampler([3], edge_dir="out").sample(several, {"user": seeds})
    with pytest.raises(dgl.DGLError, match="excluded edges must be a mapping"):
        LayerSampler([3]).sample_blocks(several, {"user": seeds}, seeds)


def test_it_is_exported():
    assert pagraph.dgl.LayerSampler is LayerSampler and "LayerSampler" in pagraph.dgl.__all__
