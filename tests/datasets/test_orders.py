"""Orders of vertices and the pages that they save, against plain references."""

import mmap

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples
from tiny_graphs import HETEROGENEOUS, HOMOGENEOUS, random_graph

from pagraph import NeighborSampler
from pagraph.datasets import rmat, sbm
from pagraph.datasets.moved_graph import new_indptr
from pagraph.datasets.reordering import expected_known, sample_rows, vertex_places
from pagraph.options.names import ORDERS
from pagraph.ranking.vip import expected_accesses, seed_chances
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.sampling.negative import UniformNegatives


def starts_of(graph):
    ends = np.cumsum([0, *graph.num_nodes_by_type.values()])
    return dict(zip(graph.node_types, ends[:-1].tolist(), strict=True))


def edges_of(graph, etype):
    """Source, destination and degree of the destination of each edge, in one numbering of all
    vertices."""
    csc, starts = graph.csc_of(etype), starts_of(graph)
    degrees = csc.indptr.diff().tolist()
    for src, dst in zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True):
        yield starts[etype[0]] + src, starts[etype[2]] + dst, degrees[dst]


def share(fanout, degree):
    return 1.0 if fanout < 0 or fanout >= degree else fanout / degree


def plain_known(graph, first, fanouts):
    """Chances to be known before each hop, edges being drawn independently."""
    known = [first]
    for fanout in reversed(fanouts):
        missed = [1 - chance for chance in known[-1]]
        for etype in graph.edge_types:
            for src, dst, degree in edges_of(graph, etype):
                missed[src] *= 1 - min(known[-1][dst], 1 - 2.0**-24) * share(fanout, degree)
        known.append([1 - chance for chance in missed])
    return known


def plain_readers(graph, known, fanouts):
    """The vertex that is expected to draw each vertex by one edge most often, the first of
    equals."""
    total = len(known[0])
    best, reader = [0.0] * total, list(range(total))
    for etype in graph.edge_types:
        for src, dst, degree in edges_of(graph, etype):
            draws = sum(
                float(known[hop][dst]) * share(f, degree) for hop, f in enumerate(reversed(fanouts))
            )
            if src != dst and np.float32(draws) > best[src]:
                best[src], reader[src] = np.float32(draws), dst
    return reader


def known_of(graph, seeds, sampler, batch_size):
    starts = starts_of(graph)
    ranges = {t: (begin, begin + graph.num_nodes_of(t)) for t, begin in starts.items()}
    return expected_known(graph, ranges, seeds=seeds, sampler=sampler, batch_size=batch_size)


graphs = {
    "types": st.sampled_from([HOMOGENEOUS, HETEROGENEOUS]),
    "seed": st.integers(0, 1000),
    "num_edges": st.sampled_from([0, 1, 8, 20, 60]),
    "fanouts": st.sampled_from([(2, 1), (-1,), (3, 2, 2)]),
}


@settings(max_examples=examples(50), deadline=None)
@given(**graphs)
def test_expected_reads_as_the_plain_recursion(types, seed, num_edges, fanouts):
    graph = random_graph(types, seed, num_edges)
    seeds = {graph.node_types[0]: torch.arange(0, 6, 2)}
    known = known_of(graph, seeds, NeighborSampler(list(fanouts)), 2)
    chances = seed_chances(graph, seeds, NeighborSampler(list(fanouts)), 2)
    first = torch.cat(
        [chances.get(t, torch.zeros(n)).double() for t, n in graph.num_nodes_by_type.items()]
    )
    assert known == pytest.approx(np.array(plain_known(graph, first.tolist(), fanouts)), abs=1e-5)


@settings(max_examples=examples(50), deadline=None)
@given(by=st.sampled_from(ORDERS), **graphs)
@example(by="community", types=HOMOGENEOUS, seed=777, num_edges=20, fanouts=(2, 1))
def test_orders_as_plain_sorts(types, seed, num_edges, fanouts, by):
    """From the same chances: sorts by key, groups of one reader, and classes."""
    graph, sampler = random_graph(types, seed, num_edges), NeighborSampler(list(fanouts))
    seeds = {t: torch.arange(0, n, 2) for t, n in graph.num_nodes_by_type.items()}
    known = known_of(graph, seeds, sampler, 3)
    reads = known[-1].astype(np.float64)
    total = len(reads)
    keys = [
        min(65535, int(np.float32(-64) * np.log2(np.float32(c)))) if c > 0 else 65535
        for c in known[-1]
    ]
    order = list(range(total))
    if by != "community":
        order.sort(key=lambda v: keys[v])
    if by != "reads":
        reader = plain_readers(graph, known[:-1], fanouts)
        for _ in range(4):
            place = {v: i for i, v in enumerate(order)}
            order.sort(key=lambda v: place[reader[v]])
    if by == "both":
        order.sort(key=lambda v: plain_class(keys[v]))
    places = vertex_places(graph, by, seeds=seeds, sampler=sampler, batch_size=3)
    for ntype, begin in starts_of(graph).items():
        end = begin + graph.num_nodes_of(ntype)
        own = [v - begin for v in order if begin <= v < end]
        assert np.argsort(places[ntype]).tolist() == own


def plain_class(key):
    """The class of a key: powers of two of the chance to be in one of eight batches."""
    if key == 65535:
        return key
    window = -np.expm1(8 * np.log1p(-min(2.0 ** (-key / 64), float(np.float32(1 - 2.0**-24)))))
    return int(-np.log2(max(window, 2.0**-500)))


def test_expected_reads_are_near_those_of_the_policies():
    """They differ by what vertices owe to edges back, of which a directed graph has few."""
    graph, sampler = rmat(12, seed=1), NeighborSampler([10, 5])
    seeds = torch.arange(0, graph.num_nodes, 10)
    wanted = expected_accesses(graph, seeds, sampler, batch_size=50).reads("_N").numpy()
    got = known_of(graph, seeds, sampler, 50)[-1] * len(seeds) / 50
    assert abs(got.sum() / wanted.sum() - 1) < 0.1
    top = len(wanted) // 10
    assert len({*np.argsort(-wanted)[:top]} & {*np.argsort(-got)[:top]}) > 0.9 * top


def test_orders_of_links():
    graph = sbm(500, seed=1)
    sampler = EdgeBatches(NeighborSampler([3]), graph, UniformNegatives(1))
    seeds = torch.arange(0, graph.num_edges, 7)
    place = vertex_places(graph, "both", seeds=seeds, sampler=sampler, batch_size=20)["_N"]
    assert np.sort(place).tolist() == list(range(500))


class TestPages:
    @pytest.mark.every
    @pytest.mark.parametrize(
        "types", [HOMOGENEOUS, HETEROGENEOUS], ids=["homogeneous", "heterogeneous"]
    )
    @pytest.mark.parametrize("width", [4, 3000, 9000])
    def test_plain_count(self, types, width):
        graph, rng = random_graph(types, 2, 40), np.random.default_rng(0)
        seeds, sampler = {graph.node_types[0]: torch.arange(6)}, NeighborSampler([2, 2])
        places = {
            t: rng.permutation(n).astype(np.int32) for t, n in graph.num_nodes_by_type.items()
        }
        read = sample_rows(graph, seeds, sampler, batch_size=2)
        got = read.features(dict.fromkeys(graph.node_types, width), places)
        pages, needed = [], 0
        for vertices, _ in read.batches:
            bytes_ = {
                (t, p * width + b)
                for t, ids in vertices.items()
                for p in places[t][ids]
                for b in range(width)
            }
            pages.append(len({(t, place // mmap.PAGESIZE) for t, place in bytes_}))
            needed += len(bytes_)
        assert got.pages == np.mean(pages)
        assert got.batch_ratio == pytest.approx(sum(pages) * mmap.PAGESIZE / needed)

    def test_edges_at_new_places(self):
        """Pages of the topology as if the moved graph itself had drawn those edges."""
        graph, rng = rmat(12, seed=1), np.random.default_rng(0)
        place = {"_N": rng.permutation(graph.num_nodes)}
        offsets = {t: new_indptr(graph, t, place["_N"]) for t in graph.edge_types}
        read = sample_rows(graph, torch.arange(0, 4096, 5), NeighborSampler([4, 3]), batch_size=100)
        moved = read.topology(place, offsets)
        indptr, pages = graph.csc.indptr.numpy(), []
        for _, edges in read.batches:
            positions, drew = edges[graph.edge_types[0]]
            rows = place["_N"][drew]
            new = offsets[graph.edge_types[0]][rows] + positions - indptr[drew]
            touched = {("indices", p * 4 // mmap.PAGESIZE) for p in new.tolist()}
            touched |= {
                ("indptr", r * 4 // mmap.PAGESIZE) for r in [*rows.tolist(), *(rows + 1).tolist()]
            }
            pages.append(len(touched))
        assert moved.pages == np.mean(pages)

    def test_orders_save_pages(self):
        """On a graph with hubs each order reads fewer pages than ids that mean nothing."""
        graph, sampler = rmat(14, seed=1), NeighborSampler([10, 5])
        seeds = torch.arange(0, graph.num_nodes, 20)
        read, task = (
            sample_rows(graph, seeds, sampler, batch_size=50),
            {"sampler": sampler, "batch_size": 50},
        )
        before = read.features({"_N": 512})
        for by in ORDERS:
            after = read.features({"_N": 512}, vertex_places(graph, by, seeds=seeds, **task))
            assert after.pages < before.pages and after.window_ratio < before.window_ratio, by
