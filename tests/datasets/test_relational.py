"""The generated database: its tables, keys and times, and that its task is as hard as it says."""

import numpy as np
import pytest
import torch

from pagraph import Graph
from pagraph.datasets import shop, write_graph
from pagraph.datasets.random_graphs import PERIOD

MADE, SOLD = ("customer", "made", "purchase"), ("product", "sold_in", "purchase")
ASKED = ("customer", "asked", "task")


@pytest.fixture(scope="module")
def graph():
    return shop(3000, seed=1)


def foreign_key(graph, edge_type):
    """The row that each row of a table names, in the order of the table."""
    csc = graph.csc_of(edge_type)
    src, dst = csc.ends_at(csc.positions_of(torch.arange(csc.num_edges)))
    assert torch.equal(dst.long(), torch.arange(csc.num_dst))
    return src.long()


def kind_of(graph, period):
    """The kind that each customer bought in a period: all purchases agree; -1 for none."""
    customer, product = foreign_key(graph, MADE), foreign_key(graph, SOLD)
    in_period = (graph.node_fields("purchase")["time"] - 1) // PERIOD == period
    ones = torch.bincount(customer[in_period], (product[in_period] % 2).double(), minlength=3000)
    counts = torch.bincount(customer[in_period], minlength=3000)
    assert ((ones == 0) | (ones == counts)).all()
    return torch.where(counts > 0, (ones > 0).long(), -1)


def test_tables_and_keys(graph):
    assert graph.node_types == ["customer", "product", "purchase", "task"]
    assert graph.num_nodes_of("customer") == 3000 and graph.num_nodes_of("product") == 300
    for one, other in (
        (MADE, ("purchase", "made_by", "customer")),
        (SOLD, ("purchase", "of", "product")),
    ):
        back = graph.csc_of(other)
        src, dst = back.ends_at(back.positions_of(torch.arange(back.num_edges)))
        assert torch.equal(dst.long(), foreign_key(graph, one)) and torch.equal(
            src.long(), torch.arange(back.num_edges)
        )
    assert len(graph.edge_types) == 5
    for ntype, names in {
        "customer": {"feat", "time"},
        "product": {"feat"},
        "purchase": {"feat", "time"},
    }.items():
        assert set(graph.node_fields(ntype)) == names


def test_nothing_comes_before_its_customer(graph):
    first = graph.node_fields("customer")["time"]
    assert (graph.node_fields("purchase")["time"] > first[foreign_key(graph, MADE)]).all()
    assert (graph.node_fields("task")["time"] > first[foreign_key(graph, ASKED)]).all()
    assert first.min() == 0 and first.max() == 3 * PERIOD


def test_labels_are_what_is_bought_next(graph):
    task, customer = graph.node_fields("task"), foreign_key(graph, ASKED)
    for period in range(1, 8):
        of_period = task["time"] == period * PERIOD
        assert torch.equal(kind_of(graph, period)[customer[of_period]], task["label"][of_period])


@pytest.mark.parametrize("persistence", [0.5, 0.85, 1.0])
def test_the_last_period_tells_as_much_as_promised(persistence):
    graph = shop(3000, persistence=persistence, seed=2)
    task, customer = graph.node_fields("task"), foreign_key(graph, ASKED)
    known = torch.stack([kind_of(graph, period) for period in range(8)])
    before = known[task["time"] // PERIOD - 1, customer]
    assert (before >= 0).all()
    share = (before == task["label"]).double().mean().item()
    assert share == pytest.approx(persistence, abs=4 * (0.25 / len(customer)) ** 0.5)


def test_masks_go_by_time(graph):
    task = graph.node_fields("task")
    masks = torch.stack([task[f"{name}_mask"] for name in ("train", "val", "test")])
    assert (masks.sum(0) == 1).all()
    assert [sorted({int(t) // PERIOD for t in task["time"][mask]}) for mask in masks] == [
        [1, 2, 3, 4, 5],
        [6],
        [7],
    ]


def test_features_show_the_kind_of_a_product(graph):
    feat = graph.node_fields("product")["feat"]
    centroids = torch.stack([feat[kind::2].mean(0) for kind in (0, 1)])
    assert (torch.cdist(feat, centroids).argmin(1) == torch.arange(300) % 2).double().mean() > 0.98


def test_same_seed_same_database(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_graph(shop(50, seed=seed), tmp_path / name)
    times = [Graph.open(tmp_path / name).node_fields("purchase")["time"] for name in "abc"]
    assert torch.equal(times[0], times[1]) and not np.array_equal(times[0], times[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_customers": 0}, "num_customers must be at least 1, got 0"),
        ({"num_products": 1}, "num_products must be at least 2, got 1"),
        ({"num_periods": 3}, "num_periods must be at least 4, got 3"),
        ({"num_features": 0}, "num_features must be at least 1, got 0"),
        ({"persistence": 0.4}, r"persistence must be in \[0.5, 1\], got 0.4"),
        ({"persistence": float("nan")}, "persistence must be in"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        shop(**{"num_customers": 10} | arguments)
