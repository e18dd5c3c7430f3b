"""batch_dependency of the PyG loaders: what consecutive batches have in common, and what is
refused."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")

CENTRES, DEGREE, PERIOD = 200, 10, 8
EDGES = torch.stack(
    [torch.arange(CENTRES, CENTRES * (1 + DEGREE)), torch.arange(CENTRES).repeat_interleave(DEGREE)]
)
DATA = Data(edge_index=EDGES, num_nodes=CENTRES * (1 + DEGREE))
EXPECTED = 1 - (1 - 2 / DEGREE) / PERIOD


def hetero():
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = CENTRES * (1 + DEGREE), CENTRES
    data["a", "to", "b"].edge_index = EDGES
    return data


def nodes(data=DATA, **options):
    seeds = torch.arange(CENTRES).repeat(20)
    given = seeds if isinstance(data, Data) else ("b", seeds)
    return NeighborLoader(data, [2], given, batch_size=CENTRES, **{"seed": 1, **options})


def links(**options):
    ends = torch.arange(CENTRES).repeat(20)
    return LinkNeighborLoader(
        DATA, [2], torch.stack([ends, ends]), batch_size=CENTRES, seed=1, **options
    )


def alike(loader):
    """Share of a batch's edges that are in the next one."""
    ids = [b.e_id if isinstance(b, Data) else b["a", "to", "b"].e_id for b in loader]
    sets = [set(each.tolist()) for each in ids]
    return sum(len(a & b) for a, b in zip(sets, sets[1:], strict=False)) / sum(map(len, sets[1:]))


@pytest.mark.parametrize("make", [nodes, links, lambda **options: nodes(hetero(), **options)])
def test_batches_behind_each_other_share(make):
    assert alike(make(batch_dependency=PERIOD)) == pytest.approx(EXPECTED, abs=0.01)
    assert alike(make()) == pytest.approx(2 / DEGREE, abs=0.01)


def test_threads_and_our_own_sampler_give_the_same():
    expected = [batch.e_id.tolist() for batch in nodes(batch_dependency=PERIOD, prefetch=0)]
    sampler = NeighborSampler(DATA, [2], batch_dependency=PERIOD)
    for options in ({"batch_dependency": PERIOD, "num_workers": 3}, {"neighbor_sampler": sampler}):
        assert [batch.e_id.tolist() for batch in nodes(**options)] == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_dependency": 0}, ValueError, "batch_dependency must be at least 1, got 0"),
        ({"batch_dependency": -1}, ValueError, "batch_dependency must be at least 1, got -1"),
        ({"batch_dependency": "2"}, TypeError, "batch_dependency must be an integer, got '2'"),
        (
            {"batch_dependency": 2, "disjoint": True},
            ValueError,
            "must be 1 for disjoint trees, got 2",
        ),
        (
            {"batch_dependency": 2, "neighbor_sampler": NeighborSampler(DATA, [2])},
            ValueError,
            "batch_dependency must be 1 if neighbor_sampler is given, got 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, error, message):
    for make in (nodes, links):
        with pytest.raises(error, match=message):
            make(**options)
