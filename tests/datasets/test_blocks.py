"""The block model's tables: what is drawn how often."""

import numpy as np
import pytest
import torch

from pagraph.datasets.blocks import Blocks, alias_tables, draw_edges, pair_shares


def test_alias_tables_draw_by_weight():
    weights = np.array([1.0, 0.0, 3.0, 6.0, 2.0, 2.0])
    starts = np.array([0, 4, 4, 6])  # parts of 4, 0 and 2 entries
    threshold, alias = alias_tables(weights, starts)
    kept = threshold.astype(float) / 2**32
    for begin, end in ((0, 4), (4, 6)):
        chances = np.zeros(end - begin)
        for slot in range(end - begin):
            chances[slot] += kept[begin + slot] / len(chances)
            chances[alias[begin + slot]] += (1 - kept[begin + slot]) / len(chances)
        assert np.allclose(chances, weights[begin:end] / weights[begin:end].sum(), atol=1e-8)


def test_pair_shares():
    mass = np.array([1.0, 2.0, 0.0, 1.0])
    shares = pair_shares(mass, mass, 0.6)
    assert np.allclose(np.diag(shares), [0.6, 1.2, 0, 0.6])
    assert shares[2].sum() == shares[:, 2].sum() == 0
    assert np.allclose(shares.sum(1), mass)


def test_pair_shares_of_two_sides():
    shares = pair_shares(np.array([4.0, 0.0, 6.0]), np.array([10.0, 20.0, 0.0]), 0.9)
    # Block 0 sends 90 % to its own; block 2 has none of its own, so everything goes to the others by their weight.
    assert np.allclose(shares, [[3.6, 0.4, 0], [0, 0, 0], [2, 4, 0]])


def test_pair_shares_of_one_block_with_all_the_weight():
    assert np.allclose(pair_shares(np.array([5.0, 0.0]), np.array([5.0, 0.0]), 0.7), [[5, 0], [0, 0]])


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_edges_are_drawn_by_the_weights_of_both_ends(homophily):
    labels = [torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 1])]
    weights = [np.array([1.0, 2.0, 3.0, 2.0]), np.array([1.0, 2.0, 4.0])]
    source, target = (Blocks.of(block, weight, 2) for block, weight in zip(labels, weights, strict=True))
    count = 40_000
    src, dst = draw_edges(source, target, homophily, count, key=5)
    want = np.zeros((4, 3))
    for u in range(4):
        for v in range(3):
            own = labels[0][u] == labels[1][v]
            block = weights[1][labels[1].numpy() == labels[1].numpy()[v]].sum()
            want[u, v] = weights[0][u] / 8 * (homophily if own else 1 - homophily) * weights[1][v] / block
    got = np.bincount(src * 3 + dst, minlength=12).reshape(4, 3)
    assert (got[want == 0] == 0).all()
    z = (got - count * want)[want > 0] / np.sqrt(count * want * (1 - want))[want > 0]
    assert np.abs(z).max() < 5
