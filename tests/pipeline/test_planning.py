"""What a loader's plan counts: rows, batches and edges as they are, nothing for graphs in
memory."""

import gc
import pickle
import weakref

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.engine.planning import Trial
from pagraph.graph.mapped import map_npy
from pagraph.ranking.policies import spread_seeds
from pagraph.ranking.workload import Sampled
from pagraph.sampling import LaborSampler
from pagraph.sampling.subgraph_sampler import SubgraphSampler
from pagraph.seeds.keys import derive_key
from pagraph.system.memory import held_by_process

SIZE, WIDTH = 2000, 64


@pytest.fixture
def graph(disk_folder):
    """A graph whose features lie on disk."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(SIZE, (2, 20_000), generator=generator)
    np.save(
        disk_folder / "feat.npy", np.arange(SIZE * WIDTH, dtype=np.float32).reshape(SIZE, WIDTH)
    )
    fields = {"feat": map_npy(disk_folder / "feat.npy"), "label": torch.arange(SIZE)}
    return Graph.from_coo(*edges, num_nodes=SIZE, ndata=fields)


def make(graph, **options):
    settings = {"fields": ["feat"], "labels": ["label"], "batch_size": 50, "seed": 1, **options}
    return Loader(graph, torch.arange(1000), NeighborSampler([4, 3]), **settings)


def test_nothing_is_planned_for_a_graph_in_memory():
    graph = Graph.from_coo([0, 1], [1, 0], ndata={"feat": torch.eye(2)})
    loader = Loader(graph, [0], NeighborSampler([1]), fields=["feat"], memory="10MiB")
    with pytest.warns(
        RuntimeWarning,
        match="memory=10 MiB has no effect: .* this loader reads nothing from disk",
    ):
        plan = loader.memory_plan
    assert plan.reason == "as the loader reads nothing from disk" and plan.taken == 0
    assert len(list(loader)) == 1


def test_memory_without_effect_is_said_once_and_by_whom_it_was_given(graph, recwarn):
    in_memory = Graph(
        graph.csc, ndata={name: values.clone() for name, values in graph.ndata.items()}
    )
    loader = make(in_memory, memory="1GiB")
    for _ in range(2):
        assert len(list(loader)) == 20
    assert [str(each.message).partition(":")[0] for each in recwarn] == [
        "memory=1 GiB has no effect"
    ]
    list(make(in_memory))
    list(make(graph, memory="2GiB"))
    assert len(recwarn) == 1


def test_a_plan_has_the_rows_and_batches_of_the_loader(graph):
    needs = make(graph, memory="2GiB", prefetch=3, num_workers=2).memory_plan.needs
    sampler = NeighborSampler([4, 3])
    rows = []
    for place in range(5):
        seeds = spread_seeds(torch.arange(1000), 50, place / 5)
        rows.append(len(sampler.sample(graph, seeds, derive_key(0x706C616E, place)).input_nodes))
    assert needs.ahead_rows == int(1.25 * max(rows) * 4 * WIDTH)
    assert needs.batches == 2 + 3 + 1 + 1 and needs.num_batches == 20
    assert needs.growing == SIZE * 4 and needs.cache == SIZE * (4 * WIDTH + 4) + needs.growing
    assert needs.topology == 0
    assert 1.25 * max(rows) * 4 * WIDTH < needs.batch < 4 * max(rows) * 4 * WIDTH
    assert make(graph, memory="2GiB", lookahead=0).memory_plan.window == 0
    assert make(graph, memory="2GiB", cache=0).memory_plan.cache == 0
    assert (
        make(graph, memory="2GiB", cache=0.5).memory_plan.cache == SIZE // 2 * 4 * WIDTH + 8 * SIZE
    )
    assert make(graph, memory="2GiB", cache="100KB").memory_plan.cache == 100_000 + 4 * SIZE


def test_the_cache_is_filled_by_the_plan_and_batches_are_the_same(graph):
    free = [batch.features["feat"].clone() for batch in make(graph, cache=0, lookahead=0)]
    loader = make(graph, memory="2GiB")
    assert all(map(torch.equal, (batch.features["feat"] for batch in loader), free))
    assert loader.cache_plan.budget_bytes == loader.memory_plan.cached
    assert (
        loader.memory_plan.cached + 4 * SIZE
        == loader.memory_plan.cache
        == loader.memory_plan.needs.cache
    )


def test_too_little_memory_is_refused_when_the_first_batch_is_asked_for(graph):
    loader = make(graph, memory="1MiB")
    with pytest.raises(
        ValueError, match=r"memory must be at least \d+ bytes .* 5 batches of .*; got 1048576"
    ):
        next(iter(loader))
    with pytest.raises(ValueError, match="cache must be at most memory, 1048576 bytes"):
        make(graph, memory="1MiB", cache="2MiB")


@pytest.mark.statistics
def test_a_named_policy_that_takes_too_much_is_refused_and_auto_ranks_by_a_few_batches(
    graph, monkeypatch
):
    held = 300 << 20  # whatever ran before
    monkeypatch.setattr("pagraph.engine.planning.held_by_process", lambda: held)
    memory = (held + (2 << 20)) * 8 // 9  # two MiB for all of it
    while True:
        try:
            plan = make(graph, memory=memory, num_workers=1, prefetch=1).memory_plan
            break
        except ValueError:
            memory += 1 << 17
    if plan.cache:
        assert plan.ranked.startswith(", by counting a few batches")
        with pytest.raises(ValueError, match="to rank by this cache_policy"):
            make(graph, memory=memory, num_workers=1, prefetch=1, cache_policy="vip").memory_plan  # noqa: B018


def test_what_other_loaders_have_planned_is_theirs(graph):
    first = make(graph, memory="2GiB")
    list(first)
    taken = first.memory_plan.taken
    assert taken > 0
    again = make(graph, memory="2GiB").memory_plan
    assert again.needs.process <= max(
        first.memory_plan.needs.process, held_by_process() - taken
    ) + (8 << 20)


def test_a_loader_with_a_plan_leaves_no_circle(graph):
    loader = make(graph, memory="2GiB")
    gone = weakref.ref(loader._engine)
    assert loader.memory_plan.taken
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_pickled_and_copied_loaders_keep_their_memory(graph):
    loader = make(graph, memory="1GiB", lookahead=2)
    copied = pickle.loads(pickle.dumps(loader))
    # What is pickled is in memory.
    with pytest.warns(RuntimeWarning, match="memory=1 GiB has no effect"):
        assert copied.memory_plan.total == 1 << 30


@pytest.mark.parametrize(
    "sampler", [NeighborSampler([3, 2]), LaborSampler([3, 2]), SubgraphSampler([3, 2])], ids=repr
)
def test_a_trial_counts_what_was_sampled(graph, sampler):
    seeds = torch.arange(0, 1000, 7)
    trial = Trial.of(Sampled(graph, seeds, sampler), 1000)
    batch = sampler.sample(graph, seeds, derive_key(0x706C616E, 0))
    nodes = (
        batch.input_nodes
        if isinstance(batch.input_nodes, dict)
        else {graph.node_types[0]: batch.input_nodes}
    )
    assert trial.inputs == {t: len(ids) for t, ids in nodes.items()}
    assert list(trial.outputs.values()) == [len(seeds)]
    parts = batch.blocks if hasattr(batch, "blocks") else batch.edges.values()
    assert sum(trial.edges.values()) == sum(part.num_edges for part in parts)
    assert len(seeds) < trial.frontier < sum(trial.inputs.values())
    assert trial.nbytes >= 8 * sum(trial.inputs.values())
    assert Trial.of(Sampled(graph, seeds, None), 10) is None
