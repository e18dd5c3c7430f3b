"""Brute force: nothing that is sampled is later than its seed or outside of its window, and all
that may be is found.

``PAGRAPH_LEAK_TRIALS`` says how many random graphs each test takes.
"""

import os

import exact_times
import pytest
import torch
from exact_times import WINDOWS, exact, times, within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagraph import CSC, Graph
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.batches import PairBatches, PairNegatives, TimedSeeds, pair_seeds
from pagraph.sampling.negative import NegativeEnds
from pagraph.sampling.times import time_bits

TRIALS = settings(
    max_examples=int(os.environ.get("PAGRAPH_LEAK_TRIALS", "200")),
    suppress_health_check=list(HealthCheck),
)
SEVERAL = [("a", "x", "b"), ("a", "y", "b"), ("b", "x", "b"), ("b", "z", "a"), ("c", "to", "b")]
ONE = [("a", "x", "a")]


@st.composite
def graphs(draw):
    """A graph of one or several types, times of any of its vertices and edges, the kind of these
    times, a window."""
    edge_types = draw(st.sampled_from([ONE, SEVERAL]))
    kind, counts = draw(exact_times.KINDS), {}
    for ntype in sorted({end for s, _, d in edge_types for end in (s, d)}):
        counts[ntype] = draw(st.integers(1, 7))
    csc = {}
    for etype in edge_types:
        num_src, num_dst = counts[etype[0]], counts[etype[2]]
        ends = draw(
            st.lists(
                st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1)), max_size=40
            )
        )
        csc[etype] = CSC.from_coo([u for u, _ in ends], [v for _, v in ends], (num_src, num_dst))
    graph = Graph(csc, counts)
    for owner in draw(st.lists(st.sampled_from([*counts, *edge_types]), unique=True, min_size=1)):
        if isinstance(owner, str):
            graph.set_field("t", draw(times(counts[owner], kind)), node_type=owner)
        else:
            graph.set_field("t", draw(times(csc[owner].num_edges, kind)), edge_type=owner)
    timed = [e for e in edge_types if "t" in graph.edge_fields(e) or "t" in graph.node_fields(e[0])]
    by_type = st.dictionaries(st.sampled_from(timed), WINDOWS) if timed else st.none()
    return graph, kind, draw(st.one_of(st.none(), WINDOWS, by_type))


SETTINGS = st.fixed_dictionaries(
    {
        "fanouts": st.lists(st.sampled_from([-1, -1, 1, 2, 4]), min_size=1, max_size=3),
        **{name: st.booleans() for name in ("replace", "latest", "induced", "share_trees")},
    }
).filter(lambda how: not (how["induced"] and how["share_trees"]))  # refused


def edges_of(graph, etype):
    """Edge id to both ends and the exact times that the edge has: its own, its source's, both or
    none."""
    csc = graph.csc_of(etype)
    src, dst = (ends.tolist() for ends in csc.ends_at(torch.arange(csc.num_edges)))
    ids = range(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.tolist()
    own, of_nodes = (
        fields.get("t") for fields in (graph.edge_fields(etype), graph.node_fields(etype[0]))
    )
    own, of_nodes = (None if values is None else exact(values) for values in (own, of_nodes))
    return {
        e: (u, v, ([] if own is None else [own[e]]) + ([] if of_nodes is None else [of_nodes[u]]))
        for e, u, v in zip(ids, src, dst, strict=True)
    }


def may_be_taken(times, limit, length):
    """None of them is later than the limit, and the later one is in the window."""
    return all(within(limit, time) for time in times) and (
        not times or within(limit, max(times), length)
    )


def check(graph, batch, limits, sampler):
    """Check a batch whose seeds, over types in the graph's order, had these limits."""
    trees = {
        t: list(zip(batch.trees[t].tolist(), batch.input_nodes[t].tolist(), strict=True))
        for t in graph.node_types
    }
    of_seeds = [tree for t in graph.node_types for tree, _ in trees[t][: batch.hop_ends[t][0]]]
    limit_of = dict(zip(of_seeds, limits, strict=True))
    assert [limit_of[tree] for tree in of_seeds] == limits
    assert len(limit_of) == (len(set(limits)) if sampler.share_trees else len(limits))
    for ntype in graph.node_types:
        # No vertex but the seeds is later than its tree, whoever found it.
        if "t" in graph.node_fields(ntype):
            of_nodes = exact(graph.node_fields(ntype)["t"])
            assert all(
                within(limit_of[tree], of_nodes[v])
                for tree, v in trees[ntype][batch.hop_ends[ntype][0] :]
            )
    for etype in graph.edge_types:
        check_edges(batch, etype, edges_of(graph, etype), trees, limit_of, sampler)


def check_edges(batch, etype, known, trees, limit_of, sampler):
    """Each edge may be in its tree; each vertex that was expanded drew as many as it had to."""
    length, drawn = sampler.window(etype), {}
    for s, d, e in zip(
        *batch.edges[etype].edge_index.tolist(), batch.edges[etype].edge_ids.tolist(), strict=True
    ):
        (tree, u), (tree_of_dst, v) = trees[etype[0]][s], trees[etype[2]][d]
        assert tree == tree_of_dst and (u, v) == known[e][:2]
        assert may_be_taken(known[e][2], limit_of[tree], length)
        drawn.setdefault(d, []).append(e)
    for place, (tree, v) in enumerate(trees[etype[2]]):
        possible = [
            e
            for e, (_, dst, of) in known.items()
            if dst == v and may_be_taken(of, limit_of[tree], length)
        ]
        mine = drawn.get(place, [])
        if sampler.induced:
            sources = {u for t, u in trees[etype[0]] if t == tree}
            assert sorted(mine) == sorted(e for e in possible if known[e][0] in sources)
            continue
        hop = sum(place >= end for end in batch.hop_ends[etype[2]])
        fanout = sampler.fanouts[-1 - hop] if hop < len(sampler.fanouts) else 0
        if fanout == -1 or (not sampler.replace and len(possible) <= fanout):
            assert sorted(mine) == sorted(possible)
            continue
        assert len(mine) == (fanout if possible else 0) and (
            sampler.replace or len(set(mine)) == fanout
        )
        if sampler.latest and possible and known[possible[0]][2]:
            newest = sorted((max(known[e][2]) for e in possible), reverse=True)[:fanout]
            assert all(max(known[e][2]) >= newest[-1] for e in mine)


def seed_times(draw, graph, ntype, seeds, kind):
    """Times for seeds, or None where their own count; and the same as exact numbers."""
    own = graph.node_fields(ntype).get("t")
    limits = [] if own is None else exact(own[seeds])
    if own is not None and None not in limits and draw(st.booleans()):
        return None, limits
    given = draw(times(len(seeds), kind, missing=False))
    return given, exact(given)


@TRIALS
@given(made=graphs(), how=SETTINGS, key=st.integers(0, 2**64 - 1), data=st.data())
def test_nothing_leaks_from_vertices(made, how, key, data):
    graph, kind, window = made
    seeds, given, limits = {}, {}, []
    for ntype in graph.node_types:
        if data.draw(st.booleans()):
            ids = data.draw(st.lists(st.integers(0, graph.num_nodes_of(ntype) - 1), max_size=4))
            tensor, exactly = seed_times(data.draw, graph, ntype, ids, kind)
            seeds[ntype], limits = torch.tensor(ids, dtype=torch.int64), limits + exactly
            given |= {} if tensor is None else {ntype: tensor}
    sampler = SubgraphSampler(time="t", time_window=window, **how)
    check(graph, sampler.sample(graph, seeds, key, seed_times=given or None), limits, sampler)


@pytest.mark.many
@TRIALS
@given(made=graphs(), how=SETTINGS, key=st.integers(0, 2**64 - 1), data=st.data())
def test_rows_of_vertices_and_times_sample_the_same(made, how, key, data):
    """What policies of a cache sample."""
    graph, kind, window = made
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, graph.num_nodes_of("a") - 1), max_size=4)),
        dtype=torch.int64,
    )
    given = data.draw(times(len(ids), kind, missing=False))
    sampler = SubgraphSampler(time="t", time_window=window, **how)
    rows = TimedSeeds(sampler, "a", given.is_floating_point())
    ours = rows.sample(graph, torch.stack([ids, time_bits(given)], 1), key)
    check(graph, ours, exact(given), sampler)
    plain = sampler.sample(graph, {"a": ids}, key, seed_times={"a": given})
    for etype in graph.edge_types:
        assert torch.equal(ours.edges[etype].edge_ids, plain.edges[etype].edge_ids)


def check_negatives(ends, of_nodes, drawn, limits, window, weight):
    """Against the rule in words, of every draw."""
    timed = [v for v, time in enumerate(of_nodes) if time is not None]
    for v, limit in zip(drawn, limits, strict=True):
        early = [u for u in timed if of_nodes[u] <= limit]
        weighed = [u for u in early if weight is None or weight[u] > 0]
        possible = [u for u in weighed if within(limit, of_nodes[u], window)]
        if possible:
            assert v in possible
        elif weighed:
            assert of_nodes[v] == max(of_nodes[u] for u in weighed) and v in weighed
        else:
            assert of_nodes[v] == min(of_nodes[u] for u in timed)
    assert ends.num_nodes == len(of_nodes)


@pytest.mark.many
@TRIALS
@given(
    made=graphs(),
    how=SETTINGS,
    key=st.integers(0, 2**64 - 1),
    amount=st.sampled_from([1.0, 2.0, 1.5]),
    data=st.data(),
)
def test_nothing_leaks_from_links(made, how, key, amount, data):
    graph, kind, window = made
    etype = data.draw(st.sampled_from(graph.edge_types))
    count = data.draw(st.integers(0, 4))
    src, dst = (
        torch.tensor(
            data.draw(
                st.lists(st.integers(0, graph.num_nodes_of(t) - 1), min_size=count, max_size=count)
            ),
            dtype=torch.int64,
        )
        for t in (etype[0], etype[2])
    )
    of_pairs = data.draw(times(count, kind, missing=False))
    sampler = SubgraphSampler(time="t", time_window=window, **how)
    weights, fields = {}, {}
    for end, ntype in (("src", etype[0]), ("dst", etype[2])):
        n = graph.num_nodes_of(ntype)
        weight = data.draw(
            st.one_of(st.none(), st.lists(st.sampled_from([0, 1, 2.5]), min_size=n, max_size=n))
        )
        weights[end] = weight if weight is not None and sum(weight) > 0 else None
        fields[end] = graph.node_fields(ntype).get("t")
        if fields[end] is not None and all(time is None for time in exact(fields[end])):
            fields[end] = None  # refused, see test_negative_ends.py
    ends = {
        end: NegativeEnds(
            graph.num_nodes_of(ntype),
            None if weights[end] is None else torch.tensor(weights[end]),
            fields[end],
        )
        for end, ntype in (("src", etype[0]), ("dst", etype[2]))
    }
    both = data.draw(st.booleans())
    negatives = PairNegatives(
        amount, ends["dst"], ends["src"] if both else None, sampler.window(etype)
    )
    apart = not sampler.share_trees
    start = pair_seeds(
        (etype[0], etype[2]), src, dst, key, negatives=negatives, disjoint=apart, times=of_pairs
    )
    limits = exact(of_pairs)
    limits += [limits[j % count] for j in range(len(start.dst) - count)] if count else []
    for end, places in (("dst", start.dst), ("src", start.src)):
        ntype = etype[0] if end == "src" else etype[2]
        assert [exact(start.times[ntype])[place] for place in places.tolist()] == limits[
            : len(places)
        ]
        if fields[end] is not None:
            drawn = start.nodes[ntype][places[count:]].tolist()
            check_negatives(
                ends[end],
                exact(fields[end]),
                drawn,
                limits[count : len(places)],
                negatives.window,
                weights[end],
            )
    rows = torch.stack([src, dst, time_bits(of_pairs)], 1)
    batches = PairBatches(
        sampler,
        (etype[0], etype[2]),
        graph.num_nodes_by_type,
        negatives,
        of_pairs.is_floating_point(),
    )
    of_seeds = [
        time for t in graph.node_types if t in start.nodes for time in exact(start.times[t])
    ]
    check(graph, batches.sample(graph, rows, key), of_seeds, sampler)
