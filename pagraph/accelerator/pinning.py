"""Pinning of host memory in place, so that devices can read it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..system.memory import address_on_disk, host_available, may_write
from ..system.threads import try_lock
from ..system.units import bytes_text

_PORTABLE_AND_MAPPED = 0x01 | 0x02
# cudaHostRegisterReadOnly, for memory that is mapped read-only from a file.
_READ_ONLY = 0x08
_SHARE = 0.5  # of the available memory, the largest file on disk that may be pinned
_log = logging.getLogger(__name__)


class Pin:
    """A claim that keeps a tensor's memory pinned until it is released or collected.

    Args:
        tensor: The memory; kept alive, because memory must be unpinned before it is freed.
        release: Called at the end of the claim; None if another library pinned the memory.
    """

    def __init__(self, tensor: Tensor, release: Callable[[], object] | None = None) -> None:
        self.tensor = tensor
        self._finalizer = weakref.finalize(self, release) if release is not None else None
        if self._finalizer is not None:
            # Threads may still read at exit. The driver unpins what is left.
            self._finalizer.atexit = False

    def release(self) -> None:
        """End the claim; safe to call twice."""
        if self._finalizer is not None:
            self._finalizer()


@dataclass(eq=False)
class _Region:
    """A registered stretch of memory, and the devices that read it."""

    begin: int
    end: int
    tensor: Tensor  # kept alive until it is unpinned, even if claims are of its views
    claims: int = 0
    devices: set[torch.device] = field(default_factory=set)


class _Refused(Exception):
    """Why memory cannot be pinned."""


class PinnedMemory:
    """Registered host memory of a process, by address: each region once, for all devices.

    cudaHostRegister refuses memory with a page that is already registered. So memory inside a
    registered region joins it, and memory that overlaps one in part is refused. A tensor of at
    least half of its storage is registered with the whole storage: so other views of it join, and
    copies of it are not refused because it is registered in part. Registering reads files on disk
    into memory, so files larger than half of the available memory are refused.

    Thread-safe; claims may end in the garbage collector. A forked child has neither CUDA nor pinned
    memory, so claims that end there remain the parent's.
    """

    def __init__(self) -> None:
        # Guards _regions. A claim that ends never waits for it, because the garbage collector may
        # run in the thread that holds it.
        self._lock = threading.Lock()
        self._regions: dict[int, _Region] = {}
        self._ended: queue.SimpleQueue[_Region] = queue.SimpleQueue()
        self._process = os.getpid()

    def pin(self, tensor: Tensor, device: torch.device) -> Pin | None:
        """A claim for a device; see ``Accelerator.pin``."""
        if tensor.numel() == 0:
            return Pin(tensor)
        try:
            with self._lock:
                region = self._claim(tensor, device)
        except _Refused as reason:
            warnings.warn(
                f"{bytes_text(tensor.numel() * tensor.element_size())} of host memory could not be "
                f"pinned ({reason}): its rows go through a staging buffer instead",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        finally:
            self._settle()
        end = None if region is None else partial(self._end, region)
        return Pin(tensor, end)

    def _claim(self, tensor: Tensor, device: torch.device) -> _Region | None:
        """Claim the region where the tensor lies; None if another library has pinned it."""
        begin, end = memory_of(tensor)
        region = next(
            (r for r in self._regions.values() if r.begin <= begin and end <= r.end), None
        )
        if region is None:
            # Pinned by torch or another library. Both ends are checked, as a part may be pinned.
            if self._is_pinned(begin) and self._is_pinned(end - 1):
                return None
            region = self._new_region(tensor, device)
        region.claims += 1
        region.devices.add(device)
        return region

    def _new_region(self, tensor: Tensor, device: torch.device) -> _Region:
        begin, end = memory_of(tensor)
        storage = tensor.untyped_storage()
        if storage.nbytes() <= 2 * (end - begin):
            begin = storage.data_ptr()
            end = storage.data_ptr() + storage.nbytes()
        self._check_room(begin, end)
        error = self._register(begin, end - begin, device, writable=may_write(begin, end))
        if error is not None:
            raise _Refused(error)
        region = self._regions[begin] = _Region(begin, end, tensor)
        return region

    def _end(self, region: _Region) -> None:
        if os.getpid() != self._process:
            return
        self._ended.put(region)
        # The garbage collector may run this during a capture, which waiting for the device would
        # break. Then the next claim, or the next end of one, settles it.
        if not self._is_capturing():
            self._settle()

    def _settle(self) -> None:
        """Settle the claims that have ended; if another thread holds the lock, it does so later."""
        while not self._ended.empty():
            held: list[bool] = []
            try:
                if not try_lock(self._lock, held):
                    return
                self._take_back()
            finally:
                if held:
                    self._lock.release()

    def _take_back(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                region = self._ended.get_nowait()
                region.claims -= 1
                if not region.claims:
                    del self._regions[region.begin]
                    try:
                        # Work that reads it may still be running.
                        self._synchronize(region.devices)
                        self._unregister(region.begin, next(iter(region.devices)))
                    except RuntimeError as error:
                        # The device failed earlier, which was reported then.
                        _log.warning("host memory could not be unpinned: %s", error)

    def _check_room(self, begin: int, end: int) -> None:
        if address_on_disk(begin) and end - begin > _SHARE * (available := host_available()):
            raise _Refused(
                f"it is a file on disk of {bytes_text(end - begin)}, more than half of the "
                f"{bytes_text(available)} of memory that are available"
            )

    def _is_pinned(self, address: int) -> bool:
        return is_pinned_at(address)

    def _register(
        self, begin: int, nbytes: int, device: torch.device, *, writable: bool
    ) -> str | None:
        """Register memory; returns the driver's reason if it refuses."""
        plain = _PORTABLE_AND_MAPPED
        read_only = _PORTABLE_AND_MAPPED | _READ_ONLY
        with torch.cuda.device(device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            reason = None
            # Some file systems refuse to pin pages for writing, and some devices do not have the
            # read-only flag.
            for flags in (plain, read_only) if writable else (read_only, plain):
                error = cudart.cudaHostRegister(begin, nbytes, flags)
                if int(error) == 0:
                    return None
                reason = reason or str(cudart.cudaGetErrorString(error))
                _clear_error(cudart, device)
        return reason

    def _unregister(self, begin: int, device: torch.device) -> None:
        with torch.cuda.device(device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            error = cudart.cudaHostUnregister(begin)
            if int(error) != 0:
                _clear_error(cudart, device)
                _log.warning(
                    "host memory could not be unpinned: %s", cudart.cudaGetErrorString(error)
                )

    def _is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def _synchronize(self, devices: Iterable[torch.device]) -> None:
        for device in devices:
            torch.cuda.synchronize(device)


def _clear_error(cudart: object, device: torch.device) -> None:
    """Clear the thread's last error, which torch would report after its next kernel."""
    get_last_error = getattr(cudart, "cudaGetLastError", None)
    if get_last_error is not None:
        get_last_error()
        return
    with contextlib.suppress(RuntimeError):  # before torch 2.10 this is that next kernel
        torch.zeros(1, device=device)


def is_pinned_at(address: int) -> bool:
    """Whether a byte of host memory is pinned; ``Tensor.is_pinned`` checks the storage's begin."""
    return bool(
        torch.frombuffer((ctypes.c_ubyte * 1).from_address(address), dtype=torch.uint8).is_pinned()
    )


def memory_of(tensor: Tensor) -> tuple[int, int]:
    """The first and end address of a strided tensor's elements."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return begin, begin + (last + 1) * tensor.element_size()


def is_writable(tensor: Tensor) -> bool:
    """Whether all pages of a tensor's memory are writable."""
    return may_write(*memory_of(tensor))
