"""Loaders of the same tensors share one cache; anything else has its own."""

import gc
import time
import weakref

import numpy as np
import pytest
import torch
from fresh_processes import HANGING

from pagraph import Graph, Loader, NeighborSampler
from pagraph.graph.mapped import map_npy


@pytest.fixture
def graph(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, 100, 900), rng.integers(0, 100, 900), 100)
    np.save(tmp_path / "feat.npy", rng.random((100, 6)))
    np.save(tmp_path / "more.npy", rng.random((100, 2)))
    graph.set_field("feat", map_npy(tmp_path / "feat.npy"))
    graph.set_field("more", map_npy(tmp_path / "more.npy"))
    return graph


def make(graph, seeds=range(50), *, fields=("feat",), **options):
    defaults = dict(batch_size=10, cache="20%", seed=0)
    return Loader(
        graph,
        torch.tensor(list(seeds)),
        NeighborSampler([3]),
        fields=fields,
        **(defaults | options),
    )


def rows_of(loader, name="feat"):
    """The memory of the cached rows of a loader that has run."""
    return loader._engine.fields._fields[name]._cache.rows.data_ptr()


def run(loader):
    for batch in loader:
        for name, rows in batch.features.items():
            expected = loader.graph.ndata[name][batch.input_nodes]
            assert torch.equal(rows, expected.to(loader.cache_dtype or torch.float64).double())
    return loader


@pytest.mark.many
@pytest.mark.parametrize("cache", ["20%", "auto"])
def test_train_and_validation_share_one_cache(graph, cache):
    train = run(make(graph, cache=cache))
    val = make(graph, range(50, 100), cache=cache)
    run(val)
    assert rows_of(val) == rows_of(train)
    assert val.stats.total.hit_rate > 0
    assert len(val.cache_plan.fields) == 1
    first = train
    del train, first
    gc.collect()
    run(val)  # the cache lives as long as anyone uses it


def test_loaders_with_one_cache_dtype_share_it(graph):
    train, val = (
        run(make(graph, cache_dtype="fp16")),
        run(make(graph, range(50, 100), cache_dtype=torch.float16)),
    )
    assert rows_of(val) == rows_of(train)


@pytest.mark.parametrize(
    "options",
    [
        {"cache": "30%"},
        {"fields": ("feat", "more")},
        {"cache_dtype": "bf16"},
        {"cache_policy": lambda graph, seeds, sampler, seed: seeds},
    ],
    ids=["budget", "fields", "dtype", "policy"],
)
def test_other_budgets_fields_and_policies_have_their_own(graph, options):
    first = run(make(graph))
    second = run(make(graph, **options))
    assert rows_of(second) != rows_of(first)


def test_another_direction_has_its_own(graph):
    first = run(make(graph))
    out = Loader(
        graph,
        torch.arange(50),
        NeighborSampler([3], edge_dir="out"),
        fields=["feat"],
        batch_size=10,
        cache="20%",
    )
    assert rows_of(run(out)) != rows_of(first)


def test_a_loader_that_needs_less_uses_the_larger_sets_cache(graph):
    both = run(make(graph, fields=("feat", "more")))
    one = run(make(graph))
    assert rows_of(one) == rows_of(both)


def test_a_change_is_seen_by_all(graph):
    first, second = run(make(graph)), run(make(graph))
    assert rows_of(first) == rows_of(second)
    graph.ndata["feat"][:] = 3.0
    run(first)
    run(second)
    first.invalidate_cache()
    run(first)


def test_other_tensors_are_not_mixed_up(graph, tmp_path):
    run(make(graph))
    np.save(tmp_path / "other.npy", np.ones((100, 6)))
    graph.set_field("feat", map_npy(tmp_path / "other.npy"))
    second = run(make(graph))
    assert second.stats.total.hit_rate > 0


@pytest.mark.many
def test_a_loader_and_its_cache_are_freed_at_once(graph):
    """Without the garbage collector: a cycle would keep gigabytes of cache until it happens to
    run."""
    gc.collect()
    gc.disable()
    try:
        loader = run(make(graph, cache=1.0, num_workers=2))
        batches = iter(loader)
        next(batches)
        watched = [
            weakref.ref(x)
            for x in (loader, loader._engine.fields, loader._engine.fields._fields["feat"]._cache)
        ]
        del loader, batches
        deadline = time.monotonic() + HANGING  # the threads end after the batch that they are at
        while any(ref() is not None for ref in watched) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [ref() for ref in watched] == [None] * 3
    finally:
        gc.enable()


def test_a_new_loader_has_the_values_of_now_even_if_numpy_wrote_them(graph):
    first = run(make(graph, cache=1.0))
    graph.ndata["feat"].numpy()[:] = 2.0
    second = run(make(graph, cache=1.0))  # run() compares every row
    assert rows_of(second) != rows_of(first)


def test_invalidating_reaches_every_loader_of_the_cache(graph):
    first = run(make(graph, cache=1.0))
    second = run(make(graph, cache=1.0))
    assert rows_of(first) == rows_of(second)
    graph.ndata["feat"].numpy()[:] = 5.0
    first.invalidate_cache()
    run(second)
    run(first)
