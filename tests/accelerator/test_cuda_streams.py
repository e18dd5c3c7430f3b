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
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: Stream(f"the user's of {index}")
    )
    monkeypatch.setattr(
        torch.cuda, "set_stream", lambda stream: notes.append(f"stream {stream.device}")
    )
    return notes


def test_the_device_is_set_around_the_stream_which_would_go_back_to_another_by_force(noted):
    device = CudaAccelerator(torch.device("cuda", 1))
    with device.stream("reading").use():
        noted.append("work")
    assert noted == ["device 1", "stream cuda:1", "work", "stream the user's of 1", "no device"]


def test_a_thread_knows_which_of_our_streams_it_uses(noted):
    device = CudaAccelerator(torch.device("cuda", 0))
    reading, sampling = device.stream("reading"), device.stream("sampling")
    with reading.use():
        with sampling.use():
            assert device.current_stream is sampling
        assert device.current_stream is reading
    assert device.current_stream not in (reading, sampling)
    users = "stream the user's of 0"
    assert noted == ["stream cuda:0"] * 3 + [users]
