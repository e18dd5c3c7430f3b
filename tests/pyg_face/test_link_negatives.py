"""How negatives of links are distributed, and what they depend on: the seed, the epoch and the
batch alone."""

import pickle

import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pagraph.pyg import LinkNeighborLoader
from pagraph.pyg.links import LinkNegatives

R = ("u", "r", "v")


def hetero():
    data = HeteroData()
    data["u"].num_nodes, data["v"].num_nodes = 12, 20
    generator = torch.Generator().manual_seed(0)
    ends = [torch.randint(count, (2000,), generator=generator) for count in (12, 20)]
    data[R].edge_index = torch.stack(ends)
    return data


def drawn_ends(data, neg_sampling, **arguments):
    """All ends of negatives of an epoch."""
    src, dst = [], []
    for batch in LinkNeighborLoader(
        data, [], R, neg_sampling=neg_sampling, batch_size=100, seed=3, **arguments
    ):
        if "edge_label_index" in batch[R]:
            src.append(batch["u"].n_id[batch[R].edge_label_index[0, 100:]])
            dst.append(batch["v"].n_id[batch[R].edge_label_index[1, 100:]])
        else:
            dst.append(batch["v"].n_id[batch["v"].dst_neg_index].flatten())
    return torch.cat(src) if src else None, torch.cat(dst)


def fits(drawn, weight):
    counts = torch.bincount(drawn, minlength=len(weight))
    there = weight > 0
    expected = len(drawn) * weight[there].double() / weight.double().sum()
    return (
        not counts[~there].any()
        and stats.chisquare(counts[there].numpy(), expected.numpy()).pvalue > 1e-4
    )


def test_uniform_over_each_end():
    src, dst = drawn_ends(hetero(), ("binary", 3))
    assert len(src) == len(dst) == 6000
    assert fits(src, torch.ones(12)) and fits(dst, torch.ones(20))
    pairs = torch.bincount(src * 20 + dst, minlength=240)
    assert stats.chisquare(pairs.numpy()).pvalue > 1e-4
    _, dst = drawn_ends(hetero(), ("triplet", 3))
    assert len(dst) == 6000 and fits(dst, torch.ones(20))


def test_weights_of_each_end():
    generator = torch.Generator().manual_seed(1)
    weights = {
        "src_weight": torch.rand(12, generator=generator),
        "dst_weight": torch.rand(20, generator=generator),
    }
    weights["src_weight"][[0, 11]] = 0.0
    weights["dst_weight"][[3, 4, 19]] = 0.0
    src, dst = drawn_ends(hetero(), dict(mode="binary", amount=3, **weights))
    assert fits(src, weights["src_weight"]) and fits(dst, weights["dst_weight"])
    assert not fits(dst, torch.ones(20))
    src, dst = drawn_ends(hetero(), dict(mode="binary", amount=3, dst_weight=weights["dst_weight"]))
    assert fits(src, torch.ones(12)) and fits(dst, weights["dst_weight"])
    _, dst = drawn_ends(hetero(), dict(mode="triplet", amount=3, dst_weight=weights["dst_weight"]))
    assert fits(dst, weights["dst_weight"])


def test_no_two_batches_or_epochs_draw_the_same():
    data = Data(num_nodes=1000, edge_index=torch.randint(1000, (2, 60)))
    loader = LinkNeighborLoader(data, [], neg_sampling="triplet", batch_size=20, seed=0)
    drawn = [tuple(b.n_id[b.dst_neg_index].tolist()) for _ in range(3) for b in loader]
    assert len(set(drawn)) == 9


def test_weights_that_are_written_or_replaced_count_from_the_next_batch_on():
    data = Data(num_nodes=3, edge_index=torch.zeros(2, 10, dtype=torch.int64))
    weight = torch.tensor([1.0, 0.0, 0.0])
    loader = LinkNeighborLoader(
        data,
        [],
        neg_sampling=NegativeSampling("triplet", 1, dst_weight=weight),
        batch_size=10,
        prefetch=0,
    )
    for vertex in (0, 2, 1):
        weight.zero_()
        weight[vertex] = 1.0
        (batch,) = loader
        assert batch.n_id[batch.dst_neg_index].tolist() == [vertex] * 10
    loader.neg_sampling = NegativeSampling("triplet", 1, dst_weight=torch.tensor([0.0, 0.0, 5.0]))
    (batch,) = loader
    assert batch.n_id[batch.dst_neg_index].tolist() == [2] * 10


def everything(loader):
    return [
        [(store._key, name, value) for store in batch.stores for name, value in store.items()]
        for batch in loader
    ]


def same(some, others):
    assert len(some) == len(others) > 0
    for batch, other in zip(some, others, strict=True):
        for (key, name, value), (other_key, other_name, expected) in zip(batch, other, strict=True):
            assert (key, name) == (other_key, other_name)
            assert (
                torch.equal(value, expected)
                if isinstance(value, torch.Tensor)
                else value == expected
            )
    return True


@pytest.mark.every
@pytest.mark.parametrize("negatives", [None, ("binary", 1.5), ("triplet", 2)], ids=str)
@pytest.mark.parametrize("disjoint", [False, True])
def test_the_same_batches_for_any_number_of_threads(negatives, disjoint):
    settings = {
        "neg_sampling": negatives,
        "disjoint": disjoint,
        "batch_size": 128,
        "shuffle": True,
        "seed": 5,
    }
    reference = LinkNeighborLoader(hetero(), [4, 4], R, prefetch=0, **settings)
    epochs = [everything(reference), everything(reference)]
    for threads, prefetch in ((0, 4), (2, 1), (3, 4)):
        torch.manual_seed(threads)
        loader = LinkNeighborLoader(
            hetero(), [4, 4], R, num_workers=threads, prefetch=prefetch, **settings
        )
        for expected in epochs:
            assert same(everything(loader), expected)


def test_without_a_seed_torchs_generator_decides():
    loader = LinkNeighborLoader(
        hetero(), [3], R, neg_sampling="binary", batch_size=256, shuffle=True
    )
    epochs = []
    for _ in range(2):
        torch.manual_seed(7)
        epochs.append(everything(loader))
    assert same(*epochs)
    ids = [[b[R].input_id.tolist() for b in loader] for _ in range(2)]
    assert ids[0] != ids[1]


def test_what_was_made_for_negatives_pickles():
    negatives, sampling = (
        LinkNegatives({"v": 20}),
        NegativeSampling("triplet", 2, dst_weight=torch.rand(20)),
    )
    before = negatives.of(sampling, ("v", "v"), {})
    after = pickle.loads(pickle.dumps(negatives)).of(sampling, ("v", "v"), {})
    assert negatives.of(sampling, ("v", "v"), {}).dst is before.dst
    assert torch.equal(before.dst.draw(50, 1), after.dst.draw(50, 1))
