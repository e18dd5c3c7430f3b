"""Accelerator interface: streams, events, staging buffers, hand-over between streams, repeats when
memory is short."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .pinning import Pin

OutOfMemory: type[Exception] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""Raised by torch where a device has not enough memory; its name was another before torch 2.5."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that a device's memory is short.

    Only torch's allocator raises :data:`OutOfMemory`. The driver, which makes CUDA graphs and loads
    kernels, says it in a plain RuntimeError.
    """
    if isinstance(error, OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error)


def empty_in_any_mode(shape: int | tuple[int, ...], **options: Any) -> Tensor:
    """``torch.empty``, of a tensor that may be written outside of ``torch.inference_mode`` too.

    An evaluation in that mode may be the first to need buffers and caches that threads and later
    passes use.
    """
    if not torch.is_inference_mode_enabled():
        return torch.empty(shape, **options)
    with torch.inference_mode(False):
        return torch.empty(shape, **options)


class Event(ABC):
    """A point in a stream; it has happened when everything before it has been done."""

    @property
    @abstractmethod
    def has_happened(self) -> bool:
        """Whether the work before it is done; does not wait."""

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
        """Make the calling thread's operations, kernels and new tensors in the ``with`` body the
        stream's."""

    @abstractmethod
    def record(self) -> Event:
        """An event after all work given to the stream so far."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """Work given from now on begins after ``event``; the calling thread does not wait."""

    @abstractmethod
    def owns(self, tensor: Tensor) -> None:
        """The stream uses a tensor's memory too: it is not given out again before the work given so
        far is done."""


class Accelerator(ABC):
    """A device with its own memory and streams: a CUDA device or, for tests, the CPU. Safe from any
    thread.

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
        """The stream that the calling thread's operations go to: in the user's thread the
        user's."""

    @property
    @abstractmethod
    def runs_kernels(self) -> bool:
        """Whether Triton's kernels can be launched on tensors of this device, and on host memory
        that it has pinned."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory on the device, for the current stream; OutOfMemory if there is not
        enough."""

    @abstractmethod
    def host_memory(self, nbytes: int) -> Tensor:
        """Uninitialised pinned host memory, uint8, shape ``(nbytes,)``; to reuse it, wait for the
        copies."""

    @abstractmethod
    def recorded(self, work: Callable[[], object]) -> Callable[[], object]:
        """A function that does on the current stream again what ``work`` enqueues there, in less of
        the host's time.

        Call it on the stream that is in use now. ``work`` is called any number of times now, must
        not wait for the device, and reads and writes the same memory each time, which the caller
        keeps. No other thread may draw random numbers on the device meanwhile (torch's generators
        refuse that).
        """

    @abstractmethod
    def pin(self, tensor: Tensor) -> Pin | None:
        """Pin a host tensor's memory until the ``Pin`` (counted) is released; None (and one
        warning) where refused."""

    @abstractmethod
    def free_bytes(self) -> tuple[int, int]:
        """Bytes that could be allocated now, and bytes of the device in all."""

    @abstractmethod
    def release_memory(self) -> None:
        """Give memory that is kept for reuse back, so that :meth:`empty` can have it in other
        sizes."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all streams; for measurements and endings, never in the pipeline."""

    def hand_over(self, tensors: Iterable[Tensor], ready: Event) -> None:
        """Make the current stream wait for ``ready`` and own the tensors of this device; the thread
        does not wait."""
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
    """Do work that can be repeated; where the device's memory is short, again with a smaller cache.

    Args:
        work: Makes a batch, or a part of one; leaves nothing behind that a repetition would count
            twice.
        accelerator: The device; None: the CPU, where the work is done once.
        shrink: Makes the cache give up about half of its rows; whether it had any.
        what: Name of the work in the error.
        smaller: Advice in the error.

    Raises:
        OutOfMemory: The work does not fit, and nothing is cached any more.
    """
    while True:
        try:
            return work()
        except RuntimeError as error:
            if accelerator is None or not is_out_of_memory(error):
                raise
            problem = str(error)
        # Outside of the handler: its traceback holds what had been allocated.
        accelerator.release_memory()
        if not shrink():
            raise OutOfMemory(
                f"{what} does not fit on {accelerator.device} beside the model, and no cache is "
                "left to give up: "
                f"{smaller} ({problem})"
            )


@dataclass(frozen=True, eq=False)
class Handover:
    """Tensors with the event ``ready``, after which another stream may use them; ``begun`` is for
    statistics.

    Those that are not the accelerator's are ready; without one all are on the CPU.
    """

    tensors: Sequence[Tensor]
    accelerator: Accelerator | None = None
    ready: Event | None = None
    begun: Event | None = None

    @classmethod
    def here(cls, tensors: Sequence[Tensor], accelerator: Accelerator | None) -> Handover:
        """A hand-over of tensors that the calling thread has just made on its current stream."""
        return cls(
            tensors,
            accelerator,
            None if accelerator is None else accelerator.current_stream.record(),
        )

    def arrive(self) -> Sequence[Tensor]:
        """The tensors, for the calling thread's current stream; it does not wait."""
        if self.accelerator is not None and self.ready is not None:
            self.accelerator.hand_over(self.tensors, self.ready)
        return self.tensors


# Copies of this size reach the full rate of the bus; smaller ones are bound by their start.
_SLOT_BYTES = 8 << 20
_ALIGN = 256


class StagingRing:
    """Ring of pinned buffers: a fixed amount of pinned memory for batches of any size. Safe from
    any thread.

    A buffer is reused only when the copies from it have been done.

    Args:
        accelerator: Where the copies go.
        slots: Buffers; 3 keep a copy running while one is being filled and one is being freed.
        slot_bytes: Bytes of each.
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
        # None: not made yet. They stand first: nothing waits for a copy while a buffer has not been
        # used.
        self._free: queue.SimpleQueue[tuple[Tensor | None, Event | None]] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put((None, None))

    @contextmanager
    def slot(self) -> Iterator[Tensor]:
        """A buffer, uint8, shape ``(slot_bytes,)``; in the body fill it and copy from it on the
        current stream."""
        memory, sent = self._free.get()
        try:
            if sent is not None:
                sent.wait()
            if memory is None:
                memory = self.accelerator.host_memory(self.slot_bytes)
        except BaseException:
            # The slot must come back whatever happens: a ring that runs dry stops every batch.
            self._free.put((memory, sent))
            raise
        try:
            yield memory
        finally:
            try:
                sent = self.accelerator.current_stream.record()
            except BaseException:
                # When the copies from it will be done is not known, so that it is never filled
                # again: the allocator keeps it until they are.
                self._free.put((None, None))
                raise
            self._free.put((memory, sent))

    def upload(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Copy contiguous host tensors to the device, into one allocation, on the current stream;
        does not wait."""
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
                        # A part of it, or nothing.
                        source = source[max(begin, start) - start : max(0, min(end, stop) - start)]
                    if source.shape[0]:
                        first = max(begin, start) - begin
                        memory[first : first + source.shape[0]].copy_(source)
                whole[begin:end].copy_(memory[: end - begin], non_blocking=True)
        # One view for all arrays of a dtype: each costs a microsecond of the interpreter's time.
        typed: dict[torch.dtype, Tensor] = {}
        copies = []
        for tensor, start in zip(sources, starts, strict=True):
            dtype = tensor.dtype
            of_dtype = typed.get(dtype)
            if of_dtype is None:
                of_dtype = typed[dtype] = whole.view(dtype)
            first = start // dtype.itemsize
            copy = of_dtype[first : first + tensor.numel()]
            copies.append(copy if tensor.dim() == 1 else copy.view(tensor.shape))
        return copies


def _bytes(tensor: Tensor) -> Tensor:
    """A contiguous host tensor's bytes, shape ``(nbytes,)``, uint8."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return (tensor if tensor.dim() == 1 else tensor.reshape(-1)).view(torch.uint8)
