"""Ctrl-C in a loader's pass, at any place where CPython looks for signals."""

import gc
import signal
import threading
import time
from functools import partial

import pytest
from chaos.interrupts import attacks, name_of
from chaos.loaders import graph_of
from chaos.samples import sample_graph
from fresh_processes import HANGING

from pagraph._postponed import finalize
from pagraph.datasets import write_graph

pytestmark = pytest.mark.attack

_PLACES = 300


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    write_graph(sample_graph(), folder / "graph")
    return attacks(graph_of(folder), rounds=0)


@pytest.mark.parametrize("begin", range(0, _PLACES, 50))
def test_it_arrives_and_the_loader_works(every, begin):
    came = 0
    for attack, place, passed in every[begin : begin + 50]:
        try:
            came += attack(place, passed)
        except BaseException as error:
            where = f"{attack}: {name_of(place)}, after {passed} visits"
            raise AssertionError(where) from error
    assert came >= 25  # threads may do the work instead


def test_finalisers_of_several_threads_at_once():
    class Item:
        pass

    together, rounds, kept = threading.Barrier(3, timeout=HANGING), 100, []

    def work():
        together.wait()
        together.wait()

    def drop():
        for _ in range(rounds):
            item = Item()
            finalize(item, work)
            del item

    def begin_others():
        for _ in range(rounds):
            together.wait()
            kept.append(Item())
            finalize(kept[-1], list)  # while two callbacks are at work
            together.wait()

    threads = [threading.Thread(target=each) for each in (drop, drop, begin_others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(kept) == rounds


def test_one_in_a_finaliser_comes_after_it():
    class Item:
        pass

    item, done = Item(), []
    finalize(item, partial(signal.raise_signal, signal.SIGINT))

    def drop():
        nonlocal item
        del item
        done.append("dropped")
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert done == ["dropped"]
