"""What is left to chance: the same distributions as DGL's and as theory says, over many draws with
fixed seeds."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours, theirs
from distributions import (
    ALARM,
    assert_distribution,
    assert_same_distribution,
    assert_uniform_inclusion,
    class_probabilities,
    draw,
    make_forest,
    outcomes,
    probabilities,
    products,
)
from scipy import stats

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread")

d = dgl.dataloading
EDGE = ("_N", "_E", "_N")
WEIGHTS = [1.0, 2.0, 0.0, 4.0, 0.5]


def NeighborSampler(fanouts, **options):
    return d.NeighborSampler(fanouts, fused=False, **options)


@pytest.mark.every
@pytest.mark.parametrize(
    ("degree", "fanout", "replace", "idtype"),
    [
        (4, 1, False, torch.int64),
        (6, 3, False, torch.int32),
        (7, 6, False, torch.int64),
        (3, 3, True, torch.int64),
        (5, 2, True, torch.int32),
        (2, 5, True, torch.int64),
    ],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_uniform_draws(degree, fanout, replace, idtype, in_order):
    """In order, a place in the row that comes too often shows; in no order, an edge id that is
    another edge's does."""
    forest, base = make_forest([degree], idtype=idtype, in_order=in_order), fanout + 1
    mine, reference = (
        draw(make, forest, NeighborSampler([fanout], replace=replace), base=base)[EDGE].ravel()
        for make in (ours, theirs)
    )
    chances = probabilities([1] * degree, fanout, replace=replace, base=base)
    assert_distribution(mine, chances)
    assert_distribution(reference, chances)
    assert_same_distribution(mine, reference)


@pytest.mark.parametrize(("degree", "fanout"), [(40, 10), (200, 60), (61, 60), (1000, 3)])
def test_uniform_draws_from_many(degree, fanout):
    forest = make_forest([degree], copies=40, in_order=True)
    loader = ours(
        forest.graph,
        torch.arange(40).repeat(40),
        NeighborSampler([fanout]),
        batch_size=40,
        seed=9,
        num_workers=2,
    )
    included = np.zeros((40 * 40, degree), dtype=np.int64)
    for i, (_, _, (block,)) in enumerate(loader):
        np.add.at(
            included, (40 * i + block.edges()[1], forest.positions[EDGE][block.edata[dgl.EID]]), 1
        )
    assert_uniform_inclusion(included, fanout)


@pytest.mark.every
@pytest.mark.parametrize("kind", ["float32", "float64", "tiny", "huge", "bool", "uint8"])
@pytest.mark.parametrize(
    ("fanout", "replace"), [(1, False), (2, False), (3, False), (2, True), (9, False)]
)
def test_weighted_draws(kind, fanout, replace):
    """Without replacement one after the other by weight; a weight of 0 is never drawn."""
    masked = kind in ("bool", "uint8")
    scale = {"tiny": 1e-30, "huge": 1e30}.get(kind, 1.0)
    weights = torch.tensor(WEIGHTS) * scale
    weights = (
        (weights > 0).to(getattr(torch, kind))
        if masked
        else weights.to(getattr(torch, kind, torch.float32))
    )
    in_order = kind not in ("float64", "bool")
    forest, base = make_forest([5], p=[weights], in_order=in_order), fanout + 1 if replace else 2
    sampler = NeighborSampler([fanout], replace=replace, **{"mask" if masked else "prob": "p"})
    chances = probabilities(weights.double().tolist(), fanout, replace=replace, base=base)
    mine = draw(ours, forest, sampler, base=base)[EDGE].ravel()
    if len(chances) == 1:
        assert set(mine) == set(chances)
        return
    assert_distribution(mine, chances)
    if kind in ("float64", "bool"):
        assert_same_distribution(mine, draw(theirs, forest, sampler, base=base)[EDGE].ravel())


# Weights of an edge, and how many edges have it: even, some heavy, nearly all in two edges.
CLASSES = {
    "even": [(1.0, 150)],
    "steep": [(8.0, 10), (1.0, 50), (0.25, 60), (0.0, 30)],
    "heavy": [(1e6, 2), (1.0, 68)],
}


@pytest.mark.every
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize(("fanout", "replace"), [(1, False), (3, False), (5, False), (3, True)])
def test_weighted_draws_from_many(classes, fanout, replace):
    """How many picks fall on edges of each weight is as theory says; edges of one weight come
    equally often."""
    values, counts = zip(*CLASSES[classes], strict=True)
    which = np.random.default_rng(3).permutation(np.repeat(np.arange(len(values)), counts))
    weights = torch.tensor(values)[torch.from_numpy(which)]
    forest = make_forest([len(which)], p=[weights], in_order=fanout != 3)
    sampler = NeighborSampler([fanout], prob="p", replace=replace)
    loader = ours(forest.graph, torch.arange(250).repeat(60), sampler, batch_size=250, seed=2)
    picks, times = [], np.zeros(len(which))
    for _, _, (block,) in loader:
        dst, positions = (
            block.edges()[1].numpy(),
            forest.positions[EDGE][block.edata[dgl.EID].numpy()],
        )
        np.add.at(times, positions, 1)
        by_vertex = np.zeros((250, len(values)), dtype=np.int64)
        np.add.at(by_vertex, (dst, which[positions]), 1)
        picks += map(tuple, by_vertex.tolist())
    chances = class_probabilities(CLASSES[classes], fanout, replace=replace)
    if len(chances) > 1:
        assert_distribution(picks, chances)
    assert set(picks) <= set(chances)
    for i, count in enumerate(counts):
        seen = times[which == i]
        if count > 2 and seen.sum() > 5 * count:
            assert stats.chisquare(seen).pvalue > ALARM


@pytest.mark.every
@pytest.mark.parametrize("prob", [None, "p"])
@pytest.mark.parametrize("replace", [False, True])
def test_excluded_edges_are_drawn_and_then_dropped(prob, replace):
    """As DGL does it: a vertex with excluded edges gets fewer edges, not others in their place."""
    forest = make_forest([5], p=[torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5])])
    excluded = torch.from_numpy(np.flatnonzero(forest.positions[EDGE] % 3 == 0))  # in-edges 0 and 3
    # Edge 1 of each vertex is a seed; so the vertices are all in each batch.
    seeds = torch.from_numpy(np.flatnonzero(forest.positions[EDGE] == 1)).repeat(60)
    sampler = d.as_edge_prediction_sampler(
        NeighborSampler([3], prob=prob, replace=replace), exclude=excluded
    )
    weights = [1.0, 2.0, 3.0, 4.0, 0.5] if prob else [1] * 5
    chances = probabilities(weights, 3, replace=replace, excluded=(0, 3), base=4)
    dgl.seed(3)
    for make, options in ((ours, {"seed": 0}), (theirs, {})):
        batches = collect(make(forest.graph, seeds, sampler, batch_size=250, **options))
        codes = outcomes(forest, [blocks[0] for _, _, blocks in batches], base=4)[EDGE].ravel()
        assert_distribution(codes, chances)


@pytest.mark.statistics
def test_relations_are_drawn_apart():
    """Fan-outs, weights and their absence by relation; what one draws says nothing of what another
    draws."""
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0])
    forest = make_forest([4, 3, 4, 2], p=[weights, None, weights, None], idtype=torch.int32)
    etypes = list(forest.positions)
    fanouts = dict(zip(etypes, [2, 1, 1, 0], strict=True))
    codes = {
        make: draw(make, forest, NeighborSampler([fanouts], prob="p")) for make in (ours, theirs)
    }
    chances = [
        probabilities(w, k)
        for w, k in zip(
            [weights.tolist(), [1] * 3, weights.tolist(), [1] * 2], fanouts.values(), strict=True
        )
    ]
    for by_relation in codes.values():
        together = zip(*(by_relation[c].ravel().tolist() for c in etypes), strict=True)
        assert_distribution(together, products(*chances))


@pytest.mark.parametrize("prob", [None, "p"])
def test_hops_vertices_batches_and_epochs_are_drawn_apart(prob):
    forest = make_forest([4], p=[torch.tensor([1.0, 2.0, 3.0, 2.0])], in_order=True)
    sampler = NeighborSampler([1, 1], prob=prob)
    chances = probabilities([1.0, 2.0, 3.0, 2.0] if prob else [1] * 4, 1)
    first = draw(ours, forest, sampler, hop=1)[EDGE]
    # The same epoch again: it follows from the seed.
    second = draw(ours, forest, sampler, hop=0)[EDGE]
    pairs = products(chances, chances)
    for a, b in (
        (first, second),
        (first[:, :-1], first[:, 1:]),
        (first[:, : 250 // 2], first[:, 250 // 2 :]),
        (first[:-1], first[1:]),
    ):
        assert_distribution(zip(a.ravel().tolist(), b.ravel().tolist(), strict=True), pairs)
    loader = ours(forest.graph, torch.arange(250).repeat(30), sampler, batch_size=250, seed=1)
    epochs = [
        outcomes(forest, [blocks[1] for _, _, blocks in loader])[EDGE].ravel().tolist()
        for _ in range(2)
    ]
    assert_distribution(zip(*epochs, strict=True), pairs)
