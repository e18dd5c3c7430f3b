"""Loaders that are pickled, copied, or made again from their attributes, as Lightning does it."""

import copy
import inspect
import pickle

import pytest
import torch
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_data(num_nodes=50, num_edges=300):
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        y=torch.randint(3, (num_nodes,), generator=generator),
        time=torch.randint(9, (num_nodes,), generator=generator),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        weight=torch.rand(num_edges, generator=generator),
    )


def make_hetero():
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.arange(6.0).view(6, 1), 4
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(6), torch.arange(6) % 4])
    data["b", "back", "a"].edge_index = torch.stack([torch.arange(6) % 4, torch.arange(6)])
    return data


def initialise(worker):
    """A ``worker_init_fn``."""


def double(batch):
    """A ``transform``."""
    batch.x = batch.x * 2
    return batch


DATA = make_data()


def nodes(**options):
    return NeighborLoader(
        DATA,
        **{"num_neighbors": [3, 2], "input_nodes": torch.arange(30), "batch_size": 7} | options,
    )


def links(**options):
    return LinkNeighborLoader(
        DATA,
        **{"num_neighbors": [3, 2], "edge_label_index": DATA.edge_index[:, :30], "batch_size": 7}
        | options,
    )


LOADERS = {
    "plain": nodes,
    "shuffle": lambda: nodes(
        shuffle=True, drop_last=True, num_workers=2, persistent_workers=True, prefetch_factor=3
    ),
    "mask": lambda: nodes(input_nodes=torch.arange(50) % 3 == 0, replace=True, disjoint=True),
    "induced": lambda: nodes(subgraph_type="induced", filter_per_worker=True),
    "times": lambda: nodes(
        time_attr="time", input_time=torch.arange(30) % 9, temporal_strategy="last"
    ),
    "weights": lambda: nodes(
        weight_attr="weight", transform=double, filter_per_worker=False, pin_memory=False
    ),
    "ours": lambda: nodes(
        seed=3, cache=0, cache_policy="degree", cache_dtype="bf16", prefetch=1, device="cpu"
    ),
    "sampler": lambda: nodes(sampler=ImbalancedSampler(DATA.y[:30]), worker_init_fn=initialise),
    "generator": lambda: nodes(shuffle=True, generator=torch.Generator().manual_seed(4)),
    "own sampler": lambda: nodes(neighbor_sampler=NeighborSampler(DATA, [2])),
    "hetero": lambda: NeighborLoader(
        make_hetero(), {("a", "to", "b"): [2], ("b", "back", "a"): [1]}, ("b", [0, 3])
    ),
    "links": lambda: links(shuffle=True, neg_sampling="binary"),
    "triplets": lambda: links(neg_sampling={"mode": "triplet", "amount": 2}, seed=1),
}
SAME = [
    *(
        "data",
        "num_neighbors",
        "replace",
        "subgraph_type",
        "disjoint",
        "temporal_strategy",
        "time_attr",
        "weight_attr",
    ),
    *(
        "transform",
        "transform_sampler_output",
        "is_sorted",
        "filter_per_worker",
        "neighbor_sampler",
        "directed",
    ),
    *("lookahead", "memory", "batch_dependency"),
    *(
        "cache",
        "cache_policy",
        "cache_dtype",
        "prefetch",
        "seed",
        "device",
        "batch_size",
        "drop_last",
        "num_workers",
    ),
    *(
        "worker_init_fn",
        "persistent_workers",
        "prefetch_factor",
        "timeout",
        "generator",
        "pin_memory",
        "dataset",
    ),
]


def attributes(loader):
    """The arguments that Lightning collects: each attribute named like one of them that is not its
    default."""
    parameters = dict(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
    parameters |= inspect.signature(type(loader).__init__).parameters
    public = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    public["multiprocessing_context"] = loader.multiprocessing_context
    arguments = {
        n: public[n] for n, p in parameters.items() if n in public and p.default is not public[n]
    }
    return arguments | {"dataset": loader.dataset}


def again(loader, **changes):
    """As for map-style datasets whose sampler is put in place of theirs."""
    samplers = {"sampler": loader.sampler, "shuffle": False, "batch_sampler": None}
    return type(loader)(**attributes(loader) | samplers | changes)


def bits(batch):
    flat = batch.to_dict()
    stores = {str(key): value for key, value in flat.items() if isinstance(value, dict)} or {
        "": flat
    }
    return {
        (name, key): value.tolist() if torch.is_tensor(value) else value
        for name, store in stores.items()
        for key, value in store.items()
    }


def two_epochs(loader):
    """With the global generator, and the loader's own, at their beginnings."""
    torch.manual_seed(0)
    if loader.generator is not None:
        loader.generator.manual_seed(0)
    return [bits(batch) for _ in range(2) for batch in loader]


@pytest.mark.every
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_made_again_is_equal(name):
    loader = LOADERS[name]()
    expected = two_epochs(loader)
    loader.set_epoch(0)
    for clone in (again(loader), again(again(loader))):
        assert type(clone) is type(loader) and len(clone) == len(loader)
        for attribute in SAME:
            ours, theirs = getattr(clone, attribute), getattr(loader, attribute)
            assert ours is theirs or ours == theirs, attribute
        assert two_epochs(clone) == expected


@pytest.mark.every
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    "way", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_copies_begin_their_epoch_anew(name, way):
    loader = LOADERS[name]()
    fresh = way(loader)
    expected = two_epochs(loader)
    assert two_epochs(fresh) == expected
    torch.manual_seed(3)
    epoch = iter(loader)
    begun = bits(next(epoch))
    clone = way(loader)
    rest = [bits(batch) for batch in epoch]
    assert [bits(batch) for batch in clone] == [begun, *rest]


def test_copies_are_independent():
    loader = nodes()
    clone = copy.copy(loader)
    clone.transform, clone.data = str, Data(z=DATA.x, edge_index=DATA.edge_index, num_nodes=50)
    assert loader.transform is None and loader.data is DATA
    assert torch.is_tensor(next(iter(loader)).x) and isinstance(next(iter(clone)), str)
    del loader
    assert len(list(clone)) == len(clone) == 5 and clone.collate_fn.__self__ is clone


def test_attributes_set_later_are_kept():
    loader = nodes()
    loader.transform = double
    loader.data.extra = torch.arange(50)
    try:
        for clone in (pickle.loads(pickle.dumps(loader)), again(loader)):
            batch = next(iter(clone))
            assert torch.equal(batch.extra, batch.n_id) and torch.equal(
                batch.x, DATA.x[batch.n_id] * 2
            )
    finally:
        del loader.data.extra


def test_changed_arguments_count():
    loader = nodes(seed=1)
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False)
    ids = sum((batch.input_id.tolist() for batch in again(loader, sampler=sampler)), [])
    assert ids == list(range(1, 30, 2))
    assert len(again(loader, batch_size=3)) == 10
    with pytest.raises(ValueError, match="mutually exclusive"):
        again(loader, shuffle=True)


class Endless(torch.utils.data.Sampler):
    """Has no length."""

    def __iter__(self):
        while True:
            yield 1


def test_a_loader_without_length_is_pickled_too():
    clone = pickle.loads(pickle.dumps(nodes(sampler=Endless())))
    assert next(iter(clone)).input_id.tolist() == [1] * 7


def test_samplers_are_pickled():
    for data, count in ((DATA, [3, 2]), (make_hetero(), [1])):
        sampler = NeighborSampler(data, count)
        clones = [pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler), copy.copy(sampler)]
        nodes = None if isinstance(data, Data) else "a"
        expected = [
            bits(b) for b in NeighborLoader(data, count, nodes, neighbor_sampler=sampler, seed=1)
        ]
        for clone in clones:
            assert [
                bits(b) for b in NeighborLoader(data, count, nodes, neighbor_sampler=clone, seed=1)
            ] == expected
