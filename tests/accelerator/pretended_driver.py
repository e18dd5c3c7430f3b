"""PinnedMemory without a driver: remembers what it would have registered, and refuses what a driver
refuses."""

import threading

import torch
from fresh_processes import HANGING

from pagraph.accelerator.pinning import PinnedMemory

GPU = torch.device("cuda", 0)
OTHER_GPU = torch.device("cuda", 1)


class PretendedDriver(PinnedMemory):
    """Registers nothing; ``registered`` maps addresses to bytes."""

    def __init__(self):
        super().__init__()
        self.registered = {}
        self.calls = []
        self.refuses = None
        self.captures = False
        self.inside = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def pages(self):
        return {
            page
            for begin, size in self.registered.items()
            for page in range(begin >> 12, (begin + size + 4095) >> 12)
        }

    def _is_pinned(self, address):
        return any(begin <= address < begin + size for begin, size in self.registered.items())

    def _register(self, begin, nbytes, device, *, writable):
        self.inside.set()
        assert self.may_go_on.wait(HANGING)
        self.calls.append(("register", begin, nbytes, device, writable))
        if self.refuses is not None:
            return self.refuses
        if self.pages() & set(range(begin >> 12, (begin + nbytes + 4095) >> 12)):
            return "part or all of the requested memory range is already mapped"
        self.registered[begin] = nbytes
        return None

    def _unregister(self, begin, device):
        del self.registered[begin]
        self.calls.append(("unregister", begin))

    def _is_capturing(self):
        return self.captures

    def _synchronize(self, devices):
        assert not self.captures, "a capture would fail"
        self.calls.append(("synchronize", *sorted(str(device) for device in devices)))
