"""LADIES and FastGCN against their plain reference, exact probabilities, and the sums they
estimate."""

import gc
import hashlib
import threading
import weakref

import numpy as np
import plain_layers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.sampling import LaborSampler, LayerSampler
from pagraph.sampling.drawing import ExcludedEdges
from pagraph.sampling.layerwise import importance_of
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
        st.lists(
            st.sampled_from([0.0, 0.25, 1.0, 3.0, 40.0]), min_size=len(edges), max_size=len(edges)
        )
    )
    weights = torch.tensor(weights, dtype=torch.float32)
    return Graph.from_coo([e[0] for e in edges], [e[1] for e in edges], n, edata={"w": weights})


def hub_graph(n=150, m=2500, seed=0):
    """A few vertices are the sources of most edges; parallel edges and self-loops; vertex n - 1 has
    no edge."""
    rng = np.random.default_rng(seed)
    src = (rng.random(m) ** 2 * (n - 1)).astype(int)
    weights = torch.from_numpy(rng.choice([0.0, 0.1, 1.0, 5.0], m))
    return Graph.from_coo(src, rng.integers(0, n - 1, m), n, edata={"w": weights})


def in_csc_order(graph, prob):
    """The weights of a field by position, or None."""
    if prob is None:
        return None
    values, ids = graph.edata[prob], graph.csc.edge_ids
    return (values if ids is None else values[ids.long()]).tolist()


def shares(graph, prob=None):
    """P as a dense matrix: row v holds the shares of v's in-edges."""
    layer = plain_layers.Layer(graph.csc, range(graph.num_nodes), in_csc_order(graph, prob))
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for v, row in enumerate(layer.rows):
        for p in row:
            matrix[v, layer.indices[p]] += layer.share[p]
    return matrix


def matrix_of(block, n):
    """The block's weights as a dense matrix over all vertices."""
    matrix = np.zeros((n, n))
    dst = torch.repeat_interleave(block.dst_nodes, block.indptr.diff())
    np.add.at(
        matrix,
        (dst.numpy(), block.src_nodes[block.indices].numpy()),
        block.weights.double().numpy(),
    )
    return matrix


def digest(batch):
    h = hashlib.sha256()
    for block in batch.blocks:
        for tensor in (block.indptr, block.indices, block.positions, block.src_nodes):
            h.update(tensor.long().numpy().tobytes())
        h.update(block.weights.numpy().tobytes())
    return h.hexdigest()[:16]


@settings(max_examples=examples(120))
@given(
    graph=graphs(),
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 9, 100]), min_size=1, max_size=3),
    method=st.sampled_from(["ladies", "fastgcn"]),
    prob=st.sampled_from([None, "w"]),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    data=st.data(),
)
def test_equals_the_plain_reference(graph, sizes, method, prob, key, dtype, data):
    # Repeated ones too.
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8))
    batch = LayerSampler(sizes, method, prob=prob).sample(
        graph, torch.tensor(seeds, dtype=dtype), key
    )
    plain = getattr(plain_layers, method)
    weights = in_csc_order(graph, prob)
    assert batch.output_nodes.tolist() == seeds == batch.blocks[-1].dst_nodes.tolist()
    for hop, block in enumerate(batch.blocks[::-1]):
        frontier = block.dst_nodes.tolist()
        indptr, positions, expected = plain(
            graph.csc, frontier, sizes[-1 - hop], derive_key(key, hop), weights
        )
        assert block.indptr.tolist() == indptr
        assert block.positions.tolist() == positions
        assert block.weights.dtype == torch.float32
        assert block.weights.tolist() == pytest.approx(expected, rel=1e-6)
        assert torch.equal(
            block.src_nodes[block.indices.long()].long(),
            graph.csc.indices[block.positions.long()].long(),
        )
        assert block.indptr.dtype == block.indices.dtype == block.src_nodes.dtype == dtype
    for outer, inner in zip(batch.blocks, batch.blocks[1:], strict=False):
        assert torch.equal(outer.dst_nodes, inner.src_nodes)


@pytest.mark.statistics
@pytest.mark.parametrize("prob", [None, "w"])
def test_ladies_draws_exactly_so_many_vertices_with_the_right_probabilities(prob):
    """In so many rounds vertices that were drawn one after the other, the nearest mistake, would
    differ by 24 standard errors where there are 40; shares that are not squared by 37."""
    graph, seeds, rounds = hub_graph(), torch.arange(12), 2000
    indices = graph.csc.indices.numpy()
    importance = plain_layers.Layer(graph.csc, range(12), in_csc_order(graph, prob)).candidates()
    for size in (1, 7, 40):
        pi = plain_layers.inclusion(importance, size)
        assert sum(pi.values()) == pytest.approx(size) and (size < 40 or max(pi.values()) == 1.0)
        counts = np.zeros(graph.num_nodes)
        sampler = LayerSampler([size], prob=prob)
        for key in range(rounds):
            block = sampler.sample(graph, seeds, derive_key(1, key)).blocks[0]
            drawn = np.unique(indices[block.positions.numpy()])
            assert len(drawn) == size
            counts[drawn] += 1
        expected = np.array([pi.get(u, 0.0) for u in range(graph.num_nodes)])
        error = np.sqrt(expected * (1 - expected) / rounds)
        assert (np.abs(counts / rounds - expected) <= LIMIT * error + 1e-9).all()


@pytest.mark.statistics
def test_fastgcn_draws_in_proportion_to_the_column_norms():
    graph, rounds, size = hub_graph(), 3000, 5
    everyone = torch.arange(graph.num_nodes)
    norms = (shares_by_edge(graph) ** 2).sum(0)
    q = norms / norms.sum()
    drawn = np.zeros(graph.num_nodes)
    for key in range(rounds):
        block = (
            LayerSampler([size], "fastgcn").sample(graph, everyone, derive_key(2, key)).blocks[0]
        )
        drawn[np.unique(graph.csc.indices[block.positions.long()])] += 1
    expected = 1 - (1 - q) ** size
    assert (
        np.abs(drawn / rounds - expected)
        <= LIMIT * np.sqrt(expected * (1 - expected) / rounds) + 1e-9
    ).all()


def shares_by_edge(graph):
    """One row per edge: parallel edges count each for itself."""
    layer = plain_layers.Layer(graph.csc, range(graph.num_nodes))
    matrix = np.zeros((graph.num_edges, graph.num_nodes))
    for p, share in layer.share.items():
        matrix[p, layer.indices[p]] = share
    return matrix


@pytest.mark.every
@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
@pytest.mark.parametrize("prob", [None, "w"])
def test_weighted_sums_are_unbiased_over_one_hop_and_two(method, prob):
    graph, rounds = hub_graph(), 2500
    n, seeds = graph.num_nodes, torch.arange(20)
    rows = np.random.default_rng(3).normal(1.0, 1.0, (n, 2))
    share = shares(graph, prob)
    sampler = LayerSampler([30, 15], method, prob=prob)
    one, two = np.zeros((rounds, 20, 2)), np.zeros((rounds, 20, 2))
    for key in range(rounds):
        outer, inner = sampler.sample(graph, seeds, derive_key(4, key)).blocks
        near = matrix_of(inner, n)[:20]
        one[key] = near @ rows
        two[key] = near @ (matrix_of(outer, n) @ rows)
    for got, expected in ((one, share[:20] @ rows), (two, share[:20] @ share @ rows)):
        z = (got.mean(0) - expected) / (got.std(0) / np.sqrt(rounds))
        assert np.abs(z).max() < LIMIT


@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
@pytest.mark.parametrize("prob", [None, "w"])
def test_all_candidates_are_taken_where_they_fit_with_their_own_shares(method, prob):
    graph = hub_graph()
    block = (
        LayerSampler([graph.num_nodes], method, prob=prob)
        .sample(graph, torch.arange(graph.num_nodes))
        .blocks[0]
    )
    assert np.allclose(matrix_of(block, graph.num_nodes), shares(graph, prob), rtol=1e-6)
    positive = graph.num_edges if prob is None else int((graph.edata["w"] > 0).sum())
    assert block.num_edges == positive


def test_neighbours_of_a_vertex_get_their_share_of_the_sample():
    """Candidates in the order of discovery: of ten equal stretches, a sample of ten takes one
    each."""
    src, dst = np.arange(100), np.arange(100) // 10 + 100
    graph = Graph.from_coo(src, dst, 110)
    for key in range(50):
        block = LayerSampler([10]).sample(graph, torch.arange(100, 110), key).blocks[0]
        assert block.indptr.diff().tolist() == [1] * 10
        assert block.weights.tolist() == pytest.approx([1.0] * 10)


def test_vertices_without_neighbours_and_empty_batches():
    graph = hub_graph()
    lonely = graph.num_nodes - 1
    for method in ("ladies", "fastgcn"):
        batch = LayerSampler([4, 4], method).sample(graph, torch.tensor([lonely]))
        assert [block.num_edges for block in batch.blocks] == [
            0,
            0,
        ] and batch.input_nodes.tolist() == [lonely]
        empty = LayerSampler([4, 4], method).sample(graph, torch.empty(0, dtype=torch.int64))
        assert [block.num_src for block in empty.blocks] == [0, 0]
        nothing = LayerSampler([4], method).sample(Graph.from_coo([], [], 3), torch.tensor([2, 0]))
        assert nothing.input_nodes.tolist() == [2, 0] and nothing.blocks[0].weights.shape == (0,)


@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
def test_each_edge_type_draws_its_own_number(method):
    rng = np.random.default_rng(5)
    to_a = CSC(torch.arange(0, 401, 10), torch.from_numpy(rng.integers(0, 30, 400)), 30)
    to_b = CSC(torch.arange(0, 301, 10), torch.from_numpy(rng.integers(0, 40, 300)), 40)
    graph = Graph({("b", "x", "a"): to_a, ("a", "y", "b"): to_b})
    seeds = {"a": torch.arange(5), "b": torch.arange(4)}
    both = LayerSampler([3], method).sample(graph, seeds, 1).blocks[0]
    for etype, relation in both.relations.items():
        drawn = graph.csc_of(etype).indices[relation.positions.long()].unique()
        assert len(drawn) == 3 if method == "ladies" else len(drawn) <= 3
    apart = (
        LayerSampler([{("b", "x", "a"): 0, ("a", "y", "b"): 100}], method)
        .sample(graph, seeds, 1)
        .blocks[0]
    )
    assert (
        apart.relations["b", "x", "a"].num_edges == 0
        and apart.relations["a", "y", "b"].num_edges == 40
    )
    with pytest.raises(KeyError):
        LayerSampler([{("b", "x", "a"): 3}], method).sample(graph, seeds)


@pytest.mark.parametrize("prob", [None, "w"])
def test_a_table_of_all_vertices_and_a_hash_table_number_candidates_alike(prob):
    """Which one serves depends on the vertices per in-edge; vertices that nobody knows must change
    nothing."""
    few = hub_graph()
    src, dst = few.csc.indices, few.csc.destinations()
    weights = torch.tensor(in_csc_order(few, "w"))
    digests = []
    for num_nodes in (few.num_nodes, 10**6):
        graph = Graph.from_coo(src, dst, num_nodes, edata={"w": weights})
        batches = [
            LayerSampler([20, 15], prob=prob).sample(graph, torch.arange(10), key)
            for key in range(10)
        ]
        batches += [
            LaborSampler([2, 3], prob, -1).sample(graph, torch.arange(10), key) for key in range(10)
        ]
        digests.append([digest(batch) for batch in batches])
    assert digests[0] == digests[1]


def test_excluded_edges_are_left_out_of_what_was_drawn():
    graph, seeds = hub_graph(), torch.arange(20)
    whole = LayerSampler([30]).sample(graph, seeds, 9).blocks[0]
    unwanted = whole.positions[::3]
    etype = graph.edge_types[0]
    block = (
        LayerSampler([30])
        .sample(graph, seeds, 9, exclude={etype: ExcludedEdges(unwanted)})
        .blocks[0]
    )
    keep = ~torch.isin(whole.positions, unwanted)
    assert torch.equal(block.positions, whole.positions[keep])
    assert torch.equal(block.weights, whole.weights[keep])


@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
def test_same_key_same_bits_whatever_the_threads(method):
    graph, pools = hub_graph(), BufferPools(3)
    sampler = LayerSampler([20, 10], method, prob="w")
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
    got = [
        digest(LayerSampler([9, 5], method, prob="w").sample(graph, seeds, 11))
        for method in ("ladies", "fastgcn")
    ]
    assert got == GOLDEN


GOLDEN = ["a10f7af55a56602d", "2472d30a7161209a"]


def test_out_edges_are_the_in_edges_of_the_reversed_graph():
    graph = hub_graph()
    for method in ("ladies", "fastgcn"):
        out = LayerSampler([9, 5], method, prob="w", edge_dir="out").sample(
            graph, torch.arange(20), 4
        )
        reverse = LayerSampler([9, 5], method, prob="w").sample(
            graph.reverse(), torch.arange(20), 4
        )
        assert digest(out) == digest(reverse)


def test_the_whole_graphs_importance_is_computed_once_and_forgotten_with_the_graph():
    graph = hub_graph()
    sampler = LayerSampler([5], "fastgcn")
    sampler.sample(graph, torch.arange(3))
    known = weakref.ref(importance_of(graph.csc, None))
    sampler.sample(graph, torch.arange(3), 1)
    assert importance_of(graph.csc, None) is known()
    del graph
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
def test_weights_that_were_written_over_count_from_then_on(method):
    graph = Graph.from_coo([0, 1], [2, 2], 3, edata={"w": torch.tensor([1.0, 0.0])})
    sampler = LayerSampler([1], method, prob="w")
    assert sampler.sample(graph, torch.tensor([2])).input_nodes.tolist() == [2, 0]
    graph.edata["w"].copy_(torch.tensor([0.0, 1.0]))
    assert sampler.sample(graph, torch.tensor([2])).input_nodes.tolist() == [2, 1]
    without = (
        LayerSampler([2], method, prob="no such field").sample(graph, torch.tensor([2])).blocks[0]
    )
    assert without.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
@pytest.mark.parametrize("low, high", [(1e-30, 1e30), (1e-280, 1e280)])
def test_weights_of_very_different_sizes(method, low, high):
    values = torch.tensor([low, high, low, high, low], dtype=torch.float64)
    graph = Graph.from_coo([0, 1, 2, 3, 4], [5, 5, 5, 6, 7], 8, edata={"w": values})
    block = LayerSampler([8], method, prob="w").sample(graph, torch.tensor([5, 6, 7])).blocks[0]
    sums = np.add.reduceat(block.weights.numpy(), block.indptr[:-1].numpy())
    assert sums.tolist() == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sizes": []}, ValueError, "sizes must have at least 1 entry, got none"),
        ({"sizes": [3, 0]}, ValueError, "sizes must be at least 1, got 0"),
        ({"sizes": [-1]}, ValueError, "sizes must be at least 1, got -1"),
        ({"sizes": [{("a", "b", "c"): -1}]}, ValueError, "sizes must be at least 0, got -1"),
        ({"sizes": [2.5]}, TypeError, "sizes must be integers, got 2.5"),
        ({"sizes": [True]}, TypeError, "sizes must be integers, got True"),
        ({"sizes": [2], "method": "saint"}, ValueError, "method must be one of .*, got 'saint'"),
        ({"sizes": [2], "prob": 3}, TypeError, "prob must be the name of an edge field, got 3"),
        ({"sizes": [2], "edge_dir": "up"}, ValueError, "edge_dir must be 'in' or 'out', got 'up'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LayerSampler(**arguments)


def test_bad_weights_and_damaged_graphs():
    graph = Graph.from_coo([0, 1], [2, 2], 3, edata={"w": torch.tensor([1.0, -1.0])})
    with pytest.raises(ValueError, match="edge field 'w' must be finite and not negative, got -1"):
        LayerSampler([1], prob="w").sample(graph, torch.tensor([2]))
    damaged = Graph(CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 99]), 2))
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 99"):
        LayerSampler([1]).sample(damaged, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"indices must be in \[0, 2\), got 99"):
        LayerSampler([1], "fastgcn").sample(damaged, torch.tensor([0, 1]))
    sparse = Graph(CSC(torch.tensor([0, 1, *[1] * 99]), torch.tensor([-5]), 100))
    with pytest.raises(FormatError, match=r"indices must be in \[0, 100\), got -5"):
        LayerSampler([1]).sample(sparse, torch.tensor([0]))
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2))
    with pytest.raises(FormatError, match="indptr must be non-decreasing"):
        LayerSampler([1]).sample(bent, torch.tensor([0, 1]))
