"""What ``num_neighbors`` may be, and what is said of it when it is not, before any batch."""

import pytest
import torch
from seen import assert_same
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import NumNeighbors

from pagraph.pyg import NeighborLoader, NeighborSampler

R, S = ("u", "to", "v"), ("v", "s", "u")


def typed():
    data = HeteroData()
    for t in "uv":
        data[t].x = torch.zeros(9, 1)
    generator = torch.Generator().manual_seed(0)
    for etype in (R, S):
        data[etype].edge_index = torch.randint(9, (2, 60), generator=generator)
    return data


def single():
    return Data(
        x=torch.zeros(9, 1),
        edge_index=torch.randint(9, (2, 60), generator=torch.Generator().manual_seed(0)),
    )


def first(data, num_neighbors):
    input_nodes = "v" if isinstance(data, HeteroData) else None
    return next(
        iter(NeighborLoader(data, num_neighbors, input_nodes=input_nodes, batch_size=4, seed=0))
    )


@pytest.mark.parametrize(
    "form", [(2, 3), NumNeighbors([2, 3]), [torch.tensor(2), 3]], ids=["tuple", "PyG's", "0-dim"]
)
def test_forms_for_one_type(form):
    assert_same(first(single(), form), first(single(), [2, 3]))


@pytest.mark.parametrize(
    "form",
    [
        {R: [2, 3], S: (1, 0)},
        {"u__to__v": [2, 3], "v__s__u": [1, 0]},
        {("u", "v"): [2, 3], S: [1, 0]},
        NumNeighbors({R: [2, 3]}, default=[1, 0]),
    ],
    ids=["tuples", "strings", "pair", "default"],
)
def test_forms_for_several_types(form):
    batch = first(typed(), form)
    assert_same(batch, first(typed(), {S: [1, 0], R: [2, 3]}))
    assert [len(batch[e].num_sampled_edges) for e in (R, S)] == [2, 2] and batch[
        S
    ].num_sampled_edges == [0, 0]


def test_one_list_serves_every_type():
    assert_same(first(typed(), [2, 3]), first(typed(), {R: [2, 3], S: [2, 3]}))


@pytest.mark.parametrize("number", [-1, -2, -(2**40), 10**12])
def test_negative_and_huge_numbers_mean_all(number):
    for data in (single(), typed()):
        assert_same(first(data, [number, number]), first(data, [1000, 1000]))


def pyg_refuses(num_neighbors):
    try:
        NumNeighbors(num_neighbors).get_values([R, S])
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    ("num_neighbors", "error", "message"),
    [
        ({R: [2, 3]}, ValueError, r"Missing number of neighbors for edge type '\('v', 's', 'u'\)'"),
        (
            {R: [2], S: [2], ("u", "x", "u"): [2]},
            ValueError,
            "Not all edge types specified in 'num_neighbors' exist",
        ),
        (
            {R: [2], S: [2], ("v", "u"): [2]},
            ValueError,
            "Not all edge types specified in 'num_neighbors' exist",
        ),
        ({R: [2], S: [2, 3]}, ValueError, "Number of hops must be the same across all edge types"),
        (
            {R: 2, S: [2]},
            TypeError,
            "num_neighbors must be a list of integers, or a dict of such lists, got {.*: 2",
        ),
        ({R: [2.5], S: [2]}, TypeError, r"num_neighbors\[0\] must be an integer, got 2.5"),
        (5, TypeError, "num_neighbors must be a list of integers, or a dict of such lists, got 5"),
    ],
)
def test_errors_for_several_types(num_neighbors, error, message):
    if error is ValueError and not pyg_refuses(num_neighbors):
        pytest.skip("this PyG takes unknown edge types")
    with pytest.raises(error, match=message):
        NeighborLoader(typed(), num_neighbors, input_nodes="v")


@pytest.mark.parametrize(
    ("num_neighbors", "message"),
    [
        (5, " must be a list of integers, or a dict of such lists, got 5"),
        ("5", " must be a list of integers, or a dict of such lists, got '5'"),
        (None, " must be a list of integers, or a dict of such lists, got None"),
        ([2, None], r"\[1\] must be an integer, got None"),
        ({R: [2]}, " must be a list for a graph without edge types, got {"),
    ],
)
def test_errors_for_one_type(num_neighbors, message):
    with pytest.raises(TypeError, match=f"num_neighbors{message}"):
        NeighborLoader(single(), num_neighbors)


def test_the_samplers_numbers_can_be_set():
    """``BasicGNN.inference`` and users do so."""
    data = single()
    sampler = NeighborSampler(data, [2, 3])
    sampler.num_neighbors = [4]
    assert len(sampler.num_neighbors) == 1 and sampler.num_neighbors.values == [4]
    loader = NeighborLoader(data, [9], neighbor_sampler=sampler, batch_size=4, seed=0)
    assert_same(next(iter(loader)), first(data, [4]))
    with pytest.raises(TypeError, match=r"num_neighbors\[0\] must be an integer, got 'x'"):
        sampler.num_neighbors = ["x"]


def test_other_arguments_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"subgraph_type must be one of \['directional', .*\], got 'both'"
    ):
        NeighborLoader(single(), [2], subgraph_type="both")
