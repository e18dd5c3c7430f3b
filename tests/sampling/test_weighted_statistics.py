"""The distribution of weighted picks: against exact probabilities, and against DGL's picks."""

import itertools

import numpy as np
import pytest
import torch
from plain_weighted import graph_of, rows_of
from scipy import stats

from pagraph import NeighborSampler

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module")
def dgl():
    pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
    return pytest.importorskip("dgl")


def test_one_weight_of_nearly_everything():
    """Draws would never end; every other edge must still be as likely as it should be."""
    copies, degree = 4000, 40
    weights = np.full(degree, 1e-30)
    weights[7], weights[8] = 1e30, 3e-30
    graph = graph_of([degree] * copies, np.tile(weights, copies))
    block = NeighborSampler([2], prob="w").sample(graph, torch.arange(copies), 1).blocks[0]
    drawn = np.sort(np.array(rows_of(block)) % degree, axis=1)
    assert np.all((drawn == 7).sum(axis=1) == 1)
    other = drawn[drawn != 7]
    counts = np.bincount(other, minlength=degree)
    keep = np.arange(degree) != 7
    assert stats.chisquare(counts[keep], copies * weights[keep] / weights[keep].sum()).pvalue > 1e-4


def successive(weights, k):
    """The probability of every set of ``k`` edges under successive sampling, by enumeration."""
    total, chances = sum(weights), {}
    for order in itertools.permutations(range(len(weights)), k):
        left, chance = total, 1.0
        for e in order:
            chance *= weights[e] / left
            left -= weights[e]
        picked = tuple(sorted(order))
        chances[picked] = chances.get(picked, 0.0) + chance
    return chances


def sets_drawn(weights, k, copies, key, dtype=np.float32):
    """How often each set was drawn by ``copies`` vertices with the same weights."""
    degree = len(weights)
    graph = graph_of([degree] * copies, np.tile(np.asarray(weights, dtype=dtype), copies))
    block = NeighborSampler([k], prob="w").sample(graph, torch.arange(copies), key).blocks[0]
    rows = np.sort(block.positions.numpy().reshape(copies, k) % degree, axis=1)
    picked, counts = np.unique(rows, axis=0, return_counts=True)
    return {tuple(row): int(count) for row, count in zip(picked.tolist(), counts, strict=True)}


LONG = np.array([0.1 + (e * 7 % 41) ** 2 / 100 for e in range(40)])


@pytest.mark.every
@pytest.mark.parametrize(
    ("weights", "k"),
    [
        ([1, 2, 3], 1),
        ([1, 2, 3, 4], 2),
        ([0.1, 5, 1, 1, 20, 0.5], 3),
        ([1, 1, 1, 1, 1, 1.000001], 3),
        ([1, 10, 100, 1000, 10000], 4),
        (LONG, 1),
        (LONG, 2),
    ],
)
def test_every_set_is_as_likely_as_in_successive_sampling(weights, k):
    copies = 60_000
    chances = successive(list(map(float, weights)), k)
    counts = sets_drawn(weights, k, copies, key=len(weights) + k)
    assert set(counts) <= set(chances)
    expected = np.array([copies * chance for chance in chances.values()])
    observed = np.array([counts.get(picked, 0) for picked in chances])
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    assert (
        1e-4
        < stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue
        < 1 - 1e-4
    )


def same_rates(ours, theirs, rounds):
    """The largest difference of two rates of inclusion, in standard deviations."""
    rate = (ours + theirs) / (2 * rounds)
    deviation = np.sqrt(np.maximum(rate * (1 - rate) * 2 / rounds, 1e-12))
    return np.max(np.abs(ours - theirs) / rounds / deviation)


def inclusions(rows, degree):
    """How often each edge, and each pair among the first 12, was picked; ``rows`` of shape (rounds,
    k)."""
    picked = np.zeros((len(rows), degree), dtype=bool)
    picked[np.arange(len(rows))[:, None], rows] = True
    first = picked[:, :12].astype(np.int64)
    pairs = (first.T @ first)[np.triu_indices(12, 1)]
    return picked.sum(axis=0), pairs


@pytest.mark.every
@pytest.mark.parametrize(
    ("degree", "fanout", "power"),
    [(300, 10, 1.0), (300, 10, 4.0), (100, 48, 1.0), (90, 60, 2.0), (500, 64, 8.0)],
)
def test_picks_of_long_rows_are_distributed_as_dgls(dgl, degree, fanout, power):
    rounds = 3000
    rng = np.random.default_rng(degree)
    weights = np.sort(rng.random(degree))[::-1].copy() ** power
    graph = graph_of([degree] * rounds, np.tile(weights, rounds).astype(np.float32))
    block = NeighborSampler([fanout], prob="w").sample(graph, torch.arange(rounds), 5).blocks[0]
    ours = inclusions(block.positions.numpy().reshape(rounds, fanout) % degree, degree)
    theirs = dgl.graph((torch.arange(degree) + 1, torch.zeros(degree, dtype=torch.int64)))
    theirs.edata["w"] = torch.from_numpy(weights.astype(np.float32))
    dgl.seed(1)
    picked = [
        theirs.sample_neighbors(torch.zeros(1, dtype=torch.int64), fanout, prob="w")
        .edata[dgl.EID]
        .numpy()
        for _ in range(rounds)
    ]
    expected = inclusions(np.array(picked), degree)
    # The largest of so many normal numbers is above 5 once in 3000 runs; keys and seeds are fixed.
    assert same_rates(ours[0], expected[0], rounds) < 5
    assert same_rates(ours[1], expected[1], rounds) < 5


@pytest.mark.parametrize("degree", [5, 20, 40, 300])
def test_draws_with_replacement_are_in_proportion(degree):
    copies, fanout = 300, 100
    weights = np.random.default_rng(degree).random(degree) + 0.01
    weights[degree // 2] = 0
    graph = graph_of([degree] * copies, np.tile(weights, copies))
    block = (
        NeighborSampler([fanout], replace=True, prob="w")
        .sample(graph, torch.arange(copies), 9)
        .blocks[0]
    )
    counts = np.bincount(block.positions.numpy() % degree, minlength=degree)
    positive = weights > 0
    assert counts.sum() == copies * fanout and counts[degree // 2] == 0
    expected = (weights / weights.sum() * copies * fanout)[positive]
    assert 1e-4 < stats.chisquare(counts[positive], expected).pvalue < 1 - 1e-4
    # Draws of one vertex do not hang together either.
    rows = np.sort((block.positions.numpy() % degree).reshape(copies, fanout)[:, :2], axis=1)
    share = weights / weights.sum()
    same = (rows[:, 0] == rows[:, 1]).sum()
    assert stats.binomtest(int(same), copies, float((share**2).sum())).pvalue > 1e-4


def test_nearly_equal_weights_give_uniform_picks():
    counts = np.zeros(40)
    for picked, count in sets_drawn(1 + 1e-6 * np.arange(40), 5, 20_000, key=8).items():
        counts[list(picked)] += count
    statistic = ((counts - 2500) ** 2 / 2500).sum() * 39 / 35
    assert 1e-4 < stats.chi2.sf(statistic, 39) < 1 - 1e-4


@pytest.mark.parametrize("degree", [12, 100])
def test_a_mask_leaves_uniform_picks_of_the_rest(degree):
    copies, fanout = 4000, 3
    mask = np.arange(degree) % 3 != 0
    graph = graph_of([degree] * copies, np.tile(mask, copies))
    block = NeighborSampler([fanout], prob="w").sample(graph, torch.arange(copies), 2).blocks[0]
    counts = np.bincount(block.positions.numpy() % degree, minlength=degree)
    left = int(mask.sum())
    assert counts[~mask].sum() == 0 and counts.sum() == copies * fanout
    statistic = ((counts[mask] - counts.sum() / left) ** 2 / (counts.sum() / left)).sum()
    assert 1e-4 < stats.chi2.sf(statistic * (left - 1) / (left - fanout), left - 1) < 1 - 1e-4


def test_vertices_draw_independently():
    copies, degree = 2000, 40
    graph = graph_of([degree] * copies, np.tile(LONG, copies))
    first = (
        NeighborSampler([1], prob="w")
        .sample(graph, torch.arange(copies), 5)
        .blocks[0]
        .positions.numpy()
        % degree
    )
    share = LONG / LONG.sum()
    same = int((first[:-1] == first[1:]).sum())
    assert stats.binomtest(same, copies - 1, float((share**2).sum())).pvalue > 1e-4
