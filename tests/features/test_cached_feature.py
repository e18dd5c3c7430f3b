"""The two ways to put cached and missing rows together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import picked, same
from tiers import examples

from pagraph.features import CachedFeature, FeatureCache, HostFeature
from pagraph.features.store import fill_cache, slots_for

CPU = torch.device("cpu")


class Rows:
    """A feature that is no HostFeature, so that ids are split, as for rows that a kernel cannot
    reach."""

    tier = "host"
    device = CPU
    decoding = None

    def __init__(self, tensor):
        self._source = HostFeature(tensor)
        self.num_rows, self.row_shape = self._source.num_rows, self._source.row_shape
        self.dtype, self.row_bytes = self._source.dtype, self._source.row_bytes
        self.asked = []

    def read(self, ids, out=None):
        self.asked.append(ids.clone())
        return self._source.read(ids, out)


def cached(source, chosen, num_nodes=None):
    num_nodes = source.num_rows if num_nodes is None else num_nodes
    cache = fill_cache(source, torch.as_tensor(chosen).long(), device=CPU, num_nodes=num_nodes)
    return CachedFeature(source, cache)


@pytest.mark.every
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.bfloat16, torch.float8_e5m2),
        *(torch.bool, torch.uint16, torch.complex64),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 13, 40])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64], ids=str)
def test_both_ways_give_the_same_rows_and_hits(dtype, shape, count, id_dtype):
    raw = torch.arange(40 * int(np.prod(shape))) % 120
    tensor = raw.view(40, *shape).to(torch.float32).to(dtype)
    chosen = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:count]
    ids = torch.randint(0, 40, (100,), generator=torch.Generator().manual_seed(4)).to(id_dtype)
    near, (near_hits,) = cached(HostFeature(tensor), chosen).read_counted(ids)
    split, (split_hits,) = cached(Rows(tensor), chosen).read_counted(ids)
    assert near_hits == split_hits == int(torch.isin(ids, chosen).sum())
    assert same(near, picked(tensor, ids)) and same(split, picked(tensor, ids))


def test_only_misses_are_asked_for():
    source = Rows(torch.arange(10.0))
    feature = cached(source, [4, 2])
    source.asked.clear()
    assert feature.read(torch.tensor([2, 9, 4, 0, 9])).tolist() == [2, 9, 4, 0, 9]
    assert [ids.tolist() for ids in source.asked] == [[9, 0, 9]]


def test_with_all_rows_cached_the_source_is_not_read():
    tensor = torch.arange(10.0)
    feature = cached(HostFeature(tensor), torch.randperm(10))
    expected = tensor.clone()
    tensor.fill_(-1)
    rows, (hits,) = feature.read_counted(torch.arange(10))
    assert torch.equal(rows, expected) and hits == 10


def test_writes_into_out():
    tensor, ids = torch.randn(8, 3), torch.tensor([7, 1, 2])
    for source in (HostFeature(tensor), Rows(tensor)):
        out = torch.zeros(5, 3)
        rows = cached(source, [1, 2]).read(ids, out[1:4])
        assert torch.equal(out[1:4], tensor[ids]) and rows.data_ptr() == out[1:4].data_ptr()
        assert not out[[0, 4]].any()
        with pytest.raises(ValueError, match="out must have shape"):
            cached(source, [1, 2]).read(ids, torch.zeros(2, 3))


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_hits_are_counted_for_every_part_of_the_ids(data):
    num_rows = data.draw(st.integers(1, 30))
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), max_size=120)), dtype=torch.int64
    )
    chosen = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), unique=True)), dtype=torch.int64
    )
    inner = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
    bounds = [*sorted(inner), len(ids)]
    tensor = torch.arange(num_rows * 3.0).view(num_rows, 3)
    hit = torch.isin(ids, chosen)
    expected = tuple(int(hit[a:b].sum()) for a, b in zip([0, *bounds], bounds, strict=False))
    for source in (HostFeature(tensor), Rows(tensor)):
        rows, hits = cached(source, chosen).read_counted(ids, bounds=bounds)
        assert torch.equal(rows, tensor[ids]) and hits == expected


@pytest.mark.parametrize("bounds", [[], [2], [4], [2, 1, 3], [-1, 3], [4, 3], [3, 3, 2]], ids=str)
def test_parts_that_are_not_those_of_the_ids(bounds):
    for source in (HostFeature(torch.zeros(8, 3)), Rows(torch.zeros(8, 3))):
        with pytest.raises(ValueError, match="bounds must ascend to the number of ids, 3, got"):
            cached(source, [1]).read_counted(torch.tensor([1, 2, 3]), bounds=bounds)


def test_a_bad_id_in_a_later_part_is_found_at_its_place():
    for source in (HostFeature(torch.zeros(8, 3)), Rows(torch.zeros(8, 3))):
        with pytest.raises(IndexError, match="got 9 at position 3"):
            cached(source, [1]).read_counted(torch.tensor([1, 2, 3, 9, 9, 0]), bounds=[2, 2, 4, 6])


@pytest.mark.parametrize("bad", [-1, 8, 2**33])
def test_bad_ids_on_both_ways(bad):
    for source in (HostFeature(torch.randn(8, 3)), Rows(torch.randn(8, 3))):
        with pytest.raises(IndexError, match=rf"ids must be in \[0, 8\), got {bad} at position 2"):
            cached(source, [1, 2]).read(torch.tensor([1, 5, bad, 9]))


def test_strided_source_falls_back_and_is_right():
    tensor = torch.randn(6, 9).t()
    ids = torch.tensor([8, 0, 4, 4])
    rows, (hits,) = cached(HostFeature(tensor), [4]).read_counted(ids)
    assert torch.equal(rows, tensor[ids]) and hits == 2


def test_table_may_list_more_rows_than_are_cached():
    source = HostFeature(torch.arange(6.0))
    slots = slots_for(torch.tensor([5, 3, 1]), 6)
    cache = FeatureCache(torch.tensor([50.0, 30.0]), slots)
    rows, (hits,) = CachedFeature(source, cache).read_counted(torch.tensor([1, 3, 5, 0]))
    assert rows.tolist() == [1, 30, 50, 0] and hits == 2


def test_table_may_be_shorter_than_the_source():
    source = HostFeature(torch.arange(6.0))
    cache = FeatureCache(torch.tensor([10.0]), torch.tensor([-1, 0], dtype=torch.int32))
    for fallback in (source, Rows(torch.arange(6.0))):
        rows, (hits,) = CachedFeature(fallback, cache).read_counted(torch.tensor([1, 5, 0]))
        assert rows.tolist() == [10, 5, 0] and hits == 1


def test_rows_of_another_shape_or_dtype_are_refused():
    cache = fill_cache(HostFeature(torch.zeros(5, 2)), torch.arange(2), device=CPU, num_nodes=5)
    with pytest.raises(
        ValueError,
        match=r"cache must hold rows of shape \(3,\) and dtype torch.float32, got \(2,\)",
    ):
        CachedFeature(HostFeature(torch.zeros(5, 3)), cache)
    with pytest.raises(ValueError, match="got .* and torch.float32"):
        CachedFeature(HostFeature(torch.zeros(5, 2).double()), cache)


def test_says_what_it_holds():
    feature = cached(HostFeature(torch.zeros(5, 2)), [1])
    assert (feature.num_rows, feature.row_shape, feature.dtype) == (5, (2,), torch.float32)
    assert (feature.row_bytes, feature.device, feature.tier) == (8, CPU, "host")


def test_a_cache_on_another_device_is_refused():
    cache = FeatureCache(torch.zeros(1, 2, device="meta"), slots_for(torch.tensor([1]), 5))
    with pytest.raises(ValueError, match="cache must be on the CPU, got meta"):
        CachedFeature(HostFeature(torch.zeros(5, 2)), cache)
