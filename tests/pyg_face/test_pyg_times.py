"""Temporal sampling, disjoint trees and weights through the loader."""

import pytest
import torch
from torch_geometric.data import Data

from pagraph.pyg import NeighborLoader

SEEDS = torch.arange(60)


def random_data(num_nodes=200, num_edges=1500, seed=0, **attributes):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(x=torch.randn(num_nodes, 4, generator=generator), edge_index=edge_index, **attributes)


def node_times(num_nodes=200, latest=50, seed=1):
    return torch.randint(latest, (num_nodes,), generator=torch.Generator().manual_seed(seed))


def times_of_edges(data, batch):
    """The time of each sampled edge, and the limit of the seed it was drawn for."""
    times = data.time[batch.n_id[batch.edge_index[0]]] if len(data.time) == data.num_nodes else data.time[batch.e_id]
    return times, batch.seed_time[batch.batch[batch.edge_index[1]]]


@pytest.mark.parametrize("count", [200, 1500], ids=["nodes", "edges"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("replace", [False, True])
def test_no_edge_is_later_than_its_seed(count, strategy, replace):
    data = random_data(time=node_times(count))
    loader = NeighborLoader(
        data,
        [4, 2],
        input_nodes=SEEDS,
        input_time=SEEDS % 40,
        time_attr="time",
        temporal_strategy=strategy,
        replace=replace,
        batch_size=16,
    )
    drawn = 0
    for batch in loader:
        times, limits = times_of_edges(data, batch)
        assert (times <= limits).all()
        assert torch.equal(batch.seed_time, (SEEDS % 40)[batch.input_id])
        assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))
        drawn += batch.num_edges
    assert drawn > 100
