"""The fields of a loader: values, plans, counters and memory."""

import gc
import threading

import numpy as np
import pytest
import torch

from pagraph.cache import FieldSet
from pagraph.features import on_disk
from pagraph.graph.graph import NODE_TYPE
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.system import Budget
from pagraph.system.buffers import BufferPool

CPU = torch.device("cpu")
N = 300


@pytest.fixture
def mapped(tmp_path):
    """Makes a memory-mapped tensor with the given values."""

    def make(values, name="feat"):
        path = tmp_path / f"{name}.npy"
        np.save(path, np.asarray(values))
        tensor = map_npy(path)
        if not on_disk(tensor):
            pytest.skip("needs temporary files on a disk")
        return tensor

    return make


@pytest.fixture
def feat(mapped):
    return mapped(np.arange(N * 4, dtype=np.float32).reshape(N, 4))


def field_set(sources, budget="50%", rank=None, num_nodes=N, pool=None):
    sources = {
        key: (value if callable(value) else lambda value=value: value)
        for key, value in sources.items()
    }
    pool = pool or BufferPool(4)
    return FieldSet(
        sources,
        device=CPU,
        budget=Budget.parse(budget),
        rank=lambda types: {
            NODE_TYPE: Ranking(rank() if rank else torch.arange(num_nodes).flip(0))
        },
        pool_of=lambda key: pool,
        num_nodes=num_nodes,
    )


def ids_of(count=100, seed=0):
    return torch.randint(0, N, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("budget", [None, 0, 1, "1%", "50%", 1.0, "1GiB", "auto"])
def test_values_are_the_same_whatever_the_budget(feat, budget):
    memory = torch.randint(0, 9, (N,))
    fields = field_set({"feat": feat, "label": memory}, budget)
    fields.prepare()
    for step in range(3):
        ids = ids_of(seed=step)
        assert torch.equal(fields.read("feat", ids).tensor, feat[ids])
        assert torch.equal(fields.read("label", ids).tensor, memory[ids])
        fields.after_first_step()


def test_a_fixed_budget_is_filled_before_the_first_batch(feat):
    fields = field_set({"feat": feat}, "10%")
    assert fields.plan.rows == 0 and list(fields.plan) == []
    fields.prepare()
    assert fields.plan.rows == 30
    fields.read("feat", torch.arange(N))
    assert fields.counters.fields["feat"].hits == 30
    assert fields.counters.fields["feat"].rows == {"cache": 30, "disk": 270}


def test_auto_is_filled_after_the_first_step(feat):
    fields = field_set({"feat": feat}, "auto")
    fields.prepare()
    fields.read("feat", torch.arange(N))
    assert fields.plan.rows == 0 and fields.counters.hit_rate == 0.0
    fields.after_first_step()
    assert fields.plan.rows == N
    fields.read("feat", torch.arange(N))
    assert fields.counters.fields["feat"].rows == {"cache": N, "disk": N}
    assert fields.counters.hit_rate == 0.5


def test_the_most_valuable_vertices_are_cached(feat):
    fields = field_set({"feat": feat}, "10%", rank=lambda: torch.arange(N).roll(-50))
    fields.prepare()
    fields.read("feat", torch.arange(50, 80))
    assert fields.counters.hit_rate == 1.0
    fields.read("feat", torch.arange(80, 110))
    assert fields.counters.hit_rate == 0.5


@pytest.mark.parametrize("budget", [1, 8, "1KB", 0.001])
def test_a_budget_too_small_for_a_row_is_warned_of(feat, budget):
    fields = field_set({"feat": feat}, budget)
    least = 4 * feat.shape[1] + (0 if budget == 0.001 else 4 * N)
    given = {1: "1 bytes", 8: "8 bytes", "1KB": "1000 bytes", 0.001: "0.001 of the rows"}[budget]
    with pytest.warns(
        RuntimeWarning,
        match=f"a cache of {given} is too small: one row (takes|and the index take) {least} bytes",
    ):
        fields.prepare()
    assert str(fields.plan).endswith(f"; nothing is cached, as one row takes {least} bytes")


def test_an_empty_cache_says_why(feat):
    def plan(sources, budget, prepare=True):
        fields = field_set(sources, budget)
        if prepare:
            fields.prepare()
        return str(fields.plan)

    assert plan({"feat": feat}, None).endswith("; nothing is cached, as cache is 0")
    assert plan({}, 1.0).endswith("; nothing is cached, as no field is prefetched")
    assert (
        "nothing is cached, as no field is in a file: on the CPU only rows of files are cached"
        in plan({"x": torch.ones(N, 2)}, 1.0)
    )
    assert plan({"feat": feat}, 1.0, prepare=False).endswith(
        "; nothing is cached, until the first epoch has shown what is read"
    )
    assert plan({"feat": feat}, "auto").endswith(
        "; nothing is cached, until a training step has shown what is read"
    )
    assert "no field" not in plan({"feat": feat}, 1.0)


def test_nothing_is_ranked_when_nothing_is_cached(feat):
    def rank():
        raise AssertionError("ranked")

    for sources, budget in (
        ({"feat": feat}, None),
        ({"feat": feat}, 8),
        ({"feat": torch.zeros(N, 4)}, "50%"),
    ):
        fields = field_set(sources, budget, rank=rank)
        fields.prepare()
        fields.after_first_step()
        assert fields.plan.rows == 0
        assert len(fields.read("feat", ids_of()).tensor) == 100


def test_ranking_and_filling_happen_once(feat):
    calls = []

    def rank():
        calls.append(1)
        return torch.arange(N)

    fields = field_set({"feat": feat}, "50%", rank=rank)
    for _ in range(3):
        fields.prepare()
        fields.after_first_step()
    assert calls == [1]


def test_a_short_ranking_caches_no_more_than_it_names(feat):
    fields = field_set({"feat": feat}, "50%", rank=lambda: torch.tensor([5, 3]))
    fields.prepare()
    assert fields.plan.rows == 2
    fields.read("feat", torch.tensor([3, 5, 5, 9]))
    assert fields.counters.fields["feat"].hits == 3


def test_fields_of_different_widths_share_the_budget_and_the_vertices(mapped):
    wide = mapped(np.random.default_rng(0).random((N, 16)), "wide")  # 128 bytes a row
    narrow = mapped(np.arange(N, dtype=np.int16), "narrow")  # 2 bytes a row
    table = 4 * N
    fields = field_set(
        {"wide": wide, "narrow": narrow, "ram": torch.zeros(N, 2)}, table + 130 * 40 + 129
    )
    fields.prepare()
    assert {part.key: (part.rows, part.nbytes, part.tier) for part in fields.plan} == {
        "wide": (40, 40 * 128, "disk"),
        "narrow": (40, 80, "disk"),
    }
    assert fields.plan.nbytes == table + 130 * 40 <= fields.plan.budget_bytes
    for key, source in (("wide", wide), ("narrow", narrow)):
        assert torch.equal(fields.read(key, torch.arange(N)).tensor, source)
        assert fields.counters.fields[key].hits == 40


def test_plan_says_it_in_one_line(feat):
    fields = field_set({"feat": feat}, "50%")
    assert repr(fields.plan) == "CachePlan(0 of 300 vertices on cpu, 0 B of 0 B; no field)"
    fields.prepare()
    assert repr(fields.plan) == (
        "CachePlan(150 of 300 vertices on cpu, 3.516 KiB of 3.516 KiB; 'feat': 150 rows, 2.344 "
        "KiB, others on disk)"
    )


def test_counters_add_up_by_field_and_tier(feat):
    fields = field_set({"feat": feat, "label": torch.zeros(N, dtype=torch.int64)}, "10%")
    fields.prepare()
    before = fields.counters
    for step in range(5):
        fields.read("feat", ids_of(seed=step))
        fields.read("label", ids_of(10, seed=step))
    stats = (fields.counters - before).fields
    assert stats["feat"].asked == 500 == stats["feat"].hits + stats["feat"].misses
    expected = sum(int((ids_of(seed=step) >= 270).sum()) for step in range(5))
    assert stats["feat"].hits == expected
    assert stats["feat"].nbytes == {"cache": 16 * expected, "disk": 16 * (500 - expected)}
    assert (stats["label"].rows, stats["label"].cacheable) == ({"host": 50}, False)
    assert fields.counters.hit_rate == expected / 500


def test_with_everything_cached_no_host_row_is_read(feat):
    fields = field_set({"feat": feat, "label": torch.zeros(N)}, 1.0)
    fields.prepare()
    fields.read("feat", ids_of())
    fields.read("label", ids_of())
    assert fields.counters.fields["feat"].rows.get("disk", 0) == 0
    assert fields.counters.hit_rate == 1.0


def test_bad_ids_are_not_counted(feat):
    fields = field_set({"feat": feat})
    with pytest.raises(IndexError, match=r"ids must be in \[0, 300\), got 300"):
        fields.read("feat", torch.tensor([0, 300]))
    assert fields.counters.fields == {}


def test_unknown_fields_raise_key_errors(feat):
    fields = field_set({"feat": feat})
    with pytest.raises(KeyError, match="nope"):
        fields.read("nope", ids_of())
    fields.prepare()


def test_fields_that_cannot_be_read_do_not_stop_the_cache(feat):
    def gone():
        raise KeyError("gone")

    fields = field_set(
        {"gone": gone, "feat": feat, "weight": torch.zeros(N, 2, requires_grad=True)}
    )
    fields.prepare()
    assert [part.key for part in fields.plan] == ["feat"]
    with pytest.raises(RuntimeError, match="field 'weight' must not require gradients"):
        fields.read("weight", ids_of())
    with pytest.raises(KeyError, match="gone"):
        fields.read("gone", ids_of())


def test_a_field_of_other_length_is_read_and_not_cached(feat, mapped):
    short = mapped(np.arange(10, dtype=np.int64), "short")
    fields = field_set({"feat": feat, "short": short}, 1.0)
    fields.prepare()
    assert [part.key for part in fields.plan] == ["feat"]
    assert fields.read("short", torch.tensor([9])).tensor.tolist() == [9]


def test_sources_may_come_later(feat):
    fields = field_set({}, "50%")
    fields.prepare()
    fields.add_source("feat", lambda: feat)
    assert torch.equal(fields.read("feat", ids_of()).tensor, feat[ids_of()])
    assert fields.plan.rows == 0
    fields.after_first_step()
    assert fields.plan.rows == 150
    fields.add_source("feat", lambda: feat + 1)
    assert torch.equal(fields.read("feat", ids_of()).tensor, feat[ids_of()] + 1)


def test_a_field_added_after_filling_gets_what_is_left(feat, mapped):
    more = mapped(np.arange(N, dtype=np.float32), "more")
    fields = field_set({"feat": feat}, 4 * N + N * 16 + 40)
    fields.prepare()
    assert fields.plan.rows == N
    fields.add_source("more", lambda: more)
    for _ in range(10):
        assert torch.equal(fields.read("more", torch.arange(N)).tensor, more)
    parts = {part.key: part.rows for part in fields.plan}
    assert parts == {"feat": N, "more": 10}
    assert fields.plan.nbytes <= fields.plan.budget_bytes


def test_rows_belong_to_the_reader_and_memory_comes_back(feat):
    pool = BufferPool(4)
    fields = field_set({"feat": feat}, "50%", pool=pool)
    fields.prepare()
    first = fields.read("feat", ids_of())
    kept = first.tensor.clone()
    second = fields.read("feat", ids_of())
    first.tensor.fill_(-1)
    assert torch.equal(second.tensor, kept) and torch.equal(feat[ids_of()], kept)
    assert torch.equal(fields.read("feat", ids_of()).tensor, kept)
    address = second.tensor.data_ptr()
    del first, second
    gc.collect()
    held = [fields.read("feat", ids_of()) for _ in range(3)]  # one read was let go of before
    assert address in [read.tensor.data_ptr() for read in held]


def test_rows_still_held_are_never_overwritten(feat):
    fields = field_set({"feat": feat}, "50%", pool=BufferPool(2))
    fields.prepare()
    held = [
        (ids_of(seed=step), fields.read("feat", ids_of(seed=step)).tensor[:, 1:])
        for step in range(20)
    ]
    assert all(torch.equal(view, feat[ids][:, 1:]) for ids, view in held)


def test_every_dtype_goes_through_one_set(mapped):
    sources = {
        "f16": mapped(np.arange(N, dtype=np.float16), "f16"),
        "bool": mapped(np.arange(N) % 2 == 0, "bool"),
        "c64": mapped(np.arange(N * 2, dtype=np.complex64).reshape(N, 2), "c64"),
        "i64": mapped((np.arange(N) + (1 << 40)).reshape(N, 1, 1), "i64"),
        "bf16": mapped(np.arange(N * 3, dtype=np.int16).reshape(N, 3), "bf16").view(torch.bfloat16),
        "none": torch.zeros(N, 0),
    }
    fields = field_set(sources, "30%")
    fields.prepare()
    assert {part.key for part in fields.plan} == set(sources) - {"none"}
    for key, source in sources.items():
        got = fields.read(key, ids_of()).tensor
        assert got.dtype == source.dtype and torch.equal(got, source[ids_of()])


def test_threads_read_while_the_cache_is_filled(feat):
    fields = field_set({"feat": feat}, "50%")
    wrong, stop = [], threading.Event()

    def work(seed):
        while not stop.is_set():
            ids = ids_of(seed=seed)
            if not torch.equal(fields.read("feat", ids).tensor, feat[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    fields.prepare()
    for _ in range(50):
        fields.invalidate("feat")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = fields.counters.fields["feat"]
    assert stats.asked % 100 == 0 and stats.hits + stats.misses == stats.asked


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("budget", [None, "10%", 1.0, "auto"])
def test_delivery_on_a_gpu(feat, budget):
    device = torch.device("cuda", torch.cuda.current_device())
    sources = {"feat": feat, "ram": torch.randn(N, 3), "there": torch.randn(N, 2, device=device)}
    fields = FieldSet(
        {key: (lambda value=value: value) for key, value in sources.items()},
        device=device,
        budget=Budget.parse(budget),
        rank=lambda types: {NODE_TYPE: Ranking(torch.arange(N))},
        pool_of=lambda key: BufferPool(1),
        num_nodes=N,
    )
    fields.prepare()
    for _ in range(2):
        for key, source in sources.items():
            rows = fields.read(key, ids_of()).arrive()
            assert rows.device == device and torch.equal(rows.cpu(), source.cpu()[ids_of()])
        fields.after_first_step()
    assert {part.key for part in fields.plan} == (set() if budget is None else {"feat", "ram"})
