"""Random walks: against a plain reference, the exact distribution, and what they must not depend
on."""

from collections import Counter

import numpy as np
import plain_walks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from pagraph import CSC, Graph
from pagraph.errors import FormatError
from pagraph.sampling import RandomWalks
from pagraph.sampling.walks import most_visited


@st.composite
def graphs(draw):
    """Few vertices with loops, parallel edges, long rows and none; edge ids in any order; integer
    weights."""
    count = draw(st.integers(1, 12))
    edges = draw(st.integers(0, 90))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    src, dst = rng.integers(0, count, edges), np.minimum(rng.geometric(0.4, edges) - 1, count - 1)
    weights = rng.choice(draw(st.sampled_from([[1.0], [0.0, 1.0], [0.0, 1.0, 2.0, 30.0]])), edges)
    graph = Graph.from_coo(src, dst, count, edata={"w": torch.from_numpy(weights)})
    if draw(st.booleans()):
        csc = graph.csc
        wide = CSC(csc.indptr.long(), csc.indices.long(), csc.num_src, csc.edge_ids)
        graph = Graph(wide, edata=graph.edata)
    return graph


@settings(max_examples=examples(60))
@given(
    graph=graphs(),
    steps=st.integers(1, 7),
    law=st.sampled_from(
        [(1.0, 1.0), (1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (1e-6, 1.0), (3.0, 3.0)]
    ),
    prob=st.sampled_from([None, "w"]),
    end_prob=st.sampled_from([0.0, 0.2, 1.0]),
    stay=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_equals_the_plain_reference(graph, steps, law, prob, end_prob, stay, key):
    p, q = law
    walks = RandomWalks(steps, prob, p, q, end_prob, edge_dir="in", stay=stay)
    starts = torch.arange(graph.num_nodes).repeat(2)
    got = walks.sample(graph, starts, key, with_edges=True)
    csc = graph.csc.with_ascending_rows if walks.looks_back else graph.csc
    ids = torch.arange(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.long()
    weights = None if prob is None else graph.edata["w"][ids].tolist()
    rows = plain_walks.Rows(csc, weights)
    ends = [end_prob] * steps if end_prob else None
    vertices, edges = plain_walks.walk(
        [rows] * steps, starts.tolist(), key, p=p, q=q, ends=ends, stay=stay
    )
    assert got.vertices.tolist() == vertices
    assert got.edges.tolist() == [[-1 if e < 0 else int(ids[e]) for e in row] for row in edges]


@settings(max_examples=examples(30))
@given(graph=graphs())
def test_ascending_rows_are_the_same_edges(graph):
    csc = graph.csc
    ascending = csc.with_ascending_rows
    assert torch.equal(ascending.indptr, csc.indptr) and csc.with_ascending_rows is ascending
    ids = [
        torch.arange(c.num_edges) if c.edge_ids is None else c.edge_ids.long()
        for c in (csc, ascending)
    ]
    before = sorted(
        zip(ids[0].tolist(), csc.indices.tolist(), csc.destinations().tolist(), strict=True)
    )
    after = sorted(
        zip(
            ids[1].tolist(),
            ascending.indices.tolist(),
            ascending.destinations().tolist(),
            strict=True,
        )
    )
    assert before == after
    rows = ascending.indices.split(ascending.indptr.diff().tolist())
    assert all(row.tolist() == sorted(row.tolist()) for row in rows)


# A hub with 30 rim vertices (a cycle of both directions), a parallel edge, a loop, a leaf.
WHEEL = Graph.from_coo(
    [0] * 30 + list(range(1, 31)) + list(range(1, 31)) + [*range(2, 31), 1] + [0, 0, 5, 31],
    list(range(1, 31)) + [0] * 30 + [*range(2, 31), 1] + list(range(1, 31)) + [5, 0, 31, 5],
    32,
    edata={"w": torch.arange(124) % 5 + 0.5},
)


@pytest.mark.every
@pytest.mark.parametrize(
    ("p", "q", "prob"),
    [
        (1.0, 1.0, "w"),
        (0.25, 4.0, None),
        (0.25, 4.0, "w"),
        (4.0, 0.25, None),
        (0.02, 1.0, None),
        (50.0, 20.0, "w"),
    ],
)
def test_steps_have_the_exact_probabilities(p, q, prob):
    """All second steps from each (before, at), counted over 96,000 walks of 3 steps."""
    steps = RandomWalks(3, prob, p, q).sample(WHEEL, torch.arange(32).repeat(3000), key=7).vertices
    csc = WHEEL.out_csc_of(WHEEL.edge_types[0])
    weights = None if prob is None else WHEEL.edata[prob][csc.edge_ids.long()].tolist()
    rows = plain_walks.Rows(csc, weights)
    triples = Counter(map(tuple, torch.cat([steps[:, :3], steps[:, 1:]]).tolist()))
    statistic, freedom = 0.0, 0
    for before, at in {triple[:2] for triple in triples}:
        exact = plain_walks.chances(rows, at, before, p, q)
        total = sum(triples[before, at, x] for x in exact)
        assert (
            sum(count for triple, count in triples.items() if triple[:2] == (before, at)) == total
        )
        expected = {x: chance * total for x, chance in exact.items()}
        common = [x for x in exact if expected[x] >= 5]
        rare = [sum(expected[x] for x in exact if x not in common)]
        cells = [(triples[before, at, x], expected[x]) for x in common]
        if rare[0] >= 5:
            cells.append((sum(triples[before, at, x] for x in exact if x not in common), rare[0]))
        statistic += sum((seen - want) ** 2 / want for seen, want in cells)
        freedom += max(len(cells) - 1, 0)
    assert 1e-5 < stats.chi2.sf(statistic, freedom) < 1 - 1e-5


def test_first_steps_are_uniform_and_independent():
    graph = Graph.from_coo([0] * 7, range(1, 8), 8)
    first = (
        RandomWalks(1).sample(graph, torch.zeros(70_000, dtype=torch.int64), key=3).vertices[:, 1]
    )
    assert stats.chisquare(torch.bincount(first - 1, minlength=7).numpy()).pvalue > 1e-4
    pairs = torch.bincount((first[0::2] - 1) * 7 + first[1::2] - 1, minlength=49)
    assert stats.chisquare(pairs.numpy()).pvalue > 1e-4


def test_ends_come_with_their_probability():
    cycle = Graph.from_coo([0, 1, 2], [1, 2, 0])
    walks = RandomWalks(3, end_prob=[0.0, 0.3, 1.0]).sample(
        cycle, torch.zeros(20_000, dtype=torch.int64), key=1
    )
    lengths = torch.bincount((walks.vertices >= 0).sum(1), minlength=5).tolist()
    assert lengths[:2] == [0, 0] and lengths[4] == 0
    assert stats.binomtest(lengths[2], 20_000, 0.3).pvalue > 1e-4


def test_a_walk_depends_on_key_and_place_alone():
    walks = RandomWalks(5, p=0.5, q=2.0)
    starts = torch.arange(1000) % 32
    whole = walks.sample(WHEEL, starts, key=11).vertices
    assert torch.equal(walks.sample(WHEEL, starts[:700], key=11).vertices, whole[:700])
    assert not torch.equal(walks.sample(WHEEL, starts, key=12).vertices, whole)
    changed = starts.clone()
    changed[500] = 3
    others = torch.arange(1000) != 500
    assert torch.equal(walks.sample(WHEEL, changed, key=11).vertices[others], whole[others])
    assert torch.equal(
        RandomWalks(2, p=0.5, q=2.0).sample(WHEEL, starts, key=11).vertices, whole[:, :3]
    )


def test_out_edges_are_the_in_edges_of_the_reversed_graph():
    walks = RandomWalks(4).sample(WHEEL, torch.arange(32), 5, with_edges=True)
    against = RandomWalks(4, edge_dir="in").sample(
        WHEEL.reverse(), torch.arange(32), 5, with_edges=True
    )
    assert torch.equal(walks.vertices, against.vertices) and torch.equal(walks.edges, against.edges)


TYPES = Graph(
    {
        ("user", "buys", "item"): CSC.from_coo([0, 0, 1, 2], [0, 1, 1, 2], (4, 3)),
        ("item", "bought", "user"): CSC.from_coo([0, 1, 1], [0, 0, 1], (3, 4)),
    }
)


def test_walks_along_edge_types():
    path = [("user", "buys", "item"), ("item", "bought", "user")] * 2
    got = RandomWalks(path).sample(TYPES, torch.tensor([0, 1, 2, 3] * 50), key=2, with_edges=True)
    rows = [plain_walks.Rows(TYPES.out_csc_of(etype)) for etype in path]
    vertices, edges = plain_walks.walk(rows, [0, 1, 2, 3] * 50, 2)
    assert got.vertices.tolist() == vertices
    assert got.vertices[2].tolist() == [2, 2, -1, -1, -1] and got.vertices[3].tolist() == [
        3,
        -1,
        -1,
        -1,
        -1,
    ]
    ids = [TYPES.out_csc_of(etype).edge_ids for etype in path]
    for t, of_type in enumerate(ids):
        expected = [e[t] if e[t] < 0 or of_type is None else int(of_type[e[t]]) for e in edges]
        assert got.edges[:, t].tolist() == expected


def test_edge_types_backwards_and_a_weight_that_one_type_has():
    TYPES.set_field("w", torch.tensor([0.0, 1.0, 1.0, 1.0]), edge_type=("user", "buys", "item"))
    path = [("item", "bought", "user"), ("user", "buys", "item")]
    against = RandomWalks(path, "w", edge_dir="in").sample(
        TYPES, torch.tensor([0, 1]), with_edges=True
    )
    assert against.vertices[:, 0].tolist() == [0, 1]
    onward = RandomWalks([path[1]], "w").sample(TYPES, torch.zeros(40, dtype=torch.int64))
    assert set(onward.vertices[:, 1].tolist()) == {1}, "the edge to item 0 has the weight 0"


def test_ids_at_the_border_of_int32():
    far = torch.tensor([2**31 - 2, 2**31 + 7], dtype=torch.int64)
    csc = CSC(torch.tensor([0, 1, 2]), far, 2**31 + 8)
    graph = Graph({("b", "to", "a"): csc}, {"a": 2, "b": 2**31 + 8})
    walks = RandomWalks([("b", "to", "a")], edge_dir="in").sample(graph, torch.tensor([0, 1]))
    assert walks.vertices.tolist() == [[0, 2**31 - 2], [1, 2**31 + 7]]


def test_nothing_to_walk():
    empty = Graph.from_coo([], [], 3)
    starts = torch.tensor([2, 0])
    assert RandomWalks(2).sample(empty, starts).vertices.tolist() == [[2, -1, -1], [0, -1, -1]]
    assert RandomWalks(2, p=2.0, stay=True).sample(empty, starts).vertices.tolist() == [
        [2, 2, 2],
        [0, 0, 0],
    ]
    none = RandomWalks(2).sample(WHEEL, starts[:0], with_edges=True)
    assert none.vertices.shape == (0, 3) and none.edges.shape == (0, 2)


def test_damaged_graphs_are_told_apart():
    csc = CSC(torch.tensor([0, 1, 2]), torch.tensor([1, 9]), 2)
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 9"):
        RandomWalks(3, edge_dir="in").sample(Graph(csc), torch.tensor([0]))
    csc = CSC(torch.tensor([0, 3, 2, 2]), torch.tensor([1, 0]), 3)
    with pytest.raises(FormatError, match="not at vertex 0"):
        RandomWalks(3, edge_dir="in").sample(Graph(csc), torch.tensor([0]))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"steps": []}, ValueError, "steps must be at least 1, got an empty path"),
        ({"steps": 2.0}, TypeError, "steps must be an integer, got 2.0"),
        ({"steps": "follows"}, TypeError, "steps must be an integer"),
        ({"steps": ["follows"]}, TypeError, "steps must be a number or edge types"),
        ({"steps": [("a", "r", "b"), ("a", "r", "b")]}, ValueError, "steps must lead on from 'b'"),
        (
            {"steps": [("a", "r", "a"), ("a", "s", "a")], "q": 2},
            ValueError,
            "p and q must be 1 for walks along several",
        ),
        ({"steps": 2, "p": 0}, ValueError, "p must be positive and finite, got 0.0"),
        ({"steps": 2, "q": -1.0}, ValueError, "q must be positive and finite, got -1.0"),
        ({"steps": 2, "p": float("nan")}, ValueError, "p must be positive and finite, got nan"),
        ({"steps": 2, "q": float("inf")}, ValueError, "q must be positive and finite, got inf"),
        ({"steps": 2, "q": 1e-310}, ValueError, "q must be positive and finite"),
        ({"steps": 2, "p": "1"}, TypeError, "p must be a number, got '1'"),
        ({"steps": 2, "end_prob": 1.5}, ValueError, r"end_prob must be in \[0, 1\], got 1.5"),
        (
            {"steps": 2, "end_prob": [0.5]},
            ValueError,
            "end_prob must have one entry for each of 2 steps, got 1",
        ),
        (
            {"steps": 2, "end_prob": [0.5, float("nan")]},
            ValueError,
            r"end_prob must be in \[0, 1\], got nan",
        ),
        ({"steps": 2, "prob": 1}, TypeError, "prob must be the name of an edge field, got 1"),
        (
            {"steps": 2, "edge_dir": "both"},
            ValueError,
            "edge_dir must be 'in' or 'out', got 'both'",
        ),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        RandomWalks(**arguments)


def test_bad_starts_and_graphs():
    with pytest.raises(IndexError, match=r"starts must be in \[0, 32\), got 32"):
        RandomWalks(1).sample(WHEEL, torch.tensor([0, 32]))
    with pytest.raises(IndexError, match=r"starts must be in \[0, 32\), got -1"):
        RandomWalks(1).sample(WHEEL, torch.tensor([-1]))
    with pytest.raises(
        ValueError, match="steps must name edge types among .* for a graph with several"
    ):
        RandomWalks(1).sample(TYPES, torch.tensor([0]))
    bipartite = Graph({("a", "to", "b"): CSC.from_coo([0], [0], (1, 1))})
    assert RandomWalks(1).sample(bipartite, torch.tensor([0])).vertices.tolist() == [[0, 0]]
    with pytest.raises(
        ValueError, match="steps must be 1 along edges between different vertex types"
    ):
        RandomWalks(2).sample(bipartite, torch.tensor([0]))
    with pytest.raises(KeyError, match="edge_type must be one of"):
        RandomWalks([("a", "from", "b")]).sample(bipartite, torch.tensor([0]))


@settings(max_examples=examples(80))
@given(
    # 64 visits and fewer are counted in another way.
    per_start=st.integers(1, 6) | st.sampled_from([16, 17, 40]),
    num_starts=st.integers(0, 4),
    traversals=st.integers(1, 4),
    every=st.integers(1, 3),
    most=st.integers(1, 12) | st.sampled_from([64, 100]),
    span=st.sampled_from([1, 2, 5, 40, 2**40]),
    seed=st.integers(0, 2**32 - 1),
)
def test_most_visited_equals_the_plain_reference(
    per_start, num_starts, traversals, every, most, span, seed
):
    rng = np.random.default_rng(seed)
    walks = rng.integers(0, span, (num_starts * per_start, traversals * every + 1))
    lengths = rng.integers(1, walks.shape[1] + 1, len(walks))
    walks[np.arange(walks.shape[1]) >= lengths[:, None]] = -1
    walks[:, 0] = np.repeat(np.arange(num_starts), per_start)
    found = most_visited(torch.from_numpy(walks), per_start, every, most)
    expected = plain_walks.most_visited(walks.tolist(), per_start, every, most)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected
