"""Reads by seed against a plain version, and against simulation where neighbours come together."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.ranking import presample
from pagraph.ranking.presample import count_accesses, reads_by_seed
from pagraph.ranking.vip import expected_accesses
from pagraph.sampling import LayerSampler, NeighborSampler


def plain(num_nodes, edges, seeds, fanouts, batch_size, replace):
    """The same in dictionaries; what is less likely than 1e-4 is not followed."""
    sources = {v: [u for u, w in edges if w == v] for v in range(num_nodes)}
    rate = min(batch_size, len(seeds)) / len(seeds)
    log = [0.0] * num_nodes
    for seed in seeds:
        found = {seed: [1.0]}
        for hop in range(1, len(fanouts) + 1):
            missed = {}
            for u, times in found.items():
                degree = len(sources[u])
                drawn, kept = 0.0, 1.0
                for t in range(hop - 1, -1, -1):
                    fanout = fanouts[t]
                    if not degree:
                        break
                    if fanout < 0 or (fanout >= degree and not replace):
                        kept = 0.0
                    else:
                        kept *= (1 - 1 / degree) ** fanout if replace else 1 - fanout / degree
                    drawn += (times[t] if t < len(times) else 0.0) * (1 - kept)
                if drawn >= 1e-4:
                    for v in sources[u]:
                        missed[v] = missed.get(v, 1.0) * (1 - drawn)
            for v in {**found, **missed}:
                before = sum(found.get(v, []))
                now = max(1 - missed.get(v, 1.0), before)
                times = found.setdefault(v, [])
                times += [0.0] * (hop - len(times)) + [now - before]
        for v, times in found.items():
            if v != seed:
                log[v] += math.log1p(-rate * sum(times)) if rate * sum(times) < 1 else -math.inf
    batches = 1 / rate
    own = [max(0.0, 1 - list(seeds).count(v) * rate) for v in range(num_nodes)]
    return [batches * own[v] * -math.expm1(log[v]) for v in range(num_nodes)]


graphs = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=50)
    )
)


def build(num_nodes, edges):
    src, dst = (list(side) for side in zip(*edges, strict=True)) if edges else ([], [])
    return Graph.from_coo(src, dst, num_nodes)


@settings(max_examples=examples(100))
@given(
    graph=graphs,
    fanouts=st.lists(st.sampled_from([1, 2, 5, -1]), min_size=1, max_size=3),
    batch_size=st.integers(1, 8),
    replace=st.booleans(),
    data=st.data(),
)
def test_equals_the_plain_version(graph, fanouts, batch_size, replace, data):
    num_nodes, edges = graph
    seeds = data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=10))
    sampler = NeighborSampler(fanouts[::-1], replace=replace)
    reads = reads_by_seed(build(*graph), torch.tensor(seeds), sampler, batch_size=batch_size)
    assert reads.tolist() == pytest.approx(
        plain(num_nodes, edges, seeds, fanouts, batch_size, replace), abs=1e-9
    )


def sites(num_pages=2000, size=20):
    """Pages that link within their site."""
    rng = np.random.default_rng(0)
    begins = np.repeat(np.arange(0, num_pages, size), 8 * size)
    dst = np.repeat(np.arange(num_pages), 8)
    return Graph.from_coo(begins + rng.integers(0, size, len(dst)), dst, num_pages)


def test_is_right_where_neighbours_come_together():
    graph, seeds, sampler = sites(), torch.arange(0, 2000, 20), NeighborSampler([5, 3])
    counts = count_accesses(graph, seeds, sampler, batch_size=10, seed=0, epochs=range(40))
    true = (counts.reads("_N") - counts.by_hop("_N")[:, 0]).double() / 40
    ours = reads_by_seed(graph, seeds, sampler, batch_size=10)
    assert float((ours - true).abs().sum() / true.sum()) < 0.1
    # By edges alone, several neighbours of one seed count as several chances.
    by_edge = expected_accesses(graph, seeds, sampler, batch_size=10)
    assert float(by_edge.reads("_N").sum()) - len(seeds) > 1.2 * float(true.sum())


def test_is_none_where_it_does_not_know():
    graph, seeds = sites(200), torch.arange(10)
    weighted = Graph(graph.csc)
    weighted.set_field("w", torch.rand(graph.num_edges), edge_type=weighted.edge_types[0])
    assert reads_by_seed(weighted, seeds, NeighborSampler([2], prob="w"), batch_size=2) is None
    assert reads_by_seed(graph, seeds, LayerSampler([20]), batch_size=2) is None
    assert reads_by_seed(graph, seeds[:0], NeighborSampler([2]), batch_size=2) is None
    assert reads_by_seed(graph, {"_N": seeds}, NeighborSampler([2]), batch_size=2) is None
    typed = Graph(
        {("a", "to", "b"): CSC(torch.tensor([0, 1]), torch.tensor([0]), 1)}, {"a": 1, "b": 1}
    )
    assert reads_by_seed(typed, torch.tensor([0]), NeighborSampler([2]), batch_size=1) is None


@pytest.mark.parametrize(("limit", "value"), [("_MOST_EDGES", 1000), ("_ROOM", 5)])
def test_is_none_where_it_would_take_too_long(monkeypatch, limit, value):
    graph, seeds = sites(), torch.arange(0, 2000, 20)
    assert reads_by_seed(graph, seeds, NeighborSampler([5, 3]), batch_size=10) is not None
    monkeypatch.setattr(presample, limit, value)
    assert reads_by_seed(graph, seeds, NeighborSampler([5, 3]), batch_size=10) is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_seeds_of_both_dtypes_and_several_times(dtype):
    graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 0])
    once = reads_by_seed(
        graph, torch.tensor([1, 2], dtype=dtype), NeighborSampler([1]), batch_size=1
    )
    assert once.tolist() == pytest.approx([1.0, 0.5, 0, 0])
    assert (
        reads_by_seed(graph, torch.tensor([1, 1], dtype=dtype), NeighborSampler([1]), batch_size=1)
        is not None
    )
