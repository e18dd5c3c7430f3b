"""What a host feature says of itself, and what it takes."""

import numpy as np
import pytest
import torch

from pagraph.features import HostFeature
from pagraph.features.feature import byte_view, output_for


def test_says_what_it_holds():
    feature = HostFeature(torch.zeros(7, 2, 3, dtype=torch.bfloat16))
    assert (feature.num_rows, feature.row_shape, feature.dtype) == (7, (2, 3), torch.bfloat16)
    assert (feature.row_bytes, feature.device, feature.tier) == (12, torch.device("cpu"), "host")
    assert repr(feature) == "HostFeature(num_rows=7, row_shape=(2, 3), dtype=torch.bfloat16)"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.zeros(3), TypeError, "tensor must be a dense CPU tensor, got ndarray"),
        (torch.zeros(2, 2).to_sparse(), TypeError, "got torch.sparse_coo on cpu"),
        (torch.zeros(2, device="meta"), TypeError, "on meta"),
        (torch.tensor(1.0), ValueError, "tensor must have at least 1 dimension, got a scalar"),
    ],
)
def test_rejects_what_it_cannot_read(value, error, text):
    with pytest.raises(error, match=text):
        HostFeature(value)


def test_nothing_is_copied_and_later_writes_are_seen():
    tensor = torch.zeros(5, 3)
    feature = HostFeature(tensor)
    tensor[2] = 7
    assert feature.read(torch.tensor([2])).tolist() == [[7, 7, 7]]
    columns = torch.zeros(5, 6)
    feature = HostFeature(columns[:, ::2])
    columns[2] = 7
    assert feature.read(torch.tensor([2])).tolist() == [[7, 7, 7]]


def test_gradients_are_not_followed():
    tensor = torch.ones(4, 2, requires_grad=True)
    for source in (tensor, (tensor * 2).t()):
        rows = HostFeature(source).read(torch.tensor([1, 0]))
        assert not rows.requires_grad and torch.equal(rows, source[[1, 0]].detach())


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("read_inside", [False, True])
def test_inference_mode(made_inside, read_inside):
    with torch.inference_mode(made_inside):
        tensor = torch.arange(12.0).view(4, 3)
    with torch.inference_mode(read_inside):
        feature, strided = HostFeature(tensor), HostFeature(tensor.t())
        assert feature.read(torch.tensor([3])).tolist() == [[9, 10, 11]]
        assert strided.read(torch.tensor([2])).tolist() == [[2, 5, 8, 11]]


def test_writes_into_out_and_returns_it():
    tensor, ids = torch.randn(6, 4), torch.tensor([5, 5, 0])
    out = torch.empty(3, 4)
    assert HostFeature(tensor).read(ids, out) is out
    assert torch.equal(out, tensor[ids])
    whole = torch.zeros(5, 4)
    HostFeature(tensor).read(ids, whole[1:4])
    assert torch.equal(whole[1:4], tensor[ids]) and not whole[[0, 4]].any()


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (torch.empty(2, 4), r"out must have shape \(3, 4\) and dtype torch.float32, got \(2, 4\)"),
        (torch.empty(3, 4, dtype=torch.float64), "got .* torch.float64"),
        (torch.empty(3, 8)[:, ::2], "out must be contiguous"),
        (torch.empty(3, 4, device="meta"), "on meta"),
        (torch.empty(3, 4, requires_grad=True), "requires_grad=True"),
    ],
)
def test_rejects_an_out_that_does_not_fit(out, text):
    with pytest.raises(ValueError, match=text):
        HostFeature(torch.randn(6, 4)).read(torch.tensor([5, 5, 0]), out)


def test_output_for_makes_what_is_missing():
    feature = HostFeature(torch.zeros(3, 2, dtype=torch.int16))
    assert output_for(feature, 5, None).shape == (5, 2)
    assert output_for(feature, 5, None).dtype == torch.int16


def test_byte_view_keeps_the_memory_alive():
    view = byte_view(torch.full((1000, 100), 3, dtype=torch.uint8))
    others = [torch.zeros(1000, 100, dtype=torch.uint8) for _ in range(20)]
    assert (view == 3).all() and len(others) == 20


def test_byte_view_of_a_column_slice_spans_first_to_last_row():
    base = torch.arange(24, dtype=torch.int16).view(4, 6)
    assert byte_view(base[:, 1:3]).view(np.int16).tolist() == list(range(1, 21))
    assert byte_view(base[:0]).size == 0 and byte_view(base[:, :0]).size == 0
