"""Neighbours in proportion to edge weights, through the loader."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import NeighborLoader
from pagraph.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.kernels


def star(weights, order, **attributes):
    """Vertex 0 with an in-edge from each other vertex; ``weights`` by vertex, edges permuted by
    ``order``."""
    sources = 1 + torch.as_tensor(order)
    edge_index = torch.stack([sources, torch.zeros_like(sources)])
    return Data(
        num_nodes=len(order) + 1,
        edge_index=edge_index,
        w=torch.as_tensor(weights)[sources - 1],
        **attributes,
    )


def counts_of(loader, points):
    """How often each point of the star is drawn."""
    counts = np.zeros(points)
    for batch in loader:
        np.add.at(counts, batch.n_id[batch.edge_index[0]].numpy() - 1, 1)
    return counts


@pytest.mark.statistics
@pytest.mark.parametrize("disjoint", [False, True])
def test_draws_with_replacement_are_in_proportion(disjoint):
    weights = np.array([0.5, 3, 0, 1, 2, 0, 5, 1.5])
    data = star(weights, np.random.default_rng(0).permutation(8))
    inputs = torch.zeros(100, dtype=torch.int64)
    options = {
        "weight_attr": "w",
        "replace": True,
        "disjoint": disjoint,
        "batch_size": 1,
        "seed": 0,
    }
    counts = counts_of(NeighborLoader(data, [40], inputs, **options), 8)
    assert counts.sum() == 4000 and (counts[weights == 0] == 0).all()
    kept = weights > 0
    assert stats.chisquare(counts[kept], 4000 * weights[kept] / weights.sum()).pvalue > 1e-4


@pytest.mark.statistics
def test_the_chance_of_a_pick_without_replacement():
    """One of each pair by its weight; the second is then the other."""
    weights = np.array([1.0, 2, 3, 4])
    data = star(weights, [2, 0, 3, 1])
    inputs = torch.zeros(3000, dtype=torch.int64)
    counts = counts_of(
        NeighborLoader(data, [2], inputs, weight_attr="w", disjoint=True, batch_size=500, seed=1), 4
    )
    p = weights / weights.sum()
    chances = np.array(
        [p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)]
    )
    spread = np.sqrt(3000 * chances * (1 - chances))
    assert counts.sum() == 6000 and (np.abs(counts - 3000 * chances) < 4 * spread).all()


def random_data(dtype=torch.float32, **attributes):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(200, (2, 1500), generator=generator)
    weights = torch.randint(0, 3, (1500,), generator=generator).to(dtype)
    return Data(x=torch.randn(200, 4), edge_index=edge_index, w=weights, **attributes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("replace", [False, True])
def test_edges_of_weight_zero_are_never_drawn(dtype, replace):
    data = random_data(dtype)
    positive = torch.bincount(data.edge_index[1, data.w > 0], minlength=200)
    for batch in NeighborLoader(
        data, [3, -1], torch.arange(60), weight_attr="w", replace=replace, batch_size=60
    ):
        assert (data.w[batch.e_id] > 0).all() and torch.equal(batch.w, data.w[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        of_seeds = positive[:60]
        expected = torch.where(of_seeds > 0, 3, 0) if replace else of_seeds.clamp(max=3)
        assert torch.equal(drawn[:60], expected)
        second = slice(60, 60 + batch.num_sampled_nodes[1])
        assert torch.equal(drawn[second], positive[batch.n_id[second]])


def test_edge_types_without_weights_are_drawn_from_uniformly():
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(30, 2), torch.randn(20, 2)
    generator = torch.Generator().manual_seed(0)
    ends = [
        torch.stack(
            [
                torch.randint(30, (300,), generator=generator),
                torch.randint(20, (300,), generator=generator),
            ]
        )
    ]
    data["a", "weighted", "b"].edge_index = ends[0]
    data["a", "weighted", "b"].w = (torch.arange(300) % 4 == 0).float()
    data["a", "plain", "b"].edge_index = ends[0].clone()
    (batch,) = NeighborLoader(data, [4], "b", weight_attr="w", batch_size=20)
    weighted, plain = batch["a", "weighted", "b"], batch["a", "plain", "b"]
    assert (weighted.e_id % 4 == 0).all() and (plain.e_id % 4 != 0).any()
    degrees = torch.bincount(ends[0][1], minlength=20)
    assert plain.num_edges == int(degrees.clamp(max=4).sum()) > weighted.num_edges > 0


def test_same_batches_whatever_the_workers():
    data = random_data()
    settings = {"weight_attr": "w", "batch_size": 8, "shuffle": True, "seed": 3}
    alone, *others = (
        [
            batch.e_id.tolist()
            for batch in NeighborLoader(data, [2, 3], torch.arange(60), **settings, **how)
        ]
        for how in ({}, {"num_workers": 3}, {"prefetch": 0})
    )
    assert len(alone) == 8 and all(other == alone for other in others)


def test_pygs_own_loader_with_our_sampler():
    data = random_data()
    for batch in NodeLoader(
        data, NeighborSampler(data, [2, 2], weight_attr="w"), torch.arange(60), batch_size=16
    ):
        assert (batch.w > 0).all() and batch.num_edges > 0


def test_weights_written_in_place_count_and_replaced_ones_do_not():
    data = random_data()
    loader = NeighborLoader(data, [-1], torch.arange(60), weight_attr="w", batch_size=60)
    before = next(iter(loader)).e_id.tolist()
    held = data.w
    data.w = torch.zeros(1500)
    assert next(iter(loader)).e_id.tolist() == before
    held.zero_()
    assert next(iter(loader)).num_edges == 0


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (
            torch.full((1500,), -0.5),
            ValueError,
            "edge field 'w' must be finite and not negative, got -0.5",
        ),
        (
            torch.full((1500,), float("nan")),
            ValueError,
            "edge field 'w' must be finite and not negative, got nan",
        ),
        (torch.ones(1499), ValueError, r"field 'w' must have one row per edge \(1500\), got 1499"),
        (
            torch.ones(1500, 2),
            ValueError,
            r"edge field 'w' must have one number per edge \(1500\), got shape",
        ),
        (torch.tensor(1.0), ValueError, "field 'w' must have one row per edge"),
        (
            torch.ones(1500, dtype=torch.complex64),
            TypeError,
            "edge field 'w' must be a tensor of floats",
        ),
        ([1.0] * 1500, TypeError, "times and weights must be tensors, got list"),
    ],
)
def test_bad_weights(weights, error, message):
    data = random_data()
    data.w = weights
    with pytest.raises(error, match=message):
        NeighborLoader(data, [2], weight_attr="w")


def test_no_edge_has_the_weights():
    with pytest.raises(
        KeyError, match="weight_attr must name an attribute of the edges, got 'missing'"
    ):
        NeighborLoader(random_data(), [2], weight_attr="missing")
    data = HeteroData()
    data["a"].w, data["a"].num_nodes = torch.ones(3), 3
    data["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(KeyError, match="weight_attr must name an attribute of the edges, got 'w'"):
        NeighborSampler(data, [2], weight_attr="w")


@pytest.mark.parametrize(("count", "level"), [(200, "node"), (1500, "edge")])
def test_weights_and_times_together(count, level):
    data = random_data(time=torch.zeros(count, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=f"Biased {level} temporal sampling not yet supported"):
        NeighborLoader(data, [2], time_attr="time", weight_attr="w")
