"""Arrays of an ``.npz`` file that need not fit into memory: mapped where they lie, or unpacked into
files."""

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

# Bytes of a member at a time: large enough for the disk, and a multiple of every item.
_BLOCK_BYTES = 16 * 2**20
# The header in front of a member: 30 bytes, then a name and an extra field, whose lengths are the
# last two numbers in it.
_LOCAL_HEADER = struct.Struct("<26x2H")


def file_arrays(path: Path, scratch: Scratch) -> dict[str, Array]:
    """The arrays of numbers in an ``.npz`` file by name, each over mapped memory.

    Members that are stored are read where they lie, and need not be aligned; packed ones, and those
    in another byte order, are copied into files of ``scratch``. All are read once here, and
    compared with their checksums.

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
        # Of the disk; a damaged place in the file is one that nothing can be read from (EINVAL).
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FormatError(f"{path} must be an .npz file of arrays: {error}") from error


def _check_disk(path: Path, archive: zipfile.ZipFile, scratch: Scratch) -> None:
    """Raise FormatError where what is packed in a file does not fit on the disk once unpacked."""
    packed = (m.file_size for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED)
    needed = sum(packed)
    free = shutil.disk_usage(scratch.folder).free
    # A few bytes may say that they are terabytes.
    if needed > free:
        raise FormatError(
            f"{path} must fit on the disk, got {bytes_text(needed)} of packed arrays for "
            f"{bytes_text(free)}"
        )


def _array(
    path: Path, archive: zipfile.ZipFile, name: str, mapping: MappedFile, scratch: Scratch
) -> Array | None:
    """One array of a file; None for one that holds no numbers."""
    names = archive.NameToInfo
    member = names[f"{name}.npy"] if f"{name}.npy" in names else names[name]
    with archive.open(member) as stream:
        shape, is_fortran, dtype = member_header(stream)
        if dtype.kind not in "biuf":
            return None
        native = dtype.newbyteorder("=")
        array_tensor(path, np.empty(0, dtype=native))  # refuses what torch has no dtype for
        count = math.prod(shape)
        begin = stream.tell()
        is_in_place = member.compress_type == zipfile.ZIP_STORED and dtype.isnative
        column = None if is_in_place else scratch.column(native)
        # To the end in any case: only there is the checksum compared.
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
    """Where the content of a stored member begins."""
    # The lengths in the archive's directory may be others than those in front of the member.
    assert file is not None
    header = os.pread(file.fileno(), _LOCAL_HEADER.size, member.header_offset)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return member.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
