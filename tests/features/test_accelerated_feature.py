"""AcceleratedFeature against torch's own indexing: both transfers, with and without kernels, on the CPU in its part."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pagraph.accelerator import HostAccelerator, StagingRing
from pagraph.cache.store import FeatureCache, slots_for
from pagraph.features.accelerated import AcceleratedFeature
from pagraph.features.cached import CachedFeature
from pagraph.features.device import DeviceFeature
from pagraph.features.host import HostFeature
from pagraph.features.narrow import NarrowFeature, RoundedFeature
from pagraph.features.transfer import Transfer
from pagraph.indexed_rows import IndexedRows

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.complex64,
]
WAYS = ["zero-copy", "staging", "no kernels"]


class WithoutKernels(HostAccelerator):
    """As a GPU without Triton."""

    runs_kernels = False


def rows_of(shape, dtype, seed=0):
    """Random bits but for bool, so that NaN and all else must pass unchanged."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def same_bits(left, right):
    """Whether two tensors are equal, NaN by NaN."""
    left, right = left.contiguous(), right.contiguous()
    return left.shape == right.shape and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def cache_of(stored, keep, num_rows):
    """A cache of the rows ``keep``, as the device has it."""
    slots = slots_for(keep, num_rows)
    return FeatureCache(stored.read(keep), slots, slots.clone())


def feature_of(source, cache=None, way="zero-copy", slot_bytes=2048):
    """The feature that delivers in one of the ways."""
    accelerator = WithoutKernels() if way == "no kernels" else HostAccelerator()
    ring = StagingRing(accelerator, slots=2, slot_bytes=slot_bytes)
    mode = "zero-copy" if way == "zero-copy" and isinstance(source, HostFeature) and source.rows is not None else "staging"
    return AcceleratedFeature(source, cache, accelerator, ring, Transfer(accelerator, mode))


@st.composite
def cases(draw):
    """Rows of any dtype, stride and offset, what is cached of them, ids and where their parts end."""
    dtype, way = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(WAYS))
    width, num_rows = draw(st.sampled_from([1, 3, 7, 16, 129])), draw(st.integers(1, 40))
    seed, layout = draw(st.integers(0, 99)), draw(st.sampled_from(["plain", "1-D", "offset", "columns", "reference"]))
    rows = rows_of((num_rows, width), dtype, seed)
    if layout == "1-D":
        rows = rows_of((num_rows,), dtype, seed)
    elif layout == "offset":
        rows = rows_of((num_rows * width + 1,), dtype, seed)[1:].view(num_rows, width)
    elif layout == "columns":
        rows = rows_of((num_rows, width + 3), dtype, seed)[:, 2 : width + 2]
    field = rows
    if layout == "reference":
        table = torch.tensor(draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=50)))
        field = IndexedRows(rows, table.to(draw(st.sampled_from([torch.int32, torch.int64]))))
    cached = draw(st.none() | st.sampled_from([0.0, 0.4, 1.0]))
    id_dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    ids = torch.tensor(draw(st.lists(st.integers(0, len(field) - 1), max_size=30)), dtype=id_dtype)
    bounds = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=3))) + [len(ids)]
    return field, cached, ids, bounds, way


@given(cases())
def test_rows_and_counts_are_those_of_indexing(case):
    field, cached, ids, bounds, way = case
    source = HostFeature(field)
    cache = None
    if cached is not None:
        keep = torch.randperm(len(field))[: round(cached * len(field))]
        cache = cache_of(source, keep, len(field))
    out, hits = feature_of(source, cache, way).read_counted(ids, bounds=bounds)
    assert same_bits(out, field[ids.long()])
    served = torch.zeros(len(ids)) if cache is None else cache.slots[ids.long()] >= 0
    assert hits.wait() == tuple(int(served[a:b].sum()) for a, b in zip([0, *bounds], bounds, strict=False))
    assert hits.now() == hits.wait()
