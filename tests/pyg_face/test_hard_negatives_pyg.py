"""pagraph.pyg.HardNegatives in both modes: no edges, sources kept, what triplets need; one type and
several."""

import copy
import math

import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader as PyGs

from pagraph.pyg import HardNegatives, LinkNeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")

R = ("u", "r", "v")


def edges(num_src=12, num_dst=40, count=200):
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(num_src, (count,), generator=generator)
    return torch.stack([src, (torch.rand(count, generator=generator) ** 2 * num_dst).long()])


def hetero():
    data = HeteroData()
    data["u"].num_nodes, data["v"].num_nodes = 12, 40
    data[R].edge_index = edges()
    return data


def homogeneous():
    return Data(edge_index=edges(40), num_nodes=40)


def batches(data, negatives, make=LinkNeighborLoader, **options):
    given = None if isinstance(data, Data) else R
    return make(
        data,
        [2],
        given,
        neg_sampling=negatives,
        **{"batch_size": 30, "seed": 1, "shuffle": True, **options},
    )


def links(data, batch, mode):
    """Sources and destinations of a batch's links and of its negatives, as ids of the data."""
    ids = [batch.n_id] * 2 if isinstance(data, Data) else [batch["u"].n_id, batch["v"].n_id]
    of_links = batch if isinstance(data, Data) else batch[R]
    if mode == "binary":
        src, dst = (own[places] for own, places in zip(ids, of_links.edge_label_index, strict=True))
        count = int(of_links.edge_label.sum())
        assert of_links.edge_label.tolist() == [1.0] * count + [0.0] * (len(src) - count)
        return (src[:count], dst[:count]), (src[count:], dst[count:])
    places = [of_links] * 3 if isinstance(data, Data) else [batch["u"], batch["v"], batch["v"]]
    src = ids[0][places[0].src_index]
    negative = ids[1][places[2].dst_neg_index].view(len(src), -1)
    return (src, ids[1][places[1].dst_pos_index]), (
        src.repeat_interleave(negative.shape[1]),
        negative.flatten(),
    )


@pytest.mark.every
@pytest.mark.parametrize("make", [homogeneous, hetero])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize(
    "options", [{}, {"power": 0.75}, {"in_batch": True}, {"among": range(0, 40, 2)}], ids=str
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_negatives_are_no_edges_and_have_their_links_sources(make, mode, options, disjoint):
    data = make()
    index = data.edge_index if isinstance(data, Data) else data[R].edge_index
    known = set(map(tuple, index.t().tolist()))
    loader = batches(data, HardNegatives(mode, 3, **options), disjoint=disjoint)
    for batch in loader:
        (src, dst), negative = links(data, batch, mode)
        pairs = list(zip(*map(torch.Tensor.tolist, negative), strict=True))
        assert len(pairs) == 3 * len(src) and not known & set(pairs)
        if mode == "binary":  # number j belongs to link j % p
            assert negative[0].tolist() == src.repeat(3).tolist()
        assert not options.get("in_batch") or set(negative[1].tolist()) <= set(dst.tolist())
        assert not options.get("among") or all(v % 2 == 0 for _, v in pairs)


def test_in_proportion_to_the_degree():
    data = hetero()
    loader = batches(data, HardNegatives("triplet", 40, power=0.75, exclude_edges=False))
    drawn = torch.cat([links(data, batch, "triplet")[1][1] for batch in loader])
    weight = torch.bincount(data[R].edge_index[1], minlength=40).double() ** 0.75
    weight[torch.bincount(data[R].edge_index[1], minlength=40) == 0] = 0
    counts, there = torch.bincount(drawn, minlength=40), weight > 0
    assert counts.sum() == counts[there].sum() == 200 * 40
    assert (
        stats.chisquare(
            counts[there].numpy(), (weight / weight.sum() * counts.sum())[there].numpy()
        ).pvalue
        > 1e-4
    )


def test_a_function_of_the_seed_for_any_number_of_threads():
    data, negatives = hetero(), HardNegatives("binary", 1.5, power=0.75)

    def told(**options):
        return [
            [part.tolist() for part in links(data, b, "binary")[1]]
            for b in batches(data, negatives, **options)
        ]

    expected = told(prefetch=0)
    assert told(num_workers=3) == expected != told(seed=2)
    assert [len(src) for src, _ in expected] == [math.ceil(1.5 * n) for n in [30] * 6 + [20]]
    again = copy.deepcopy(negatives)
    assert [
        [p.tolist() for p in links(data, b, "binary")[1]] for b in batches(data, again)
    ] == expected


def test_a_source_that_leads_to_all():
    """It has no negatives where each is a link of its own, and is an error where links must have
    theirs."""
    data = Data(edge_index=torch.tensor([[0, 0, 0, 1], [0, 1, 2, 0]]), num_nodes=3)
    for disjoint in (False, True):
        (batch,) = LinkNeighborLoader(
            data, [1], neg_sampling=HardNegatives("binary", 2), batch_size=4, disjoint=disjoint
        )
        (src, _), (negative_src, _) = links(data, batch, "binary")
        assert src.tolist() == [0, 0, 0, 1] and negative_src.tolist() == [1, 1]
        if disjoint:
            trees = batch.batch[batch.edge_label_index]
            assert trees.tolist() == [[0, 1, 2, 3, 3, 3]] * 2
    with pytest.raises(ValueError, match="each triplet needs a negative, got none for source 0"):
        next(
            iter(
                LinkNeighborLoader(
                    data, [1], neg_sampling=HardNegatives("triplet", 2), batch_size=4
                )
            )
        )


def test_pygs_own_loader_draws_them_with_our_sampler_only():
    data = homogeneous()
    loader = batches(
        data, HardNegatives("binary", 2), neighbor_sampler=NeighborSampler(data, [2]), make=_pygs
    )
    for batch in loader:
        (src, _), negative = links(data, batch, "binary")
        assert negative[0].tolist() == src.repeat(2).tolist()
    with pytest.raises(
        NotImplementedError, match="HardNegatives need the loader or the sampler of pagraph"
    ):
        HardNegatives("binary").sample(3, "dst", 10)


def _pygs(*args, seed, **kwargs):
    return PyGs(*args, **kwargs)


def test_what_cannot_be_is_refused():
    data = homogeneous()
    data.time = torch.arange(40)
    times = {"time_attr": "time", "edge_label_time": torch.arange(200)}
    with pytest.raises(ValueError, match="must be PyG's NegativeSampling for links with times"):
        batches(data, HardNegatives("binary"), **times)
    with pytest.raises(ValueError, match=r"HardNegatives need the edges of \('v', 'other', 'u'\)"):
        ends = torch.tensor([[0], [0]])
        LinkNeighborLoader(
            hetero(), [2], (("v", "other", "u"), ends), neg_sampling=HardNegatives("binary")
        )
    with pytest.raises(ValueError, match="amount"):
        HardNegatives("triplet", 0.5)
    with pytest.raises(ValueError, match="power must be 0 if in_batch is True"):
        HardNegatives("binary", in_batch=True, power=1)
    with pytest.raises(IndexError, match="among"):
        batches(data, HardNegatives("binary", among=[40]))
