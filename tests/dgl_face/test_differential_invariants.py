"""Random batches over the list of cases: how many edges each vertex gets, and which it may get."""

from collections import Counter

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours, theirs
from comparing import assert_chained, assert_parents_rows, edge_rows, nodes_of
from differential_cases import (
    NEGATIVES,
    RANDOM_EDGE_CASES,
    RANDOM_NODE_CASES,
    WEIGHTS,
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
    np.random.seed(7)
    return collect(make(*args, batch_size=18, **options))


def fanout_of(case, sampler, hop, etype):
    fanout = sampler.fanouts[hop]
    return fanout.get(etype, fanout.get(etype[1])) if isinstance(fanout, dict) else fanout


def candidates(case, etype):
    """Edges that may be drawn, as (source, destination, edge id), and how many each destination
    has."""
    graph = world_of(case).graph
    src, dst, eids = graph.in_edges(
        torch.arange(graph.num_nodes(etype[2]), dtype=graph.idtype), "all", etype
    )
    (column,) = WEIGHTS[case["weights"]].values() or [None]
    weights = graph.edges[etype].data.get(column, None)
    rows = list(zip(src.tolist(), dst.tolist(), eids.tolist(), strict=True))
    rows = [row for row in rows if weights is None or weights[row[2]] > 0]
    return set(rows), Counter(row[1] for row in rows)


def assert_drawn_right(case, sampler, blocks, excluded=None):
    """Each edge is the graph's; each vertex has as many as it can have, none twice without
    replacement."""
    graph = world_of(case).graph
    for etype in graph.canonical_etypes:
        allowed, degrees = candidates(case, etype)
        for hop, block in enumerate(blocks):
            fanout = fanout_of(case, sampler, hop, etype)
            rows = edge_rows(block, etype)
            assert set(rows) <= allowed
            assert_parents_rows(graph.edges[etype].data, block.edges[etype].data, dgl.EID)
            seen = Counter(dst for _, dst, _ in rows)
            # Repeated seeds have rows of their own; DGL gives one of them all the edges.
            times = Counter(block.dstnodes[etype[2]].data[dgl.NID].tolist())
            for vertex, repeats in times.items():
                all_of_them = fanout == -1 or (not case.get("replace") and fanout > degrees[vertex])
                most = degrees[vertex] if all_of_them else fanout * (degrees[vertex] > 0)
                if excluded is None:
                    assert seen[vertex] == most * repeats
                else:
                    assert seen[vertex] <= most
            if not case.get("replace") or fanout == -1:
                assert all(n <= times[dst] for (_, dst, _), n in Counter(rows).items())
            if excluded is not None and etype in excluded:
                assert not set(excluded[etype].tolist()) & {eid for _, _, eid in rows}


@pytest.mark.every
@pytest.mark.parametrize("make", [ours, theirs])
@pytest.mark.parametrize("case", RANDOM_NODE_CASES, ids=case_name)
def test_random_node_wise_batches(case, make):
    graph, seeds, sampler = (
        world_of(case).graph,
        node_seeds(case),
        node_sampler(case, fused=make is ours),
    )
    options, only_ours = loader_options(case)
    batches = run(make, graph, seeds, sampler, **options, **(only_ours if make is ours else {}))
    assert batches
    for input_nodes, output_nodes, blocks in batches:
        assert_chained(input_nodes, output_nodes, blocks)
        assert_drawn_right(case, sampler, blocks)
        for block in blocks:
            for ntype in graph.ntypes:
                assert_parents_rows(graph.nodes[ntype].data, block.srcnodes[ntype].data, dgl.NID)
                assert_parents_rows(graph.nodes[ntype].data, block.dstnodes[ntype].data, dgl.NID)


@pytest.mark.every
@pytest.mark.parametrize("case", RANDOM_EDGE_CASES, ids=case_name)
def test_random_edge_wise_batches(case):
    graph, seeds = world_of(case).graph, edge_seeds(case)
    options, only_ours = loader_options(case)
    sampler = edge_sampler(case, NEGATIVES[case["negatives"]](), fused=True, copying=True)
    batches = run(ours, graph, seeds, sampler, **options, **only_ours)
    assert batches
    for batch in batches:
        input_nodes, pair, blocks = batch[0], batch[1], batch[-1]
        assert_chained(input_nodes, nodes_of(pair), blocks)
        seed_edges = {
            c: pair.edges[c].data[dgl.EID] for c in graph.canonical_etypes if pair.num_edges(c)
        }
        if not isinstance(seeds, dict):
            (seed_edges,) = seed_edges.values()
        excluded = sampler.exclude(seed_edges) if sampler.exclude else {}
        excluded = (
            {graph.canonical_etypes[0]: excluded}
            if isinstance(excluded, torch.Tensor)
            else excluded
        )
        assert_drawn_right(case, sampler.sampler, blocks, excluded or None)
