"""pagraph.dgl.HardNegatives: run by our loader in its threads, called by DGL's; what it draws is no
edge."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours, theirs
from comparing import end_ids
from scipy import stats
from worlds import BUYS, FOLLOWS, VIEWS, edge_seeds_of, make_world

from pagraph.dgl import HardNegatives
from pagraph.dgl.workload import native_negatives, runs_users_code

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading


def edge_sampler(negatives):
    return d.as_edge_prediction_sampler(
        d.NeighborSampler([2], fused=False), negative_sampler=negatives
    )


def drawn(make, graph, seeds, negatives, **options):
    """Of each batch by edge type the ends of its negative edges, and of its own."""
    for _, pair, negative, _ in collect(
        make(graph, seeds, edge_sampler(negatives), batch_size=40, **options)
    ):
        for etype in graph.canonical_etypes:
            yield etype, end_ids(negative, etype), end_ids(pair, etype)


@pytest.mark.parametrize("make", [ours, theirs])
@pytest.mark.parametrize("options", [{}, {"power": 0.75}, {"in_batch": True}], ids=str)
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_negatives_are_no_edges_and_keep_their_sources(make, options, idtype):
    world = make_world("heterograph", idtype)
    graph, seeds = world.graph, edge_seeds_of(world, "name")
    total = 0
    for etype, (src, dst), (pair_src, pair_dst) in drawn(
        make, graph, seeds, HardNegatives(3, **options)
    ):
        assert src.dtype == dst.dtype == idtype and len(src) <= 3 * len(pair_src)
        assert not graph.has_edges_between(src, dst, etype=etype).any()
        assert set(src.tolist()) <= set(pair_src.tolist())
        if options.get("power"):
            assert (graph.in_degrees(dst, etype=etype) > 0).all()
        if options.get("in_batch"):
            assert set(dst.tolist()) <= set(pair_dst.tolist())
        total += len(src)
    assert total > 100


def test_in_proportion_to_the_degree_and_among_a_subset():
    world = make_world("heterograph")
    graph = world.graph
    num_dst = graph.num_nodes(BUYS[2])
    degrees = graph.in_degrees(etype=BUYS).double()
    subset = torch.arange(num_dst) % 2 == 0
    negatives = HardNegatives(20, power=0.75, among={BUYS[2]: subset}, exclude_edges=False)
    seeds = {BUYS: torch.arange(graph.num_edges(BUYS)).repeat(10)}
    dst = torch.cat(
        [
            ends[1]
            for etype, ends, _ in drawn(ours, graph, seeds, negatives, seed=1)
            if etype == BUYS
        ]
    )
    weight = degrees**0.75 * (degrees > 0) * subset
    counts = torch.bincount(dst, minlength=num_dst)
    there = weight > 0
    assert counts.sum() == counts[there].sum() == 20 * 10 * graph.num_edges(BUYS)
    expected = (weight[there] / weight.sum() * counts.sum()).numpy()
    assert stats.chisquare(counts[there].numpy(), expected).pvalue > 1e-4


def test_a_function_of_the_seed_for_any_number_of_threads():
    world = make_world("heterograph")
    seeds = edge_seeds_of(world, "name")
    negatives = HardNegatives(2, power=0.75)
    assert native_negatives(negatives) is negatives.core and not runs_users_code(
        edge_sampler(negatives)
    )

    def told(**options):
        found = drawn(ours, world.graph, seeds, negatives, shuffle=True, **options)
        return [(etype, ends[0].tolist(), ends[1].tolist()) for etype, ends, _ in found]

    assert told(seed=1, prefetch=0) == told(seed=1, num_workers=3) != told(seed=2)


def test_called_alone_it_draws_from_torchs_generator():
    graph = make_world("heterograph").graph
    edges = {FOLLOWS[1]: torch.arange(5), VIEWS[1]: torch.arange(7)}
    torch.manual_seed(3)
    first, second = (HardNegatives(2)(graph, edges) for _ in range(2))
    torch.manual_seed(3)
    again = HardNegatives(2)(graph, edges)
    assert set(first) == {FOLLOWS, VIEWS}
    assert all(torch.equal(a, b) for c in first for a, b in zip(first[c], again[c], strict=True))
    assert not all(torch.equal(first[c][1], second[c][1]) for c in first)


def test_a_source_that_leads_to_all_has_no_negative_edge():
    graph = dgl.graph(([0, 0, 0, 1], [0, 1, 2, 0]))
    (batch,) = ours(graph, torch.arange(4), edge_sampler(HardNegatives(5)), batch_size=4)
    assert np.unique(end_ids(batch[2], graph.canonical_etypes[0])[0]).tolist() == [1]


def test_errors_come_with_the_sampler():
    with pytest.raises(ValueError, match="power must be 0 if in_batch is True"):
        HardNegatives(2, power=0.75, in_batch=True)
    with pytest.raises(TypeError, match="k must be an integer, got 'many'"):
        HardNegatives("many")
