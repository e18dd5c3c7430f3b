"""What our loaders look like from outside: signatures, attributes, calls."""

import inspect

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")

OURS = [
    "time_window",
    "share_trees",
    "cache",
    "cache_policy",
    "cache_dtype",
    "prefetch",
    "lookahead",
    "memory",
    "shapes",
    "seed",
    "device",
    "sampling_device",
    "use_ddp",
    "batch_dependency",
]
LOADERS = ["NeighborLoader", "LinkNeighborLoader"]


def make_data(num_nodes=40, num_edges=200):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(
        x=torch.randn(num_nodes, 3, generator=generator),
        edge_index=edge_index,
        y=torch.arange(num_nodes),
    )


def make(name, data=None, **options):
    data = make_data() if data is None else data
    if name == "NeighborLoader":
        return NeighborLoader(data, [3, 2], **options)
    return LinkNeighborLoader(data, [3, 2], edge_label_index=data.edge_index[:, :30], **options)


@pytest.mark.parametrize("name", LOADERS)
def test_signatures_are_pygs_with_keywords_of_our_own(name):
    theirs = inspect.signature(getattr(torch_geometric.loader, name).__init__).parameters
    ours = inspect.signature(
        {"NeighborLoader": NeighborLoader}.get(name, LinkNeighborLoader).__init__
    ).parameters
    positional = [p for p in ours.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [(p.name, p.kind) for p in positional] == [(p.name, p.kind) for p in theirs.values()]
    assert [p.default for p in positional] == [p.default for p in theirs.values()]
    assert [p.name for p in ours.values() if p.kind is inspect.Parameter.KEYWORD_ONLY] == OURS


def test_the_samplers_signature_is_pygs():
    import torch_geometric.sampler

    theirs = inspect.signature(torch_geometric.sampler.NeighborSampler.__init__).parameters
    ours = inspect.signature(NeighborSampler.__init__).parameters
    shared = [name for name in theirs if name in ours]
    assert [*ours][: len(shared)] == shared
    assert {*theirs} - {*ours} <= {"sample_direction"}  # of PyG 2.7 and newer
    assert [ours[name].default for name in shared] == [theirs[name].default for name in shared]


@pytest.mark.parametrize("name", LOADERS)
def test_is_one_of_pygs(name):
    loader = make(name)
    assert isinstance(loader, getattr(torch_geometric.loader, name))
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert str(loader) == f"{name}()" and repr(loader).startswith(f"{name}(")


@pytest.mark.parametrize("name", LOADERS)
def test_arguments_by_position(name):
    data, first = make_data(), torch.arange(5)
    if name == "NeighborLoader":
        loader = NeighborLoader(
            data, [2], first, None, True, "induced", False, "last", None, None, str, None, True
        )
    else:
        edges = data.edge_index[:, :5]
        how = True, "induced", False, "last", None, None, None, None, str
        loader = LinkNeighborLoader(data, [2], edges, None, None, *how)
    assert loader.transform is str and isinstance(next(iter(loader)), str)
    assert (loader.replace, loader.subgraph_type, loader.temporal_strategy) == (
        True,
        "induced",
        "last",
    )


@pytest.mark.parametrize("name", LOADERS)
def test_attributes(name):
    data = make_data()
    loader = make(name, data, batch_size=8, num_workers=1, transform=len, seed=3, cache=0)
    assert loader.data is data and loader.transform is len and loader.filter_per_worker is True
    assert (
        loader.dataset == range(len(loader.dataset))
        and loader.batch_size == 8
        and loader.num_workers == 1
    )
    assert isinstance(
        loader.node_sampler if name == "NeighborLoader" else loader.link_sampler, NeighborSampler
    )
    assert loader.input_data is not None and loader.custom_cls is None
    assert (loader.seed, loader.cache, loader.prefetch, loader.device) == (3, 0, 2, None)
    assert make(name, filter_per_worker=False).filter_per_worker is False
    for attribute in ("batch_size", "dataset", "sampler", "batch_sampler", "drop_last"):
        with pytest.raises(ValueError, match=f"{attribute} attribute should not be set after"):
            setattr(loader, attribute, 3)


@pytest.mark.parametrize("name", LOADERS)
def test_dataset_and_collate_fn_are_ignored(name):
    loader = make(name, dataset=[1], collate_fn=len, batch_size=10)
    assert len(loader) == len(make(name, batch_size=10)) and next(iter(loader)).x.shape[1] == 3


@pytest.mark.parametrize("name", LOADERS)
def test_attributes_that_are_set_later_count(name):
    loader, calls = make(name, batch_size=10), []
    list(loader)
    loader.transform = lambda batch: calls.append(type(batch).__name__) or batch.num_nodes
    numbers = list(loader)
    assert all(isinstance(number, int) for number in numbers) and calls == ["Data"] * len(loader)
    loader.transform = None
    loader.data = Data(z=torch.arange(40.0), edge_index=loader.data.edge_index, num_nodes=40)
    for batch in loader:
        assert "x" not in batch and torch.equal(batch.z, batch.n_id.float())
    loader.num_workers = 2
    assert len(list(loader)) == len(loader)
    sampler = NeighborSampler(loader.data, [0])
    setattr(loader, "node_sampler" if name == "NeighborLoader" else "link_sampler", sampler)
    assert all(batch.num_edges == 0 for batch in loader)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_called_with_places(name, filter_per_worker):
    loader = make(name, filter_per_worker=filter_per_worker)
    for index in ([3], torch.tensor([3, 4]), [0, 1, 2]):
        batch = loader(index)
        assert batch.input_id.tolist() == torch.as_tensor(index).tolist()
        assert torch.equal(batch.x, loader.data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], loader.data.edge_index[:, batch.e_id])
    loader.filter_per_worker = False
    torch.manual_seed(0)
    sampled = loader.collate_fn([5, 6])
    assert not isinstance(sampled, Data)
    torch.manual_seed(0)
    assert torch.equal(loader.filter_fn(sampled).n_id, loader([5, 6]).n_id)


@pytest.mark.parametrize("name", LOADERS)
def test_called_loaders_transform_too(name):
    loader = make(name, transform=lambda batch: (batch, 1))
    batch, one = loader([0])
    assert one == 1 and batch.input_id.tolist() == [0]


class Filtering:
    def filter_fn(self, out):
        batch = super().filter_fn(out)
        batch.seen = "filter_fn"
        return batch


class Collating:
    def collate_fn(self, index):
        return super().collate_fn(index[:1])


class Neither:
    pass


# Under names of the module: from Python 3.14 on, torch's worker processes get their loaders
# pickled.
SUBCLASSES = {
    base: [
        type(own.__name__ + base.__name__, (own, base), {})
        for own in (Filtering, Collating, Neither)
    ]
    for base in (NeighborLoader, LinkNeighborLoader)
}
globals().update({made.__name__: made for classes in SUBCLASSES.values() for made in classes})


@pytest.mark.every
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("base", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_methods_of_a_users_own_subclass_are_called(base, workers, filter_per_worker):
    filtering, collating, neither = SUBCLASSES[base]
    data, options = (
        make_data(),
        dict(batch_size=9, num_workers=workers, filter_per_worker=filter_per_worker),
    )
    for batch in filtering(data, [3, 2], **options):
        assert batch.seen == "filter_fn" and torch.equal(batch.x, data.x[batch.n_id])
    loader = collating(data, [3, 2], **options)
    for _ in range(2):
        assert [batch.input_id.tolist() for batch in loader] == [
            [i] for i in range(0, len(loader.dataset), 9)
        ]
    loader = neither(data, [3, 2], **options)
    assert sum(len(batch.input_id) for batch in loader) == len(loader.dataset)
    assert loader.stats.total.batches == len(loader)


def test_data_that_is_none_of_pygs():
    for data in (3, None, {"x": 1}, torch.ones(2)):
        with pytest.raises(ValueError, match="Expected a 'Data', 'HeteroData', or a tuple"):
            NeighborLoader(data, [2])


def test_the_lengths_of_iterators():
    loader = make("NeighborLoader", batch_size=16)
    iterator = iter(loader)
    assert len(iterator) == len(loader) == 3
    next(iterator)
    assert len(iterator) == 3  # as torch's
    assert len(loader._get_iterator()) == 3


def test_iterating_again_and_again():
    loader = make("NeighborLoader", batch_size=16, seed=1)
    for _ in loader:
        break
    loader.set_epoch(0)
    first = [batch.n_id.tolist() for batch in loader]
    loader.set_epoch(0)
    assert [batch.n_id.tolist() for batch in loader] == first
    assert [batch.n_id.tolist() for batch in loader] != first


def test_two_passes_at_once():
    data = make_data()
    train = NeighborLoader(data, [2], torch.arange(20), batch_size=5, seed=1)
    val = NeighborLoader(data, [2], torch.arange(20, 40), batch_size=5, num_workers=2)
    for one, other in zip(train, val, strict=True):
        assert torch.equal(one.x, data.x[one.n_id]) and torch.equal(other.x, data.x[other.n_id])
        assert max(one.input_id) < 20 and torch.equal(
            other.n_id[: other.batch_size], other.input_id + 20
        )
    alone = NeighborLoader(data, [2], torch.arange(20), batch_size=5, seed=1)
    outer, inner = iter(alone), iter(alone)
    seen = [(next(outer).input_id.tolist(), next(inner).input_id.tolist()) for _ in range(4)]
    assert all(one == other for one, other in seen)


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_run_once_a_batch_in_order(workers):
    sampled, batches = [], []

    def of_output(output):
        sampled.append(output.metadata[0].tolist())
        output.node = output.node.clone()
        return output

    def of_batch(batch):
        batches.append(batch.input_id.tolist())
        return batch.input_id.tolist(), "any"

    transforms = {"transform_sampler_output": of_output, "transform": of_batch}
    loader = make("NeighborLoader", batch_size=7, num_workers=workers, **transforms)
    seen = [ids for ids, word in loader if word == "any"]
    assert seen == sampled == batches == [ids.tolist() for ids in torch.arange(40).split(7)]


def test_data_is_not_changed():
    data = make_data()
    data.name, data.scale = "graph", torch.tensor(3)
    keys = data.keys()
    values = {
        key: (data[key], data[key].clone() if torch.is_tensor(data[key]) else data[key])
        for key in keys
    }
    versions = {key: data[key]._version for key in keys if torch.is_tensor(data[key])}
    loader = NeighborLoader(data, [3, 2], torch.arange(10), batch_size=3)
    for batch in [*loader, loader([1])]:
        batch.x.zero_()
        batch.extra = 1
    assert data.keys() == keys
    for key, (same, before) in values.items():
        assert data[key] is same
        assert torch.equal(same, before) if torch.is_tensor(same) else same == before
    assert all(data[key]._version == version for key, version in versions.items())


def test_heterogeneous_loaders_too():
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.arange(6.0), 4
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(6), torch.arange(6) % 4])
    loader = NeighborLoader(data, {("a", "to", "b"): [2]}, input_nodes="b", batch_size=2)
    assert str(loader) == "NeighborLoader()" and len(loader) == 2
    batch = loader([3])
    assert batch["b"].n_id.tolist() == [3] and batch["a"].n_id.tolist() == [3]
    assert [b["b"].batch_size for b in loader] == [2, 2]
