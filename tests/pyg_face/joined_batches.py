"""Whole batches compared: what our loader delivers, and what PyG's own filter makes of the same
sampler's output."""

import copy

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import NeighborLoader, NeighborSampler


class Recorder(NeighborSampler):
    """Our sampler, which remembers what it returned for each ``input_id``."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.outputs = {}

    def sample_nodes(self, inputs, *args, **kwargs):
        result = super().sample_nodes(inputs, *args, **kwargs)
        self.outputs[tuple(inputs.input_id.tolist())] = copy.deepcopy(result[0])
        return result


def expected_of(loader, batch):
    """PyG's batch of the output that was sampled for one of ours, of the data as it is now."""
    data, kind = loader.data, loader.input_data.input_type
    inputs = {"data": data, "node_sampler": loader.node_sampler}
    pyg = NodeLoader(**inputs, input_nodes=loader.input_nodes, filter_per_worker=True, batch_size=1)
    store = batch if kind is None else batch[kind]
    return pyg.filter_fn(copy.deepcopy(loader.node_sampler.outputs[tuple(store.input_id.tolist())]))


def recording(data, input_nodes=None, *, num_neighbors=(3, 2), batch_size=4, **kwargs):
    """Our loader with a sampler that remembers."""
    sampler = Recorder(data, list(num_neighbors), disjoint=kwargs.pop("disjoint", False))
    settings = {
        "num_neighbors": list(num_neighbors),
        "input_nodes": input_nodes,
        "batch_size": batch_size,
    }
    return NeighborLoader(data, neighbor_sampler=sampler, **settings, **kwargs)


def assert_same(ours, pygs):
    """The same class, stores, names and values, of the same types."""
    assert type(ours) is type(pygs)
    assert [store._key for store in ours.stores] == [store._key for store in pygs.stores]
    for store, other in zip(ours.stores, pygs.stores, strict=True):
        found, wanted = store.to_dict(), other.to_dict()
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            assert_same_value(name, found[name], value)


def assert_same_value(name, ours, pygs):
    assert type(ours) is type(pygs), (name, type(ours), type(pygs))
    if not isinstance(pygs, Tensor):
        assert ours is pygs or ours == pygs, name
        return
    assert ours.dtype == pygs.dtype and ours.layout == pygs.layout and ours.device == pygs.device, (
        name
    )
    assert ours.requires_grad == pygs.requires_grad and ours.shape == pygs.shape, name
    dense = (ours.to_dense(), pygs.to_dense()) if ours.layout != torch.strided else (ours, pygs)
    assert torch.equal(*(x.detach() if x.dtype != torch.bool else x for x in dense)), name


def snapshot_of(data):
    """What the data holds, by store: names, the objects themselves, and copies of their values."""
    return {
        store._key: {name: (value, copy.deepcopy(value)) for name, value in store.items()}
        for store in data.stores
    }


def assert_unchanged(data, snapshot):
    """The data holds the same objects of the same values, in the same order."""
    assert [store._key for store in data.stores] == list(snapshot)
    for store in data.stores:
        was = snapshot[store._key]
        assert list(store.keys()) == list(was)
        for name, (value, before) in was.items():
            assert store[name] is value
            if isinstance(value, Tensor):
                assert value.layout != torch.strided or torch.equal(value.detach(), before.detach())
            elif isinstance(value, np.ndarray):
                assert np.array_equal(value, before)


def edges_of(num_nodes, num_edges, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(max(num_nodes, 1), (2, num_edges), generator=generator)


def hetero_of(seed=0):
    """Papers, authors and a type without edges; two relations with attributes."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x = torch.randn(30, 4, generator=generator)
    data["paper"].y = torch.arange(30)
    data["author"].x = torch.randn(20, 3, generator=generator)
    data["venue"].x = torch.randn(5, 2, generator=generator)
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    data[cites].edge_index = torch.randint(30, (2, 90), generator=generator)
    data[cites].edge_attr = torch.randn(90, 2, generator=generator)
    data[writes].edge_index = torch.stack(
        [
            torch.randint(20, (60,), generator=generator),
            torch.randint(30, (60,), generator=generator),
        ]
    )
    return data
