"""The CPU-backed accelerator for tests."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from .accelerator import Accelerator, Event, OutOfMemory, Stream, empty_in_any_mode
from .pinning import Pin, is_writable
from .triton_kernels import has_triton, interprets


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
