"""Ctrl-C in a loader's pass, at any place where CPython looks for signals."""

import signal
import time
from functools import partial

import pytest
from chaos.interrupts import attacks, name_of
from chaos.loaders import graph_of
from chaos.samples import sample_graph

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
    for attack, place, passed in every[begin : begin + 50]:
        try:
            attack(place, passed)
        except BaseException as error:
            where = f"{attack}: {name_of(place)}, after {passed} visits"
            raise AssertionError(where) from error


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
