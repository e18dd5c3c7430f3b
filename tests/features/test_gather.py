"""Rows by id against torch's own indexing: every dtype, shape, layout and kind of ids."""

import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import picked, same
from tiers import examples

from pagraph.features import CachedFeature, HostFeature
from pagraph.features.store import fill_cache
from pagraph.system.buffers import BufferPool

CPU = torch.device("cpu")
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128),
]
SHAPES = [(), (1,), (3,), (17,), (128,), (2, 3), (4, 1, 5)]


def random_tensor(shape, dtype, seed=0):
    """Random bits; read back as bytes, so that NaN equals NaN."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        raw = raw % 2
    return raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_read_equals_indexing_for_every_dtype_and_shape(dtype):
    ids = torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(1))
    for shape in SHAPES:
        tensor = random_tensor((50, *shape), dtype)
        rows = HostFeature(tensor).read(ids)
        assert same(rows, picked(tensor, ids)), shape
        assert rows.is_contiguous() and rows.device == CPU, shape


def test_rows_of_any_few_bytes():
    """Several widths have copies of their own."""
    ids = torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(1))
    for width in range(1, 70):
        tensor = random_tensor((50, width), torch.uint8)
        assert torch.equal(HostFeature(tensor).read(ids), tensor[ids]), width


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_pool_lends_memory_of_every_dtype_and_shape(dtype):
    pool = BufferPool(most=2)
    for shape in SHAPES:
        for _ in range(2):  # the second time recycled
            lent = pool.take((5, *shape), dtype)
            assert lent.shape == (5, *shape) and lent.dtype == dtype
            assert lent.is_contiguous() and lent.data_ptr() % 64 == 0
            other = pool.take((5, *shape), dtype)
            assert other.data_ptr() != lent.data_ptr()
            del lent, other


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cached_read_equals_indexing_and_counts_hits(dtype):
    ids = torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(1))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    for shape, count in itertools.product(SHAPES, [0, 1, 20, 50]):
        case = f"{shape=} {count=}"
        tensor = random_tensor((50, *shape), dtype)
        source = HostFeature(tensor)
        chosen = order[:count]
        feature = CachedFeature(source, fill_cache(source, chosen, device=CPU, num_nodes=50))
        rows, (hits,) = feature.read_counted(ids)
        assert same(rows, picked(tensor, ids)), case
        assert hits == int(torch.isin(ids, chosen).sum()), case


@pytest.mark.parametrize("shift", [0, 16, 4], ids="out begins {} bytes after a cache line".format)
@pytest.mark.parametrize("columns", [32, 36, 128, 129])
def test_many_rows_which_are_written_past_the_caches(columns, shift):
    count = 5 * 2**20 // (4 * columns)
    tensor, generator = random_tensor((50, columns), torch.int32), torch.Generator().manual_seed(1)
    ids = torch.randint(0, 50, (count,), generator=generator)
    room = torch.zeros(count * columns + 48, dtype=torch.int32)
    begin = (-room.data_ptr() % 64 + shift) // 4
    out = room[begin : begin + count * columns].view(count, columns)
    assert out.data_ptr() % 64 == shift and out.nbytes > 2**22
    source = HostFeature(tensor)
    source.read(ids, out)
    assert torch.equal(out, tensor[ids])
    assert not room[:begin].any() and not room[begin + out.numel() :].any()
    out.zero_()
    cached = CachedFeature(
        source, fill_cache(source, torch.arange(0, 50, 2), device=CPU, num_nodes=50)
    )
    cached.read(ids, out)
    assert torch.equal(out, tensor[ids])


def test_memory_is_lent_again_once_no_view_of_it_is_left():
    pool = BufferPool(most=2)
    first = pool.take((5, 3), torch.float32)
    address, view = first.data_ptr(), first[1:].T
    del first
    assert pool.take((5, 3), torch.float32).data_ptr() != address  # the view is left
    storage = view.untyped_storage()
    del view
    assert pool.take((5, 3), torch.float32).data_ptr() != address
    array = torch.empty(0, dtype=torch.float32).set_(storage).numpy()
    del storage
    assert pool.take((5, 3), torch.float32).data_ptr() != address
    del array
    again = [pool.take((5, 3), torch.float32) for _ in range(2)]
    assert address in [rows.data_ptr() for rows in again]


def test_a_pool_forgets_what_is_kept_for_long():
    pool = BufferPool(most=2)
    kept = [pool.take((5,), torch.float32) for _ in range(10)]
    for _ in range(3):
        lent = pool.take((5,), torch.float32)
        address = lent.data_ptr()
        del lent
        assert pool.take((5,), torch.float32).data_ptr() == address
    assert len({rows.data_ptr() for rows in kept}) == 10


def test_recycled_memory_begins_with_a_cache_line():
    pool = BufferPool(most=2)
    held = [pool.take((count, 3), torch.float32) for count in (1, 7, 50_000, 3_000_000)]
    assert [rows.data_ptr() % 64 for rows in held] == [0, 0, 0, 0]


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_read_equals_index_select(id_dtype, data):
    num_rows = data.draw(st.integers(1, 40))
    shape = data.draw(st.lists(st.integers(0, 6), max_size=3))
    dtype = data.draw(st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.bfloat16]))
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), max_size=80)), dtype=id_dtype
    )
    tensor = (torch.arange(num_rows * int(np.prod(shape))) % 251).view(num_rows, *shape).to(dtype)
    chosen = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), unique=True)), dtype=torch.int64
    )
    source = HostFeature(tensor)
    cached = CachedFeature(source, fill_cache(source, chosen, device=CPU, num_nodes=num_rows))
    expected = tensor.index_select(0, ids)
    assert torch.equal(source.read(ids), expected)
    assert torch.equal(cached.read(ids), expected)


def layouts():
    base = torch.arange(240).view(20, 12)
    yield "column slice", base[:, 3:7]
    yield "every second row", base[::2]
    yield "rows from 5", base[5:]
    yield "transposed", base.t()
    yield "every second column", base[:, ::2]
    yield "expanded rows", torch.arange(4).expand(20, 4)
    yield "expanded columns", torch.arange(20).view(20, 1).expand(20, 5)
    yield "inner transposed", torch.arange(120).view(10, 3, 4).transpose(1, 2)
    yield "one row", base[:1]
    yield "overlapping", torch.arange(30).as_strided((10, 5), (2, 1))
    yield "conjugate", torch.complex(torch.arange(6.0), torch.arange(6.0)).view(3, 2).conj()
    yield "negative", torch.complex(torch.arange(6.0), torch.arange(6.0)).view(3, 2).conj().imag


@pytest.mark.parametrize(("name", "tensor"), list(layouts()), ids=[name for name, _ in layouts()])
def test_every_layout_is_read_in_place(name, tensor):
    source = HostFeature(tensor)
    ids = torch.tensor([0, tensor.shape[0] - 1, 0, tensor.shape[0] // 2])
    assert torch.equal(source.read(ids), tensor[ids])
    cache = fill_cache(source, torch.tensor([0]), device=CPU, num_nodes=tensor.shape[0])
    rows, (hits,) = CachedFeature(source, cache).read_counted(ids)
    assert torch.equal(rows, tensor[ids]) and hits == int((ids == 0).sum())


@pytest.mark.parametrize("width", [7, 8, 9, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("start", [0, 1, 15])
def test_rows_that_end_at_the_end_of_memory(width, start):
    tensor = torch.arange(start + 40.0 * width)[start:].view(40, width)
    ids = torch.arange(40).flip(0)
    source = HostFeature(tensor)
    cached = CachedFeature(source, fill_cache(source, ids[:17], device=CPU, num_nodes=40))
    assert torch.equal(source.read(ids), tensor[ids]) and torch.equal(cached.read(ids), tensor[ids])


def test_misaligned_memory():
    values = np.arange(32, dtype=np.float32)
    tensor = torch.frombuffer(
        bytearray(b"abc" + values.tobytes()), dtype=torch.float32, offset=3
    ).view(8, 4)
    assert tensor.data_ptr() % 4 != 0
    assert HostFeature(tensor).read(torch.tensor([7, 0])).tolist() == [
        [28, 29, 30, 31],
        [0, 1, 2, 3],
    ]


@pytest.mark.parametrize("width", [0, 1, 9])
def test_no_ids_and_no_rows(width):
    empty = torch.empty(0, dtype=torch.int64)
    for num_rows in (0, 3):
        source = HostFeature(torch.zeros(num_rows, width))
        cached = CachedFeature(source, fill_cache(source, empty, device=CPU, num_nodes=num_rows))
        assert source.read(empty).shape == (0, width)
        assert cached.read_counted(empty)[1] == (0,)


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("bad", "place"), list(itertools.product([-1, 10, 11, -(2**31), 2**31 - 1], [0, 5, 99]))
)
def test_bad_ids_name_rule_value_and_place(width, id_dtype, bad, place):
    source = HostFeature(torch.zeros(10, width))
    cached = CachedFeature(source, fill_cache(source, torch.arange(5), device=CPU, num_nodes=10))
    ids = torch.zeros(100, dtype=id_dtype)
    ids[place] = bad
    for feature in (source, cached):
        with pytest.raises(
            IndexError, match=rf"ids must be in \[0, 10\), got {bad} at position {place}"
        ):
            feature.read(ids)


def test_bad_ids_beyond_32_bits():
    source = HostFeature(torch.zeros(10, 4))
    for bad in (2**40, -(2**40), 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match=f"got {bad}"):
            source.read(torch.tensor([0, bad] + [1] * 50))


@pytest.mark.parametrize(
    ("ids", "error", "text"),
    [
        ([1, 2], TypeError, "ids must be an int32 or int64 tensor, got list"),
        (torch.tensor([1.0]), TypeError, "got torch.float32"),
        (torch.tensor([True]), TypeError, "got torch.bool"),
        (torch.tensor([[1]]), ValueError, r"ids must be 1-D, got shape \(1, 1\)"),
        (torch.tensor(1), ValueError, r"ids must be 1-D, got shape \(\)"),
    ],
)
def test_ids_of_the_wrong_kind(ids, error, text):
    with pytest.raises(error, match=text):
        HostFeature(torch.zeros(3, 2)).read(ids)


def test_ids_may_be_strided_and_are_not_changed():
    ids = torch.arange(20)[::2]
    tensor = torch.randn(20, 3)
    assert torch.equal(HostFeature(tensor).read(ids), tensor[ids])
    assert ids.tolist() == list(range(0, 20, 2))


def test_threads_read_at_once():
    tensor = torch.randn(5000, 32)
    source = HostFeature(tensor)
    cached = CachedFeature(
        source, fill_cache(source, torch.arange(0, 5000, 3), device=CPU, num_nodes=5000)
    )
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            ids = torch.randint(0, 5000, (3000,), generator=generator)
            if not torch.equal(cached.read(ids), tensor[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
