"""Fields in fewer bytes: the same rows as of the values they are read as, by every way of
reading."""

import numpy as np
import pytest
import torch
from accelerated_sets import WithoutKernels, needs_interpreter, same_bits, set_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.features import CachedFeature, DiskFeature, HostFeature, IndexedRows, NarrowRows
from pagraph.features.field import host_feature, row_reader
from pagraph.features.gpu.reachable import ReachableRows, gather
from pagraph.features.narrow import NarrowFeature, WideFeature, stored_as
from pagraph.features.store import FeatureCache, fill_cache, holds, slots_for
from pagraph.graph.mapped import map_npy
from pagraph.graph.row_form import FORMS

pytestmark = pytest.mark.kernels


CPU = torch.device("cpu")
NAMES = list(FORMS)
N = 120


def values_of(width=33, dtype=torch.float32, rows=N):
    return (torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * 3).to(dtype)


def mapped(rows, folder):
    """The stored rows in a file."""
    bits = rows.stored.view(torch.int16) if rows.form.name == "bfloat16" else rows.stored
    np.save(folder / f"{rows.form.name}.npy", bits.numpy())
    return NarrowRows(map_npy(folder / f"{rows.form.name}.npy").view(rows.form.dtype), rows.dtype)


@pytest.mark.every
@pytest.mark.parametrize("where", ["memory", "disk", "by reference", "apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 5, 128])
def test_rows_from_a_cache_beside_it_and_without_one(name, dtype, width, where, tmp_path):
    rows = NarrowRows.of(values_of(width, dtype), name)
    whole = rows.materialize()
    if where == "disk":
        rows = mapped(rows, tmp_path)
    elif where == "by reference":
        order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
        rows, whole = NarrowRows(IndexedRows(rows.stored, order), dtype), whole[order]
    elif where == "apart":
        wide = torch.zeros(N, rows.stored.shape[1] + 3, dtype=rows.stored.dtype)
        wide[:, 1:-2] = rows.stored
        rows = NarrowRows(wide[:, 1:-2], dtype)
    stored = host_feature(rows, CPU)
    assert isinstance(stored, DiskFeature if where == "disk" else HostFeature)
    assert stored.row_bytes == rows.form.row_shape((width,))[0] * rows.form.dtype.itemsize
    assert stored.decoding == rows.decoding
    ids, chosen = torch.randint(0, N, (300,)), torch.randperm(N)[:40]
    cache = fill_cache(stored, chosen, device=CPU, num_nodes=N)
    assert cache.row_nbytes == 40 * stored.row_bytes and holds(cache, stored, chosen)
    got, hits = CachedFeature(stored, cache).read_counted(ids, bounds=[10, 300])
    assert same_bits(got, whole[ids]) and sum(hits) == int(torch.isin(ids, chosen).sum())
    for reader in (row_reader(rows), WideFeature(stored)):
        assert same_bits(reader.read(ids.int()), whole[ids])
        assert (reader.row_shape, reader.dtype, reader.row_bytes) == (
            (width,),
            dtype,
            whole[0].nbytes,
        )
        with pytest.raises(IndexError, match=rf"ids must be in \[0, {N}\), got {N} at position 1"):
            reader.read(torch.tensor([0, N]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_cache_in_int8_has_the_rows_of_a_field_in_int8(dtype, data):
    width, seed = data.draw(st.integers(2, 20)), data.draw(st.integers(0, 2**31))
    bits = (
        np.random.default_rng(seed)
        .integers(0, 2**32, (12, width), dtype=np.uint64)
        .astype(np.uint32)
    )
    values = torch.from_numpy(bits.view(np.float32)).nan_to_num(0.5, 2e38, -2e38).to(dtype)
    expected = NarrowRows.of(values, "int8")
    narrow = NarrowFeature(HostFeature(values), torch.int8, "feat")
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 11), max_size=40)), dtype=torch.int32)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, 11), unique=True)), dtype=torch.int64)
    cache = fill_cache(narrow, chosen, device=CPU, num_nodes=12)
    assert torch.equal(cache.rows, expected.stored[chosen]) and torch.equal(
        narrow.read(ids), expected.stored[ids.long()]
    )
    assert same_bits(CachedFeature(narrow, cache).read(ids), expected[ids.long()])
    assert same_bits(WideFeature(narrow).read(ids), expected[ids.long()])


def test_int8_refuses_what_it_cannot_hold_wherever_it_is_read():
    for value, dtype in (
        (float("nan"), torch.float32),
        (float("inf"), torch.float64),
        (1e39, torch.float64),
    ):
        values = torch.ones(6, 3, dtype=dtype)
        values[4, 1] = value
        narrow = NarrowFeature(HostFeature(values), torch.int8, "feat")
        cache = fill_cache(narrow, torch.tensor([1]), device=CPU, num_nodes=6)
        for read in (narrow.read, WideFeature(narrow).read, CachedFeature(narrow, cache).read):
            assert read(torch.tensor([0, 1, 2, 3])).shape[0] == 4
            with pytest.raises(
                ValueError, match="cache_dtype must hold the values of field 'feat', got"
            ):
                read(torch.tensor([0, 4]))


def test_rows_that_would_not_be_smaller_stay_as_they_are():
    column = HostFeature(torch.ones(4, 1))
    assert (
        stored_as(column, torch.int8, "w") is column
        and stored_as(column, torch.float16, "w").row_bytes == 2
    )
    rows = host_feature(NarrowRows.of(torch.ones(4, 8), "float16"), CPU)
    assert stored_as(rows, torch.int8, "feat") is rows


@pytest.mark.every
@pytest.mark.parametrize(
    "transfer", ["staging", pytest.param("zero-copy", marks=needs_interpreter)]
)
@pytest.mark.parametrize("budget", [None, "30%", 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_set_delivers_them_to_an_accelerator_as_to_the_cpu(name, dtype, budget, transfer):
    accelerators = [HostAccelerator()] + ([WithoutKernels()] if transfer == "staging" else [])
    rows = NarrowRows.of(values_of(37, dtype), name)
    cached = NarrowRows.of(values_of(37, dtype), "int8")
    for accelerator in accelerators:
        fields = set_of({"a": rows}, N, budget, accelerator, transfer=transfer)
        both = set_of(
            {"a": values_of(37, dtype)},
            N,
            budget,
            accelerator,
            transfer="staging",
            cache_dtype=torch.int8,
        )
        for seed in range(3):
            ids = torch.randint(0, N, (70,), generator=torch.Generator().manual_seed(seed))
            assert same_bits(fields.read("a", ids).arrive(), rows[ids])
            read = both.read("a", ids).arrive()
            assert same_bits(read, cached[ids] if budget else values_of(37, dtype)[ids])
            fields.prepare()
            both.prepare()
        if budget == 1.0:
            assert [part.nbytes for part in fields.plan] == [N * host_feature(rows, CPU).row_bytes]


@needs_interpreter
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_the_kernel_decodes_rows_of_any_layout(name, data):
    form, width = FORMS[name], data.draw(st.integers(1, 40) | st.sampled_from([125, 128, 300]))
    num_rows, size = data.draw(st.integers(1, 20)), form.dtype.itemsize
    rows = NarrowRows.of(values_of(width, rows=num_rows), name)
    length = rows.stored.shape[1]
    gap, begin = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 127)) // size * size
    stride = (length + gap) * size
    memory = np.zeros(num_rows * stride + 256, dtype=np.uint8)
    first = -memory.ctypes.data % 128 + begin
    flat = torch.from_numpy(memory[first : first + (num_rows - 1) * stride + length * size])
    flat.as_strided((num_rows, length * size), (stride, 1)).copy_(rows.stored.view(torch.uint8))
    chosen = torch.tensor(
        sorted(data.draw(st.sets(st.integers(0, num_rows - 1)))), dtype=torch.int64
    )
    slots = slots_for(chosen, num_rows)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=40)))
    cache = FeatureCache(rows.stored[chosen].contiguous(), slots, slots)
    for near in (cache, None):
        out = torch.full((len(ids), width), 9.0)
        reachable = ReachableRows(flat, stride, num_rows)
        gather(
            HostAccelerator(),
            ids,
            out,
            num_rows=num_rows,
            rows=reachable,
            cache=near,
            decoding=rows.decoding,
        )
        assert same_bits(out, rows[ids])
    out = torch.full((len(ids), width), 9.0)
    gather(
        HostAccelerator(),
        ids,
        out,
        num_rows=num_rows,
        rows=None,
        cache=cache,
        leave=True,
        decoding=rows.decoding,
    )
    assert same_bits(out, torch.where((slots[ids] >= 0)[:, None], rows[ids], torch.tensor(9.0)))


@pytest.mark.parametrize("name", NAMES)
def test_writes_and_replacements_are_seen(name):
    values = {"a": NarrowRows.of(values_of(), name)}
    fields = set_of({"a": lambda: values["a"]}, N, "50%")
    ids = torch.arange(0, N, 3)
    for _ in range(3):
        assert same_bits(fields.read("a", ids).tensor, values["a"][ids])
        values["a"].stored[0] = values["a"].stored[1]
        assert same_bits(fields.read("a", ids).tensor, values["a"][ids])
        values["a"] = NarrowRows.of(values_of(33) * 2, name)


@pytest.mark.parametrize("cache", [0, "40%"])
@pytest.mark.parametrize("name", NAMES)
def test_batches_are_those_of_the_values(name, cache, tmp_path):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, N, (2, 900), generator=generator)
    rows = mapped(NarrowRows.of(values_of(), name), tmp_path)
    batches = []
    for values in (rows, rows.materialize()):
        graph = Graph.from_coo(src, dst, N, ndata={"feat": values})
        loader = Loader(
            graph,
            torch.arange(N),
            NeighborSampler([4, 4]),
            fields=["feat"],
            batch_size=25,
            seed=3,
            cache=cache,
        )
        batches.append([batch.features["feat"] for _ in range(2) for batch in loader])
    assert len(batches[0]) == 10 and all(map(same_bits, *batches))
