"""Readers of arrays: .npy and large .npz (mapped), .pt, Parquet, or text with rows."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Container, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import writeable
from ..graph.mapped import MappedFile, map_npy
from ..system.arrays import Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.files import open_plain, read_npy_header
from ..system.torch_file import load_saved
from ..system.units import bytes_text
from .column_files import Scratch
from .paths import TEXTS
from .tables.number_tables import read_numbers
from .tables.parquet import read_parquet_array

_log = logging.getLogger(__name__)

# NumPy parses headers as Python source (TokenError), and allocates the shapes that they claim
# (OverflowError, MemoryError).
UNREADABLE = (
    *(ValueError, TypeError, KeyError, AttributeError, RuntimeError, EOFError, OSError, IndexError),
    *(
        OverflowError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        tokenize.TokenError,
    ),
)
"""Exceptions of numpy, zipfile and scipy for damaged content."""
# Bytes per block: large enough for the disk, and a multiple of every item size.
_BLOCK_BYTES = 16 * 2**20
# A member's local header: 30 bytes that end with the lengths of the name and the extra field after
# it.
_LOCAL_HEADER = struct.Struct("<26x2H")


def has_ending(path: StrPath, endings: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these endings, in any case."""
    return Path(path).name.lower().endswith(endings)


def read_array(path: StrPath, scratch: Scratch | None = None, *, field: str = "values") -> Tensor:
    """Read the only array of a file, by the ending of its name.

    Text and Parquet have two dimensions. A ``.npy`` file is mapped. With ``scratch``, numbers of
    text and Parquet are mapped from a new file. Binary formats keep their dtype.

    Args:
        path: The file.
        scratch: For the numbers of text and Parquet. Default: memory.
        field: See :func:`~pagraph.datasets.tables.number_tables.read_numbers`.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The ending is unknown, or the file does not hold exactly one array.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"file must exist, got {str(file)!r}")
    if has_ending(file, (".npy",)):
        return map_or_read(file)
    if has_ending(file, (".npz",)):
        arrays = load_npz(file)
        if len(arrays) != 1:
            raise FormatError(f"{file} must hold 1 array, it holds {sorted(arrays)}")
        return array_tensor(file, *arrays.values())
    if has_ending(file, (".pt", ".pth")):
        content = load_saved(file)
        if not isinstance(content, Tensor) or content.layout != torch.strided:
            raise FormatError(f"{file} must hold 1 tensor, it holds a {type(content).__name__}")
        return content
    if has_ending(file, (".parquet",)):
        return read_parquet_array(file, scratch)
    if has_ending(file, TEXTS):
        return read_numbers(file, scratch, field=field)
    raise FormatError(f"{file} must end in one of .npy, .npz, .pt, .parquet, {', '.join(TEXTS)}")


def one_column(rows: Tensor) -> Tensor:
    """Rows of one number each as a 1-D tensor; others unchanged."""
    return rows.squeeze(1) if rows.dim() == 2 and rows.shape[1] == 1 else rows


def bool_mask(name: str, values: Tensor) -> Tensor:
    """A field of 0 and 1 whose name ends in ``mask`` as bool; others unchanged."""
    is_mask = (
        name.endswith("mask")
        and not values.is_floating_point()
        and bool(((values == 0) | (values == 1)).all())
    )
    return values.bool() if is_mask else values


def array_tensor(path: StrPath, array: Array) -> Tensor:
    """An array as a tensor; FormatError if torch has no such dtype."""
    # torch takes only native byte order, and warns of read-only arrays.
    try:
        return torch.from_numpy(
            writeable(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
        )
    except TypeError as error:
        raise FormatError(f"{path} must hold values that torch has a dtype for: {error}") from error


def map_or_read(file: Path) -> Tensor:
    """Map a ``.npy`` file, or convert it in memory if its layout does not allow that."""
    with open_plain(file) as stream:
        header = read_npy_header(stream)
        header.check_size(stream)
    if header.dtype.isnative and not (header.fortran_order and len(header.shape) > 1):
        return map_npy(file, random_access=len(header.shape) > 1)
    # Fortran order or foreign byte order needs a copy in memory.
    check_fits(file, header.nbytes, "numbers")
    try:
        array: Any = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{file} cannot be read: {error}") from error
    return array_tensor(file, array)


def npz_members(file: IO[bytes]) -> dict[str, bool]:
    """Name of each array of an ``.npz`` file, and whether it can be read without unpickling.

    Raises:
        ValueError: An array's header claims more than the file has, or its compression is not
            NumPy's.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("it is not an .npz file")
    file.seek(0)
    members = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            # bzip2 and LZMA expand far more than deflate, whose limit is about 1000x.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{member.filename} must be stored or deflated")
            with archive.open(member) as stream:
                shape, _, dtype = member_header(stream)
            if not dtype.hasobject and math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(
                    f"{member.filename} must hold {dtype} of shape {shape}, it has "
                    f"{member.file_size} bytes"
                )
            members[member.filename.removesuffix(".npy")] = not dtype.hasobject
    file.seek(0)
    return members


def member_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of an array in an ``.npz`` file."""
    # Only the header is read. Its length takes 2 bytes in version 1, and 4 later.
    read = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(stream) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return header


def check_npz(path: StrPath, file: IO[bytes]) -> None:
    """Raise FormatError if the arrays of an ``.npz`` file, unpacked, do not fit into memory."""
    with zipfile.ZipFile(file) as archive:
        check_fits(path, sum(member.file_size for member in archive.infolist()), "arrays")
    file.seek(0)


def load_npz(path: StrPath) -> dict[str, Array]:
    """Read the arrays of an ``.npz`` file, except object arrays; FormatError if it is damaged."""
    try:
        with open(path, "rb") as file:
            members = npz_members(file)
            check_npz(path, file)
            arrays = np.load(file, allow_pickle=False)
            return {name: arrays[name] for name, is_plain in members.items() if is_plain}
    except (FileNotFoundError, FormatError):
        raise
    except UNREADABLE as error:
        raise FormatError(f"{path} must be an .npz file of arrays: {error}") from error


def unread_npz(path: StrPath, read: Container[str]) -> list[str]:
    """Names of the arrays in an ``.npz`` file that are not in ``read``."""
    with open(path, "rb") as file:
        return [name for name in npz_members(file) if name not in read]


def left_behind(path: StrPath, names: Iterable[object], reason: str) -> None:
    """Log one warning with the parts of a file that are not read, if any, and why."""
    words = ", ".join(map(str, names))
    if words:
        _log.warning("%s: left out: %s (%s)", path, words, reason)


def file_arrays(path: Path, scratch: Scratch) -> dict[str, Array]:
    """The numeric arrays in an ``.npz`` file by name, memory-mapped.

    Stored members are mapped in place, perhaps unaligned. Compressed ones, and those in another
    byte order, are copied into files of ``scratch``. All are read once to verify their checksums.

    Raises:
        FormatError: The file is damaged, or an array has a dtype that torch lacks.
    """
    try:
        with open(path, "rb") as file:
            is_plain = npz_members(file)
            mapping = MappedFile.open(file)
            mapping.is_read_once = True
            arrays = {}
            with zipfile.ZipFile(file) as archive:
                _check_disk(path, archive, scratch)
                for name, plain in is_plain.items():
                    array = _array(path, archive, name, mapping, scratch) if plain else None
                    if array is not None:
                        arrays[name] = array
            return arrays
    except FormatError:
        raise
    except UNREADABLE as error:
        # Errors of the disk. EINVAL comes from an invalid offset in a damaged file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FormatError(f"{path} must be an .npz file of arrays: {error}") from error


def _check_disk(path: Path, archive: zipfile.ZipFile, scratch: Scratch) -> None:
    """Raise FormatError if decompressed members would not fit on the disk."""
    packed = (m.file_size for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED)
    needed = sum(packed)
    free = shutil.disk_usage(scratch.folder).free
    # A few bytes may claim terabytes.
    if needed > free:
        raise FormatError(
            f"{path} must fit on the disk, got {bytes_text(needed)} of packed arrays for "
            f"{bytes_text(free)}"
        )


def _array(
    path: Path, archive: zipfile.ZipFile, name: str, mapping: MappedFile, scratch: Scratch
) -> Array | None:
    """One array of a file; None if it is not numeric."""
    names = archive.NameToInfo
    member = names[f"{name}.npy"] if f"{name}.npy" in names else names[name]
    with archive.open(member) as stream:
        shape, is_fortran, dtype = member_header(stream)
        if dtype.kind not in "biuf":
            return None
        native = dtype.newbyteorder("=")
        array_tensor(path, np.empty(0, dtype=native))  # refuses dtypes that torch lacks
        count = math.prod(shape)
        begin = stream.tell()
        is_in_place = member.compress_type == zipfile.ZIP_STORED and dtype.isnative
        column = None if is_in_place else scratch.column(native)
        # Always read to the end, where the checksum is compared.
        left = count * dtype.itemsize
        while block := stream.read(_BLOCK_BYTES):
            if column is not None:
                items = np.frombuffer(block[:left], dtype)
                column.append(items.astype(native, copy=False))
                left -= items.nbytes
    if column is not None:
        flat = column.mapped().numpy()
    elif count:
        flat = np.frombuffer(mapping, dtype, count, _first_byte(archive.fp, member) + begin)
    else:
        flat = np.empty(0, dtype=dtype)
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


def _first_byte(file: IO[bytes] | None, member: zipfile.ZipInfo) -> int:
    """Offset of a stored member's content."""
    # The lengths in the central directory may differ from those in the local header.
    assert file is not None
    header = os.pread(file.fileno(), _LOCAL_HEADER.size, member.header_offset)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return member.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
