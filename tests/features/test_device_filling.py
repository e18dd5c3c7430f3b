"""Filling a cache on an accelerator: every way of the rows, and whether a cache has the values of
now."""

import numpy as np
import pytest
import torch
from accelerated_sets import WithoutKernels, needs_interpreter, same_bits

from pagraph.accelerator import HostAccelerator, OutOfMemory
from pagraph.features import DiskFeature, HostFeature
from pagraph.features.gpu import link as link_module
from pagraph.features.gpu.link import Link, fill_rows, holds_on_device
from pagraph.features.gpu.transfer import Transfer
from pagraph.features.narrow import NarrowFeature
from pagraph.features.store import FeatureCache, slots_for
from pagraph.graph.mapped import map_npy
from pagraph.graph.stored_rows import IndexedRows

N = 90
WAYS = [pytest.param("zero-copy", marks=needs_interpreter), "staging", "no kernels"]


def way_of(way, memory=1 << 30):
    """The link, and the transfer of a field."""
    accelerator = WithoutKernels(memory) if way == "no kernels" else HostAccelerator(memory)
    link = Link(accelerator)
    return link, Transfer(accelerator, "zero-copy" if way == "zero-copy" else "staging")


def random_rows(dtype, *shape):
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype).view(shape)


@pytest.mark.every
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [0, 1, 37, N])
@pytest.mark.parametrize("shape", [(), (5,), (2, 8), (0,)], ids=str)
def test_row_i_is_that_of_the_i_th_id(way, shape, count):
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        tensor, ids = random_rows(dtype, N, *shape), torch.randperm(N)[:count]
        link, transfer = way_of(way)
        if not tensor.numel():
            continue  # nobody caches rows of no bytes
        rows, filling = fill_rows(HostFeature(tensor), ids, link, transfer)
        assert (
            rows.shape == (count, *shape) and rows.is_contiguous() and same_bits(rows, tensor[ids])
        )
        assert filling.nbytes == rows.numel() * dtype.itemsize and filling.seconds() >= 0


@pytest.mark.parametrize("way", WAYS)
def test_rows_by_reference_and_with_gaps(way):
    base, ids = torch.randn(N, 12), torch.randperm(N)
    table = torch.randint(0, N, (N,))
    for source, expected in (
        (HostFeature(base[:, 2:7]), base[:, 2:7]),
        (HostFeature(IndexedRows(base, table)), base[table]),
        (HostFeature(base[::3]), base[::3]),
    ):
        link, transfer = way_of(way)
        chosen = ids[ids < len(expected)]
        rows, _ = fill_rows(source, chosen, link, transfer)
        assert same_bits(rows, expected[chosen])


@needs_interpreter
def test_all_rows_in_their_order_are_one_copy(monkeypatch):
    asked = []
    gather = link_module.gather
    monkeypatch.setattr(
        link_module, "gather", lambda *a, **k: asked.append(len(a[1])) or gather(*a, **k)
    )
    tensor = torch.randn(N, 4)
    for source, ids, kernels in (
        (HostFeature(tensor), torch.arange(N), []),
        (HostFeature(tensor), torch.arange(N - 1), [N - 1]),
        (HostFeature(tensor), torch.arange(N).flip(0), [N]),
        (HostFeature(torch.cat([tensor, tensor], 1)[:, :4]), torch.arange(N), [N]),
        (HostFeature(IndexedRows(tensor, torch.arange(N))), torch.arange(N), [N]),
    ):
        asked.clear()
        link, transfer = way_of("zero-copy")
        assert same_bits(fill_rows(source, ids, link, transfer)[0], tensor[ids])
        assert asked == kernels


@pytest.mark.parametrize("way", WAYS)
def test_a_piece_at_a_time(way, monkeypatch):
    monkeypatch.setattr(link_module, "_CHUNK_BYTES", 100)
    tensor, ids = torch.randn(N, 7), torch.randperm(N)[:77]
    link, transfer = way_of(way)
    assert same_bits(fill_rows(HostFeature(tensor), ids, link, transfer)[0], tensor[ids])


@pytest.mark.parametrize("narrow", [False, True])
def test_a_disk_is_read_in_its_own_order(tmp_path, narrow):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((N, 6), dtype=np.float32))
    tensor = map_npy(tmp_path / "a.npy")

    class Spy(DiskFeature):
        asked = []

        def announce(self, ids, *rest):
            self.asked.append(ids.copy())

    source = Spy(tensor)
    ids, (link, transfer) = torch.randperm(N)[:50], way_of("staging")
    stored = NarrowFeature(source, torch.bfloat16, "a") if narrow else source
    rows, _ = fill_rows(stored, ids, link, transfer)
    assert same_bits(rows, tensor[ids].bfloat16() if narrow else tensor[ids])
    read = np.concatenate(Spy.asked)
    assert len(read) == 50 and np.array_equal(read, np.sort(read))


@pytest.mark.parametrize("way", WAYS)
def test_whether_a_cache_has_the_values_of_now(way, monkeypatch):
    monkeypatch.setattr(link_module, "_COMPARED_BYTES", 256)
    tensor, ids = torch.randn(N, 8), torch.randperm(N)[:60]
    tensor[5] = float("nan")
    source, (link, transfer) = HostFeature(tensor), way_of(way)
    cache = FeatureCache(fill_rows(source, ids, link, transfer)[0], slots_for(ids, N))
    assert holds_on_device(cache, source, ids, link, transfer)
    for i, column in ((0, 0), (59, 7), (31, 3)):
        before = float(tensor[ids[i], column])
        tensor[ids[i], column] = 1e9
        assert not holds_on_device(cache, source, ids, link, transfer)
        tensor[ids[i], column] = before
    tensor[torch.ones(N).bool().index_fill(0, ids, False)] = 0  # rows that it does not have
    assert holds_on_device(cache, source, ids, link, transfer)
    nothing = FeatureCache(torch.empty(0, 8), slots_for(ids[:0], N))
    assert holds_on_device(nothing, source, ids, link, transfer)


def test_what_does_not_fit_raises_and_leaves_nothing():
    link, transfer = way_of("no kernels", memory=1000)
    with pytest.raises(OutOfMemory):
        fill_rows(HostFeature(torch.randn(N, 8)), torch.arange(N), link, transfer)
    assert link.accelerator._used == 0


def test_a_value_too_large_for_the_cache_is_refused():
    tensor = torch.ones(N, 2)
    tensor[7] = 1e6
    link, transfer = way_of("staging")
    with pytest.raises(ValueError, match="cache_dtype must hold the values of field 'a', got 1e"):
        fill_rows(
            NarrowFeature(HostFeature(tensor), torch.float16, "a"), torch.arange(N), link, transfer
        )
