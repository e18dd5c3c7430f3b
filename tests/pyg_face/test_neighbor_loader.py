import torch
from torch_geometric.data import Data

from pagraph.pyg import NeighborLoader


def test_batches_hold_the_sampled_rows_and_edges():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(200, (2, 1500), generator=generator)
    data = Data(
        x=torch.randn(200, 8, generator=generator),
        edge_index=edge_index,
        edge_attr=torch.arange(1500),
    )
    loader = NeighborLoader(data, [4, 2], input_nodes=torch.arange(60), batch_size=16, shuffle=True)
    seen = []
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        seen += batch.n_id[: batch.batch_size].tolist()
    assert sorted(seen) == list(range(60))
