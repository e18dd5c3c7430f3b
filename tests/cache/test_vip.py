"""Expected accesses against a plain reference, and against many sampled epochs."""

import numpy as np
import pytest
import torch

from pagraph.cache import expected_accesses
from pagraph.graph import Graph
from pagraph.sampling import NeighborSampler
from pagraph.sampling.accesses import count_accesses


def simulated(graph, seeds, sampler, batch_size, epochs=100):
    counts = count_accesses(graph, seeds, sampler, batch_size=batch_size, seed=5, epochs=range(epochs), threads=1)
    return {ntype: counts.by_hop(ntype).double() / epochs for ntype in counts.node_types}, counts.batches // epochs


def compare(graph, seeds, sampler, batch_size, epochs=100):
    """Error of the sum, and the sum of absolute errors, each over the sum of all reads."""
    expected = expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    real, batches = simulated(graph, seeds, sampler, batch_size, epochs)
    assert expected.batches == batches and expected.num_hops == sampler.num_hops
    total = float(sum(reads.sum() for reads in real.values()))
    differences = [expected.reads(ntype) - reads.sum(1) for ntype, reads in real.items()]
    return abs(expected.total / total - 1), float(sum(part.abs().sum() for part in differences)) / total


def directed(n=300, m=1800, seed=0, **fields):
    """Out-degrees by a power law, some self-loops and parallel edges, some vertices without edges."""
    rng = np.random.default_rng(seed)
    src, dst = rng.zipf(1.6, m) % n, rng.integers(0, n - n // 10, m)
    return Graph.from_coo(src, dst, n, edata=fields)


@pytest.mark.parametrize("fanouts", [[3, 3], [2, 2, 2], [-1, -1], [5, -1], [1]])
@pytest.mark.parametrize("replace", [False, True])
def test_close_to_many_epochs_of_a_directed_graph(fanouts, replace):
    total, each = compare(directed(), torch.arange(0, 300, 4), NeighborSampler(fanouts, replace=replace), 10)
    assert total < 0.012 and each < 0.035
