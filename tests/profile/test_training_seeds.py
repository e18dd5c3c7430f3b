"""The vertices a profile trains on."""

import pytest
import torch

from pagraph import Graph
from pagraph.profile import training_seeds


def graph(num_nodes=10, **fields):
    return Graph.from_coo([], [], num_nodes, ndata=fields)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_the_mask_decides(dtype):
    mask = torch.tensor([0, 1, 1, 0, 0, 0, 0, 0, 0, 1]).to(dtype)
    seeds = training_seeds(graph(train_mask=mask))
    assert seeds.tolist() == [1, 2, 9] and seeds.dtype == torch.int64
    assert training_seeds(graph(pub_train_mask=mask, train_mask=~mask), split="pub_").tolist() == [
        1,
        2,
        9,
    ]


def test_a_share_is_drawn():
    seeds = training_seeds(
        graph(1000, train_mask=torch.ones(1000, dtype=torch.bool)), fraction=0.1, seed=3
    )
    assert (
        len(seeds) == 100
        and seeds.tolist() == sorted(set(seeds.tolist()))
        and seeds[0] >= 0
        and seeds[-1] < 1000
    )
    assert torch.equal(seeds, training_seeds(graph(1000), fraction=0.1, seed=3))
    assert not torch.equal(seeds, training_seeds(graph(1000), fraction=0.1, seed=4))
    assert len(training_seeds(graph(), fraction=0.001)) == 1
    assert training_seeds(graph(), fraction=1.0).tolist() == list(range(10))


@pytest.mark.parametrize(
    ("graph", "arguments", "text"),
    [
        (
            graph(),
            {},
            "graph must have the field train_mask, or train_fraction must be given, it has neither",
        ),
        (graph(train_mask=torch.ones(10)), {"split": "pub_"}, "must have the field pub_train_mask"),
        (
            graph(train_mask=torch.zeros(10, dtype=torch.bool)),
            {},
            "train_mask must select at least 1 vertex, got 0",
        ),
        (
            graph(train_mask=torch.ones(10)),
            {},
            "train_mask must be a 1-D field of booleans, got torch.float32",
        ),
        (graph(), {"fraction": 0.0}, r"train_fraction must be in \(0, 1\], got 0.0"),
        (graph(), {"fraction": 1.5}, "got 1.5"),
        (graph(), {"fraction": float("nan")}, "got nan"),
        (graph(0), {"fraction": 0.5}, "graph must have at least 1 vertex, got 0"),
    ],
)
def test_bad_input(graph, arguments, text):
    with pytest.raises(ValueError, match=text):
        training_seeds(graph, **arguments)
