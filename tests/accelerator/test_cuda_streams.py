"""How a CUDA device's streams are used, as far as that can be told without one."""

import gc
from contextlib import contextmanager

import pytest
import torch

from pagraph.accelerator import CudaAccelerator, OutOfMemory


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
    # Torch for the CPU has no such function.
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentStream", lambda index: (0, index, 1), raising=False
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
    assert device.current_stream is device.current_stream
    users = "stream the user's of 0"
    assert noted == ["stream cuda:0"] * 3 + [users]


class Graph:
    """As torch's where a capture is broken: to end it is an error too."""

    broken = None

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        if self.broken == "begin":
            raise RuntimeError("CUDA error: the stream is capturing")
        self.pool = pool

    def capture_end(self):
        if self.broken == "end":
            raise RuntimeError("CUDA error: operation failed due to a previous error")
        self.pool = None

    def replay(self):
        pass


@pytest.fixture
def pools(monkeypatch, noted):
    """The ends of pools that the allocator is told."""
    told = []

    def ends(index, pool):
        if told:
            raise RuntimeError("not currently recording to it")
        told.append(("end", index, pool))

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ends, raising=False)
    monkeypatch.setattr(
        torch._C,
        "_cuda_releasePool",
        lambda index, pool: told.append(("release", index, pool)),
        raising=False,
    )
    return told


OVER = [("end", 0, (0, 7)), ("release", 0, (0, 7))]


def test_an_error_while_work_is_captured_is_not_hidden_by_the_captures_end(monkeypatch, pools):
    monkeypatch.setattr(Graph, "broken", "end")
    calls = []

    def work():
        calls.append(None)
        if len(calls) == 2:
            raise OutOfMemory("no room for a running sum")

    with pytest.raises(OutOfMemory, match="no room for a running sum"):
        CudaAccelerator(torch.device("cuda", 0)).recorded(work)
    assert len(calls) == 2 and gc.isenabled()
    assert pools == OVER


@pytest.mark.parametrize("at", ["begin", "end"])
def test_the_allocator_is_told_that_a_capture_that_failed_is_over(monkeypatch, pools, at):
    """It keeps memory that several streams have used while there is a capture."""
    monkeypatch.setattr(Graph, "broken", at)
    with pytest.raises(RuntimeError, match="CUDA error"):
        CudaAccelerator(torch.device("cuda", 0)).recorded(lambda: None)
    assert pools == OVER


def test_what_torch_has_told_the_allocator_is_not_released_twice(monkeypatch, pools):
    pools.append("ended by torch")

    def fails():
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(Graph, "capture_end", lambda graph: fails())
    with pytest.raises(RuntimeError, match="out of memory"):
        CudaAccelerator(torch.device("cuda", 0)).recorded(lambda: None)
    assert pools == ["ended by torch"]


def test_work_is_captured_in_a_stream_of_its_own_and_nothing_collected_meanwhile(pools):
    device = CudaAccelerator(torch.device("cuda", 0))
    calls = []
    with device.stream("reading").use():
        device.recorded(lambda: calls.append((gc.isenabled(), device.current_stream)))
        assert device.current_stream is device.stream("reading")
    assert calls == [(True, device.stream("reading")), (False, device.stream("recording"))]
    assert gc.isenabled()
