"""Whether Triton's kernels run on a CUDA device is tried once; here without one."""

import warnings

import pytest
import torch

from pagraph.accelerator import CudaAccelerator, HostAccelerator, OutOfMemory

CUDA = "pagraph.accelerator.cuda"


@pytest.fixture
def device(monkeypatch):
    """A CUDA device whose memory and streams are the CPU's."""
    pytest.importorskip("triton")
    device, host = CudaAccelerator(torch.device("cuda", 0)), HostAccelerator()
    monkeypatch.setattr(device, "empty", host.empty)
    monkeypatch.setattr(device, "stream", host.stream)
    monkeypatch.setattr(f"{CUDA}.has_triton", lambda: True)
    monkeypatch.setattr(f"{CUDA}.interprets", lambda: False)
    return device


def test_a_kernel_that_answers_is_tried_once(device, monkeypatch):
    launched = []

    def launch(kernel, programs, out):
        launched.append(programs)
        out.fill_(42)

    monkeypatch.setattr(f"{CUDA}.launch", launch)
    assert device.runs_kernels
    assert device.runs_kernels
    assert launched == [1]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("Failed to find C compiler.\nSet CC.", r"Failed to find C compiler\."),
        ("", r"RuntimeError\(''\)"),
    ],
)
def test_a_kernel_that_fails_leads_to_staging_with_one_warning(device, monkeypatch, says, reason):
    def launch(kernel, programs, out):
        raise RuntimeError(says)

    monkeypatch.setattr(f"{CUDA}.launch", launch)
    with pytest.warns(
        RuntimeWarning,
        match=rf"Triton's kernels do not run on cuda:0 \({reason}\): rows go through",
    ):
        assert not device.runs_kernels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not device.runs_kernels


def test_a_wrong_answer_does_not_pass(device, monkeypatch):
    monkeypatch.setattr(f"{CUDA}.launch", lambda kernel, programs, out: out.fill_(41))
    with pytest.warns(RuntimeWarning, match="a kernel returned a wrong result"):
        assert not device.runs_kernels


def test_a_full_device_decides_nothing(device, monkeypatch):
    def full(shape, dtype):
        raise OutOfMemory("full")

    monkeypatch.setattr(device, "empty", full)
    with pytest.raises(OutOfMemory):
        _ = device.runs_kernels
    monkeypatch.setattr(device, "empty", HostAccelerator().empty)
    monkeypatch.setattr(f"{CUDA}.launch", lambda kernel, programs, out: out.fill_(42))
    assert device.runs_kernels


def test_without_triton_nothing_is_tried(device, monkeypatch):
    monkeypatch.setattr(f"{CUDA}.has_triton", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not device.runs_kernels
