"""Fields on an accelerator, the CPU in its part: the values of the CPU's sets, and what happens to
them on the way."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from accelerated_sets import (
    CPU,
    CountsPins,
    Slow,
    WithoutKernels,
    first,
    needs_interpreter,
    same_bits,
    set_of,
)
from plain_rows import is_current

from pagraph.accelerator import HostAccelerator
from pagraph.graph.mapped import map_npy
from pagraph.graph.stored_rows import IndexedRows
from pagraph.ranking.workload import Share

N = 120
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
]
DTYPES += [torch.int64, torch.complex64]


def random_rows(dtype, *shape, seed=0):
    """Random bits, NaN and all."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def some_ids(count=50, seed=0, dtype=torch.int64):
    return torch.randint(0, N, (count,), generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=[HostAccelerator, WithoutKernels], ids=["kernels", "no kernels"])
def accelerator(request):
    return request.param()


@pytest.fixture
def mapped(tmp_path):
    """Memory-mapped rows."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((N, 6), dtype=np.float32))
    return map_npy(tmp_path / "a.npy")


@pytest.mark.every
@pytest.mark.parametrize("budget", [None, "10%", 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_those_of_the_tensors(accelerator, dtype, budget):
    sources = {"wide": random_rows(dtype, N, 5), "flat": random_rows(dtype, N, seed=1)}
    fields = set_of(sources, N, budget, accelerator, rank=first(torch.randperm(N)))
    for round_ in range(2):
        for key, tensor in sources.items():
            for ids in (some_ids(seed=round_), some_ids(0), some_ids(1, dtype=torch.int32)):
                rows = fields.read(key, ids)
                assert rows.accelerator is accelerator
                assert same_bits(rows.arrive(), tensor[ids.long()])
        fields.prepare()
    assert {part.rows for part in fields.plan} == {None: set(), "10%": {12}, 1.0: {N}}[budget]


@needs_interpreter
@pytest.mark.parametrize("transfer", ["auto", "zero-copy", "staging"])
def test_either_transfer_gives_the_same(transfer):
    tensor, accelerator = random_rows(torch.float32, N, 4), HostAccelerator()
    fields = set_of({"a": tensor}, N, "50%", accelerator, transfer=transfer)
    fields.prepare()
    assert same_bits(fields.read("a", some_ids()).arrive(), tensor[some_ids()])
    way = fields.transfers["a"]
    assert way.mode == transfer and way.chosen == (way.chosen if transfer == "auto" else transfer)
    assert way.chosen in ("zero-copy", "staging") and way.reason


def test_an_unknown_transfer_is_refused():
    with pytest.raises(
        ValueError, match="transfer must be one of 'auto', 'zero-copy', 'staging', got 'dma'"
    ):
        set_of({}, N, None, HostAccelerator(), transfer="dma")


def test_rows_on_disk_and_by_reference(accelerator, mapped):
    table = torch.randint(0, N, (N,), generator=torch.Generator().manual_seed(1))
    sources = {"disk": mapped, "picked": IndexedRows(random_rows(torch.int16, N, 3), table)}
    expected = {"disk": mapped, "picked": sources["picked"].source[table]}
    fields = set_of(sources, N, "30%", accelerator, rank=first(torch.randperm(N)))
    fields.prepare()
    assert {part.key: part.rows for part in fields.plan} == {"disk": 36, "picked": 36}
    for key, tensor in expected.items():
        assert same_bits(fields.read(key, some_ids()).arrive(), tensor[some_ids()])
    assert fields.counters.fields["disk"].rows.keys() == {"disk", "cache"}


@pytest.mark.parametrize("cache_dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_narrow_rows_are_those_of_the_cpu(accelerator, mapped, cache_dtype, dtype):
    tensor = torch.randn(N, 7, dtype=torch.float64).to(dtype)
    there = set_of({"a": tensor, "m": mapped}, N, "40%", accelerator, cache_dtype=cache_dtype)
    here = set_of({"m": mapped}, N, "40%", cache_dtype=cache_dtype)
    for _ in range(2):
        rounded = tensor.to(cache_dtype).to(dtype)
        assert same_bits(there.read("a", some_ids()).arrive(), rounded[some_ids()])
        assert same_bits(there.read("m", some_ids()).arrive(), here.read("m", some_ids()).tensor)
        there.prepare()
        here.prepare()
    assert {part.rows for part in there.plan} == {48}


def test_bad_ids_are_refused_as_on_the_cpu(accelerator):
    fields = set_of({"a": torch.zeros(N, 2)}, N, "10%", accelerator)
    for bad in (N, -1):
        with pytest.raises(
            IndexError, match=rf"ids must be in \[0, {N}\), got {bad} at position 1"
        ):
            fields.read("a", torch.tensor([3, bad]))
    with pytest.raises(KeyError):
        fields.read("b", torch.tensor([3]))


def test_written_replaced_and_invalidated_values_are_read_at_once(accelerator):
    values = {"a": torch.arange(N * 2.0).view(N, 2)}
    fields = set_of({"a": lambda: values["a"]}, N, "50%", accelerator)
    fields.prepare()

    def check():
        rows = fields.read("a", some_ids())
        assert torch.equal(rows.arrive(), values["a"][some_ids()]) and is_current(fields, "a", rows)

    check()
    values["a"].add_(1)
    check()
    values["a"] = torch.randn(N, 2)
    for _ in range(30):  # it settles, and is cached again
        check()
    assert [part.rows for part in fields.plan] == [60]
    values["a"].numpy()[:] = 7
    fields.invalidate("a")
    check()
    del values["a"]
    with pytest.raises(KeyError):
        fields.read("a", some_ids())
    assert "a" not in fields.transfers


def test_refilling_chooses_other_rows(accelerator):
    tensor = random_rows(torch.int64, N, 3)
    fields = set_of({"a": tensor}, N, "25%", accelerator)
    fields.prepare()
    for ids in (range(30), range(50, 80), range(50, 80), range(N - 1, N - 31, -1)):
        fields.refill(first(ids))
        read = torch.tensor(list(ids))
        before = fields.counters.fields.get("a")
        assert same_bits(fields.read("a", read).arrive(), tensor[read])
        assert fields.counters.fields["a"].hits - (before.hits if before else 0) == 30
        assert same_bits(fields.read("a", some_ids()).arrive(), tensor[some_ids()])


def test_one_table_on_the_device_serves_all_fields_of_a_type(accelerator):
    fields = set_of({"a": torch.zeros(N, 2), "b": torch.zeros(N)}, N, "25%", accelerator)
    fields.prepare()
    a, b = (fields._fields[key].cache for key in "ab")
    assert a.device_slots is b.device_slots is not None
    assert torch.equal(a.device_slots, a.slots) and a.device_slots.data_ptr() != a.slots.data_ptr()
    assert fields.plan.nbytes == 30 * 12 + 4 * N


def test_loaders_of_one_graph_use_one_cache(accelerator):
    tensor = random_rows(torch.float32, N, 4)
    one, two = (set_of({"a": tensor}, N, "25%", accelerator, share=Share("s")) for _ in range(2))
    elsewhere = set_of({"a": tensor}, N, "25%", HostAccelerator(), share=Share("s"))
    here = set_of({"a": tensor}, N, "25%", share=Share("s"))
    for fields in (one, two, elsewhere, here):
        fields.prepare()
    assert one._fields["a"].cache is two._fields["a"].cache is not None
    assert elsewhere._fields["a"].cache is not one._fields["a"].cache
    assert not here._fields["a"].is_cached  # in memory there is nothing to gain
    tensor.numpy()[3] = 1  # torch does not see it
    three = set_of({"a": tensor}, N, "25%", accelerator, share=Share("s"))
    three.prepare()
    assert three._fields["a"].cache is not one._fields["a"].cache
    assert same_bits(three.read("a", torch.arange(9)).arrive(), tensor[:9])


# -- events
# ----------------------------------------------------------------------------------------------------


def test_a_read_begins_after_its_ids_and_is_handed_over():
    tensor, accelerator = torch.randn(N, 3), Slow()
    accelerator.run()
    fields = set_of({"a": tensor}, N, None, accelerator, transfer="staging")
    ids, after = some_ids(), accelerator.stream("sampling").record()
    rows = fields.read("a", ids, there=ids, after=after)
    assert accelerator.waited == [after] and ids.data_ptr() in accelerator.owned
    assert rows.begun.has_happened and rows.ready.seconds_since(rows.begun) >= 0
    assert torch.equal(rows.arrive(), tensor[ids])
    assert accelerator.waited == [after, rows.ready] and rows.tensor.data_ptr() in accelerator.owned


def test_on_the_cpu_nothing_has_to_arrive():
    tensor = torch.randn(N, 3)
    fields = set_of({"a": tensor}, N, None)
    rows = fields.read("a", some_ids())
    assert rows.ready is rows.begun is rows.accelerator is fields.accelerator is None
    assert rows.arrive() is rows.tensor and fields.transfers == {} and not fields.shrink()
    fields.settle()
    fields.close()


# -- counting
# --------------------------------------------------------------------------------------------------


def test_reads_are_counted_when_they_are_done():
    accelerator = Slow()
    accelerator.run()
    fields = set_of({"a": torch.randn(N, 3)}, N, "50%", accelerator, transfer="staging")
    fields.prepare()
    accelerator.gate = threading.Event()
    ids = torch.tensor([1, 119, 2, 118, 3])
    fields.read("a", ids, [2, 5])
    assert fields.counters.fields == {}
    accelerator.finish()
    stats = fields.counters.fields["a"]
    assert (stats.asked, stats.hits, stats.asked_by_hop, stats.hits_by_hop) == (
        5,
        3,
        (2, 3),
        (1, 2),
    )
    assert stats.rows == {"host": 2, "cache": 3} and stats.nbytes == {"host": 24, "cache": 36}
    assert stats.cacheable and 0 <= stats.seconds < 5
    fields.read("a", ids)
    threading.Timer(0.05, accelerator.run).start()
    fields.settle()
    assert fields.counters.fields["a"].asked == 10


def test_what_has_been_done_is_not_kept():
    fields = set_of({"a": torch.randn(N, 3)}, N, "50%", HostAccelerator(), transfer="staging")
    for _ in range(20):
        fields.read("a", some_ids())
    assert len(fields._counters._pending) == 0
    assert fields.counters.fields["a"].asked == 1000


def test_who_watches_is_told_of_the_hits_when_they_are_known():
    accelerator = Slow()
    accelerator.run()
    fields = set_of({"a": torch.randn(N, 3)}, N, "50%", accelerator, transfer="staging")
    fields.prepare()
    accelerator.gate = threading.Event()
    told, later = [], []

    class Watching:
        tracer = True

        def read(self, *read):
            told.append(read[:-1])
            return later.append

    fields.observe(Watching())
    fields.read("a", torch.tensor([1, 119]))
    assert told == [("a", "host", 2, None, 12, True)] and later == []
    accelerator.finish()
    assert fields.counters.fields["a"].hits == 1 and later == [1]


# -- pins
# ------------------------------------------------------------------------------------------------------


@needs_interpreter
def test_pins_end_with_the_set():
    accelerator, tensor = CountsPins(), torch.randn(N, 3)
    fields = set_of(
        {"a": tensor, "b": torch.randn(N, 2)}, N, None, accelerator, transfer="zero-copy"
    )
    fields.read("a", some_ids())
    fields.read("b", some_ids())
    assert tensor.data_ptr() in accelerator.pinned and len(accelerator.pinned) == 2
    fields.close()
    assert accelerator.pinned == []
    assert torch.equal(fields.read("a", some_ids()).arrive(), tensor[some_ids()])  # it may go on
    assert accelerator.pinned == [tensor.data_ptr()]
    gc.collect()
    gc.disable()
    try:
        watched = weakref.ref(fields)
        del fields
        assert watched() is None and accelerator.pinned == []
    finally:
        gc.enable()


@needs_interpreter
def test_new_memory_is_pinned_in_place_of_the_old_once_it_has_settled():
    accelerator, values = CountsPins(), {"a": torch.randn(N, 3)}
    fields = set_of({"a": lambda: values["a"]}, N, None, accelerator, transfer="zero-copy")
    fields.read("a", some_ids())
    assert accelerator.pinned == [values["a"].data_ptr()]
    values["a"].add_(1)  # the same memory
    fields.read("a", some_ids())
    assert accelerator.pinned == [values["a"].data_ptr()]
    old = weakref.ref(values["a"].untyped_storage())
    values["a"] = torch.randn(N, 3)
    for _ in range(8):
        assert torch.equal(fields.read("a", some_ids()).arrive(), values["a"][some_ids()])
        assert accelerator.pinned == []
    gc.collect()  # Triton's interpreter leaves cycles
    assert old() is None
    fields.read("a", some_ids())
    assert accelerator.pinned == [values["a"].data_ptr()]


def test_threads_read_whole_rows_while_the_cache_is_refilled(accelerator):
    sources = {"a": random_rows(torch.float32, N, 4), "b": random_rows(torch.int16, N)}
    fields = set_of(sources, N, "30%", accelerator)
    fields.prepare()
    wrong, stop = [], threading.Event()

    def work(seed):
        while not stop.is_set():
            ids = some_ids(40, seed)
            for key, tensor in sources.items():
                if not same_bits(fields.read(key, ids).arrive(), tensor[ids]):
                    wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        fields.refill(first(torch.randperm(N, generator=torch.Generator().manual_seed(turn))))
        if turn % 4 == 3:
            fields.invalidate("a")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == [] and fields.accelerator.device == CPU
