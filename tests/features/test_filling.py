"""Filling caches: which rows they hold, and where."""

import pytest
import torch

from pagraph.features import FeatureCache, HostFeature, store
from pagraph.features.store import fill_cache, slots_for

CPU = torch.device("cpu")


def fill(tensor, ids, **options):
    ids = torch.as_tensor(ids).long()
    return fill_cache(HostFeature(tensor), ids, device=CPU, num_nodes=tensor.shape[0], **options)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.bool, torch.uint16, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 10, 25])
def test_row_i_is_that_of_the_i_th_id(dtype, shape, count):
    tensor = torch.randint(0, 2, (25, *shape)).to(torch.float32).to(dtype)
    ids = torch.randperm(25)[:count]
    cache = fill(tensor, ids)
    assert len(cache) == count and cache.rows.dtype == dtype and cache.rows.shape == (count, *shape)
    assert cache.rows.tolist() == [tensor[i].tolist() for i in ids]
    assert [int(cache.slots[i]) for i in ids] == list(range(count))
    assert int((cache.slots >= 0).sum()) == count


def test_fills_in_chunks(monkeypatch):
    monkeypatch.setattr(store, "_CHUNK_BYTES", 100)
    tensor = torch.randn(333, 7)
    ids = torch.randperm(333)[:200]
    assert torch.equal(fill(tensor, ids).rows, tensor[ids])


def test_rows_are_read_in_the_order_of_the_source():
    class Spy(HostFeature):
        asked = []

        def read(self, ids, out=None):
            self.asked.append(ids)
            return super().read(ids, out)

    fill_cache(Spy(torch.zeros(50, 2)), torch.randperm(50)[:30], device=CPU, num_nodes=50)
    read = torch.cat(Spy.asked)
    assert len(read) == 30 and torch.equal(read, read.sort().values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_rows_begin_with_a_cache_line(dtype):
    for count in (1, 7, 400):
        cache = fill(torch.ones(500, 33).to(dtype), torch.arange(count))
        assert cache.rows.data_ptr() % 64 == 0 and cache.rows.is_contiguous()


def test_cached_rows_are_copies():
    tensor = torch.zeros(4, 2)
    cache = fill(tensor, [1])
    tensor.fill_(1)
    assert cache.rows.tolist() == [[0, 0]]


def test_counts_its_bytes():
    cache = fill(torch.zeros(10, 3, dtype=torch.float16), [1, 2])
    assert (cache.row_nbytes, cache.nbytes) == (12, 12 + 40)
    assert repr(cache) == "FeatureCache(rows=(2, 3), dtype=torch.float16, device=cpu)"


def test_tables_can_be_shared():
    slots = slots_for(torch.tensor([4, 2, 0]), 5)
    first, second = (
        fill(torch.zeros(5, 2), [4, 2, 0], slots=slots),
        fill(torch.zeros(5, 9), [4, 2], slots=slots),
    )
    assert first.slots.data_ptr() == second.slots.data_ptr() == slots.data_ptr()


def test_slots_of_nothing():
    assert slots_for(torch.empty(0, dtype=torch.int64), 3).tolist() == [-1, -1, -1]
    assert slots_for(torch.empty(0, dtype=torch.int64), 0).tolist() == []


def test_ids_out_of_range_are_an_error():
    with pytest.raises(IndexError, match=r"ids must be in \[0, 4\), got 4"):
        fill(torch.zeros(4, 2), [0, 4])


@pytest.mark.parametrize(
    ("rows", "slots", "error", "text"),
    [
        (
            torch.zeros(2, 2),
            torch.zeros(3).long(),
            TypeError,
            "slots must be a 1-D int32 CPU tensor, got 1-D torch.int64",
        ),
        (torch.zeros(2, 2), torch.zeros(3, 1).int(), TypeError, "got 2-D torch.int32"),
        (torch.zeros(2, 4)[:, ::2], torch.zeros(3).int(), ValueError, "rows must be contiguous"),
        (torch.tensor(1.0), torch.zeros(3).int(), ValueError, "at least 1 dimension"),
    ],
)
def test_wrong_parts(rows, slots, error, text):
    with pytest.raises(error, match=text):
        FeatureCache(rows, slots)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fills_on_a_gpu():
    tensor, ids = torch.randn(50, 3), torch.randperm(50)[:20]
    device = torch.device("cuda", torch.cuda.current_device())
    cache = fill_cache(HostFeature(tensor), ids, device=device, num_nodes=50)
    assert cache.rows.device == device and torch.equal(cache.rows.cpu(), tensor[ids])
