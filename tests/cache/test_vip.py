"""Expected accesses against a plain reference, and against many sampled epochs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import directed, undirected, weighted
from tiers import examples

from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.ranking import expected_accesses, resolve_policy
from pagraph.ranking.presample import count_accesses
from pagraph.sampling import LaborSampler, LayerSampler, NeighborSampler, SubgraphSampler


def simulated(graph, seeds, sampler, batch_size, epochs=100):
    counts = count_accesses(
        graph, seeds, sampler, batch_size=batch_size, seed=5, epochs=range(epochs), threads=1
    )
    return {
        ntype: counts.by_hop(ntype).double() / epochs for ntype in counts.node_types
    }, counts.batches // epochs


def compare(graph, seeds, sampler, batch_size, epochs=100):
    """Error of the sum, and the sum of absolute errors, each over the sum of all reads."""
    expected = expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    real, batches = simulated(graph, seeds, sampler, batch_size, epochs)
    assert expected.batches == batches and expected.num_hops == sampler.num_hops
    total = float(sum(reads.sum() for reads in real.values()))
    differences = [expected.reads(ntype) - reads.sum(1) for ntype, reads in real.items()]
    return abs(expected.total / total - 1), float(
        sum(part.abs().sum() for part in differences)
    ) / total


@pytest.mark.every
@pytest.mark.parametrize("fanouts", [[3, 3], [2, 2, 2], [-1, -1], [5, -1], [1]])
@pytest.mark.parametrize("replace", [False, True])
def test_close_to_many_epochs_of_a_directed_graph(fanouts, replace):
    total, each = compare(
        directed(), torch.arange(0, 300, 4), NeighborSampler(fanouts, replace=replace), 10
    )
    assert total < 0.012 and each < 0.035


@pytest.mark.every
@pytest.mark.parametrize("fanouts", [[3, 3], [2, 2, 2], [-1, -1, -1]])
@pytest.mark.parametrize("replace", [False, True])
def test_close_to_many_epochs_of_an_undirected_graph(fanouts, replace):
    """Where a vertex is often known because of the very one that it leads to: without that, 13 to
    20 % too much."""
    total, each = compare(
        undirected(), torch.arange(0, 300, 4), NeighborSampler(fanouts, replace=replace), 10
    )
    assert total < 0.012 and each < 0.045


@pytest.mark.every
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("field", ["w", "mask"])
@pytest.mark.parametrize("make", [directed, undirected])
def test_close_to_many_epochs_with_weights(make, field, replace):
    graph = weighted(make)
    total, each = compare(
        graph, torch.arange(0, 300, 4), NeighborSampler([3, 2], prob=field, replace=replace), 10
    )
    # The weight of an edge back is not looked up (leaving it aside altogether: 15 % too much).
    coarse = make is undirected and field == "w"
    assert total < (0.07 if coarse else 0.02) and each < (0.1 if coarse else 0.05)


def test_weighted_chances_of_one_vertex():
    """Exact for all, for one and with replacement; close in between."""
    w = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 1e-3])
    graph = Graph.from_coo(range(1, 7), [0] * 6, num_nodes=7, edata={"w": w})
    share = w.double() / w.double().sum()

    def chances(fanout, replace=False):
        sampler = NeighborSampler([fanout], prob="w", replace=replace)
        return expected_accesses(graph, torch.tensor([0]), sampler, batch_size=1).reads("_N")[1:]

    assert chances(-1).tolist() == chances(6).tolist() == [1.0] * 6
    assert torch.allclose(chances(3, replace=True), 1 - (1 - share) ** 3)
    assert float((chances(1) - share).abs().max()) < 0.12
    for fanout in (1, 2, 3, 5):
        assert abs(float(chances(fanout).sum()) - fanout) < 1e-5 * fanout
    real, _ = simulated(graph, torch.tensor([0]), NeighborSampler([2], prob="w"), 1, 3000)
    assert float((chances(2) - real["_N"].sum(1)[1:]).abs().max()) < 0.1


@pytest.mark.parametrize(
    "values", [[1e290, 1e-290, 1e-290], [1e-290] * 3, [1e30, 1.0, 1e-30]], ids=str
)
def test_weights_of_any_size(values):
    graph = Graph.from_coo(
        [1, 2, 3], [0, 0, 0], edata={"w": torch.tensor(values, dtype=torch.float64)}
    )
    for fanout in (1, 2):
        reads = expected_accesses(
            graph, torch.tensor([0]), NeighborSampler([fanout], prob="w"), batch_size=1
        )
        assert abs(float(reads.reads("_N")[1:].sum()) - fanout) < 0.01 and bool(
            (reads.reads("_N") <= 1).all()
        )


# -- against a plain reference
# ----------------------------------------------------------------------------


def keep_chances(csc, v, fanouts, replace):
    degree = int(csc.indptr[v + 1] - csc.indptr[v])
    chances = []
    for fanout in fanouts:
        if fanout == -1 or (fanout >= degree and not replace):
            chances.append(0.0)
        else:
            chances.append((1 - 1 / degree) ** fanout if replace else 1 - fanout / degree)
    return chances


def drawn_by(known, keep, once):
    """The chance that an edge has been drawn, by when its destination became known."""
    total, before = 0.0, 0.0
    for t, now in enumerate(known):
        total += (now - before) * (1 - math.prod(keep[t : t + 1] if once else keep[t:]))
        before = now
    return total


def known_without(unknown, drawn):
    """Chances to be known after each hop without an edge that has been drawn with these chances."""
    known = [1 - unknown[0]]
    for t in range(1, len(unknown)):
        now = 1 - min(1.0, unknown[t] / (1 - drawn[t - 1])) if drawn[t - 1] < 1 else known[-1]
        known.append(max(known[-1], now))
    return known


def pair(unknown, keep, others, other_keep, once):
    """The chances that both ends of an edge and its reverse are known without each other."""
    drawn, others_drawn = [], []
    for hops in range(1, len(unknown) + 1):
        known = known_without(unknown[:hops], others_drawn)
        others_known = known_without(others[:hops], drawn)
        drawn.append(drawn_by(known, keep[:hops], once))
        others_drawn.append(drawn_by(others_known, other_keep[:hops], once))
    return drawn[-1]


def plain(graph, first, fanouts, replace, once=False):
    """The chances to be unknown after each hop, in plain Python."""
    etypes, fanouts = graph.edge_types, fanouts[::-1]
    unknown = {t: [[1 - p] for p in rates] for t, rates in first.items()}
    edges = {
        c: list(
            zip(
                graph.csc_of(c).indices.tolist(),
                graph.csc_of(c).destinations().tolist(),
                strict=True,
            )
        )
        for c in etypes
    }
    back = {}
    for c in etypes:
        candidates = [o for o in etypes if (o[0], o[2]) == (c[2], c[0])]
        counts = [sum((v, u) in set(edges[o]) for u, v in edges[c]) for o in candidates]
        back[c] = candidates[counts.index(max(counts))] if any(counts) else None
    for hop in range(1, len(fanouts) + 1):
        left = {t: [row[0] for row in rows] for t, rows in unknown.items()}
        for c in etypes:
            src, _, dst = c
            reverse = set() if back[c] is None else set(edges[back[c]])
            for v, u in edges[c]:
                if src == dst and u == v:
                    continue
                keep = keep_chances(graph.csc_of(c), u, fanouts[:hop], replace)
                rows = unknown[dst][u]
                if (u, v) in reverse:
                    others = keep_chances(graph.csc_of(back[c]), v, fanouts[:hop], replace)
                    chance = pair(rows, keep, unknown[src][v], others, once)
                else:
                    chance = drawn_by([1 - row for row in rows], keep, once)
                left[src][v] *= 1 - chance
        for t, rows in unknown.items():
            for v, row in enumerate(rows):
                row.append(min(row[-1], left[t][v]))
    return unknown


ends = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=25)
all_fanouts = st.lists(st.sampled_from([1, 2, 3, -1]), min_size=1, max_size=3)


@settings(max_examples=examples(120))
@given(
    n=st.integers(1, 12),
    edges=ends,
    back=st.sampled_from(["none", "all", "half"]),
    seeds=st.sets(st.integers(0, 11), min_size=1),
    batches=st.integers(1, 4),
    fanouts=all_fanouts,
    replace=st.booleans(),
    make=st.sampled_from([NeighborSampler, SubgraphSampler]),
)
def test_equals_the_plain_reference(n, edges, back, seeds, batches, fanouts, replace, make):
    """Isolated vertices, self-loops and parallel edges included; with all edges back, some or only
    those by chance."""
    pairs = [(u % n, v % n) for u, v in edges]
    pairs += [
        (v, u) for u, v in pairs[: {"none": 0, "all": len(pairs), "half": len(pairs) // 2}[back]]
    ]
    graph = Graph.from_coo([u for u, _ in pairs], [v for _, v in pairs], num_nodes=n)
    seeds = torch.tensor(sorted({v % n for v in seeds}))
    size = -(-len(seeds) // batches)
    whole, rest = divmod(len(seeds), size)
    expected = np.zeros((n, len(fanouts) + 1))
    for batch_size, times in ((size, whole), (rest, 1 if rest else 0)):
        first = [batch_size / len(seeds) if v in seeds.tolist() else 0.0 for v in range(n)]
        unknown = np.array(
            plain(graph, {"_N": first}, fanouts, replace, make is SubgraphSampler)["_N"]
        )
        expected += times * -np.diff(unknown, axis=1, prepend=1.0)
    got = expected_accesses(graph, seeds, make(fanouts, replace=replace), batch_size=size)
    assert np.allclose(got.by_hop("_N").numpy(), expected, atol=1e-9)
    assert got.batches == -(-len(seeds) // size) and got.num_hops == len(fanouts)
    assert np.allclose(
        got.frontier("_N", 1 if len(fanouts) > 1 else 0), expected[:, : len(fanouts[:2])].sum(1)
    )


TYPES = [("a", "to", "b"), ("b", "back", "a"), ("a", "in", "a"), ("b", "other", "a")]


def typed(sizes, edges):
    """A graph of two vertex types; some edge types lead back."""
    counts, csc = dict(zip("ab", sizes, strict=True)), {}
    for etype, ends in zip(TYPES, edges, strict=True):
        src, dst = counts[etype[0]], counts[etype[2]]
        rows = [[] for _ in range(dst)]
        for u, v in ends:
            rows[v % dst].append(u % src)
        indptr = np.cumsum([0, *map(len, rows)])
        csc[etype] = CSC(
            torch.from_numpy(indptr), torch.tensor(sum(rows, []), dtype=torch.int64), src
        )
    return Graph(csc, counts)


@settings(max_examples=examples(60))
@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    edges=st.tuples(ends, ends, ends, ends),
    turn=st.booleans(),
    fanouts=all_fanouts,
)
def test_equals_the_plain_reference_over_types(sizes, edges, turn, fanouts):
    if turn:
        edges = (edges[0], [(v % sizes[1], u % sizes[0]) for u, v in edges[0]], *edges[2:])
    graph = typed(sizes, edges)
    seeds = {"b": torch.arange(sizes[1])}
    expected = expected_accesses(graph, seeds, NeighborSampler(fanouts), batch_size=1)
    first = {"a": [0.0] * sizes[0], "b": [1 / sizes[1]] * sizes[1]}
    for ntype, unknown in plain(graph, first, fanouts, False).items():
        found = -np.diff(np.array(unknown), axis=1, prepend=1.0) * sizes[1]
        assert np.allclose(expected.by_hop(ntype).numpy(), found, atol=1e-9)


@pytest.mark.statistics
def test_close_to_many_epochs_of_a_heterograph():
    rng = np.random.default_rng(3)
    there = [tuple(pair) for pair in rng.integers(0, (90, 120), (400, 2)).tolist()]
    graph = typed(
        (90, 120),
        (there, [(v, u) for u, v in there], rng.integers(0, 90, (150, 2)).tolist(), [(0, 1)]),
    )
    fanouts = [
        {**dict.fromkeys(TYPES, 2), TYPES[2]: 0},
        dict.fromkeys(TYPES, 3),
        dict.fromkeys(TYPES, -1),
    ]
    total, each = compare(
        graph, {"a": torch.arange(0, 90, 3), "b": torch.arange(20)}, NeighborSampler(fanouts), 5
    )
    assert total < 0.015 and each < 0.05


# -- seeds
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "batch_size"), [(53, 10), (25, 24), (1000, 30), (7, 100)], ids=str
)
def test_incomplete_batches(seeds, batch_size):
    """A last batch of few seeds; many batches, where it is no longer computed apart; a batch above
    all seeds."""
    graph = directed(1200, 6000)
    total, _ = compare(
        graph, torch.arange(seeds), NeighborSampler([3, 2]), batch_size, 4000 // seeds
    )
    assert total < 0.015


def test_seeds_that_are_there_several_times_are_read_as_often():
    seeds = torch.cat([torch.arange(0, 300, 4), torch.arange(0, 40, 4), torch.arange(0, 40, 4)])
    expected = expected_accesses(directed(), seeds, NeighborSampler([3, 3]), batch_size=10)
    assert expected.by_hop("_N")[:42, 0].tolist() == [
        3.0 if v % 4 == 0 and v < 40 else v % 4 == 0 for v in range(42)
    ]
    total, each = compare(directed(), seeds, NeighborSampler([3, 3]), 10)
    assert total < 0.02 and each < 0.04


def test_all_seeds_in_one_batch_with_all_neighbours_are_certain():
    graph = directed()
    expected = expected_accesses(
        graph, torch.arange(0, 300, 9), NeighborSampler([-1, -1]), batch_size=1000
    )
    real, _ = simulated(graph, torch.arange(0, 300, 9), NeighborSampler([-1, -1]), 1000, 1)
    assert torch.equal(expected.by_hop("_N"), real["_N"]) and expected.batches == 1


def test_no_seeds_no_reads_and_no_edges_no_neighbours():
    nothing = torch.empty(0, dtype=torch.int64)
    expected = expected_accesses(directed(), nothing, NeighborSampler([2]), batch_size=5)
    assert (expected.total, expected.batches) == (0.0, 0)
    graph = Graph.from_coo([], [], num_nodes=4)
    expected = expected_accesses(graph, torch.tensor([1, 3]), NeighborSampler([2, 2]), batch_size=1)
    assert expected.reads("_N").tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_vertex_does_not_find_itself():
    graph = Graph.from_coo([0, 0, 1], [0, 0, 0])
    expected = expected_accesses(graph, torch.tensor([0, 1]), NeighborSampler([1, 1]), batch_size=1)
    assert expected.reads("_N")[0] == 1.0


# -- samplers
# ---------------------------------------------------------------------------------------------


def test_out_neighbours_are_those_of_the_turned_graph():
    graph, seeds = directed(), torch.arange(0, 300, 4)
    out = expected_accesses(graph, seeds, NeighborSampler([2, 3], edge_dir="out"), batch_size=10)
    turned = expected_accesses(graph.reverse(), seeds, NeighborSampler([2, 3]), batch_size=10)
    assert torch.allclose(out.reads("_N"), turned.reads("_N"), atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"layer_dependency": True}], ids=str)
def test_labor_where_vertices_share_nothing(options):
    """A tree: no two vertices draw the same one."""
    graph = Graph.from_coo(range(1, 121), [(v - 1) // 3 for v in range(1, 121)])
    total, _ = compare(graph, torch.tensor([0]), LaborSampler([2, 1, 2], **options), 1, 400)
    assert total < 0.05


def test_samplers_without_fanouts():
    graph, seeds = directed(), torch.arange(10)
    assert expected_accesses(graph, seeds, LayerSampler([5]), batch_size=5) is None
    with pytest.raises(
        ValueError,
        match="'vip' needs a sampler with fan-outs .*got LayerSampler; 'presample', 'deg",
    ):
        resolve_policy("vip")(graph, seeds, LayerSampler([5]), 0)


def test_ranks_by_expected_reads():
    graph, seeds, sampler = directed(), torch.arange(0, 300, 4), NeighborSampler([3, 3])
    reads = expected_accesses(graph, seeds, sampler, batch_size=10).reads("_N").tolist()
    ranking = resolve_policy("vip")(graph, seeds, sampler, 0, batch_size=10)["_N"]
    assert ranking.ids.tolist() == sorted(range(300), key=lambda v: (-reads[v], v))
    assert ranking.per_epoch and ranking.scores.tolist() == sorted(reads, reverse=True)


@pytest.mark.parametrize(
    ("seeds", "batch_size", "error", "text"),
    [
        (torch.tensor([300]), 1, IndexError, r"seeds must be in \[0, 300\), got 300"),
        ({"_N": torch.tensor([-1])}, 1, IndexError, r"seeds\['_N'\] must be in \[0, 300\), got -1"),
        (torch.tensor([0]), 0, ValueError, "batch_size must be at least 1, got 0"),
    ],
)
def test_wrong_arguments(seeds, batch_size, error, text):
    with pytest.raises(error, match=text):
        expected_accesses(directed(), seeds, NeighborSampler([2]), batch_size=batch_size)


def test_damaged_graphs():
    graph = Graph(CSC(torch.tensor([0, 1, 2]), torch.tensor([0, 7]), 2))
    with pytest.raises(ValueError, match=r"indices must be in \[0, 2\), got 7"):
        expected_accesses(graph, torch.tensor([0]), NeighborSampler([2]), batch_size=1)
