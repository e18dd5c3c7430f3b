"""The sampler against its plain reference, its invariants, its statistics, and what it refuses."""

import hashlib
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_sampler import sample as plain_sample
from scipy import stats
from tiers import examples

from pagraph import CSC, FormatError, Graph, NeighborSampler
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools


@st.composite
def graphs(draw, max_nodes=30, max_edges=200):
    """Random graphs with self-loops, parallel edges, isolated vertices, sometimes no edge at
    all."""
    n = draw(st.integers(1, max_nodes))
    edges = draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=max_edges)
    )
    src, dst = [e[0] for e in edges], [e[1] for e in edges]
    return Graph.from_coo(src, dst, n)


def random_graph(n=200, m=3000, seed=0):
    rng = np.random.default_rng(seed)
    return Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)


def arrays(batch):
    for block in batch.blocks:
        yield from (block.indptr, block.indices, block.positions, block.src_nodes)


def digest(batch):
    h = hashlib.sha256()
    for tensor in [batch.output_nodes, *arrays(batch)]:
        h.update(tensor.long().numpy().tobytes())
    return h.hexdigest()[:16]


@settings(max_examples=examples(120), deadline=None)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 3, 7, 70]), min_size=1, max_size=3),
    replace=st.booleans(),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    data=st.data(),
)
def test_equals_the_plain_reference(graph, fanouts, replace, key, dtype, data):
    # Repeated ones too.
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=12))
    batch = NeighborSampler(fanouts, replace=replace).sample(
        graph, torch.tensor(seeds, dtype=dtype), key
    )
    csc = graph.csc
    hop_keys = [derive_key(key, hop) for hop in range(len(fanouts))]
    expected = plain_sample(
        csc.indptr.tolist(), csc.indices.tolist(), seeds, fanouts, hop_keys, replace
    )
    assert batch.output_nodes.tolist() == seeds
    for block, (indptr, indices, positions, nodes) in zip(
        batch.blocks[::-1], expected, strict=True
    ):
        assert block.indptr.tolist() == indptr
        assert block.indices.tolist() == indices
        assert block.positions.tolist() == positions
        assert block.src_nodes.tolist() == nodes
        assert block.indptr.dtype == block.indices.dtype == block.src_nodes.dtype == dtype


@pytest.mark.parametrize("fanout", [64, 65, 200])
def test_many_draws_pick_what_the_scan_would(fanout):
    n = 1000
    graph = Graph.from_coo(np.arange(n).repeat(2)[: n + n // 2], [0] * n + [1] * (n // 2), n)
    batch = NeighborSampler([fanout]).sample(graph, torch.tensor([0, 1, 2]), 7)
    csc = graph.csc
    expected = plain_sample(
        csc.indptr.tolist(), csc.indices.tolist(), [0, 1, 2], [fanout], [derive_key(7, 0)]
    )
    assert batch.blocks[0].positions.tolist() == expected[0][2]
    assert batch.blocks[0].indptr.tolist() == [0, fanout, 2 * fanout, 2 * fanout]


@settings(max_examples=examples(60), deadline=None)
@given(
    graph=graphs(max_nodes=15),
    fanout=st.sampled_from([-1, 1, 3]),
    replace=st.booleans(),
    data=st.data(),
)
def test_every_sampled_edge_is_an_edge_of_the_graph(graph, fanout, replace, data):
    seeds = torch.tensor(
        data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, unique=True))
    )
    batch = NeighborSampler([fanout, fanout], replace=replace).sample(graph, seeds, 3)
    degree = graph.in_degrees()
    destinations = graph.csc.destinations()
    assert batch.input_nodes is batch.blocks[0].src_nodes
    assert torch.equal(batch.blocks[0].dst_nodes, batch.blocks[1].src_nodes)
    assert torch.equal(batch.blocks[1].dst_nodes, seeds)
    for block in batch.blocks:
        assert len(set(block.src_nodes.tolist())) == block.num_src
        counts = block.indptr.diff()
        dst = torch.repeat_interleave(block.dst_nodes, counts)
        assert torch.equal(
            block.src_nodes[block.indices], graph.csc.indices[block.positions.long()].long()
        )
        assert torch.equal(dst, destinations[block.positions.long()].long())
        known = degree[block.dst_nodes]
        expected = (
            known
            if fanout == -1
            else known.clamp(max=fanout)
            if not replace
            else (known > 0) * fanout
        )
        assert torch.equal(counts, expected)
        if not replace:
            assert len(set(block.positions.tolist())) == block.num_edges


@pytest.mark.every
@pytest.mark.parametrize(
    ("degree", "fanout"), [(2, 1), (5, 2), (11, 10), (40, 7), (100, 70), (300, 3)]
)
@pytest.mark.parametrize("replace", [False, True])
def test_every_neighbour_is_included_equally_often(degree, fanout, replace):
    graph = Graph.from_coo(np.arange(degree) + 1, np.zeros(degree, dtype=int), degree + 1)
    sampler = NeighborSampler([fanout], replace=replace)
    seeds, rounds = torch.tensor([0]), 3000
    counts = np.zeros(degree)
    for key in range(rounds):
        positions = sampler.sample(graph, seeds, derive_key(1234, key)).blocks[0].positions.numpy()
        np.add.at(counts, positions, 1)
    assert counts.sum() == rounds * fanout
    expected = rounds * fanout / degree
    statistic = ((counts - expected) ** 2 / expected).sum()
    if not replace:
        # Draws of one round exclude each other: the counts' variance is smaller by this factor
        # (hypergeometric).
        statistic *= (degree - 1) / (degree - fanout)
    assert 1e-4 < stats.chi2.sf(statistic, degree - 1) < 1 - 1e-4


@pytest.mark.statistics
def test_pairs_of_neighbours_are_drawn_equally_often():
    """Marginal frequencies can be right and the joint ones wrong (torch-sparse's bug showed in
    both)."""
    degree, rounds = 5, 6000
    graph = Graph.from_coo(np.arange(degree) + 1, np.zeros(degree, dtype=int), degree + 1)
    pairs = {}
    for key in range(rounds):
        batch = NeighborSampler([2]).sample(graph, torch.tensor([0]), derive_key(99, key))
        pair = tuple(sorted(batch.blocks[0].positions.tolist()))
        pairs[pair] = pairs.get(pair, 0) + 1
    assert len(pairs) == 10
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-4


def test_vertices_draw_independently():
    """Two vertices with the same key and the same degree must not draw the same places."""
    n = 400
    src = np.arange(10).repeat(n)
    dst = np.tile(np.arange(10, 10 + n), 10)
    graph = Graph.from_coo(src, dst, n + 10)
    batch = NeighborSampler([1]).sample(graph, torch.arange(10, 10 + n), 5)
    first = batch.blocks[0].src_nodes[batch.blocks[0].indices]
    assert stats.chisquare(torch.bincount(first, minlength=10)[:10].numpy()).pvalue > 1e-4


def test_same_key_same_bits_whatever_the_threads():
    graph = random_graph()
    sampler = NeighborSampler([4, 3, 2])
    alone = [digest(sampler.sample(graph, torch.arange(i, i + 20), i)) for i in range(60)]
    results = {}
    pools = BufferPools(3)

    def run(part):
        for i in range(part, 60, 4):
            results[i] = digest(sampler.sample(graph, torch.arange(i, i + 20), i, pools=pools))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(60)] == alone
    assert len(set(alone)) == 60


def test_bits_stay_the_same_over_versions():
    """A change here changes everybody's batches: resumed runs and published results with them."""
    graph = random_graph(n=50, m=600, seed=1)
    without = NeighborSampler([3, 70, 2]).sample(graph, torch.arange(5), 11)
    with_replacement = NeighborSampler([3, 2], replace=True).sample(graph, torch.arange(5), 11)
    assert (digest(without), digest(with_replacement)) == GOLDEN


GOLDEN = ("a6304fef55013718", "e9b43e8273fb77e1")


def test_memory_is_recycled_but_never_under_a_held_tensor():
    graph = random_graph()
    sampler, pools = NeighborSampler([5, 5]), BufferPools(2)
    held = [sampler.sample(graph, torch.arange(i, i + 10), i, pools=pools) for i in range(6)]
    copies = [[t.clone() for t in arrays(batch)] for batch in held]
    view = held[0].blocks[0].indices[3:9]
    view_copy = view.clone()
    del held[0]
    for i in range(50):
        sampler.sample(graph, torch.arange(i, i + 10), 1000 + i, pools=pools)
    assert torch.equal(view, view_copy)
    for batch, copy in zip(held, copies[1:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(arrays(batch), copy, strict=True))
    pointers = set()
    for i in range(10):
        pointers.add(
            sampler.sample(graph, torch.arange(10), i, pools=pools).blocks[0].indptr.data_ptr()
        )
    assert len(pointers) < 10  # memory that nobody holds comes back


def test_out_edges_are_the_in_edges_of_the_reversed_graph():
    graph = random_graph()
    out = NeighborSampler([3, 2], edge_dir="out").sample(graph, torch.arange(20), 4)
    reverse = NeighborSampler([3, 2]).sample(graph.reverse(), torch.arange(20), 4)
    assert digest(out) == digest(reverse)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_at_the_int32_border(dtype):
    top = 2**31 - 2
    csc = CSC(
        torch.tensor([0, 3], dtype=dtype), torch.tensor([top, top - 1, top], dtype=dtype), 2**31 - 1
    )
    nodes, indices = one_hop(csc, [0])
    assert nodes == [top, top - 1] and indices == [0, 1, 0]


def test_ids_that_differ_above_bit_32_only():
    ids = [5, 5 + 2**32, 5 + 2**33, 5]
    csc = CSC(torch.tensor([0, 4]), torch.tensor(ids), 2**40)
    nodes, indices = one_hop(csc, [0])
    assert nodes == [5, 5 + 2**32, 5 + 2**33] and indices == [0, 1, 2, 0]


def one_hop(csc, seeds):
    """Sources and local ids of all in-edges, of a bipartite graph: it need not have as many
    vertices on both sides."""
    graph = Graph({("far", "to", "near"): csc})
    block = NeighborSampler([-1]).sample(graph, {"near": torch.tensor(seeds)}).blocks[0]
    return block.src_nodes["far"].tolist(), block.relations["far", "to", "near"].indices.tolist()


def test_the_hash_table_grows_in_the_middle_of_a_hop():
    n = 50_000
    graph = Graph.from_coo(np.arange(n), np.zeros(n, dtype=int), n)
    batch = NeighborSampler([-1]).sample(graph, torch.tensor([0]))
    assert sorted(batch.input_nodes.tolist()) == list(range(n))
    # And a small graph afterwards.
    small = NeighborSampler([2]).sample(random_graph(), torch.arange(5))
    assert len(set(small.input_nodes.tolist())) == len(small.input_nodes)


def test_empty_seeds_and_empty_graphs():
    batch = NeighborSampler([2, -1]).sample(random_graph(), torch.empty(0, dtype=torch.int64))
    assert [block.num_src for block in batch.blocks] == [0, 0] and len(batch.input_nodes) == 0
    lonely = NeighborSampler([2, -1]).sample(Graph.from_coo([], [], 3), torch.tensor([2, 0]))
    assert lonely.input_nodes.tolist() == [2, 0] and lonely.blocks[0].num_edges == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fanouts": []}, ValueError, "fanouts must have at least 1 entry"),
        ({"fanouts": [3, 0]}, ValueError, "fanouts must be positive or -1 .*, got 0"),
        ({"fanouts": [-2]}, ValueError, "got -2"),
        ({"fanouts": [2.5]}, TypeError, "fanouts must be integers, got 2.5"),
        ({"fanouts": [True]}, TypeError, "got True"),
        (
            {"fanouts": [2], "edge_dir": "up"},
            ValueError,
            "edge_dir must be 'in' or 'out', got 'up'",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        NeighborSampler(**arguments)


@pytest.mark.parametrize("seed", [-1, 200, 2**31, -(2**40)])
def test_seeds_outside_the_graph(seed):
    with pytest.raises(IndexError, match=rf"seeds must be in \[0, 200\), got {seed}"):
        NeighborSampler([2]).sample(random_graph(), torch.tensor([0, seed]))


def test_damaged_arrays_are_an_error_and_never_read_outside():
    indptr, indices = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 99])
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 99"):
        NeighborSampler([-1]).sample(Graph(CSC(indptr, indices, 2)), torch.tensor([0, 1]))
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2))
    with pytest.raises(FormatError, match="indptr must be non-decreasing, it is not at vertex"):
        NeighborSampler([-1]).sample(bent, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="non-decreasing"):
        bent.csc.validate()
