"""Ctrl-C in a loader's pass, at any place where CPython looks for signals."""

import itertools
import random

import pytest
from chaos.interrupts import WAYS, Attack, chosen, name_of
from chaos.loaders import graph_of
from chaos.samples import sample_graph

from pagraph.datasets import write_graph

pytestmark = pytest.mark.attack

_PLACES = 15  # of each way: 300 in all


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    write_graph(sample_graph(), folder / "graph")
    return graph_of(folder)


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_it_arrives_and_the_loader_works(graph, kind, options):
    attack, rng = Attack(kind, options, graph), random.Random(f"{kind} {options}")
    for place, passed in itertools.islice(chosen(attack.places, rng), _PLACES):
        try:
            attack(place, passed)
        except BaseException as error:
            error.add_note(f"at {name_of(place)}, after {passed} visits")
            raise
