"""The staging ring: the right bytes, and no buffer before its copy is done."""

import threading
import time

import pytest
import torch
from fresh_processes import HANGING
from hypothesis import given
from hypothesis import strategies as st

from pagraph.accelerator import Event, HostAccelerator, StagingRing

_DTYPES = [
    torch.uint8,
    torch.bool,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
]


class _Slow(Event):
    """An event that happens when it is told to."""

    def __init__(self):
        self.told = threading.Event()

    @property
    def has_happened(self):
        return self.told.is_set()

    def wait(self):
        assert self.told.wait(HANGING)

    def seconds_since(self, earlier):
        return 0.0


class _SlowDevice(HostAccelerator):
    """A device whose copies end when they are told to."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.made = 0

    @property
    def current_stream(self):
        device = self

        class Stream:
            def record(self):
                device.events.append(_Slow())
                return device.events[-1]

        return Stream()

    def host_memory(self, nbytes):
        self.made += 1
        return super().host_memory(nbytes)


@given(st.data())
def test_uploads_have_the_bytes_of_their_sources(data):
    sources = []
    for _ in range(data.draw(st.integers(0, 6))):
        dtype = data.draw(st.sampled_from(_DTYPES))
        shape = data.draw(st.lists(st.integers(0, 9), max_size=3))
        sources.append(torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype))
    slots, slot_bytes = (
        data.draw(st.integers(1, 3)),
        data.draw(st.sampled_from([1, 7, 64, 100, 256, 1000, 1 << 16])),
    )
    ring = StagingRing(HostAccelerator(), slots, slot_bytes)
    for _ in range(2):
        sent = ring.upload(iter(sources))
        assert len(sent) == len(sources)
        for copy, source in zip(sent, sources, strict=True):
            assert copy.dtype == source.dtype
            assert torch.equal(copy, source)
            assert copy.numel() == 0 or copy.data_ptr() != source.data_ptr()


def test_uploads_are_cut_from_one_allocation_that_outlives_none_of_them():
    device = HostAccelerator(memory=1 << 20)
    first, second = StagingRing(device).upload([torch.arange(10), torch.ones(3)])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert device.free_bytes()[0] == (1 << 20) - 512
    del first
    assert second.tolist() == [1, 1, 1]
    del second
    assert device.free_bytes()[0] == 1 << 20


def test_uploads_do_not_follow_their_sources():
    ring, source = StagingRing(HostAccelerator(), 1, 16), torch.arange(100)
    (sent,) = ring.upload([source])
    source.zero_()
    ring.upload([source])
    assert sent.tolist() == list(range(100))


def test_all_slots_are_filled_before_a_copy_is_waited_for():
    device = _SlowDevice()
    ring = StagingRing(device, slots=3, slot_bytes=8)
    addresses = []
    for _ in range(3):
        with ring.slot() as memory:
            addresses.append(memory.data_ptr())
    assert len(set(addresses)) == device.made == 3
    taken = []

    def fourth():
        with ring.slot() as memory:
            taken.append(memory.data_ptr())

    thread = threading.Thread(target=fourth)
    thread.start()
    time.sleep(0.05)
    assert not taken  # the first copy is not done
    device.events[0].told.set()
    thread.join(HANGING)
    assert taken == addresses[:1]
    assert device.made == 3


def test_no_two_threads_have_one_slot():
    device = HostAccelerator()
    ring = StagingRing(device, slots=2, slot_bytes=1000)
    failures = []

    def work(number):
        try:
            source = torch.full((5000,), number, dtype=torch.int32)
            for _ in range(40):
                (sent,) = ring.upload([source])
                assert torch.equal(sent, source)
                with ring.slot() as memory:
                    memory.fill_(number)
                    time.sleep(0)
                    assert bool((memory == number).all())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_that_cannot_be_had_loses_no_slot():
    class Short(HostAccelerator):
        fails = 2

        def host_memory(self, nbytes):
            self.fails -= 1
            if self.fails >= 0:
                raise RuntimeError("no pinned memory")
            return super().host_memory(nbytes)

    ring = StagingRing(Short(), slots=1, slot_bytes=8)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no pinned memory"), ring.slot():
            pass
    assert ring.upload([torch.arange(9)])[0].tolist() == list(range(9))


def test_a_thread_that_waits_for_a_slot_gets_that_of_one_that_failed():
    inside, go_on = threading.Event(), threading.Event()

    class Short(HostAccelerator):
        calls = 0

        def host_memory(self, nbytes):
            self.calls += 1
            if self.calls == 1:
                inside.set()
                assert go_on.wait(HANGING)
                raise RuntimeError("no pinned memory")
            return super().host_memory(nbytes)

    ring = StagingRing(Short(), slots=1, slot_bytes=8)
    outcomes = {}

    def work(number):
        try:
            with ring.slot():
                outcomes[number] = "slot"
        except RuntimeError as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    threads[0].start()
    assert inside.wait(HANGING)
    threads[1].start()
    time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(HANGING)
    assert outcomes == {0: "no pinned memory", 1: "slot"}


def test_a_wait_that_fails_loses_no_slot():
    device = _SlowDevice()
    ring = StagingRing(device, slots=1, slot_bytes=8)
    with ring.slot():
        pass

    def fails():
        raise KeyboardInterrupt

    device.events[0].wait = fails
    with pytest.raises(KeyboardInterrupt), ring.slot():
        pass
    del device.events[0].wait
    device.events[0].told.set()
    with ring.slot() as memory:
        assert len(memory) == 8


def test_a_buffer_whose_copies_have_no_event_is_not_filled_again(monkeypatch):
    ring = StagingRing(HostAccelerator(), slots=1, slot_bytes=8)
    stream = ring.accelerator.current_stream
    with ring.slot() as first:
        pass

    def fails():
        raise RuntimeError("no event")

    monkeypatch.setattr(stream, "record", fails)
    with pytest.raises(RuntimeError, match="no event"), ring.slot() as memory:
        assert memory is first
    monkeypatch.undo()
    with ring.slot() as memory:
        assert memory is not first


def test_a_body_that_fails_gives_its_slot_back():
    ring = StagingRing(HostAccelerator(), slots=1, slot_bytes=8)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), ring.slot():
            _ = 1 // 0


def test_a_ring_that_is_dropped_takes_nothing_with_it():
    device = HostAccelerator(memory=1 << 20)
    ring = StagingRing(device, slots=2, slot_bytes=64)
    sent = ring.upload([torch.arange(100)])
    del ring
    assert sent[0].tolist() == list(range(100))


def test_a_device_without_room_for_an_upload_leaves_the_ring_as_it_was():
    ring = StagingRing(HostAccelerator(memory=600), slots=1, slot_bytes=64)
    with pytest.raises(RuntimeError, match="tried to allocate"):
        ring.upload([torch.arange(100)])
    assert ring.upload([torch.arange(10)])[0].tolist() == list(range(10))


@pytest.mark.parametrize("arguments", [{"slots": 0}, {"slot_bytes": 0}])
def test_a_ring_has_slots_and_bytes(arguments):
    with pytest.raises(ValueError, match="slots and slot_bytes must be at least 1"):
        StagingRing(HostAccelerator(), **arguments)
