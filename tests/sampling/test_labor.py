"""LABOR against its plain reference, its probabilities, and what makes it LABOR: shared numbers,
fewer vertices."""

import hashlib
import threading

import numpy as np
import plain_layers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph, NeighborSampler
from pagraph.sampling import LaborSampler
from pagraph.sampling.drawing import ExcludedEdges
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools

pytestmark = pytest.mark.kernels


LIMIT = 4.5  # standard errors; the keys are fixed


@st.composite
def graphs(draw, max_nodes=20, max_edges=120):
    """Random graphs with self-loops, parallel edges, isolated vertices, sometimes no edge; weights
    with zeros."""
    n = draw(st.integers(1, max_nodes))
    edges = draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=max_edges)
    )
    weights = draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=len(edges), max_size=len(edges))
    )
    return Graph.from_coo(
        [e[0] for e in edges], [e[1] for e in edges], n, edata={"w": torch.tensor(weights)}
    )


def hub_graph(n=150, m=2500, seed=0):
    """A few vertices are the sources of most edges; parallel edges and self-loops; vertex n - 1 has
    no edge."""
    rng = np.random.default_rng(seed)
    src = (rng.random(m) ** 2 * (n - 1)).astype(int)
    weights = torch.from_numpy(rng.choice([0.0, 0.5, 1.0, 3.0], m))
    return Graph.from_coo(src, rng.integers(0, n - 1, m), n, edata={"w": weights})


def in_csc_order(graph, prob):
    """The weights of a field by position, or None."""
    if prob is None:
        return None
    values, ids = graph.edata[prob], graph.csc.edge_ids
    return (values if ids is None else values[ids.long()]).tolist()


def digest(batch):
    h = hashlib.sha256()
    for block in batch.blocks:
        for tensor in (block.indptr, block.indices, block.positions, block.src_nodes):
            h.update(tensor.long().numpy().tobytes())
        h.update(b"" if block.weights is None else block.weights.numpy().tobytes())
    return h.hexdigest()[:16]


@settings(max_examples=examples(100))
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 3, 10]), min_size=1, max_size=3),
    prob=st.sampled_from([None, "w"]),
    importance_sampling=st.sampled_from([0, 1, 3, -1]),
    layer_dependency=st.booleans(),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    data=st.data(),
)
def test_equals_the_plain_reference(
    graph, fanouts, prob, importance_sampling, layer_dependency, key, dtype, data
):
    # Repeated ones too.
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8))
    sampler = LaborSampler(fanouts, prob, importance_sampling, layer_dependency)
    batch = sampler.sample(graph, torch.tensor(seeds, dtype=dtype), key)
    weights = in_csc_order(graph, prob)
    for hop, block in enumerate(batch.blocks[::-1]):
        frontier, hop_key = (
            block.dst_nodes.tolist(),
            key if layer_dependency else derive_key(key, hop),
        )
        indptr, positions, expected = plain_layers.labor(
            graph.csc, frontier, fanouts[-1 - hop], hop_key, weights, importance_sampling
        )
        assert block.indptr.tolist() == indptr
        assert block.positions.tolist() == positions
        assert (block.weights is None) == (expected is None)
        if expected is not None:
            assert block.weights.tolist() == pytest.approx(expected, rel=1e-3)
        assert block.indptr.dtype == block.indices.dtype == block.src_nodes.dtype == dtype
    for outer, inner in zip(batch.blocks, batch.blocks[1:], strict=False):
        assert torch.equal(outer.dst_nodes, inner.src_nodes)


@pytest.mark.every
@pytest.mark.parametrize("prob", [None, "w"])
@pytest.mark.parametrize("importance_sampling", [0, 2])
def test_edges_are_taken_with_their_probabilities(prob, importance_sampling):
    graph, rounds, fanout = hub_graph(), 2500, 5
    frontier = torch.arange(30)
    _, chances = plain_layers.labor_probabilities(
        graph.csc, frontier.tolist(), fanout, in_csc_order(graph, prob), importance_sampling
    )
    expected = np.zeros(graph.num_edges)
    expected[list(chances)] = list(chances.values())
    counts = np.zeros(graph.num_edges)
    for key in range(rounds):
        block = (
            LaborSampler([fanout], prob, importance_sampling)
            .sample(graph, frontier, derive_key(5, key))
            .blocks[0]
        )
        counts[block.positions.numpy()] += 1
    error = np.sqrt(expected * (1 - expected) / rounds)
    assert (np.abs(counts / rounds - expected) <= LIMIT * error + 1e-9).all()


def test_all_neighbours_where_they_fit_else_the_fan_out_on_average():
    graph, rounds = hub_graph(), 300
    degrees = graph.in_degrees()
    everyone = torch.arange(graph.num_nodes)
    for importance_sampling in (0, 1, -1):
        counts = np.zeros((rounds, graph.num_nodes))
        for key in range(rounds):
            block = (
                LaborSampler([12], None, importance_sampling).sample(graph, everyone, key).blocks[0]
            )
            counts[key] = block.indptr.diff().numpy()
        fit = (degrees <= 12).numpy()
        assert (counts[:, fit] == degrees[fit].numpy()).all()
        if importance_sampling == 0:
            many = counts[:, ~fit]
            z = (many.mean(0) - 12) / (many.std(0) / np.sqrt(rounds))
            assert np.abs(z).max() < LIMIT


@pytest.mark.many
def test_the_mean_with_weights_is_nearly_unbiased():
    """A ratio of estimates: its bias falls with the fan-out, and is far below the spread."""
    graph, rounds = hub_graph(), 1500
    rows = np.random.default_rng(3).normal(1.0, 1.0, graph.num_nodes)
    layer = plain_layers.Layer(graph.csc, range(20), in_csc_order(graph, "w"))
    expected = np.array(
        [sum(layer.share[p] * rows[layer.indices[p]] for p in row) for row in layer.rows]
    )
    means = np.zeros((rounds, 20))
    for key in range(rounds):
        block = (
            LaborSampler([8], "w", 1).sample(graph, torch.arange(20), derive_key(8, key)).blocks[0]
        )
        sources = block.src_nodes[block.indices].numpy()
        sums = np.add.reduceat(block.weights.numpy() * rows[sources], block.indptr[:-1].numpy())
        means[key] = sums / block.indptr.diff().numpy()
    assert np.abs(means.mean(0) - expected).max() < 0.15 * means.std(0).max()


def test_equal_numbers_at_all_vertices_and_edge_types():
    """Vertices of one degree take the same neighbours: this is what makes the layer small."""
    src, dst = np.tile(np.arange(100), 10), np.repeat(np.arange(100, 110), 100)
    graph = Graph.from_coo(src, dst, 110)
    block = LaborSampler([5]).sample(graph, torch.arange(100, 110), 3).blocks[0]
    rows = block.src_nodes[block.indices].reshape(10, -1)
    assert 0 < rows.shape[1] < 20 and (rows == rows[0]).all()
    csc = CSC(torch.tensor([0, 100]), torch.arange(100), 100)
    several = Graph({("a", "x", "b"): csc, ("a", "y", "b"): csc})
    relations = LaborSampler([5]).sample(several, {"b": torch.tensor([0])}, 3).blocks[0].relations
    first, second = (relation.positions.tolist() for relation in relations.values())
    assert first == second


def test_a_hop_has_its_own_numbers_unless_layers_depend():
    src, dst = np.tile(np.arange(100), 101), np.repeat(np.arange(101), 100)
    graph = Graph.from_coo(src, dst, 101)
    for layer_dependency in (False, True):
        sampler = LaborSampler([5, 5], layer_dependency=layer_dependency)
        outer, inner = sampler.sample(graph, torch.tensor([100]), 3).blocks
        assert (outer.num_src == inner.num_src) == layer_dependency


@pytest.mark.parametrize("importance_sampling", [0, 1, -1])
def test_fewer_input_vertices_than_independent_draws_and_fewer_with_each_refinement(
    importance_sampling,
):
    graph, seeds, rounds = hub_graph(n=2000, m=60_000), torch.arange(200), 40

    def mean(sampler):
        return np.mean(
            [len(sampler.sample(graph, seeds, key).input_nodes) for key in range(rounds)]
        )

    refined = mean(LaborSampler([10], None, importance_sampling))
    assert (
        refined < mean(NeighborSampler([10]))
        if importance_sampling == 0
        else refined < mean(LaborSampler([10]))
    )
    plain = LaborSampler([3, 10], None, importance_sampling)
    depending = LaborSampler([3, 10], None, importance_sampling, layer_dependency=True)
    assert mean(depending) < mean(plain)


@pytest.mark.many
def test_rows_that_are_nearly_complete_end_where_the_fixed_point_does():
    """Their fixed-point iteration takes thousands of steps; the kernel's shortcut must give the
    same probabilities."""
    weights = torch.tensor([1.0, 1e-3, 0.5, 2e-3, 3.0, 1e-4], dtype=torch.float64)
    graph = Graph.from_coo([0, 1, 2, 3, 4, 5], [6] * 6, 7, edata={"w": weights})
    for fanout in (2, 4, 6, 9):
        _, chances = plain_layers.labor_probabilities(graph.csc, [6], fanout, weights.tolist())
        counts = np.zeros(6)
        for key in range(1500):
            counts[
                LaborSampler([fanout], "w")
                .sample(graph, torch.tensor([6]), key)
                .blocks[0]
                .positions.numpy()
            ] += 1
        expected = np.array([chances[p] for p in range(6)])
        error = np.sqrt(expected * (1 - expected) / 1500)
        assert (np.abs(counts / 1500 - expected) <= LIMIT * error + 1e-3).all()


@pytest.mark.parametrize("low, high", [(1e-30, 1e30), (1e-280, 1e280)])
@pytest.mark.parametrize("importance_sampling", [0, -1])
def test_weights_of_very_different_sizes(low, high, importance_sampling):
    values = torch.tensor([low, high, low, high, low], dtype=torch.float64)
    graph = Graph.from_coo([0, 1, 2, 3, 4], [5, 5, 5, 6, 7], 8, edata={"w": values})
    sampler, seeds = LaborSampler([1], "w", importance_sampling), torch.tensor([5, 6, 7])
    counts = np.zeros(5)
    for key in range(300):
        block = sampler.sample(graph, seeds, key).blocks[0]
        counts[block.positions.numpy()] += 1
        assert torch.isfinite(block.weights).all()
    assert (
        counts[[0, 2]].sum() == 0
        and 120 < counts[1] < 240
        and counts[[3, 4]].tolist() == [300, 300]
    )


def test_vertices_without_neighbours_or_weights_and_empty_batches():
    values = torch.tensor([0.0, 0.0, 1.0])
    graph = Graph.from_coo([0, 1, 2], [3, 3, 4], 6, edata={"w": values})
    for importance_sampling in (0, 1, -1):
        sampler = LaborSampler([2, 2], "w", importance_sampling)
        assert sampler.sample(graph, torch.tensor([5, 3])).input_nodes.tolist() == [5, 3]
        assert sampler.sample(graph, torch.tensor([3, 4])).input_nodes.tolist() == [3, 4, 2]
        empty = sampler.sample(graph, torch.empty(0, dtype=torch.int64))
        assert [block.num_src for block in empty.blocks] == [0, 0] and len(
            empty.blocks[0].weights
        ) == 0
    uniform = LaborSampler([2], "no such field").sample(graph, torch.tensor([3])).blocks[0]
    assert uniform.weights is None and uniform.num_edges == 2


def test_weights_that_were_written_over_count_from_then_on():
    graph = Graph.from_coo([0, 1], [2, 2], 3, edata={"w": torch.tensor([1.0, 0.0])})
    for importance_sampling in (0, 1):
        sampler = LaborSampler([2], "w", importance_sampling)
        graph.edata["w"].copy_(torch.tensor([1.0, 0.0]))
        assert sampler.sample(graph, torch.tensor([2])).input_nodes.tolist() == [2, 0]
        graph.edata["w"].copy_(torch.tensor([0.0, 1.0]))
        assert sampler.sample(graph, torch.tensor([2])).input_nodes.tolist() == [2, 1]


def test_fan_outs_by_edge_type():
    csc = CSC(torch.tensor([0, 30]), torch.arange(30), 30)
    graph = Graph({("a", "x", "b"): csc, ("a", "y", "b"): csc, ("a", "z", "b"): csc})
    fanouts = {("a", "x", "b"): 0, ("a", "y", "b"): -1, ("a", "z", "b"): 3}
    relations = LaborSampler([fanouts]).sample(graph, {"b": torch.tensor([0])}).blocks[0].relations
    counts = [relation.num_edges for relation in relations.values()]
    assert counts[:2] == [0, 30] and 0 < counts[2] < 12


def test_excluded_edges_are_left_out_of_what_was_drawn():
    graph, seeds = hub_graph(), torch.arange(20)
    whole = LaborSampler([5], "w").sample(graph, seeds, 9).blocks[0]
    unwanted = whole.positions[::3]
    exclude = {graph.edge_types[0]: ExcludedEdges(unwanted)}
    block = LaborSampler([5], "w").sample(graph, seeds, 9, exclude=exclude).blocks[0]
    keep = ~torch.isin(whole.positions, unwanted)
    assert torch.equal(block.positions, whole.positions[keep]) and torch.equal(
        block.weights, whole.weights[keep]
    )


@pytest.mark.parametrize("arguments", [{}, {"prob": "w"}, {"prob": "w", "importance_sampling": -1}])
def test_same_key_same_bits_whatever_the_threads(arguments):
    graph, pools = hub_graph(), BufferPools(3)
    sampler = LaborSampler([4, 6], **arguments)
    alone = [digest(sampler.sample(graph, torch.arange(i, i + 20), i)) for i in range(40)]
    results = {}

    def run(part):
        for i in range(part, 40, 4):
            results[i] = digest(sampler.sample(graph, torch.arange(i, i + 20), i, pools=pools))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(40)] == alone and len(set(alone)) == 40


def test_bits_stay_the_same_over_versions():
    """A change here changes everybody's batches: resumed runs and published results with them."""
    graph, seeds = hub_graph(n=60, m=700, seed=1), torch.arange(6)
    samplers = [LaborSampler([3, 4]), LaborSampler([3, 4], "w"), LaborSampler([3, 4], "w", -1)]
    assert [digest(sampler.sample(graph, seeds, 11)) for sampler in samplers] == GOLDEN


GOLDEN = ["c5a2cbadfadcc74b", "26c2bac86442639e", "524cc15c3eeb5af1"]


def test_out_edges_are_the_in_edges_of_the_reversed_graph():
    graph = hub_graph()
    out = LaborSampler([4, 5], "w", 1, edge_dir="out").sample(graph, torch.arange(20), 4)
    assert digest(out) == digest(
        LaborSampler([4, 5], "w", 1).sample(graph.reverse(), torch.arange(20), 4)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fanouts": []}, ValueError, "fanouts must have at least 1 entry"),
        ({"fanouts": [3, 0]}, ValueError, "fanouts must be positive or -1 .*, got 0"),
        ({"fanouts": [2.5]}, TypeError, "fanouts must be integers, got 2.5"),
        (
            {"fanouts": [2], "importance_sampling": 0.5},
            TypeError,
            "importance_sampling must be an integer, got 0.5",
        ),
        ({"fanouts": [2], "prob": 3}, TypeError, "prob must be the name of an edge field, got 3"),
        (
            {"fanouts": [2], "edge_dir": "up"},
            ValueError,
            "edge_dir must be 'in' or 'out', got 'up'",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LaborSampler(**arguments)


@pytest.mark.parametrize("importance_sampling", [0, 1])
def test_damaged_graphs(importance_sampling):
    damaged = Graph(CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 99]), 2))
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 99"):
        LaborSampler([2], None, importance_sampling).sample(damaged, torch.tensor([0, 1]))
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2))
    with pytest.raises(FormatError, match="indptr must be non-decreasing"):
        LaborSampler([2], None, importance_sampling).sample(bent, torch.tensor([0, 1]))
