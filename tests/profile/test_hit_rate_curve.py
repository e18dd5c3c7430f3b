"""Hit-rate curves against the loader itself, and against counting by hand."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import Graph, Loader, NeighborSampler
from pagraph.graph.graph import CSC
from pagraph.graph.mapped import map_npy
from pagraph.profile import DEFAULT_BUDGETS, hit_rate_curve
from pagraph.ranking import POLICIES
from pagraph.sampling import LayerSampler
from pagraph.sampling.sampler import MiniBatchSampler
from pagraph.seeds.order import SeedOrder

FIXED = sorted(set(POLICIES) - {"adaptive", "ideal", "oracle"})
"""Policies whose ranking is the same in all epochs."""
BUDGETS = [0.02, 17, "10%", 0.3, 0.5, 1.0]


def skewed(num_nodes=300, num_edges=2500, **fields):
    """A directed graph whose sources are skewed, with a few vertices that nothing reaches."""
    rng = np.random.default_rng(0)
    src = (rng.random(num_edges) ** 3 * num_nodes).astype(np.int64)
    return Graph.from_coo(src, rng.integers(0, num_nodes, num_edges), num_nodes, ndata=fields)


def by_id(graph, seeds, sampler, seed):
    return torch.arange(graph.num_nodes)


def counted(graph, seeds, sampler, *, batch_size, epoch, seed):
    """Reads of every vertex by the hop that found it, batch by batch in plain Python."""
    order = SeedOrder(seeds, batch_size, shuffle=True, seed=seed)
    plan = order.plan(epoch)
    reads = np.zeros((graph.num_nodes, sampler.num_hops + 1), np.int64)
    for index in range(len(order)):
        ticket = order.ticket(plan, index)
        batch = sampler.sample(graph, ticket.seeds, ticket.key)
        known = 0
        for hop, end in enumerate(batch.hop_ends):
            for v in batch.input_nodes[known:end].tolist():
                reads[v, hop] += 1
            known = end
    return reads


@pytest.mark.every
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("policy", FIXED + [by_id])
def test_the_loader_has_these_hit_rates(tmp_path, policy, edge_dir):
    """Rows on disk are cached in memory, so that the CPU's loader has hits to count."""
    np.save(tmp_path / "feat.npy", np.zeros((300, 3), np.float32))
    graph = skewed(feat=map_npy(tmp_path / "feat.npy"))
    graph.set_field("w", (torch.arange(2500.0) % 7) ** 4, edge_type=graph.edge_types[0])
    seeds, sampler = torch.arange(0, 300, 3), NeighborSampler([4, 3], prob="w", edge_dir=edge_dir)
    budgets = [0.02, 0.3, "2KiB", 1.0]
    curve = hit_rate_curve(
        graph,
        seeds,
        sampler,
        fields=["feat"],
        batch_size=16,
        epochs=2,
        policies=[policy],
        budgets=budgets,
        seed=5,
    )
    for record, budget in zip(curve, budgets, strict=True):
        for cache in (budget, record.budget_bytes):
            loader = Loader(
                graph,
                seeds,
                sampler,
                fields=["feat"],
                batch_size=16,
                shuffle=True,
                cache=cache,
                cache_policy=policy,
                seed=5,
            )
            for _ in range(2):
                assert len(list(loader)) == curve.batches
            assert loader.cache_plan.rows == record.budget_rows
            epochs = loader.stats.epochs
            assert [e.hit_rate for e in epochs] == record.hit_rate_by_epoch
            total = loader.stats.total.reads.total
            assert total.hit_rate_by_hop == pytest.approx(record.hit_rate_by_hop)
            assert total.hit_rate == pytest.approx(record.hit_rate, abs=1e-12)
            assert total.asked == 2 * curve.reads
            assert total.misses * 12 == pytest.approx(2 * record.bytes_moved, abs=1)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_the_loader_has_the_hit_rates_of_adaptive(tmp_path, edge_dir):
    np.save(tmp_path / "feat.npy", np.zeros((300, 3), np.float32))
    graph = skewed(feat=map_npy(tmp_path / "feat.npy"))
    seeds, sampler = torch.arange(0, 300, 3), NeighborSampler([4, 3], edge_dir=edge_dir)
    settings = {"fields": ["feat"], "batch_size": 16, "seed": 5}
    curve = hit_rate_curve(
        graph, seeds, sampler, epochs=4, policies=["adaptive", "degree"], budgets=[0.1], **settings
    )
    loader = Loader(
        graph, seeds, sampler, shuffle=True, cache=0.1, cache_policy="adaptive", **settings
    )
    for _ in range(4):
        assert len(list(loader)) == curve.batches
    (adaptive,), (degree,) = curve.of("adaptive"), curve.of("degree")
    rates = [epoch.hit_rate for epoch in loader.stats.epochs]
    assert rates[0] == degree.hit_rate_by_epoch[0]
    assert rates[1:] == pytest.approx(adaptive.hit_rate_by_epoch[-3:], abs=1e-12)


edges = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40)
    )
)


@settings(max_examples=examples(25))
@given(
    graph=edges,
    seed=st.integers(0, 2**32),
    fanouts=st.lists(st.sampled_from([1, 2, -1]), min_size=1, max_size=3),
)
def test_equals_counting_by_hand(graph, seed, fanouts):
    num_nodes, pairs = graph
    src, dst = (list(side) for side in zip(*pairs, strict=True)) if pairs else ([], [])
    graph, sampler = Graph.from_coo(src, dst, num_nodes), NeighborSampler(fanouts)
    seeds = torch.tensor([0, *range(num_nodes)])  # one of them twice
    budgets = list(range(num_nodes + 1))
    curve = hit_rate_curve(
        graph,
        seeds,
        sampler,
        batch_size=3,
        epochs=2,
        policies=[by_id, "oracle"],
        budgets=budgets,
        seed=seed,
        threads=1,
    )
    epochs = [counted(graph, seeds, sampler, batch_size=3, epoch=e, seed=seed) for e in range(2)]
    total = sum(epochs)
    assert curve.rows_by_hop == (total.sum(0) / 2).tolist() and curve.reads == total.sum() / 2
    for rows, record, best in zip(budgets, curve.of("by_id"), curve.of("oracle"), strict=True):
        assert record.budget_rows == rows
        assert record.hit_rate == pytest.approx(total[:rows].sum() / total.sum())
        assert record.hit_rate_by_epoch == pytest.approx(
            [reads[:rows].sum() / reads.sum() for reads in epochs]
        )
        asked = total.sum(0)
        by_hop = [
            total[:rows, hop].sum() / asked[hop] if asked[hop] else 0 for hop in range(len(asked))
        ]
        assert record.hit_rate_by_hop == pytest.approx(by_hop)
        most = [np.sort(reads.sum(1))[::-1][:rows].sum() / reads.sum() for reads in epochs]
        assert best.hit_rate_by_epoch == pytest.approx(most)
        assert record.oracle_hit_rate == best.hit_rate
        assert record.share_of_oracle == pytest.approx(
            record.hit_rate / best.hit_rate if best.hit_rate else 1.0
        )


@pytest.fixture(scope="module")
def curve():
    graph = skewed(feat=torch.zeros(300, 5), label=torch.zeros(300, dtype=torch.int64))
    policies = [*FIXED, by_id, "ideal:4", "oracle"]
    return hit_rate_curve(
        graph,
        torch.arange(0, 300, 4),
        NeighborSampler([5, 3, 2]),
        fields=["feat"],
        labels=["label"],
        batch_size=20,
        epochs=3,
        policies=policies,
        budgets=sorted(DEFAULT_BUDGETS, reverse=True),
        seed=3,
    )


def test_the_grid_holds_every_per_cent(curve):
    for policy in curve.policies:
        whole = curve.whole(policy)
        assert [record.budget_rows for record in whole] == list(range(3, 301, 3))
        assert {r.budget_rows: r for r in curve.of(policy)}.items() <= {
            r.budget_rows: r for r in whole
        }.items()
        assert {r.budget_rows: r for r in curve.grid if r.policy == policy} == {
            r.budget_rows: r for r in whole
        }


def test_no_policy_beats_the_oracle_in_any_epoch(curve):
    oracle = curve.of("oracle")
    assert len(curve.policies) > 3
    for policy in curve.policies:
        for record, best in zip(curve.of(policy), oracle, strict=True):
            assert all(
                r <= b
                for r, b in zip(record.hit_rate_by_epoch, best.hit_rate_by_epoch, strict=True)
            )
            assert record.oracle_hit_rate == best.hit_rate and record.share_of_oracle <= 1


def test_only_what_is_chosen_beforehand_is_predicted(curve):
    for record in curve:
        assert (record.predicted_hit_rate is None) == (record.policy == "oracle")


def test_rates_grow_with_the_budget_up_to_all(curve):
    for policy in curve.policies:
        records = curve.of(policy)
        assert [r.budget_fraction for r in records] == sorted(DEFAULT_BUDGETS, reverse=True)
        for larger, smaller in zip(records, records[1:], strict=False):
            assert larger.hit_rate >= smaller.hit_rate and larger.bytes_moved <= smaller.bytes_moved
            assert all(
                a >= b for a, b in zip(larger.hit_rate_by_hop, smaller.hit_rate_by_hop, strict=True)
            )
        assert records[0].hit_rate == 1.0 and records[0].bytes_moved == 0
        assert records[0].hit_rate_by_field == {"feat": 1.0, "label": 1.0}


def test_hops_epochs_and_fields_add_up(curve):
    assert sum(curve.rows_by_hop) == pytest.approx(curve.reads)
    assert curve.row_bytes == {"feat": 20, "label": 8}
    assert curve.bytes_read == pytest.approx(20 * curve.reads + 8 * curve.rows_by_hop[0], abs=1)
    for record in curve:
        by_hop = sum(
            rate * reads
            for rate, reads in zip(record.hit_rate_by_hop, curve.rows_by_hop, strict=True)
        )
        assert by_hop == pytest.approx(record.hit_rate * curve.reads)
        assert record.hit_rate_by_field == pytest.approx(
            {"feat": record.hit_rate, "label": record.hit_rate_by_hop[0]}
        )
        moved = (
            curve.reads * (1 - record.hit_rate) * 20
            + curve.rows_by_hop[0] * (1 - record.hit_rate_by_hop[0]) * 8
        )
        assert record.bytes_moved == pytest.approx(moved, abs=1)
        assert record.budget_bytes == record.budget_rows * 28 + 4 * 300


def test_does_not_depend_on_the_threads_or_the_global_generators():
    graph, seeds, sampler = skewed(), torch.arange(100), NeighborSampler([3, 3])
    torch.manual_seed(0)
    first = hit_rate_curve(graph, seeds, sampler, batch_size=7, seed=1, threads=1)
    torch.manual_seed(1)
    assert (
        hit_rate_curve(graph, seeds, sampler, batch_size=7, seed=1, threads=3).records
        == first.records
    )
    assert (
        hit_rate_curve(graph, seeds, sampler, batch_size=7, seed=2, threads=3).records
        != first.records
    )


def test_a_function_that_leaves_vertices_out_caches_fewer():
    def two(graph, seeds, sampler, seed):
        return torch.tensor([1, 0])

    graph, seeds, sampler = skewed(), torch.arange(100), NeighborSampler([3])
    few, many = hit_rate_curve(graph, seeds, sampler, policies=[two], budgets=[2, 300]).records
    assert many.hit_rate == few.hit_rate < 1 and many.budget_rows == 300
    assert (
        hit_rate_curve(graph, seeds, sampler, policies=[by_id], budgets=[2]).records[0].hit_rate
        == few.hit_rate
    )


def test_policies_that_do_not_suit_the_sampler():
    graph, seeds, sampler = skewed(), torch.arange(100), LayerSampler([20, 30])
    curve = hit_rate_curve(graph, seeds, sampler, batch_size=20)
    assert {"degree", "presample", "oracle"} <= set(curve.policies) and "vip" not in curve.policies
    assert curve.records[0].predicted_hit_rate is not None
    with pytest.raises(ValueError, match="cache_policy 'vip' needs a sampler with fan-outs"):
        hit_rate_curve(graph, seeds, sampler, policies=["vip"])


def test_adaptive_is_degree_first_and_then_what_was_read():
    graph, seeds, sampler = skewed(1000, 9000), torch.arange(0, 1000, 5), NeighborSampler([4, 3])
    curve = hit_rate_curve(
        graph,
        seeds,
        sampler,
        fields=None,
        batch_size=10,
        epochs=3,
        policies=["adaptive", "degree", "ideal", "oracle"],
        budgets=[0.1, 0.2],
    )
    for record, degree, ideal, oracle in zip(*map(curve.of, curve.policies), strict=True):
        assert record.hit_rate_by_epoch[0] == degree.hit_rate_by_epoch[0]
        assert record.hit_rate_by_epoch[1] > degree.hit_rate_by_epoch[1]
        assert record.hit_rate == pytest.approx(np.mean(record.hit_rate_by_epoch[1:]), abs=0.001)
        assert 0.9 * ideal.hit_rate < record.hit_rate < oracle.hit_rate
        assert record.oracle_hit_rate == pytest.approx(
            np.mean(oracle.hit_rate_by_epoch[1:]), abs=0.001
        )
        assert record.predicted_hit_rate == pytest.approx(record.hit_rate, abs=0.02)


@pytest.mark.statistics
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_predicts_what_it_has_not_measured(edge_dir):
    """Within 2 points, of weighted draws too: edge fields are those of the graph as it is
    sampled."""
    rng = np.random.default_rng(3)
    graph = skewed(1000, 9000)
    graph.set_field("w", torch.from_numpy(rng.random(9000) ** 4), edge_type=graph.edge_types[0])
    sampler = NeighborSampler([4, 3], prob="w", edge_dir=edge_dir)
    curve = hit_rate_curve(
        graph,
        torch.arange(400),
        sampler,
        batch_size=20,
        epochs=5,
        policies=["degree", "vip", by_id],
    )
    for record in curve:
        assert record.predicted_hit_rate == pytest.approx(record.hit_rate, abs=0.02)


def test_drop_last_leaves_the_last_batch_out():
    graph, seeds, sampler = skewed(), torch.arange(50), NeighborSampler([3])
    whole, cut = (
        hit_rate_curve(graph, seeds, sampler, batch_size=20, drop_last=drop, policies=["degree"])
        for drop in (0, 1)
    )
    assert (whole.batches, cut.batches) == (3, 2)
    assert (whole.rows_by_hop[0], cut.rows_by_hop[0]) == (50, 40)


def test_progress_tells_every_batch():
    told = []
    graph, sampler = skewed(), NeighborSampler([3])
    hit_rate_curve(
        graph,
        torch.arange(50),
        sampler,
        batch_size=20,
        epochs=2,
        policies=["degree", "ideal:2"],
        progress=lambda done, total: told.append((done, total)),
    )
    assert sorted(told) == [(i, 12) for i in range(1, 13)]


def test_a_graph_without_edges_or_reads():
    graph = Graph.from_coo([], [], num_nodes=4)
    (record,) = hit_rate_curve(
        graph, torch.tensor([1, 2]), NeighborSampler([2]), policies=["oracle"], budgets=[1]
    )
    assert record.hit_rate == 0.5 and record.hit_rate_by_hop == [0.5, 0.0]


def test_is_a_table_for_pandas(curve):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(curve.to_dict())
    assert len(table) == len(curve) == len(curve.policies) * len(DEFAULT_BUDGETS)
    for name in (
        "policy",
        "budget_fraction",
        "budget_rows",
        "budget_bytes",
        "hit_rate",
        "predicted_hit_rate",
    ):
        assert name in table
    assert table["hit_rate_field_feat"].tolist() == [r.hit_rate for r in curve]
    assert table["hit_rate_hop_3"].tolist() == [r.hit_rate_by_hop[3] for r in curve]
    assert table["hit_rate_epoch_2"].tolist() == [r.hit_rate_by_epoch[2] for r in curve]


def test_is_json(curve):
    read = json.loads(json.dumps(curve.to_json()))
    keys = {
        "policy",
        "budget_fraction",
        "budget_rows",
        "hit_rate",
        "predicted_hit_rate",
        "oracle_hit_rate",
    }
    assert len(read["curve"]) == len(curve) and all(keys <= set(record) for record in read["curve"])
    assert read["settings"]["batch_size"] == 20 and read["num_nodes"] == 300
    assert set(read["seconds"]) == {"ranking", "counting", "summing", "kernels"} and all(
        s >= 0 for s in read["seconds"].values()
    )


def test_says_what_it_is_in_one_line(curve):
    assert "\n" not in repr(curve) and "20 budgets of 300 vertices, 4 batches" in repr(curve)
    with pytest.raises(ValueError, match=r"policy must be one of \[.*'by_id'.*\], got 'best'"):
        curve.of("best")


def hetero():
    """Papers cite papers, authors write papers."""
    rng = np.random.default_rng(1)

    def csc(num_src, num_dst, count):
        dst = np.sort(rng.integers(0, num_dst, count))
        indptr = np.searchsorted(dst, np.arange(num_dst + 1))
        src = (rng.random(count) ** 2 * num_src).astype(np.int64)
        return CSC(torch.from_numpy(indptr), torch.from_numpy(src), num_src)

    counts = {"author": 40, "paper": 100}
    ndata = {
        "paper": {"feat": torch.zeros(100, 6)},
        "author": {"feat": torch.zeros(40, 5), "age": torch.zeros(40)},
    }
    relations = {
        ("author", "writes", "paper"): csc(40, 100, 300),
        ("paper", "cites", "paper"): csc(100, 100, 500),
    }
    return Graph(relations, counts, ndata=ndata)


def test_several_vertex_types():
    graph, seeds = hetero(), {"paper": torch.arange(0, 100, 3)}
    fields = {"paper": ["feat"], "author": ["feat", "age"]}
    curve = hit_rate_curve(
        graph,
        seeds,
        NeighborSampler([3, 2]),
        fields=fields,
        batch_size=8,
        epochs=2,
        policies=["degree", "oracle"],
        budgets=[0.1, 35, "1KiB", 1.0],
    )
    assert curve.row_bytes == {"author/feat": 20, "author/age": 4, "paper/feat": 24}
    for record, best in zip(curve.of("degree"), curve.of("oracle"), strict=True):
        assert 0 < record.hit_rate <= 1 and set(record.hit_rate_by_field) == set(curve.row_bytes)
        assert record.hit_rate <= best.hit_rate and record.bytes_moved >= best.bytes_moved
    assert [r.budget_rows for r in curve.of("degree")] == [14, 35, 19, 140]
    last = curve.of("degree")[-1]
    assert (last.hit_rate, last.bytes_moved, last.budget_bytes) == (1.0, 0, 140 * (24 + 4))


def test_types_without_fields_are_not_cached():
    graph, seeds = hetero(), {"paper": torch.arange(0, 100, 3)}
    (record,) = hit_rate_curve(
        graph,
        seeds,
        NeighborSampler([3]),
        fields={"author": ["age"]},
        policies=["degree"],
        budgets=[40],
    )
    assert (record.budget_fraction, record.hit_rate) == (1.0, 1.0)


def oracle(graph, seeds, sampler, seed):
    return torch.arange(graph.num_nodes)


def call(**changes):
    settings = {
        "seeds": torch.arange(10),
        "sampler": NeighborSampler([2]),
        "policies": ["degree"],
    } | changes
    graph = skewed(feat=torch.zeros(300, 2))
    return hit_rate_curve(graph, settings.pop("seeds"), settings.pop("sampler"), **settings)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"policies": ["best"]},
            ValueError,
            r"policies must be among \['.*degree'.*'ideal'.*\] or functions, got 'be",
        ),
        ({"policies": []}, ValueError, "policies must hold at least 1 policy, got none"),
        (
            {"policies": ["degree", "degree"]},
            ValueError,
            "policies must have different names, got 'degree' twice",
        ),
        (
            {"policies": "degree"},
            TypeError,
            "policies must be a list of names or functions, got 'degree'",
        ),
        ({"policies": [3]}, TypeError, "policies must be names or functions, got int"),
        ({"policies": ["ideal:0"]}, ValueError, "N at least 1, got 'ideal:0'"),
        ({"policies": ["ideal:few"]}, ValueError, "N at least 1, got 'ideal:few'"),
        (
            {"policies": [oracle]},
            ValueError,
            "must not have the name of a built-in one, got 'oracle'",
        ),
        ({"budgets": "10%"}, TypeError, "budgets must be a list, got '10%'"),
        ({"budgets": []}, ValueError, "budgets must hold at least 1 budget, got none"),
        (
            {"budgets": ["150%"]},
            ValueError,
            "budgets must be rows .* shares .* or bytes .*, got '150%'",
        ),
        ({"budgets": [1.5]}, ValueError, "budgets must be .*, got 1.5"),
        ({"budgets": [-0.1]}, ValueError, "budgets must be .*, got -0.1"),
        ({"budgets": [float("nan")]}, ValueError, "budgets must be .*, got nan"),
        ({"budgets": ["nan"]}, ValueError, "budgets must be .*, got 'nan'"),
        ({"budgets": ["auto"]}, ValueError, "budgets must be .*, got 'auto'"),
        (
            {"budgets": [-1]},
            ValueError,
            r"budgets must be from 0 to 300 rows \(all vertices\), got -1",
        ),
        ({"budgets": [301]}, ValueError, "from 0 to 300 rows .*, got 301"),
        (
            {"budgets": ["2GiB"]},
            ValueError,
            "budgets must be rows or shares if no field is named, got '2GiB'",
        ),
        ({"budgets": [True]}, TypeError, "budgets must be .*, got True"),
        ({"budgets": [None]}, TypeError, "budgets must be .*, got None"),
        ({"fields": ["fest"]}, ValueError, r"fields must be among \['feat'\], got 'fest'"),
        ({"fields": "feat"}, TypeError, "fields must be a list of names, got 'feat'"),
        (
            {"fields": {"paper": ["feat"]}},
            ValueError,
            r"fields must name vertex types among \['_N'\], got 'paper'",
        ),
        ({"labels": ["label"]}, ValueError, r"labels must be among \['feat'\], got \'label\'"),
        (
            {"seeds": torch.empty(0, dtype=torch.int64)},
            ValueError,
            "seeds must hold at least 1 vertex, got 0",
        ),
        ({"seeds": [1]}, TypeError, "seeds must be an int32 or int64 tensor, got list"),
        ({"seeds": torch.tensor([0.5])}, TypeError, "got torch.float32"),
        (
            {"seeds": torch.zeros(2, 2, dtype=torch.int64)},
            ValueError,
            r"seeds must be 1-D, got shape \(2, 2\)",
        ),
        ({"seeds": torch.tensor([300])}, IndexError, r"seeds must be in \[0, 300\)"),
        (
            {"seeds": {"paper": torch.tensor([0])}},
            ValueError,
            r"vertex types among \['_N'\], got 'paper'",
        ),
        (
            {"policies": ["adaptive"]},
            ValueError,
            "epochs must be at least 2 to measure what 'adaptive' learns .*, got 1",
        ),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, TypeError, "epochs must be an integer, got 1.5"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1, got 0"),
        (
            {"batch_size": 20, "drop_last": True},
            ValueError,
            "seeds must fill at least 1 batch of 20, got 10",
        ),
    ],
)
def test_bad_input(changes, error, text):
    with pytest.raises(error, match=text):
        call(**changes)


def test_an_error_of_the_sampler_reaches_the_caller():
    class Failing(MiniBatchSampler):
        num_hops = 1

        def sample(self, graph, seeds, key=0):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        call(sampler=Failing())
