"""Recycled memory for batches, since page faults cost more than filling the pages."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checks import as_integer

# Batches differ a little in size: without headroom many buffers would just miss the next one.
_HEADROOM = 1.125
_ALIGN = 64  # one cache line
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.uint8: np.dtype(np.uint8),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


class BufferPool:
    """Lends CPU tensors and takes their memory back when the last view of them is gone.

    Memory is never reused while the tensor or any view of it is referenced: its storage keeps a
    fresh NumPy view of a pooled array alive, and the view's finaliser returns the array. Gathering
    58,000 rows of 256 float32 took 105 ms into fresh memory and 27 ms into recycled memory.

    Args:
        max_free: Most arrays kept for reuse; further ones are freed.

    Example:
        >>> pool = BufferPool(max_free=2)
        >>> pool.take((2, 3), torch.float32).shape
        torch.Size([2, 3])
    """

    def __init__(self, max_free: int) -> None:
        self._free: deque[Any] = deque()
        self._max_free = as_integer("max_free", max_free, least=0)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous CPU tensor, aligned to a cache line; thread-safe."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        while True:
            try:
                array = self._free.pop()
            except IndexError:
                array = np.empty(int(nbytes * _HEADROOM) + _ALIGN, dtype=np.uint8)
                array = array[-array.ctypes.data % _ALIGN :]
            if array.nbytes >= nbytes:  # smaller arrays found on the way are freed
                break
        # NumPy's shapes and dtypes, where it has them: each view of torch's lets go of the
        # interpreter, and two of them were most of this function.
        numpys = _DTYPES.get(dtype)
        view = array[:nbytes] if numpys is None else np.ndarray(shape, numpys, array)
        loan = _Loan(view, _give_back)
        loan.array = array
        loan.free = self._free
        loan.max_free = self._max_free
        _loans.add(loan)
        tensor = torch.from_numpy(view)
        return tensor.view(dtype).view(shape) if numpys is None else tensor

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """Several tensors in one buffer, which is returned when all of them are gone."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in specs]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGN) * _ALIGN)
        whole = self.take((starts[-1],), torch.uint8)
        return [
            whole[start : start + size].view(dtype).view(shape)
            for (shape, dtype), size, start in zip(specs, sizes, starts, strict=False)
        ]


class BufferPools:
    """One buffer pool per kind of tensor, since tensors of a kind have similar sizes."""

    def __init__(self, max_free: int) -> None:
        self._max_free = max_free
        self._pools: dict[Hashable, BufferPool] = {}

    def __call__(self, kind: Hashable) -> BufferPool:
        """The pool of that kind, made at the first call; thread-safe."""
        pool = self._pools.get(kind)
        if pool is None:
            pool = self._pools.setdefault(kind, BufferPool(self._max_free))
        return pool


class _Loan(weakref.ref[Any]):
    """A lent view; when it is freed, its array returns to the pool.

    ``weakref.finalize`` would cost three times as much.
    """

    __slots__ = ("array", "free", "max_free")
    # By identity: a weak reference's default is to hash and compare its referent.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    array: Any
    free: deque[Any]
    max_free: int


_loans: set[_Loan] = set()  # keeps the references alive until their views are gone


def _give_back(loan: _Loan) -> None:
    # Runs at any moment, also inside take(), so it can take no lock. It relies on operations of
    # sets and deques being atomic.
    _loans.discard(loan)
    if len(loan.free) < loan.max_free:
        loan.free.append(loan.array)
