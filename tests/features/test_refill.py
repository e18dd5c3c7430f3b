"""Choosing anew: other rows under the same bytes, while reads go on."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from pagraph.accelerator import HostAccelerator
from pagraph.cache import FieldSet, holding
from pagraph.cache.choice import Role
from pagraph.features import on_disk
from pagraph.graph.graph import NODE_TYPE
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.ranking.workload import Share
from pagraph.system import Budget
from pagraph.system.budget import SLOT_BYTES
from pagraph.system.buffers import BufferPool

N = 200


@pytest.fixture
def mapped(tmp_path):
    """Makes memory-mapped rows of float64."""

    def make(name, width):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(width).random((N, width)))
        tensor = map_npy(tmp_path / f"{name}.npy")
        if not on_disk(tensor):
            pytest.skip("needs temporary files on a disk")
        return tensor

    return make


@pytest.fixture
def sources(mapped):
    return {"wide": mapped("wide", 4), "narrow": mapped("narrow", 1)}


def first(ids):
    """A ranking of these vertices."""
    ids = torch.as_tensor(list(ids))
    return lambda types: dict.fromkeys(types, Ranking(ids))


def field_set(sources, budget="25%", rank=None, share=None):
    pool = BufferPool(4)
    return FieldSet(
        {
            key: (value if callable(value) else lambda value=value: value)
            for key, value in sources.items()
        },
        device=torch.device("cpu"),
        budget=Budget.parse(budget),
        rank=rank or first(range(N)),
        pool_of=lambda key: pool,
        num_nodes=N,
        share=share,
    )


def cached(fields, key="wide"):
    """The ids that are hits."""
    found = set()
    for v in range(N):
        before = fields.counters
        fields.read(key, torch.tensor([v]))
        if (fields.counters - before).fields[key].hits:
            found.add(v)
    return found


def memory(fields):
    return {
        key: field._cache.rows.data_ptr()
        for key, field in fields._fields.items()
        if field.is_cached
    }


def check(fields, sources):
    ids = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    for key, tensor in sources.items():
        assert torch.equal(fields.read(key, ids).tensor, tensor[ids])


@pytest.mark.parametrize("budget", ["25%", SLOT_BYTES * N + 40 * 50, "auto"])
def test_other_rows_are_cached_under_the_same_bytes(sources, budget):
    fields = field_set(sources, budget, rank=first(range(50)))
    fields.prepare()
    fields.after_first_step()
    bytes_before = fields.plan.budget_bytes
    assert cached(fields) == cached(fields, "narrow") == set(range(50))
    fields.refill(first(range(100, 150)))
    assert cached(fields) == cached(fields, "narrow") == set(range(100, 150))
    assert fields.plan.budget_bytes == bytes_before and fields.plan.nbytes <= bytes_before
    assert [part.rows for part in fields.plan] == [50, 50]
    check(fields, sources)


def test_before_the_first_filling_the_new_ranking_is_taken_then(sources):
    fields = field_set(sources, rank=first([0]))
    fields.refill(first(range(7)))
    assert fields.plan.rows == 0
    fields.prepare()
    assert cached(fields) == set(range(7))
    field_set({}, None).refill(first([0]))  # no cache: nothing to do


def test_the_same_rows_are_not_filled_again(sources):
    fields = field_set(sources)
    fields.prepare()
    before, table = memory(fields), fields._fields["wide"]._cache.slots
    fields.refill(first(range(N)))
    assert memory(fields) == before
    assert torch.equal(fields._fields["wide"]._cache.slots, table)
    check(fields, sources)


def test_a_field_whose_rows_stay_is_kept_and_expects_what_the_new_ranking_says(mapped):
    sources = {"wide": mapped("wide", 4), "narrow": mapped("narrow", 1)}
    reads = {}

    def rank(types):
        return dict.fromkeys(types, Ranking.of_reads(reads["now"]))

    pool = BufferPool(2)
    fields = FieldSet(
        {},
        device=torch.device("cpu"),
        budget=Budget.parse(SLOT_BYTES * N + 32 * 40 + 8 * 40),
        rank=rank,
        pool_of=lambda key: pool,
        num_nodes=N,
        outputs=lambda row_type: (torch.arange(N) < 40).double(),
    )
    for key, role in (("wide", Role.INPUT), ("narrow", Role.OUTPUT)):
        fields.add_source(key, lambda key=key: sources[key], role=role)
    few = torch.arange(N) < 40
    reads["now"] = torch.where(few, 10.0, 0.5).double()
    fields.prepare()
    assert {part.key: part.rows for part in fields.plan} == {"wide": 40, "narrow": 40}
    before = memory(fields)
    reads["now"] = torch.where(few, torch.arange(N, 0, -1), 0.5).double()
    fields.refill(rank)
    assert memory(fields) == before
    assert fields.plan.fields[0].expected_reads == sum(range(161, 201)) + 80
    check(fields, sources)


def test_a_field_that_changed_is_cached_with_its_present_values(sources):
    fields = field_set(sources)
    fields.prepare()
    sources["wide"][3] = -1.0  # mapped copy-on-write
    fields.refill(first(range(N)))
    check(fields, sources)
    assert cached(fields) == set(range(50)) and cached(fields, "narrow") == set(range(50))


def test_a_field_that_went_away_and_one_that_came_are_seen(mapped, sources):
    there = dict(sources)
    fields = field_set({"wide": lambda: there["wide"], "narrow": lambda: there["narrow"]})
    fields.prepare()
    nbytes = fields.plan.budget_bytes
    del there["narrow"]
    more = mapped("more", 2)
    fields.add_source("more", lambda: more)
    fields.refill(first(range(100, 200)))
    assert {part.key for part in fields.plan} == {"wide", "more"}
    assert fields.plan.rows == (nbytes - SLOT_BYTES * N) // 48
    check(fields, {"wide": sources["wide"], "more": more})


@pytest.mark.statistics
def test_a_ranking_of_nothing_empties_the_cache(sources):
    fields = field_set(sources)
    fields.prepare()
    old = [weakref.ref(field._cache) for field in fields._fields.values()]
    fields.refill(first([]))
    gc.collect()
    assert fields.plan.rows == 0 and [ref() for ref in old] == [None, None]
    for _ in range(20):
        check(fields, sources)
    assert fields.plan.rows == 0


@pytest.mark.many
def test_old_rows_are_freed(sources):
    fields = field_set(sources)
    fields.prepare()
    old = [weakref.ref(field._cache) for field in fields._fields.values()]
    fields.refill(first(range(50, N)))
    gc.collect()
    assert [ref() for ref in old] == [None, None]


def test_a_failing_ranking_leaves_the_cache_as_it_was(sources):
    fields = field_set(sources)
    fields.prepare()

    def fail(types):
        raise ValueError("no ranking today")

    with pytest.raises(ValueError, match="no ranking today"):
        fields.refill(fail)
    assert cached(fields) == set(range(50))


def test_at_most_one_field_more_than_the_budget_is_held(mapped, monkeypatch):
    """Fields that shrink go first; each is filled beside its own old rows only."""
    sources = {"a": mapped("a", 4), "b": mapped("b", 3)}
    reads = {"in": torch.arange(N, 0, -1).double(), "out": torch.zeros(N)}
    pool = BufferPool(2)
    fields = FieldSet(
        {},
        device=torch.device("cpu"),
        budget=Budget.parse(SLOT_BYTES * N + 32 * 100),
        rank=lambda types: dict.fromkeys(
            types, Ranking(torch.arange(N), reads["in"], per_epoch=True)
        ),
        pool_of=lambda key: pool,
        num_nodes=N,
        outputs=lambda row_type: reads["out"],
    )
    for key, role in (("a", Role.INPUT), ("b", Role.OUTPUT)):
        fields.add_source(key, lambda key=key: sources[key], role=role)
    held = []
    fill = holding.fill_cache

    def watched(*args, **options):
        cache = fill(*args, **options)
        others = [field._cache.row_nbytes for field in fields._fields.values() if field.is_cached]
        held.append((sum(others) + cache.row_nbytes, cache.row_nbytes))
        return cache

    monkeypatch.setattr(holding, "fill_cache", watched)
    fields.prepare()
    assert {part.key: part.rows for part in fields.plan} == {"a": 100}
    for turn in range(4):
        reads["in"] = torch.arange(N, 0, -1).double() * (1e-3 if turn % 2 == 0 else 1)
        reads["out"] = torch.arange(N, 0, -1).double() * (1 if turn % 2 == 0 else 1e-3)
        fields.refill(
            lambda types: dict.fromkeys(
                types, Ranking(torch.arange(N), reads["in"], per_epoch=True)
            )
        )
        check(fields, sources)
    assert all(total <= 32 * 100 + new for total, new in held) and len(held) > 4
    assert sum(part.nbytes for part in fields.plan) <= 32 * 100


def test_elsewhere_than_in_memory_the_old_rows_go_first(sources, monkeypatch):
    pool = BufferPool(1)
    fields = FieldSet(
        {key: (lambda value=value: value) for key, value in sources.items()},
        device=torch.device("cpu"),
        accelerator=HostAccelerator(),
        budget=Budget.parse("25%"),
        rank=first(range(50)),
        pool_of=lambda key: pool,
        num_nodes=N,
    )
    held = []
    fill = holding.fill_rows

    def watched(*args):
        rows = fill(*args)
        held.append(sum(field.is_cached for field in fields._fields.values()))
        return rows

    monkeypatch.setattr(holding, "fill_rows", watched)
    fields.prepare()
    fields.refill(first(range(50)))  # the same: nothing goes
    fields.refill(first(range(100, 150)))
    assert held == [0, 1, 0, 1]
    assert [part.rows for part in fields.plan] == [50, 50]


def test_threads_read_whole_rows_while_the_cache_is_refilled(sources):
    fields = field_set(sources)
    fields.prepare()
    wrong, stop = [], threading.Event()

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        while not stop.is_set():
            ids = torch.randint(0, N, (64,), generator=generator)
            for key, tensor in sources.items():
                if not torch.equal(fields.read(key, ids).tensor, tensor[ids]):
                    wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        fields.refill(
            first(torch.randperm(N, generator=torch.Generator().manual_seed(turn)).tolist())
        )
        if turn % 8 == 0:
            fields.invalidate("wide")
            sources["narrow"].add_(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(plan.nbytes for plan in fields.plans) <= fields.plan.budget_bytes


def test_who_shares_the_old_rows_keeps_them_and_nobody_takes_the_new(sources):
    one, two = field_set(sources, share=Share("s")), field_set(sources, share=Share("s"))
    one.prepare()
    two.prepare()
    assert memory(one) == memory(two) != {}
    one.refill(first(range(100, 200)))
    assert cached(one) == set(range(100, 150)) and cached(two) == set(range(50))
    three = field_set(sources, share=Share("s"))
    three.prepare()
    assert memory(three) == memory(two)
    early = field_set(sources, share=Share("s"))
    early.refill(first(range(100, 200)))
    early.prepare()
    assert cached(early) == set(range(100, 150)) and memory(early) != memory(one)
    one.invalidate()  # reaches those that share the values all the same
    assert not any(field.is_cached for field in two._fields.values())


@pytest.mark.many
def test_the_set_is_freed_at_once_after_refilling(sources):
    fields = field_set(sources)
    fields.prepare()
    fields.refill(first(range(60, 160)))
    gc.collect()
    gc.disable()
    try:
        watched = [weakref.ref(fields), weakref.ref(fields._fields["wide"]._cache)]
        del fields
        assert [ref() for ref in watched] == [None, None]
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("budget", ["25%", "auto"])
def test_on_a_gpu_old_rows_go_before_new_ones_come(sources, budget):
    pool = BufferPool(1)
    fields = FieldSet(
        {key: (lambda value=value: value) for key, value in sources.items()},
        device=torch.device("cuda"),
        budget=Budget.parse(budget),
        rank=lambda types: {NODE_TYPE: Ranking(torch.arange(50))},
        pool_of=lambda key: pool,
        num_nodes=N,
    )
    fields.after_first_step()
    allocated = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fields.refill(first(range(100, 150)))
    assert torch.cuda.memory_allocated() == allocated
    assert [part.rows for part in fields.plan] == [50, 50]
    for key, tensor in sources.items():
        got = fields.read(key, torch.arange(N)).arrive()
        assert got.is_cuda and torch.equal(got.cpu(), tensor)
