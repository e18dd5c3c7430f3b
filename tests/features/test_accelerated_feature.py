"""AcceleratedFeature against torch's own indexing: both transfers, with and without kernels, on the
CPU in its part."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph.accelerator import HostAccelerator, StagingRing, accelerator_for
from pagraph.features.feature import DeviceFeature, HostFeature
from pagraph.features.gpu.accelerated import AcceleratedFeature, ReadGroup
from pagraph.features.gpu.transfer import Transfer
from pagraph.features.narrow import NarrowFeature, WideFeature
from pagraph.features.store import CachedFeature, FeatureCache, slots_for
from pagraph.graph.stored_rows import IndexedRows

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
needs_interpreter = pytest.mark.skipif(
    not HostAccelerator().runs_kernels, reason="needs Triton's interpreter"
)
WAYS = [*(["zero-copy"] if HostAccelerator().runs_kernels else []), "staging", "no kernels"]


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
    return left.shape == right.shape and torch.equal(
        left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8)
    )


def cache_of(stored, keep, num_rows):
    """A cache of the rows ``keep``, as the device has it."""
    slots = slots_for(keep, num_rows)
    return FeatureCache(stored.read(keep), slots, slots.clone())


def feature_of(source, cache=None, way="zero-copy", slot_bytes=2048):
    """The feature that delivers in one of the ways."""
    accelerator = WithoutKernels() if way == "no kernels" else HostAccelerator()
    ring = StagingRing(accelerator, slots=2, slot_bytes=slot_bytes)
    mode = (
        "zero-copy"
        if way == "zero-copy" and isinstance(source, HostFeature) and source.rows is not None
        else "staging"
    )
    return AcceleratedFeature(source, cache, accelerator, ring, Transfer(accelerator, mode))


def read_there(feature, source, ids, ends, out):
    """Read rows of ids that are on the device alone."""
    group = ReadGroup(feature._accelerator, feature._ring, [(ids, ids)], len(ends))
    counted = feature._read_far(source, group, 0, None, torch.tensor(ends).numpy(), out)
    group.end()
    return feature.finish(group, 0, counted)


@st.composite
def cases(draw):
    """Rows of any dtype, stride and offset, what is cached of them, ids and where their parts
    end."""
    dtype, way = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(WAYS))
    width, num_rows = draw(st.sampled_from([1, 3, 7, 16, 129])), draw(st.integers(1, 40))
    seed, layout = (
        draw(st.integers(0, 99)),
        draw(st.sampled_from(["plain", "1-D", "offset", "columns", "reference"])),
    )
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
    assert hits.wait() == tuple(
        int(served[a:b].sum()) for a, b in zip([0, *bounds], bounds, strict=False)
    )
    assert hits.now() == hits.wait()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cached", [None, 0, 7, 20])
@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_narrow_rows_are_those_of_the_cpu(dtype, narrow, cached, way):
    rows = torch.randn(20, 9, dtype=dtype)
    rows[3, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-7])
    rows[5, :4] = torch.tensor([-float("nan"), -float("inf"), 2.0**-24, 6e4])
    source = NarrowFeature(HostFeature(rows), narrow, "feat")
    ids = torch.tensor([3, 5, 0, 19, 3, 11])
    cache = None if cached is None else cache_of(source, torch.arange(20)[:cached], 20)
    on_cpu = WideFeature(source) if cache is None else CachedFeature(source, cache)
    feature = feature_of(source, cache, way)
    out, hits = feature.read_counted(ids)
    assert feature.dtype == dtype
    assert same_bits(out, on_cpu.read(ids))
    assert hits.wait() == (sum(i < (cached or 0) for i in ids.tolist()),)


def test_a_value_too_large_for_the_cache_is_refused():
    rows = torch.ones(4, 3)
    rows[2, 1] = 7e4
    feature = feature_of(NarrowFeature(HostFeature(rows), torch.float16, "feat"))
    with pytest.raises(
        ValueError, match="cache_dtype must hold the values of field 'feat', got 70000"
    ):
        feature.read(torch.tensor([0, 2]))


@pytest.mark.parametrize("way", ["zero-copy", "no kernels"])
def test_rows_on_the_device_are_read_there(way):
    rows = rows_of((11, 6), torch.int16)[:, 1:4]
    for tensor in (rows, rows.t()):
        feature = feature_of(DeviceFeature(tensor), way=way)
        ids = torch.tensor([2, 0, 2])
        out, hits = feature.read_counted(ids, bounds=[1, 3])
        assert same_bits(out, tensor[ids]) and hits.now() == (0, 0)
        assert feature.tier == "device"


def test_a_field_on_another_device_is_refused():
    with pytest.raises(
        ValueError, match="must be on the CPU or on the loader's device cpu, got one on meta"
    ):
        feature_of(DeviceFeature(torch.zeros(3, 2, device="meta")))


@pytest.mark.parametrize("way", WAYS)
def test_bad_ids_raise_as_elsewhere(way):
    source = HostFeature(torch.zeros(5, 2))
    feature = feature_of(source, cache_of(source, torch.tensor([1]), 5), way)
    for bad in (5, -1, 2**31):
        with pytest.raises(IndexError, match=rf"ids must be in \[0, 5\), got {bad} at position 1"):
            feature.read(torch.tensor([1, bad]))
    with pytest.raises(TypeError, match="ids must be an int32 or int64 tensor, got torch.int16"):
        feature.read(torch.tensor([1], dtype=torch.int16))
    with pytest.raises(ValueError, match="ids must be 1-D"):
        feature.read(torch.tensor([[1]]))
    with pytest.raises(ValueError, match=r"bounds must ascend to the number of ids, 1"):
        feature.read_counted(torch.tensor([1]), bounds=[2])
    with pytest.raises(ValueError, match="out must have shape"):
        feature.read(torch.tensor([1]), torch.zeros(2, 2))


@pytest.mark.parametrize("way", WAYS)
def test_no_ids_and_rows_without_values(way):
    feature = feature_of(HostFeature(torch.zeros(5, 2)), way=way)
    assert feature.read(torch.tensor([], dtype=torch.int64)).shape == (0, 2)
    empty = feature_of(HostFeature(torch.zeros(5, 0, 3)), way=way)
    out, hits = empty.read_counted(torch.tensor([4, 1], dtype=torch.int32), bounds=[1, 2])
    assert out.shape == (2, 0, 3) and hits.now() == (0, 0)
    with pytest.raises(IndexError):
        empty.read(torch.tensor([5]))


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_written_where_they_are_asked_for(way):
    rows = rows_of((30, 5), torch.int16)
    memory = torch.zeros(7, 5, dtype=torch.int16)
    source = HostFeature(rows)
    feature = feature_of(source, cache_of(source, torch.arange(10), 30), way)
    ids = torch.tensor([29, 3, 3, 12, 0])
    out = feature.read(ids, memory[1:6])
    assert out.data_ptr() == memory[1].data_ptr()
    assert same_bits(out, rows[ids]) and not memory[0].any() and not memory[6].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cached", [0, 2])
def test_rows_larger_than_a_buffer_of_the_ring(way, cached):
    rows = rows_of((6, 300), torch.float64)  # 2400 bytes each
    source = HostFeature(rows)
    feature = feature_of(source, cache_of(source, torch.arange(cached), 6), way, slot_bytes=1000)
    ids = torch.tensor([5, 0, 1, 4])
    assert same_bits(feature.read(ids), rows[ids])


def test_rows_that_are_not_contiguous():
    rows = rows_of((4, 30), torch.float32).t()
    assert same_bits(
        feature_of(HostFeature(rows), way="staging").read(torch.tensor([29, 0])), rows[[29, 0]]
    )


@pytest.mark.parametrize("way", WAYS)
def test_ids_from_the_device(way):
    # With the CPU in the part of the device its ids are the CPU's: the way of a device's ids is
    # asked for by name.
    rows = rows_of((20, 3), torch.int64)
    source = HostFeature(rows)
    feature = feature_of(source, cache_of(source, torch.tensor([4, 9]), 20), way)
    ids, out = (
        torch.tensor([9, 1, 4, 9, 19], dtype=torch.int32),
        torch.empty(5, 3, dtype=torch.int64),
    )
    hits = read_there(feature, source, ids, [1, 5], out)
    assert same_bits(out, rows[ids.long()]) and hits.wait() == (1, 2)


@needs_interpreter
def test_ids_of_a_device_that_are_out_of_range_read_nothing():
    rows = rows_of((20, 3), torch.int64)
    source = HostFeature(rows)
    feature = feature_of(source, cache_of(source, torch.tensor([4, 9]), 20))
    ids, out = torch.tensor([-1, 20, 9, 2**40]), torch.full((4, 3), 7)
    hits = read_there(feature, source, ids, [4], out)
    assert hits.wait() == (1,)
    assert torch.equal(
        out, torch.where(torch.tensor([[False], [False], [True], [False]]), rows[9], 0)
    )


def test_caches_that_do_not_fit_are_refused():
    source, slots = HostFeature(torch.zeros(5, 2)), slots_for(torch.tensor([1]), 5)
    for cache, message in [
        (FeatureCache(torch.zeros(1, 3), slots, slots), r"cache must hold rows of shape \(2,\)"),
        (
            FeatureCache(torch.zeros(1, 2, dtype=torch.int8), slots, slots),
            "and dtype torch.float32",
        ),
        (
            FeatureCache(torch.zeros(1, 2), slots),
            "must have its rows and device_slots on cpu, got cpu and None",
        ),
        (FeatureCache(torch.zeros(1, 2), slots[:4], slots[:4]), "a slot for each of 5 rows, got 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            feature_of(source, cache)


@pytest.mark.parametrize("way", WAYS)
def test_many_threads_share_a_ring_of_few_buffers(way):
    rows = rows_of((200, 8), torch.float32)
    source = HostFeature(rows)
    feature = feature_of(
        source, cache_of(source, torch.arange(0, 200, 3), 200), way, slot_bytes=1024
    )
    wrong = []

    def reads(seed):
        for i in range(5):
            ids = torch.randint(200, (90,), generator=torch.Generator().manual_seed(10 * seed + i))
            if not same_bits(feature.read(ids), rows[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=reads, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["zero-copy", "staging"])
@pytest.mark.parametrize("cached", [0, 300, 1000])
@pytest.mark.parametrize("narrow", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_counts_on_a_gpu_are_those_of_the_cpu(dtype, narrow, cached, mode):
    accelerator = accelerator_for(torch.device("cuda", 0))
    source = HostFeature(torch.randn(1000, 100, dtype=dtype))
    stored = source if narrow is None else NarrowFeature(source, narrow, "feat")
    keep = torch.randperm(1000)[:cached]
    near = cache_of(stored, keep, 1000)
    there = FeatureCache(near.rows.cuda(), near.slots, near.slots.cuda())
    ring, transfer = (
        StagingRing(accelerator, slot_bytes=1 << 16),
        Transfer(accelerator, "staging" if narrow else mode),
    )
    feature = AcceleratedFeature(stored, there, accelerator, ring, transfer)
    ids, bounds = torch.randint(1000, (4000,)), [100, 100, 4000]
    expected, counts = CachedFeature(stored, near).read_counted(ids, bounds=bounds)
    torch.cuda.synchronize()
    with accelerator.stream("reading").use():
        for given in (ids, ids.cuda(), ids.int().cuda()):
            out, hits = feature.read_counted(given, bounds=bounds)
            assert hits.wait() == counts
            assert same_bits(out.cpu(), expected)
    transfer.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_reading_by_zero_copy_waits_for_nothing():
    accelerator = accelerator_for(torch.device("cuda", 0))
    rows = torch.randn(1000, 64)
    cache = cache_of(HostFeature(rows), torch.arange(500), 1000)
    cache = FeatureCache(cache.rows.cuda(), cache.slots, cache.slots.cuda())
    transfer, ring = Transfer(accelerator, "zero-copy"), StagingRing(accelerator)
    feature = AcceleratedFeature(HostFeature(rows), cache, accelerator, ring, transfer)
    stream = accelerator.stream("reading")
    with stream.use():
        feature.read(torch.arange(10))  # compiles, and makes the ring's buffer
        stream.record().wait()
        torch.cuda._sleep(10**9)
        out, hits = feature.read_counted(torch.arange(1000))
        assert hits.now() is None
        assert hits.wait() == (500,)
    assert torch.equal(out.cpu(), rows)
    transfer.close()
