"""Rows in 16 bits: the same values from the cache, beside it and without one, by every way of
reading."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.features import CachedFeature, DiskFeature, HostFeature
from pagraph.features.narrow import NarrowFeature, WideFeature, stored_as
from pagraph.features.store import fill_cache, holds

CPU = torch.device("cpu")
HALVES = [torch.float16, torch.bfloat16]


def layouts(values):
    """The same rows as memory of several kinds: in one run each, apart, in no run, misaligned."""
    count, width = values.shape
    yield "plain", values.clone()
    wide = torch.zeros(count, width + 3, dtype=values.dtype)
    wide[:, 1 : width + 1] = values
    yield "column slice", wide[:, 1 : width + 1]
    yield "transposed", values.t().contiguous().t()
    raw = bytearray(b"abc" + values.numpy().tobytes())
    yield "misaligned", torch.frombuffer(raw, dtype=values.dtype, offset=3).view(count, width)


def reference(values, dtype):
    return values.float().to(dtype).to(values.dtype)


@pytest.mark.parametrize("layout", ["plain", "column slice", "transposed", "misaligned"])
@pytest.mark.parametrize("field_dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("width", [1, 5, 33, 128])
def test_cached_missing_and_uncached_rows_are_rounded_alike(layout, field_dtype, dtype, width):
    generator = torch.Generator().manual_seed(width)
    values = torch.randn(60, width, generator=generator).to(field_dtype) * 3
    narrow = NarrowFeature(HostFeature(dict(layouts(values))[layout]), dtype, "feat")
    chosen = torch.randperm(60, generator=generator)[:23]
    ids = torch.randint(0, 60, (150,), generator=generator)
    cache = fill_cache(narrow, chosen, device=CPU, num_nodes=60)
    assert cache.rows.dtype == dtype and cache.row_nbytes == 23 * width * 2
    assert torch.equal(cache.rows, values[chosen].float().to(dtype))
    assert holds(cache, narrow, chosen)
    rows, hits = CachedFeature(narrow, cache).read_counted(ids, bounds=[10, 10, 150])
    expected, hit = reference(values, dtype)[ids], torch.isin(ids, chosen)
    assert rows.dtype == field_dtype and torch.equal(rows, expected)
    assert hits == (int(hit[:10].sum()), 0, int(hit[10:].sum()))
    assert torch.equal(WideFeature(narrow).read(ids), expected)
    assert torch.equal(narrow.read(ids), expected.to(dtype))
    assert torch.equal(narrow.source.read(ids), values[ids])  # the field itself is not touched


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_bits_any_ids_any_cache(data):
    num_rows, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20))
    seed = data.draw(st.integers(0, 2**31))
    raw = (
        np.random.default_rng(seed)
        .integers(0, 2**32, (num_rows, width), dtype=np.uint64)
        .astype(np.uint32)
    )
    values = torch.from_numpy(raw.view(np.float32))
    values[(values.abs() > 3e38) & values.isfinite()] = float("-inf")  # what bfloat16 refuses
    narrow = NarrowFeature(HostFeature(values), torch.bfloat16, "feat")
    chosen = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), unique=True)), dtype=torch.int64
    )
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), max_size=60)), dtype=torch.int32
    )
    cached = CachedFeature(narrow, fill_cache(narrow, chosen, device=CPU, num_nodes=num_rows))
    rows, without = cached.read(ids), WideFeature(narrow).read(ids)
    assert torch.equal(rows.view(torch.int32), without.view(torch.int32))  # bits: NaN too
    assert torch.equal(rows.nan_to_num(1.5), values.bfloat16().float()[ids.long()].nan_to_num(1.5))


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("field_dtype", [torch.float32, torch.float64], ids=str)
def test_rows_of_any_shape(shape, field_dtype):
    values = torch.rand(9, *shape).to(field_dtype)
    narrow = NarrowFeature(HostFeature(values), torch.float16, "feat")
    feature = CachedFeature(
        narrow, fill_cache(narrow, torch.tensor([4, 2]), device=CPU, num_nodes=9)
    )
    ids = torch.tensor([2, 8, 4, 4])
    rows, hits = feature.read_counted(ids)
    assert torch.equal(rows, reference(values, torch.float16)[ids]) and hits == (3,)
    assert torch.equal(WideFeature(narrow).read(ids), rows)
    assert (feature.dtype, feature.row_bytes, feature.row_shape) == (
        field_dtype,
        values[0].nbytes,
        shape,
    )


@pytest.mark.parametrize("field_dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_nan_infinities_and_signed_zeros_pass(field_dtype, dtype):
    values = torch.tensor(
        [[float("nan"), 1.0], [float("inf"), -float("inf")], [-0.0, 0.0]], dtype=field_dtype
    )
    narrow = NarrowFeature(HostFeature(values), dtype, "feat")
    for chosen in ([], [0, 1, 2], [1]):
        cache = fill_cache(narrow, torch.tensor(chosen, dtype=torch.int64), device=CPU, num_nodes=3)
        rows = CachedFeature(narrow, cache).read(torch.arange(3))
        assert rows[0].isnan().tolist() == [True, False] and torch.equal(rows[1], values[1])
        assert torch.signbit(rows[2]).tolist() == [True, False] and not rows[2].any()


TOO_LARGE = [
    (
        torch.float32,
        torch.float16,
        65520.0,
        "got 65520, but the largest value of float16 is 65504: use bfloat16",
    ),
    (torch.float64, torch.float16, -1e5, "got 100000, but the largest value of float16"),
    (torch.float64, torch.float16, 1e300, r"got 1e\+300, but the largest value of float16"),
    (
        torch.float32,
        torch.bfloat16,
        3.4e38,
        r"got 3.4e\+38, but the largest value of bfloat16 is 3.38953e\+38$",
    ),
    (torch.float64, torch.bfloat16, 1e39, r"got 1e\+39, but the largest value of bfloat16"),
]


@pytest.mark.parametrize(("field_dtype", "dtype", "value", "text"), TOO_LARGE)
def test_values_that_would_become_infinite_are_refused_wherever_they_are_read(
    field_dtype, dtype, value, text
):
    values = torch.zeros(6, 3, dtype=field_dtype)
    values[4, 1] = value
    narrow = NarrowFeature(HostFeature(values), dtype, "feat")
    text = f"cache_dtype must hold the values of field 'feat', {text}"
    cache = fill_cache(narrow, torch.tensor([1]), device=CPU, num_nodes=6)
    for read in (narrow.read, WideFeature(narrow).read, CachedFeature(narrow, cache).read):
        assert not read(torch.tensor([0, 1, 2, 3])).any()
        with pytest.raises(ValueError, match=text):
            read(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=text):
        fill_cache(narrow, torch.tensor([4]), device=CPU, num_nodes=6)


def test_the_largest_numbers_are_not_refused():
    for dtype, value in ((torch.float16, 65519.996), (torch.bfloat16, 3.39e38)):
        narrow = NarrowFeature(HostFeature(torch.full((2, 2), value)), dtype, "feat")
        assert (WideFeature(narrow).read(torch.tensor([1])) == torch.finfo(dtype).max).all()


def test_fields_that_float16_can_hardly_hold_are_warned_of():
    tiny, usual = torch.full((5, 2), 1e-9), torch.tensor([[0.0], [1e-9], [1.0]])
    for values, warns in (
        (tiny, True),
        (tiny.double(), True),
        (usual, False),
        (torch.zeros(3, 2), False),
    ):
        narrow = NarrowFeature(HostFeature(values), torch.float16, "feat")
        narrow.read(torch.arange(len(values)))
        if warns:
            with pytest.warns(
                UserWarning, match=r"float16 loses most of field 'feat', .*: use bfloat16"
            ):
                narrow.warn_of_tiny()
        else:
            narrow.warn_of_tiny()  # a warning would be an error
    narrow = NarrowFeature(HostFeature(tiny), torch.bfloat16, "feat")
    narrow.read(torch.arange(5))
    narrow.warn_of_tiny()


@pytest.mark.parametrize("field_dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bad", [-1, 6, 2**33])
def test_bad_ids(field_dtype, bad):
    narrow = NarrowFeature(HostFeature(torch.zeros(6, 3, dtype=field_dtype)), torch.float16, "feat")
    cache = fill_cache(narrow, torch.tensor([1]), device=CPU, num_nodes=6)
    for read in (narrow.read, WideFeature(narrow).read, CachedFeature(narrow, cache).read):
        with pytest.raises(IndexError, match=rf"ids must be in \[0, 6\), got {bad} at position 2"):
            read(torch.tensor([1, 0, bad]))


def test_only_wide_float_fields_are_stored_otherwise():
    for dtype in (torch.float16, torch.int64, torch.bool, torch.complex64):
        source = HostFeature(torch.zeros(4, 2).to(dtype))
        assert stored_as(source, torch.bfloat16, "feat") is source
    source = DiskFeature(torch.zeros(4, 2))
    assert stored_as(source, None, "feat") is source
    stored = stored_as(source, torch.float16, "feat")
    assert isinstance(stored, NarrowFeature)
    assert (stored.dtype, stored.row_bytes, stored.tier, stored.num_rows) == (
        torch.float16,
        4,
        "disk",
        4,
    )


def test_a_cache_of_the_other_width_is_refused():
    source = HostFeature(torch.zeros(4, 2))
    narrow = NarrowFeature(source, torch.float16, "feat")
    cache = fill_cache(narrow, torch.tensor([1]), device=CPU, num_nodes=4)
    with pytest.raises(ValueError, match="dtype torch.float32, got .* torch.float16"):
        CachedFeature(source, cache)
