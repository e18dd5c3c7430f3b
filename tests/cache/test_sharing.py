"""Which loaders use one cache."""

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import rmat
from pagraph.graph.mapped import map_npy
from pagraph.ranking.auto import adaptive, auto
from pagraph.ranking.policy import degree
from pagraph.ranking.workload import Share, Workload
from pagraph.sampling import SubgraphSampler
from pagraph.seeds.order import SeedOrder

SEEDS = torch.arange(20)
SAMPLER = NeighborSampler([3])


def share(
    policy=auto,
    graph="graph",
    seeds=SEEDS,
    shuffle=True,
    sampler=SAMPLER,
    batch_size=5,
    edge_dir="in",
):
    order = SeedOrder(seeds, batch_size, shuffle=shuffle)
    return share_of_order(policy, order, graph=graph, sampler=sampler, edge_dir=edge_dir)


def share_of_order(policy, order, *, graph="graph", sampler=SAMPLER, edge_dir="in"):
    workload = Workload(
        order, {}, sampler, lambda: None, source=graph, edge_dir=edge_dir, seeds=order
    )
    return workload.share(policy)


def test_degree_caches_are_for_everybody():
    assert share(degree).takes(share(degree, seeds=SEEDS[:3], shuffle=False))
    assert not share(degree).takes(share(degree, edge_dir="out"))
    assert not share(degree).takes(share(auto))


def test_loaders_that_train_share_only_what_was_made_for_their_work():
    mine = share()
    assert mine.takes(share(seeds=SEEDS.clone()))
    others = [
        share(shuffle=False),
        share(graph="another"),
        share(seeds=SEEDS[1:]),
        share(seeds={"a": SEEDS}),
        share(seeds=SEEDS.int()),
        share(batch_size=6),
        share(sampler=NeighborSampler([2])),
        share(edge_dir="out"),
    ]
    assert not any(mine.takes(other) for other in others)


def test_graphs_of_the_same_arrays_are_one_graph_if_what_is_sampled_by_is_the_same():
    csc = Graph.from_coo([0, 1], [1, 2]).csc
    same = [Graph(csc), Graph(csc)]
    assert share(graph=same[0]).takes(share(graph=same[1]))
    assert not share(graph=same[0]).takes(share(graph=Graph.from_coo([0, 1], [1, 2])))
    weights = torch.ones(2)
    one, again, other = (Graph(csc, edata={"w": w}) for w in (weights, weights, weights.clone()))
    by_weight = SubgraphSampler([2], prob="w")
    assert share(graph=one, sampler=by_weight).takes(share(graph=again, sampler=by_weight))
    assert not share(graph=one, sampler=by_weight).takes(share(graph=other, sampler=by_weight))
    uniform = SubgraphSampler([2])
    assert share(graph=one, sampler=uniform).takes(share(graph=other, sampler=uniform))


def test_loaders_that_evaluate_take_the_cache_of_the_one_that_trains():
    mine = share(shuffle=False, seeds=SEEDS[:5], sampler=NeighborSampler([-1]))
    assert mine.takes(share())
    assert not mine.takes(share(edge_dir="out")) and not mine.takes(None)


@pytest.mark.parametrize(
    ("policy", "sampler"), [(adaptive, SAMPLER), (auto, None), (lambda *_: SEEDS, SAMPLER)]
)
def test_nothing_is_shared_where_a_ranking_may_depend_on_anything(policy, sampler):
    assert share(policy, sampler=sampler) is None


def test_seeds_are_read_only_to_compare_them():
    class Untouched(SeedOrder):
        @property
        def ids(self):
            raise AssertionError("read")

    mine = share_of_order(auto, Untouched(SEEDS, 5, shuffle=True))
    assert not mine.takes(share(batch_size=6)) and not mine.takes(share(degree))
    with pytest.raises(AssertionError, match="read"):
        mine.takes(share())


def test_shares_are_values():
    assert share() == share(seeds=SEEDS.clone()) and isinstance(share(), Share)


@pytest.fixture
def graph(tmp_path):
    np.save(tmp_path / "feat.npy", np.zeros((1 << 10, 4), np.float32))
    graph = rmat(10, num_edges=1 << 13, seed=0)
    return Graph(graph.csc, ndata={"feat": map_npy(tmp_path / "feat.npy", random_access=True)})


def test_what_was_expected_of_other_seeds_is_not_expected_here(graph):
    settings = {"fields": ["feat"], "batch_size": 50, "cache": "20%", "seed": 0}
    train, valid, again, both = (
        Loader(
            graph,
            SEEDS * 9 if own else SEEDS * 3,
            NeighborSampler([4, 4]),
            shuffle=shuffle,
            **settings,
        )
        for own, shuffle in [(True, True), (False, False), (True, True), (True, False)]
    )
    for loader in (train, valid, again, both):
        list(loader)
    memory = {
        next(iter(x._engine.fields._fields.values()))._cache.rows.data_ptr()
        for x in (train, valid, again, both)
    }
    assert len(memory) == 1
    assert train.cache_plan.expected_hit_rate > 0 and train.cache_plan.rows > 0
    assert (
        valid.cache_plan.expected_hit_rate is None
        and valid.cache_plan.rows == train.cache_plan.rows
    )
    assert both.cache_plan.expected_hit_rate is None  # these batches are others
    assert again.cache_plan == train.cache_plan


def test_the_validation_loader_samples_nothing_for_its_cache(graph):
    settings = {"fields": ["feat"], "batch_size": 50, "cache": "20%", "seed": 0}
    train = Loader(graph, torch.arange(500), NeighborSampler([4, 4]), shuffle=True, **settings)
    assert sum(1 for _ in train) == 10
    sampled = []

    class Watched(NeighborSampler):
        def sample(self, graph, seeds, key=0, **options):
            sampled.append(len(seeds))
            return super().sample(graph, seeds, key, **options)

    valid = Loader(graph, torch.arange(500, 700), Watched([4, 4]), **settings)
    assert valid.memory_plan.cache
    sampled.clear()  # what the plan has tried
    assert sum(1 for _ in valid) == 4 and len(sampled) == 4
    assert valid.stats.total.hit_rate > 0
    other = Loader(graph, torch.arange(500, 700), Watched([4, 4]), shuffle=True, **settings)
    list(other)
    assert len(sampled) > 8  # it trains, on other seeds: the ranking is its own
