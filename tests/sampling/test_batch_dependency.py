"""Batches that share random numbers: the plain reference, each one's distribution, and what they
have in common."""

from functools import partial

import numpy as np
import plain_layers
import plain_sampler
import pytest
import torch
from by_pickers import by_pickers
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from pagraph import Graph, Loader, NeighborSampler
from pagraph.ranking.presample import count_accesses
from pagraph.sampling import LaborSampler, SubgraphSampler
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.seeds import derive_key
from pagraph.seeds.keys import Ranks, batch_key

A, MASK = plain_sampler.A, 2**64 - 1
ALONE = Ranks(0, 1)


def counters(epoch, index, period):
    """The key that stands for the batch's, and a function from vertex to the counter of its
    numbers."""
    shared, phases, step = (derive_key(*epoch, 0x73686172 + part) for part in range(3))

    def counter(vertex):
        phase = plain_sampler.mix(phases + vertex * A)
        return vertex + (index // period + (phase < (index % period) * 2**64 // period)) * step

    return shared, counter


@st.composite
def graphs(draw):
    """Self-loops, parallel edges, isolated vertices, a hub, sometimes no edge; weights with
    zeros."""
    n = draw(st.integers(1, 15))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=80))
    edges += [(i % n, 0) for i in range(draw(st.sampled_from([0, 90])))]
    weights = torch.tensor([float(i % 3) for i in range(len(edges))])
    return Graph.from_coo([e[0] for e in edges], [e[1] for e in edges], n, edata={"w": weights})


PLACES = {
    "graph": graphs(),
    "fanouts": st.lists(st.sampled_from([1, 2, 5, 70]), min_size=1, max_size=2),
    "period": st.sampled_from([2, 3, 7, 1000]),
    "index": st.integers(0, 2500),
    "rank": st.sampled_from([ALONE, Ranks(0, 3), Ranks(2, 3)]),
    "dtype": st.sampled_from([torch.int32, torch.int64]),
}


@settings(max_examples=examples(60))
@given(**PLACES, replace=st.booleans(), picked=st.booleans())
def test_uniform_picks_equal_the_plain_reference(
    graph, fanouts, period, index, rank, dtype, replace, picked
):
    sampler = NeighborSampler(fanouts, replace=replace, batch_dependency=period)
    seeds = torch.arange(0, graph.num_nodes, 2, dtype=dtype)
    key = batch_key(11, index, rank)
    once = SubgraphSampler(fanouts[:1], replace=replace, batch_dependency=period)
    draw = partial(lambda *samplers: [s.sample(graph, seeds, key) for s in samplers], sampler, once)
    batch, subgraph = by_pickers(draw) if picked else draw()
    shared, counter = counters((11,) if rank is ALONE else (11, rank.rank), index, period)
    indptr = graph.csc.indptr.tolist()
    for hop, block in enumerate(batch.blocks[::-1]):
        expected, how = [], (fanouts[-1 - hop], replace, derive_key(shared, hop))
        for v in block.dst_nodes.tolist():
            expected += plain_sampler.pick(counter(v), indptr[v], indptr[v + 1] - indptr[v], *how)
        assert block.positions.tolist() == expected
    if len(fanouts) == 1:
        ids = (
            batch.blocks[0].positions
            if graph.csc.edge_ids is None
            else graph.csc.edge_ids[batch.blocks[0].positions]
        )
        assert next(iter(subgraph.edges.values())).edge_ids.tolist() == ids.tolist()


@settings(max_examples=examples(60))
@given(**PLACES, prob=st.sampled_from([None, "w"]), layer_dependency=st.booleans())
def test_labor_equals_the_plain_reference(
    graph, fanouts, period, index, rank, dtype, prob, layer_dependency
):
    sampler = LaborSampler(
        fanouts, prob, layer_dependency=layer_dependency, batch_dependency=period
    )
    batch = sampler.sample(
        graph, torch.arange(0, graph.num_nodes, 2, dtype=dtype), batch_key(11, index, rank)
    )
    shared, counter = counters((11,) if rank is ALONE else (11, rank.rank), index, period)
    values, ids = graph.edata["w"], graph.csc.edge_ids
    weights = None if prob is None else (values if ids is None else values[ids.long()]).tolist()
    for hop, block in enumerate(batch.blocks[::-1]):
        key = shared if layer_dependency else derive_key(shared, hop)
        indptr, positions, _ = plain_layers.labor(
            graph.csc, block.dst_nodes.tolist(), fanouts[-1 - hop], key, weights, counter=counter
        )
        assert (block.indptr.tolist(), block.positions.tolist()) == (indptr, positions)


def test_each_vertex_renews_its_numbers_once_in_a_period():
    period, vertices = 7, range(40)
    told = np.array(
        [[counters((5,), i, period)[1](v) for v in vertices] for i in range(30)], dtype=object
    )
    changes = told[1:] != told[:-1]
    for v in vertices:
        places = np.flatnonzero(changes[:, v])
        assert (np.diff(places) == period).all() and 4 <= len(places) <= 5
    assert len(set(np.argmax(changes, axis=0))) == period  # at all phases


def star(leaves=6, centres=300):
    """Vertices that each draw from as many leaves of their own."""
    centre = np.arange(centres).repeat(leaves)
    return Graph.from_coo(centres + np.arange(centres * leaves), centre, centres * (leaves + 1))


def picked(sampler, graph, seeds, keys):
    """Whether each edge is in each batch, shape (batches, edges)."""
    taken = np.zeros((len(keys), graph.num_edges), dtype=bool)
    for row, key in zip(taken, keys, strict=True):
        row[sampler.sample(graph, seeds, key).blocks[0].positions.numpy()] = True
    return taken


SAMPLERS = [NeighborSampler([2], batch_dependency=8), LaborSampler([2], batch_dependency=8)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["uniform", "labor"])
def test_a_batch_by_itself_is_distributed_as_an_independent_one(sampler):
    """At each place of an epoch, over many epochs: the edges, and what two vertices draw
    together."""
    graph, seeds = star(), torch.arange(300)
    for index in (0, 3, 8, 21):
        taken = picked(
            sampler, graph, seeds, [batch_key(derive_key(3, e), index, ALONE) for e in range(60)]
        )
        codes = (taken.reshape(-1, 6) << np.arange(6)).sum(1)
        uniform = isinstance(sampler, NeighborSampler)
        sets = np.array([c for c in range(64) if not uniform or c.bit_count() == 2])
        size = np.array([int(c).bit_count() for c in sets])
        chance = np.full(len(sets), 1 / 15) if uniform else (1 / 3) ** size * (2 / 3) ** (6 - size)
        observed = np.array([(codes == c).sum() for c in sets])
        assert stats.chisquare(observed, chance * len(codes)).pvalue > 1e-3
        pairs = codes.reshape(-1, 2)  # vertices that are neighbours in number
        table = np.zeros((4, 4))
        np.add.at(table, (pairs[:, 0] % 4, pairs[:, 1] % 4), 1)
        table = table[table.sum(1) > 0][:, table.sum(0) > 0]
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.many
@pytest.mark.parametrize("kind", [NeighborSampler, LaborSampler])
def test_hops_of_a_batch_are_independent(kind):
    """As many vertices are found as in independent batches, at each place; phases must not be a
    hop's numbers."""
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(
        (rng.random(6000) ** 3 * 1000).astype(int), rng.integers(0, 1000, 6000), 1000
    )
    seeds, found = torch.arange(0, 1000, 40), {}
    for period, index in ((1, 0), (8, 1), (8, 4), (8, 12), (1000, 300)):
        sampler = kind([2, 2, 2], batch_dependency=period)
        batches = [
            sampler.sample(graph, seeds, batch_key(derive_key(3, e), index, ALONE))
            for e in range(400)
        ]
        found[period, index] = np.array([len(batch.input_nodes) for batch in batches])
    for sizes in found.values():
        assert stats.ks_2samp(sizes, found[1, 0]).pvalue > 1e-3


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["uniform", "labor"])
def test_batches_have_less_in_common_the_further_they_are_apart(sampler):
    """Of 8 vertices one draws anew with each batch; what is drawn anew is the same by chance
    only."""
    graph, seeds, period, chance = star(), torch.arange(300), 8, 1 / 3
    taken = picked(sampler, graph, seeds, [batch_key(9, i, ALONE) for i in range(100)])
    for apart in (1, 3, 8, 11):
        alike = (taken[apart:] & taken[:-apart]).sum() / taken[apart:].sum()
        kept = max(0.0, 1 - apart / period)
        assert alike == pytest.approx(kept + (1 - kept) * chance, abs=0.015)


def test_one_is_what_there_was_and_a_plain_key_shares_with_none():
    graph, seeds = star(), torch.arange(300)
    key = batch_key(4, 5, ALONE)
    assert key == derive_key(4, 5) and type(int(key)) is int
    for kind in (NeighborSampler, LaborSampler):
        assert (
            picked(kind([2]), graph, seeds, [key]) == picked(kind([2]), graph, seeds, [int(key)])
        ).all()
        sharing = kind([2], batch_dependency=1000)
        first, second = picked(sharing, graph, seeds, [derive_key(4, 5), derive_key(4, 6)])
        assert (first & second).sum() / first.sum() == pytest.approx(1 / 3, abs=0.08)
        first, second = picked(sharing, graph, seeds, [key, batch_key(4, 6, ALONE)])
        assert (first & second).sum() / first.sum() > 0.99


def test_ranks_and_epochs_draw_apart():
    graph, seeds, sampler = star(), torch.arange(300), NeighborSampler([2], batch_dependency=1000)
    keys = [
        batch_key(4, 5, ALONE),
        batch_key(4, 5, Ranks(0, 2)),
        batch_key(4, 5, Ranks(1, 2)),
        batch_key(5, 5, ALONE),
    ]
    taken = picked(sampler, graph, seeds, keys)
    for i in range(4):
        for j in range(i):
            assert (taken[i] & taken[j]).sum() / taken[i].sum() == pytest.approx(1 / 3, abs=0.08)


def make_loader(sampler, **options):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, 200, 2000), rng.integers(0, 200, 2000), 200)
    return Loader(graph, torch.arange(100), sampler, batch_size=10, shuffle=True, seed=3, **options)


def bits(batches):
    return [
        [(b.indptr.tolist(), b.positions.tolist(), b.src_nodes.tolist()) for b in x.blocks]
        for x in batches
    ]


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("kind", [NeighborSampler, LaborSampler])
def test_a_loader_gives_the_same_bits_however_it_runs_and_goes_on(kind):
    sampler = kind([3, 3], batch_dependency=4)
    loader = make_loader(sampler, prefetch=0)
    expected = bits(loader) + bits(loader)
    loader = make_loader(sampler, num_workers=3, prefetch=5)
    assert bits(loader) + bits(loader) == expected != bits(make_loader(kind([3, 3]))) * 2
    reader = iter(loader := make_loader(sampler))
    got = bits(next(reader) for _ in range(7))
    state = loader.state_dict()
    reader.close()
    loader = make_loader(sampler)
    loader.load_state_dict(state)
    assert got + bits(loader) + bits(loader) == expected


def test_rankings_and_caches_know_of_no_dependency():
    """Vertices are read as often: counted epochs have independent batches, and loaders may share a
    cache."""
    sharing, plain = (NeighborSampler([2], batch_dependency=k) for k in (50, 1))
    assert sharing.cache_key == plain.cache_key != NeighborSampler([3]).cache_key
    graph, seeds = star(), torch.arange(300)
    assert EdgeBatches(sharing, graph).cache_key == EdgeBatches(plain, graph).cache_key
    hub = Graph.from_coo([0] * 300 + list(range(301, 401)), [*range(1, 301), *[0] * 100], 401)
    reads = count_accesses(
        hub, 1 + seeds, NeighborSampler([2, 2], batch_dependency=1000), batch_size=10, seed=1
    )
    # Of 30 batches; with shared numbers two of the hub's would be in each.
    assert reads.reads("_N")[301:].max() < 6


@pytest.mark.parametrize("kind", [NeighborSampler, LaborSampler, SubgraphSampler])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "batch_dependency must be at least 1, got 0"),
        (-3, ValueError, "batch_dependency must be at least 1, got -3"),
        (1.5, TypeError, "batch_dependency must be an integer, got 1.5"),
        (True, TypeError, "batch_dependency must be an integer, got True"),
        (None, TypeError, "batch_dependency must be an integer, got None"),
    ],
)
def test_what_is_no_number_of_batches_is_refused(kind, value, error, message):
    with pytest.raises(error, match=message):
        kind([2], batch_dependency=value)


def test_disjoint_trees_cannot_share():
    for options in ({"disjoint": True}, {"time": "t"}):
        with pytest.raises(
            ValueError, match="batch_dependency must be 1 for disjoint trees, got 2"
        ):
            SubgraphSampler([2], batch_dependency=2, **options)
