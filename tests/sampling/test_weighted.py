"""Weighted picks against their plain reference, DGL's numbers of picks, and what they must not
depend on."""

import hashlib
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_weighted import graph_of, rows_of
from plain_weighted import sample as plain_sample
from tiers import examples

from pagraph import CSC, Graph, NeighborSampler
from pagraph.datasets import rmat
from pagraph.sampling import LaborSampler
from pagraph.sampling.drawing import ExcludedEdges
from pagraph.seeds import derive_key

pytestmark = pytest.mark.kernels


EDGE = ("_N", "_E", "_N")


@pytest.fixture(scope="module")
def dgl():
    pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
    return pytest.importorskip("dgl")


def in_csc_order(graph):
    """The weights in CSC order, as Python floats."""
    csc = graph.csc
    values = graph.edata["w"] if csc.edge_ids is None else graph.edata["w"][csc.edge_ids.long()]
    return values.double().tolist()


WEIGHTS = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 0.3, 7.5, 1e-30, 1e30, 1e-3, 1e3])


@st.composite
def weighted_graphs(draw):
    """Rows of none, few, and many edges, with zeros and huge ratios among the weights, edge ids in
    any order."""
    degrees = draw(
        st.lists(
            st.sampled_from([0, 1, 3, 9, 15, 16, 31, 33, 47, 70, 130, 200]), min_size=1, max_size=6
        )
    )
    total = sum(degrees)
    few = draw(st.lists(WEIGHTS, min_size=1, max_size=12))
    spread = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.choice(few, total) * (rng.random(total) + 0.5 if spread else 1.0)
    order = rng.permutation(total) if draw(st.booleans()) else np.arange(total)
    return graph_of(degrees, weights.astype(draw(st.sampled_from([np.float32, np.float64]))), order)


@settings(max_examples=examples(200))
@given(
    graph=weighted_graphs(),
    fanout=st.sampled_from([-1, 1, 2, 5, 10, 16, 40, 64, 65, 150]),
    replace=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_equals_the_plain_reference(graph, fanout, replace, key):
    weights = in_csc_order(graph)
    seeds = list(range(graph.num_nodes))
    block = (
        NeighborSampler([fanout], replace=replace, prob="w")
        .sample(graph, torch.tensor(seeds), key)
        .blocks[0]
    )
    expected = plain_sample(
        graph.csc.indptr.tolist(), weights, seeds, fanout, derive_key(key, 0), replace
    )
    drawn = rows_of(block)
    assert [len(row) for row in drawn] == [len(row) for row in expected]
    assert all(weights[p] > 0 for row in drawn for p in row)
    if len({w for w in weights if w > 0}) <= 1:
        return  # equal weights are drawn uniformly, by other means
    for got, want in zip(drawn, expected, strict=True):
        assert (
            got == want
            if replace or fanout == -1 or len(want) < fanout
            else sorted(got) == sorted(want)
        )


@pytest.mark.parametrize("fanout", [1, 15, 16, 17, 31, 32, 33, 34, 64, 65, 66])
@pytest.mark.parametrize("degree", [32, 33, 64, 129, 131])
def test_the_borders_between_the_methods(degree, fanout):
    weights = np.random.default_rng(degree).random(17 + 4 * degree).astype(np.float32)
    weights[20:40] *= 1e6  # most draws come again
    graph = graph_of([17, degree, degree, degree, degree], weights)
    block = NeighborSampler([fanout], prob="w").sample(graph, torch.arange(5), 3).blocks[0]
    expected = plain_sample(
        graph.csc.indptr.tolist(),
        weights.astype(float).tolist(),
        range(5),
        fanout,
        derive_key(3, 0),
    )
    assert [sorted(row) for row in rows_of(block)] == [sorted(row) for row in expected]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("value", [1.0, 0.3, True, 5])
def test_equal_weights_give_uniform_picks(value, replace):
    graph = rmat(8, edge_factor=8, seed=2)
    graph.set_field("w", torch.full((graph.num_edges,), value), edge_type=EDGE)
    weighted = NeighborSampler([5, 3], replace=replace, prob="w").sample(graph, torch.arange(20), 4)
    uniform = NeighborSampler([5, 3], replace=replace).sample(graph, torch.arange(20), 4)
    for ours, plain in zip(weighted.blocks, uniform.blocks, strict=True):
        assert torch.equal(ours.positions, plain.positions)


@pytest.mark.parametrize("fanout", [-1, 1, 3, 5, 100])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.uint8])
def test_as_many_picks_as_dgl(dgl, fanout, replace, dtype):
    graph = rmat(7, edge_factor=12, seed=3)
    weights = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(1))
    weights = (weights - 0.5).clamp(min=0) * 8
    weights[graph.csc.destinations() % 5 == 0] = 0  # rows of zeros only
    graph.set_field("w", weights.to(dtype), edge_type=EDGE)
    block = (
        NeighborSampler([fanout], replace=replace, prob="w")
        .sample(graph, torch.arange(128), 1)
        .blocks[0]
    )
    theirs = dgl.graph(("csc", (graph.csc.indptr.long(), graph.csc.indices.long(), [])))
    csc = graph.csc
    theirs.edata["w"] = (
        graph.edata["w"] if csc.edge_ids is None else graph.edata["w"][csc.edge_ids.long()]
    )
    drawn = theirs.sample_neighbors(torch.arange(128), fanout, prob="w", replace=replace)
    assert torch.equal(block.indptr.diff().long(), drawn.in_degrees())


@pytest.mark.parametrize("sampler", [NeighborSampler, LaborSampler])
def test_integers_and_float64_draw_as_they_would_as_float32(sampler):
    graph = rmat(7, edge_factor=12, seed=3)
    weights = torch.randint(0, 5, (graph.num_edges,), generator=torch.Generator().manual_seed(1))
    drawn = []
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        graph.set_field("w", weights.to(dtype), edge_type=EDGE)
        batch = sampler([5, 3], prob="w").sample(graph, torch.arange(20), 4)
        drawn.append([block.positions.tolist() for block in batch.blocks])
    assert drawn[1:] == drawn[:1] * 3


def test_a_type_without_the_field_is_drawn_from_uniformly():
    one, other = rmat(7, seed=1).csc, rmat(7, seed=2).csc
    types = [("v", "a", "v"), ("v", "b", "v")]
    weights = torch.rand(one.num_edges, generator=torch.Generator().manual_seed(2))
    graph = Graph(
        dict(zip(types, [one, other], strict=True)), 128, edata={types[0]: {"w": weights}}
    )
    seeds = {"v": torch.arange(30)}
    weighted = NeighborSampler([4], prob="w").sample(graph, seeds, 3).blocks[0]
    uniform = NeighborSampler([4]).sample(graph, seeds, 3).blocks[0]
    assert torch.equal(
        weighted.relations[types[1]].positions, uniform.relations[types[1]].positions
    )
    assert not torch.equal(
        weighted.relations[types[0]].positions, uniform.relations[types[0]].positions
    )
    unknown = NeighborSampler([4], prob="none").sample(graph, seeds, 3).blocks[0]
    assert torch.equal(unknown.relations[types[0]].positions, uniform.relations[types[0]].positions)


def test_out_edges_bring_their_own_weights():
    graph = rmat(7, edge_factor=8, seed=5)
    graph.set_field(
        "w", torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(3)), edge_type=EDGE
    )
    out = (
        NeighborSampler([4], edge_dir="out", prob="w").sample(graph, torch.arange(128), 6).blocks[0]
    )
    turned = NeighborSampler([4], prob="w").sample(graph.reverse(), torch.arange(128), 6).blocks[0]
    assert torch.equal(out.positions, turned.positions) and torch.equal(out.indices, turned.indices)


def test_excluded_edges_are_left_out():
    graph = rmat(7, edge_factor=8, seed=5)
    graph.set_field(
        "w", torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(4)), edge_type=EDGE
    )
    sampler = NeighborSampler([6], prob="w")
    whole = sampler.sample(graph, torch.arange(128), 6).blocks[0]
    gone = whole.positions[::3]
    block = sampler.sample(graph, torch.arange(128), 6, exclude={EDGE: ExcludedEdges(gone)}).blocks[
        0
    ]
    assert torch.equal(block.positions, whole.positions[~torch.isin(whole.positions, gone)])


def weighted_graph():
    graph = rmat(9, edge_factor=30, seed=7)
    weights = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(5)) ** 3
    graph.set_field("w", weights.where(weights > 0.01, 0.0), edge_type=EDGE)
    return graph


def digest(batch):
    h = hashlib.sha256()
    for block in batch.blocks:
        for tensor in (block.indptr, block.indices, block.positions, block.src_nodes):
            h.update(tensor.long().numpy().tobytes())
    return h.hexdigest()[:16]


def test_same_key_same_bits_whatever_the_threads_and_the_company():
    graph = weighted_graph()
    sampler = NeighborSampler([10, 5], prob="w")
    alone = [digest(sampler.sample(graph, torch.arange(i, i + 20), i)) for i in range(40)]
    # Nothing is known about this one: the threads meet while its weights are made.
    again = weighted_graph()
    results = {}

    def run(part):
        for i in range(part, 40, 4):
            results[i] = digest(sampler.sample(again, torch.arange(i, i + 20), i))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(40)] == alone
    assert len(set(alone)) == 40
    one = NeighborSampler([10], prob="w")
    together = rows_of(one.sample(graph, torch.arange(100), 1).blocks[0])
    assert together[37] == rows_of(one.sample(graph, torch.tensor([37]), 1).blocks[0])[0]


@pytest.mark.parametrize("replace", [False, True])
def test_wide_ids_give_the_same_picks(replace):
    graph = weighted_graph()
    narrow = graph.csc
    ids = None if narrow.edge_ids is None else narrow.edge_ids.long()
    wide = Graph(
        CSC(narrow.indptr.long(), narrow.indices.long(), narrow.num_src, ids), edata=graph.edata
    )
    sampler = NeighborSampler([10, 70, 5], replace=replace, prob="w")
    assert digest(sampler.sample(graph, torch.arange(9), 1)) == digest(
        sampler.sample(wide, torch.arange(9), 1)
    )


def test_bits_stay_the_same_over_versions():
    """A change here changes everybody's batches: resumed runs and published results with them."""
    graph = weighted_graph()
    without = NeighborSampler([3, 70, 10], prob="w").sample(graph, torch.arange(5), 11)
    with_replacement = NeighborSampler([3, 20], replace=True, prob="w").sample(
        graph, torch.arange(5), 11
    )
    assert (digest(without), digest(with_replacement)) == GOLDEN


GOLDEN = ("52aaa1a7a6c326ab", "5a1d5cb27cd7680d")


def test_the_field_is_read_at_every_batch():
    graph = weighted_graph()
    sampler, seeds = NeighborSampler([4], prob="w"), torch.arange(50)
    before = digest(sampler.sample(graph, seeds, 1))
    weights = graph.edata["w"]
    weights[:] = weights.flip(0)
    turned = digest(sampler.sample(graph, seeds, 1))
    graph.set_field("w", weights.flip(0), edge_type=EDGE)
    assert turned != before and digest(sampler.sample(graph, seeds, 1)) == before


def test_bad_names_and_fields():
    with pytest.raises(TypeError, match="prob must be the name of an edge field, got 3"):
        NeighborSampler([2], prob=3)
    graph = weighted_graph()
    graph.edata["w"][3] = -1
    with pytest.raises(
        ValueError, match="edge field 'w' must be finite and not negative, got -1.0"
    ):
        NeighborSampler([2], prob="w").sample(graph, torch.arange(3))
