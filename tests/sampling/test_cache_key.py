"""Samplers that sample the same have one cache key, others another: caches are shared by it."""

import pytest
import torch

from pagraph import Graph
from pagraph.sampling import LaborSampler, LayerSampler, NeighborSampler, SubgraphSampler
from pagraph.sampling.batches import PairBatches, PairNegatives, TimedSeeds
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.sampling.negative import NegativeEnds, UniformNegatives

AB, BA = ("a", "to", "b"), ("b", "to", "a")
GRAPH = Graph.from_coo([0, 1], [1, 2])


@pytest.mark.parametrize(
    "make",
    [
        lambda: NeighborSampler([3, 2], prob="w"),
        lambda: NeighborSampler([{AB: 1, BA: 2}]),
        lambda: LaborSampler([3], layer_dependency=True),
        lambda: LayerSampler([5], "fastgcn"),
        lambda: SubgraphSampler([3], time="t"),
        lambda: EdgeBatches(NeighborSampler([2]), GRAPH, UniformNegatives(2)),
        lambda: PairBatches(
            SubgraphSampler([2]), ("_N", "_N"), {"_N": 3}, PairNegatives(1.0, NegativeEnds(3))
        ),
        lambda: TimedSeeds(SubgraphSampler([2], time="t"), "_N"),
    ],
)
def test_equal_samplers_have_equal_keys(make):
    assert make().cache_key == make().cache_key


def test_the_order_in_which_types_are_named_does_not_matter():
    one, other = NeighborSampler([{AB: 1, BA: 2}]), NeighborSampler([{BA: 2, AB: 1}])
    assert one.cache_key == other.cache_key


def test_different_samplers_have_different_keys():
    plain = SubgraphSampler([2])
    weighted = NegativeEnds(3, torch.tensor([1.0, 2.0, 3.0]))
    samplers = [
        NeighborSampler([2]),
        NeighborSampler([2], replace=True),
        NeighborSampler([2], edge_dir="out"),
        NeighborSampler([2], prob="w"),
        NeighborSampler([2, 2]),
        NeighborSampler([{AB: 1, BA: 2}]),
        NeighborSampler([{AB: 2, BA: 1}]),
        LaborSampler([2]),
        LaborSampler([2], importance_sampling=1),
        LayerSampler([2]),
        plain,
        SubgraphSampler([2], induced=True),
        EdgeBatches(NeighborSampler([2]), GRAPH),
        EdgeBatches(NeighborSampler([2]), GRAPH, UniformNegatives(1)),
        EdgeBatches(NeighborSampler([2]), GRAPH, UniformNegatives(2)),
        PairBatches(plain, ("_N", "_N"), {"_N": 3}),
        PairBatches(plain, ("_N", "_N"), {"_N": 3}, PairNegatives(1.0, NegativeEnds(3))),
        PairBatches(plain, ("_N", "_N"), {"_N": 3}, PairNegatives(1.0, weighted)),
        TimedSeeds(plain, "_N"),
    ]
    keys = [sampler.cache_key for sampler in samplers]
    assert len(set(keys)) == len(keys)
