"""Mapped files: how they are recognised, and that asking for their pages changes nothing but the
time."""

import ctypes
import mmap
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch
from fresh_processes import HANGING

from pagraph import FormatError
from pagraph.features import CachedFeature, DiskFeature, HostFeature, IndexedRows, _gather, on_disk
from pagraph.features.store import fill_cache
from pagraph.graph.mapped import map_npy
from pagraph.system import _paging
from pagraph.system.memory import address_on_disk

CPU = torch.device("cpu")
NO_SLOTS = np.empty(0, dtype=np.int32)

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs /proc/self/maps"
)


@pytest.fixture
def values():
    return np.random.default_rng(0).random((4000, 128), dtype=np.float32)


@pytest.fixture
def npy(disk_folder, values):
    path = disk_folder / "feat.npy"
    np.save(path, values)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return path


def drop_from_memory(path):
    """Put a file out of the page cache; whoever has it mapped must have let go of its pages."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share_in_memory(tensor):
    base, nbytes = tensor.data_ptr(), tensor.nbytes
    start = base // mmap.PAGESIZE * mmap.PAGESIZE
    pages = (ctypes.c_ubyte * (-(-(base + nbytes - start) // mmap.PAGESIZE)))()
    libc = ctypes.CDLL(None)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(base + nbytes - start), pages) == 0
    return float(np.mean(np.frombuffer(pages, dtype=np.uint8) & 1))


# -- placement
# --------------------------------------------------------------------------------------------


def test_mapped_files_are_on_disk(npy, disk_folder, values):
    memmap = np.load(npy, mmap_mode="r+")
    raw = disk_folder / "raw.bin"
    values.tofile(raw)
    assert on_disk(torch.from_numpy(memmap))
    assert on_disk(
        torch.from_numpy(np.memmap(raw, dtype=np.float32, mode="r+", shape=values.shape))
    )
    assert on_disk(torch.from_numpy(np.memmap(raw, dtype=np.float32, mode="c", shape=values.shape)))
    assert on_disk(torch.from_file(str(raw), shared=True, size=values.size, dtype=torch.float32))
    assert on_disk(torch.from_file(str(raw), shared=False, size=values.size, dtype=torch.float32))
    assert on_disk(map_npy(npy))
    assert on_disk(map_npy(npy)[100:, 3:5])


def test_an_unlinked_file_is_still_on_disk(disk_folder, values):
    raw = disk_folder / "with spaces (deleted).bin"
    values.tofile(raw)
    tensor = torch.from_file(str(raw), size=values.size, dtype=torch.float32)
    raw.unlink()
    assert on_disk(tensor)


def test_memory_is_not_on_disk(values):
    assert not on_disk(torch.zeros(10))
    assert not on_disk(torch.zeros(10_000_000))
    assert not on_disk(torch.from_numpy(values))
    assert not on_disk(torch.zeros(100).share_memory_())
    assert not on_disk(torch.frombuffer(mmap.mmap(-1, 8192), dtype=torch.uint8))
    assert not on_disk(torch.empty(0))
    assert not on_disk(torch.empty(3, device="meta"))


def test_files_in_memory_are_not_on_disk():
    descriptor = os.memfd_create("pagraph-test")
    os.ftruncate(descriptor, 8192)
    with mmap.mmap(descriptor, 8192) as memory:
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        assert not on_disk(tensor)
        del tensor
    os.close(descriptor)


def test_files_in_dev_shm_are_not_on_disk(values):
    path = f"/dev/shm/pagraph-test-{os.getpid()}.bin"
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs a writable /dev/shm")
    try:
        values.tofile(path)
        assert not on_disk(torch.from_file(path, size=values.size, dtype=torch.float32))
    finally:
        os.unlink(path)


def test_an_address_that_is_not_mapped_is_not_on_disk():
    assert not address_on_disk(0)


def test_the_answer_is_kept_for_a_storage_and_not_for_its_address(npy):
    answers = []
    for _ in range(20):
        tensor = map_npy(npy)
        answers.append(on_disk(tensor))
        del tensor
        answers.append(on_disk(torch.zeros(4000, 128)))
    assert answers == [True, False] * 20


# -- reading
# ----------------------------------------------------------------------------------------------


def test_reads_the_same_rows_as_from_memory(npy, values):
    feature = DiskFeature(map_npy(npy))
    assert feature.tier == "disk"
    for ids in (
        torch.arange(4000),
        torch.randint(0, 4000, (500,)),
        torch.tensor([3999]),
        torch.arange(0),
    ):
        assert torch.equal(feature.read(ids), torch.from_numpy(values)[ids])


@pytest.mark.parametrize("random_access", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_reads_a_cold_file(npy, values, random_access, share):
    drop_from_memory(npy)
    source = DiskFeature(map_npy(npy, random_access=random_access))
    chosen = torch.randperm(4000)[: int(4000 * share)]
    feature = CachedFeature(source, fill_cache(source, chosen, device=CPU, num_nodes=4000))
    ids = torch.randint(0, 4000, (1000,))
    rows, (hits,) = feature.read_counted(ids)
    assert torch.equal(rows, torch.from_numpy(values)[ids])
    assert hits == int(torch.isin(ids, chosen).sum())


@pytest.mark.parametrize("bad", [-1, 4000, 2**40, -(2**62)])
def test_bad_ids_reach_no_system_call(npy, bad):
    drop_from_memory(npy)
    source = DiskFeature(map_npy(npy))
    cached = CachedFeature(source, fill_cache(source, torch.arange(7), device=CPU, num_nodes=4000))
    for feature in (source, cached):
        with pytest.raises(IndexError, match=f"got {bad} at position 1"):
            feature.read(torch.tensor([3000, bad, 5]))


@pytest.mark.parametrize("columns", [slice(3, 9), slice(None, None, 2), slice(0, 0)])
def test_reads_columns_of_a_file(npy, values, columns):
    ids = torch.randint(0, 4000, (300,))
    rows = DiskFeature(map_npy(npy)[:, columns]).read(ids)
    assert torch.equal(rows, torch.from_numpy(values)[:, columns][ids])


def test_many_threads_read_a_cold_file(npy, values):
    drop_from_memory(npy)
    feature = DiskFeature(map_npy(npy))
    wrong = []

    def work(seed):
        ids = torch.randint(0, 4000, (2000,), generator=torch.Generator().manual_seed(seed))
        if not torch.equal(feature.read(ids), torch.from_numpy(values)[ids]):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- asking for pages
# -------------------------------------------------------------------------------------


def count_cold(feature, ids, slots=NO_SLOTS, num_cached=0):
    state = np.zeros(1, dtype=np.uint8)
    base = feature.rows.ctypes.data
    return _gather.count_cold(
        base,
        feature.stride_bytes,
        feature.num_rows,
        None,
        mmap.PAGESIZE,
        slots,
        num_cached,
        ids,
        64,
        state,
    )


def test_cold_rows_are_counted_and_cached_rows_are_not(npy):
    drop_from_memory(npy)
    tensor = map_npy(npy)
    before = share_in_memory(tensor)  # opening reads the header
    if before > 0.05:
        pytest.skip("needs a system that drops a file's pages when asked")
    feature = DiskFeature(tensor)
    ids = np.arange(4000)
    assert count_cold(feature, ids) >= 60
    slots = np.arange(4000, dtype=np.int32)
    assert count_cold(feature, ids, slots, 4000) == 0
    assert 0 < count_cold(feature, ids, slots, 2000) < count_cold(feature, ids)
    assert count_cold(feature, np.array([-5, 4000, 2**60])) == 0
    assert share_in_memory(tensor) == before  # counting reads nothing
    feature.read(torch.from_numpy(ids))
    assert count_cold(feature, ids) == 0


def test_the_pages_of_rows_by_reference_are_the_sources(npy):
    drop_from_memory(npy)
    tensor = map_npy(npy, random_access=True)
    if share_in_memory(tensor) > 0.05:
        pytest.skip("needs a system that drops a file's pages when asked")
    feature = DiskFeature(IndexedRows(tensor, torch.arange(2000, 3000).flip(0)))
    slots, state = np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.uint8)
    place = (
        feature.rows.ctypes.data,
        feature.stride_bytes,
        feature.source_rows,
        feature.table,
        mmap.PAGESIZE,
    )
    ids = np.array([*range(1000), -1, 1000, 10**6])
    assert _gather.count_cold(*place, slots, 0, ids, 64, state) >= 60
    feature.announce(ids)  # rows that there are not are refused by the read
    deadline = time.monotonic() + HANGING
    while share_in_memory(tensor[2000:3000]) < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert share_in_memory(tensor[2000:3000]) == 1
    assert share_in_memory(tensor[:1000]) < 0.5
    assert _gather.count_cold(*place, slots, 0, ids, 64, state) == 0


def requests(feature, ids, gap, most, page=mmap.PAGESIZE):
    base = feature.rows.ctypes.data
    return _paging.ask(
        base,
        feature.stride_bytes,
        feature.row_bytes,
        feature.num_rows,
        page,
        gap,
        most,
        np.asarray(ids),
    )


def test_requests_are_merged_up_to_the_gap_and_cut_at_the_limit(disk_folder):
    path = disk_folder / "pages.bin"
    np.zeros((64, mmap.PAGESIZE), dtype=np.uint8).tofile(path)
    feature = DiskFeature(
        torch.from_file(str(path), size=64 * mmap.PAGESIZE, dtype=torch.uint8).view(64, -1)
    )
    assert requests(feature, [], gap=0, most=32) == 0
    assert requests(feature, [0, 0, 0], gap=0, most=32) == 1
    assert requests(feature, [0, 1, 2], gap=0, most=32) == 1
    assert requests(feature, [0, 2, 4], gap=0, most=32) == 3
    assert requests(feature, [0, 2, 4], gap=1, most=32) == 1
    assert requests(feature, [0, 5, 11], gap=4, most=32) == 2
    assert requests(feature, list(range(64)), gap=0, most=16) == 4
    assert requests(feature, [-3, 5, 64, 10**9], gap=0, most=32) == 1


def test_announced_rows_come_into_memory(npy):
    drop_from_memory(npy)
    tensor = map_npy(npy)
    before = share_in_memory(tensor)  # opening reads the header
    if before > 0.05:
        pytest.skip("needs a system that drops a file's pages when asked")
    feature = DiskFeature(tensor)
    feature.announce(np.arange(0, 2000))
    feature.read(torch.arange(0, 2000))
    assert share_in_memory(tensor[:2000]) == 1.0
    assert before < share_in_memory(tensor)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_read_in_order_brings_the_pages_between(npy, in_order):
    drop_from_memory(npy)
    tensor = map_npy(npy, random_access=True)
    if share_in_memory(tensor) > 0.05:
        pytest.skip("needs a system that drops a file's pages when asked")
    memory = ctypes.c_void_p(tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE)
    assert ctypes.CDLL(None).madvise(memory, ctypes.c_size_t(tensor.nbytes), mmap.MADV_RANDOM) == 0
    ids = torch.arange(0, 4000, 6 * mmap.PAGESIZE // 512)  # 5 pages between
    DiskFeature(tensor).read(ids if in_order else ids.flip(0))
    share = share_in_memory(tensor)
    assert share > 0.8 if in_order else share < 0.5


def test_a_shortened_file_is_an_error(npy):
    feature = DiskFeature(map_npy(npy))
    os.truncate(npy, 4096)
    with pytest.raises(
        FormatError, match=r"feat.npy was shortened while it was open: 4096 of \d+ bytes are left"
    ):
        feature.read(torch.tensor([3999]))


def test_rows_in_memory_need_no_announcement():
    feature = HostFeature(torch.zeros(3, 2))
    assert feature.announce(np.array([0, 1])) is None
    assert feature.read(torch.tensor([1])).tolist() == [[0, 0]]
