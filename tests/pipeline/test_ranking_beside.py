"""The rows of a cache that windows fill are ranked beside the batches: none waits, errors come,
nothing is left."""

import os
import threading

import numpy as np
import pytest
import torch
from fresh_processes import HANGING

import pagraph.engine.engine as engine
from pagraph import Graph, Loader, NeighborSampler
from pagraph.engine.planning import Ranker
from pagraph.graph.mapped import map_npy

NUM_NODES, WIDTH = 6000, 64


@pytest.fixture
def make(cold_file, monkeypatch):
    """Makes loaders of one graph whose features lie in a cold file."""
    monkeypatch.setattr(engine, "MAPPED_SHARE", 0.0)
    src, dst = np.random.default_rng(1).integers(0, NUM_NODES, (2, 40_000))
    values = np.random.default_rng(0).random((NUM_NODES, WIDTH), dtype=np.float32)

    def loader(**options):
        graph = Graph.from_coo(
            src, dst, NUM_NODES, ndata={"feat": map_npy(cold_file("feat", values))}
        )
        settings = {"batch_size": 100, "shuffle": True, "seed": 3, "lookahead": 4, **options}
        return Loader(
            graph,
            torch.arange(0, NUM_NODES, 3),
            NeighborSampler([5, 3]),
            fields=["feat"],
            **settings,
        )

    return loader


@pytest.fixture
def gate(monkeypatch):
    """Rankings wait until it is set."""
    event, rank = threading.Event(), Ranker.__call__

    def late(self, types):
        assert event.wait(HANGING)
        return rank(self, types)

    monkeypatch.setattr(Ranker, "__call__", late)
    yield event
    event.set()


def bits(batches):
    return [batch.features["feat"].numpy().tobytes() for batch in batches]


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("pagraph-")]


def test_batches_come_while_rows_are_ranked(make, gate):
    expected = bits(make(cache=0))
    loader = make(cache="400KB")
    batches = iter(loader)
    first = bits(next(batches) for _ in range(8))
    assert not loader.cache_plan.fields
    gate.set()
    assert first + bits(batches) == expected
    assert loader.cache_plan.fields and not threads()
    assert len(bits(loader)) == len(expected) and loader.stats.epochs[1].hit_rate > 0


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_the_ranking_comes_with_a_batch(make, monkeypatch, prefetch):
    def broken(self, types):
        raise ArithmeticError("no ranking")

    monkeypatch.setattr(Ranker, "__call__", broken)
    loader = make(cache="400KB", prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ArithmeticError, match="no ranking"):
        list(batches)
    assert not threads()
    with pytest.raises(ArithmeticError, match="no ranking"):
        iter(loader)


def test_leaving_while_rows_are_ranked(make, gate):
    loader = make(cache="400KB")
    for number, _ in enumerate(loader):
        if number == 1:
            break
    gate.set()
    for thread in threads():
        thread.join(HANGING)
        assert not thread.is_alive()
    assert len(list(loader)) == 20 and loader.cache_plan.fields


def test_closing_waits_for_the_ranking(make, gate):
    loader = make(cache="400KB")
    batches = iter(loader)
    next(batches), next(batches)
    threading.Timer(0.2, gate.set).start()
    loader.close()
    assert not threads()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_rows_are_ranked(make, gate):
    loader = make(cache="400KB", prefetch=2)
    batches = iter(loader)
    next(batches), next(batches)
    lock = loader._engine.fields._static._fill_lock
    while lock.acquire(blocking=False):  # the thread has not begun
        lock.release()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.set()
    assert len(list(batches)) == 18
