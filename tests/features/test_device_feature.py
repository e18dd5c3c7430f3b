"""Rows that live on, or are brought to, a device; on the CPU as far as that can be."""

import pytest
import torch

from pagraph.features import DeviceFeature, HostFeature, UploadedFeature
from pagraph.features.device import staging, word_view

CPU = torch.device("cpu")
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)], ids=str)
def test_device_rows(device, dtype, shape):
    tensor = torch.randint(0, 2, (10, *shape)).to(dtype)
    feature = DeviceFeature(tensor.to(device))
    ids = torch.tensor([9, 0, 9])
    assert feature.read(ids).device.type == device
    assert torch.equal(feature.read(ids).cpu(), tensor[ids])
    assert torch.equal(DeviceFeature(tensor.to(device), CPU).read(ids), tensor[ids])
    out = torch.empty((3, *shape), dtype=dtype, device=feature.device)
    assert feature.read(ids.int(), out) is out and torch.equal(out.cpu(), tensor[ids])


@pytest.mark.parametrize("device", DEVICES)
def test_uploaded_rows(device):
    tensor = torch.randn(10, 4, 2).to(torch.float16)
    target = torch.empty(0, device=device).device
    feature = UploadedFeature(HostFeature(tensor), target)
    ids = torch.tensor([3, 3, 7], dtype=torch.int32)
    assert feature.read(ids).device == target
    assert torch.equal(feature.read(ids).cpu(), tensor[ids.long()])
    out = torch.empty(3, 4, 2, dtype=torch.float16, device=device)
    assert feature.read(ids, out) is out and torch.equal(out.cpu(), tensor[ids.long()])
    assert (feature.num_rows, feature.row_shape, feature.tier) == (10, (4, 2), "host")
    assert (feature.dtype, feature.row_bytes, feature.device) == (torch.float16, 16, target)


@pytest.mark.parametrize("device", DEVICES)
def test_bad_ids_are_found_before_the_device_sees_them(device):
    tensor = torch.zeros(10, 2)
    for feature in (DeviceFeature(tensor.to(device)), UploadedFeature(HostFeature(tensor), torch.device(device))):
        with pytest.raises(IndexError, match=r"ids must be in \[0, 10\), got 10 at position 1"):
            feature.read(torch.tensor([0, 10]))
        with pytest.raises(IndexError, match="got -1 at position 0"):
            feature.read(torch.tensor([-1, 10]))


def test_says_what_it_holds():
    feature = DeviceFeature(torch.zeros(4, 3, dtype=torch.float64, requires_grad=True))
    assert (feature.num_rows, feature.row_shape, feature.dtype) == (4, (3,), torch.float64)
    assert (feature.row_bytes, feature.tier, feature.device) == (24, "device", CPU)
    assert not feature.read(torch.tensor([1])).requires_grad
    with pytest.raises(ValueError, match="at least 1 dimension"):
        DeviceFeature(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("shape", "dtype", "width", "words"),
    [
        ((3, 2, 2), torch.bfloat16, 1, torch.int64),
        ((3, 3), torch.float32, 3, torch.int32),
        ((3, 3), torch.float16, 3, torch.int16),
        ((3, 5), torch.bool, 5, torch.uint8),
        ((3,), torch.complex128, 2, torch.int64),
        ((3, 0), torch.float32, 0, torch.int64),
        ((0, 2), torch.float32, 1, torch.int64),
    ],
)
def test_word_view_takes_the_widest_word(shape, dtype, width, words):
    view = word_view(torch.zeros(shape, dtype=dtype))
    assert view.shape == (shape[0], width) and view.dtype == words


def test_word_view_shares_memory_and_minds_the_offset():
    base = torch.zeros(9, dtype=torch.int32)
    view = word_view(base[1:].view(4, 2))
    assert view.dtype == torch.int32
    view[0, 1] = 5
    assert base.tolist() == [0, 0, 5, 0, 0, 0, 0, 0, 0]


def test_staging_is_plain_memory_without_a_gpu():
    assert staging((2, 3), torch.int16, CPU).shape == (2, 3)
    assert not staging((2, 3), torch.int16, CPU).is_pinned()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_staging_is_pinned_for_a_gpu():
    assert staging((2, 3), torch.int16, torch.device("cuda")).is_pinned()
