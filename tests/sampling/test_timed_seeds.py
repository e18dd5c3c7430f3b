"""Rows of a vertex and its time as seeds, and how often batches of trees may read a vertex."""

import pytest
import torch

from pagraph.graph import Graph
from pagraph.ranking.presample import count_accesses, most_repeats
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.batches import PairBatches, PairNegatives, TimedSeeds
from pagraph.sampling.negative import NegativeEnds
from pagraph.seeds.order import SeedOrder


def test_rows_are_vertices_and_their_times():
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(50, (2, 400), generator=generator)
    graph = Graph.from_coo(
        *ends, num_nodes=50, edata={"t": torch.randint(9, (400,), generator=generator)}
    )
    sampler = SubgraphSampler([3, 3], time="t")
    nodes, times = torch.tensor([4, 7, 7, 20]), torch.tensor([8, 0, 5, 3])
    ours = TimedSeeds(sampler, "_N").sample(graph, torch.stack([nodes, times], 1), key=5)
    plain = sampler.sample(graph, nodes, 5, seed_times=times)
    assert torch.equal(ours.input_nodes["_N"], plain.input_nodes["_N"])
    assert torch.equal(
        next(iter(ours.edges.values())).edge_ids, next(iter(plain.edges.values())).edge_ids
    )
    assert TimedSeeds(sampler, "_N").num_hops == 2 and repr(TimedSeeds(sampler, "_N")).startswith(
        "TimedSeeds("
    )


@pytest.mark.parametrize("both", [False, True])
def test_counts_of_pairs_trees_do_not_overflow(both):
    """Every tree of every pair and of its negatives holds vertex 0: 300 pairs read it more often
    than a byte holds."""
    graph = Graph.from_coo([0] * 600, range(1, 601), 601)
    ends = NegativeEnds(601)
    negatives = PairNegatives(1.5, ends, ends if both else None)
    batches = PairBatches(SubgraphSampler([1], disjoint=True), ("_N", "_N"), {"_N": 601}, negatives)
    pairs = torch.stack([torch.arange(1, 301), torch.arange(301, 601)], 1)
    order = SeedOrder(pairs, 300, shuffle=True, seed=0)
    counts = count_accesses(graph, pairs, batches, batch_size=300, seed=0, threads=1)
    trees = 2 * 300 + 450 * (1 + both)
    assert counts.total == int(counts.reads("_N")[0]) + int(counts.reads("_N")[1:].sum())
    assert trees * 0.99 < int(counts.reads("_N")[0]) <= trees <= most_repeats(order, batches)
