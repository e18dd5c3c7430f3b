"""Safe reading of files that others wrote: regular, bounded, in a folder; ``.npy`` heads, YAML."""

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
from .units import bytes_text, one_line

if TYPE_CHECKING:
    import numpy as np

DESCRIPTION_BYTES = 64 * 2**20
"""Most bytes of a file that describes others. A manifest of 100,000 arrays takes 30 MB."""

_MAGIC = b"\x93NUMPY"
_HEADER_LIMIT = 64 * 1024
_PARSES = 20  # attempts to parse a header while other threads do
_MOST_DIMS = 32  # NumPy's limit before version 2
_MOST_BYTES = 2**63 - 1  # what torch can count


@contextlib.contextmanager
def open_plain(path: StrPath) -> Iterator[IO[bytes]]:
    """Open a regular file for reading; FormatError for a pipe or device, which might never end.

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path} must be a file, got something else")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a pipe's writer; regular files open as usual."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_small(path: StrPath, most: int = DESCRIPTION_BYTES) -> bytes:
    """Read a whole file; FormatError if it is not regular or has more than ``most`` bytes.

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    with open_plain(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FormatError(f"{path} must be a file of at most {most} bytes, it has more")
    return content


class _Bounded(io.RawIOBase):
    """A stream that raises FormatError after ``most`` bytes."""

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
                "fit into memory, it has more"
            )
        out[: len(data)] = data
        return len(data)


def bounded(stream: Any, path: StrPath, most: int) -> IO[bytes]:
    """A stream of at most ``most`` bytes; reading more raises a FormatError that names ``path``."""
    return io.BufferedReader(_Bounded(stream, path, most))


def named_path(folder: Path, name: str, where: object) -> Path:
    """The path of a file that a description in ``folder`` names; it must be inside ``folder``.

    Args:
        folder: The description's folder, which may be a link.
        name: The name, relative to the folder.
        where: The description, for errors.

    Raises:
        FormatError: The file is outside of the folder, also through links, or does not exist.
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
    """Raise FormatError if a path in a folder leads out of it through links.

    Else a folder could expose files that its author may not read.
    """
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise FormatError(f"{path} must be inside {folder}, it is a link to {real}")


def check_links(folder: Path) -> None:
    """Raise FormatError if any link in a folder leads out of it."""
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
        """Raise FormatError unless the file is as long as the header says.

        Called before memory is allocated for the array.
        """
        found = os.fstat(file.fileno()).st_size - self.offset
        if found != self.nbytes:
            raise FormatError(
                f"{file.name} must have {self.nbytes} bytes after its header, got {found}"
            )


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """Read a ``.npy`` header; nothing is executed or unpickled.

    Raises FormatError unless it is of version 1 to 3 and for plain numbers.
    """
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


def _literal(text: str) -> Any:
    """``ast.literal_eval``, also while other threads call it.

    CPython 3.11 counts the depth of all threads' syntax trees in one number. It raises SystemError
    if another thread runs in between, as when a collection calls finalizers (1 of 6,000 headers
    with four threads and much garbage). A lock is no cure: a finalizer may wait for a thread that
    waits for the lock.
    """
    for _ in range(_PARSES):
        with contextlib.suppress(SystemError):
            return ast.literal_eval(text)
    return ast.literal_eval(text)


def _parse_header(name: str, text: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    import numpy as np

    try:
        fields = _literal(text.strip())
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


# Descriptions are written by hand; parsing YAML takes many times its size in memory.
_SIZE_LIMIT = 2**20
_MOST_ENTRIES = 100_000  # each takes over a kilobyte while a description is read


def load_yaml(path: Path) -> dict[str, Any]:
    """Load the mapping in a YAML file; FormatError if it is not one, or too large when expanded.

    Merge keys (``<<``), which can expand without bound, and numbers of base 60 (``1:30``) are
    refused.
    """
    import yaml

    content = read_small(path, _SIZE_LIMIT)
    try:
        value = _loader(yaml)(content).get_single_data()
        size = _entries(value, {})
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} must be YAML: {one_line(error)}") from error
    if size > _MOST_ENTRIES:  # a few lines of *names can expand exponentially
        raise FormatError(
            f"{path} must have at most {_MOST_ENTRIES} entries, with those that it repeats by *name"
        )
    if not isinstance(value, dict):
        raise FormatError(f"{path} must hold a mapping, got {type(value).__name__}")
    return value


def _loader(yaml: Any) -> Any:
    """PyYAML's safe loader, without constructs that expand or take quadratic time."""

    class Loader(yaml.SafeLoader):
        """Counts entries before any is built."""

        entries = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.entries += 1
            if self.entries > _MOST_ENTRIES:
                raise yaml.composer.ComposerError(
                    None, None, f"it must have at most {_MOST_ENTRIES} entries"
                )
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys (<<) are not read", node.start_mark
                )
            super().flatten_mapping(node)

        def construct_number(self, node: Any) -> Any:
            """A number of at most 64 bits."""
            text = self.construct_scalar(node)
            if ":" in text:  # base 60, parsed in quadratic time
                raise yaml.constructor.ConstructorError(
                    None, None, 'text with ":" must be quoted', node.start_mark
                )
            is_whole = node.tag.endswith(":int")
            value = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
            if is_whole and not -(2**63) <= value < 2**63:
                raise yaml.constructor.ConstructorError(
                    None, None, "integers must fit into 64 bits", node.start_mark
                )
            return value

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_number)
    return Loader


def _entries(value: Any, known: dict[int, float]) -> float:
    """Number of entries of a value, counting repeats; infinite if it contains itself."""
    if not isinstance(value, dict | list):
        return 1
    # Memoised, as *names of *names would take exponential time.
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_entries(part, known) for part in parts)
    return known[id(value)]


def named_file(folder: Path, name: Any, where: str) -> Path:
    """The path of a file named in a description; FormatError unless it is inside ``folder``."""
    if not isinstance(name, str) or not name.isprintable():
        raise FormatError(f"{where} must name a file, got {name!r}"[:300])
    return named_path(folder, name, where)
