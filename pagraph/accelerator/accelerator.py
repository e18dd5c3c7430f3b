"""The Accelerator interface, staging buffers, hand-over between streams, retries when memory is
short, and an implementation on the CPU for tests."""

from __future__ import annotations

import gc
import math
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .pinning import Pin, is_writable
from .triton_kernels import has_triton, interprets

OutOfMemory: type[Exception] = torch.cuda.OutOfMemoryError
"""Raised by torch if a device has not enough memory."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that a device is out of memory.

    Torch's allocator raises :data:`OutOfMemory`. For CUDA graphs and for loading kernels the
    driver's error is a plain RuntimeError.
    """
    if isinstance(error, OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error)


def empty_in_any_mode(shape: int | tuple[int, ...], **options: Any) -> Tensor:
    """``torch.empty`` of a tensor that may also be written outside of ``torch.inference_mode``.

    An evaluation in that mode may be the first to allocate buffers and caches, which threads and
    later passes use too.
    """
    if not torch.is_inference_mode_enabled():
        return torch.empty(shape, **options)
    with torch.inference_mode(False):
        return torch.empty(shape, **options)


class Event(ABC):
    """A point in a stream; it has happened when all work before it is done."""

    @property
    @abstractmethod
    def has_happened(self) -> bool:
        """Whether the work before it is done; does not wait."""

    @abstractmethod
    def wait(self) -> None:
        """Block the calling thread until it has happened; releases the GIL."""

    @abstractmethod
    def seconds_since(self, earlier: Event) -> float:
        """Seconds on the device between two events that have happened."""


class Stream(ABC):
    """Work that runs in order, concurrently with other streams. Any thread may enqueue work."""

    @abstractmethod
    def use(self) -> AbstractContextManager[object]:
        """Make this the calling thread's current stream inside the ``with`` body."""

    @abstractmethod
    def record(self) -> Event:
        """An event after all work enqueued so far."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """Let work enqueued from now on begin after ``event``; the calling thread does not wait."""

    @abstractmethod
    def owns(self, tensor: Tensor) -> None:
        """Keep a tensor's memory until the work enqueued so far is done, like ``record_stream``."""


class Accelerator(ABC):
    """A device with memory and streams: a CUDA device or, for tests, the CPU; thread-safe.

    Attributes:
        device: The device of its tensors.
    """

    device: torch.device

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """The stream with a name, created at the first call; never a user's stream."""

    @property
    @abstractmethod
    def current_stream(self) -> Stream:
        """The calling thread's current stream."""

    @property
    @abstractmethod
    def runs_kernels(self) -> bool:
        """Whether Triton kernels run on this device's tensors and on host memory that it pinned."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory on the device, for the current stream; may raise OutOfMemory."""

    @abstractmethod
    def host_memory(self, nbytes: int) -> Tensor:
        """Uninitialised pinned host memory, uint8, shape ``(nbytes,)``.

        Before reusing it, wait for copies from it.
        """

    @abstractmethod
    def recorded(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record what ``work`` enqueues on the current stream; returns a function that replays it.

        A replay takes less host time. Call it on the stream that is current now. ``work`` is called
        once or more now. It must not wait for the device, and must use the same memory each time,
        which the caller keeps alive. No other thread may draw random numbers on the device while it
        is recorded, because torch's generators refuse that.
        """

    @abstractmethod
    def pin(self, tensor: Tensor) -> Pin | None:
        """Pin a host tensor's memory until the ``Pin`` is released; None, with a warning, if
        refused.

        Pins of the same memory are counted.
        """

    @abstractmethod
    def free_bytes(self) -> tuple[int, int]:
        """Bytes that can be allocated now, and total bytes of the device."""

    @abstractmethod
    def release_memory(self) -> None:
        """Return memory that is kept for reuse, so that :meth:`empty` can use it in other sizes."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all streams; for measurements and shutdown, never in the pipeline."""

    def hand_over(self, tensors: Iterable[Tensor], ready: Event) -> None:
        """Make the current stream, not the thread, wait for ``ready`` and own the tensors."""
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
    smaller: str = "lower batch_size, fan-outs or sampling_budget, or use prefetch=0",
) -> T:
    """Call ``work``; if the device is out of memory, shrink the cache and call it again.

    Args:
        work: Makes a batch, or a part of one; can be repeated.
        accelerator: The device; None for the CPU, where the work is done once.
        shrink: Drops about half of the cache's rows; returns whether it had any.
        what: Name of the work in the error.
        smaller: Advice in the error.

    Raises:
        OutOfMemory: The work does not fit, and the cache is empty.
    """
    while True:
        try:
            return work()
        except RuntimeError as error:
            if accelerator is None or not is_out_of_memory(error):
                raise
            problem = str(error)
        # Outside of the handler, whose traceback keeps allocated tensors alive.
        accelerator.release_memory()
        if not shrink():
            raise OutOfMemory(
                f"{what} does not fit on {accelerator.device} with the model, even without a "
                f"cache: {smaller} ({problem})"
            )


@dataclass(frozen=True, eq=False)
class Handover:
    """Tensors, with the event ``ready`` after which another stream may use them.

    Tensors on the CPU are ready; without an accelerator all are. ``begun`` is for statistics.
    """

    tensors: Sequence[Tensor]
    accelerator: Accelerator | None = None
    ready: Event | None = None
    begun: Event | None = None

    @classmethod
    def here(cls, tensors: Sequence[Tensor], accelerator: Accelerator | None) -> Handover:
        """A hand-over of tensors that the calling thread has just made on its current stream."""
        ready = None if accelerator is None else accelerator.current_stream.record()
        return cls(tensors, accelerator, ready)

    def arrive(self) -> Sequence[Tensor]:
        """The tensors; the thread's current stream waits for them, the thread does not."""
        if self.accelerator is not None and self.ready is not None:
            self.accelerator.hand_over(self.tensors, self.ready)
        return self.tensors


# Copies of this size reach the full rate of the bus. Smaller ones are bound by their latency.
_SLOT_BYTES = 8 << 20
_ALIGN = 256


class StagingRing:
    """Ring of pinned buffers: fixed pinned memory for batches of any size; thread-safe.

    A buffer is reused only when the copies from it are done.

    Args:
        accelerator: Where the copies go.
        slots: Number of buffers. With 3, one is copied while another is filled and one is freed.
        slot_bytes: Bytes of each buffer.
    """

    def __init__(
        self, accelerator: Accelerator, slots: int = 3, slot_bytes: int = _SLOT_BYTES
    ) -> None:
        if slots < 1 or slot_bytes < 1:
            raise ValueError(
                f"slots and slot_bytes must be at least 1, got {slots} and {slot_bytes}"
            )
        self.slot_bytes = slot_bytes
        self.accelerator = accelerator
        # (memory, event after the last copy from it). Memory is allocated at the first use. Unused
        # buffers come first, so that nothing waits for a copy while there are any.
        self._free: queue.SimpleQueue[tuple[Tensor | None, Event | None]] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put((None, None))

    @contextmanager
    def slot(self) -> Iterator[Tensor]:
        """A buffer, uint8, shape ``(slot_bytes,)``, to fill and copy from on the current stream."""
        memory, sent = self._free.get()
        try:
            if sent is not None:
                sent.wait()
            if memory is None:
                memory = self.accelerator.host_memory(self.slot_bytes)
        except BaseException:
            # The slot must always be returned, because a ring without slots blocks every batch.
            self._free.put((memory, sent))
            raise
        try:
            yield memory
        finally:
            try:
                sent = self.accelerator.current_stream.record()
            except BaseException:
                # Without an event the end of the copies is unknown. So this memory is not reused;
                # torch's allocator keeps it until they are done.
                self._free.put((None, None))
                raise
            self._free.put((memory, sent))

    def upload(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Copy contiguous host tensors to the device, in one allocation; asynchronous."""
        sources = list(tensors)
        flat = []
        starts = []
        total = 0
        for tensor in sources:
            part = _bytes(tensor)
            flat.append(part)
            starts.append(total)
            total += -(-part.shape[0] // _ALIGN) * _ALIGN
        whole = self.accelerator.empty((total,), torch.uint8)
        for begin in range(0, total, self.slot_bytes):
            end = min(total, begin + self.slot_bytes)
            with self.slot() as memory:
                for source, start in zip(flat, starts, strict=True):
                    stop = start + source.shape[0]
                    if start < begin or stop > end:
                        # Only a part of the tensor, or nothing, is in this slot.
                        source = source[max(begin, start) - start : max(0, min(end, stop) - start)]
                    if source.shape[0]:
                        first = max(begin, start) - begin
                        memory[first : first + source.shape[0]].copy_(source)
                whole[begin:end].copy_(memory[: end - begin], non_blocking=True)
        # One view for all tensors of a dtype, because each view takes a microsecond.
        typed: dict[torch.dtype, Tensor] = {}
        copies = []
        for tensor, start in zip(sources, starts, strict=True):
            dtype = tensor.dtype
            of_dtype = typed.get(dtype)
            if of_dtype is None:
                of_dtype = typed[dtype] = whole.view(dtype)
            first = start // dtype.itemsize
            copy = of_dtype[first : first + tensor.numel()]
            if tensor.dim() != 1:
                copy = copy.view(tensor.shape)
            copies.append(copy)
        return copies


def _bytes(tensor: Tensor) -> Tensor:
    """A contiguous host tensor's bytes, shape ``(nbytes,)``, uint8."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return (tensor if tensor.dim() == 1 else tensor.reshape(-1)).view(torch.uint8)


class _HostEvent(Event):
    def __init__(self) -> None:
        self.seconds = time.perf_counter()

    has_happened = True

    def wait(self) -> None:
        """Nothing to wait for."""

    def seconds_since(self, earlier: Event) -> float:
        return self.seconds - cast(_HostEvent, earlier).seconds


class _HostStream(Stream):
    """Runs everything synchronously."""

    def __init__(self, owner: HostAccelerator, name: str) -> None:
        self._owner = owner
        self.name = name

    @contextmanager
    def use(self) -> Iterator[None]:
        before = self._owner.current_stream
        self._owner._current.stream = self
        try:
            yield
        finally:
            self._owner._current.stream = before

    def record(self) -> Event:
        return _HostEvent()

    def wait_for(self, event: Event) -> None:
        """Nothing to wait for."""

    def owns(self, tensor: Tensor) -> None:
        """Nothing to do, because memory is not reused while a tensor is held."""


class HostAccelerator(Accelerator):
    """CPU-backed accelerator for tests: Triton's interpreter runs kernels, streams are synchronous.

    It is thousands of times slower than a GPU. ``TRITON_INTERPRET=1`` must be in the environment
    before kernels are first imported; else none is run, as on a GPU without Triton.

    Args:
        memory: Bytes of its simulated memory; allocating more raises ``OutOfMemory``.
    """

    def __init__(self, memory: int = 1 << 40) -> None:
        self.device = torch.device("cpu")
        self._memory = memory
        self._used = 0
        self._lock = threading.RLock()  # re-entrant, since a finaliser may run while it is held
        self._streams: dict[str, _HostStream] = {}
        self._user = _HostStream(self, "user")
        self._current = threading.local()

    def stream(self, name: str) -> Stream:
        """See :class:`Accelerator`."""
        return self._streams.setdefault(name, _HostStream(self, name))

    @property
    def current_stream(self) -> Stream:
        """See :class:`Accelerator`."""
        return cast(Stream, getattr(self._current, "stream", self._user))

    @property
    def runs_kernels(self) -> bool:
        """See :class:`Accelerator`."""
        return has_triton() and interprets()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :class:`Accelerator`."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            if self._used + nbytes > self._memory:
                raise OutOfMemory(
                    f"tried to allocate {nbytes} bytes, {self._memory - self._used} of "
                    f"{self._memory} are free"
                )
            self._used += nbytes
        tensor = empty_in_any_mode(shape, dtype=dtype, device=self.device)
        # Of the storage, not of the tensor, because views keep the memory too.
        weakref.finalize(tensor.untyped_storage(), self._give_back, nbytes).atexit = False
        return tensor

    def host_memory(self, nbytes: int) -> Tensor:
        """See :class:`Accelerator`."""
        return empty_in_any_mode(nbytes, dtype=torch.uint8, device="cpu")

    def recorded(self, work: Callable[[], object]) -> Callable[[], object]:
        """See :class:`Accelerator`."""
        return work

    def pin(self, tensor: Tensor) -> Pin | None:
        """See :class:`Accelerator`; refuses read-only maps, as the interpreter writes back what it
        read."""
        return Pin(tensor) if is_writable(tensor) else None

    def free_bytes(self) -> tuple[int, int]:
        """See :class:`Accelerator`."""
        return self._memory - self._used, self._memory

    def release_memory(self) -> None:
        """See :class:`Accelerator`; collects the reference cycles that the interpreter leaves."""
        gc.collect()

    def synchronize(self) -> None:
        """See :class:`Accelerator`."""

    def _give_back(self, nbytes: int) -> None:
        with self._lock:
            self._used -= nbytes

    def __repr__(self) -> str:
        return "HostAccelerator()"
