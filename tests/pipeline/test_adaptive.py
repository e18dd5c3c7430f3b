"""The policy adaptive: degree in the first epoch, then what that epoch read."""

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.graph.mapped import map_npy
from pagraph.sampling import LaborSampler, LayerSampler

NUM = 2000


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Half of the edges lead from vertices that nothing near the seeds reads: degree is wrong about
    them."""
    rng = np.random.default_rng(0)
    src = np.concatenate(
        [(rng.random(12000) ** 2 * 1000).astype(np.int64), rng.integers(1500, 1600, 12000)]
    )
    dst = np.concatenate([rng.integers(0, 1000, 12000), rng.integers(1000, NUM, 12000)])
    file = tmp_path_factory.mktemp("adaptive") / "feat.npy"
    np.save(file, np.arange(2 * NUM, dtype=np.float32).reshape(NUM, 2))
    return Graph.from_coo(src, dst, NUM, ndata={"feat": map_npy(file, random_access=True)})


def load(graph, policy="adaptive", sampler=None, **settings):
    settings = {"batch_size": 20, "shuffle": True, "cache": "10%", "seed": 1} | settings
    sampler = sampler or NeighborSampler([4, 3])
    return Loader(
        graph, torch.arange(0, 800, 2), sampler, fields=["feat"], cache_policy=policy, **settings
    )


def epochs(loader, count):
    """Hit rates; rows must be right in every epoch."""
    for _ in range(count):
        for batch in loader:
            assert torch.equal(batch.features["feat"][:, 0], 2.0 * batch.input_nodes)
    return [epoch.hit_rate for epoch in loader.stats.epochs]


@pytest.mark.parametrize(
    "workers", [{"prefetch": 0}, {"num_workers": 1}, {"num_workers": 3, "prefetch": 4}]
)
def test_refills_once_after_the_first_epoch(graph, workers):
    degree, auto = (
        epochs(load(graph, "degree", **workers), 4),
        epochs(load(graph, "auto", **workers), 4),
    )
    loader = load(graph, **workers)
    rates = epochs(loader, 1)
    first = loader.cache_plan
    rates = epochs(loader, 1)
    second = loader.cache_plan
    rates = epochs(loader, 2)
    assert rates[0] == degree[0]
    assert min(rates[1:]) > degree[0] + 0.1
    assert rates[1:] == pytest.approx(auto[1:], abs=0.01)
    assert first.rows == second.rows == NUM // 10 and loader.cache_plan == second
    assert second.fields[0].expected_hit_rate == pytest.approx(np.mean(rates[1:]), abs=0.02)


def test_the_ranking_does_not_depend_on_threads(graph):
    assert epochs(load(graph, prefetch=0), 3) == epochs(load(graph, num_workers=3), 3)


@pytest.mark.parametrize(
    "sampler", [LaborSampler([4, 3]), LayerSampler([60, 60]), NeighborSampler([-1])]
)
def test_works_with_every_sampler(graph, sampler):
    rates = epochs(load(graph, sampler=sampler), 2)
    assert rates[1] > rates[0]


def test_samplers_of_out_edges(graph):
    turned = Graph(graph.reverse().csc, ndata={"feat": graph.ndata["feat"]})
    there = epochs(load(turned, sampler=NeighborSampler([4, 3], edge_dir="out")), 2)
    assert there[1] > there[0] + 0.1


def test_a_few_batches_are_not_an_epoch(graph):
    loader = load(graph, prefetch=0)
    for _ in range(2):
        for index, _ in enumerate(loader):
            if index == 3:
                break
    before = loader.cache_plan
    epochs(loader, 1)
    assert loader.cache_plan == before  # when that epoch began, 8 of 20 batches had been read
    rates = epochs(loader, 1)
    assert rates[-1] > rates[-2] + 0.1


def test_an_epoch_that_is_left_in_its_second_half_is_enough(graph):
    loader = load(graph, prefetch=0)
    for index, _ in enumerate(loader):
        if index == 14:
            break
    rates = epochs(loader, 1)
    assert rates[1] > rates[0] + 0.1


def test_without_a_cache_nothing_is_counted(graph):
    loader = load(graph, cache=0)
    assert epochs(loader, 2) == [0.0, 0.0]


def test_a_field_that_is_read_of_seeds_as_well_is_counted_once_a_batch(graph):
    loader = load(graph, labels=["feat"])
    rates = epochs(loader, 3)
    (part,) = loader.cache_plan.fields
    assert part.expected_reads == pytest.approx(loader.stats.epochs[-1].reads.total.asked, rel=0.05)
    assert part.expected_hit_rate == pytest.approx(np.mean(rates[1:]), abs=0.02)


@pytest.mark.parametrize("policy", ["auto", "adaptive", "presample", "degree"])
def test_a_cache_of_everything_needs_no_ranking(graph, policy):
    sampled = []

    class Watched(NeighborSampler):
        def sample(self, graph, seeds, key=0, **options):
            sampled.append(key)
            return super().sample(graph, seeds, key, **options)

    loader = load(graph, policy, sampler=Watched([4, 3]), cache=1.0)
    assert loader.memory_plan.cache
    sampled.clear()  # what the plan has tried
    assert epochs(loader, 3) == [1.0, 1.0, 1.0]
    assert len(sampled) == 3 * len(loader) and loader.cache_plan.expected_hit_rate == 1.0
