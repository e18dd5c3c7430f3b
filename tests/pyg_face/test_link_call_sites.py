"""Links as the examples of PyG use them: trained on, pickled, made again, with every kind of
subgraph."""

import copy
import pickle
import typing

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.utils import trim_to_layer

from pagraph.pyg import LinkNeighborLoader, NeighborSampler


def circle(count, width):
    """Vertices that are linked to the next ones; features say where a vertex is."""
    place = torch.arange(count)
    edge_index = torch.cat(
        [torch.stack([(place + i) % count, place]) for i in range(1, width + 1)], 1
    )
    angle = 2 * torch.pi * place / count
    x = torch.stack([f(k * angle) for f in (torch.sin, torch.cos) for k in (1, 2, 3)], 1)
    return Data(x=x, edge_index=torch.cat([edge_index, edge_index.flip(0)], 1))


def test_unsupervised_learning_of_links():
    torch.manual_seed(0)
    data = circle(200, 4)
    loader = LinkNeighborLoader(
        data, batch_size=128, shuffle=True, neg_sampling_ratio=1.0, num_neighbors=[5, 5]
    )
    model = GraphSAGE(data.num_node_features, hidden_channels=16, num_layers=2)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(4):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            h = model(batch.x, batch.edge_index)
            src, dst = batch.edge_label_index
            pred = (h[src] * h[dst]).sum(dim=-1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(pred, batch.edge_label)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * pred.size(0)
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 8)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_a_recommender_trains(mode, monkeypatch):
    for name in ("Any", "Callable", "Dict", "List", "Optional", "Union"):
        # to_hetero before PyG 2.7 takes them from there, where newer versions of torch lack some
        monkeypatch.setattr(torch.fx._symbolic_trace, name, getattr(typing, name), raising=False)
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].x, data["movie"].x = torch.randn(80, 6), torch.randn(60, 4)
    ends = torch.stack([torch.randint(80, (800,)), torch.randint(60, (800,))])
    data["user", "rates", "movie"].edge_index = ends
    data["user", "rates", "movie"].time = torch.arange(800)
    data["movie", "rev_rates", "user"].edge_index = ends.flip(0)
    data["movie", "rev_rates", "user"].time = torch.arange(800)
    rates = ("user", "rates", "movie")
    loader = LinkNeighborLoader(
        data=data,
        num_neighbors=[5, 5, 5],
        edge_label_index=(rates, data[rates].edge_index),
        neg_sampling=dict(mode=mode, amount=2),
        edge_label_time=data[rates].time - 1 + (data[rates].time == 0),
        time_attr="time",
        temporal_strategy="last",
        batch_size=256,
        shuffle=True,
        num_workers=2,
    )
    model = to_hetero(Encoder(), data.metadata())
    optimizer, seen = None, 0
    for batch in loader:
        out = model(batch.x_dict, batch.edge_index_dict)
        if mode == "binary":
            src, dst = batch[rates].edge_label_index
            pred = (out["user"][src] * out["movie"][dst]).sum(-1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                pred, batch[rates].edge_label
            )
        else:
            user = out["user"][batch["user"].src_index]
            positive = (user * out["movie"][batch["movie"].dst_pos_index]).sum(-1)
            negative = (user[:, None] * out["movie"][batch["movie"].dst_neg_index]).sum(-1)
            loss = -torch.nn.functional.logsigmoid(positive[:, None] - negative).mean()
        optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
        seen += len(batch[rates].input_id)
    assert seen == 800


def test_trimmed_layers_give_the_same_at_the_ends():
    data = circle(100, 3)
    convs = [SAGEConv(6, 6), SAGEConv(6, 6)]
    for batch in LinkNeighborLoader(data, [2, 2], batch_size=64, neg_sampling="binary"):
        whole, x, edge_index = batch.x, batch.x, batch.edge_index
        for layer, conv in enumerate(convs):
            whole = conv(whole, batch.edge_index)
            x, edge_index, _ = trim_to_layer(
                layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index, None
            )
            x = conv(x, edge_index)
        ends = batch.edge_label_index.unique()
        torch.testing.assert_close(x[ends], whole[ends])


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_every_kind_of_subgraph(subgraph_type):
    data = circle(100, 3)
    data.edge_attr = torch.arange(data.num_edges)
    for batch in LinkNeighborLoader(
        data,
        [2, 2],
        batch_size=10,
        neg_sampling="triplet",
        subgraph_type=subgraph_type,
        shuffle=True,
    ):
        assert torch.equal(batch.n_id[batch.src_index], data.edge_index[0, batch.input_id])
        pairs = set(map(tuple, batch.n_id[batch.edge_index].t().tolist()))
        assert pairs <= set(map(tuple, data.edge_index.t().tolist()))
        if subgraph_type == "bidirectional":
            assert pairs == {(b, a) for a, b in pairs}


def test_weights_of_edges():
    data = circle(50, 3)
    data.weight = torch.zeros(data.num_edges)
    data.weight[::3] = 1.0
    for batch in LinkNeighborLoader(
        data, [2, 2], batch_size=16, neg_sampling="binary", weight_attr="weight"
    ):
        assert batch.e_id.numel() and (batch.e_id % 3 == 0).all()


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_copied_and_pickled_loaders_begin_their_epoch_anew(remake):
    loader = LinkNeighborLoader(
        circle(60, 2),
        [2],
        neg_sampling=dict(mode="triplet", dst_weight=torch.rand(60)),
        batch_size=20,
        seed=3,
    )
    batches = iter(loader)
    first = next(batches)
    other = remake(loader)
    for mine, others in zip([first, *batches], other, strict=True):
        assert torch.equal(mine.n_id, others.n_id) and torch.equal(
            mine.dst_neg_index, others.dst_neg_index
        )


def test_a_state_in_the_middle_of_an_epoch():
    settings = {"neg_sampling": "binary", "batch_size": 20, "shuffle": True, "seed": 3}
    loader = LinkNeighborLoader(circle(60, 2), [2], **settings)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, rest = loader.state_dict(), list(batches)
    other = LinkNeighborLoader(circle(60, 2), [2], **settings)
    other.load_state_dict(state)
    again = list(other)
    assert [b.input_id.tolist() for b in again] == [b.input_id.tolist() for b in rest]
    assert all(torch.equal(a.n_id, b.n_id) for a, b in zip(again, rest, strict=True))


class Foreign(BaseSampler):
    """A user's own sampler: the ends, and nothing else."""

    edge_permutation = None

    def sample_from_nodes(self, inputs, **kwargs):
        raise NotImplementedError

    def sample_from_edges(self, inputs, neg_sampling=None):
        nothing = torch.empty(0, dtype=torch.int64)
        node, index = torch.stack([inputs.row, inputs.col]).unique(return_inverse=True)
        metadata = (inputs.input_id, index, inputs.label, inputs.time)
        return SamplerOutput(node, nothing, nothing, nothing, metadata=metadata)


def test_a_users_own_sampler():
    data = circle(60, 2)
    loader = LinkNeighborLoader(
        data, [2], neighbor_sampler=Foreign(), batch_size=20, shuffle=True, neg_sampling=None
    )
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_label_index], data.edge_index[:, batch.input_id])
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_pygs_loader_with_worker_processes():
    data = circle(60, 2)
    loader = LinkLoader(
        data, NeighborSampler(data, [2, 2]), neg_sampling="binary", batch_size=30, num_workers=2
    )
    for batch in loader:
        p = len(batch.input_id)
        assert torch.equal(
            batch.n_id[batch.edge_label_index[:, :p]], data.edge_index[:, batch.input_id]
        )
        assert torch.equal(batch.edge_label, torch.cat([torch.ones(p), torch.zeros(p)]))
