"""Tensors over mapped files: ``.npy`` arrays that are read when touched, and unnamed temporary
files for rows that do not fit into memory."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import IO, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..system.checks import StrPath
from ..system.files import NpyHeader, open_plain, read_npy_header
from ..system.threads import fork_lock

# Reserve no swap for the pages that a private mapping might copy, so that files larger than memory
# can be mapped. Python names the flag from 3.13 on. Its value is the same on x86-64 and ARM.
_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)
# Below this size the system's read-ahead loads a whole array faster than row by row.
_RANDOM_FROM_BYTES = 64 * 2**20


class MappedFile(mmap.mmap):
    """A copy-on-write mapping of a whole file that notices when the file is changed.

    Attributes:
        path: Absolute path of the file.
        address: Where it is mapped.
        seen: Device, number, size and time of modification of the file when it was opened.
        checked: When :meth:`check` was called last, by ``time.monotonic``.
        is_read_once: Whether the file is only copied from, so that copied pages may be dropped.
    """

    path: str
    address: int
    seen: tuple[int, ...]
    checked: float = 0.0
    is_read_once: bool = False
    _header: NpyHeader | None

    @classmethod
    def open(cls, file: IO[bytes], header: NpyHeader | None = None) -> MappedFile:
        """Map an open file, which must not be empty, and has this header if it is ``.npy``."""
        flags = mmap.MAP_PRIVATE | _NORESERVE
        mapped = cls(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        mapped.path = os.path.abspath(file.name)
        mapped.seen = _identity(os.fstat(file.fileno()))
        mapped._header = header
        mapped.address = np.frombuffer(mapped, np.uint8).ctypes.data
        with _lock:
            _mapped.add(mapped)
        return mapped

    @classmethod
    def of(cls, tensor: Tensor) -> MappedFile | None:
        """The mapping that a CPU tensor lies in; None if it is in memory or mapped by the user."""
        address = tensor.data_ptr()
        with _lock:
            return next((m for m in _mapped if m.address <= address < m.address + len(m)), None)

    def again(self) -> MappedFile:
        """Another mapping of the same file; FormatError if the file was changed."""
        self.check()
        with open(self.path, "rb") as file:
            other = MappedFile.open(file)
        if other.seen != self.seen:
            self._raise_changed()
        return other

    def check(self) -> None:
        """Raise FormatError if the file was shortened, written or replaced since; takes 2 us.

        Called before pages are touched: touching one beyond the file's end kills the process.
        """
        now = time.monotonic()
        if identity_of(self.path) != self.seen:
            self._raise_changed()
        self.checked = now  # only now, or another thread would rely on a check that is under way

    def has_same_header(self) -> bool:
        """Whether the file has the header with which it was opened."""
        if self._header is None:
            return True
        try:
            with open_plain(self.path) as file:
                return read_npy_header(file) == self._header
        except (OSError, FormatError):
            return False

    def forget_pages(self) -> None:
        """Drop the pages from memory if the file :attr:`is_read_once`."""
        # Else the whole file would count as this process's memory until the system reclaims it.
        # This discards writes to the mapping, but a file that is only copied from has none.
        if self.is_read_once:
            self.madvise(mmap.MADV_DONTNEED)

    @property
    def tells_pages(self) -> bool:
        """Whether the system says which pages are in memory."""
        # mincore() does so only for files that the process owns or may write.
        return os.access(self.path, os.W_OK) or os.stat(self.path).st_uid == os.geteuid()

    def _raise_changed(self) -> NoReturn:
        raise FormatError(
            f"{self.path} must not change while it is open: it was shortened, written, moved or "
            "removed"
        )


_mapped: weakref.WeakSet[MappedFile] = weakref.WeakSet()
_lock = fork_lock()  # guards _mapped; its holder takes no other


def check_again() -> None:
    """Have every file that is checked now and then checked at its next use."""
    with _lock:
        files = list(_mapped)
    for file in files:
        file.checked = 0.0


def identity_of(path: str) -> tuple[int, ...]:
    """Device, number, size and time of modification of a file; nothing if there is none."""
    try:
        return _identity(os.stat(path))
    except OSError:
        return ()


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def map_npy(path: StrPath, *, random_access: bool = False) -> Tensor:
    """Map a ``.npy`` file of any size as a tensor; pages are read when they are touched.

    The mapping is copy-on-write: writing to the tensor works and never changes the file.

    Args:
        path: A ``.npy`` file in C order and the machine's byte order.
        random_access: Whether rows will be read in random order: large files then get no
            read-ahead.

    Raises:
        FormatError: The file holds no such array, is truncated, or has bytes after the array.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "a.npy")
        >>> np.save(path, np.arange(6).reshape(2, 3))
        >>> tensor = map_npy(path)
        >>> tensor[0, 0] = 7
        >>> tensor.tolist(), np.load(path).tolist()
        ([[7, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]])
    """
    with open_plain(path) as file:
        header = read_npy_header(file)
        header.check_size(file)
        if header.fortran_order and len(header.shape) > 1:
            raise FormatError(f"{path} must be in C order, got Fortran order")
        try:
            empty = torch.from_numpy(np.empty(0, dtype=header.dtype))
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"{path} must have a dtype that torch supports, got {header.dtype.str}"
            ) from error
        if header.nbytes == 0:
            return torch.empty(header.shape, dtype=empty.dtype, device="cpu")
        memory = MappedFile.open(file, header)
    if random_access and header.nbytes >= _RANDOM_FROM_BYTES:
        memory.madvise(mmap.MADV_RANDOM)
    array = np.frombuffer(memory, header.dtype, math.prod(header.shape), header.offset)
    return torch.from_numpy(array.reshape(header.shape))


def spilled(shape: Sequence[int], dtype: torch.dtype, folder: StrPath | None = None) -> Tensor:
    """A tensor of zeros over an unnamed file, which the system writes out when memory is short.

    The file disappears with the tensor, and with the process even if it is killed. Its disk space
    is allocated at once: so a full disk raises here, and does not kill the process at a later
    write.

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
