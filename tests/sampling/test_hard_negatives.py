"""Hard negatives: no edge, each destination as often as its weight says, against an enumeration;
what is refused."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from pagraph import CSC, Graph, NeighborSampler
from pagraph.ranking.presample import count_accesses
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.sampling.negative import HardNegatives

LOOPS, APART = ("_N", "_E", "_N"), ("u", "to", "v")


def weights_of(settings, src, dst, num_dst, batch):
    """What each destination should be drawn in proportion to, but for what a source must not be
    given."""
    weights = np.ones(num_dst)
    if settings.power:
        degrees = np.bincount(dst, minlength=num_dst)
        weights = np.where(degrees > 0, degrees.astype(float) ** settings.power, 0.0)
    if settings.in_batch:
        weights = np.bincount(batch, minlength=num_dst).astype(float)
    if settings.among is not None:
        weights[[v for v in range(num_dst) if v not in settings.among]] = 0.0
    return weights


def allowed(settings, src, dst, u, own, weights):
    """The destinations of positive weight that source ``u`` of the pair ``(u, own)`` may be
    given."""
    taken = (
        {v for s, v in zip(src, dst, strict=True) if s == u} if settings.exclude_edges else set()
    )
    if settings.exclude_edges or settings.in_batch:
        taken.add(own)
    return [v for v in range(len(weights)) if weights[v] > 0 and v not in taken]


KINDS = st.sampled_from([{}, {"power": 0.75}, {"in_batch": True}, {"power": 2}])


@st.composite
def graphs(draw):
    """Two types or one: isolated vertices, parallel edges, loops, sources that lead to all."""
    num_src, num_dst = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    edge = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    edges = draw(st.lists(edge, min_size=1, max_size=40))
    edges += [(0, v) for v in range(draw(st.sampled_from([0, num_dst - 1, num_dst])))]
    return num_src, num_dst, [e[0] for e in edges], [e[1] for e in edges]


@settings(max_examples=examples(100))
@given(
    graphs(),
    KINDS,
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 2**64 - 1),
    st.data(),
)
def test_what_is_drawn_is_allowed_and_nothing_is_left_out(world, kind, exclude, some, k, key, data):
    num_src, num_dst, src, dst = world
    among = None
    if some:
        possible = sorted(set(dst)) if kind.get("power") else range(num_dst)
        among = data.draw(st.lists(st.sampled_from(list(possible)), min_size=1, max_size=5))
    hard = HardNegatives(k, among=among, exclude_edges=exclude, **kind)
    csc = CSC.from_coo(src, dst, (num_src, num_dst))
    batch = torch.tensor(
        data.draw(st.lists(st.integers(0, len(src) - 1), max_size=6)), dtype=torch.int64
    )
    pairs = torch.tensor(src)[batch], torch.tensor(dst)[batch]
    negative_src, negative_dst = hard.draw(csc, APART, pairs, key)
    weights = weights_of(hard, src, dst, num_dst, pairs[1].numpy())
    choices = [
        allowed(hard, src, dst, u, v, weights)
        for u, v in zip(*map(torch.Tensor.tolist, pairs), strict=True)
    ]
    expected_src = [
        u
        for u, left in zip(pairs[0].tolist(), choices, strict=True)
        for _ in range(k if left else 0)
    ]
    # A source without any that is left has none, all others k.
    assert negative_src.tolist() == expected_src
    left = [options for options in choices if options for _ in range(k)]
    assert all(v in options for v, options in zip(negative_dst.tolist(), left, strict=True))
    assert negative_dst.dtype == pairs[0].dtype
    again = hard.draw(csc, APART, pairs, key)
    assert torch.equal(again[1], negative_dst)


@pytest.mark.parametrize(
    "kind", [{}, {"power": 0.75}, {"in_batch": True}, {"power": 0.75, "among": range(3, 30)}]
)
@pytest.mark.parametrize("dense", [False, True])
def test_each_destination_is_drawn_by_its_weight(kind, dense):
    """Among those that are no edges; of a source that leads to nearly all, too, where nearly all
    draws fail."""
    rng = np.random.default_rng(0)
    src = np.concatenate([rng.integers(1, 30, 600), np.zeros(60, int)])
    dst = np.concatenate([(rng.random(600) ** 2 * 30).astype(int), rng.permutation(30).repeat(2)])
    if dense:  # source 0 leads to all but three
        keep = ~((src == 0) & np.isin(dst, [5, 11, 25]))
        src, dst = src[keep], dst[keep]
    else:
        keep = ~((src == 0) & (dst >= 4))
        src, dst = src[keep], dst[keep]
    hard, csc = HardNegatives(**kind), CSC.from_coo(src, dst, 30)
    batch = torch.from_numpy(rng.integers(0, len(src), 50))
    own = torch.from_numpy(dst)[batch]
    own = torch.cat([own, torch.tensor([5, 5, 11, 25])]) if kind.get("in_batch") else own
    weights = weights_of(hard, src, dst, 30, own.numpy())
    nothing = torch.zeros(6000, dtype=torch.int64)
    found = hard.ends(csc, "_N").draw(nothing, nothing, own, 7)
    options = allowed(hard, src, dst, 0, 0, weights)
    assert len(options) >= 2
    observed = np.bincount(found.numpy(), minlength=30)
    assert observed.sum() == observed[options].sum() == 6000
    expected = weights[options] / weights[options].sum() * 6000
    assert stats.chisquare(observed[options], expected).pvalue > 1e-4
    neighbours = found[:-1] * 30 + found[1:]  # one draw says nothing of the next
    table = np.bincount(neighbours.numpy(), minlength=900).reshape(30, 30)[options][:, options]
    assert stats.chi2_contingency(table[:3, :3] + 1).pvalue > 1e-4


def test_a_source_that_leads_to_all_has_no_pair():
    csc, pairs = (
        CSC.from_coo([0, 0, 0, 1], [0, 1, 2, 0], 3),
        (torch.tensor([0, 1]), torch.tensor([1, 0])),
    )
    for options in ({}, {"power": 0.75}):
        src, dst = HardNegatives(4, **options).draw(csc, LOOPS, pairs, 3)
        assert src.tolist() == [1] * 4 and set(dst.tolist()) <= {1, 2}
    assert len(HardNegatives(4, exclude_edges=False).draw(csc, LOOPS, pairs, 3)[0]) == 8


def test_large_ids_and_no_seeds():
    csc = CSC(torch.tensor([0, 1, 2]), torch.tensor([2**31 + 5, 2**31 + 6]), 2**31 + 7)
    hard = HardNegatives(3, exclude_edges=False)
    src, dst = hard.draw(csc, APART, (torch.tensor([2**31 + 6]), torch.tensor([1])), 1)
    assert src.tolist() == [2**31 + 6] * 3 and set(dst.tolist()) <= {0, 1}
    nobody = torch.empty(0, dtype=torch.int64)
    assert all(
        len(ids) == 0
        for ids in HardNegatives(3).draw(CSC.from_coo([0], [1], 2), LOOPS, (nobody, nobody), 1)
    )


def test_rankings_expect_what_is_drawn():
    """The expected rate of each vertex as an end is that of batches that were drawn."""
    rng = np.random.default_rng(1)
    graph = Graph.from_coo(rng.integers(0, 60, 400), (rng.random(400) ** 2 * 60).astype(int), 60)
    batches = EdgeBatches(
        NeighborSampler([1]), graph, HardNegatives(2, power=0.75, exclude_edges=False)
    )
    seeds, told = torch.arange(400), 0
    for epoch in range(30):
        counts = count_accesses(graph, seeds, batches, batch_size=20, seed=epoch)
        told = told + counts.by_hop("_N")[:, 0].double()
    rates = batches.seed_rates(seeds, 20)["_N"]
    error = (rates * (1 - rates) / 600).sqrt()
    assert ((told / 600 - rates).abs() < 4.5 * error + 0.01).all()


def test_settings_are_pickled_without_what_was_made_of_a_graph():
    csc, pairs = CSC.from_coo([0, 1, 2], [1, 2, 0], 3), (torch.tensor([0]), torch.tensor([1]))
    hard = HardNegatives(8, power=0.75, among={"_N": torch.tensor([0, 2])})
    expected = hard.draw(csc, LOOPS, pairs, 5)
    copied = pickle.loads(pickle.dumps(hard))
    assert "_made" in vars(hard) and "_made" not in vars(copied)
    assert torch.equal(copied.draw(csc, LOOPS, pairs, 5)[1], expected[1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0}, ValueError, "k must be at least 1, got 0"),
        ({"k": 1.5}, TypeError, "k must be an integer, got 1.5"),
        ({"power": -1}, ValueError, "power must be finite and not negative, got -1"),
        ({"power": float("nan")}, ValueError, "power must be finite and not negative, got nan"),
        ({"power": "0.75"}, TypeError, "power must be a number, got '0.75'"),
        ({"power": 1, "in_batch": True}, ValueError, "power must be 0 if in_batch is True"),
        ({"in_batch": "yes"}, TypeError, "in_batch must be True or False, got 'yes'"),
        ({"among": [7]}, IndexError, "among"),
        (
            {"among": torch.zeros(2, dtype=torch.bool)},
            ValueError,
            r"among must have shape \(3,\) as a mask of vertices",
        ),
        (
            {"among": torch.zeros(3, dtype=torch.bool)},
            ValueError,
            "among must hold a vertex that can be drawn, got none",
        ),
        ({"among": [0.5]}, TypeError, "among"),
        (
            {"among": [0], "power": 1},
            ValueError,
            "among must hold a vertex that can be drawn, got none",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        HardNegatives(**options).ends(CSC.from_coo([0, 1], [1, 2], 3), "_N")
