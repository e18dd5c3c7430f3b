"""Recycled memory for batches, since page faults cost more than filling the pages."""

from __future__ import annotations

import math
from collections.abc import Hashable
from sys import getrefcount
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checks import as_integer
from .threads import fork_lock

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
_Placed = tuple[Any, int]


def _unused_references() -> int:
    """References to an array that only its tuple has.

    Counted by the very expression of ``BufferPool.take``, since versions of Python differ in
    what counts as a reference.
    """
    arrays = [(np.empty(1), 0)]
    return getrefcount(arrays[0][0])


_UNUSED = _unused_references()


class BufferPool:
    """Lends CPU tensors, and lends their memory again when the last view of them is gone.

    Memory is never reused while the tensor or any view of it is referenced. The storage holds a
    NumPy view, and the view holds the array: one that only the pool references is free. (A weak
    reference's callback would say so, too, but Python drops what a signal's handler raises in a
    callback: 4 % of interrupts were lost.) Gathering 58,000 rows of 256 float32 took 105 ms into
    fresh memory and 27 ms into recycled memory.

    Args:
        most: Arrays to look for free ones among, the latest ones lent; others are freed when the
            last view is gone.

    Example:
        >>> pool = BufferPool(most=2)
        >>> pool.take((2, 3), torch.float32).shape
        torch.Size([2, 3])
    """

    def __init__(self, most: int) -> None:
        self._most = as_integer("most", most, least=0)
        # Each with the place of its first cache line; the latest loan last.
        self._arrays: list[_Placed] = []
        self._lock = fork_lock()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous CPU tensor, aligned to a cache line; thread-safe."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        arrays = self._arrays
        with self._lock:
            # The latest loan first: a processor's cache may still hold it. The oldest first made
            # batches of 1024 seeds up to a quarter slower.
            for place in range(len(arrays) - 1, -1, -1):
                if getrefcount(arrays[place][0]) > _UNUSED:
                    continue
                placed = arrays.pop(place)
                if placed[0].nbytes >= nbytes + _ALIGN:
                    break  # smaller ones are freed
            else:
                array = np.empty(int(nbytes * _HEADROOM) + _ALIGN, dtype=np.uint8)
                placed = array, -array.ctypes.data % _ALIGN
            array, begin = placed
            arrays.append(placed)
            del arrays[: max(0, len(arrays) - self._most)]
        # NumPy's shapes and dtypes, where it has them: each view of torch's lets go of the
        # interpreter, and two of them were most of this function.
        numpys = _DTYPES.get(dtype)
        if numpys is not None:
            tensor = torch.from_numpy(np.ndarray(shape, numpys, array, begin))
        else:
            tensor = torch.from_numpy(array[begin : begin + nbytes]).view(dtype).view(shape)
        return tensor

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
    """One buffer pool per kind of tensor, since tensors of a kind have similar sizes.

    Args:
        batches: Batches that are in use at once.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._pools: dict[Hashable, BufferPool] = {}

    def __call__(self, kind: Hashable) -> BufferPool:
        """The pool of that kind, made at the first call; thread-safe."""
        pool = self._pools.get(kind)
        if pool is None:
            # A batch may read a field twice, for inputs and for outputs. The reader keeps one batch
            # until it has the next one.
            pool = self._pools.setdefault(kind, BufferPool(2 * (self._batches + 1)))
        return pool
