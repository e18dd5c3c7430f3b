"""All neighbours, bit for bit: our loader against PyG's own, which a plain reference of
torch-sparse drives."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_neighbors import PlainSampler
from seen import assert_same
from tiers import examples
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import NeighborLoader, NeighborSampler

TYPES = st.sampled_from(["directional", "bidirectional", "induced"])
ALL_OR_NONE = st.sampled_from([-1, -1, -1, -7, 0, 1000])
A, REV_A, B, C = ("u", "r", "v"), ("v", "rev_r", "u"), ("v", "s", "v"), ("w", "rev_t", "u")


@st.composite
def edges(draw, num_src, num_dst):
    """Unsorted, with self-loops and parallel edges."""
    m = draw(st.integers(0, 25)) if num_src and num_dst else 0
    ends = [
        draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=m, max_size=m))
        for n in (num_src, num_dst)
    ]
    return torch.tensor(ends, dtype=torch.int64)


@st.composite
def homogeneous(draw):
    n = draw(st.integers(1, 10))
    edge_index = draw(edges(n, n))
    data = Data(
        x=torch.arange(2.0 * n).view(n, 2), edge_index=edge_index, y=torch.arange(n), name="graph"
    )
    if draw(st.booleans()):
        data.edge_attr = torch.arange(float(edge_index.shape[1]))
    if draw(st.booleans()):  # neither x nor edges
        data = Data(num_nodes=n, edge_index=edge_index if draw(st.booleans()) else None)
    return data


@st.composite
def heterogeneous(draw):
    """Three vertex types, some empty; edge types with and without a reverse."""
    data = HeteroData()
    sizes = {t: draw(st.integers(0, 7)) for t in "vwu"}
    for t, n in sizes.items():
        data[t].x = torch.arange(2.0 * n).view(n, 2)
    for etype in (A, REV_A, B, C):
        data[etype].edge_index = draw(edges(sizes[etype[0]], sizes[etype[2]]))
        data[etype].edge_attr = torch.arange(data[etype].num_edges)
    return data


def check(data, num_neighbors, subgraph_type, input_nodes, batch_size, replace=False):
    plain = PlainSampler(data, num_neighbors, subgraph_type)
    ours = NeighborLoader(
        data,
        num_neighbors,
        input_nodes=input_nodes,
        batch_size=batch_size,
        subgraph_type=subgraph_type,
        replace=replace,
    )
    theirs = NodeLoader(data, plain, input_nodes=input_nodes, batch_size=batch_size)
    driven = NodeLoader(
        data,
        NeighborSampler(data, num_neighbors, subgraph_type, replace),
        input_nodes=input_nodes,
        batch_size=batch_size,
    )
    batches = 0
    for batch, expected, through_pyg in zip(ours, theirs, driven, strict=True):
        assert_same(batch, expected)
        assert_same(through_pyg, expected)
        batches += 1
    assert batches == len(theirs)


@settings(max_examples=examples(80))
@given(
    data=homogeneous(),
    num_neighbors=st.lists(ALL_OR_NONE, max_size=3),
    subgraph_type=TYPES,
    batch_size=st.integers(1, 5),
    draw=st.data(),
)
def test_homogeneous(data, num_neighbors, subgraph_type, batch_size, draw):
    # Repeated ones too.
    seeds = draw.draw(st.lists(st.integers(0, data.num_nodes - 1), min_size=1, max_size=9))
    check(data, num_neighbors, subgraph_type, torch.tensor(seeds), batch_size)


@settings(max_examples=examples(20))
@given(
    data=homogeneous(),
    num_neighbors=st.lists(st.sampled_from([-1, -7, 0]), max_size=3),
    subgraph_type=TYPES,
)
def test_all_of_them_come_once_with_replacement_too(data, num_neighbors, subgraph_type):
    check(data, num_neighbors, subgraph_type, torch.arange(data.num_nodes), 3, replace=True)


@pytest.mark.many
@settings(max_examples=examples(60))
@given(data=heterogeneous(), subgraph_type=TYPES, batch_size=st.integers(1, 5), draw=st.data())
def test_heterogeneous(data, subgraph_type, batch_size, draw):
    hops = draw.draw(st.integers(0, 3))
    numbers = st.lists(ALL_OR_NONE, min_size=hops, max_size=hops)
    num_neighbors = draw.draw(
        st.one_of(numbers, st.fixed_dictionaries(dict.fromkeys(data.edge_types, numbers)))
    )
    t = draw.draw(st.sampled_from([t for t in data.node_types if data[t].num_nodes] or [None]))
    if t is None:
        return
    seeds = draw.draw(st.lists(st.integers(0, data[t].num_nodes - 1), min_size=1, max_size=6))
    check(data, num_neighbors, subgraph_type, (t, torch.tensor(seeds)), batch_size)


def test_an_edge_type_without_a_reverse_is_warned_of_as_in_pyg():
    data = HeteroData()
    for t in "uv":
        data[t].x = torch.zeros(3, 1)
    data["u", "r", "v"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.warns(UserWarning, match="does not seem to have a reverse edge type"):
        batch = next(
            iter(
                NeighborLoader(
                    data, [2], input_nodes="v", batch_size=3, subgraph_type="bidirectional"
                )
            )
        )
    assert batch["u", "r", "v"].e_id.tolist() == [0, 1]


def test_directed_false_means_induced():
    data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    with pytest.warns(UserWarning, match="Use `subgraph_type='induced'` instead"):
        loader = NeighborLoader(data, [1], directed=False, batch_size=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = NeighborLoader(data, [1], subgraph_type="induced", batch_size=3)
    for batch, same in zip(loader, expected, strict=True):
        assert_same(batch, same)
    assert loader.node_sampler.subgraph_type == expected.node_sampler.subgraph_type
