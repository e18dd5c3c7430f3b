"""PyG's batches of fixed shapes: those of plain ones with padding, for PyG's layers and trimming."""

import io

import pytest
import torch
import torch_geometric.nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler
from torch_geometric.utils import trim_to_layer

from pagraph import WholeStep
from pagraph.pyg import LinkNeighborLoader, NeighborLoader

pytestmark = pytest.mark.usefixtures("no_threads_left")
NUM_NODES = 400
NUM_EDGES = 3000


def make_data():
    generator = torch.Generator().manual_seed(0)
    edge_index = (torch.rand(2, NUM_EDGES, generator=generator) ** 2 * NUM_NODES).long()
    return Data(
        x=torch.randn(NUM_NODES, 8, generator=generator),
        y=torch.arange(NUM_NODES) % 5,
        edge_index=edge_index,
        edge_attr=torch.randn(NUM_EDGES, 4, generator=generator),
        train_mask=torch.arange(NUM_NODES) % 2 == 0,
        # PyG's to select, as it requires gradients.
        w=torch.randn(NUM_NODES, generator=generator).requires_grad_(),
    )


def make(shapes="fixed", data=None, num_neighbors=(3, 4), **options):
    data = make_data() if data is None else data
    settings = {"input_nodes": data.train_mask, "batch_size": 32, "shuffle": True, "seed": 1}
    return NeighborLoader(data, list(num_neighbors), shapes=shapes, **settings | options)


def same(fixed, plain):
    """A padded batch holds a plain one, in order; padding joins only padding."""
    real = fixed.n_id >= 0
    kept = fixed.e_id >= 0
    assert fixed.n_id[real].equal(plain.n_id) and fixed.e_id[kept].equal(plain.e_id)
    for name in ("x", "y", "train_mask", "w"):
        assert fixed[name][real].equal(plain[name])
    assert fixed.edge_attr[kept].equal(plain.edge_attr) and not fixed.edge_attr[~kept].any()
    assert (
        not fixed.x[~real].any() and not fixed.train_mask[~real].any() and not fixed.w[~real].any()
    )
    assert (fixed.y[~real] == -100).all()
    ends = fixed.n_id[fixed.edge_index]
    assert ends[:, kept].equal(plain.n_id[plain.edge_index]) and (ends[:, ~kept] == -1).all()
    assert (fixed.edge_index[1].diff() >= 0).all()
    assert fixed.batch_size == 32 and fixed.input_id[fixed.seed_mask].equal(plain.input_id)
    assert (fixed.input_id[~fixed.seed_mask] == -1).all() and len(fixed.seed_mask) == 32
    assert fixed.n_id[:32][fixed.seed_mask].equal(plain.n_id[: plain.batch_size])
    assert sum(fixed.num_sampled_nodes) == fixed.num_nodes == len(real)
    assert sum(fixed.num_sampled_edges) == fixed.num_edges == len(kept)
    return True


def shape_of(batch):
    return {name: tuple(value.shape) for name, value in batch if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"prefetch": 0, "shuffle": False},
        {"num_neighbors": (-1, 2)},
        {"num_neighbors": ()},
        {"replace": True, "weight_attr": "edge_weight"},
    ],
    ids=str,
)
def test_an_epoch(options):
    data = make_data()
    data.edge_weight = torch.rand(NUM_EDGES)
    plain = list(make("sampled", data, **options))
    loader = make(data=data, **options)
    fixed = list(loader)
    assert len(fixed) == len(plain) and all(map(same, fixed, plain))
    by_number = {batch.shape_number: shape_of(batch) for batch in fixed}
    assert all(shape_of(batch) == by_number[batch.shape_number] for batch in fixed)
    assert loader.envelope.batches[0] >= 0.9 * len(fixed) and len(by_number) <= 3
    counts = loader.stats.total.counts
    assert counts["input_nodes"] == sum(batch.num_nodes for batch in plain)


def test_values_that_change_and_transforms():
    """What is read again is padded again; transforms get padded batches."""
    data = make_data()
    plain, fixed = make("sampled", data), make(data=data)
    for batch, other in zip(fixed, plain, strict=True):
        same(batch, other)
        data.x.mul_(2)
        data.y = (data.y + 1) % 5
    loader = make(transform=lambda batch: (batch.num_nodes, int(batch.seed_mask.sum())))
    nodes, seeds = zip(*loader, strict=True)
    assert len({*nodes}) <= 3 and sum(seeds) == NUM_NODES // 2


def test_requests_and_resume():
    loader = make()
    assert same(loader.batch([7, 3]), make("sampled").batch([7, 3]))
    assert same(loader([0, 4]), make("sampled")([0, 4]))
    with pytest.raises(ValueError, match="seeds must be at most batch_size=32"):
        loader.batch(range(33))
    with pytest.raises(ValueError, match="seeds must be at most batch_size=32"):
        loader(range(33))
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    again = make()
    again.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    loader.load_state_dict(loader.state_dict())
    rest, expected = list(again), list(loader)
    assert len(rest) == len(loader) - 1
    assert [b.n_id.tolist() for b in rest] == [b.n_id.tolist() for b in expected]


class Net(torch.nn.Module):
    """Two layers, on all vertices or trimmed to what each needs."""

    def __init__(self, kind, trims):
        super().__init__()
        torch.manual_seed(1)
        make_layer = getattr(torch_geometric.nn, kind)
        self.layers = torch.nn.ModuleList([make_layer(8, 16), make_layer(16, 5)])
        self.trims = trims

    def forward(self, batch):
        x, edge_index = batch.x, batch.edge_index
        sampled = batch.num_sampled_nodes, batch.num_sampled_edges
        for place, layer in enumerate(self.layers):
            if self.trims:
                x, edge_index, _ = trim_to_layer(place, *sampled, x, edge_index)
            x = layer(x, edge_index).tanh()
        return x[: batch.batch_size]


@pytest.mark.every
@pytest.mark.parametrize("kind", ["SAGEConv", "GCNConv", "GATConv"])
@pytest.mark.parametrize("trims", [False, True])
def test_losses_and_gradients_are_those_of_plain_batches(kind, trims):
    model = Net(kind, trims)

    def gradients(loader):
        found = []
        for batch in loader:
            loss = functional.cross_entropy(model(batch), batch.y[: batch.batch_size])
            model.zero_grad()
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        return found

    for one, other in zip(gradients(make()), gradients(make("sampled")), strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_whole_step_takes_these_batches():
    model = Net("SAGEConv", True)
    assert len([WholeStep(model)(batch) for batch in make()]) == len(make())


def test_what_cannot_have_fixed_shapes():
    data = make_data()
    for text, options in {
        "got disjoint trees": {"disjoint": True},
        "got induced": {"subgraph_type": "induced"},
        "the loader's own sampler, got _Own": {"neighbor_sampler": _Own()},
        "a batch_size, got a batch_sampler": {
            "batch_sampler": [[0, 1]],
            "batch_size": 1,
            "shuffle": False,
        },
    }.items():
        with pytest.raises(ValueError, match=text):
            make(data=data, **options)
    with pytest.raises(ValueError, match=r"data without the attributes \['seed_mask'\]"):
        make(data=Data(seed_mask=torch.ones(4), **data.to_dict()))
    with pytest.raises(
        ValueError, match="a Data, of one vertex type and one edge type, got Hetero"
    ):
        NeighborLoader(data.to_heterogeneous(), [2], input_nodes="0", shapes="fixed")
    with pytest.raises(ValueError, match="shapes must be 'sampled' for all PyG loaders but"):
        LinkNeighborLoader(data, [2], shapes="fixed")

    class Filtering(NeighborLoader):
        def filter_fn(self, output):
            return output

    with pytest.raises(ValueError, match="without a custom filter_fn or collate_fn, got Filt"):
        Filtering(data, [2], shapes="fixed")
    loader = make()
    loader.transform_sampler_output = lambda output: output
    with pytest.raises(
        ValueError, match="transform_sampler_output must be None with shapes='fixed'"
    ):
        next(iter(loader))
    data.name = torch.arange(NUM_NODES).numpy().astype(str)
    with pytest.raises(TypeError, match="can't convert np.ndarray"):  # PyG's, with any shapes
        next(iter(make(data=data)))


class _Own(BaseSampler):
    def sample_from_nodes(self, inputs):
        raise AssertionError("no batch is asked for")

    sample_from_edges = sample_from_nodes
