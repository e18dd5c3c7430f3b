"""The gather kernel against torch's indexing: widths, lines, strides, tables, caches and ids at the
borders."""

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.accelerator import HostAccelerator, accelerator_for
from pagraph.features.gpu import reachable
from pagraph.features.gpu.reachable import ReachableRows, gather
from pagraph.features.store import FeatureCache, slots_for
from pagraph.graph.row_form import FORMS, Decoding

pytest.importorskip("triton")
needs_interpreter = pytest.mark.skipif(
    not HostAccelerator().runs_kernels, reason="needs Triton's interpreter"
)
ON_CPU = HostAccelerator()
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param("cpu", marks=needs_interpreter),
    pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu]),
]


def accelerator_of(kind):
    """The accelerator, and where it wants the tensors of a test."""
    return ON_CPU if kind == "cpu" else accelerator_for(torch.device("cuda", 0))


def byte_rows(num_rows, row_bytes, stride, begin, seed=0):
    """Rows of random bytes in a larger memory, ``begin`` bytes after a line of 128; and the rows as
    they are read."""
    memory = np.random.default_rng(seed).integers(
        256, size=num_rows * stride + row_bytes + 256, dtype=np.uint8
    )
    first = -memory.ctypes.data % 128 + begin
    flat = torch.from_numpy(memory[first : first + max(0, num_rows - 1) * stride + row_bytes])
    return ReachableRows(flat, stride, num_rows), flat.as_strided(
        (num_rows, row_bytes), (stride, 1)
    )


@st.composite
def layouts(draw):
    """Bytes of a row, from one to the next, and from a line's begin to the first."""
    unit = draw(st.sampled_from([1, 2, 4, 8, 16]))
    row_bytes = unit * draw(st.integers(1, 40) | st.sampled_from([64, 129]))
    return (
        row_bytes,
        row_bytes + unit * draw(st.integers(0, 5)),
        unit * draw(st.integers(0, 128 // unit - 1)),
    )


@pytest.mark.compilers
@pytest.mark.parametrize("kind", DEVICES)
@given(layout=layouts(), data=st.data())
@hypothesis_settings(
    max_examples=examples(15) if torch.cuda.is_available() else 100
)  # a GPU compiles each
def test_rows_of_any_layout(kind, layout, data):
    row_bytes, stride, begin = layout
    accelerator = accelerator_of(kind)
    num_rows = data.draw(st.integers(1, 30))
    rows, values = byte_rows(num_rows, row_bytes, stride, begin, num_rows)
    cached = data.draw(st.sets(st.integers(0, num_rows - 1), max_size=10))
    ids = torch.tensor(
        data.draw(st.lists(st.integers(-2, num_rows + 1), max_size=40)), dtype=torch.int64
    )
    ends = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    keep = torch.tensor(sorted(cached), dtype=torch.int64)
    slots = slots_for(keep, num_rows)
    known = (ids >= 0) & (ids < num_rows)
    hit = known & (slots[torch.where(known, ids, 0)] >= 0)
    expected = torch.where(known[:, None], values[torch.where(known, ids, 0)], 0)

    device = accelerator.device
    pin = accelerator.pin(rows.memory)
    out = torch.full((len(ids), row_bytes), 99, dtype=torch.uint8, device=device)
    hits = torch.zeros(len(ends), dtype=torch.int64, device=device)
    cache = FeatureCache(values[keep].contiguous().to(device), slots, slots.to(device))
    counting = (ends, hits)
    gather(
        accelerator,
        ids.to(device),
        out,
        num_rows=num_rows,
        rows=rows,
        cache=cache,
        counting=counting,
    )
    assert torch.equal(out.cpu(), expected)
    assert hits.tolist() == [int(hit[a:b].sum()) for a, b in zip([0, *ends], ends, strict=False)]

    out.fill_(99)
    gather(accelerator, ids.to(device), out, num_rows=num_rows, rows=None, cache=cache, leave=True)
    assert torch.equal(out.cpu(), torch.where(hit[:, None], expected, 99))
    gather(accelerator, ids.to(device), out, num_rows=num_rows, rows=rows, cache=None)
    assert torch.equal(out.cpu(), expected)
    with pytest.MonkeyPatch.context() as patch:  # in the order of host memory
        patch.setattr(reachable, "_WORTH_ORDERING", 0)
        out.fill_(99)
        hits.zero_()
        gather(
            accelerator,
            ids.to(device),
            out,
            num_rows=num_rows,
            rows=rows,
            cache=cache,
            counting=counting,
        )
    assert torch.equal(out.cpu(), expected)
    assert hits.tolist() == [int(hit[a:b].sum()) for a, b in zip([0, *ends], ends, strict=False)]
    assert pin is not None


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("row_bytes", [2048 + 16, 4096, 5000, 3 * 2048 + 2])
def test_rows_wider_than_a_tile(kind, row_bytes):
    accelerator = accelerator_of(kind)
    rows, values = byte_rows(9, row_bytes, row_bytes + 2, 64)
    slots = slots_for(torch.tensor([5, 2]), 9)
    device = accelerator.device
    pin = accelerator.pin(rows.memory)
    cache = FeatureCache(values[[5, 2]].contiguous().to(device), slots, slots.to(device))
    ids = torch.tensor([8, 2, 0, 5, 5, 1], dtype=torch.int32, device=device)
    out = accelerator.empty((6, row_bytes), torch.uint8)
    hits = torch.zeros(2, dtype=torch.int64, device=device)
    counting = ([4, 6], hits)
    gather(accelerator, ids, out, num_rows=9, rows=rows, cache=cache, counting=counting)
    assert torch.equal(out.cpu(), values[ids.long().cpu()])
    assert hits.tolist() == [2, 1] and pin is not None


@needs_interpreter
def test_hits_of_more_parts_than_one_launch_counts():
    rows, values = byte_rows(40, 8, 8, 8)
    slots = slots_for(torch.arange(0, 40, 3), 40)
    cache = FeatureCache(values[::3].contiguous(), slots, slots)
    ids, ends = (
        torch.randint(40, (200,)),
        [0, 5, 5, 17, 40, 41, 90, 120, 150, 151, 180, 180, 190, 195, 196, 199, 200],
    )
    out, hits = torch.empty(200, 8, dtype=torch.uint8), torch.zeros(len(ends), dtype=torch.int64)
    gather(ON_CPU, ids, out, num_rows=40, rows=rows, cache=cache, counting=(ends, hits))
    assert torch.equal(out, values[ids])
    assert hits.tolist() == [
        int((ids[a:b] % 3 == 0).sum()) for a, b in zip([0, *ends], ends, strict=False)
    ]


@needs_interpreter
@pytest.mark.parametrize(
    ("count", "row_bytes"), [(1, 8), (255, 8), (257, 8), (1100, 8), (90, 520), (33, 4104)]
)
def test_few_programs_read_all_tiles(monkeypatch, count, row_bytes):
    monkeypatch.setattr(reachable, "_ON_THE_BUS", 2)
    rows, values = byte_rows(40, row_bytes, row_bytes, 8)
    slots = slots_for(torch.arange(0, 40, 3), 40)
    cache = FeatureCache(values[::3].contiguous(), slots, slots)
    ids = torch.randint(40, (count,))
    out, hits = torch.empty(count, row_bytes, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    gather(ON_CPU, ids, out, num_rows=40, rows=rows, cache=cache, counting=([count], hits))
    assert torch.equal(out, values[ids])
    assert hits.tolist() == [int((ids % 3 == 0).sum())]


@needs_interpreter
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_rows_far_beyond_what_32_bits_address(id_dtype):
    # 2**31 rows of one byte in memory that is never touched but for two pages. The tensor that the
    # kernel is given ends after the first page: the interpreter writes back all of an argument's
    # memory.
    memory = mmap.mmap(-1, 2**31 + 4096)
    whole = np.frombuffer(memory, dtype=np.uint8)
    whole[[0, 2**31 - 1]] = 5, 7
    rows = ReachableRows(torch.from_numpy(whole[:4096]), 1, 2**31 + 1)
    ids = torch.tensor([2**31 - 1, 0, 1], dtype=id_dtype)
    out = torch.empty(3, 1, dtype=torch.uint8)
    gather(ON_CPU, ids, out, num_rows=2**31 + 1, rows=rows, cache=None)
    assert out.flatten().tolist() == [7, 5, 0]

    wide = ReachableRows(torch.from_numpy(whole[:4096]), 2**27, 16)
    whole[15 * 2**27 : 15 * 2**27 + 8] = range(8)
    out = torch.empty(2, 8, dtype=torch.uint8)
    gather(ON_CPU, torch.tensor([15, 1], dtype=id_dtype), out, num_rows=16, rows=wide, cache=None)
    assert out.tolist() == [list(range(8)), [0] * 8]
    del whole, rows, wide  # views of the map


@needs_interpreter
def test_an_id_beyond_32_bits_reads_its_row():
    memory = mmap.mmap(-1, 2**31 + 8192)
    whole = np.frombuffer(memory, dtype=np.uint8)
    whole[2**31 + 5000] = 3
    rows = ReachableRows(torch.from_numpy(whole[:4096]), 1, 2**31 + 8192)
    ids = torch.tensor([2**31 + 5000, 2**31 + 8192, 2**32 + 1, -(2**31)])
    out = torch.empty(4, 1, dtype=torch.uint8)
    gather(ON_CPU, ids, out, num_rows=2**31 + 8192, rows=rows, cache=None)
    assert out.flatten().tolist() == [3, 0, 0, 0]
    del whole, rows


@needs_interpreter
def test_tables_that_point_outside_read_nothing():
    rows, values = byte_rows(4, 24, 24, 0)
    table = torch.tensor([3, 9, -1, 0], dtype=torch.int32)
    there = ReachableRows(rows.memory, 24, 4, table)
    out = torch.empty(5, 24, dtype=torch.uint8)
    gather(ON_CPU, torch.tensor([0, 1, 2, 3, 4]), out, num_rows=4, rows=there, cache=None)
    zeros = torch.zeros(24, dtype=torch.uint8)
    assert torch.equal(out, torch.stack([values[3], zeros, zeros, values[0], zeros]))


@needs_interpreter
def test_slots_beyond_the_cache_are_misses():
    # Fields of one type share a table, also where they cache different numbers of rows.
    rows, values = byte_rows(6, 8, 8, 0)
    slots = torch.tensor([4, 0, -1, 1, 2, -5], dtype=torch.int32)
    cache = FeatureCache(torch.full((2, 8), 9, dtype=torch.uint8), slots, slots)
    out, hits = torch.empty(6, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    ids = torch.arange(6)
    gather(ON_CPU, ids, out, num_rows=6, rows=rows, cache=cache, counting=([6], hits))
    assert hits.tolist() == [2]
    assert torch.equal(
        out, torch.where(torch.tensor([0, 1, 0, 1, 0, 0], dtype=torch.bool)[:, None], 9, values)
    )


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_narrow_hits_become_wide_exactly(kind, narrow, wide):
    accelerator = accelerator_of(kind)
    device = accelerator.device
    bits = torch.arange(-(2**15), 2**15, 7).to(torch.int16)
    rows = bits.view(narrow)[: len(bits) // 9 * 9].view(-1, 9)
    rows = torch.where(rows.isnan(), torch.nan, rows)  # one NaN, as the cache has it
    slots = torch.arange(len(rows), dtype=torch.int32)
    cache = FeatureCache(rows.to(device), slots, slots.to(device))
    out = torch.empty(len(rows), 9, dtype=wide, device=device)
    decoding = Decoding(FORMS[str(narrow).removeprefix("torch.")], wide, (9,))
    gather(
        accelerator,
        slots.to(device),
        out,
        num_rows=len(rows),
        rows=None,
        cache=cache,
        decoding=decoding,
    )
    raw = torch.int32 if wide == torch.float32 else torch.int64
    got, expected = out.cpu(), rows.to(wide)
    assert torch.equal(got.isnan(), expected.isnan())  # of which devices have bits of their own
    assert torch.equal(got.nan_to_num(7.0).view(raw), expected.nan_to_num(7.0).view(raw))
