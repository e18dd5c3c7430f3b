"""Reports count what a plain search through the graph finds."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph
from pagraph.datasets import rmat, sbm
from pagraph.partition import CacheTrial, Partition, describe, partition_graph
from pagraph.partition.report import cache_of_whole


def plain(partition, part):
    """Vertices by hop and the edges of a part, by walking."""
    csc = partition.graph.csc
    dropped = set() if partition.dropped is None else set(partition.dropped[part].tolist())
    hops, known = [set(partition.seeds_of(part).tolist())], set(partition.seeds_of(part).tolist())
    inner = set()
    for _ in range(partition.hops):
        inner |= hops[-1]
        found = {
            u for v in hops[-1] for u in csc.indices[csc.indptr[v] : csc.indptr[v + 1]].tolist()
        }
        hops.append(found - known - dropped)
        known |= hops[-1]
    edges = [u for v in inner for u in csc.indices[csc.indptr[v] : csc.indptr[v + 1]].tolist()]
    return hops, sum(u in known for u in edges), sum(u not in known for u in edges)


@st.composite
def partitions(draw):
    count = draw(st.integers(2, 12))
    ids = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=40))
    graph = Graph.from_coo([u for u, _ in pairs], [v for _, v in pairs], count)
    num_parts = draw(st.integers(1, 3))
    train = torch.tensor(sorted(draw(st.sets(ids, min_size=1))))
    parts = torch.tensor(
        draw(st.lists(st.integers(0, num_parts - 1), min_size=len(train), max_size=len(train)))
    )
    partition = Partition(graph, train, parts.int(), num_parts, draw(st.integers(1, 3)), "drawn")
    rest = [v for v in range(count) if v not in train.tolist()]
    if rest and draw(st.booleans()):
        evaluated = torch.tensor(rest[: len(rest) // 2 + 1])
        partition = replace(
            partition, evaluated=evaluated, evaluation=(evaluated % num_parts).int()
        )
    if draw(st.booleans()):
        halos = [
            sorted(set(rest) - set(partition.seeds_of(part).tolist()))[::2]
            for part in range(num_parts)
        ]
        partition = replace(
            partition, dropped=tuple(torch.tensor(halo, dtype=torch.int64) for halo in halos)
        )
    return partition


@given(partitions())
def test_counts_are_those_of_a_plain_search(partition):
    report = describe(partition, cache=None)
    covered, total_vertices, total_edges = set(), 0, 0
    for part, found in enumerate(report.parts):
        hops, edges, missing = plain(partition, part)
        assert found.train == len(partition.train_of(part))
        assert found.train + found.evaluated == len(hops[0])
        assert found.halo == tuple(map(len, hops[1:]))
        assert (found.edges, found.missing) == (edges, missing)
        assert found.dropped == (0 if partition.dropped is None else len(partition.dropped[part]))
        covered |= set().union(*hops)
        total_vertices += sum(map(len, hops))
        total_edges += edges
    assert report.covered == len(covered)
    largest = max(part.vertices for part in report.parts)
    assert report.largest_share == largest / partition.graph.num_nodes
    assert report.replication_factor == total_vertices / partition.graph.num_nodes
    assert report.copies == total_vertices / len(covered)
    assert report.edge_factor == (
        total_edges / partition.graph.num_edges if partition.graph.num_edges else 0.0
    )
    assert report.halo == tuple(
        sum(part.halo[hop] for part in report.parts) for hop in range(partition.hops)
    )


def test_balance_is_largest_over_mean():
    graph = Graph.from_coo([0, 1, 2], [3, 3, 3], 8)
    partition = Partition(
        graph, torch.tensor([3, 4, 5]), torch.tensor([0, 1, 1], dtype=torch.int32), 2, 1, "drawn"
    )
    report = describe(partition, cache=None)
    assert [part.vertices for part in report.parts] == [4, 2]
    assert report.train_balance == pytest.approx(2 / 1.5)
    assert report.vertex_balance == pytest.approx(4 / 3)
    assert report.replication_factor == 6 / 8  # vertices 6 and 7 are in no part
    assert (report.covered, report.copies) == (6, 1.0)
    assert repr(report).startswith(
        "PartitionReport(drawn, 2 parts, 1 hops, largest part 0.5 of the graph, replication"
    )


def test_where_parts_do_not_help_that_is_said():
    cases = [
        # Two hops of a small, dense graph are all of it; fewer parts than two divide nothing.
        (rmat(9, edge_factor=16, undirected=True, seed=0), 2, "auto", 2, "parts save no memory"),
        (rmat(9, edge_factor=16, undirected=True, seed=0), 2, "auto", 1, ""),
        # Every vertex alone, or with neighbours of its own: any division is as good.
        (Graph.from_coo([], [], 400), 1, "auto", 4, "auto hardly helps here"),
        (Graph.from_coo([], [], 400), 1, "hash", 4, ""),
        # Two halves that share nothing.
        (rings(2, 200), 2, "auto", 2, ""),
    ]
    for graph, hops, method, num_parts, advice in cases:
        train = torch.arange(graph.num_nodes)
        partition = partition_graph(graph, num_parts, hops=hops, method=method, train=train)
        report = describe(partition, cache=None)
        assert report.advice.startswith(advice) and bool(report.advice) == bool(advice)
        by_hash = partition_graph(graph, num_parts, hops=hops, method="hash", train=train)
        assert report.hash_largest == describe(by_hash, cache=None).largest


def rings(count, size):
    """Rings in which every vertex has the ten before it."""
    dst = torch.arange(count * size).repeat_interleave(10)
    place = dst % size
    before = (place - torch.arange(1, 11).repeat(count * size)) % size
    return Graph.from_coo(dst - place + before, dst, count * size)


def test_json_has_the_figures():
    graph = sbm(300, num_features=4)
    report = describe(
        partition_graph(graph, 3, hops=1, method="hash"),
        cache=CacheTrial("20%", batch_size=20, policy="degree"),
    )
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (values["method"], values["parts"], values["hops"]) == ("hash", 3, 1)
    assert values["train_per_part"] == [60, 60, 60]
    assert values["vertices_per_part"] == [part.vertices for part in report.parts]
    assert values["largest_share"] == max(values["vertices_per_part"]) / 300
    assert values["largest_over_hash"] == 1
    assert values["replication_factor"] == pytest.approx(sum(values["vertices_per_part"]) / 300)
    assert values["cache"]["budget_bytes"] == 60 * 16
    assert values["cache"]["rows_per_part"] == [60, 60, 60]
    assert values["seconds"] is None and values["peak_bytes"] is None  # nobody measured
    assert (
        describe(partition_graph(graph, 3, hops=1, method="hash"), cache=None).to_json()["cache"]
        is None
    )


def test_progress_counts_every_batch():
    partition = partition_graph(sbm(400), 3, hops=1, method="hash")  # 240 to train on: 80 each
    trial, calls = CacheTrial("10%", batch_size=50, policy="degree"), []
    describe(partition, cache=trial, progress=lambda done, total: calls.append((done, total)))
    assert sorted(calls) == [(done, 3 * 2 + 5) for done in range(1, 12)]
    whole, calls = cache_of_whole(partition, trial), []
    report = describe(
        partition,
        cache=trial,
        whole=whole,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert sorted(calls) == [(done, 3 * 2) for done in range(1, 7)]
    assert report.caches.whole is whole


def test_a_mapped_graph_is_described(tmp_path):
    from pagraph.datasets import write_graph

    write_graph(rmat(8, num_classes=2), tmp_path / "graph")
    mapped, loaded = Graph.open(tmp_path / "graph"), rmat(8, num_classes=2)
    reports = [
        describe(partition_graph(graph, 2, method="hash"), cache=None) for graph in (mapped, loaded)
    ]
    assert reports[0].parts == reports[1].parts
