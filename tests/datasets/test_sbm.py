"""Block models: reproducible, of the degrees, homophily and weights asked for, learnable by a GNN
alone."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, relu

from pagraph.datasets import random_fields, sbm
from pagraph.datasets.random_graphs import Blocks, alias_tables, draw_edges, pair_shares
from pagraph.datasets.summary import edge_shares


@pytest.fixture(scope="module")
def graph():
    return sbm(20_000, seed=1)


def ends(graph):
    return graph.csc.indices.numpy(), graph.csc.destinations().numpy()


class TestStructure:
    def test_undirected_and_simple(self, graph):
        graph.csc.validate()
        src, dst = (ids.astype(np.int64) for ids in ends(graph))
        keys = src * graph.num_nodes + dst
        assert len(np.unique(keys)) == len(keys)
        assert not (src == dst).any()
        assert np.array_equal(np.sort(keys), np.sort(dst * graph.num_nodes + src))

    def test_number_of_edges(self, graph):
        assert 0.95 * 2 * 200_000 < graph.num_edges <= 2 * 200_000

    @pytest.mark.parametrize("homophily", [0.0, 0.3, 0.9, 1.0])
    def test_homophily(self, homophily):
        graph = sbm(5000, homophily=homophily, num_classes=5, exponent=4.0)
        src, dst = ends(graph)
        labels = graph.ndata["label"].numpy()
        assert abs((labels[src] == labels[dst]).mean() - homophily) < 0.03

    def test_degrees_follow_a_power_law(self):
        skewed, even = sbm(20_000, exponent=2.1), sbm(20_000, exponent=6.0)
        assert edge_shares(skewed.out_degrees(), (0.01,))[0] > 0.15
        assert edge_shares(even.out_degrees(), (0.01,))[0] < 0.05
        assert int(skewed.out_degrees().max()) > 2.5 * int(even.out_degrees().max())

    def test_degrees_are_corrected(self):
        # A vertex drawn twice as often has twice the neighbours, whatever its block.
        graph = sbm(2000, num_edges=50_000, num_classes=2, exponent=3.0, seed=2)
        labels = graph.ndata["label"]
        means = [float(graph.out_degrees()[labels == block].double().mean()) for block in (0, 1)]
        assert abs(means[0] / means[1] - 1) < 0.15

    @pytest.mark.parametrize("num_classes", [1, 2, 7, 50])
    def test_small_graphs(self, num_classes):
        graph = sbm(50, num_classes=num_classes, homophily=1.0 if num_classes == 1 else 0.5)
        graph.csc.validate()
        assert int(graph.ndata["label"].max()) < num_classes

    def test_single_vertex_and_no_edges(self):
        assert sbm(1, num_classes=1, homophily=1.0).num_edges == 0
        assert sbm(10, num_edges=0).num_edges == 0


class TestDeterminism:
    def test_the_seed_decides(self):
        one, same, other = sbm(500, seed=3), sbm(500, seed=3), sbm(500, seed=4)
        assert torch.equal(one.csc.indices, same.csc.indices)
        assert all(torch.equal(value, same.ndata[name]) for name, value in one.ndata.items())
        assert not torch.equal(one.ndata["label"], other.ndata["label"])
        assert not torch.equal(one.ndata["feat"], other.ndata["feat"])

    def test_threads_do_not_matter(self, monkeypatch):
        whole = sbm(500, seed=3)
        monkeypatch.setattr(random_fields, "_RANGE", 61)
        parts = sbm(500, seed=3)
        assert torch.equal(whole.csc.indices, parts.csc.indices)
        assert torch.equal(whole.ndata["feat"], parts.ndata["feat"])


class TestFields:
    def test_masks(self, graph):
        sizes = [int(graph.ndata[f"{part}_mask"].sum()) for part in ("train", "val", "test")]
        assert sizes == [12_000, 4_000, 4_000]

    def test_share_of_strays(self, graph):
        feat, labels = graph.ndata["feat"], graph.ndata["label"]
        means = torch.stack([feat[labels == block].mean(0) for block in range(10)])
        nearest = torch.cdist(feat, means).argmin(1)
        assert abs(float((nearest == labels).float().mean()) - (0.55 + 0.045)) < 0.02

    def test_width(self):
        assert sbm(20, num_features=1).ndata["feat"].shape == (20, 1)


@pytest.fixture
def one_thread():
    """Waiting OpenMP threads spin: on busy cores two are far slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit(graph, *, gnn: bool) -> float:
    """Test accuracy of two layers: an MLP, or GraphSAGE with mean aggregation over the whole
    graph."""
    torch.manual_seed(0)
    feat, labels, size = graph.ndata["feat"], graph.ndata["label"], graph.num_nodes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces its sparse tensors
        adjacency = torch.sparse_csr_tensor(
            graph.csc.indptr.long(),
            graph.csc.indices.long(),
            torch.ones(graph.num_edges),
            size=(size, size),
        )
    scale = 1 / graph.in_degrees().clamp(min=1).float()[:, None]

    def widen(hidden):
        return torch.cat([hidden, (adjacency @ hidden) * scale], 1) if gnn else hidden

    first, second = nn.Linear(feat.shape[1] * (1 + gnn), 32), nn.Linear(32 * (1 + gnn), 10)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    train, test = graph.ndata["train_mask"], graph.ndata["test_mask"]
    inputs = widen(feat)
    for _ in range(40):
        out = second(widen(dropout(relu(first(inputs)), 0.3)))
        loss = cross_entropy(out[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    out = second(widen(relu(first(inputs))))
    return float((out.argmax(1) == labels)[test].float().mean())


@pytest.mark.learning
def test_a_gnn_learns_what_an_mlp_cannot(one_thread):
    graph = sbm(8000, seed=5)
    mlp, sage = fit(graph, gnn=False), fit(graph, gnn=True)
    assert 0.5 < mlp < 0.62  # at most 1 - 0.45 + 0.045 for any model
    assert sage > 0.87
    assert sage > mlp + 0.25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": 0}, r"num_nodes must be in \[1, 2147483647\], got 0"),
        ({"num_edges": -1}, "num_edges must be at least 0, got -1"),
        ({"num_classes": 0}, r"num_classes must be in \[1, num_nodes=50\], got 0"),
        ({"num_classes": 51}, "num_classes must be in"),
        ({"num_features": 0}, "num_features must be at least 1, got 0"),
        ({"homophily": 1.5}, r"homophily must be in \[0, 1\], got 1.5"),
        ({"homophily": float("nan")}, "homophily must be in"),
        ({"homophily": 0.5, "num_classes": 1}, "homophily must be 1 with a single class, got 0.5"),
        ({"exponent": 1.0}, "exponent must be above 1, got 1.0"),
        ({"exponent": float("nan")}, "exponent must be above 1"),
        ({"feature_noise": -0.1}, r"feature_noise must be in \[0, 1\], got -0.1"),
        ({"fractions": (0.9, 0.2, 0.2)}, "fractions must add up"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        sbm(**{"num_nodes": 50, **options})


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
    # Block 0 sends 90 % to its own; block 2 has none of its own, so everything goes to the others
    # by their weight.
    assert np.allclose(shares, [[3.6, 0.4, 0], [0, 0, 0], [2, 4, 0]])


def test_pair_shares_of_one_block_with_all_the_weight():
    assert np.allclose(
        pair_shares(np.array([5.0, 0.0]), np.array([5.0, 0.0]), 0.7), [[5, 0], [0, 0]]
    )


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_edges_are_drawn_by_the_weights_of_both_ends(homophily):
    labels = [torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 1])]
    weights = [np.array([1.0, 2.0, 3.0, 2.0]), np.array([1.0, 2.0, 4.0])]
    source, target = (
        Blocks.of(block, weight, 2) for block, weight in zip(labels, weights, strict=True)
    )
    count = 40_000
    src, dst = draw_edges(source, target, homophily, count, key=5)
    want = np.zeros((4, 3))
    for u in range(4):
        for v in range(3):
            own = labels[0][u] == labels[1][v]
            block = weights[1][labels[1].numpy() == labels[1].numpy()[v]].sum()
            want[u, v] = (
                weights[0][u] / 8 * (homophily if own else 1 - homophily) * weights[1][v] / block
            )
    got = np.bincount(src * 3 + dst, minlength=12).reshape(4, 3)
    assert (got[want == 0] == 0).all()
    z = (got - count * want)[want > 0] / np.sqrt(count * want * (1 - want))[want > 0]
    assert np.abs(z).max() < 5
