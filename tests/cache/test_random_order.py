"""The random policy: every order as likely, and a function of the seed."""

import pytest
import torch

from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.ranking import apply_policy, resolve_policy

EMPTY = torch.empty(0, dtype=torch.int64)


def order(seed, n=6):
    graph = Graph.from_coo([], [], num_nodes=n)
    return apply_policy(resolve_policy("random"), graph, torch.arange(1), None, seed, batch_size=1)[
        "_N"
    ].ids


@pytest.mark.many
def test_each_vertex_is_as_often_in_each_place():
    counts = torch.zeros(6, 6)
    for seed in range(3000):
        counts[torch.arange(6), order(seed)] += 1
    # Chi-square, 25 degrees of freedom, 0.001.
    assert float(((counts - 500) ** 2 / 500).sum()) < 52.6


def test_seeds_and_types_have_orders_of_their_own():
    assert order(1, 50).tolist() != order(2, 50).tolist()
    etypes = [("a", "r", "b")]
    graph = Graph(
        {etypes[0]: CSC(torch.zeros(51, dtype=torch.int64), EMPTY, 50)}, {"a": 50, "b": 50}
    )
    rankings = resolve_policy("random")(graph, {}, None, 1)
    assert rankings["a"].tolist() != rankings["b"].tolist()
