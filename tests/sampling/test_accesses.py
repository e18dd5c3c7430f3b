"""Counting accesses: equal to counting by hand, by hop and type, with any number of threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.graph.minibatch import MiniBatch
from pagraph.ranking.presample import AccessCounts, count_accesses
from pagraph.sampling import LayerSampler, NeighborSampler
from pagraph.sampling.sampler import MiniBatchSampler
from pagraph.seeds.order import SeedOrder

pytestmark = pytest.mark.usefixtures("no_threads_left")


def random_graph(n=50, m=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Graph.from_coo(*torch.randint(0, n, (2, m), generator=generator), num_nodes=n)


def typed_graph():
    """Two types; "a" draws from "b" and back, "b" from itself."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"a": 20, "b": 30}
    csc = {}
    for etype in (("b", "to", "a"), ("a", "back", "b"), ("b", "in", "b")):
        src, dst = sizes[etype[0]], sizes[etype[2]]
        indptr = torch.arange(0, 3 * dst + 1, 3)
        csc[etype] = CSC(indptr, torch.randint(0, src, (3 * dst,), generator=generator), src)
    return Graph(csc, sizes)


def batches_of(graph, seeds, sampler, *, batch_size, seed, epochs, drop_last=False):
    order = SeedOrder(seeds, batch_size, shuffle=True, drop_last=drop_last, seed=seed)
    for epoch in epochs:
        plan = order.plan(epoch)
        for index in range(len(order)):
            ticket = order.ticket(plan, index)
            yield sampler.sample(graph, ticket.seeds, ticket.key)


def by_hand(num_nodes, num_hops, rows):
    """Rows of (vertices in the order of their discovery, how many after each hop) as a table by
    vertex and hop."""
    table = [[0] * (num_hops + 1) for _ in range(num_nodes)]
    for nodes, ends in rows:
        for place, v in enumerate(nodes):
            hop = next(h for h, end in enumerate(ends) if place < end)
            table[v][hop] += 1
    return table


@settings(max_examples=examples(25))
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 15),
    seed=st.integers(0, 2**63),
    epochs=st.lists(st.integers(0, 9), max_size=3),
    fanouts=st.lists(st.sampled_from([1, 3, -1]), min_size=1, max_size=3),
    repeated=st.booleans(),
    drop_last=st.booleans(),
    threads=st.sampled_from([1, 2, 5]),
)
def test_equals_counting_by_hand(
    n, batch_size, seed, epochs, fanouts, repeated, drop_last, threads
):
    graph, sampler = random_graph(n, 4 * n, seed % 1000), NeighborSampler(fanouts)
    seeds = torch.arange(0, n, 2)
    seeds = torch.cat([seeds, seeds[:3], seeds[:1]]) if repeated else seeds
    options = dict(batch_size=batch_size, seed=seed, epochs=epochs, drop_last=drop_last)
    counts = count_accesses(graph, seeds, sampler, threads=threads, **options)
    batches = list(batches_of(graph, seeds, sampler, **options))
    table = by_hand(n, len(fanouts), [(b.input_nodes.tolist(), b.hop_ends) for b in batches])
    assert counts.by_hop("_N").tolist() == table and counts.by_hop("_N").dtype == torch.int64
    assert counts.reads("_N").tolist() == [sum(row) for row in table]
    for hop in range(len(fanouts)):
        assert counts.frontier("_N", hop).tolist() == [sum(row[: hop + 1]) for row in table]
    assert counts.total == sum(len(b.input_nodes) for b in batches)
    assert (counts.batches, counts.num_hops, counts.node_types) == (
        len(batches),
        len(fanouts),
        ["_N"],
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "seeds", [{"a": torch.arange(20)}, {"b": torch.arange(9), "a": torch.arange(7)}], ids=str
)
def test_types_are_counted_apart(threads, seeds):
    graph, sampler = typed_graph(), NeighborSampler([2, 2])
    options = dict(batch_size=4, seed=3, epochs=(0, 4))
    counts = count_accesses(graph, seeds, sampler, threads=threads, **options)
    batches = list(batches_of(graph, seeds, sampler, **options))
    for ntype in ("a", "b"):
        rows = [(b.input_nodes[ntype].tolist(), b.hop_ends[ntype]) for b in batches]
        assert counts.by_hop(ntype).tolist() == by_hand(graph.num_nodes_of(ntype), 2, rows)
    assert counts.total == sum(len(ids) for b in batches for ids in b.input_nodes.values())


def test_the_batches_are_those_of_a_loader():
    from pagraph import Loader

    graph, seeds, sampler = random_graph(), torch.arange(0, 50, 3), NeighborSampler([2, 2])
    loader = Loader(graph, seeds, sampler, batch_size=4, shuffle=True, seed=9)
    reads = torch.zeros(50, dtype=torch.int64)
    for _ in range(2):
        for batch in loader:
            reads += torch.bincount(batch.input_nodes, minlength=50)
    counts = count_accesses(graph, seeds, sampler, batch_size=4, seed=9, epochs=range(2))
    assert torch.equal(counts.reads("_N"), reads)


def test_any_sampler_can_be_counted():
    graph, sampler = random_graph(), LayerSampler([5, 5])
    counts = count_accesses(graph, torch.arange(20), sampler, batch_size=5, seed=0)
    batches = batches_of(graph, torch.arange(20), sampler, batch_size=5, seed=0, epochs=(0,))
    assert counts.by_hop("_N").tolist() == by_hand(
        50, 2, [(b.input_nodes.tolist(), b.hop_ends) for b in batches]
    )


@pytest.mark.parametrize(("most", "nbytes"), [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_counters_are_as_wide_as_they_must_be(most, nbytes):
    assert AccessCounts({"_N": 10, "other": 5}, 2, most=most).nbytes == 15 * 3 * nbytes


@pytest.mark.parametrize("most", [255, 256, 65_535, 65_536])
def test_counters_hold_what_they_are_made_for(most):
    counts = AccessCounts({"_N": 3}, 0, most=most)
    counts.add(MiniBatch(torch.ones(most, dtype=torch.int64), []))
    assert counts.reads("_N").tolist() == [0, most, 0] and counts.by_hop("_N").tolist() == [
        [0],
        [most],
        [0],
    ]


def test_repeated_seeds_have_room():
    """70,000 copies of one seed in one batch: more than 2 bytes hold."""
    graph = random_graph()
    counts = count_accesses(
        graph,
        torch.zeros(70_000, dtype=torch.int64),
        NeighborSampler([1]),
        batch_size=70_000,
        seed=0,
    )
    assert int(counts.by_hop("_N")[0, 0]) == 70_000


class Failing(MiniBatchSampler):
    """Fails at its third batch."""

    num_hops = 1

    def __init__(self, error):
        self.error, self.left = error, 2

    def sample(self, graph, seeds, key=0):
        if not self.left:
            raise self.error
        self.left -= 1
        return NeighborSampler([1]).sample(graph, seeds, key)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "error", [RuntimeError("no more"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_a_samplers_error_reaches_the_caller(threads, error):
    with pytest.raises(type(error)):
        count_accesses(
            random_graph(), torch.arange(50), Failing(error), batch_size=1, seed=0, threads=threads
        )


def test_progress_is_told_of_each_batch():
    told = []
    count_accesses(
        random_graph(),
        torch.arange(20),
        NeighborSampler([1]),
        batch_size=3,
        seed=0,
        epochs=range(2),
        threads=2,
        progress=lambda: told.append(1),
    )
    assert len(told) == 14


def test_no_time_is_time_for_one_epoch():
    options = dict(batch_size=3, seed=0, epochs=range(50), threads=1)
    counts = count_accesses(
        random_graph(), torch.arange(20), NeighborSampler([1]), seconds=0.0, **options
    )
    assert counts.batches == 7


@pytest.mark.parametrize("seeds", [torch.tensor([50]), torch.tensor([-1])], ids=str)
def test_wrong_seeds(seeds):
    with pytest.raises(IndexError, match=r"seeds must be in \[0, 50\)"):
        count_accesses(random_graph(), seeds, NeighborSampler([1]), batch_size=1, seed=0)
