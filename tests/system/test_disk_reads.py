"""Scattered reads of files: every way brings the bytes that NumPy finds, and each fault has one
clear error."""

import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.errors import FormatError, PipelineError
from pagraph.graph.mapped import map_npy
from pagraph.stats.trace import Tracer
from pagraph.stats.trace_file import read_trace
from pagraph.system.disk import _reads
from pagraph.system.disk.queues import REQUEST_BYTES, Requests
from pagraph.system.disk.ways import WAYS, Rates, best_gap, queue, rates_of, usable_way
from pagraph.system.disk_reads import FileReader

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's reads")


def usable(way, direct):
    try:
        return usable_way(way, direct=direct) == way
    except (OSError, ValueError):
        return False


KINDS = [(way, direct) for way in WAYS for direct in (False, True) if usable(way, direct)]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A file of 1,300,003 random bytes, and these."""
    path = tmp_path_factory.mktemp("reads") / "content"
    values = np.random.default_rng(0).integers(0, 256, 1_300_003, dtype=np.uint8)
    values.tofile(path)
    return path, values


def expected(values, rows, offset, stride, row_bytes):
    return np.stack([values[offset + row * stride :][:row_bytes] for row in rows])


@pytest.mark.parametrize(("way", "direct"), KINDS)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_every_way_reads_what_numpy_reads(content, way, direct, data):
    path, values = content
    row_bytes = data.draw(
        st.sampled_from([1, 4, 7, 512, 1000, 1024, 4096, 5000, 70_000, 140_000])
        | st.integers(1, 9000)
    )
    stride = row_bytes + data.draw(st.sampled_from([0, 0, 1, 24, 5000]))
    offset = data.draw(st.integers(0, 5000))
    most = (len(values) - offset - row_bytes) // stride + 1  # the last may end with the file
    wanted = data.draw(st.sets(st.integers(0, most - 1) | st.just(most - 1), max_size=300))
    rows = np.array(sorted(wanted), dtype=np.int64)
    places = np.array(data.draw(st.permutations(range(len(rows) + 2)))[: len(rows)], dtype=np.int64)
    out = np.full((len(rows) + 2, row_bytes), 77, dtype=np.uint8)
    reader = FileReader(
        path,
        stride=stride,
        row_bytes=row_bytes,
        num_rows=most,
        offset=offset,
        direct=direct,
        way=way,
    )
    reader.read(rows, out, places)
    others = np.ones(len(out), dtype=bool)
    others[places] = False
    assert (out[others] == 77).all()
    if len(rows):
        assert (out[places] == expected(values, rows, offset, stride, row_bytes)).all()
        assert reader.bytes_read >= min(len(rows) * row_bytes, len(values)) and reader.requests >= 1
    reader.close()


@pytest.mark.parametrize(("way", "direct"), KINDS)
def test_many_threads_read_at_once(content, way, direct):
    path, values = content
    table = values[3 : 3 + 1299 * 1000].reshape(1299, 1000)
    reader = FileReader(
        path, stride=1000, row_bytes=1000, num_rows=1299, offset=3, direct=direct, way=way
    )
    wrong = []

    def work(seed):
        generator = np.random.default_rng(seed)
        for _ in range(5):
            rows = np.sort(generator.choice(1299, 400, replace=False))
            out = np.empty((400, 1000), dtype=np.uint8)
            reader.read(rows, out)
            if not (out == table[rows]).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and reader.requests > 0
    reader.close()


@pytest.mark.many
@pytest.mark.parametrize("direct", [False, True])
def test_of_a_mapped_array(tmp_path, direct):
    values = np.random.default_rng(0).random((3000, 37), dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    tensor = map_npy(tmp_path / "a.npy")
    reader = FileReader.of(tensor[5:], direct=direct)
    if reader is None:
        pytest.skip("temporary files are in memory")
    rows, out = np.array([0, 7, 8, 2994]), np.empty((4, 37), dtype=np.float32)
    reader.read(rows, out)
    assert (out == values[5:][rows]).all()
    column = FileReader.of(tensor[:, 3])
    out = np.empty(4, dtype=np.float32)
    column.read(rows, out)
    assert (out == values[rows, 3]).all()
    assert reader.is_current()
    tensor[100, 0] = 7  # a copy of one page, which the file does not have
    assert not reader.is_current() and FileReader.of(tensor, direct=direct) is None


@pytest.mark.many
@pytest.mark.parametrize("direct", [False, True])
def test_writes_through_a_shared_mapping_are_read(tmp_path, direct):
    np.save(tmp_path / "a.npy", np.zeros((3000, 37), dtype=np.float32))
    shared = np.load(tmp_path / "a.npy", mmap_mode="r+")
    reader = FileReader.of(torch.from_numpy(shared), direct=direct)
    if reader is None:
        pytest.skip("temporary files are in memory")
    rows, out = np.arange(0, 3000, 3), np.empty((1000, 37), dtype=np.float32)
    for value in (1, 2):
        shared[::2] = value
        reader.read(rows, out)
        assert (out == shared[rows]).all() and reader.is_current()


def test_a_reader_outlives_its_tensor(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4000.0))
    tensor = map_npy(tmp_path / "a.npy")
    reader = FileReader.of(tensor)
    if reader is None:
        pytest.skip("temporary files are in memory")
    del tensor
    out = np.empty(2)
    reader.read(np.array([3, 3999]), out)
    assert out.tolist() == [3, 3999] and not reader.is_current()


def test_rows_that_are_not_in_a_file_as_they_are_in_memory(tmp_path):
    assert FileReader.of(torch.zeros(4, 3)) is None
    np.save(tmp_path / "a.npy", np.zeros((300, 40), dtype=np.float32))
    tensor = map_npy(tmp_path / "a.npy")
    assert FileReader.of(tensor[:, ::2]) is None
    assert FileReader.of(tensor[:1].expand(5, 40)) is None
    assert FileReader.of(tensor[:0]) is None
    np.save(tmp_path / "b.npy", np.ones((300, 40), dtype=np.float32))
    os.replace(tmp_path / "b.npy", tmp_path / "a.npy")
    assert FileReader.of(tensor) is None  # the path leads to another file by now


def test_a_file_replaced_while_open_is_read_as_it_was(content, tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(range(100)))
    reader = FileReader(path, stride=10, row_bytes=10, num_rows=10)
    (tmp_path / "other").write_bytes(bytes(100))
    os.replace(tmp_path / "other", path)
    out = np.empty((1, 10), dtype=np.uint8)
    reader.read(np.array([9]), out)
    assert out.tolist() == [list(range(90, 100))]


@pytest.mark.parametrize(("way", "direct"), KINDS)
def test_a_file_shortened_while_open(tmp_path, way, direct):
    path = tmp_path / "rows"
    path.write_bytes(bytes(400_000))
    reader = FileReader(path, stride=1000, row_bytes=1000, num_rows=400, direct=direct, way=way)
    os.truncate(path, 200_500)
    out = np.empty((400, 1000), dtype=np.uint8)
    with pytest.raises(
        FormatError, match=r"rows was shortened while it was read: byte .* got 200500 bytes"
    ):
        reader.read(np.arange(0, 400, 3), out)
    reader.read(np.arange(200), out)  # what is there can still be read
    assert not out[:200].any()


def test_refused_arguments(content):
    path, values = content
    with pytest.raises(ValueError, match="stride must be at least row_bytes"):
        FileReader(path, stride=1, row_bytes=2, num_rows=1)
    with pytest.raises(ValueError, match="way must be one of"):
        FileReader(path, stride=1, row_bytes=1, num_rows=1, way="telepathy")
    with pytest.raises(FormatError, match="must have 2000000 bytes, got 1300003"):
        FileReader(path, stride=1, row_bytes=1, num_rows=2_000_000)
    reader = FileReader(path, stride=4, row_bytes=4, num_rows=10)
    out = np.empty((3, 4), dtype=np.uint8)
    for rows in ([1, 1], [2, 1], [-1], [10]):
        with pytest.raises(IndexError, match="rows must strictly ascend, from 0 to 9"):
            reader.read(np.array(rows), out)
    with pytest.raises(IndexError, match="places must be from 0 to 2, got 3 at 1"):
        reader.read(np.array([0, 1]), out, np.array([0, 3]))
    with pytest.raises(ValueError, match="rows must be 1-D of int64"):
        reader.read(np.array([0.0]), out)
    with pytest.raises(ValueError, match="must have a place for each of 4 rows, got 3"):
        reader.read(np.arange(4), out)
    with pytest.raises(ValueError, match="must be a contiguous and writable NumPy"):
        reader.read(np.arange(1), out[:, ::2])
    with pytest.raises(ValueError, match="must hold rows of 4 bytes, got 3 bytes"):
        reader.read(np.arange(1), np.empty(3, dtype=np.uint8))
    reader.close()
    with pytest.raises(PipelineError, match="must be open to read"):
        reader.read(np.arange(1), out)


@settings(max_examples=examples(200), deadline=None)
@given(
    wanted=st.sets(st.integers(0, 400), min_size=1),
    place=st.tuples(st.integers(0, 3000), st.integers(0, 700), st.integers(1, 9000)),
    align=st.sampled_from([512, 4096]),
    gap=st.integers(-1, 9),
)
def test_requests_equal_plain_ones(wanted, place, align, gap):
    """Neighbours share a request if few blocks lie between them and it does not grow too large."""
    (offset, more, row_bytes), rows = place, np.array(sorted(wanted))
    job = (0, offset, row_bytes + more, row_bytes, align, 1, 0, 0)
    spans = [
        (offset + row * (row_bytes + more), offset + row * (row_bytes + more) + row_bytes)
        for row in rows.tolist()
    ]
    blocks = [(low // align, -(-high // align)) for low, high in spans]
    plain, counts = [[0, *blocks[0]]], [0] * 8
    for i, (low, high) in enumerate(blocks[1:], 1):
        between = max(0, low - blocks[i - 1][1])
        counts[between if between < 8 else 0] += between < 8
        if low - plain[-1][2] <= gap and (high - plain[-1][1]) * align <= REQUEST_BYTES:
            plain[-1][2] = max(high, plain[-1][2])
        else:
            plain.append([i, low, high])
    requests = Requests.of(rows, rows, job, gap)
    assert requests.edges[: requests.number + 1].tolist() == [
        *(first for first, _, _ in plain),
        len(rows),
    ]
    largest = max(high - low for _, low, high in plain) * align
    assert 0 <= requests.slot_bytes - largest < 4096
    found = np.zeros(8, dtype=np.int64)
    assert _reads.count_gaps(rows, job, found) == len(
        {block for low, high in blocks for block in range(low, high)}
    )
    assert found.tolist() == counts


def test_gap_where_both_limits_meet():
    """Pages 0, 2, 12 of 4 KiB each: the cheaper a request, the fewer are merged."""
    rows, job = np.array([0, 2, 12]), (0, 0, 4096, 4096, 4096, 1, 0, 0)
    assert best_gap(rows, job, Rates(1e-6, 1e-9), 1 << 17) == 0
    assert best_gap(rows, job, Rates(1e-5, 1e-9), 1 << 17) == 1
    assert best_gap(rows, job, Rates(1.0, 1e-9), 1 << 17) == 9
    edges = [Requests.of(rows, rows, job, gap).edges[:4].tolist() for gap in (0, 1, 9)]
    assert edges[0] == [0, 1, 2, 3] and edges[1][:3] == [0, 2, 3] and edges[2][:2] == [0, 3]


def test_a_queue_is_used_again():
    with queue("threads") as first:
        pass
    with queue("threads") as second:
        assert second is first


@pytest.mark.parametrize(("way", "direct"), KINDS)
def test_depths_of_the_queue_in_a_trace(content, tmp_path, way, direct):
    path, values = content
    reader = FileReader(path, stride=1000, row_bytes=1000, num_rows=1300, direct=direct, way=way)
    out = np.empty((260, 1000), dtype=np.uint8)
    with Tracer(tmp_path / "trace.json"):
        begin = time.perf_counter_ns()
        for _ in range(3):
            reader.read(np.arange(0, 1300, 5), out)
        end = time.perf_counter_ns()
    reader.read(np.arange(0, 1300, 5), out)  # is not watched any more
    trace = read_trace(tmp_path / "trace.json")
    events = [event for event in trace["traceEvents"] if event["name"] == "disk requests"]
    depths = [event["args"]["in flight"] for event in events]
    assert depths.count(0) == 3 and depths[-1] == 0 and max(depths) <= 128
    # Of which the caller's may come too late for all requests.
    assert max(depths) > 0 or way == "threads"
    times = [event["ts"] for event in events]
    assert times == sorted(times) and times[-1] - times[0] <= (end - begin) / 1000


def test_trial_of_a_disk(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as file:
        for _ in range(20):
            file.write(os.urandom(4 << 20))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    descriptor = os.open(path, os.O_RDONLY)
    rates = rates_of(descriptor)
    again = rates_of(descriptor)
    os.close(descriptor)
    assert again is rates
    assert 1e-7 < rates.request < 1 and 1e-12 < rates.byte < 1e-4
