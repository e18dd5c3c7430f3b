"""Accelerator interface: streams, events, staging buffers, hand-over between streams, repeats when memory is short."""

from __future__ import annotations

import math
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .pinning import Pin

__all__ = ["Accelerator", "Event", "Handover", "OutOfMemory", "StagingRing", "Stream", "empty_in_any_mode", "with_room"]

OutOfMemory: type[Exception] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""What torch raises where a device has not enough memory; its name was another before torch 2.5."""


def empty_in_any_mode(shape: int | tuple[int, ...], **options: Any) -> Tensor:
    """``torch.empty``, of a tensor that may be written wherever it gets to.

    One that is made in ``torch.inference_mode`` must not be written outside of it; but a reader who evaluates in it may
    be who first asks for buffers and caches that threads and later passes use too.
    """
    if not torch.is_inference_mode_enabled():
        return torch.empty(shape, **options)
    with torch.inference_mode(False):
        return torch.empty(shape, **options)


class Event(ABC):
    """A place in a stream; it has happened when everything before it has been done."""

    @property
    @abstractmethod
    def has_happened(self) -> bool:
        """Whether it has; waits for nothing."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for it in the calling thread, without the interpreter's lock."""

    @abstractmethod
    def seconds_since(self, earlier: Event) -> float:
        """Seconds on the device between two events that have happened."""


class Stream(ABC):
    """Work that is done in order, beside the work of other streams. Any thread may give it work."""

    @abstractmethod
    def use(self) -> AbstractContextManager[object]:
        """In the ``with`` body the calling thread's operations, kernels and new tensors are the stream's."""

    @abstractmethod
    def record(self) -> Event:
        """An event after all work given to the stream so far."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """Work given from now on begins after ``event``; the calling thread does not wait."""

    @abstractmethod
    def owns(self, tensor: Tensor) -> None:
        """The stream uses a tensor's memory too: it is not given out again before the work given so far is done."""


class Accelerator(ABC):
    """A device with its own memory and streams. Safe from any thread.

    Everything that the loading engine does on a device goes through this, so that the same code runs on a CUDA device
    and, for tests, on the CPU.

    Attributes:
        device: Where its tensors are.
    """

    device: torch.device

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """The stream of that name, made when first asked for; not the user's."""

    @property
    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream that the calling thread's operations go to: in the user's thread the user's."""

    @property
    @abstractmethod
    def runs_kernels(self) -> bool:
        """Whether Triton's kernels can be launched on tensors of this device, and on host memory that it has pinned."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory on the device, for the current stream.

        Raises:
            OutOfMemory: There is not enough.
        """

    @abstractmethod
    def host_memory(self, nbytes: int) -> Tensor:
        """Uninitialised host memory that the device copies from and to at full speed, uint8, shape ``(nbytes,)``.

        It is not recycled behind the caller's back: who reuses it waits for the copies.
        """

    @abstractmethod
    def pin(self, tensor: Tensor) -> Pin | None:
        """Let the device read a host tensor's memory in place; None (and one warning) where that is refused.

        The memory stays pinned until the ``Pin`` is released; pins of one memory are counted.
        """

    @abstractmethod
    def free_bytes(self) -> tuple[int, int]:
        """Bytes that could be allocated now, and bytes of the device in all."""

    @abstractmethod
    def release_memory(self) -> None:
        """Give memory that is kept for reuse back, so that :meth:`empty` can have it in other sizes."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all streams; for measurements and endings, never in the pipeline."""

    def hand_over(self, tensors: Iterable[Tensor], ready: Event) -> None:
        """Make tensors of another stream the current stream's: it waits for ``ready``, and owns their memory.

        Call in the thread that will use them; it does not wait. Tensors of other devices are passed over.
        """
        stream = self.current_stream
        stream.wait_for(ready)
        for tensor in tensors:
            if tensor.device == self.device:
                stream.owns(tensor)


T = TypeVar("T")


def with_room(
    work: Callable[[], T],
    accelerator: Accelerator | None,
    shrink: Callable[[], bool],
    *,
    what: str = "a batch",
    smaller: str = "batch_size, fan-outs or sampling_budget must be smaller, or prefetch=0",
) -> T:
    """Do a piece of work that can be repeated; where the device's memory is short, again with a smaller cache.

    Args:
        work: Makes a batch, or a part of one; leaves nothing behind that a repetition would count twice.
        accelerator: Where it does; None: on the CPU, once.
        shrink: Makes the cache give up about half of what it holds; whether it had anything.
        what: What the error calls the work.
        smaller: What the error asks for.

    Raises:
        OutOfMemory: The work does not fit, and nothing is cached any more.
    """
    while True:
        try:
            return work()
        except OutOfMemory as error:
            if accelerator is None:
                raise
            problem = str(error)
        # Outside of the handler: its traceback holds what had been allocated.
        accelerator.release_memory()
        if not shrink():
            raise OutOfMemory(
                f"{what} does not fit on {accelerator.device} beside the model, and no cache is left to give up: "
                f"{smaller} ({problem})"
            )


@dataclass(frozen=True, eq=False)
class Handover:
    """Tensors on their way from the stream that made them to the one that will use them.

    Attributes:
        tensors: On any device; those that are not the accelerator's are simply there.
        accelerator: Theirs; None: everything is on the CPU.
        ready: When they are made.
        begun: When that began, if somebody wants to know.
    """

    tensors: Sequence[Tensor]
    accelerator: Accelerator | None = None
    ready: Event | None = None
    begun: Event | None = None

    @classmethod
    def here(cls, tensors: Sequence[Tensor], accelerator: Accelerator | None) -> Handover:
        """Of tensors that the calling thread has just made on its current stream."""
        return cls(tensors, accelerator, None if accelerator is None else accelerator.current_stream.record())

    def arrive(self) -> Sequence[Tensor]:
        """The tensors, for the calling thread's current stream; it does not wait."""
        if self.accelerator is not None and self.ready is not None:
            self.accelerator.hand_over(self.tensors, self.ready)
        return self.tensors


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
