"""Batches of a sampler's output: those of PyG's own functions, whatever the data's stores hold."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from pagraph.pyg.filtering import link_batch, node_batch, stacked
from pagraph.pyg.joining import Attributes, Levels, Reading, stores_of
from pagraph.pyg.pipelined import LinkView, NodeView

TYPES = {"a": 4, "b": 3}
EDGES = {("a", "to", "b"): 5, ("b", "to", "a"): 3}
FUNCTIONS = {node_batch: NodeLoader.filter_fn, link_batch: LinkLoader.filter_fn}


class Sampler:
    """What PyG's functions ask of a sampler."""

    def __init__(self, edge_permutation):
        self.edge_permutation = edge_permutation


def attributes(draw, store, count, name):
    """Some attributes with ``count`` rows, and others that PyG leaves as they are."""
    made = {
        f"{name}_x": lambda: torch.rand(count, 2),
        f"{name}_array": lambda: np.arange(count),
        f"{name}_last": lambda: torch.rand(2, count),  # not by rows where there are not two
        f"{name}_index": lambda: torch.arange(2 * count).view(2, count),  # PyG selects columns
        f"{name}_words": lambda: "several",
        f"{name}_one": lambda: torch.tensor(3),
    }
    # Names that batches have as well.
    if name == "node":
        made |= {"n_id": lambda: torch.arange(count) * 10, "seed_time": lambda: torch.arange(count)}
    else:
        made["e_id"] = lambda: torch.arange(count) * 10
        made["edge_label_index"] = lambda: torch.arange(2 * count).view(2, count)
    for attribute in draw(st.lists(st.sampled_from(sorted(made)), unique=True)):
        store[attribute] = made[attribute]()


def some(draw, count, of):
    return torch.tensor(draw(st.lists(st.integers(0, of - 1), min_size=count, max_size=count)))


def metadata(draw, count, is_link):
    times = draw(st.sampled_from([None, torch.arange(count)]))
    if not is_link:
        return torch.arange(count), times
    return torch.arange(count), torch.arange(2 * count).view(2, count), torch.ones(count), times


@st.composite
def plain(draw, is_link):
    """Data and the output of a sampler, of one vertex type."""
    nodes, edges = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    data = Data(edge_index=torch.stack([some(draw, edges, nodes), some(draw, edges, nodes)]))
    if draw(st.booleans()):
        data.num_nodes = nodes
    attributes(draw, data, nodes, "node")
    attributes(draw, data, edges, "edge")
    data.x = torch.rand(nodes, 3)
    count = draw(st.integers(0, 4))
    ends = torch.arange(2 * count).view(2, count)
    dtype = torch.int64 if is_link else torch.int32
    output = SamplerOutput(
        node=some(draw, 3, nodes),
        row=ends[0],
        col=ends[1],
        # Of a sampler with ids of 32 bits, e_id has 64 with NodeLoader and 32 with LinkLoader.
        edge=draw(st.sampled_from([None, some(draw, count, edges).to(dtype)])),
        batch=draw(st.sampled_from([None, torch.arange(3)])),
        num_sampled_nodes=draw(st.sampled_from([None, [1, 2]])),
        num_sampled_edges=[count],
        orig_row=draw(st.sampled_from([None, ends[1]])),
        orig_col=ends[0],
        metadata=metadata(draw, 2, is_link),
    )
    return data, output, draw(st.sampled_from([None, torch.randperm(edges)])), None


@st.composite
def typed(draw, is_link):
    """The same of several; some types are not reached."""
    data = HeteroData()
    for key, count in TYPES.items():
        data[key].num_nodes = count
        attributes(draw, data[key], count, "node")
    node = {key: some(draw, 2, TYPES[key]) for key in draw(st.sets(st.sampled_from(sorted(TYPES))))}
    row, edge = {}, {}
    for key, count in EDGES.items():
        data[key].edge_index = torch.stack(
            [some(draw, count, TYPES[key[0]]), some(draw, count, TYPES[key[-1]])]
        )
        attributes(draw, data[key], count, "edge")
        if draw(st.booleans()):
            row[key] = torch.arange(2)
            edge[key] = some(draw, 2, count)
    data.graph_name = "of all"
    output = HeteroSamplerOutput(
        node=node,
        row=row,
        col={key: ids + 1 for key, ids in row.items()},
        edge=edge,
        batch=draw(st.sampled_from([None, {key: ids % 2 for key, ids in node.items()}])),
        num_sampled_nodes={key: [1, 1] for key in node},
        num_sampled_edges={key: [1, 1] for key in row},
        metadata=metadata(draw, 2, is_link),
    )
    some_order = {key: torch.randperm(count) for key, count in EDGES.items()}
    order = draw(st.sampled_from([None, some_order, {}]))
    return data, output, order, ("a", "to", "b") if is_link else "a"


def read(data, nodes):
    """A reading of all attributes that are read as fields, and their rows."""
    copied = copy.copy(data)
    stores = stores_of(copied)
    levels = Levels.of(Attributes(data, stores), copied, stores, None)
    rows, others = {}, dict.fromkeys(levels.selected)
    for key, name in levels.fields:
        node = nodes.get(key)
        if node is None:
            others[key, name] = None
        else:
            values = torch.as_tensor(stores[key][name])
            rows[key, name] = values[node]
    return Reading(copied, stores, levels, versions=others), rows


def view_of(make, data, order, input_type, neg_sampling=None):
    ids = torch.arange(2)
    if make is node_batch:
        inputs = NodeSamplerInput(None, ids, None, input_type)
        return NodeView(data, inputs, node_sampler=Sampler(order))
    inputs = EdgeSamplerInput(None, ids, ids, None, None, input_type)
    return LinkView(data, inputs, link_sampler=Sampler(order), neg_sampling=neg_sampling)


def check_equal(got, want):
    assert type(got) is type(want)
    got_stores, want_stores = stores_of(got), stores_of(want)
    assert list(got_stores) == list(want_stores)
    for key, store in want_stores.items():
        mine = got_stores[key]
        assert set(mine.keys()) == set(store.keys())
        assert set(vars(mine)) == set(vars(store))
        assert mine._parent() is got
        private = [name for name in vars(store) if name == "_orig_edge_index"]
        for name in [*store.keys(), *private]:
            value, wanted = getattr(mine, name), getattr(store, name)
            assert type(value) is type(wanted), name
            if isinstance(wanted, torch.Tensor):
                assert value.dtype == wanted.dtype and torch.equal(value, wanted), name
            else:
                assert np.array_equal(value, wanted), name


@pytest.mark.every
@pytest.mark.parametrize("make", FUNCTIONS)
@pytest.mark.parametrize("kind", [plain, typed])
def test_batches_are_those_of_pygs_function(make, kind):
    @settings(max_examples=examples(150), deadline=None)
    @given(kind(make is link_batch))
    def check(case):
        data, output, order, input_type = case
        before = copy.copy(data)
        nodes = output.node if isinstance(output.node, dict) else {None: output.node}
        reading, rows = read(data, nodes)
        got = make(view_of(make, reading.data, order, input_type), output, reading, rows)
        check_equal(data, before)
        theirs = copy.copy(output)
        for name in ("node", "row", "col", "edge"):  # PyG adds types that were not reached
            setattr(theirs, name, copy.copy(getattr(output, name)))
        want = FUNCTIONS[make](view_of(make, data, order, input_type), theirs)
        check_equal(got, want)

    check()


@pytest.mark.many
@pytest.mark.parametrize("kind", [plain, typed])
def test_triplets_are_those_of_pygs_function(kind):
    @settings(max_examples=examples(50), deadline=None)
    @given(kind(True))
    def check(case):
        data, output, order, input_type = case
        output.metadata = (*output.metadata, torch.arange(2))
        nodes = output.node if isinstance(output.node, dict) else {None: output.node}
        reading, rows = read(data, nodes)
        negatives = NegativeSampling("triplet")
        view = view_of(link_batch, reading.data, order, input_type, negatives)
        got = link_batch(view, copy.copy(output), reading, rows)
        view = view_of(link_batch, data, order, input_type, negatives)
        check_equal(got, LinkLoader.filter_fn(view, output))

    check()


def test_two_rows_are_one_tensor_again():
    pair = torch.arange(8).view(2, 4)
    got = stacked(*pair)
    assert torch.equal(got, pair) and got.data_ptr() == pair.data_ptr()


@pytest.mark.parametrize(
    ("row", "col"),
    [
        (torch.arange(8)[4:], torch.arange(8)[:4]),
        (torch.arange(4), torch.arange(4)),
        (torch.arange(16)[:8:2], torch.arange(16)[8::2]),
        (torch.arange(9)[:4], torch.arange(9)[5:]),
        (torch.arange(8)[:4], torch.arange(10, 18)[4:]),  # as if behind it, but apart
        (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)),
    ],
)
def test_other_tensors_are_copied(row, col):
    got = stacked(row, col)
    assert torch.equal(got, torch.stack([row, col]))
    assert not len(row) or got.data_ptr() != row.data_ptr()


def test_the_rows_of_a_tensor_the_other_way_round_are_copied():
    pair = torch.arange(8).view(2, 4)
    assert torch.equal(stacked(pair[1], pair[0]), pair.flip(0))
