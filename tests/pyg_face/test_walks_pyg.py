"""Node2Vec, MetaPath2Vec and random_walk in place of PyG's."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
import torch_geometric.nn
from scipy import stats

from pagraph.datasets import open_graph
from pagraph.pyg import MetaPath2Vec, Node2Vec, random_walk

pytestmark = pytest.mark.kernels


CYCLE = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
SHOP = {
    ("user", "buys", "item"): torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]]),
    ("item", "of", "user"): torch.tensor([[0, 1, 1], [0, 0, 1]]),
}
THERE_AND_BACK = [("user", "buys", "item"), ("item", "of", "user")]


def test_signatures_are_pygs():
    for ours in (Node2Vec, MetaPath2Vec):
        theirs = getattr(torch_geometric.nn, ours.__name__)
        assert issubclass(ours, theirs)
        mine, pygs = (inspect.signature(cls).parameters for cls in (ours, theirs))
        assert [(p.name, p.default) for p in mine.values()] == [
            (p.name, p.default) for p in pygs.values()
        ]


def test_windows_of_walks():
    """On a cycle a walk is known: the windows are those that PyG takes of it, in its order."""
    model = Node2Vec(CYCLE, 4, walk_length=5, context_size=3, walks_per_node=2)
    assert str(model) == "Node2Vec(4, 4)" and model.walk_length == 4
    positive, negative = model.sample([2, 0])
    walks = torch.tensor([[2, 3, 0, 1, 2], [0, 1, 2, 3, 0]]).repeat(2, 1)
    assert torch.equal(positive, torch.cat([walks[:, j : j + 3] for j in range(3)]))
    assert negative.shape == positive.shape
    loss = model.loss(positive, negative)
    loss.backward()
    assert torch.isfinite(loss) and model.embedding.weight.grad.abs().sum() > 0


def test_a_walk_stays_where_no_edge_leaves():
    model = Node2Vec(torch.tensor([[0], [1]]), 4, walk_length=4, context_size=4, num_nodes=3)
    assert model.pos_sample(torch.tensor([0, 1, 2])).tolist() == [
        [0, 1, 1, 1],
        [1, 1, 1, 1],
        [2, 2, 2, 2],
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_random_walk_takes_what_pyg_libs_operator_takes(dtype):
    torch.manual_seed(0)
    rowptr, col = (
        torch.tensor([0, 3, 4, 4, 5], dtype=dtype),
        torch.tensor([3, 1, 2, 0, 2], dtype=dtype),
    )
    walks = random_walk(rowptr, col, torch.tensor([0, 1, 2, 3] * 1000, dtype=dtype), 2)
    assert walks.dtype == dtype and walks.shape == (4000, 3)
    assert walks[2].tolist() == [2, 2, 2] and walks[3].tolist() == [3, 2, 2] and walks[1, 1] == 0
    first = torch.bincount(walks[0::4, 1], minlength=4)
    assert first[0] == 0 and stats.chisquare(first[1:].numpy()).pvalue > 1e-4
    # Rows that do not ascend.
    back = random_walk(rowptr, col, torch.ones(3000, dtype=dtype), 3, p=0.5, q=4.0)
    counts = torch.bincount(back[back[:, 2] == 1, 3], minlength=4)
    assert counts.tolist() == [int((back[:, 2] == 1).sum()), 0, 0, 0]
    # From 0, reached from 1: back, and two far ones.
    second = torch.bincount(back[:, 2], minlength=4)[1:].numpy()
    assert stats.chisquare(second, np.array([2.0, 0.25, 0.25]) / 2.5 * 3000).pvalue > 1e-4


def test_follows_torchs_seed_and_loads_in_workers():
    dense = torch.cartesian_prod(torch.arange(9), torch.arange(9)).T
    model = Node2Vec(dense, 4, walk_length=6, context_size=3, walks_per_node=3, p=0.5, q=2.0)
    for workers in (0, 1):
        epochs = []
        for _ in range(2):
            torch.manual_seed(4)
            loader = model.loader(batch_size=4, shuffle=True, num_workers=workers)
            epochs.append([part for batch in loader for part in batch])
        assert len(epochs[0]) == 6 and epochs[0][0].shape == (4 * 3 * 4, 3)
        assert all(torch.equal(a, b) for a, b in zip(*epochs, strict=True))
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.manual_seed(5)
        first = clone.pos_sample(torch.arange(9))
        torch.manual_seed(5)
        assert torch.equal(first, model.pos_sample(torch.arange(9)))


def test_metapath_walks_end_at_the_dummy():
    model = MetaPath2Vec(SHOP, 4, THERE_AND_BACK, walk_length=4, context_size=5)
    assert str(model) == "MetaPath2Vec(6, 4)" and model.start == {"item": 0, "user": 3}
    torch.manual_seed(0)
    walks = model._pos_sample(torch.tensor([0, 1, 2] * 50))
    assert walks.shape == (150, 5)
    assert set(map(tuple, walks[2::3].tolist())) == {(5, 2, 6, 6, 6)}, "item 2 leads nowhere"
    edges = {etype: set(map(tuple, index.T.tolist())) for etype, index in SHOP.items()}
    for walk in walks[0::3].tolist():
        steps = [(walk[t] - (3, 0)[t % 2], walk[t + 1] - (0, 3)[t % 2]) for t in range(4)]
        assert all(step in edges[THERE_AND_BACK[t % 2]] for t, step in enumerate(steps))
    shapes = [part.shape for part in next(iter(model.loader(batch_size=3, shuffle=True)))]
    assert shapes == [(3, 5), (3, 5)]


def test_metapath_walks_are_distributed_as_pygs():
    index = torch.randint(0, 6, (2, 25), generator=torch.Generator().manual_seed(1))
    edges = {("a", "to", "b"): index, ("b", "to", "a"): index.flip(0)[:, :20]}
    arguments = (4, list(edges), 3, 4)
    counts = {"a": 6, "b": 6}
    torch.manual_seed(2)
    seen, expected = (
        cls(edges, *arguments, num_nodes_dict=dict(counts))._pos_sample(torch.full((6000,), 2))
        for cls in (MetaPath2Vec, torch_geometric.nn.MetaPath2Vec)
    )
    keys = torch.cat([seen, expected]) @ torch.tensor([13**3, 13**2, 13, 1])
    _, ranks = keys.unique(return_inverse=True)
    table = torch.stack(
        [torch.bincount(ranks[:6000], minlength=int(ranks.max()) + 1), torch.bincount(ranks[6000:])]
    )
    assert stats.chi2_contingency(table[:, table.sum(0) >= 10].numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"walk_length": 1, "context_size": 1}, "walk_length must be at least 2, got 1"),
        ({"walk_length": 3, "context_size": 4}, "walk_length must be at least 4, got 3"),
        ({"walk_length": 3, "context_size": 2, "p": 0}, "p must be positive and finite, got 0.0"),
        (
            {"walk_length": 3, "context_size": 2, "q": float("nan")},
            "q must be positive and finite, got nan",
        ),
        (
            {"walk_length": 3, "context_size": 2, "num_nodes": 3},
            r"edge_index must be in \[0, 3\), got 3",
        ),
    ],
)
def test_bad_arguments_of_node2vec(arguments, words):
    with pytest.raises(ValueError, match=words):
        Node2Vec(CYCLE, 4, **arguments)


def test_bad_arguments_of_the_others():
    with pytest.raises(ValueError, match="walk_length must be at least 1, got 0"):
        MetaPath2Vec(SHOP, 4, THERE_AND_BACK, 0, 1)
    with pytest.raises(ValueError, match="invalid metapath"):
        MetaPath2Vec(SHOP, 4, THERE_AND_BACK[:1] * 2, 2, 2)
    with pytest.raises(AttributeError, match="does not denote a cycle"):
        MetaPath2Vec(SHOP, 4, THERE_AND_BACK[:1], 2, 2)
    with pytest.raises(KeyError):
        MetaPath2Vec(SHOP, 4, [("user", "sells", "item")], 1, 2)
    with pytest.raises(IndexError, match=r"starts must be in \[0, 1\), got 5"):
        random_walk(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([5]), 2)
    with pytest.raises(ValueError, match="walk_length must be at least 1, got 0"):
        random_walk(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([0]), 0)


@pytest.mark.learning
def test_embeddings_of_cora_tell_classes_and_edges(data_folder):
    """Without features and labels: far above the most frequent class (0.30) and a chance of 0.5."""
    torch.manual_seed(0)
    graph = open_graph(data_folder / "cora")
    src, dst = graph.csc.indices.long(), graph.csc.destinations().long()
    order = torch.randperm(len(src))
    held = (src * dst + src + dst)[order] % 10 == 0  # both directions of an edge, or neither
    edge_index = torch.stack([src, dst])[:, order]
    model = Node2Vec(
        edge_index[:, ~held], 32, 20, 10, walks_per_node=2, p=1.0, q=0.5, num_nodes=graph.num_nodes
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(15):
        for positive, negative in model.loader(batch_size=256, shuffle=True):
            optimizer.zero_grad()
            model.loss(positive, negative).backward()
            optimizer.step()
    z, labels = model().detach(), graph.ndata["label"]
    train = graph.ndata["train_mask"].bool()
    z = torch.nn.functional.normalize(z)
    means = torch.stack([z[train & (labels == c)].mean(0) for c in range(7)])
    right = (z @ torch.nn.functional.normalize(means).T).argmax(1) == labels
    assert right[~train].float().mean() > 0.6
    pairs = edge_index[:, held]
    true, false = (
        (z[pairs[0]] * z[ends]).sum(1)
        for ends in (pairs[1], torch.randint(graph.num_nodes, pairs[1].shape))
    )
    assert stats.mannwhitneyu(true.numpy(), false.numpy()).statistic / len(true) / len(false) > 0.8
