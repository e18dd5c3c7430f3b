"""Pairs given by their ends: negatives, seeds, owners and times; and how often vertices are in such
batches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph
from pagraph.ranking.presample import count_accesses
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.batches import PairBatches, PairNegatives, pair_seeds
from pagraph.sampling.negative import NegativeEnds
from pagraph.seeds import derive_key

SIZES = {"u": 7, "v": 5}


@st.composite
def batches(draw):
    types = draw(st.sampled_from([("u", "v"), ("v", "u"), ("u", "u")]))
    p = draw(st.integers(0, 6))
    src, dst = (
        torch.tensor([draw(st.integers(0, SIZES[t] - 1)) for _ in range(p)]).long() for t in types
    )
    amount = draw(st.sampled_from([None, 0.5, 1, 1.5, 2]))
    negatives = None
    if amount is not None:
        of_src = NegativeEnds(SIZES[types[0]]) if draw(st.booleans()) else None
        negatives = PairNegatives(amount, NegativeEnds(SIZES[types[1]]), of_src)
    times = torch.arange(10, 10 + p) if draw(st.booleans()) else None
    return types, src, dst, negatives, times, draw(st.integers(0, 2**64 - 1))


@given(batch=batches(), disjoint=st.booleans())
def test_seeds_of_pairs(batch, disjoint):
    types, src, dst, negatives, times, key = batch
    times = times if disjoint else None
    pairs = pair_seeds(types, src, dst, key, negatives=negatives, disjoint=disjoint, times=times)
    p = len(src)
    q = 0 if negatives is None else math.ceil(p * negatives.amount)
    owners = [i % p for i in range(p + q)]
    assert len(pairs.dst) == p + q
    assert len(pairs.src) == (p + q if negatives is not None and negatives.src is not None else p)
    # What the places mean.
    assert pairs.nodes[types[0]][pairs.src][:p].tolist() == src.tolist()
    assert pairs.nodes[types[1]][pairs.dst][:p].tolist() == dst.tolist()
    if negatives is not None:
        assert (
            pairs.nodes[types[1]][pairs.dst][p:].tolist()
            == negatives.dst.draw(q, derive_key(key, -1, 1)).tolist()
        )
        if negatives.src is not None:
            drawn = negatives.src.draw(q, derive_key(key, -1, 0))
            assert pairs.nodes[types[0]][pairs.src][p:].tolist() == drawn.tolist()
    # Nothing else is there.
    used = {t: [] for t in types}
    used[types[0]] += pairs.src.tolist()
    used[types[1]] += pairs.dst.tolist()
    for ntype, ids in pairs.nodes.items():
        assert sorted(set(used[ntype])) == list(range(len(ids)))
        if disjoint:
            assert len(used[ntype]) == len(ids)
        else:
            assert ids.tolist() == sorted(set(ids.tolist()))
    if not disjoint:
        assert pairs.owners is None and pairs.times is None
        return
    assert pairs.owners[types[0]][pairs.src].tolist() == owners[: len(pairs.src)]
    assert pairs.owners[types[1]][pairs.dst].tolist() == owners
    if times is not None:
        assert pairs.times[types[0]][pairs.src].tolist() == [
            10 + i for i in owners[: len(pairs.src)]
        ]
        assert pairs.times[types[1]][pairs.dst].tolist() == [10 + i for i in owners]


def test_negatives_are_not_older_than_their_pairs():
    times = torch.randint(0, 100, (50,), generator=torch.Generator().manual_seed(0))
    ends = NegativeEnds(50, time=times)
    until = torch.tensor([int(times.min()), 20, 60, 99])
    some = torch.arange(4)
    pairs = pair_seeds(
        ("u", "u"), some, some, 3, negatives=PairNegatives(25, ends, ends), disjoint=True, times=until
    )  # fmt: skip
    drawn = pairs.nodes["u"][torch.cat([pairs.src[4:], pairs.dst[4:]])]
    assert (times[drawn] <= until.repeat(50)).all()
    assert len(drawn[until.repeat(50) == 99].unique()) > 25


def random_graph(rng, sizes=(60, 40)):
    types = {("u", "r", "v"): (0, 1), ("v", "s", "u"): (1, 0)}
    return Graph(
        {
            etype: Graph.from_coo(
                rng.integers(0, sizes[a], 150), rng.integers(0, sizes[b], 150), max(sizes)
            ).csc
            for etype, (a, b) in types.items()
        },
        {"u": max(sizes), "v": max(sizes)},
    )


@pytest.mark.every
@pytest.mark.parametrize("triplet", [False, True])
@pytest.mark.parametrize("same_type", [False, True])
def test_seed_rates_are_those_of_counted_epochs(triplet, same_type):
    rng = np.random.default_rng(1)
    graph, types = random_graph(rng), ("u", "u") if same_type else ("u", "v")
    seeds = torch.from_numpy(rng.integers(0, 60, (90, 2)))
    seeds[:5] = seeds[0, 0]  # pairs of a vertex with itself
    weighted = NegativeEnds(60, torch.arange(60))
    negatives = PairNegatives(
        2, NegativeEnds(60) if triplet else weighted, None if triplet else NegativeEnds(60)
    )
    sampler = PairBatches(SubgraphSampler([]), types, {"u": 60, "v": 60}, negatives)
    epochs, batch_size = 150, 10
    counted = count_accesses(
        graph, seeds, sampler, batch_size=batch_size, seed=0, epochs=range(epochs)
    )
    rates = sampler.seed_rates(seeds, batch_size)
    for ntype in ("u", "v"):
        got = counted.reads(ntype).double() / (9 * epochs)
        deviation = (rates[ntype] * (1 - rates[ntype]) / (9 * epochs)).sqrt()
        assert ((got - rates[ntype]).abs() <= 5 * deviation + 1e-9).all()


def test_a_batch_is_a_function_of_seeds_and_key():
    graph = random_graph(np.random.default_rng(2))
    sampler = PairBatches(
        SubgraphSampler([2, 3], disjoint=True), ("u", "v"), {"u": 60, "v": 60},
        PairNegatives(1.5, NegativeEnds(60), NegativeEnds(60)),
    )  # fmt: skip
    seeds = torch.arange(20).view(10, 2)
    first, again, other = (sampler.sample(graph, seeds, key) for key in (1, 1, 2))
    assert sampler.num_hops == 2
    assert first.output_nodes["u"][:10].tolist() == list(range(0, 20, 2))
    assert len(first.output_nodes["v"]) == 25
    assert all(torch.equal(first.input_nodes[t], again.input_nodes[t]) for t in ("u", "v"))
    assert not torch.equal(first.output_nodes["v"], other.output_nodes["v"])


def test_ends_outside_the_graph():
    sampler = PairBatches(SubgraphSampler([1]), ("u", "v"), {"u": 60, "v": 60})
    with pytest.raises(IndexError, match=r"seeds\['v'\] must be in \[0, 60\), got 60"):
        sampler.sample(random_graph(np.random.default_rng(0)), torch.tensor([[0, 60]]))
