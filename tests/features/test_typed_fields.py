"""Fields of several vertex types in one set: one budget, one decision, late fields, shared
caches."""

import threading

import numpy as np
import pytest
import torch

from pagraph.cache import FieldSet
from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.ranking.workload import Share
from pagraph.system import Budget
from pagraph.system.budget import SLOT_BYTES
from pagraph.system.buffers import BufferPool

COUNTS = {"a": 100, "b": 40, "c": 0}
TABLES = {t: SLOT_BYTES * n for t, n in COUNTS.items()}


@pytest.fixture
def mapped(tmp_path):
    """Makes a memory-mapped tensor with the given shape and dtype; values are all different."""

    def make(name, *shape, dtype=np.float64):
        np.save(tmp_path / f"{name}.npy", np.arange(np.prod(shape), dtype=dtype).reshape(shape))
        tensor = map_npy(tmp_path / f"{name}.npy")
        if not on_disk(tensor):
            pytest.skip("needs temporary files on a disk")
        return tensor

    return make


def forward():
    """The first vertices are the best; each of type "b" saves twice as much per 8 bytes."""
    return {
        "a": Ranking(torch.arange(100), torch.full((100,), 8.0)),
        "b": Ranking(torch.arange(40), torch.full((40,), 32.0)),
    }


def field_set(sources, budget, rank=forward, share=None, **options):
    """A set of (type, name) fields."""
    pool = BufferPool(4)
    fields = FieldSet(
        {},
        device=torch.device("cpu"),
        budget=Budget.parse(budget),
        rank=lambda types: rank(),
        pool_of=lambda key: pool,
        num_nodes=COUNTS,
        share=share,
        **options,
    )
    for key, tensor in sources.items():
        fields.add_source(key, lambda tensor=tensor: tensor, row_type=key[0])
    return fields


def rows(fields):
    return {plan.node_type: plan.rows for plan in fields.plans}


def read_all(fields, sources, times=1):
    for _ in range(times):
        for key, tensor in sources.items():
            ids = torch.arange(len(tensor)).flip(0)
            assert torch.equal(fields.read(key, ids).tensor, tensor[ids])


@pytest.fixture
def sources(mapped):
    return {
        ("a", "x"): mapped("ax", 100, 1),
        ("b", "x"): mapped("bx", 40, 2),
        ("c", "x"): torch.empty(0, 7),
    }


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (TABLES["b"] + 15, (0, 0)),
        (TABLES["b"] + 16 * 10, (0, 10)),
        (TABLES["b"] + 16 * 40, (0, 40)),
        (TABLES["a"] + TABLES["b"] + 16 * 40 + 8 * 30 + 7, (30, 40)),
        (10**6, (100, 40)),
        ("100%", (100, 40)),
        ("10%", (0, 9)),  # 10 rows of 8 bytes and 4 of 16
        ("60%", (28, 40)),
    ],
)
def test_the_budget_goes_where_it_saves_most(sources, budget, expected):
    fields = field_set(sources, budget)
    fields.prepare()
    got = rows(fields)
    assert (got["a"], got["b"], got["c"]) == (*expected, 0)
    assert sum(plan.nbytes for plan in fields.plans) <= fields.plans[0].budget_bytes
    read_all(fields, sources)
    for (ntype, _), stats in fields.counters.fields.items():
        assert stats.hits == got[ntype]


def test_fields_of_edges_are_read_and_never_cached(sources, mapped):
    fields = field_set(sources, "100%")
    weight = mapped("weight", 100)
    fields.add_source("edge", lambda: weight, row_type=None)
    fields.prepare()
    assert torch.equal(fields.read("edge", torch.arange(100)).tensor, weight)
    assert (
        fields.counters.fields["edge"].cacheable is False
        and fields.counters.fields["edge"].hits == 0
    )


def test_the_same_key_is_another_field_in_each_set_but_never_in_one(sources):
    fields = field_set(sources, "100%")
    fields.add_source(("a", "x"), lambda: sources["a", "x"] + 1, row_type="a")
    assert torch.equal(fields.read(("a", "x"), torch.arange(100)).tensor, sources["a", "x"] + 1)


def test_nothing_is_decided_before_there_is_a_field(sources):
    fields = field_set({("a", "ram"): torch.zeros(100, 2)}, "100%")
    fields.prepare()
    fields.after_first_step()
    fields.prepare()
    assert rows(fields) == {"a": 0, "b": 0, "c": 0}
    fields.add_source(("b", "x"), lambda: sources["b", "x"], row_type="b")
    fields.prepare()  # the next epoch
    assert rows(fields) == {"a": 0, "b": 40, "c": 0}


def test_auto_waits_for_the_first_step_even_if_fields_come_later(sources):
    fields = field_set({}, "auto")
    fields.prepare()
    fields.add_source(("b", "x"), lambda: sources["b", "x"], row_type="b")
    fields.prepare()
    assert rows(fields)["b"] == 0
    fields.after_first_step()
    assert rows(fields)["b"] == 40


@pytest.mark.parametrize("left", [0, 15, TABLES["b"] + 15, TABLES["b"] + 16 * 7 + 1, 10**5])
def test_a_type_that_comes_late_pays_its_table_from_what_is_left(sources, left):
    first = {("a", "x"): sources["a", "x"]}
    fields = field_set(first, TABLES["a"] + 800 + left)
    fields.prepare()
    late = {("b", "x"): sources["b", "x"]}
    fields.add_source(("b", "x"), lambda: sources["b", "x"], row_type="b")
    read_all(fields, late, times=20)
    expected = min(40, max(0, left - TABLES["b"]) // 16)
    assert rows(fields) == {"a": 100, "b": expected, "c": 0}
    assert sum(plan.nbytes for plan in fields.plans) <= TABLES["a"] + 800 + left
    before = fields.counters
    read_all(fields, late)
    assert (fields.counters - before).fields["b", "x"].hits == expected


def test_a_second_late_field_gets_what_the_first_left(sources, mapped):
    more = mapped("more", 40, dtype=np.int16)
    fields = field_set(
        {("a", "x"): sources["a", "x"]}, TABLES["a"] + 800 + TABLES["b"] + 16 * 30 + 2 * 9
    )
    fields.prepare()
    late = {("b", "x"): sources["b", "x"], ("b", "more"): more}
    for key, tensor in late.items():
        fields.add_source(key, lambda tensor=tensor: tensor, row_type="b")
        read_all(fields, {key: tensor}, times=20)
    assert {part.key: part.rows for plan in fields.plans for part in plan} == {
        ("a", "x"): 100,
        ("b", "x"): 31,
        ("b", "more"): 1,
    }
    read_all(fields, late)


def test_a_ranking_without_ids_for_a_late_type_is_asked_for_once(sources):
    calls = []

    def rank():
        calls.append(1)
        return {"a": Ranking(torch.arange(100))}

    fields = field_set({("a", "x"): sources["a", "x"]}, 10**6, rank=rank)
    fields.prepare()
    fields.add_source(("b", "x"), lambda: sources["b", "x"], row_type="b")
    read_all(fields, {("b", "x"): sources["b", "x"]}, times=50)
    assert len(calls) == 2 and rows(fields) == {"a": 100, "b": 0, "c": 0}


def test_types_that_got_no_rows_stay_so_in_a_shared_cache(sources):
    budget = TABLES["b"] + 16 * 10
    first = field_set(sources, budget, share=Share("s"))
    first.prepare()

    def never():
        raise AssertionError("ranked again")

    second = field_set(sources, budget, rank=never, share=Share("s"))
    second.prepare()
    assert rows(second) == rows(first) == {"a": 0, "b": 10, "c": 0}
    cached = [fields._fields["b", "x"]._cache.rows.data_ptr() for fields in (first, second)]
    assert cached[0] == cached[1]
    read_all(second, sources)


def test_a_set_with_a_type_that_the_other_never_saw_decides_itself(sources):
    only = {("b", "x"): sources["b", "x"]}
    first = field_set(only, 10**6, share=Share("s"))
    first.prepare()
    second = field_set(sources, 10**6, share=Share("s"))
    second.prepare()
    assert rows(second) == {"a": 100, "b": 40, "c": 0}
    third = field_set(only, 10**6, share=Share("other"))
    third.prepare()
    rows_of = [fields._fields["b", "x"]._cache.rows.data_ptr() for fields in (first, second, third)]
    assert len(set(rows_of)) == 3


def test_other_numbers_of_vertices_are_not_shared(sources, mapped):
    first = field_set(sources, "50%", share=Share("s"))
    first.prepare()
    fields = FieldSet(
        {},
        device=torch.device("cpu"),
        budget=Budget.parse("50%"),
        rank=lambda types: {"a": Ranking(torch.arange(100))},
        pool_of=lambda key: BufferPool(1),
        num_nodes={"a": 100},
        share=Share("s"),
    )
    fields.add_source("x", lambda: sources["a", "x"], row_type="a")
    fields.prepare()
    assert fields.plan.rows == 50 and fields.plan.node_type is None


def test_threads_read_all_types_while_the_cache_is_filled_and_a_type_comes_late(sources):
    fields = field_set({("a", "x"): sources["a", "x"]}, 10**6)
    known, wrong, stop = [("a", "x")], [], threading.Event()

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        while not stop.is_set():
            for key in list(known):
                ids = torch.randint(0, len(sources[key]), (50,), generator=generator)
                if not torch.equal(fields.read(key, ids).tensor, sources[key][ids]):
                    wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    fields.prepare()
    fields.add_source(("b", "x"), lambda: sources["b", "x"], row_type="b")
    known.append(("b", "x"))
    for _ in range(30):
        fields.invalidate(("b", "x"))
        sources["a", "x"].add_(0)  # a write: the cache is dropped, the values stay
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(plan.nbytes for plan in fields.plans) <= fields.plans[0].budget_bytes
    reads = 0
    while rows(fields) != {"a": 100, "b": 40, "c": 0}:
        # The more often a field was cached in vain, the longer it has to settle; 4096 reads are the
        # most.
        read_all(fields, {key: sources[key] for key in known})
        reads += 1
        assert reads <= 4096


def test_with_room_for_everything_nobody_is_asked_to_rank(sources):
    def never():
        raise AssertionError("asked to rank")

    width = 8 * 100 + 16 * 40 + SLOT_BYTES * 140
    for budget in (width, 10**6, 1.0):
        fields = field_set(sources, budget, rank=never, ranks_all=True)
        fields.prepare()
        read_all(fields, sources)
        assert rows(fields) == {"a": 100, "b": 40, "c": 0}
        assert fields.plans[0].expected_hit_rate == fields.plans[1].expected_hit_rate == 1.0
    for budget, options in ((width - 1, {"ranks_all": True}), (width, {})):
        with pytest.raises(AssertionError, match="asked to rank"):
            field_set(sources, budget, rank=never, **options).prepare()
