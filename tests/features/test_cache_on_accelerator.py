"""The size of a cache on an accelerator: what is asked for, what there is room for, and what is
left of it."""

import gc
import logging
import threading
import warnings

import pytest
import torch
from accelerated_sets import WithoutKernels, first, same_bits, set_of
from fresh_processes import HANGING

from pagraph.accelerator import HostAccelerator, OutOfMemory, accelerator_for
from pagraph.cache import holding
from pagraph.cache.plan import accelerator_budget, device_reserve
from pagraph.cache.static import StaticCache
from pagraph.ranking import Ranking
from pagraph.ranking.workload import Share

N = 384  # its table is a whole number of blocks of 256 bytes
WIDTH = 64
ROW = 4 * WIDTH
TABLE = 4 * N
ALL = N * ROW


def rows(seed=0, num_rows=N):
    return torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def some_ids(count=30, seed=0):
    return torch.randint(0, N, (count,), generator=torch.Generator().manual_seed(seed))


def check(fields, sources, count=30):
    for key, tensor in sources.items():
        assert same_bits(fields.read(key, some_ids(count)).arrive(), tensor[some_ids(count)])


def cached_rows(fields):
    return {part.key: part.rows for plan in fields.plans for part in plan}


def taken(fields):
    return sum(plan.nbytes for plan in fields.plans)


class Tight(WithoutKernels):
    """Claims more free memory than it has: others take it in the meantime."""

    def __init__(self, memory, claimed):
        super().__init__(memory)
        self.claimed = claimed

    def free_bytes(self):
        return self.claimed, self.claimed


# -- budgets
# ---------------------------------------------------------------------------------------------------


def test_bytes_above_the_card_are_refused():
    accelerator = HostAccelerator(1 << 20)
    message = r"cache must be at most 1048576 bytes \(1 MiB\) on cpu, got 1048577"
    with pytest.raises(ValueError, match=message):
        set_of({}, N, (1 << 20) + 1, accelerator)
    set_of({}, N, 1 << 20, accelerator)


def test_auto_takes_what_the_first_step_leaves_but_the_margin():
    accelerator = WithoutKernels(200_000)
    model = accelerator.empty((40_000,), torch.uint8)
    sources = {"a": rows(), "b": rows(1)}
    fields = set_of(sources, N, "auto", accelerator)
    fields.prepare()
    check(fields, sources)
    assert cached_rows(fields) == {}  # nobody knows what a step needs
    left = accelerator.free_bytes()[0] - device_reserve(200_000)
    fields.after_first_step()
    assert fields.plan.budget_bytes == left and left - 2 * ROW < taken(fields) <= left
    assert accelerator.free_bytes()[0] >= device_reserve(200_000) == 50_000
    check(fields, sources)
    assert len(model) == 40_000


def test_auto_without_room_is_no_cache():
    accelerator = WithoutKernels(100_000)
    model = accelerator.empty((80_000,), torch.uint8)
    assert accelerator_budget(accelerator) == 0 < accelerator_budget(accelerator, reserve=0)
    sources = {"a": rows()}
    fields = set_of(sources, N, "auto", accelerator)
    fields.after_first_step()
    check(fields, sources, 20)
    assert cached_rows(fields) == {} and len(model) == 80_000


@pytest.mark.parametrize("budget", [1.0, 100_000])
def test_what_is_asked_for_shrinks_to_what_is_free(budget):
    accelerator = WithoutKernels(120_000)
    model = accelerator.empty((60_000,), torch.uint8)
    sources = {"a": rows()}
    fields = set_of(sources, N, budget, accelerator)
    with pytest.warns(
        RuntimeWarning,
        match=r"the cache needs .* on cpu, which has 58.59 KiB free: .*set cache=\"29.2KiB\"",
    ):
        fields.prepare()
    assert taken(fields) <= 60_000 - device_reserve(120_000) == 30_000
    assert cached_rows(fields)["a"] == (30_000 - TABLE) // ROW
    check(fields, sources, 20)
    assert len(model) == 60_000


def test_bytes_beyond_all_rows_are_not_missed():
    accelerator = WithoutKernels(400_000)
    held = accelerator.empty((250_000,), torch.uint8)
    fields = set_of({"a": rows(num_rows=N)[:, :8].contiguous()}, N, 300_000, accelerator)
    fields.prepare()  # warnings are errors
    assert cached_rows(fields) == {"a": N} and len(held) == 250_000


# -- running out
# -----------------------------------------------------------------------------------------------


@pytest.mark.compilers
def test_filling_takes_half_until_it_fits():
    asked = []

    def rank(types):
        asked.append(list(types))
        return dict.fromkeys(types, Ranking(torch.arange(N)))

    accelerator = Tight(60_000, claimed=10 * ALL)
    sources = {"a": rows(), "b": rows(1)}
    fields = set_of(sources, N, 160_000, accelerator, rank=rank)
    with pytest.warns(
        RuntimeWarning,
        match=r"cpu ran out of memory while the cache was filled: .*set cache=\"39KiB\"",
    ):
        fields.prepare()
    assert fields.plan.budget_bytes == 40_000
    assert cached_rows(fields) == {"a": 75, "b": 75} and taken(fields) <= 40_000
    assert len(asked) == 1  # to rank may take seconds
    check(fields, sources, 20)
    fields.refill(first(range(N - 1, -1, -1)))
    assert cached_rows(fields) == {"a": 75, "b": 75}
    check(fields, sources, 20)


@pytest.mark.compilers
def test_without_any_room_there_is_no_cache():
    accelerator = Tight(9_000, claimed=10 * ALL)
    sources = {"a": rows()}
    fields = set_of(sources, N, 1.0, accelerator)
    held = accelerator.empty((8_000,), torch.uint8)
    with pytest.warns(RuntimeWarning, match='nothing is cached; set cache="0"') as caught:
        fields.prepare()
    assert len(caught) == 1 and cached_rows(fields) == {} and len(held) == 8_000
    del held
    check(fields, sources, 10)


@pytest.mark.compilers
def test_nothing_of_what_was_begun_is_left():
    accelerator = Tight(60_000, claimed=10 * ALL)
    fields = set_of({"a": rows(), "b": rows(1)}, N, 160_000, accelerator)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        fields.prepare()
    assert accelerator._used == taken(fields)


@pytest.mark.compilers
def test_a_field_that_comes_late_takes_what_there_is():
    accelerator = Tight(60_000, claimed=10 * ALL)
    sources = {"a": rows()[:, :16].contiguous()}
    fields = set_of(sources, N, 100_000, accelerator)
    fields.prepare()
    assert cached_rows(fields) == {"a": N}
    sources["late"] = rows(2)
    fields.add_source("late", lambda: sources["late"])
    with pytest.warns(RuntimeWarning, match="ran out of memory") as caught:
        for _ in range(20):
            check(fields, sources, 10)
    assert len(caught) == 1
    assert cached_rows(fields)["late"] > 0 and accelerator._used == taken(fields) <= 60_000


def test_other_errors_are_not_hidden(monkeypatch):
    def broken(*args):
        raise RuntimeError("something else")

    monkeypatch.setattr(holding, "fill_rows", broken)
    fields = set_of({"a": rows()}, N, "10%", HostAccelerator())
    with pytest.raises(RuntimeError, match="something else"):
        fields.prepare()


def test_the_log_says_how_fast_it_was(caplog):
    fields = set_of({"a": rows()}, N, "50%", HostAccelerator())
    with caplog.at_level(logging.INFO, "pagraph"):
        fields.prepare()
        fields.refill(first(range(N)))
    assert caplog.messages[0].split("), ")[1].startswith("48 KiB in ") and caplog.messages[
        0
    ].endswith(" GB/s")
    assert caplog.messages[1].endswith("filled again")  # nothing had to be


# -- giving up
# -------------------------------------------------------------------------------------------------


@pytest.mark.compilers
@pytest.mark.parametrize("kind", [HostAccelerator, WithoutKernels], ids=["kernels", "no kernels"])
def test_shrinking_keeps_the_best_half(kind):
    accelerator = kind(1_000_000)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    sources = {"a": rows(), "b": rows(1)[:, :16].contiguous()}
    fields = set_of(sources, N, "50%", accelerator, rank=first(order), transfer="staging")
    fields.prepare()
    sizes = [taken(fields)]
    while fields.shrink():
        sizes.append(taken(fields))
        gc.collect()  # Triton's interpreter leaves cycles
        assert sizes[-1] <= sizes[-2] // 2 and accelerator._used == sizes[-1]
        check(fields, sources)
        count = cached_rows(fields).get("a", 0)
        if count:
            before = fields.counters.fields["a"].hits
            fields.read("a", order[: count + 10])
            assert fields.counters.fields["a"].hits - before == count
    gc.collect()
    assert (
        sizes[1] > sizes[0] // 2 - 2 * ROW
        and sizes[-1] == 0 == accelerator._used
        and len(sizes) > 3
    )
    check(fields, sources)


@pytest.mark.compilers
def test_what_is_filled_later_stays_under_the_smaller_size():
    sources = {"a": rows()}
    fields = set_of(sources, N, "50%", WithoutKernels())
    fields.prepare()
    assert fields.shrink()
    small = taken(fields)
    fields.refill(first(range(100, N)))
    assert small - ROW <= taken(fields) <= small
    sources["a"].add_(1)
    for _ in range(30):
        check(fields, sources)
    assert cached_rows(fields)["a"] > 0 and taken(fields) <= small
    assert fields.shrink()
    assert taken(fields) <= small // 2


def test_there_may_be_nothing_to_give_up():
    sources = {"a": rows()}
    for fields in (
        set_of(sources, N, None, WithoutKernels()),
        set_of(sources, N, "auto", WithoutKernels()),
        set_of(sources, N, "50%"),
    ):
        assert not fields.shrink()
        check(fields, sources)


def test_shrinking_needs_no_more_memory_than_there_was():
    accelerator = WithoutKernels(2 * (ALL // 2 + TABLE))
    fields = set_of({"a": rows()}, N, "50%", accelerator, transfer="staging")
    fields.prepare()
    held = accelerator.empty((accelerator.free_bytes()[0],), torch.uint8)
    with pytest.raises(OutOfMemory):
        fields.read("a", some_ids(20))
    assert fields.shrink()
    check(fields, {"a": rows()}, 20)
    assert len(held) and cached_rows(fields)["a"] > 90


@pytest.mark.compilers
@pytest.mark.parametrize("forget", ["write", "invalidate"])
def test_of_written_rows_the_table_is_given_up_once(forget):
    tensor, accelerator = rows(), WithoutKernels()
    fields = set_of({"a": tensor}, N, "50%", accelerator)
    fields.prepare()
    if forget == "write":
        tensor.add_(1)
        check(fields, {"a": tensor})
    else:
        fields.invalidate("a")
    assert accelerator._used == TABLE
    assert fields.shrink()
    assert accelerator._used == 0 and not fields.shrink()
    check(fields, {"a": tensor})


@pytest.mark.compilers
def test_threads_that_are_short_of_memory_together_give_up_one_half(monkeypatch):
    fields = set_of({"a": rows()}, N, "50%", WithoutKernels())
    fields.prepare()
    before = taken(fields)
    begun, come, shrink = threading.Event(), threading.Semaphore(0), StaticCache._shrink

    class Counted:
        """A lock that tells who came and found it taken."""

        def __init__(self):
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, blocking):
            taken = self._lock.acquire(blocking=blocking)
            if not taken:
                come.release()
            return taken

        def __enter__(self):
            self._lock.acquire()

        def __exit__(self, *_):
            self._lock.release()

    def slow(*args):
        begun.set()
        for _ in range(3):
            assert come.acquire(timeout=HANGING)
        return shrink(*args)

    def join_in():
        assert begun.wait(HANGING)
        given.append(fields.shrink())

    monkeypatch.setattr(fields._static, "_shrinking", Counted())
    monkeypatch.setattr(StaticCache, "_shrink", slow)
    given = []
    threads = [threading.Thread(target=join_in) for _ in range(3)]
    for thread in threads:
        thread.start()
    given.append(fields.shrink())
    for thread in threads:
        thread.join()
    assert given == [True] * 4
    assert before // 2 - ROW < taken(fields) <= before // 2


def test_rows_that_a_read_still_has_are_waited_for_before_there_is_less():
    accelerator = WithoutKernels(ALL)
    fields = set_of({"a": rows()}, N, "80%", accelerator)
    fields.prepare()
    held = [fields._fields["a"].cache]
    timer = threading.Timer(0.2, held.clear)
    timer.start()
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        fields.refill(first(range(N - 1, -1, -1)))
    timer.join()
    assert cached_rows(fields)["a"] >= 0.39 * N


@pytest.mark.compilers
def test_who_shares_the_rows_gives_the_same_up():
    accelerator = WithoutKernels()
    tensor = rows()
    one, two, three = (
        set_of({"a": tensor}, N, "50%", accelerator, share=Share("s")) for _ in range(3)
    )
    one.prepare()
    two.prepare()
    three.refill(first(range(N - 1, -1, -1)))
    three.prepare()  # rows of its own
    before = cached_rows(three)
    assert two.shrink()
    assert one._fields["a"].cache.rows is two._fields["a"].cache.rows
    assert cached_rows(one) == cached_rows(two) == {"a": (taken(two) - TABLE) // ROW}
    assert cached_rows(three) == before == {"a": N // 2}
    assert accelerator._used == taken(two) + taken(three)
    for fields in (one, two, three):
        check(fields, {"a": tensor})
    while one.shrink():
        check(two, {"a": tensor})
    assert cached_rows(two) == {} and accelerator._used == taken(three)


def test_without_the_room_to_compare_values_nothing_is_shared():
    accelerator, tensor = WithoutKernels(ALL // 2 + 20_000), rows()
    one, two = (set_of({"a": tensor}, N, "50%", accelerator, share=Share("s")) for _ in range(2))
    one.prepare()
    held = accelerator.empty((accelerator.free_bytes()[0],), torch.uint8)
    with pytest.warns(RuntimeWarning, match='nothing is cached; set cache="0"'):
        two.prepare()
    assert cached_rows(one) == {"a": N // 2} and cached_rows(two) == {}
    del held
    for fields in (one, two):
        check(fields, {"a": tensor}, 10)


@pytest.mark.compilers
def test_threads_read_whole_rows_while_the_cache_shrinks():
    accelerator = WithoutKernels(2_000_000)
    sources = {"a": rows(), "b": rows(1)}
    fields = set_of(sources, N, 1.0, accelerator)
    fields.prepare()
    wrong, stop = [], threading.Event()

    def work(seed):
        while not stop.is_set():
            ids = some_ids(50, seed)
            for key, tensor in sources.items():
                if not same_bits(fields.read(key, ids).arrive(), tensor[ids]):
                    wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            assert fields.shrink()
            fields.refill(first(torch.randperm(N)))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == [] and taken(fields) <= (2 * ALL + TABLE) // 32


# -- on a GPU
# --------------------------------------------------------------------------------------------------

on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class TestOnAGpu:
    pytestmark = on_a_gpu

    @pytest.fixture
    def gpu(self):
        return accelerator_for(torch.device("cuda", torch.cuda.current_device()))

    @pytest.mark.parametrize("transfer", ["auto", "zero-copy", "staging"])
    @pytest.mark.parametrize("budget", [None, "30%", 1.0, "auto"])
    def test_values(self, gpu, budget, transfer):
        sources = {
            "a": rows(),
            "flat": torch.arange(N),
            "narrow": rows(1).bfloat16()[:, :3].contiguous(),
        }
        fields = set_of(sources, N, budget, gpu, rank=first(torch.randperm(N)), transfer=transfer)
        for _ in range(2):
            fields.prepare()
            for key, tensor in sources.items():
                for ids in (some_ids(), some_ids().cuda()):
                    got = fields.read(key, ids).arrive()
                    assert got.device == gpu.device and same_bits(got.cpu(), tensor[some_ids()])
            fields.after_first_step()
        fields.settle()
        assert fields.counters.fields["a"].asked == 120
        fields.close()
        assert not sources["a"].is_pinned()

    def test_filled_at_the_speed_of_the_bus(self, gpu, caplog):
        big = torch.randn(1 << 19, 128)  # 256 MiB
        order = torch.randperm(len(big))
        fields = set_of({"a": big}, len(big), 1.0, gpu, rank=first(order), transfer="zero-copy")
        with caplog.at_level(logging.INFO, "pagraph"):
            fields.prepare()
        # GB/s; any bus of a GPU of this decade has more.
        assert float(caplog.messages[0].split()[-2]) > 5
        ids = torch.randint(len(big), (1000,))
        assert same_bits(fields.read("a", ids).arrive().cpu(), big[ids])
        assert fields.counters.fields == {} or fields.counters.fields["a"].hits == 1000

    def test_auto_leaves_its_margin_and_shrinking_gives_back(self, gpu):
        width = 4096
        torch.cuda.empty_cache()
        total = gpu.free_bytes()[1]
        fields = set_of({"a": torch.randn(1 << 13, width)}, 1 << 13, "auto", gpu)
        fields.after_first_step()
        assert gpu.free_bytes()[0] >= device_reserve(total)
        before, held = torch.cuda.memory_allocated(), taken(fields)
        assert held > 1 << 26 and fields.shrink()
        torch.cuda.synchronize()
        assert before - torch.cuda.memory_allocated() >= held // 2 - (1 << 21)

    def test_memory_that_runs_out_makes_a_smaller_cache(self, gpu):
        torch.cuda.empty_cache()
        free, total = gpu.free_bytes()
        hog = torch.empty(max(0, free - (1 << 30)), dtype=torch.uint8, device=gpu.device)
        big = torch.randn(1 << 22, 128)  # 2 GiB
        fields = set_of({"a": big}, len(big), 1.0, gpu, transfer="staging")
        with pytest.warns(RuntimeWarning, match="set cache="):
            fields.prepare()
        assert taken(fields) < 1 << 30 and len(hog) and total
        ids = torch.randint(len(big), (1000,))
        assert same_bits(fields.read("a", ids).arrive().cpu(), big[ids])
