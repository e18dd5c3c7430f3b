"""Ranking edges by the draws of their destinations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph import Graph
from pagraph.graph.graph import CSC, EDGE_TYPE
from pagraph.ranking import edge_draws, expected_accesses, rank_edges
from pagraph.ranking.presample import count_accesses
from pagraph.sampling import LayerSampler, NeighborSampler
from pagraph.seeds.order import SeedOrder

pytestmark = pytest.mark.kernels


graphs = st.integers(1, 20).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60)
    )
)


def build(n, edges, **fields):
    src, dst = zip(*edges, strict=True) if edges else ([], [])
    return Graph.from_coo(list(src), list(dst), num_nodes=n, edata=fields)


@settings(max_examples=examples(60))
@given(graph=graphs, data=st.data())
def test_edges_by_the_draws_of_their_destination(graph, data):
    n, edges = graph
    draws = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    ranking = rank_edges(build(n, edges), EDGE_TYPE, draws)
    # Stable: by destination, and within one in the order of the ids, as edges lie in the CSC.
    expected = sorted(range(len(edges)), key=lambda e: (-int(draws[edges[e][1]]), edges[e][1], e))
    assert ranking.ids.tolist() == expected
    assert (
        ranking.scores.tolist() == [float(draws[edges[e][1]]) for e in expected]
        and ranking.per_epoch
    )


def test_ids_are_positions_where_the_graph_has_none():
    graph = Graph(CSC(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 2]), 3))
    assert rank_edges(graph, EDGE_TYPE, torch.tensor([1.0, 9.0, 2.0])).ids.tolist() == [2, 0, 1]


def test_one_draw_count_for_each_destination():
    with pytest.raises(ValueError, match=r"draws must have shape \(2,\), got \(3,\)"):
        rank_edges(build(2, [(0, 1)]), EDGE_TYPE, torch.ones(3))


def drawn(graph, seeds, sampler, batch_size, epochs):
    """How often each in-edge is in a block, by position, and the counts of the same batches."""
    order, times = SeedOrder(seeds, batch_size, shuffle=True, seed=0), torch.zeros(graph.num_edges)
    for epoch in range(epochs):
        plan = order.plan(epoch)
        for index in range(len(order)):
            ticket = order.ticket(plan, index)
            for block in sampler.sample(graph, ticket.seeds, ticket.key).blocks:
                times += torch.bincount(block.positions, minlength=graph.num_edges)
    counts = count_accesses(
        graph, seeds, sampler, batch_size=batch_size, seed=0, epochs=range(epochs), threads=1
    )
    return times, counts


@pytest.mark.statistics
@pytest.mark.parametrize("fanouts", [[2, 3], [-1, 1], [2, 2, 2]])
@pytest.mark.parametrize(
    "options", [{}, {"replace": True}, {"prob": "mask"}, {"prob": "w", "replace": True}], ids=str
)
def test_draws_add_up_to_the_edges_of_the_blocks(fanouts, options):
    """With counted frontiers the sum over a vertex's edges is exact, whichever edges they are."""
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 30, (2, 200), generator=generator)
    w = torch.rand(200, generator=generator) * (torch.rand(200, generator=generator) < 0.7)
    graph = Graph.from_coo(src, dst % 25, num_nodes=30, edata={"w": w, "mask": w > 0})
    seeds, sampler = torch.tensor([*range(0, 30, 2), 4, 4]), NeighborSampler(fanouts, **options)
    times, counts = drawn(graph, seeds, sampler, 4, 3)
    by_vertex = torch.zeros(30).index_add(0, graph.csc.destinations().long(), times)
    draws = edge_draws(counts, graph, sampler, EDGE_TYPE) * torch.diff(graph.csc.indptr)
    assert torch.allclose(draws, by_vertex.double(), atol=1e-9)


def test_expected_draws_are_those_of_many_epochs():
    generator = torch.Generator().manual_seed(2)
    graph = Graph.from_coo(*torch.randint(0, 80, (2, 600), generator=generator), num_nodes=80)
    seeds, sampler = torch.arange(0, 80, 4), NeighborSampler([2, 3])
    times, _ = drawn(graph, seeds, sampler, 5, 300)
    expected = edge_draws(
        expected_accesses(graph, seeds, sampler, batch_size=5), graph, sampler, EDGE_TYPE
    )
    by_edge, real = expected[graph.csc.destinations().long()], times / 300
    assert abs(float(by_edge.sum() / real.sum()) - 1) < 0.02
    assert float((by_edge - real).abs().sum() / real.sum()) < 0.08


def test_layers_have_no_fanouts():
    with pytest.raises(ValueError, match="samplers with fan-outs only, got LayerSampler"):
        edge_draws(None, build(2, [(0, 1)]), LayerSampler([2]), EDGE_TYPE)
