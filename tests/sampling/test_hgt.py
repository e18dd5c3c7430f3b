"""HGSampling against a plain reference, the probabilities of its draws, and what it refuses."""

import hashlib
import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_sampler import MASK, A, pick
from plain_subgraph import all_among, edge_id
from plain_weighted import unit
from scipy import stats
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.sampling import HGTSampler
from pagraph.sampling.kernels.hgt import take_shares
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools

pytestmark = pytest.mark.kernels


ETYPES = [("a", "x", "b"), ("a", "y", "b"), ("b", "x", "b"), ("b", "z", "a"), ("b", "to", "c")]


def plain_hgt(graph, seeds, sizes, key):
    """Vertices by type, and how many of them there are after each hop (Hu et al., Algorithm 2)."""
    known = {t: list(seeds.get(t, [])) for t in graph.node_types}
    budget = {t: {} for t in graph.node_types}  # in the order of discovery
    fresh, ends = (
        {t: list(ids) for t, ids in known.items()},
        {t: [len(ids)] for t, ids in known.items()},
    )
    for hop, size in enumerate(sizes):
        for number, (s, _, d) in enumerate(graph.edge_types):
            csc = graph.csc_of(graph.edge_types[number])
            hop_key = derive_key(key, hop, number) if number else derive_key(key, hop)
            for v in fresh[d]:
                start, end = int(csc.indptr[v]), int(csc.indptr[v + 1])
                row = [int(csc.indices[p]) for p in pick(v, start, end - start, 50, False, hop_key)]
                for u in row:
                    if u not in known[s]:
                        budget[s][u] = budget[s].get(u, 0.0) + 1.0 / len(row)
        for number, t in enumerate(graph.node_types):
            count = size[t] if isinstance(size, dict) else size
            take_key = derive_key(key, hop, len(graph.edge_types) + number)
            keys = {
                u: -math.log(unit((take_key + u * A) & MASK, 0)) / share**2
                for u, share in budget[t].items()
            }
            taken = set(sorted(keys, key=keys.get)[:count])
            fresh[t] = [u for u in budget[t] if u in taken]
            budget[t] = {u: share for u, share in budget[t].items() if u not in taken}
            known[t] += fresh[t]
            ends[t].append(len(known[t]))
    return known, ends


@st.composite
def typed_graphs(draw):
    counts = {t: draw(st.integers(0, 9)) for t in "abc"}
    graph = {}
    for s, r, d in ETYPES:
        # 200: rows of more than 50.
        most = draw(st.sampled_from([0, 30, 200])) if counts[s] and counts[d] else 0
        ends = st.tuples(
            st.integers(0, max(counts[s] - 1, 0)), st.integers(0, max(counts[d] // 3, 0))
        )
        edges = np.array(
            draw(st.lists(ends, min_size=most // 2, max_size=most)), dtype=np.int64
        ).reshape(-1, 2)
        graph[s, r, d] = CSC.from_coo(*edges.T, (counts[s], counts[d]))
    return Graph(graph, counts)


SIZES = st.one_of(
    st.integers(0, 4), st.fixed_dictionaries({t: st.sampled_from([0, 1, 2, 50]) for t in "abc"})
)


@settings(max_examples=examples(50))
@given(
    graph=typed_graphs(),
    sizes=st.lists(SIZES, max_size=3),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_equals_the_plain_reference(graph, sizes, key, data):
    seeds = {}
    for t in data.draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1)):
        n = graph.num_nodes_of(t)
        seeds[t] = data.draw(st.lists(st.integers(0, n - 1), max_size=4, unique=True)) if n else []
    batch = HGTSampler(sizes).sample(
        graph, {t: torch.tensor(i, dtype=torch.int64) for t, i in seeds.items()}, key
    )
    known, ends = plain_hgt(graph, seeds, sizes, key)
    assert {
        t: ids.tolist() for t, ids in batch.input_nodes.items()
    } == known and batch.hop_ends == ends
    place = {t: {(0, v): i for i, v in enumerate(ids)} for t, ids in known.items()}
    edges = all_among(graph, {t: [(0, v) for v in ids] for t, ids in known.items()}, place, None)
    for etype, found in batch.edges.items():
        expected = [(s, d, edge_id(graph.csc_of(etype), p)) for s, d, p in edges[etype]]
        assert (
            list(zip(*found.edge_index.tolist(), found.edge_ids.tolist(), strict=True)) == expected
        )
        assert found.hop_ends == [0]


@settings(max_examples=examples(30))
@given(graph=typed_graphs(), most=st.integers(1, 60), key=st.integers(0, 2**64 - 1))
def test_of_many_edges_some_are_looked_at(graph, most, key):
    seeds = {t: torch.arange(min(2, graph.num_nodes_of(t))) for t in "ab"}
    all_edges, batch = (
        HGTSampler([3], most_edges=of).sample(graph, seeds, key) for of in (None, most)
    )
    for index, etype in enumerate(graph.edge_types):
        sources, targets = (batch.input_nodes[etype[place]].tolist() for place in (0, 2))
        assert sources == all_edges.input_nodes[etype[0]].tolist()
        csc, expected = graph.csc_of(etype), []
        hop_key = derive_key(key, 1, index) if index else derive_key(key, 1)
        for local, v in enumerate(targets):
            start, end = int(csc.indptr[v]), int(csc.indptr[v + 1])
            for p in pick(v, start, end - start, most, False, hop_key):
                if int(csc.indices[p]) in sources:
                    expected.append((sources.index(int(csc.indices[p])), local, edge_id(csc, p)))
        found = batch.edges[etype]
        assert (
            list(zip(*found.edge_index.tolist(), found.edge_ids.tolist(), strict=True)) == expected
        )


def test_of_a_hub_very_many_edges_are_looked_at():
    graph = Graph.from_coo(np.arange(1, 1001), np.zeros(1000, dtype=int), 1001)
    sampler = HGTSampler([50], most_edges=300)
    assert sampler.shape(graph).set_size > 300  # a full set would be searched forever
    batch = sampler.sample(graph, torch.tensor([0]), 7)
    known = batch.input_nodes["_N"].tolist()
    picked = [p + 1 for p in pick(0, 0, 1000, 300, False, derive_key(7, 1))]
    (edges,) = batch.edges.values()
    assert edges.edge_index[0].tolist() == [known.index(v) for v in picked if v in known]


def random_typed_graph(seed):
    """Hubs, rows of more than 50 and of none; budgets of many times what a hop draws."""
    draws, counts, graph = np.random.default_rng(seed), {"a": 900, "b": 2000, "c": 40}, {}
    for s, r, d in ETYPES:
        ends = (
            (counts[end] * draws.random(12_000) ** power).astype(np.int64)
            for end, power in ((s, 1.5), (d, 2.5))
        )
        graph[s, r, d] = CSC.from_coo(*ends, (counts[s], counts[d]))
    return Graph(graph, counts)


def digest(batch):
    """A hash of everything that a batch holds."""
    found = hashlib.sha256(repr(batch.hop_ends).encode())
    for ids in batch.input_nodes.values():
        found.update(ids.numpy().tobytes())
    for edges in batch.edges.values():
        found.update(edges.edge_index.numpy().tobytes() + edges.edge_ids.numpy().tobytes())
    return found.hexdigest()[:16]


GOLDEN = [
    "a59876397374195e",
    "e2a7dd05168c2e83",
    "86c0c2a7570206c4",
    "6358ad0993013558",
    "36989c4c48417fe0",
    "3fcc65fa578dad62",
]


@pytest.mark.parametrize("number", range(6))
def test_bits_stay_from_release_to_release(number):
    graph = random_typed_graph(number)
    most_edges = None if number % 2 else 5 + 45 * (number // 2)
    sampler = HGTSampler([{"a": 30, "b": 60, "c": 2}, 25, 0, 70], most_edges=most_edges)
    seeds = {"b": torch.arange(number, 2000, 17), "a": torch.tensor([3, 1, 3])}
    assert digest(sampler.sample(graph, seeds, derive_key(7, number))) == GOLDEN[number]


def stars():
    """Vertices 0, 1 and 2 with 1, 2 and 4 in-neighbours, some shared: shares between 1/4 and
    7/4."""
    return Graph.from_coo([3, 3, 4, 3, 4, 5, 6, 5], [0, 1, 1, 2, 2, 2, 2, 7], 8)


@pytest.mark.statistics
def test_draws_are_in_proportion_to_the_squares_of_the_shares():
    shares = np.array([1 + 1 / 2 + 1 / 4, 1 / 2 + 1 / 4, 1 / 4, 1 / 4])  # of vertices 3, 4, 5 and 6
    rounds, counts = 2000, np.zeros(4)
    for key in range(rounds):
        batch = HGTSampler([1]).sample(stars(), torch.tensor([0, 1, 2]), derive_key(11, key))
        counts[int(batch.input_nodes["_N"][3]) - 3] += 1
    expected = rounds * shares**2 / (shares**2).sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.statistics
def test_without_replacement_in_proportion_to_what_is_left():
    shares = np.array([7, 3, 1, 1]) ** 2 / 60
    pairs = {}
    for i in range(4):
        for j in range(4):
            if i != j:
                chance = shares[i] * shares[j] / (1 - shares[i])
                pairs[frozenset((i, j))] = pairs.get(frozenset((i, j)), 0.0) + chance
    rounds, counts = 2000, dict.fromkeys(pairs, 0)
    for key in range(rounds):
        batch = HGTSampler([2]).sample(stars(), torch.tensor([0, 1, 2]), derive_key(12, key))
        counts[frozenset((batch.input_nodes["_N"][3:] - 3).tolist())] += 1
    chances = np.array(list(pairs.values()))
    assert stats.chisquare(list(counts.values()), rounds * chances / chances.sum()).pvalue > 1e-4


def test_a_hub_gives_shares_to_fifty_neighbours_and_keeps_all_edges():
    graph = Graph.from_coo(np.arange(1, 201), np.zeros(200, dtype=int), 201)
    counts = np.zeros(200)
    for key in range(400):
        batch = HGTSampler([1000]).sample(graph, torch.tensor([0]), derive_key(3, key))
        assert batch.hop_ends["_N"] == [1, 51] and batch.num_edges == 50
        counts[batch.input_nodes["_N"][1:].numpy() - 1] += 1
    expected = 400 * 50 / 200
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum() * 199 / 150, 199) > 1e-4


def test_same_key_same_bits_whatever_the_threads():
    draws = np.random.default_rng(0)
    graph = Graph.from_coo(draws.integers(0, 300, 4000), draws.integers(0, 300, 4000), 300)
    sampler, pools, results = HGTSampler([20, 30]), BufferPools(3), {}

    def content(i, **more):
        batch = sampler.sample(graph, torch.arange(i, i + 10), i, **more)
        (edges,) = batch.edges.values()
        return batch.input_nodes["_N"].tolist(), edges.edge_index.tolist(), edges.edge_ids.tolist()

    alone = [content(i) for i in range(12)]

    def run(part):
        for i in range(part, 12, 4):
            results[i] = content(i, pools=pools)

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(12)] == alone and alone[0] != alone[1]


def test_repeated_seeds_keep_their_places():
    graph = Graph.from_coo([1, 2, 0], [0, 0, 1], 3)
    batch = HGTSampler([5]).sample(graph, torch.tensor([0, 1, 0]))
    assert batch.input_nodes["_N"].tolist() == [0, 1, 0, 2]
    (edges,) = batch.edges.values()
    # Both copies have their in-edges.
    assert edges.edge_index.tolist() == [[1, 3, 0, 1, 3], [0, 0, 1, 2, 2]]


@given(
    count=st.integers(0, 400),
    size=st.integers(0, 60),
    seed=st.integers(0, 99),
    key=st.integers(0, MASK),
)
def test_the_smallest_keys_of_many_are_drawn(count, size, seed, key):
    """Most keys are never computed, as a bound of them is above those that are drawn."""
    rng = np.random.default_rng(seed)
    seen = rng.permutation(1000)[:count].astype(np.int64)
    shares = rng.choice([-1.0, 0.0, 0.1, 1.0, 1.001], count)
    keys = {
        place: -math.log(unit((key + int(seen[place]) * A) & MASK, 0)) / shares[place] ** 2
        for place in np.flatnonzero(shares > 0)
    }
    expected = sorted(sorted(keys, key=keys.get)[:size])
    drawn = np.full(count + 1, -1, dtype=np.int64)
    scratch = np.empty(count), np.empty(count, dtype=np.int64), np.empty(count)
    total = take_shares(seen, shares.copy(), size, np.uint64(key), *scratch, drawn, 0)
    assert drawn[:total].tolist() == seen[expected].tolist()


def test_a_key_just_below_the_bound_is_drawn():
    """The estimate that saves most logarithms is nearest to the key where u is almost 1."""
    uniform = [unit(v * A & MASK, 0) for v in range(1000)]
    last = max(range(1000), key=uniform.__getitem__)
    assert 1 - uniform[last] < 2e-3
    seen = np.array([1, 2, last])
    wanted = np.array([1.0, 2.0, 1.0 - 1e-4])  # the first two make 1.0 the bound
    shares = np.array(
        [math.sqrt(-math.log(uniform[v]) / key) for v, key in zip(seen, wanted, strict=True)]
    )
    drawn = np.full(3, -1)
    scratch = np.empty(3), np.empty(3, dtype=np.int64), np.empty(3)
    assert take_shares(seen, shares, 1, np.uint64(0), *scratch, drawn, 0) == 1
    assert drawn[0] == last


@pytest.mark.parametrize("size", range(6))
def test_as_many_are_drawn_where_keys_are_equal(size):
    """Keys are hashes, which may collide: here those of one vertex that was seen several times."""
    seen = np.array([5, 5, 8, 5, 5], dtype=np.int32)
    drawn = np.full(8, -1, dtype=np.int32)
    scratch = np.empty(5), np.empty(5, dtype=np.int64), np.empty(5)
    shares = np.ones(5)
    assert take_shares(seen, shares, size, np.uint64(3), *scratch, drawn, 1) == 1 + size
    taken = np.flatnonzero(shares < 0)
    assert drawn[1 : 1 + size].tolist() == seen[taken].tolist()
    assert len(taken) == size


def test_ids_at_the_int32_border():
    top = 2**31 - 2
    csc = CSC(torch.tensor([0, 3]), torch.tensor([top, top - 1, top]), 2**31 - 1)
    batch = HGTSampler([3]).sample(Graph({("far", "to", "near"): csc}), {"near": torch.tensor([0])})
    assert batch.input_nodes["far"].tolist() == [top, top - 1]
    assert batch.edges["far", "to", "near"].edge_index.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_damaged_arrays_are_an_error():
    graph = Graph(CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 9]), 2))
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 9"):
        HGTSampler([2]).sample(graph, torch.tensor([1]))
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2), 2)
    for size in (2, 0):  # with 0, the row is first read for the edges among the vertices
        with pytest.raises(FormatError, match="indptr must be non-decreasing, .* vertex 0"):
            HGTSampler([size]).sample(bent, torch.tensor([0]))


def test_a_damaged_edge_of_one_of_several_types_is_an_error():
    good = CSC(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2)
    far = CSC(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 3)
    graph = Graph({("a", "to", "a"): good, ("b", "of", "a"): far}, {"a": 2, "b": 3})
    with pytest.raises(FormatError, match=r"indices must be in \[0, 3\), got 3"):
        HGTSampler([2]).sample(graph, {"a": torch.tensor([0, 1])})


def test_bad_arguments():
    with pytest.raises(TypeError, match="sizes must be an integer, got 1.5"):
        HGTSampler([1.5])
    with pytest.raises(ValueError, match="sizes must be at least 0, got -1"):
        HGTSampler([{"a": -1}])
    graph = Graph({("a", "x", "b"): CSC.from_coo([0], [0], (1, 1))})
    with pytest.raises(KeyError, match="sizes must name every vertex type, got .* without 'b'"):
        HGTSampler([{"a": 1}]).sample(graph, {"b": torch.tensor([0])})
