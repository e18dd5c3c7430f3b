"""Scattered reads of files into memory, with the disk's queue kept full."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError, PipelineError
from .checks import StrPath, as_integer
from .disk.queues import REQUEST_BYTES, Requests
from .disk.ways import WAYS, best_gap, queue, rates_of, usable_way
from .memory import is_disk_file
from .threads import fork_lock

Array = Any  # a NumPy array; its element type is a matter of the kernels

_PAGE = 4096  # page of the page cache: buffered reads fetch whole pages
_BLOCKS = (512, _PAGE)  # alignments that direct reads may need
# Wider rows are read in pieces. A piece fits into a request at any alignment.
_PIECE = REQUEST_BYTES // 2
_STEP = 8192  # requests per call, between which a KeyboardInterrupt is noticed
_NO_PLACES: Array = np.empty(0, dtype=np.int64)
_SMAPS = Path("/proc/self/smaps")
# Pages of a private mapping that were written, in memory or swapped out.
_WRITTEN = ("Anonymous:", "Swap:")

_under_way: dict[int, Array] = {}  # `state` of each call at work


def in_flight() -> int:
    """Requests that the disk now has from all readers of this process, for timelines."""
    from .disk import _reads

    return sum(int(state[_reads.IN_FLIGHT]) for state in list(_under_way.values()))


class FileReader:
    """Reads rows of one file into memory, with the disk's queue kept full; thread-safe.

    Neighbouring rows are read in one request if that is faster. The file stays open, so a file that
    replaces it is not seen. Pages that are already in memory are used unless ``direct``.

    Args:
        path: The file.
        stride: Bytes from one row to the next.
        row_bytes: Bytes of a row.
        num_rows: Number of rows.
        offset: Byte of the file at which row 0 begins.
        direct: Bypass the system's page cache (O_DIRECT) if the file system supports it. This is
            for files of which little fits into memory.
        way: One of ``WAYS``. Default: the best one that works here.

    Attributes:
        way: How it reads.
        requests: Number of requests so far.
        bytes_read: Bytes read so far, including gaps between rows and alignment to blocks.

    Raises:
        ValueError: A number is out of range, or ``way`` is unknown.
        FormatError: The file is too short for the rows.
        OSError: It cannot be opened, or the system refuses ``way``.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "rows")
        >>> np.arange(12, dtype=np.uint8).tofile(path)
        >>> reader = FileReader(path, stride=3, row_bytes=2, num_rows=4)
        >>> out = np.empty((2, 2), dtype=np.uint8)
        >>> reader.read(np.array([1, 3]), out)
        >>> out.tolist()
        [[3, 4], [9, 10]]
        >>> reader.close()
    """

    _mapped: _ShownFile | None = None

    def __init__(
        self,
        path: StrPath,
        *,
        stride: int,
        row_bytes: int,
        num_rows: int,
        offset: int = 0,
        direct: bool = False,
        way: str | None = None,
    ) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._open(
                os.fspath(path), descriptor, (stride, row_bytes, num_rows, offset), direct, way
            )
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def of(cls, tensor: Tensor, *, direct: bool = False) -> FileReader | None:
        """A reader of the file that a CPU tensor is mapped from; row ``i`` is ``tensor[i]``.

        None if the rows are not in a file on disk as they are in memory. That is so for tensors in
        memory (``/dev/shm`` included), private mappings that were written, rows that are not
        contiguous, files that were replaced or may not be opened, and systems that do not show
        their mappings. Later writes to a private mapping are not seen: see :meth:`is_current`.
        """
        if (
            tensor.device.type != "cpu"
            or tensor.layout != torch.strided
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return None
        if tensor.numel() == 0 or tensor.dim() == 0 or not tensor[0].is_contiguous():
            return None
        stride = tensor.stride(0) * tensor.element_size()
        row_bytes = tensor[0].nbytes
        num_rows = len(tensor)
        if num_rows > 1 and stride < row_bytes:
            return None
        stride = max(stride, row_bytes)
        found = _ShownFile.open(tensor.data_ptr(), (num_rows - 1) * stride + row_bytes)
        if found is None:
            return None
        reader = cls.__new__(cls)
        reader._mapped = found
        try:
            reader._open(
                found.path,
                found.descriptor,
                (stride, row_bytes, num_rows, found.offset),
                direct,
                None,
            )
        except BaseException:
            os.close(found.descriptor)
            raise
        return reader

    def _open(
        self,
        path: str,
        descriptor: int,
        place: tuple[int, int, int, int],
        direct: bool,
        way: str | None,
    ) -> None:
        names = ("stride", "row_bytes", "num_rows", "offset")
        stride, row_bytes, num_rows, offset = (
            as_integer(name, value, least=least)
            for name, value, least in zip(names, place, (1, 1, 0, 0), strict=True)
        )
        if stride < row_bytes:
            raise ValueError(f"stride must be at least row_bytes ({row_bytes}), got {stride}")
        if way is not None and way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {way!r}")
        _check_size(
            path, descriptor, offset + (num_rows - 1) * stride + row_bytes if num_rows else 0
        )
        self._path = path
        self._offset = offset
        self._stride = stride
        self.num_rows = num_rows
        self.row_bytes = row_bytes
        self._block = _go_direct(descriptor) if direct else 1
        self._align = self._block if self._block > 1 else _PAGE
        self._rates = rates_of(descriptor)
        self.way: str = usable_way(way, direct=self.direct)
        self.requests = self.bytes_read = 0
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False  # threads may still read when the process exits
        # Guards the count of readers and what they counted. It is never held while they read.
        self._lock = fork_lock()
        self._readers = 0
        self._closed = False

    def is_current(self) -> bool:
        """Whether the file still holds what the tensor of :meth:`of` shows; takes 10 to 200 ms.

        False once a page of a private mapping was written, or the tensor was freed. Always True for
        a reader made from a path.
        """
        return self._mapped is None or self._mapped.is_current()

    @property
    def direct(self) -> bool:
        """Whether reads bypass the system's page cache."""
        return self._block > 1

    def read(self, rows: Array, out: Array, places: Array | None = None) -> None:
        """Read rows of the file into memory; releases the GIL.

        Args:
            rows: Row numbers, int64, strictly ascending.
            out: C-contiguous NumPy array of any dtype that holds rows of ``row_bytes``.
            places: int64; ``rows[i]`` is written to ``out[places[i]]``. Default: ``out[i]``.

        Raises:
            IndexError: A row or a place is out of range, or rows are not ascending.
            ValueError: Sizes or types do not fit together.
            FormatError: The file was shortened.
            OSError: The disk failed; the error has ``errno`` and the file's name. The content of
                ``out`` is then undefined.
            PipelineError: The reader is closed.
        """
        memory = _as_bytes(out, self.row_bytes)
        rows, places = self._checked(rows, places, len(memory))
        if len(rows) == 0:
            return
        with self._lock:
            if self._closed:
                raise PipelineError(
                    f"a reader must be open to read, the one of {self._path} is closed"
                )
            self._readers += 1
        try:
            for first in range(0, self.row_bytes, _PIECE):
                self._read_piece(rows, memory, places, first)
        finally:
            with self._lock:
                self._readers -= 1
                if self._closed and self._readers == 0:
                    self._close()

    def close(self) -> None:
        """Close the file when the reads under way are done; later reads raise PipelineError."""
        with self._lock:
            self._closed = True
            if self._readers == 0:
                self._close()

    def _checked(self, rows: Array, places: Array | None, num_places: int) -> tuple[Array, Array]:
        from .disk import _reads

        rows = np.ascontiguousarray(rows)
        if rows.dtype != np.int64 or rows.ndim != 1:
            raise ValueError(f"rows must be 1-D of int64, got {rows.ndim}-D of {rows.dtype}")
        wrong = _reads.check_rows(rows, self.num_rows)
        if wrong >= 0:
            got = f"{rows[wrong]} at {wrong}" + (f", behind {rows[wrong - 1]}" if wrong else "")
            raise IndexError(f"rows must strictly ascend, from 0 to {self.num_rows - 1}, got {got}")
        if places is None:
            if len(rows) > num_places:
                raise ValueError(
                    f"out must have a place for each of {len(rows)} rows, got {num_places}"
                )
            return rows, _NO_PLACES
        places = np.ascontiguousarray(places)
        if places.dtype != np.int64 or places.shape != rows.shape:
            raise ValueError(
                f"places must be {len(rows)} int64, got {places.dtype} of shape {places.shape}"
            )
        wrong = _reads.check_places(places, num_places)
        if wrong >= 0:
            raise IndexError(
                f"places must be from 0 to {num_places - 1}, got {places[wrong]} at {wrong}"
            )
        return rows, places

    def _read_piece(self, rows: Array, memory: Array, places: Array, first: int) -> None:
        """Read bytes ``first`` to ``first + _PIECE`` of each row."""
        from .disk import _reads

        row_bytes = min(_PIECE, self.row_bytes - first)
        place = (self._offset + first, self._stride)
        address = memory.ctypes.data + first
        job = (
            self._descriptor,
            *place,
            row_bytes,
            self._align,
            self._block,
            address,
            self.row_bytes,
        )
        gap = best_gap(rows, job, self._rates, REQUEST_BYTES)
        requests = Requests.of(rows, memory, job, gap, places)
        _under_way[id(requests)] = requests.state
        try:
            with queue(self.way) as reads:
                for step in requests.steps(_STEP):
                    reads.read(step)
                    _raise_error(requests.state, self._path, self._descriptor)
        finally:
            del _under_way[id(requests)]
            requests.tell()
            with self._lock:
                self.requests += requests.number
                self.bytes_read += int(requests.state[_reads.BYTES])


def _check_size(path: str, descriptor: int, least: int) -> None:
    size = os.lseek(descriptor, 0, os.SEEK_END)  # unlike fstat also for block devices
    if size < least:
        raise FormatError(f"{path} must have {least} bytes, got {size}")


def _go_direct(descriptor: int) -> int:
    """Make reads bypass the page cache, and return the alignment that they need.

    The alignment is 1 if the file system does not support it: reads then use the page cache.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    memory = mmap.mmap(-1, _PAGE)
    for block in _BLOCKS:
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.preadv(descriptor, [memoryview(memory)[:block]], 0)
            return block
        except OSError as error:
            if error.errno != errno.EINVAL:
                break
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return 1


def _as_bytes(out: Array, row_bytes: int) -> Array:
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("out must be a contiguous and writable NumPy array")
    if out.nbytes % row_bytes:
        raise ValueError(f"out must hold rows of {row_bytes} bytes, got {out.nbytes} bytes")
    return out.reshape(-1).view(np.uint8).reshape(-1, row_bytes)


def _raise_error(state: Array, path: str, descriptor: int) -> None:
    from .disk import _reads

    error = int(state[_reads.ERROR])
    place = int(state[_reads.PLACE])
    if error == _reads.SHORT:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        raise FormatError(
            f"{path} was shortened while it was read: byte {place} must be there, got {size} bytes"
        )
    if error:
        raise OSError(error, f"{os.strerror(error)}, reading at byte {place}", path)


@dataclass(frozen=True)
class _ShownFile:
    """A file that is mapped at an address, opened once more, and the address's place in it.

    Attributes:
        path: Path of the file.
        offset: Byte of the file at ``address``.
        descriptor: Open for reading; the owner closes it.
        address: Begin of the range of addresses.
        nbytes: Size of the range.
    """

    path: str
    offset: int
    descriptor: int
    address: int
    nbytes: int

    @classmethod
    def open(cls, address: int, nbytes: int) -> _ShownFile | None:
        """Open the file on disk that a range of addresses is mapped from, shared or private.

        None if there is no such file, pages of a private mapping were written and so are not in the
        file, the path now leads to another file, it may not be opened, or the system does not show
        its mappings.
        """
        first = _file_of(address, nbytes)
        if first is None:
            return None
        path = first.path.replace("\\012", "\n")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if _shown_as(descriptor) != (first.device, first.inode):
            os.close(descriptor)
            return None
        return cls(path, first.offset + address - first.begin, descriptor, address, nbytes)

    def is_current(self) -> bool:
        """Whether the file is still mapped there with no page written; takes 10 to 200 ms."""
        first = _file_of(self.address, self.nbytes)
        if first is None or first.offset + self.address - first.begin != self.offset:
            return False
        return _shown_as(self.descriptor) == (first.device, first.inode)


def _file_of(address: int, nbytes: int) -> _Mapping | None:
    """The first mapping of a range of addresses.

    None unless all mappings of the range are of one file on disk, in order, with no page written.
    """
    parts = _mappings_of(address, address + nbytes)
    if not parts or any(part.written for part in parts):
        return None
    first = parts[0]
    last = parts[-1]
    if (
        first.begin > address
        or last.end < address + nbytes
        or not is_disk_file(first.path, first.device)
    ):
        return None
    for before, part in zip(parts, parts[1:], strict=False):  # madvise and mprotect split a mapping
        same_file = (part.device, part.inode) == (first.device, first.inode)
        if (
            not same_file
            or before.end != part.begin
            or part.offset - before.offset != part.begin - before.begin
        ):
            return None
    return first


@dataclass
class _Mapping:
    """An entry of ``/proc/self/smaps``; ``written`` is the KiB of its private pages."""

    begin: int
    end: int
    offset: int
    device: str
    inode: str
    path: str
    written: int = 0


def _mappings() -> Iterator[_Mapping]:
    """All mappings of this process by address; none if the system does not show them."""
    try:
        lines = _SMAPS.read_text(errors="surrogateescape").split("\n")
    except OSError:
        return
    mapping: _Mapping | None = None
    for line in lines:
        name, _, rest = line.partition(" ")
        if name in _WRITTEN and mapping is not None:
            mapping.written += int(rest.split()[0])
        elif name and not name.endswith(":"):
            if mapping is not None:
                yield mapping
            _, offset, device, inode, *path = rest.split(maxsplit=4)
            begin, end = (int(number, 16) for number in name.split("-"))
            mapping = _Mapping(begin, end, int(offset, 16), device, inode, path[0] if path else "")
    if mapping is not None:
        yield mapping


def _mappings_of(begin: int, end: int) -> list[_Mapping]:
    return [mapping for mapping in _mappings() if mapping.begin < end and begin < mapping.end]


def _shown_as(descriptor: int) -> tuple[str, str] | None:
    """Device and inode that smaps shows for a file; ``fstat`` differs on btrfs and overlays."""
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
            address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
            shown = _mappings_of(address, address + 1)
    except (OSError, ValueError):  # the file is now empty, or address space ran out
        return None
    return (shown[0].device, shown[0].inode) if shown else None
