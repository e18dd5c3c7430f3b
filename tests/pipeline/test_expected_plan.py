"""What the core loader's plan expects, against what its epochs read."""

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy

N = 400


@pytest.fixture
def graph(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.zipf(1.5, 4000) % N, rng.integers(0, N, 4000), N)
    for name, width in (("feat", 8), ("label", 1)):
        np.save(tmp_path / f"{name}.npy", rng.random((N, width)))
        graph.set_field(name, map_npy(tmp_path / f"{name}.npy"))
    if not on_disk(graph.ndata["feat"]):
        pytest.skip("needs temporary files on a disk")
    return graph


@pytest.mark.every
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("cache", ["10%", 12000, 1.0])
def test_expected_hit_rates_come_true(graph, cache, edge_dir):
    loader = Loader(
        graph,
        torch.arange(0, N, 4),
        NeighborSampler([4, 4], edge_dir=edge_dir),
        fields=["feat"],
        labels=["label"],
        batch_size=10,
        shuffle=True,
        cache=cache,
        cache_policy="vip",
        seed=1,
    )
    for _ in range(20):
        for batch in loader:
            assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes])
            assert torch.equal(batch.labels["label"], graph.ndata["label"][batch.output_nodes])
    plan, reads = loader.cache_plan, loader.stats.total.reads.fields
    for part in plan:
        assert part.expected_hit_rate == pytest.approx(reads[part.key].hit_rate, abs=0.03)
    if cache == 1.0:  # there is room for everything: nobody was asked how often features are read
        assert [part.rows for part in plan] == [N, N]
        assert plan.expected_hit_rate == 1.0 and plan.expected_bytes_saved is None
    else:
        for part in plan:
            assert part.expected_reads == pytest.approx(reads[part.key].asked / 20, rel=0.05)
        assert plan.expected_bytes_saved == sum(
            part.expected_hits * part.row_bytes for part in plan
        )
    assert str(plan).splitlines()[1].split()[:2] == ["field", "rows"] and "\n" not in repr(plan)


@pytest.mark.parametrize("policy", ["auto", "presample:3", "ideal"])
def test_batches_that_are_not_shuffled_are_counted_as_they_are(tmp_path, policy):
    """A chain: vertices that follow each other share their neighbours, those that do not share
    none."""
    num = 1000
    np.save(tmp_path / "feat.npy", np.zeros((num, 1)))
    steps = np.arange(1, 9)
    src, dst = (
        (np.arange(num)[:, None] + steps).ravel() % num,
        np.repeat(np.arange(num), len(steps)),
    )
    graph = Graph.from_coo(src, dst, num, ndata={"feat": map_npy(tmp_path / "feat.npy")})
    if not on_disk(graph.ndata["feat"]):
        pytest.skip("needs temporary files on a disk")
    reads = {}
    for shuffle in (False, True):
        loader = Loader(
            graph,
            torch.arange(0, num, 2),
            NeighborSampler([4, 4]),
            fields=["feat"],
            batch_size=50,
            shuffle=shuffle,
            cache="20%",
            cache_policy=policy,
            seed=1,
        )
        for _ in range(3):
            list(loader)
        (part,), total = loader.cache_plan.fields, loader.stats.total.reads.total
        assert part.expected_reads == pytest.approx(total.asked / 3, rel=0.03)
        assert part.expected_hit_rate == pytest.approx(total.hit_rate, abs=0.03)
        reads[shuffle] = total.asked
    assert reads[True] > 4 * reads[False]


def test_a_field_that_is_feature_and_label_is_planned_for_both(graph):
    seeds = torch.tensor([3, 3, 9])
    loader = Loader(
        graph,
        seeds,
        NeighborSampler([2]),
        fields=["feat"],
        labels=["feat"],
        cache=1.0,
        cache_policy=lambda graph, seeds, sampler, seed: torch.arange(5),
    )
    for batch in loader:
        assert torch.equal(batch.labels["feat"], graph.ndata["feat"][batch.output_nodes])
    (part,) = loader.cache_plan
    assert part.rows == 5 and part.expected_hit_rate is None
