"""Arrays of an ``.npz`` file larger than memory: mapped in place, or decompressed into files."""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import FormatError
from ..graph.mapped import MappedFile
from ..system.arrays import Array
from ..system.units import bytes_text
from .arrays import UNREADABLE, array_tensor, member_header, npz_members
from .column_files import Scratch

# Bytes per block: large enough for the disk, and a multiple of every item size.
_BLOCK_BYTES = 16 * 2**20
# A member's local header: 30 bytes that end with the lengths of the name and the extra field after
# it.
_LOCAL_HEADER = struct.Struct("<26x2H")


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
