"""StagingRing: a few pinned buffers through which host rows reach a device, each reused after its copy."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .accelerator import Accelerator, Event

__all__ = ["StagingRing"]

_SLOT_BYTES = 8 << 20
_ALIGN = 256


class StagingRing:
    """Pinned buffers that are handed out in turn. Safe from any thread.

    A buffer is given out again only when the copies from it have been done: whoever takes it waits for the event that
    the one before recorded. So a batch needs a fixed amount of pinned memory, whatever its size.

    Args:
        accelerator: Where the copies go.
        slots: Buffers; 3 keep a copy running while one is being filled and one is being freed.
        slot_bytes: Bytes of each.
    """

    def __init__(self, accelerator: Accelerator, slots: int = 3, slot_bytes: int = _SLOT_BYTES) -> None:
        if slots < 1 or slot_bytes < 1:
            raise ValueError(f"slots and slot_bytes must be at least 1, got {slots} and {slot_bytes}")
        self.slot_bytes = slot_bytes
        self.accelerator = accelerator
        # Those that are not made yet stand first: nobody waits for a copy while a buffer has not been used.
        self._free: queue.SimpleQueue[tuple[Tensor | None, Event | None]] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put((None, None))

    @contextmanager
    def slot(self) -> Iterator[Tensor]:
        """A buffer, uint8, shape ``(slot_bytes,)``; in the body fill it and copy from it on the current stream."""
        memory, sent = self._free.get()
        try:
            if sent is not None:
                sent.wait()
            if memory is None:
                memory = self.accelerator.host_memory(self.slot_bytes)
        except BaseException:
            self._free.put((memory, sent))
            raise
        try:
            yield memory
        finally:
            sent = None
            try:
                sent = self.accelerator.current_stream.record()
            finally:
                self._free.put((memory, sent))

    def upload(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Copies of host tensors on the device, on the current stream; the calling thread does not wait for them.

        They are cut from one allocation. Contiguous tensors only.
        """
        sources = list(tensors)
        starts, total = [], 0
        for tensor in sources:
            starts.append(total)
            total += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        whole = self.accelerator.empty((total,), torch.uint8)
        flat = [_bytes(tensor) for tensor in sources]
        for begin in range(0, total, self.slot_bytes):
            end = min(total, begin + self.slot_bytes)
            with self.slot() as memory:
                for source, start in zip(flat, starts, strict=True):
                    first, last = max(begin, start), min(end, start + len(source))
                    if first < last:
                        memory[first - begin : last - begin].copy_(source[first - start : last - start])
                whole[begin:end].copy_(memory[: end - begin], non_blocking=True)
        return [
            whole[start : start + len(source)].view(tensor.dtype).view(tensor.shape)
            for tensor, source, start in zip(sources, flat, starts, strict=True)
        ]


def _bytes(tensor: Tensor) -> Tensor:
    """A contiguous host tensor's bytes, shape ``(nbytes,)``, uint8."""
    nbytes = math.prod(tensor.shape) * tensor.element_size()
    return tensor.reshape(-1).view(torch.uint8) if nbytes else torch.empty(0, dtype=torch.uint8)
