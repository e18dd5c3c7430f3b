"""The accelerator that is the CPU: streams, events, memory that is counted."""

import gc
import threading
import warnings

import numpy as np
import pytest
import torch

from pagraph.accelerator import Accelerator, HostAccelerator, OutOfMemory, accelerator_for


def test_streams_nest_and_belong_to_a_thread():
    device = HostAccelerator()
    user, reading, sampling = (
        device.current_stream,
        device.stream("reading"),
        device.stream("sampling"),
    )
    seen = []

    def elsewhere():
        seen.append(device.current_stream)
        with sampling.use():
            seen.append(device.current_stream)

    with reading.use():
        assert device.current_stream is reading
        with sampling.use():
            assert device.current_stream is sampling
        assert device.current_stream is reading
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with pytest.raises(ZeroDivisionError), sampling.use():
            _ = 1 // 0
        assert device.current_stream is reading
    assert device.current_stream is user
    assert seen == [user, sampling]


def test_a_stream_is_made_once():
    device = HostAccelerator()
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(device.stream("reading"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(stream) for stream in made}) == 1
    assert device.stream("sampling") is not made[0]


def test_events_happen_at_once_in_order():
    device = HostAccelerator()
    stream = device.stream("reading")
    begun = stream.record()
    ready = stream.record()
    assert begun.has_happened
    ready.wait()
    assert ready.seconds_since(begun) >= 0
    assert begun.seconds_since(ready) <= 0


def test_hand_over_waits_and_owns_the_devices_tensors():
    class Watched(HostAccelerator):
        log: list = []

        @property
        def current_stream(self):
            log = self.log

            class Stream:
                def wait_for(self, event):
                    log.append(event)

                def owns(self, tensor):
                    log.append(tensor)

            return Stream()

    device = Watched()
    ready, ours = device.stream("reading").record(), torch.zeros(3)
    device.hand_over([ours, torch.empty(2, device="meta")], ready)
    assert device.log[0] is ready
    assert device.log[1] is ours
    assert len(device.log) == 2


def test_memory_is_counted_until_the_last_view_goes():
    device = HostAccelerator(memory=1000)
    tensor = device.empty((10, 5), torch.int64)
    assert device.free_bytes() == (600, 1000)
    view, array = tensor[3:].view(torch.uint8), tensor[0].numpy()
    del tensor
    gc.collect()
    assert device.free_bytes() == (600, 1000)
    del view
    assert device.free_bytes() == (600, 1000)
    del array
    assert device.free_bytes() == (1000, 1000)


def test_more_memory_than_there_is_raises_and_takes_nothing():
    device = HostAccelerator(memory=1000)
    kept = device.empty((900,), torch.uint8)
    with pytest.raises(OutOfMemory, match="tried to allocate 104 bytes, 100 of 1000 are free"):
        device.empty((13,), torch.float64)
    assert device.free_bytes() == (100, 1000)
    assert len(device.empty((100,), torch.uint8)) == 100
    device.release_memory()
    device.synchronize()
    assert len(kept) == 900


def test_out_of_memory_is_what_torch_raises():
    assert issubclass(OutOfMemory, RuntimeError)
    assert issubclass(OutOfMemory, torch.cuda.OutOfMemoryError)


def test_nothing_can_be_allocated_in_all():
    device = HostAccelerator(memory=0)
    assert device.empty((0, 7), torch.float32).shape == (0, 7)
    with pytest.raises(OutOfMemory):
        device.empty((1,), torch.uint8)


def test_threads_share_the_memory():
    device = HostAccelerator(memory=64 * 100)

    def work():
        for _ in range(500):
            device.empty((100,), torch.uint8)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.free_bytes() == (6400, 6400)


def test_writable_memory_is_pinned_in_place_and_other_memory_is_not(tmp_path):
    device = HostAccelerator()
    tensor = torch.arange(5)
    assert device.pin(tensor).tensor is tensor
    np.arange(5).tofile(tmp_path / "rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that the array is not writable: once a process
        read_only = torch.from_numpy(np.memmap(tmp_path / "rows", np.int64, "r"))
    assert device.pin(read_only) is None


def test_it_is_an_accelerator_of_the_cpu():
    device = HostAccelerator()
    assert isinstance(device, Accelerator)
    assert device.device == torch.device("cpu")
    assert repr(device) == "HostAccelerator()"
    assert device.host_memory(7).shape == (7,)
    assert device.host_memory(7).dtype == torch.uint8


def test_kernels_run_where_triton_interprets(monkeypatch):
    device = HostAccelerator()
    monkeypatch.setattr("pagraph.accelerator.accelerator.has_triton", lambda: True)
    for value, runs in (("0", False), ("1", True), ("true", True), ("no", False)):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        assert device.runs_kernels is runs
    monkeypatch.setattr("pagraph.accelerator.accelerator.has_triton", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not device.runs_kernels


def test_only_cuda_devices_have_an_accelerator():
    assert accelerator_for(torch.device("cpu")) is None
    assert accelerator_for(torch.device("meta")) is None
    first = accelerator_for(torch.device("cuda", 3))  # CUDA itself is not touched before it is used
    assert repr(first) == "CudaAccelerator('cuda:3')"
    assert accelerator_for(torch.device("cuda", 3)) is first
    assert accelerator_for(torch.device("cuda", 2)) is not first
