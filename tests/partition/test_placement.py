"""All vertices are placed: kernels against slow, plain references, and what placements promise."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_partition import in_edges, partitions, plain_hops
from tiers import examples

from pagraph import Graph
from pagraph.datasets import citation, rmat, sbm
from pagraph.partition import (
    _placement,
    describe_placement,
    draw_train,
    partition_graph,
    place_vertices,
)
from pagraph.partition.extract import vertex_owners
from pagraph.partition.objectives import (
    CutEdges,
    FetchedRows,
    evaluated_vertices,
    seed_weights,
)
from pagraph.partition.placement import SLACK

pytestmark = pytest.mark.kernels


def plain_share(degree, fanout):
    return 1.0 if fanout < 0 or fanout >= degree else fanout / degree


def plain_draws(graph, draws, fanout):
    """How often each part draws each vertex, in one hop after ``draws``."""
    found = [[0.0] * len(draws[0]) for _ in draws]
    for u, row in enumerate(in_edges(graph)):
        for v, _ in row:
            for part, number in enumerate(draws[u]):
                found[v][part] += number * plain_share(len(row), fanout)
    return found


def plain_costs(graph, costs, fanout):
    """What the in-neighbours that each vertex draws cost."""
    found = [[0.0] * len(costs[0]) for _ in costs]
    for u, row in enumerate(in_edges(graph)):
        for v, _ in row:
            for part, cost in enumerate(costs[v]):
                found[u][part] += cost * plain_share(len(row), fanout)
    return found


def numbers(shape, seed):
    return np.random.default_rng(seed).random(shape, np.float32)


class TestKernels:
    @settings(max_examples=examples(60))
    @given(partitions(), st.sampled_from([-1, 0, 1, 2, 50]), st.integers(0, 99))
    def test_draws_spread_over_in_neighbours(self, partition, fanout, seed):
        graph = partition.graph
        draws = numbers((graph.num_nodes, partition.num_parts), seed)
        draws[draws < 0.5] = 0  # rows without any draw are skipped
        out = np.zeros_like(draws)
        _placement.push_draws(*graph.csc.arrays, draws, fanout, out)
        want = np.array(plain_draws(graph, draws.tolist(), fanout), np.float32)
        np.testing.assert_allclose(out, want.reshape(out.shape), rtol=1e-5, atol=1e-6)

    @settings(max_examples=examples(60))
    @given(partitions(), st.sampled_from([-1, 0, 1, 2, 50]), st.integers(0, 99))
    def test_costs_come_from_in_neighbours(self, partition, fanout, seed):
        graph = partition.graph
        costs = numbers((graph.num_nodes, partition.num_parts), seed)
        out = np.zeros_like(costs)
        _placement.pull_costs(*graph.csc.arrays, costs, fanout, out)
        want = np.array(plain_costs(graph, costs.tolist(), fanout), np.float32)
        np.testing.assert_allclose(out, want.reshape(out.shape), rtol=1e-5, atol=1e-6)

    @settings(max_examples=examples(60))
    @given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 999))
    def test_the_cheapest_part_with_its_prices(self, count, parts, seed):
        rng = np.random.default_rng(seed)
        costs = rng.integers(0, 4, (count, parts)).astype(np.float32)
        prices = rng.integers(0, 3, (parts, 2)).astype(np.float64)
        weights = rng.integers(0, 3, (count, 2))
        inertia = rng.choice([0, 1, np.inf], count).astype(np.float64)
        owner = rng.integers(0, parts, count).astype(np.int32)
        out = np.empty_like(owner)
        _placement.choose_parts(costs, prices, weights, inertia, owner, out)
        for v in range(count):
            total = [costs[v, p] + float(prices[p] @ weights[v]) for p in range(parts)]
            want = owner[v]
            if min(total) < total[want] - inertia[v]:
                want = total.index(min(total))
            assert out[v] == want

    @settings(max_examples=examples(60))
    @given(st.integers(1, 14), st.integers(2, 4), st.integers(0, 999))
    def test_what_is_shed(self, count, parts, seed):
        rng = np.random.default_rng(seed)
        costs = rng.integers(0, 5, (count, parts)).astype(np.float32)
        prices = rng.integers(0, 2, (parts, 2)).astype(np.float64)
        weights = rng.integers(0, 3, (count, 2))
        owner = rng.integers(0, parts, count).astype(np.int32)
        limits = weights.sum(0) // parts + 1
        checked = np.array([1, 0][: rng.integers(1, 3)])
        order = rng.permutation(np.flatnonzero(owner == 0))
        enough = int(limits[1]) - 1
        want = plain_shed(order, costs, prices, weights, checked, limits, enough, owner)
        loads = loads_of(weights, owner, parts)
        _placement.shed(order, costs, prices, weights, checked, loads, limits, 1, enough, owner)
        assert owner.tolist() == want
        assert np.array_equal(loads, loads_of(weights, owner, parts))

    @settings(max_examples=examples(60))
    @given(partitions(), st.integers(0, 99))
    def test_edges_between_parts(self, partition, seed):
        graph = partition.graph
        rng = np.random.default_rng(seed)
        owner = rng.integers(0, 3, graph.num_nodes).astype(np.int32)
        for part in range(3):
            marked = np.zeros(graph.num_nodes, np.bool_)
            count = _placement.mark_others(*graph.csc.arrays, owner, part, marked)
            sources = [
                u
                for v, row in enumerate(in_edges(graph))
                for u, _ in row
                if owner[v] == part != owner[u]
            ]
            assert count == len(sources)
            assert marked.nonzero()[0].tolist() == sorted(set(sources))


def loads_of(weights, owner, parts):
    loads = np.zeros((parts, weights.shape[1]), np.int64)
    np.add.at(loads, owner, weights)
    return loads


def plain_shed(order, costs, prices, weights, checked, limits, enough, owner):
    """Owners after part 0 shed weight of kind 1 until it has ``enough``."""
    owner = owner.tolist()
    for v in order.tolist():
        loads = loads_of(weights, np.array(owner), costs.shape[1])
        if loads[0, 1] <= enough:
            break
        rooms = {}
        for part in range(1, costs.shape[1]):
            after = loads[part] + weights[v]
            if all(weights[v, k] == 0 or after[k] <= limits[k] for k in checked):
                rooms[part] = costs[v, part] + float(prices[part] @ weights[v])
        if rooms:
            owner[v] = min(rooms, key=lambda part: (rooms[part], part))
    return owner


class TestExpected:
    @settings(max_examples=examples(40))
    @given(partitions(), st.integers(1, 3))
    def test_reads_are_those_of_a_plain_calculation(self, partition, batch_size):
        fanout = [2, -1]
        owner = vertex_owners(partition).numpy()
        seeds = seed_weights(partition)
        draws = [[0.0] * partition.num_parts for _ in owner]
        for v, weight in enumerate(seeds.tolist()):
            draws[v][owner[v]] = weight
        total = [list(row) for row in draws]
        for number in reversed(fanout):
            draws = plain_draws(partition.graph, draws, number)
            for mine, more in zip(total, draws, strict=True):
                mine[:] = [a + b for a, b in zip(mine, more, strict=True)]
        reads, marginal = FetchedRows(partition, fanout, batch_size).reads(owner)
        batches = max(1.0, float(seeds.sum()) / partition.num_parts / batch_size)
        for part in range(partition.num_parts):
            for v, row in enumerate(total):
                rest = math.exp(-row[part] / batches)
                assert reads[v, part] == pytest.approx(batches * (1 - rest), abs=1e-4)
                assert marginal[v, part] == pytest.approx(rest, abs=1e-4)

    @settings(max_examples=examples(60))
    @given(partitions(), st.integers(0, 99))
    def test_cut_edges_are_those_of_a_plain_count(self, partition, seed):
        count = partition.graph.num_nodes
        rng = np.random.default_rng(seed)
        owner = rng.integers(0, partition.num_parts, count).astype(np.int32)
        pairs = [(u, v) for v, row in enumerate(in_edges(partition.graph)) for u, _ in row]
        objective = CutEdges(partition)
        assert objective.measure(owner) == sum(owner[u] != owner[v] for u, v in pairs)
        want = np.zeros((count, partition.num_parts))
        for u, v in pairs:
            if u != v:  # no move cuts a self-loop
                want[u, owner[v]] -= 1
                want[v, owner[u]] -= 1
        assert np.array_equal(objective.costs(), want)

    def test_cut_edges_of_several_types(self):
        partition = divided("papers", 3)
        numbering = partition.numbering
        owner = np.random.default_rng(0).integers(0, 3, partition.graph.num_nodes).astype(np.int32)
        cut = 0
        for edge_type in partition.graph.edge_types:
            csc = partition.graph.csc_of(edge_type)
            sources = owner[numbering.rows(edge_type[0])][csc.indices.numpy()]
            targets = owner[numbering.rows(edge_type[2])][csc.destinations().numpy()]
            cut += int((sources != targets).sum())
        assert CutEdges(partition).measure(owner) == cut

    def test_evaluated_vertices_count_half_as_much(self):
        graph = sbm(400, seed=0)
        partition = partition_graph(graph, 2, hops=1, method="hash")
        weights = torch.from_numpy(seed_weights(partition))
        fields = graph.ndata
        assert float(weights[partition.train].sum()) == len(partition.train)
        others = fields["val_mask"] | fields["test_mask"]
        assert float(weights[others].sum()) == pytest.approx(len(partition.train) / 2, rel=1e-3)

    def test_without_masks_all_others_are_evaluated(self):
        graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 0])
        assert evaluated_vertices(graph, "_N", torch.tensor([1])).tolist() == [0, 2, 3]


GRAPHS = {
    "blocks": (lambda: sbm(3000, num_features=1, seed=0), None),
    "rmat": (lambda: rmat(12, edge_factor=8, undirected=True, simple=True, seed=0), 0.1),
    "papers": (lambda: citation(1500, num_features=2, num_author_features=2), None),
}


def divided(name, num_parts, method="auto"):
    make, fraction = GRAPHS[name]
    graph = make()
    train = None if fraction is None else draw_train(graph, fraction)
    return partition_graph(graph, num_parts, hops=2, train=train, method=method)


class TestPlacements:
    @pytest.mark.every
    @pytest.mark.parametrize("name", GRAPHS)
    @pytest.mark.parametrize("num_parts", [2, 5])
    def test_fewer_rows_are_fetched_and_all_is_even(self, name, num_parts):
        before = divided(name, num_parts)
        after = place_vertices(before)
        reports = [describe_placement(partition) for partition in (before, after)]
        # Where one batch reads nearly everything, one of the two may rise by a hair.
        shares = [report.train.share + report.evaluated.share for report in reports]
        assert shares[1] < shares[0]
        for kind in ("vertices", "edges", "train"):
            assert reports[1].balance(kind) <= 1 + SLACK + 1e-3
        assert after.owner.dtype == torch.int32
        numbers = after.train + after.numbering.begin(after.train_type)
        assert torch.equal(after.owner[numbers], after.parts)
        assert vertex_owners(after) is after.owner

    @pytest.mark.every
    @pytest.mark.parametrize("name", GRAPHS)
    @pytest.mark.parametrize("method", ["auto", "hash"])
    def test_fewer_edges_are_cut_and_all_is_even(self, name, method):
        before = divided(name, 3, method)
        rows, cut = (place_vertices(before, minimize=goal) for goal in ("rows", "cut"))
        reports = [describe_placement(partition) for partition in (before, rows, cut)]
        assert reports[2].cut < min(reports[0].cut, reports[1].cut)
        for kind in ("vertices", "edges", "train"):
            assert reports[2].balance(kind) <= 1 + SLACK + 1e-3

    @pytest.mark.many
    @pytest.mark.parametrize("minimize", ["rows", "cut"])
    def test_the_same_seed_places_alike(self, minimize):
        before = divided("rmat", 3)
        owners = [place_vertices(before, minimize=minimize, seed=seed).owner for seed in (1, 1, 2)]
        assert torch.equal(owners[0], owners[1]) and not torch.equal(owners[0], owners[2])

    @settings(max_examples=examples(60))
    @given(partitions(), st.sampled_from(["rows", "cut"]))
    def test_any_small_graph(self, partition, minimize):
        placed = place_vertices(partition, fanout=[2, -1], batch_size=2, minimize=minimize)
        assert placed.owner.shape == (partition.graph.num_nodes,)
        counts = placed.parts.bincount(minlength=partition.num_parts)
        # A partition drawn at random may leave a part empty; a placement does so only if it must.
        assert int((counts > 0).sum()) == min(partition.num_parts, len(partition.train))
        assert int(placed.owner.min()) >= 0 and int(placed.owner.max()) < partition.num_parts

    def test_evaluated_vertices_follow_their_owner(self):
        before = partition_graph(sbm(600, seed=0), 2, hops=1, method="hash", evaluation="parts")
        after = place_vertices(before)
        assert torch.equal(after.evaluation, after.owner[after.evaluated])

    def test_an_unknown_objective_is_refused(self):
        with pytest.raises(ValueError, match="minimize must be one of rows, cut, got 'vol'"):
            place_vertices(divided("blocks", 2, "hash"), minimize="vol")

    def test_a_fanout_without_entries_is_refused(self):
        with pytest.raises(ValueError, match="fanout must have at least 1 entry, got 0"):
            place_vertices(divided("blocks", 2, "hash"), fanout=[])


class TestReport:
    @settings(max_examples=examples(30))
    @given(partitions(), st.integers(1, 3))
    def test_rows_are_counted_batch_by_batch(self, partition, hops):
        """With all neighbours a batch of all seeds reads what they reach, at random or not."""
        rng = random.Random(len(partition.train))
        count = partition.graph.num_nodes
        owner = torch.tensor(
            [rng.randrange(partition.num_parts) for _ in range(count)], dtype=torch.int32
        )
        placed = place_vertices(partition)
        object.__setattr__(placed, "owner", owner)
        object.__setattr__(placed, "parts", owner[placed.train])
        report = describe_placement(placed, fanout=[-1] * hops, batch_size=1000)
        others = evaluated_vertices(placed.graph, placed.train_type, placed.train)
        for fetches, ids in ((report.train, placed.train), (report.evaluated, others)):
            rows = remote = 0
            for part in range(placed.num_parts):
                seeds = ids[owner[ids] == part].tolist()
                found = list(plain_hops(placed.graph, seeds, hops))
                rows += len(found)
                remote += sum(int(owner[v]) != part for v in found)
            assert (fetches.rows, fetches.remote) == (rows, remote)
        pairs = [(u, v) for v, row in enumerate(in_edges(placed.graph)) for u, _ in row]
        assert report.cut_edges == sum(int(owner[u] != owner[v]) for u, v in pairs)
        for number, part in enumerate(report.parts):
            own = [(u, v) for u, v in pairs if owner[v] == number]
            assert part.edges == len(own)
            assert part.halo == len({u for u, _ in own if owner[u] != number})
            assert part.vertices == int((owner == number).sum())

    def test_as_json(self):
        report = describe_placement(place_vertices(divided("papers", 2)))
        found = report.to_json()
        assert found["train_share_from_others"] == report.train.share
        assert found["cut"] == report.cut_edges / report.num_edges
        assert sum(found["vertices_per_part"]) == report.num_nodes
        assert repr(report).startswith("PlacementReport(auto, 2 parts, cut ")
