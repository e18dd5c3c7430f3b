"""Caches of parts: what they hold, what they serve, and what they have in common."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import rmat, sbm
from pagraph.graph.mapped import map_npy
from pagraph.partition import CacheTrial, Partition, describe, partition_graph
from pagraph.partition.cache_trial import budget_bytes, row_bytes
from pagraph.partition.extract import extract_part
from pagraph.partition.report import overlap

pytestmark = pytest.mark.kernels


SETS = st.lists(st.sets(st.integers(0, 19), max_size=12), min_size=1, max_size=5)


@given(SETS)
def test_overlap_equals_that_of_python_sets(sets):
    shared, jaccard = overlap([torch.tensor(sorted(s), dtype=torch.int64) for s in sets], 20)
    union = set().union(*sets)
    several = {v for v in union if sum(v in s for s in sets) > 1}
    assert shared == (len(several) / len(union) if union else 0.0)
    pairs = [len(a & b) / len(a | b) if a | b else 0.0 for a, b in itertools.combinations(sets, 2)]
    assert jaccard == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


@pytest.mark.statistics
@pytest.mark.parametrize("policy", ["degree", "auto"])
def test_hit_rates_are_those_of_a_loader_on_the_part(tmp_path, policy):
    """Rows on disk are cached in memory, so that the CPU's loader has hits to count."""
    graph = sbm(2000, num_features=8)
    partition = partition_graph(graph, 2, hops=2, method="hash")
    trial = CacheTrial("15%", fanout=(4, 3), batch_size=100, policy=policy, seed=3)
    report = describe(partition, cache=trial)
    assert [len(use.ids) for use in report.caches.parts] == [300, 300]
    for part, use in enumerate(report.caches.parts):
        structure = extract_part(partition, part)
        ids = structure.vertices.ids
        np.save(tmp_path / f"{part}.npy", graph.ndata["feat"][ids].numpy())
        local = Graph(structure.csc, ndata={"feat": map_npy(tmp_path / f"{part}.npy")})
        seeds = torch.searchsorted(ids[: structure.vertices.num_seeds], partition.train_of(part))
        table = 4 * len(ids)
        loader = Loader(
            local,
            seeds,
            NeighborSampler([4, 3]),
            batch_size=100,
            shuffle=True,
            fields=["feat"],
            seed=3,
            cache=300 * 32 + table,
            cache_policy=policy,
        )
        assert len(list(loader)) == 6
        assert loader.cache_plan.rows == 300
        assert use.hit_rate == pytest.approx(loader.stats.epochs[0].hit_rate, abs=1e-12)
        assert use.reads == loader.stats.total.reads.total.asked


def test_without_copies_and_with_one_part_both_sides_agree():
    graph = rmat(9, num_features=4, num_classes=2)
    report = describe(
        partition_graph(graph, 1, hops=2, method="hash"), cache=CacheTrial("100%", batch_size=64)
    )
    (use,) = report.caches.parts
    assert use.hit_rate == report.caches.whole.hit_rate == report.caches.hit_rate == 1.0
    assert (report.caches.shared, report.caches.jaccard) == (0.0, None)


def test_ids_are_those_of_the_whole_graph():
    graph = rmat(9, num_features=4, num_classes=2)
    partition = partition_graph(graph, 3, hops=1, method="hash")
    report = describe(partition, cache=CacheTrial("5%", policy="degree"))
    for part, use in enumerate(report.caches.parts):
        assert set(use.ids.tolist()) <= set(partition.vertices(part).ids.tolist())


def test_every_cache_gets_the_same_bytes():
    graph = rmat(9, num_features=4, num_classes=2)
    graph.set_field("wide", torch.zeros(512, 3, 2, dtype=torch.float64))
    partition = partition_graph(graph, 2, hops=2, method="hash")
    sizes = [len(partition.vertices(part).ids) for part in range(2)]
    both = CacheTrial(8000, fields=("feat", "wide"), policy="degree")
    assert row_bytes(both, graph) == {"_N": 16 + 48}
    # Bytes pay for the table from vertex to place as well: of the part, not of the whole graph.
    report = describe(partition, cache=both)
    assert [len(use.ids) for use in report.caches.parts] == [
        (8000 - 4 * size) // 64 for size in sizes
    ]
    assert len(report.caches.whole.ids) == (8000 - 4 * 512) // 64
    share = CacheTrial("10%", fields=("feat", "wide"), policy="degree")
    assert budget_bytes(share, graph) == 51 * 64
    assert [len(use.ids) for use in describe(partition, cache=share).caches.parts] == [51, 51]


def test_without_features_a_share_counts_vertices():
    graph = rmat(8)
    assert "feat" not in graph.ndata
    train = torch.arange(0, 256, 3)
    partition = partition_graph(graph, 2, hops=1, method="hash", train=train)
    report = describe(partition, cache=CacheTrial(0.25, policy="random"))
    assert report.caches.nbytes is None
    assert len(report.caches.whole.ids) == 64
    with pytest.raises(
        ValueError, match="cache must be a share if the graph has no field feat, got '1MB'"
    ):
        describe(partition, cache=CacheTrial("1MB"))


def test_only_training_vertices_are_seeds():
    graph = Graph.from_coo([0, 1], [2, 3], 5)
    partition = Partition(
        graph,
        torch.tensor([2]),
        torch.tensor([0], dtype=torch.int32),
        1,
        1,
        "drawn",
        evaluation=torch.tensor([0], dtype=torch.int32),
        evaluated=torch.tensor([3]),
    )
    report = describe(partition, cache=CacheTrial("100%"))
    assert report.parts[0].evaluated == 1
    assert report.caches.parts[0].reads == 2  # vertex 2 and its neighbour 0; nothing of vertex 3


def test_parts_without_edges_or_rows():
    graph = Graph.from_coo([], [], 4)
    partition = Partition(
        graph, torch.arange(4), torch.tensor([0, 0, 1, 1], dtype=torch.int32), 2, 2, "drawn"
    )
    report = describe(partition, cache=CacheTrial("1%"))
    assert [use.hit_rate for use in report.caches.parts] == [0.0, 0.0]
    assert (report.caches.hit_rate, report.caches.shared, report.caches.jaccard) == (0.0, 0.0, 0.0)
    assert report.edge_factor == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "auto"}, "cache must be bytes .* or a share .* to try it out, got 'auto'"),
        ({"budget": 0}, "to try it out, got 0"),
        ({"budget": "some"}, "cache must be"),
        ({"budget": "150%"}, "cache must be a share in"),
        ({"policy": "best"}, "cache_policy must be one of"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"fanout": (0, 5)}, "fanouts must be positive or -1"),
        ({"fanout": ()}, "fanout must have at least 1 entry, got 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        CacheTrial(**settings)


def test_a_trial_must_fit_the_partition():
    partition = partition_graph(sbm(100), 2, hops=1, method="hash")
    with pytest.raises(
        ValueError, match=r"fanout must have at most 1 entries for 1 hops, got \[5, 5\]"
    ):
        describe(partition, cache=CacheTrial(fanout=(5, 5)))
    with pytest.raises(ValueError, match="fields must be among .*, got 'colour'"):
        describe(partition, cache=CacheTrial(fields=("colour",)))
