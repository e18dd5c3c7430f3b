"""What one thread makes arrives in another; work for which there is no room is done again."""

import pytest
import torch
from recording_accelerator import RecordingAccelerator

from pagraph.accelerator import Handover, HostAccelerator, OutOfMemory, with_room


def test_tensors_arrive_after_the_event_of_those_who_made_them():
    device, tensors = RecordingAccelerator(), [torch.arange(3), torch.ones(2)]
    with device.stream("reading").use():
        handover = Handover.here(tensors, device)
    assert not device.handed
    assert handover.arrive() is tensors
    assert [(address, event) for address, _, event in device.handed] == [
        (tensor.data_ptr(), handover.ready) for tensor in tensors
    ]


def test_on_the_cpu_there_is_nothing_to_wait_for():
    handover = Handover.here([torch.arange(3)], None)
    assert handover.ready is None
    assert handover.arrive()[0].tolist() == [0, 1, 2]


def test_work_is_done_again_until_nothing_can_be_given_up():
    device, kept, done = HostAccelerator(memory=1000), [], []
    kept = [device.empty((300,), torch.uint8) for _ in range(3)]

    def shrink():
        if kept:
            kept.pop()
            return True
        return False

    done.append(with_room(lambda: device.empty((700,), torch.uint8), device, shrink))
    assert len(kept) == 1
    with pytest.raises(
        OutOfMemory, match=r"does not fit on cpu with the model, .* \(tried to allocate 400 bytes"
    ):
        with_room(lambda: device.empty((400,), torch.uint8), device, shrink)
    assert not kept
    assert device.free_bytes()[0] == 300


def test_the_driver_that_is_out_of_memory_says_so_in_words():
    room = [False]

    def load_kernel():
        if not room[0]:
            raise RuntimeError("Triton Error [CUDA]: out of memory")
        return "loaded"

    def shrink():
        room[0] = True
        return True

    assert with_room(load_kernel, HostAccelerator(), shrink) == "loaded"


def test_other_errors_and_the_cpu_are_left_alone():
    def fails():
        raise OutOfMemory("no memory")

    def shrink():
        raise AssertionError("there is nothing to give up")

    with pytest.raises(OutOfMemory, match="^no memory$"):
        with_room(fails, None, shrink)
    with pytest.raises(ZeroDivisionError):
        with_room(lambda: 1 // 0, HostAccelerator(), shrink)

    def fails_otherwise():
        raise RuntimeError("CUDA error: invalid argument")

    with pytest.raises(RuntimeError, match="invalid argument"):
        with_room(fails_otherwise, HostAccelerator(), shrink)
