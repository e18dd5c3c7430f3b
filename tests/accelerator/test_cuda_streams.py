"""How a CUDA device's streams are used, as far as that can be told without one."""

from contextlib import contextmanager

import pytest
import torch

from pagraph.accelerator import CudaAccelerator


@pytest.fixture
def noted(monkeypatch):
    """What is entered and left of torch's contexts, in order."""
    notes = []

    class Stream:
        def __init__(self, device):
            self.device = device

    def noting(name):
        @contextmanager
        def context(what):
            notes.append(f"{name} {getattr(what, 'device', what)}")
            yield
            notes.append(f"no {name}")

        return context

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", noting("device"))
    monkeypatch.setattr(torch.cuda, "stream", noting("stream"))
    return notes


def test_the_device_is_set_around_the_stream_which_would_go_back_to_another_by_force(noted):
    device = CudaAccelerator(torch.device("cuda", 1))
    with device.stream("reading").use():
        noted.append("work")
    assert noted == ["device cuda:1", "stream cuda:1", "work", "no stream", "no device"]
