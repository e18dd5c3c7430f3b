"""Ranking by a few batches: the vertices that they read, by how many of them do, and no others."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import Loader
from pagraph.graph import Graph
from pagraph.ranking.policies import POLICIES, FewBatches, ranking_bytes, spread_seeds
from pagraph.ranking.policy import apply_policy
from pagraph.sampling import LaborSampler, NeighborSampler


class Watched:
    """A sampler that keeps what it has sampled."""

    def __init__(self, sampler):
        self.sampler, self.batches = sampler, []

    def sample(self, graph, seeds, key):
        self.batches.append(self.sampler.sample(graph, seeds, key))
        return self.batches[-1]


@settings(max_examples=examples(40))
@given(
    n=st.integers(1, 40),
    m=st.integers(0, 200),
    count=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    rows=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from([NeighborSampler([2, 3]), LaborSampler([2])]),
)
def test_counts_are_those_of_the_sampled_batches(n, m, count, batch_size, rows, seed, kind):
    generator = torch.Generator().manual_seed(seed)
    graph = Graph.from_coo(*torch.randint(n, (2, m), generator=generator), num_nodes=n)
    seeds, watched = torch.randint(n, (count,), generator=generator), Watched(kind)
    (ranking,) = apply_policy(
        FewBatches(rows), graph, seeds, watched, seed, batch_size=batch_size
    ).values()
    # A seed that is there twice has two rows.
    counts = Counter(v for batch in watched.batches for v in batch.input_nodes.tolist())
    wanted = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    assert ranking.ids.tolist() == [v for v, _ in wanted]
    assert ranking.scores.tolist() == [c for _, c in wanted] and not ranking.per_epoch
    read = [len(batch.input_nodes) for batch in watched.batches]
    assert len(read) <= min(64, -(-count // batch_size)) and sum(read[:-1]) < rows


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_that_a_loader_reads(shuffle):
    generator = torch.Generator().manual_seed(1)
    graph = Graph.from_coo(*torch.randint(500, (2, 3000), generator=generator), num_nodes=500)
    seeds, watched = torch.arange(0, 500, 3), Watched(NeighborSampler([2, 3]))
    apply_policy(FewBatches(), graph, seeds, watched, 7, batch_size=9, shuffle=shuffle)
    read = Loader(graph, seeds, NeighborSampler([2, 3]), batch_size=9, shuffle=shuffle, seed=7)
    assert [b.input_nodes.tolist() for b in watched.batches] == [
        b.input_nodes.tolist() for b in read
    ]
    few, spread = Watched(NeighborSampler([2, 3])), torch.arange(500).repeat(20)
    apply_policy(FewBatches(100), graph, spread, few, 7, batch_size=9, shuffle=shuffle)
    assert few.batches[0].output_nodes.tolist() == (
        spread_seeds(spread, 9, 0.0).tolist() if shuffle else list(range(9))
    )


def test_seeds_are_from_all_over():
    assert spread_seeds(torch.arange(100), 4, 0.5).tolist() == [12, 37, 62, 87]
    assert spread_seeds(torch.arange(3), 10, 0.9).tolist() == [0, 1, 2]
    assert spread_seeds(torch.arange(0), 10, 0.0).tolist() == []
    by_type = {"a": torch.arange(30), "b": torch.arange(10), "c": torch.arange(0)}
    assert {t: len(ids) for t, ids in spread_seeds(by_type, 8, 0.0).items()} == {"a": 6, "b": 2}


def test_a_users_own_sampler_ranks_nothing():
    graph = Graph.from_coo([0, 1], [1, 0])
    (ranking,) = apply_policy(FewBatches(), graph, torch.arange(2), None, 0, batch_size=1).values()
    assert len(ranking.ids) == 0


@pytest.mark.parametrize(("rows", "error"), [(0, ValueError), (1.5, TypeError)])
def test_rows_are_an_integer_from_1_on(rows, error):
    with pytest.raises(error, match="rows must be"):
        FewBatches(rows)


def test_costly_policies_are_known_as_such():
    graph = Graph.from_coo([0, 1], [1, 0], num_nodes=1000)
    costs = {name: ranking_bytes(policy, graph, 2) for name, policy in POLICIES.items()}
    assert costs["auto"] > costs["presample"] > costs["vip"] > costs["degree"] > costs["random"] > 0
    assert ranking_bytes(lambda graph, seeds, sampler, seed: None, graph, 2) == 0
