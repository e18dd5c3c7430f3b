"""DGL's loader and ours over one list of cases: where nothing is left to chance, the batches are
equal."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours, theirs
from comparing import assert_same_batch, assert_same_edge_batch, assert_same_messages, end_ids
from differential_cases import (
    EDGE_CASES,
    IDTYPES,
    NEGATIVES,
    NODE_CASES,
    WEIGHTS,
    case_name,
    edge_sampler,
    edge_seeds,
    loader_options,
    node_sampler,
    node_seeds,
    world_of,
)
from worlds import make_world

d = dgl.dataloading
pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")


def run(make, *args, **options):
    """All batches of an epoch, or of two if they are shuffled, from the same state of the generator
    that shuffles."""
    np.random.seed(7)
    loader = make(*args, batch_size=18, **options)
    return [batch for _ in range(1 + options["shuffle"]) for batch in collect(loader)]


@pytest.mark.every
@pytest.mark.parametrize("case", NODE_CASES, ids=case_name)
def test_node_wise_batches_equal_dgls(case):
    graph, seeds = world_of(case).graph, node_seeds(case)
    options, only_ours = loader_options(case)
    mine = run(ours, graph, seeds, node_sampler(case, fused=True), **options, **only_ours)
    reference = run(theirs, graph, seeds, node_sampler(case), **options)
    assert len(mine) == len(reference) > 0
    for batch, expected in zip(mine, reference, strict=True):
        assert_same_batch(graph, batch, expected)
    assert_same_messages(graph, mine[-1][-1], reference[-1][-1])


@pytest.mark.every
@pytest.mark.parametrize("case", EDGE_CASES, ids=case_name)
def test_edge_wise_batches_equal_dgls(case):
    """DGL's loader is given the negative edges that ours drew."""
    graph, seeds = world_of(case).graph, edge_seeds(case)
    options, only_ours = loader_options(case)
    sampler = edge_sampler(case, NEGATIVES[case["negatives"]](), fused=True)
    mine = run(ours, graph, seeds, sampler, **options, **only_ours)
    drawn = iter(
        [
            {c: end_ids(batch[2], c) for c in graph.canonical_etypes}
            for batch in mine
            if len(batch) == 4
        ]
    )
    negative_sampler = None if case["negatives"] is None else lambda graph, seeds: next(drawn)
    reference = run(
        theirs, graph, seeds, edge_sampler(case, negative_sampler, copying=True), **options
    )
    assert len(mine) == len(reference) > 0
    for batch, expected in zip(mine, reference, strict=True):
        assert_same_edge_batch(graph, batch, expected)
    assert_same_messages(graph, mine[-1][-1], reference[-1][-1])
    assert next(drawn, None) is None


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("idtype", IDTYPES)
def test_out_edges_are_in_edges_of_the_graph_turned_round(weights, idtype):
    """DGL's own blocks for edge_dir="out" hold destinations of -1."""
    graph = make_world("homogeneous", idtype).graph
    turned = dgl.reverse(graph, copy_ndata=True, copy_edata=True)
    seeds, options = (
        torch.arange(0, 60, 2, dtype=idtype),
        dict(WEIGHTS[weights], prefetch_edge_feats=["w"]),
    )
    mine = run(
        ours, graph, seeds, d.NeighborSampler([-1, 99], edge_dir="out", **options), shuffle=False
    )
    reference = run(
        theirs, turned, seeds, d.NeighborSampler([-1, 99], fused=False, **options), shuffle=False
    )
    for batch, expected in zip(mine, reference, strict=True):
        assert_same_batch(graph, batch, expected)
        assert_same_messages(graph, batch[-1], expected[-1])
