"""Edges sorted in files against the same edges sorted in memory: every option, any memory, ids of
either width."""

import pathlib
import tempfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.datasets import edge_sort
from pagraph.datasets.column_files import Scratch
from pagraph.datasets.edge_sort import LEAST_ROOM, InFiles, in_order, sort_edges
from pagraph.datasets.edges import drop_repeats, mirror
from pagraph.graph import csc as csc_module
from pagraph.graph.csc import CSC

# For each of up to 8 threads and 3 more: buckets of 1 row, chunks of none.
ONE_ROW = edge_sort._SORT_ROW_BYTES * 11


@dataclass
class Edges:
    src: np.ndarray
    dst: np.ndarray
    num_nodes: int

    @property
    def num_edges(self):
        return len(self.src)

    def read(self, begin, end):
        return self.src[begin:end], self.dst[begin:end]


def in_memory(edges, mirrored, simple, numbered):
    """The same CSC by the functions for edges in memory."""
    src, dst = edges.src, edges.dst
    if simple:
        src, dst = drop_repeats(src, dst, edges.num_nodes, undirected=mirrored)
    if mirrored:
        src, dst, _ = mirror(src, dst)
    csc = CSC.from_coo(src, dst, edges.num_nodes)
    return csc if numbered and not simple else CSC(csc.indptr, csc.indices, csc.num_src)


def check(edges, room, **options):
    with tempfile.TemporaryDirectory() as folder:
        with Scratch(pathlib.Path(folder)) as scratch:
            got = sort_edges(edges, InFiles(scratch, room), **options)
            # The arrays' own files alone.
            assert len(list(pathlib.Path(folder).iterdir())) <= 3
        assert list(pathlib.Path(folder).iterdir()) == []
        want = in_memory(edges, **options)
        for name in ("indptr", "indices", "edge_ids"):
            one, other = getattr(got, name), getattr(want, name)
            assert (one is None) == (other is None), name
            assert one is None or (one.dtype == other.dtype and torch.equal(one, other)), name
        assert got.num_src == want.num_src
    return got


@settings(max_examples=examples(80), deadline=None)
@given(
    st.data(),
    st.integers(1, 200),
    st.integers(1, 200),
    st.sampled_from([ONE_ROW, 10 * ONE_ROW, LEAST_ROOM]),
    st.booleans(),
)
def test_ends_of_two_types(data, num_src, num_dst, room, numbered):
    """Also where all edges end at the one vertex of a type, whose edges are divided by sources."""
    ends = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    pairs = np.array(data.draw(st.lists(ends, max_size=80)), dtype=np.int64).reshape(-1, 2)
    src, dst = pairs.T.copy()
    edges = Edges(src, dst, (num_src, num_dst))
    got = check(edges, room, mirrored=False, simple=False, numbered=numbered)
    assert (got.num_src, got.num_dst) == (num_src, num_dst)


@st.composite
def edge_lists(draw):
    """Isolated vertices, self-loops and parallel edges; destinations of all vertices, of a few or
    of one."""
    count = draw(st.integers(1, 300))
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, draw(st.integers(0, count - 1))))
    pairs = np.array(
        draw(st.lists(ends, max_size=80)), dtype=draw(st.sampled_from([np.int32, np.int64]))
    )
    src, dst = pairs.reshape(-1, 2).T.copy()
    return Edges(src, np.sort(dst) if draw(st.booleans()) else dst, count)


OPTIONS = {name: st.booleans() for name in ("mirrored", "simple", "numbered")}


@pytest.fixture(autouse=True, scope="module")
def few_edges_are_sorted_in_files():
    """As many edges as the tests have would be sorted in memory, and without kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_sort, "FEW_EDGES", -1)
        yield


@settings(max_examples=examples(60), deadline=None)
@given(edges=edge_lists(), **OPTIONS)
def test_few_edges_are_sorted_in_memory(edges, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_sort, "FEW_EDGES", 1000)
        few = check(edges, LEAST_ROOM, **options)
        patch.setattr(csc_module, "FEW_EDGES", -1)
        check(edges, LEAST_ROOM, **options)
    assert few.num_src == edges.num_nodes


@settings(max_examples=examples(60), deadline=None)
@given(
    edge_lists(),
    st.sampled_from([ONE_ROW, 10 * ONE_ROW, LEAST_ROOM]),
    st.fixed_dictionaries(OPTIONS),
)
def test_equals_sorting_in_memory(edges, room, options):
    check(edges, room, **options)


def test_no_vertices():
    empty = np.empty(0, dtype=np.int32)
    assert (
        check(
            Edges(empty, empty, 0), LEAST_ROOM, mirrored=True, simple=False, numbered=True
        ).num_edges
        == 0
    )


@pytest.mark.parametrize(
    "options", [{}, {"mirrored": True}, {"simple": True}, {"mirrored": True, "simple": True}]
)
@pytest.mark.parametrize("limit", [49, 50, 51, 99, 100, 101, 190, 1000])
def test_ids_are_as_wide_as_those_of_memory(monkeypatch, options, limit):
    """The limit of int32 made small: below, at and above the numbers of edges, drawn, kept and in
    both directions."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 20, (2, 100)).astype(np.int64)
    monkeypatch.setattr(csc_module, "_INT32_MAX", limit)
    options = {"mirrored": False, "simple": False, "numbered": True} | options
    got = check(Edges(*ends, 20), 20 * ONE_ROW, **options)
    assert got.indices.dtype == (torch.int32 if got.num_edges <= limit else torch.int64)


def test_most_edges_end_at_one_vertex():
    """Buckets of a single destination are larger than what fits, and those of a single edge."""
    rng = np.random.default_rng(0)
    src, dst = (
        rng.integers(0, 4, 3000),
        np.where(rng.random(3000) < 0.9, 5, rng.integers(0, 1000, 3000)),
    )
    for simple in (False, True):
        check(Edges(src, dst, 1000), 10 * ONE_ROW, mirrored=False, simple=simple, numbered=True)


def test_progress_ends_at_the_whole():
    calls = []
    rng = np.random.default_rng(0)
    edges = Edges(*rng.integers(0, 50, (2, 500)), 50)
    with tempfile.TemporaryDirectory() as folder, Scratch(pathlib.Path(folder)) as scratch:
        sort_edges(edges, InFiles(scratch, LEAST_ROOM, lambda *call: calls.append(call)))
    assert calls == sorted(calls)
    assert calls[-1] == (1000, 1000)


def test_results_in_order_and_not_far_ahead():
    begun = []
    results = in_order(lambda item: begun.append(item) or item * 2, iter(range(100)), 2)
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert len(begun) <= 10
    results.close()
    assert len(begun) < 20


def test_a_failure_reaches_the_reader():
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // (3 - item), range(100), 2))
