"""Pinning: host memory that is there already, made readable for a device in place."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Pin", "PinnedMemory", "is_writable", "memory_of"]

_PORTABLE_AND_MAPPED = 0x01 | 0x02
_READ_ONLY = 0x08
_log = logging.getLogger(__name__)


class Pin:
    """A claim that a tensor's memory stays pinned; released when it is told to, or when nobody has it any more.

    Args:
        tensor: The memory; held, because memory that goes away must be unpinned first.
        release: What ends the claim; None: somebody else's pin.
    """

    def __init__(self, tensor: Tensor, release: Callable[[], object] | None = None) -> None:
        self.tensor = tensor
        self._finalizer = weakref.finalize(self, release) if release is not None else None

    def release(self) -> None:
        """End the claim; safe to call twice."""
        if self._finalizer is not None:
            self._finalizer()


class PinnedMemory:
    """What a process has pinned, by address: each stretch once, however many claim it.

    cudaHostRegister refuses memory of which a page is registered already, so stretches that lie inside one that is
    registered join it, and others that touch one are refused.

    Args:
        device: Whose context registers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.RLock()  # a finaliser may run in the middle of anything
        self._claims: dict[tuple[int, int], int] = {}

    def pin(self, tensor: Tensor) -> Pin | None:
        """See ``Accelerator.pin``."""
        if tensor.numel() == 0 or tensor.is_pinned():  # torch's own pinned memory, or another library's
            known = self._region_of(tensor)
            return Pin(tensor) if known is None else self._claim(tensor, known)
        begin, end = memory_of(tensor)
        with self._lock:
            error = self._register(begin, end - begin)
            if error is not None:
                warnings.warn(
                    f"{(end - begin) / 2**20:.1f} MiB of host memory could not be pinned ({error}): its rows go "
                    "through a staging buffer instead",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return None
            self._claims[begin, end] = 0
            return self._claim(tensor, (begin, end))

    def _region_of(self, tensor: Tensor) -> tuple[int, int] | None:
        begin, end = memory_of(tensor)
        with self._lock:
            return next((r for r in self._claims if r[0] <= begin and end <= r[1]), None)

    def _claim(self, tensor: Tensor, region: tuple[int, int]) -> Pin:
        with self._lock:
            self._claims[region] += 1
        return Pin(tensor, lambda: self._unclaim(region))

    def _unclaim(self, region: tuple[int, int]) -> None:
        with self._lock:
            self._claims[region] -= 1
            if not self._claims[region]:
                del self._claims[region]
                # Work that reads it may still be on its way.
                torch.cuda.synchronize(self._device)
                self._unregister(region[0])

    def _register(self, begin: int, nbytes: int) -> str | None:
        """Register; the driver's reason if it refuses."""
        with torch.cuda.device(self._device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            for flags in (_PORTABLE_AND_MAPPED, _PORTABLE_AND_MAPPED | _READ_ONLY):
                error = cudart.cudaHostRegister(begin, nbytes, flags)
                if int(error) == 0:
                    return None
                self._clear_error()
            return str(cudart.cudaGetErrorString(error))

    def _unregister(self, begin: int) -> None:
        with torch.cuda.device(self._device):
            error = torch.cuda.cudart().cudaHostUnregister(begin)  # type: ignore[no-untyped-call]
            if int(error) != 0:
                self._clear_error()
                _log.warning("host memory could not be unpinned: %s", error)

    def _clear_error(self) -> None:
        """The runtime remembers the last error, and torch would report it after its next kernel."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def memory_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses between which a strided tensor's elements lie."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def is_writable(tensor: Tensor) -> bool:
    """Whether all pages of a tensor's memory may be written, as the system's map of this process says."""
    begin, end = memory_of(tensor)
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                span, rights = line.split(maxsplit=2)[:2]
                first, last = (int(part, 16) for part in span.split("-"))
                if first < end and begin < last and "w" not in rights:
                    return False
    except OSError:
        pass
    return True
