"""Stand-ins for the ends of edges: PyG's ``torch.stack`` gets both at once where they lie in one
tensor."""

import pytest
import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from pagraph.pyg import stand_ins
from pagraph.pyg.stand_ins import ends_apart


@pytest.fixture(autouse=True)
def stand_ins_for_few_edges(monkeypatch):
    """Ends of few edges have stand-ins, too."""
    monkeypatch.setattr(stand_ins, "_FEW_EDGES", 1)


def test_ends_of_few_edges_are_copied(monkeypatch):
    monkeypatch.setattr(stand_ins, "_FEW_EDGES", 5)
    row, col = torch.arange(8).view(2, 4)
    apart = ends_apart(output_of(row, col))
    assert apart.row is row and apart.col is col


def output_of(row, col):
    return SamplerOutput(node=torch.arange(3), row=row, col=col, edge=None)


def test_two_rows_are_one_tensor_again():
    pair = torch.arange(8).view(2, 4)
    given = output_of(*pair)
    apart = ends_apart(given)
    stacked = torch.stack([apart.row, apart.col], dim=0)
    assert (
        type(stacked) is torch.Tensor
        and torch.equal(stacked, pair)
        and stacked.data_ptr() == pair.data_ptr()
    )
    assert torch.equal(torch.stack((apart.row, apart.col)), pair)
    assert type(given.row) is torch.Tensor  # what a transform of the user's sees stays as it is


@pytest.mark.parametrize("call", ["turned", "same", "other_dim", "three", "another_pair"])
def test_anything_else_is_torchs(call):
    apart, others = (
        ends_apart(output_of(*torch.arange(8).view(2, 4))),
        ends_apart(output_of(*torch.ones(2, 4))),
    )
    row, col = apart.row, apart.col
    tensors, dim = {
        "turned": ([col, row], 0),
        "same": ([row, row], 0),
        "other_dim": ([row, col], 1),
        "three": ([row, col, row], 0),
        "another_pair": ([row, others.col], 0),
    }[call]
    want = torch.stack([torch.tensor(ids.tolist()) for ids in tensors], dim)
    got = torch.stack(tensors, dim=dim)
    assert type(got) is torch.Tensor and torch.equal(got, want)


@pytest.mark.parametrize(
    ("row", "col"),
    [
        (torch.arange(4), torch.arange(4)),
        (torch.arange(8)[:4], torch.arange(8)[4:].int()),
        (torch.arange(16)[:8:2], torch.arange(16)[8::2]),
        (torch.arange(9)[:4], torch.arange(9)[5:]),
        (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)),
    ],
)
def test_tensors_of_their_own_stay_as_they_are(row, col):
    apart = ends_apart(output_of(row, col))
    assert apart.row is row and apart.col is col


def test_what_is_made_of_a_stand_in_is_a_tensor():
    row = ends_apart(output_of(*torch.arange(8).view(2, 4))).row
    for made in (row + 1, row[:2], row.clone(), torch.cat([row, row]), row.to(torch.float64)):
        assert type(made) is torch.Tensor


def test_each_edge_type():
    pairs = {
        ("a", "to", "b"): torch.arange(4).view(2, 2),
        ("b", "to", "a"): torch.empty(2, 0, dtype=torch.int64),
    }
    given = HeteroSamplerOutput(
        node={},
        row={etype: pair[0] for etype, pair in pairs.items()},
        col={etype: pair[1] for etype, pair in pairs.items()},
        edge=None,
    )
    apart = ends_apart(given)
    for etype, pair in pairs.items():
        assert torch.equal(torch.stack([apart.row[etype], apart.col[etype]], dim=0), pair)
