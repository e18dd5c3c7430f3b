"""DGL's loader and ours over one list of cases: where nothing is left to chance, the batches are equal."""

import numpy as np
import pytest
from cases import collect, ours, theirs
from comparing import assert_same_batch, assert_same_edge_batch, assert_same_messages, end_ids
from differential_cases import (
    EDGE_CASES,
    NEGATIVES,
    NODE_CASES,
    case_name,
    edge_sampler,
    edge_seeds,
    loader_options,
    node_sampler,
    node_seeds,
    world_of,
)

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")


def run(make, *args, **options):
    """All batches of an epoch, or of two if they are shuffled, from the same state of the generator that shuffles."""
    np.random.seed(7)
    loader = make(*args, batch_size=18, **options)
    return [batch for _ in range(1 + options["shuffle"]) for batch in collect(loader)]


@pytest.mark.parametrize("case", NODE_CASES, ids=case_name)
def test_node_wise_batches_equal_dgls(case):
    graph, seeds, sampler = world_of(case).graph, node_seeds(case), node_sampler(case)
    options, only_ours = loader_options(case)
    mine = run(ours, graph, seeds, sampler, **options, **only_ours)
    reference = run(theirs, graph, seeds, sampler, **options)
    assert len(mine) == len(reference) > 0
    for batch, expected in zip(mine, reference, strict=True):
        assert_same_batch(graph, batch, expected)
    assert_same_messages(graph, mine[-1][-1], reference[-1][-1])


@pytest.mark.parametrize("case", EDGE_CASES, ids=case_name)
def test_edge_wise_batches_equal_dgls(case):
    """DGL's loader is given the negative edges that ours drew."""
    graph, seeds = world_of(case).graph, edge_seeds(case)
    options, only_ours = loader_options(case)
    mine = run(ours, graph, seeds, edge_sampler(case, NEGATIVES[case["negatives"]]()), **options, **only_ours)
    drawn = iter([{c: end_ids(batch[2], c) for c in graph.canonical_etypes} for batch in mine if len(batch) == 4])
    negative_sampler = None if case["negatives"] is None else lambda graph, seeds: next(drawn)
    reference = run(theirs, graph, seeds, edge_sampler(case, negative_sampler, copying=True), **options)
    assert len(mine) == len(reference) > 0
    for batch, expected in zip(mine, reference, strict=True):
        assert_same_edge_batch(graph, batch, expected)
    assert_same_messages(graph, mine[-1][-1], reference[-1][-1])
    assert next(drawn, None) is None
