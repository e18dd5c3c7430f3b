"""Negative edges: DGL's samplers give the right ones, each as often; a user's own is asked as DGL
asks it."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours, theirs
from comparing import end_ids, pairs_of
from distributions import assert_distribution, assert_uniform_inclusion
from worlds import BUYS, FOLLOWS, VIEWS, edge_seeds_of, make_world

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading
Uniform, PerSourceUniform, GlobalUniform = (
    d.negative_sampler.Uniform,
    d.negative_sampler.PerSourceUniform,
    d.negative_sampler.GlobalUniform,
)


def edge_sampler(inner=None, **options):
    return d.as_edge_prediction_sampler(inner or d.NeighborSampler([-1], fused=False), **options)


@pytest.mark.parametrize("kind", [Uniform, PerSourceUniform])
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_uniform_negatives_keep_the_sources(kind, idtype):
    world = make_world("heterograph", idtype)
    graph, seeds = world.graph, edge_seeds_of(world, "name")
    sampler = edge_sampler(negative_sampler=kind(3))
    for _, pair, negative, _ in ours(graph, seeds, sampler, batch_size=11):
        assert negative.idtype == idtype
        for etype in graph.canonical_etypes:
            assert negative.num_edges(etype) == 3 * pair.num_edges(etype)
            src, dst = end_ids(negative, etype)
            assert torch.equal(src, end_ids(pair, etype)[0].repeat_interleave(3))
            assert bool(((dst >= 0) & (dst < graph.num_nodes(etype[2]))).all())


def test_uniform_negatives_are_uniform():
    """Over all vertices of the destination type; what one seed draws says nothing of the next, nor
    one batch."""
    world = make_world("heterograph")
    seeds = {BUYS: torch.arange(90).repeat(60), VIEWS: torch.arange(70).repeat(60)}
    sampler = edge_sampler(d.NeighborSampler([1], fused=False), negative_sampler=Uniform(2))
    loader = ours(world.graph, seeds, sampler, batch_size=900, seed=3)
    dst = torch.cat(
        [end_ids(negative, c)[1] for _, _, negative, _ in loader for c in (BUYS, VIEWS)]
    ).tolist()
    assert len(dst) == 2 * 60 * 160
    assert_distribution(dst, {v: 1 / 25 for v in range(25)})
    coarse = [v // 5 for v in dst]
    together = {(a, b): 1 / 25 for a in range(5) for b in range(5)}
    for lag in (1, 2, 180, 1800):
        assert_distribution(zip(coarse, coarse[lag:], strict=False), together)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_global_uniform_negatives_are_no_edges(replace, loops):
    world = make_world("relations")
    graph, seeds = world.graph, edge_seeds_of(world, "name")
    sampler = edge_sampler(
        negative_sampler=GlobalUniform(2, exclude_self_loops=not loops, replace=replace)
    )
    found_loops = 0
    for _, pair, negative, _ in collect(ours(graph, seeds, sampler, batch_size=11, seed=1)):
        for etype in graph.canonical_etypes:
            edges, wanted = pairs_of(negative, etype), 2 * pair.num_edges(etype)
            assert wanted // 2 <= len(edges) <= wanted  # DGL may give fewer
            parent = set(zip(*(part.tolist() for part in graph.edges(etype=etype)), strict=True))
            assert not set(edges) & parent
            assert replace or len(set(edges)) == len(edges)
            found_loops += sum(u == v for u, v in edges)
    assert loops or found_loops == 0


@pytest.mark.statistics
@pytest.mark.parametrize("replace", [False, True])
def test_global_uniform_negatives_are_uniform(replace):
    """Over all pairs that are no edge, also without replacement, where DGL's own favour pairs of
    low ids."""
    graph = dgl.graph(([0, 1, 2, 2, 4, 3], [1, 2, 3, 3, 4, 0]), num_nodes=6)
    edges = {(0, 1), (1, 2), (2, 3), (3, 0)}
    allowed = [(u, v) for u in range(6) for v in range(6) if u != v and (u, v) not in edges]
    sampler = edge_sampler(
        d.NeighborSampler([1], fused=False), negative_sampler=GlobalUniform(2, replace=replace)
    )
    loader = ours(graph, torch.arange(6).repeat(400), sampler, batch_size=2, seed=5)
    found = [pairs_of(negative, ("_N", "_E", "_N")) for _, _, negative, _ in loader]
    assert sum(map(len, found)) == 2 * 2400
    if replace:
        assert_distribution(
            [pair for pairs in found for pair in pairs],
            {pair: 1 / len(allowed) for pair in allowed},
        )
    else:
        drawn = np.array([[pairs.count(pair) for pair in allowed] for pairs in found])
        assert_uniform_inclusion(drawn, 4)


def test_a_negative_sampler_of_the_users_own_is_asked_as_dgl_asks_it():
    """Once a batch, with the graph itself and the seeds by canonical type; relations it leaves out
    have no edges."""
    world = make_world("heterograph")
    asked = {}

    def negatives(graph, seeds):
        assert graph is world.graph
        asked.setdefault(make, []).append({c: ids.tolist() for c, ids in seeds.items()})
        ids = next(iter(seeds.values()))
        return {FOLLOWS: (ids % 7, ids % 5)}

    seeds = {"buys": torch.arange(50, 60), "views": torch.arange(3)}
    shapes = {}
    for make in (ours, theirs):
        batches = collect(
            make(world.graph, seeds, edge_sampler(negative_sampler=negatives), batch_size=6)
        )
        shapes[make] = [
            [(c, pairs_of(batch[2], c)) for c in world.graph.canonical_etypes] for batch in batches
        ]
    assert asked[ours] == asked[theirs] and len(asked[ours]) == 3
    assert [list(seeds) for seeds in asked[ours]] == [[BUYS], [BUYS, VIEWS], [VIEWS]]
    assert shapes[ours] == shapes[theirs]
