"""Presampling: ranks by counted reads of other epochs than those trained on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.ranking import Presample, resolve_policy
from pagraph.ranking.presample import presampling_seed
from pagraph.sampling import LaborSampler, LayerSampler, NeighborSampler
from pagraph.seeds.order import SeedOrder


def random_graph(n=60, m=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Graph.from_coo(*torch.randint(0, n, (2, m), generator=generator), num_nodes=n)


def reads(graph, seeds, sampler, seed, epochs, batch_size):
    """Counted in the plainest way."""
    order = SeedOrder(seeds, batch_size, shuffle=True, seed=seed)
    counts = [0] * graph.num_nodes
    for epoch in range(epochs):
        plan = order.plan(epoch)
        for index in range(len(order)):
            ticket = order.ticket(plan, index)
            for v in sampler.sample(graph, ticket.seeds, ticket.key).input_nodes.tolist():
                counts[v] += 1
    return counts


@settings(max_examples=examples(25))
@given(
    n=st.integers(1, 30),
    seed=st.integers(0, 2**63),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 12),
    sampler=st.sampled_from([NeighborSampler([2, 2]), LaborSampler([3]), LayerSampler([4, 4])]),
)
def test_ranks_by_reads_then_out_degree_then_id(n, seed, epochs, batch_size, sampler):
    graph, seeds = random_graph(n, 3 * n, seed % 1000), torch.arange(0, n, 3)
    ranking = Presample(epochs)(graph, seeds, sampler, seed, batch_size=batch_size)["_N"]
    counts = reads(graph, seeds, sampler, presampling_seed(seed), epochs, batch_size)
    degrees = graph.out_degrees().tolist()
    assert ranking.ids.tolist() == sorted(range(n), key=lambda v: (-counts[v], -degrees[v], v))
    assert ranking.per_epoch and ranking.scores.tolist() == sorted(
        (c / epochs for c in counts), reverse=True
    )


def test_the_epochs_are_not_those_of_the_loader():
    graph, sampler = random_graph(), NeighborSampler([2, 2])
    of_loader = reads(graph, torch.arange(20), sampler, 5, 1, 4)
    counted = reads(graph, torch.arange(20), sampler, presampling_seed(5), 1, 4)
    assert counted != of_loader
    assert len({presampling_seed(seed) for seed in range(1000)} | set(range(1000))) == 2000


def test_types_of_a_heterograph():
    csc = CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 2]), 4)
    graph = Graph({("a", "to", "b"): csc}, {"a": 4, "b": 2})
    rankings = Presample(2)(
        graph, {"b": torch.tensor([0, 1])}, NeighborSampler([2]), 0, batch_size=1
    )
    assert rankings["a"].ids.tolist() == [1, 0, 2, 3] and rankings["a"].scores.tolist() == [
        2.0,
        1.0,
        1.0,
        0.0,
    ]
    assert rankings["b"].scores.tolist() == [1.0, 1.0]


def test_names_with_a_number():
    assert resolve_policy("presample") == Presample(1)
    assert resolve_policy("presample:12") == Presample(12)


@pytest.mark.parametrize(
    "name",
    ["presample:", "presample:0", "presample:-1", "presample:x", "presample:1.5", "presample:²"],
)
def test_bad_numbers(name):
    with pytest.raises(
        ValueError,
        match=f"'presample:K' needs a whole number of epochs K of at least 1, got '{name}'",
    ):
        resolve_policy(name)


@pytest.mark.parametrize(
    ("epochs", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_bad_epochs(epochs, error):
    with pytest.raises(error, match="epochs must be"):
        Presample(epochs)
