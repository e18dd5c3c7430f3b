"""Batches that wait while the data or the loader's functions change are those of ``prefetch=0``."""

import copy
import threading

import pytest
import torch
from full_stages import settle
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, SamplerOutput

from pagraph.pyg import NeighborLoader

N = 120
E = 900
BATCHES = 10
CHANGE = 3
"""The batch after which something changes; those that follow are being prepared then."""


def data_of():
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, N, (2, E), generator=g)
    x = torch.randn(N, 3, generator=g)
    return Data(x=x, y=torch.arange(N), edge_index=edges, edge_attr=torch.randn(E, 2, generator=g))


class OwnSampler(BaseSampler):
    """A user's sampler: draws vertices and edges at random, from the seeds' numbers."""

    def sample_from_edges(self, *args, **kwargs):
        raise NotImplementedError

    def sample_from_nodes(self, inputs):
        g = torch.Generator().manual_seed(int(inputs.node[0]))
        more = torch.randperm(N, generator=g)[:20]
        node = torch.cat([inputs.node, more[~torch.isin(more, inputs.node)]])
        row = torch.randint(0, len(node), (30,), generator=g)
        col = torch.randint(0, len(inputs.node), (30,), generator=g)
        edge = torch.randint(0, E, (30,), generator=g)
        return SamplerOutput(node, row, col, edge, metadata=(inputs.input_id, None))


def doubled(batch):
    batch.x = batch.x * 2
    return batch


def written(batch):
    batch.n_id.zero_()
    batch.input_id.add_(1000)
    batch.x.detach().mul_(2)
    return batch


def flipped(output):
    output = copy.copy(output)
    output.node = output.node.flip(0)
    output.row = len(output.node) - 1 - output.row
    output.col = len(output.node) - 1 - output.col
    return output


def flipped_in_place(output):
    output.node.copy_(output.node.flip(0))
    return output


FUNCTIONS = {
    "none": {},
    "transform": {"transform": doubled},
    "one that writes": {"transform": written},
    "of outputs": {"transform_sampler_output": flipped},
    "of outputs, in place": {"transform_sampler_output": flipped_in_place},
    "both": {"transform": written, "transform_sampler_output": flipped_in_place},
}
CHANGES = {
    "replaced": lambda loader, data: setattr(data, "x", data.x + 1),
    "written": lambda loader, data: data.x.add_(1),
    "data assigned": lambda loader, data: setattr(data.x, "data", data.x.data + 3),
    "removed": lambda loader, data: delattr(data, "y"),
    "added": lambda loader, data: setattr(data, "z", torch.arange(2 * N).view(N, 2)),
    "wants gradients": lambda loader, data: data.x.requires_grad_(),
    "edges' written": lambda loader, data: data.edge_attr.mul_(3),
    "edges' want gradients": lambda loader, data: data.edge_attr.requires_grad_(),
    "other data": lambda loader, data: setattr(loader, "data", data_of()),
    "transform set": lambda loader, data: setattr(loader, "transform", written),
    "transform unset": lambda loader, data: setattr(loader, "transform", None),
    "of outputs set": lambda loader, data: setattr(loader, "transform_sampler_output", flipped),
    "of outputs unset": lambda loader, data: setattr(loader, "transform_sampler_output", None),
}


def made(data, workers, **options):
    settings = {"num_neighbors": [3, 2], "input_nodes": torch.arange(N), "batch_size": 10}
    settings |= {"seed": 0, "num_workers": workers, "prefetch": 4 if workers else 0}
    return NeighborLoader(data, **(settings | options))


def parts_of(batch):
    found = {}
    for name, value in batch.to_dict().items():
        is_tensor = isinstance(value, Tensor)
        found[name] = (value.tolist(), value.requires_grad) if is_tensor else value
    return found


def batches_of(change, loader, data):
    found = []
    for number, batch in enumerate(loader):
        found.append(parts_of(batch))
        if number == CHANGE:
            settle(loader)
            change(loader, data)
        if number + 1 == BATCHES:
            return found


@pytest.mark.parametrize(
    "ahead", [{"num_workers": 2, "prefetch": 4}, {"prefetch": 4}], ids=["2", "0"]
)
@pytest.mark.parametrize("functions", FUNCTIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_ours(change, functions, ahead):
    found = []
    for options in ({"prefetch": 0}, ahead):
        data = data_of()
        loader = made(data, 0, **FUNCTIONS[functions], **options)
        found.append(batches_of(CHANGES[change], loader, data))
    assert found[0] == found[1]


@pytest.mark.parametrize("functions", ["none", "transform", "of outputs"])
@pytest.mark.parametrize("change", [name for name in CHANGES if "set" not in name])
def test_a_users_sampler(change, functions):
    found = []
    for workers in (0, 2):
        data = data_of()
        sampler = {"neighbor_sampler": OwnSampler(), "num_neighbors": None}
        loader = made(data, workers, **sampler, **FUNCTIONS[functions])
        found.append(batches_of(CHANGES[change], loader, data))
    assert found[0] == found[1]


def test_what_cannot_be_joined_ahead_gets_a_transform_of_outputs():
    found = []
    for workers in (0, 2):
        data = data_of()
        data.edge_attr.requires_grad_()
        found.append(batches_of(CHANGES["of outputs set"], made(data, workers), data))
    assert found[0] == found[1]


def test_an_error_of_a_transform_of_outputs_is_not_lost_with_another_transform():
    def failing(output):
        if int(output.node[0]) % 20 == 0:
            raise ValueError("mine")
        return output

    outcomes = []
    for workers in (0, 2):
        sampler = {"neighbor_sampler": OwnSampler(), "num_neighbors": None}
        loader = made(data_of(), workers, **sampler, transform_sampler_output=failing)
        batches = iter(loader)
        outcomes.append([])
        for number in range(BATCHES):
            try:
                next(batches)
                outcomes[-1].append("batch")
            except ValueError:
                outcomes[-1].append("error")
            if number == CHANGE:
                settle(loader)
                loader.transform = doubled
    assert outcomes[0] == outcomes[1] and "error" in outcomes[0][CHANGE + 1 :]


def test_a_transform_that_is_changed_while_another_runs_is_not_taken_for_it():
    began, go_on = threading.Event(), threading.Event()

    def first(batch):
        batch.made_by = "first"
        return batch

    def second(batch):
        batch.made_by = "second"
        return batch

    def waiting(output):
        if not began.is_set() and threading.current_thread() is not threading.main_thread():
            began.set()
            go_on.wait(10)
        return output

    loader = made(data_of(), 1, transform=first, transform_sampler_output=waiting)
    batches = iter(loader)
    assert began.wait(10)
    loader.transform = second
    go_on.set()
    settle(loader)
    loader.transform = first
    assert {batch.made_by for batch in batches} == {"first"}
