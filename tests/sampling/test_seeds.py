"""Seed order between the processes of a distributed training: coverage, shuffling, keys, types."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph.seeds.keys import Ranks, derive_key, epoch_key
from pagraph.seeds.order import DatasetOrder, SeedOrder


def make_orders(seeds, world, batch_size=2, **options):
    ranks_seed = options.pop("ddp_seed", 0)
    return [
        SeedOrder(seeds, batch_size, ranks=Ranks(rank, world, ranks_seed), **options)
        for rank in range(world)
    ]


def flat(order, epoch=0):
    """An epoch's seeds as one list; typed ones as (type, id)."""
    plan, seeds = order.plan(epoch), []
    for index in range(len(order)):
        batch = order.ticket(plan, index).seeds
        if isinstance(batch, dict):
            seeds += [(name, i) for name, ids in batch.items() for i in ids.tolist()]
        else:
            seeds += batch.tolist()
    return seeds


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_ranks_cover_the_indices_with_equally_many_batches(batch_size, drop_last, shuffle):
    # A loop, not 168 tests: one takes less time than pytest needs to set it up.
    for length, world in itertools.product(range(21), range(1, 9)):
        case = f"{length=} {world=}"
        ids = torch.arange(100, 100 + length)
        orders = make_orders(ids, world, batch_size, shuffle=shuffle, drop_last=drop_last, seed=4)
        parts = [flat(order) for order in orders]
        given_out = [i for part in parts for i in part]
        if drop_last:
            each = length // world
            batches = each // batch_size
            assert len(given_out) == world * batches * batch_size, case
            assert len(set(given_out)) == len(given_out), case
            assert set(given_out) <= set(ids.tolist()), case
        else:
            each = -(-length // world)
            batches = -(-each // batch_size)
            assert {len(part) for part in parts} == {each}, case
            assert set(given_out) == set(ids.tolist()), case
            assert all(len(set(part)) == each for part in parts), case
        assert {len(order) for order in orders} == {batches}, case


def test_slices_are_contiguous_and_filled_up_from_the_front():
    for length, world in itertools.product(range(21), range(1, 9)):
        each = -(-length // world)
        padded = [i % length for i in range(each * world)]
        parts = [flat(order) for order in make_orders(torch.arange(length), world)]
        slices = [padded[rank * each : (rank + 1) * each] for rank in range(world)]
        assert parts == slices, f"{length=} {world=}"


@given(
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(1, 6),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 3),
)
def test_seeds_of_types_are_shared_like_one_list(lengths, world, batch_size, shuffle, epoch):
    seeds = {f"t{i}": torch.arange(n) for i, n in enumerate(lengths)}
    everything = {(name, i) for name, ids in seeds.items() for i in ids.tolist()}
    orders = make_orders(seeds, world, batch_size, shuffle=shuffle)
    parts = [flat(order, epoch) for order in orders]
    assert {i for part in parts for i in part} == everything
    assert {len(part) for part in parts} == {-(-len(everything) // world)}
    whole = flat(SeedOrder(seeds, 10**6, shuffle=shuffle, ranks=Ranks(0, 1)), epoch)
    assert sorted(whole) == sorted(everything)


@pytest.mark.parametrize("options", [{"seed": 5}, {"ddp_seed": 5}], ids=str)
def test_all_ranks_shuffle_alike_and_get_other_seeds_every_epoch(options):
    ids = torch.arange(1000, 1024)
    whole = SeedOrder(ids, 7, shuffle=True, seed=5)
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    epochs = []
    for epoch in range(3):
        # One order of all seeds, of (seed, epoch) alone, cut into slices.
        for world in (1, 2, 3, 4):
            parts = [
                flat(order, epoch) for order in make_orders(ids, world, shuffle=True, **options)
            ]
            assert sum(parts, []) == flat(whole, epoch)
        epochs.append(parts)
    assert np.random.get_state()[1].tolist() == before
    for rank in range(4):
        first, second, third = (set(parts[rank]) for parts in epochs)
        assert first != second and second != third and first != third
    other = {name: value + 1 for name, value in options.items()}
    assert sum([flat(order) for order in make_orders(ids, 4, shuffle=True, **other)], []) != sum(
        epochs[0], []
    )


@pytest.mark.parametrize(
    "make", [lambda **o: SeedOrder(torch.arange(8), 2, **o), lambda **o: DatasetOrder("abcd", **o)]
)
def test_sampling_keys_differ_between_ranks_and_plans_do_not(make):
    orders = [make(seed=3, ranks=Ranks(rank, 3)) for rank in range(3)]
    plans = [order.plan(2) for order in orders]
    assert {plan.key for plan in plans} == {epoch_key(3, 2)}
    keys = [
        order.ticket(plan, i).key
        for order, plan in zip(orders, plans, strict=True)
        for i in range(len(order))
    ]
    assert len(set(keys)) == len(keys)
    generators = []
    for rank in range(3):  # processes that call torch.manual_seed(0), as scripts do
        torch.manual_seed(0)
        order = make(ranks=Ranks(rank, 3))
        generators.append(order.ticket(order.plan(0), 0).key)
    assert len(set(generators)) == 3
    alone = make(seed=3)
    assert (
        alone.ticket(alone.plan(2), 1).key
        == make(seed=3, ranks=Ranks(0, 1)).ticket(plans[0], 1).key
    )


def test_what_a_saved_place_belongs_to():
    ids = torch.arange(8)
    shuffled = dict(shuffle=True, ddp_seed=1)
    same = make_orders(ids, 4, **shuffled)
    # Of no rank: one rank's state may serve all.
    assert len({str(order.identity) for order in same}) == 1
    for other in (
        make_orders(ids, 2, **shuffled)[0],
        make_orders(ids, 4, shuffle=True, ddp_seed=2)[0],
        make_orders(ids[:7], 4, **shuffled)[0],  # as many seeds a rank, others
        SeedOrder(ids, 2, shuffle=True),
    ):
        assert other.identity != same[0].identity
    # Not shuffled.
    assert (
        make_orders(ids, 4, ddp_seed=1)[0].identity == make_orders(ids, 4, ddp_seed=2)[0].identity
    )


def test_the_order_of_a_seed_and_an_epoch_stays_from_release_to_release():
    rng = np.random.Generator(np.random.Philox(key=derive_key(5, 2, 1)))
    order = SeedOrder(torch.arange(9), 2, shuffle=True, seed=5)
    assert flat(order, epoch=2) == rng.permutation(9).tolist()


def test_an_epoch_that_still_runs_keeps_its_order():
    order = SeedOrder(torch.arange(50), 50, shuffle=True)
    order.plan(0)
    plan = order.plan(1)
    begun = order.ticket(plan, 0).seeds
    later = order.ticket(order.plan(2), 0).seeds
    assert torch.equal(order.ticket(plan, 0).seeds, begun) and not torch.equal(later, begun)


def test_planning_again_needs_a_key():
    order = make_orders(torch.arange(8), 2, shuffle=True, ddp_seed=1)[1]
    plan = order.plan(3)
    again = order.replan(3, plan.key)
    assert again.key == plan.key and torch.equal(again.permutation, plan.permutation)
    assert order.permutation is None  # nothing to remember
    with pytest.raises(ValueError, match="permutation must be None"):
        order.restore(torch.arange(4), begun=True)
    for nothing in (order, DatasetOrder("abc")):
        with pytest.raises(ValueError, match="seed or key must be given"):
            nothing.replan(3)


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [(0, 0, "size must be at least 1, got 0"), (2, 2, r"\[0, 2\), got 2"), (-1, 2, "-1")],
)
def test_places_that_do_not_exist(rank, size, message):
    with pytest.raises(ValueError, match=message):
        Ranks(rank, size)
