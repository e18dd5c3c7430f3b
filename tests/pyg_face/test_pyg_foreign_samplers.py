"""``neighbor_sampler``: used as it is, whatever it is."""

import threading

import pytest
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.sampler import NeighborSampler as PyGNeighborSampler

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_data(num_nodes=40, num_edges=200):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(
        x=torch.randn(num_nodes, 3, generator=generator),
        edge_index=edge_index,
        w=torch.arange(num_edges),
    )


class Path(BaseSampler):
    """One edge of each seed at random, by torch's generator; edge ids through a permutation; notes
    who calls."""

    def __init__(self, data):
        self.data = data
        self.permutation = torch.arange(data.num_edges).flip(0)
        self.calls, self.inside, self.most = [], 0, 0

    @property
    def edge_permutation(self):
        return self.permutation

    def sample_from_nodes(self, inputs, **kwargs):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.calls.append((threading.current_thread(), inputs.input_id.tolist()))
        edge = torch.randint(self.data.num_edges, inputs.node.shape)
        ends = self.data.edge_index[:, edge]
        node, local = torch.cat([inputs.node, ends.view(-1)]), torch.arange(len(edge))
        self.inside -= 1
        return SamplerOutput(
            node=node,
            row=local + len(edge),
            col=local + 2 * len(edge),
            edge=self.data.num_edges - 1 - edge,
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, inputs, neg_sampling=None):
        output = self.sample_from_nodes(
            type("Inputs", (), {"input_id": inputs.input_id, "node": inputs.row, "time": None})
        )
        output.metadata = (
            inputs.input_id,
            torch.stack([inputs.row, inputs.col]),
            inputs.label,
            None,
        )
        return output


def bits(loader):
    return [
        {k: v.tolist() if torch.is_tensor(v) else v for k, v in batch.to_dict().items()}
        for batch in loader
    ]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_very_batches_of_pygs_loader(shuffle):
    """Its random numbers come from the same generator, in the same order."""
    data = make_data()
    options = {"input_nodes": torch.arange(30), "batch_size": 8, "shuffle": shuffle}
    theirs = NodeLoader(data, Path(data), **options)
    ours = NeighborLoader(data, [2], neighbor_sampler=Path(data), **options)
    torch.manual_seed(0)
    expected = [bits(theirs) for _ in range(2)]
    torch.manual_seed(0)
    assert [bits(ours) for _ in range(2)] == expected
    for batch in ours:
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.w, batch.e_id) and torch.equal(batch.x, data.x[batch.n_id])


@pytest.mark.parametrize("workers", [0, 3])
def test_called_for_one_batch_at_a_time_in_order(workers):
    data, sampler = make_data(), None
    sampler = Path(data)
    loaders = [
        NeighborLoader(data, [2], batch_size=4, neighbor_sampler=sampler, num_workers=workers)
        for _ in range(2)
    ]
    for _ in zip(*loaders, strict=True):
        pass
    assert sampler.most == 1
    places = [ids[0] for _, ids in sampler.calls]
    assert sorted(places) == sorted([*range(0, 40, 4)] * 2)
    reader = {thread is threading.current_thread() for thread, _ in sampler.calls}
    assert reader == {workers == 0}


def test_what_says_how_to_sample_is_ignored():
    data = make_data()
    sampler = NeighborSampler(data, [1])
    loader = NeighborLoader(
        data, [9, 9], replace=True, disjoint=True, neighbor_sampler=sampler, batch_size=40
    )
    (batch,) = loader
    assert loader.node_sampler is sampler and "batch" not in batch
    assert torch.bincount(batch.edge_index[1]).max() == 1


def test_one_sampler_for_several_loaders():
    data = make_data()
    sampler = NeighborSampler(data, [2, 2])
    train = NeighborLoader(
        data, None, torch.arange(20), neighbor_sampler=sampler, batch_size=5, num_workers=2
    )
    val = NeighborLoader(data, None, torch.arange(20, 40), neighbor_sampler=sampler, batch_size=5)
    for one, other in zip(train, val, strict=True):
        assert torch.equal(one.x, data.x[one.n_id]) and torch.equal(other.x, data.x[other.n_id])


def test_of_links():
    data = make_data()
    loader = LinkNeighborLoader(
        data, [1], data.edge_index[:, :20], neighbor_sampler=Path(data), batch_size=6
    )
    batches = list(loader)
    assert [batch.input_id.tolist() for batch in batches] == [
        i.tolist() for i in torch.arange(20).split(6)
    ]
    assert all(torch.equal(batch.x, data.x[batch.n_id]) for batch in batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_a_sampler_are_its_own(workers):
    data = make_data()

    class Broken(Path):
        def sample_from_nodes(self, inputs, **kwargs):
            if inputs.input_id[0] >= 8:
                raise ZeroDivisionError("of the sampler")
            return super().sample_from_nodes(inputs, **kwargs)

    epoch = iter(
        NeighborLoader(data, [2], batch_size=4, neighbor_sampler=Broken(data), num_workers=workers)
    )
    assert [next(epoch).input_id[0].item() for _ in range(2)] == [0, 4]
    with pytest.raises(ZeroDivisionError, match="of the sampler"):
        next(epoch)


def test_what_is_no_output_of_a_sampler():
    data = make_data()

    class Nothing(Path):
        def sample_from_nodes(self, inputs, **kwargs):
            return 3

    for make in (
        lambda s: NodeLoader(data, s),
        lambda s: NeighborLoader(data, [1], neighbor_sampler=s),
    ):
        with pytest.raises(TypeError, match="found invalid type"):
            next(iter(make(Nothing(data))))


@pytest.mark.filterwarnings("ignore")
def test_pygs_own_sampler():
    """Where its binaries are, its batches; else its own error."""
    data = make_data()
    loader = NeighborLoader(
        data, [-1], batch_size=8, neighbor_sampler=PyGNeighborSampler(data, [-1])
    )
    if torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE:
        for batch in loader:
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            assert torch.equal(batch.x, data.x[batch.n_id])
    else:
        with pytest.raises(ImportError, match="requires either 'pyg-lib' or 'torch-sparse'"):
            next(iter(loader))


@pytest.mark.parametrize(
    ("loader", "verb"),
    [(NeighborLoader, "sample_from_nodes"), (LinkNeighborLoader, "sample_from_edges")],
)
@pytest.mark.parametrize(
    ("sampler", "got"), [([25, 10], "list"), (NeighborSampler, "'NeighborSampler'")]
)
def test_what_does_not_sample(loader, verb, sampler, got):
    with pytest.raises(
        TypeError, match=rf"neighbor_sampler must be a BaseSampler with {verb}\(\), got {got}"
    ):
        loader(make_data(), [2], neighbor_sampler=sampler)


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("name", ["transform", "transform_sampler_output"])
def test_what_does_not_transform(loader, name):
    with pytest.raises(TypeError, match=f"^{name} must be callable, got 3"):
        loader(make_data(), [2], **{name: 3})
