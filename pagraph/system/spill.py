"""Rows that do not fit into memory: a tensor over a file without a name."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor


def spilled(
    shape: Sequence[int], dtype: torch.dtype, folder: str | os.PathLike[str] | None = None
) -> Tensor:
    """A tensor of zeros over a mapped file that has no name: the system writes it out where memory
    is short.

    The file goes with the tensor and with the process, however it ends. Its room on the disk is
    taken at once, so that a full disk is found here, and not by a signal where the tensor is
    written.

    Args:
        shape: The tensor's shape.
        dtype: Its element type.
        folder: Where the file lies. Default: the folder of temporary files.

    Raises:
        OSError: There is no room on the disk, or ``folder`` cannot be written.

    Example:
        >>> rows = spilled((2, 3), torch.float32)
        >>> rows[1] = 7
        >>> rows.tolist()
        [[0.0, 0.0, 0.0], [7.0, 7.0, 7.0]]
    """
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.zeros(tuple(shape), dtype=dtype, device="cpu")
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
