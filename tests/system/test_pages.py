"""Pages of mapped files against plain references, and against what the system then holds."""

import ctypes
import mmap
import os
import sys
import time

import numpy as np
import pytest
import torch
from fresh_processes import HANGING
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph import _csc
from pagraph.graph.mapped import MappedFile, map_npy
from pagraph.system import _paging
from pagraph.system.memory import address_on_disk
from pagraph.system.paging import Pages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mincore")

PAGE = mmap.PAGESIZE
RUNS = st.lists(st.tuples(st.integers(-3, 5000), st.integers(0, 1500)), min_size=1, max_size=20)
INSIDE = st.lists(st.tuples(st.integers(0, 65_000), st.integers(1, 3000)), min_size=1, max_size=10)


def plain_pages(base, stride, limit, starts, lengths):
    """The pages of each run's rows, row by row."""
    found = []
    for start, length in zip(starts, lengths, strict=True):
        rows = [row for row in range(start, start + length) if 0 <= row < limit]
        found += sorted(
            {
                (base + row * stride + byte) // PAGE - base // PAGE
                for row in rows
                for byte in (0, stride - 1)
            }
        )
    return found


@settings(max_examples=examples(200), deadline=None)
@given(
    runs=RUNS,
    base=st.integers(0, 3 * PAGE),
    stride=st.sampled_from([4, 8, 100]),
    limit=st.integers(0, 5000),
)
def test_the_pages_of_runs(runs, base, stride, limit):
    starts, lengths = (np.array(part, dtype=np.int64) for part in zip(*runs, strict=True))
    expected = plain_pages(base, stride, limit, starts, lengths)
    place = base, stride, limit, PAGE
    assert _paging.count_pages(*place, starts, lengths) == len(expected)
    known = np.zeros((base + limit * stride) // PAGE + 1, dtype=np.int32)
    known[1::3] = 1
    unknown = [page for page in dict.fromkeys(expected) if not known[page]]
    ends = base, known.ctypes.data, stride, PAGE.bit_length() - 1
    inside = [
        (start, length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        if start >= 0 and start + length <= limit
    ]
    for start, length in inside:
        of_run = set(plain_pages(base, stride, limit, [start], [length]))
        run = np.array([start]), np.array([length])
        are = bool(all(known[list(of_run)]))
        assert _paging.are_runs_known(ends, *run) == are
        assert length == 0 or _paging.are_known(ends, run[0], length) == are
    pages = np.empty(len(expected), dtype=np.int64)
    count = _paging.list_unknown(*place, starts, lengths, known, pages)
    assert pages[:count].tolist() == unknown
    assert all(known[expected])
    assert _paging.list_unknown(*place, starts, lengths, known, pages) == 0
    assert all(_paging.are_known(ends, np.array([start]), 1) for start, length in inside if length)


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A mapped file without read-ahead, and a function that puts it out of memory."""
    path = tmp_path_factory.mktemp("pages") / "rows.npy"
    np.save(path, np.arange(64 * 1024, dtype=np.int32))
    tensor = map_npy(path)
    if not address_on_disk(tensor.data_ptr()):
        pytest.skip("needs temporary files on a disk")
    file = MappedFile.of(tensor)
    file.madvise(mmap.MADV_RANDOM)

    def forget():
        file.madvise(mmap.MADV_DONTNEED)
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return tensor, file, forget


def in_memory(file):
    """The pages of a mapping that the system holds."""
    count = -(-len(file) // PAGE)
    state = (ctypes.c_ubyte * count)()
    assert (
        ctypes.CDLL(None).mincore(
            ctypes.c_void_p(file.address), ctypes.c_size_t(count * PAGE), state
        )
        == 0
    )
    return {page for page in range(count) if state[page] & 1}


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    runs=st.lists(st.tuples(st.integers(0, 65_000), st.integers(1, 3000)), min_size=1, max_size=10),
    held=st.booleans(),
)
def test_what_is_needed_comes_into_memory_and_nothing_else(cold, runs, held):
    tensor, file, forget = cold
    forget()
    if in_memory(file):
        pytest.skip("the system does not let go of a file's pages")
    starts, lengths = (np.array(part, dtype=np.int64) for part in zip(*runs, strict=True))
    expected = set(plain_pages(tensor.data_ptr(), 4, len(tensor), starts, lengths))
    pages = Pages(tensor.data_ptr(), 4, 4, len(tensor))
    if held:
        pages.kept = np.zeros(pages.num_pages, dtype=np.uint8)
        pages.kept[1::2] = 1
        pages.forget()
        expected = {page for page in expected if page % 2 == 0}
    got = pages.need(starts, lengths)
    assert got == len(expected)
    end = time.monotonic() + HANGING
    while in_memory(file) != expected and time.monotonic() < end:
        time.sleep(0.002)
    assert in_memory(file) == expected
    assert pages.need(starts, lengths) == 0
    pages.forget()
    assert pages.need(starts, lengths) == 0  # which the system tells


def test_where_the_system_does_not_tell_everything_is_asked_for_again_at_times(cold):
    tensor, _, forget = cold
    forget()
    rows, one = np.array([0, 5000], dtype=np.int64), np.array([1])
    pages = Pages(tensor.data_ptr(), 4, 4, len(tensor), told=False)
    assert [pages.need(rows, one), pages.need(rows, one)] == [2, 0]
    pages.forget()
    assert [pages.need(rows, one), pages.need(rows, one)] == [2, 0]
    pages.kept = np.ones(pages.num_pages, dtype=np.uint8)
    pages.forget()
    assert pages.need(rows, one) == 0
    assert pages.num_kept == pages.num_pages


def test_all_pages_count_as_known_while_a_sample_is_in_memory(cold):
    tensor, _, forget = cold
    forget()
    pages = Pages(tensor.data_ptr(), 4, 4, len(tensor))
    pages.forget()
    assert not pages.all_known and pages.known_at == pages.known.ctypes.data
    assert int(tensor.sum()) > 0  # reads all of it
    pages.forget()
    assert pages.all_known and pages.known_at == 0
    forget()
    assert pages.need(np.array([0]), np.array([1])) == 0
    pages.forget()
    assert pages.need(np.array([0]), np.array([1])) == 1


OFFSETS = st.lists(st.integers(0, 40), max_size=40).map(
    lambda d: np.cumsum([0, *d]).astype(np.int32)
)


@settings(max_examples=examples(200), deadline=None)
@given(
    indptr=OFFSETS,
    picks=st.sampled_from([1.0, 3.0, float("inf")]),
    before=st.integers(0, 7),
    per_page=st.sampled_from([1, 8, 16]),
    named=st.booleans(),
)
def test_expected_reads_of_pages(indptr, picks, before, per_page, named):
    rows = len(indptr) - 1
    visits = np.arange(rows, dtype=np.float32) % 5 if named and rows else np.empty(0, np.float32)
    degrees = np.diff(indptr)
    weights = visits if len(visits) else degrees + 1.0
    offsets = np.zeros((before + rows) // per_page + 1)
    edges = np.zeros((before + int(indptr[-1])) // per_page + 1)
    for v in range(rows):
        for page in {(before + v) // per_page, (before + v + 1) // per_page}:
            offsets[page] += weights[v]
        places, counts = np.unique(
            (before + np.arange(indptr[v], indptr[v + 1])) // per_page, return_counts=True
        )
        for page, count in zip(places, counts, strict=True):
            edges[page] += weights[v] * min(1.0, picks * count / degrees[v])
    got = np.zeros_like(offsets)
    _csc.score_offsets(indptr, visits, before, per_page, got)
    np.testing.assert_allclose(got, offsets)
    got = np.zeros_like(edges)
    _csc.score_edges(indptr, visits, picks, before, per_page, got)
    np.testing.assert_allclose(got, edges, rtol=1e-6)


@settings(max_examples=examples(100), deadline=None)
@given(indptr=OFFSETS.filter(lambda p: p[-1] > 0), length=st.sampled_from([1, 2, 16]))
def test_the_rows_of_edges(indptr, length):
    positions = np.arange(indptr[-1])
    rows = np.searchsorted(indptr, positions, side="right") - 1
    out = np.empty(len(positions), dtype=np.int64)
    _csc.find_rows(indptr, positions, rows // length * length, length, out)
    assert out.tolist() == rows.tolist()


def test_a_second_mapping_has_its_own_pages(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4096))
    tensor = map_npy(tmp_path / "a.npy")
    file = MappedFile.of(tensor)
    other = file.again()
    other[200] = 7
    assert torch.equal(tensor, torch.arange(4096))
    assert file.path == other.path == str(tmp_path / "a.npy")
    assert MappedFile.of(torch.zeros(3)) is None
