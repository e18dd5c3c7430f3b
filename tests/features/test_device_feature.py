"""Rows that live on a device; on the CPU as far as that can be."""

import pytest
import torch

from pagraph.features import DeviceFeature

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
def test_bad_ids_are_found_before_the_device_sees_them(device):
    tensor = torch.zeros(10, 2)
    feature = DeviceFeature(tensor.to(device))
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
