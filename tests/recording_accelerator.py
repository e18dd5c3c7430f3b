"""An accelerator on the CPU that notes what is handed over, waited for and pinned."""

import threading
import weakref

import torch

from pagraph.accelerator import Event, HostAccelerator, Pin


class RecordingAccelerator(HostAccelerator):
    """Attributes tell what happened.

    ``handed`` has (address of its memory, thread, event) of every tensor that was handed over,
    which stands for all tensors in that memory; ``made_in`` the (thread, stream) pairs that memory
    was made in.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.handed: list[tuple[int, str, Event]] = []
        self.pinned = 0
        self.made_in: set[tuple[str, str]] = set()

    def empty(self, shape, dtype):
        self.made_in.add((threading.current_thread().name, self.current_stream.name))
        return super().empty(shape, dtype)

    def hand_over(self, tensors, ready):
        tensors = list(tensors)
        thread = threading.current_thread().name
        self.handed += [(memory_of(t), thread, ready) for t in tensors]
        super().hand_over(tensors, ready)

    def pin(self, tensor: torch.Tensor) -> Pin | None:
        pin = super().pin(tensor)
        if pin is not None:
            self.pinned += 1
            weakref.finalize(pin, self._unpin).atexit = False
        return pin

    def _unpin(self):
        self.pinned -= 1

    def handed_in(self, thread: str) -> set[int]:
        """Addresses of the memory that was handed over in a thread."""
        return {address for address, where, _ in self.handed if where == thread}


def memory_of(tensor):
    """Address of the allocation that a tensor lies in."""
    return tensor.untyped_storage().data_ptr()
