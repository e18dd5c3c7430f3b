"""Accelerator: what the engine asks of a device that computes beside the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .pinning import Pin

__all__ = ["Accelerator", "Event", "OutOfMemory", "Stream", "empty_in_any_mode"]

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
