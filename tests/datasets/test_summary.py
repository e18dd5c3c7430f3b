"""Summaries against plain counting, and against the known skew of real graphs."""

import json
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.datasets import summary as summary_module
from pagraph.datasets.summary import CACHE_SHARES, edge_shares, summarise, summarise_folder
from pagraph.features.disk import on_disk
from pagraph.graph.graph import EDGE_TYPE


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=60))
def test_equals_plain_counting(pairs):
    src, dst = [u for u, _ in pairs], [v for _, v in pairs]
    with mock.patch.object(summary_module, "_CHUNK", 7):  # so that there are several
        edge = summarise(Graph.from_coo(src, dst, 25)).edges[0]
    assert edge.both_ways == (Counter(pairs) == Counter((v, u) for u, v in pairs))
    out, into = Counter(src), Counter(dst)
    assert edge.num_edges == len(pairs)
    assert edge.max_out_degree == max(out.values(), default=0)
    assert edge.max_in_degree == max(into.values(), default=0)
    assert edge.isolated == 25 - len(set(src) | set(dst))
    assert edge.self_loops == sum(u == v for u, v in pairs)
    for share, by_out, by_in in zip(
        CACHE_SHARES, edge.by_out_degree, edge.by_in_degree, strict=True
    ):
        top = int(25 * share)
        for counts, got in ((out, by_out), (into, by_in)):
            held = sum(count for _, count in counts.most_common(top))
            assert got == pytest.approx(held / len(pairs) if pairs else 0.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.booleans())
def test_edges_that_go_both_ways(pairs, one_more):
    """Parallel edges and self-loops included; equal degrees alone are not enough."""
    every = [*pairs, *((v, u) for u, v in pairs), *([(0, 1), (1, 2), (2, 0)] if one_more else [])]
    edge = summarise(Graph.from_coo([u for u, _ in every], [v for _, v in every], 6)).edges[0]
    assert edge.both_ways is not one_more


def test_edge_shares_of_nothing():
    assert edge_shares(torch.zeros(0, dtype=torch.int64)) == (0.0,) * 4
    assert edge_shares(torch.zeros(200, dtype=torch.int64)) == (0.0,) * 4
    assert edge_shares(torch.ones(10, dtype=torch.int64), (0.0, 0.1, 1.0)) == (0.0, 0.1, 1.0)


@pytest.mark.every
@pytest.mark.parametrize(
    ("name", "top_1", "top_10", "most"),
    [
        ("cora", (9.8, 9.8), (32.1, 32.1), (168, 168)),
        ("amazon-computers", (14.0, 14.0), (42.1, 42.1), (2992, 2992)),
        ("cnr-2000", (10.4, 55.9), (43.4, 79.2), (2716, 18235)),
        ("soc-slashdot0902", (23.4, 23.7), (65.7, 63.4), (2511, 2553)),
    ],
)
def test_known_skew(data_folder, name, top_1, top_10, most):
    edge = summarise(open_graph(data_folder / name)).edges[0]
    assert (edge.max_out_degree, edge.max_in_degree) == most
    for place, want in ((0, top_1), (2, top_10)):
        got = (100 * edge.by_out_degree[place], 100 * edge.by_in_degree[place])
        assert got == pytest.approx(want, abs=0.05)


class TestArrays:
    @pytest.fixture
    def graph(self):
        graph = Graph.from_coo(
            [0, 1, 2], [2, 1, 2], ndata={"feat": torch.zeros(3, 5, dtype=torch.bfloat16)}
        )
        graph.set_field("train_mask", [True, True, False])
        graph.set_field("w", [1, 2, 3], edge_type=EDGE_TYPE)
        return graph

    def test_in_memory(self, graph):
        summary = summarise(graph)
        found = {array.name: array for array in summary.arrays}
        assert list(found) == ["feat", "train_mask", "indptr", "indices", "edge_ids", "w"]
        feat = found["feat"]
        assert (feat.dtype, feat.shape, feat.bytes, feat.where) == (
            "bfloat16",
            (3, 5),
            30,
            "memory",
        )
        assert found["train_mask"].true == 2
        assert feat.true is None
        assert found["indptr"].kind == "structure"
        assert found["w"].kind == "field"
        assert summary.total_bytes == 30 + 3 + 16 + 12 + 12 + 24

    def test_on_disk(self, graph, tmp_path):
        write_graph(graph, tmp_path / "g")
        plain = np.memmap(tmp_path / "plain", dtype=np.float32, mode="w+", shape=(10,))
        if not on_disk(torch.from_numpy(plain)):
            pytest.skip("temporary folders are in memory here")
        assert {array.where for array in summarise(open_graph(tmp_path / "g")).arrays} == {"disk"}

    def test_a_folder_without_opening_it(self, graph, tmp_path):
        graph.set_field("label", [-1, 2, 0])
        write_graph(graph, tmp_path / "g")
        quick = summarise_folder(tmp_path / "g")
        assert quick == summarise(open_graph(tmp_path / "g"))
        assert {array.name: array.classes for array in quick.arrays}["label"] == 2

    @pytest.mark.parametrize(
        ("file", "content"), [("node-feat.npy", b"x"), ("edge-indptr.npy", None)]
    )
    def test_a_damaged_folder(self, graph, tmp_path, file, content):
        write_graph(graph, tmp_path / "g")
        path = tmp_path / "g" / file
        path.write_bytes(content or path.read_bytes()[:-4] + b"\0\0\0\1")
        assert summarise_folder(tmp_path / "g") is None

    @pytest.mark.parametrize(
        ("old", "new"), [(b"}", b"]"), (b" \n", b"(\n"), (b"False", b"\xb0\x8a9]l")]
    )
    def test_a_damaged_header(self, graph, tmp_path, old, new):
        write_graph(graph, tmp_path / "g")
        path = tmp_path / "g" / "node-feat.npy"
        path.write_bytes(path.read_bytes().replace(old, new, 1))
        assert summarise_folder(tmp_path / "g") is None

    def test_json(self, graph):
        value = json.loads(json.dumps(summarise(graph).to_json()))
        assert (value["num_nodes"], value["num_edges"], value["bytes"]) == (3, 3, 97)
        assert value["node_types"] == {"_N": 3}
        assert value["edge_types"][0]["self_loops"] == 2
        assert value["arrays"][0]["shape"] == [3, 5]
        assert value["cache_shares"] == [0.01, 0.05, 0.1, 0.2]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([2**62, 2**62, 5], 2),
        ([-1, -1, -1], 0),
        ([], 0),
        (list(range(70_000)), None),
        ([[0, 1]], None),
        ([0.5], None),
    ],
)
def test_number_of_classes(labels, classes):
    """Different values, however large; of too many nothing is said, nor of what numbers no
    classes."""
    graph = Graph.from_coo(
        [], [], len(labels), ndata={"label": torch.tensor(labels, dtype=None if labels else int)}
    )
    assert summarise(graph).arrays[0].classes == classes


def test_several_types():
    graph = Graph({("a", "x", "b"): Graph.from_coo([0, 1], [0, 0], 2).csc})
    edge = summarise(graph).edges[0]
    assert (edge.type, edge.isolated, edge.self_loops, edge.both_ways) == (
        "a/x/b",
        None,
        None,
        None,
    )
    assert edge.max_in_degree == 2
