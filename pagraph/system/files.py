"""Files that others wrote: opened where they are plain ones, named ones inside their folder,
headers of arrays."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import operator
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import FormatError
from .checks import StrPath
from .units import bytes_text

if TYPE_CHECKING:
    import numpy as np

DESCRIPTION_BYTES = 64 * 2**20
"""Most bytes of a description that is read whole: a manifest of 100,000 arrays takes 30 MB."""

_MAGIC = b"\x93NUMPY"
_HEADER_LIMIT = 64 * 1024
_MOST_DIMS = 32  # NumPy's limit before version 2
_MOST_BYTES = 2**63 - 1  # what torch can count


@contextlib.contextmanager
def open_plain(path: StrPath) -> Iterator[IO[bytes]]:
    """Open a file to be read; FormatError where it is no plain one: a pipe or a device might never
    end.

    Raises:
        OSError: There is none, or it cannot be read.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path} must be a file, it is something else")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    """Open, where a pipe without a writer would be waited for; of plain files the flag changes
    nothing."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_small(path: StrPath, most: int = DESCRIPTION_BYTES) -> bytes:
    """The content of a file that describes others; FormatError where it is no plain file, or above
    ``most`` bytes.

    Raises:
        OSError: There is none, or it cannot be read.
    """
    with open_plain(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FormatError(f"{path} must be a file of at most {most} bytes, it has more")
    return content


class _Bounded(io.RawIOBase):
    """The first bytes of a stream, and an error behind them."""

    def __init__(self, stream: Any, path: StrPath, most: int) -> None:
        self._stream = stream
        self._path = path
        self._most = most
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        data = self._stream.read(len(out))
        self._left -= len(data)
        if self._left < 0:
            raise FormatError(
                f"{self._path} must have at most {bytes_text(self._most)} of text, unpacked, to "
                "fit into memory, it "
                "has more"
            )
        out[: len(data)] = data
        return len(data)


def bounded(stream: Any, path: StrPath, most: int) -> IO[bytes]:
    """A stream of which at most so many bytes can be read: the next one raises FormatError, which
    names ``path``."""
    return io.BufferedReader(_Bounded(stream, path, most))


def named_path(folder: Path, name: str, where: object) -> Path:
    """The path of a file that a description in ``folder`` names, whose links, if it has any, stay
    inside.

    Args:
        folder: Where the description is; may be a link itself.
        name: The name, relative to it.
        where: The description, for errors.

    Raises:
        FormatError: It is outside of the folder, or there is no such file.
    """
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(os.path.normpath(folder)):
        raise FormatError(f"{where} must name a file inside {folder}, got {name!r}"[:300])
    if not path.is_file():
        state = "must be a file" if os.path.lexists(path) else "is missing"
        raise FormatError(f"{path} {state}, and {where} names it")
    check_inside(folder, path)
    return path


def check_inside(folder: Path, path: Path) -> None:
    """Raise FormatError where a path in a folder leads out of it through links: to what others may
    not be shown."""
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise FormatError(f"{path} must be inside {folder}, it is a link to {real}")


def check_links(folder: Path) -> None:
    """Raise FormatError where a link anywhere in a folder leads out of it."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(path := os.path.join(parent, name)):
                check_inside(folder, Path(path))


@dataclass(frozen=True)
class NpyHeader:
    """Header of a ``.npy`` file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array, without the header."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check_size(self, file: IO[bytes]) -> None:
        """Raise FormatError unless the file has the bytes that the header announces: before memory
        is made for them."""
        found = os.fstat(file.fileno()).st_size - self.offset
        if found != self.nbytes:
            raise FormatError(
                f"{file.name} must have {self.nbytes} bytes after its header, got {found}"
            )


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """Read a ``.npy`` header (version 1 to 3, plain numbers, else FormatError); nothing is executed
    or unpickled."""
    name = getattr(file, "name", "file")
    lead = file.read(8)
    if len(lead) < 8 or lead[:6] != _MAGIC or lead[6] not in (1, 2, 3):
        raise FormatError(f"{name} must be a .npy file of version 1 to 3, got first bytes {lead!r}")
    form = "<H" if lead[6] == 1 else "<I"
    width = struct.calcsize(form)
    size_bytes = file.read(width)
    size = struct.unpack(form, size_bytes)[0] if len(size_bytes) == width else _HEADER_LIMIT + 1
    if size > _HEADER_LIMIT:
        raise FormatError(f"{name} must have a header of at most {_HEADER_LIMIT} bytes, got {size}")
    text = file.read(size)
    if len(text) < size:
        raise FormatError(
            f"{name} is truncated: {len(text)} of {size} bytes of its header are there"
        )
    dtype, shape, fortran = _parse_header(name, text.decode("latin1"))
    return NpyHeader(dtype, shape, fortran, len(lead) + len(size_bytes) + size)


def _parse_header(name: str, text: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    import numpy as np

    try:
        fields = ast.literal_eval(text.strip())
        description = fields["descr"]
        shape = fields["shape"]
        fortran = fields["fortran_order"]
        dtype = np.dtype(description)
        sizes = tuple(operator.index(n) for n in shape)
    except (SyntaxError, ValueError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise FormatError(
            f"{name} has an unreadable .npy header: {text.strip()[:100]!r}"
        ) from error
    if not isinstance(description, str) or dtype.kind not in "biufc":
        raise FormatError(f"{name} must hold plain numbers, got dtype {description!r}")
    is_sound = len(sizes) <= _MOST_DIMS and all(n >= 0 for n in sizes) and isinstance(fortran, bool)
    if not is_sound or math.prod(max(n, 1) for n in sizes) * dtype.itemsize > _MOST_BYTES:
        raise FormatError(f"{name} has an impossible .npy header: {text.strip()[:100]!r}")
    return dtype, sizes, fortran
