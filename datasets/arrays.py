"""The arrays of a folder with a manifest: written block by block with a checksum, opened memory-mapped."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..mapped import map_npy
from .manifest import ArrayEntry, stored_dtype

__all__ = ["ArrayWriter", "Rows", "Written", "check_storable", "check_sum", "file_digest", "nbytes", "open_array"]

Written = Callable[[int], None]
"""Called with the number of bytes that have just been written."""

_CHUNK_BYTES = 16 * 2**20
_FLOAT8 = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name))


class Rows(Protocol):
    """What can be written: a tensor, or rows that are read when they are asked for."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows first."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some rows as a tensor."""


class ArrayWriter:
    """Writes arrays into one folder under names that are not there yet; at most 16 MiB of rows are read at a time.

    Args:
        folder: An existing folder, empty as far as ``.npy`` files go.
        written: Called after every block.
    """

    def __init__(self, folder: Path, written: Written | None = None) -> None:
        self._folder = folder
        self._written = written
        self._used: set[str] = set()

    def write(self, label: str, rows: Rows) -> ArrayEntry:
        """Write ``rows`` to a file whose name is made of ``label``, which may hold any characters.

        Raises:
            ValueError: The dtype or the layout cannot be stored.
        """
        stored = check_storable(label, rows)
        file_name = self._file_name(label)
        size, digest = self._write_npy(file_name, rows, stored)
        return ArrayEntry(file_name, _torch_name(rows), tuple(rows.shape), size, digest)

    def _write_npy(self, file_name: str, rows: Rows, stored: np.dtype[Any]) -> tuple[int, str]:
        digest = hashlib.sha256()
        count, shape = rows.shape[0], tuple(rows.shape)
        step = max(1, _CHUNK_BYTES // max(1, math.prod(shape[1:]) * stored.itemsize))
        with open(self._folder / file_name, "wb") as file:
            header = _npy_header(stored, shape)
            file.write(header)
            digest.update(header)
            for begin in range(0, count, step):
                data = _as_bytes(rows[begin : min(begin + step, count)], stored)
                file.write(data)
                digest.update(data)
                if self._written is not None:
                    self._written(len(data))
            size = file.tell()
        return size, digest.hexdigest()

    def _file_name(self, label: str) -> str:
        """A plain file name for ``label`` that no other array has."""
        stem = re.sub(r"[^A-Za-z0-9_.+-]", "_", label)[:100]
        name, count = f"{stem}.npy", 1
        while name.lower() in self._used:
            count += 1
            name = f"{stem}+{count}.npy"
        self._used.add(name.lower())
        return name


def check_storable(label: str, rows: Rows) -> np.dtype[Any]:
    """The dtype that ``rows`` have in a file.

    Raises:
        ValueError: The dtype or the layout cannot be stored.
    """
    try:
        stored = stored_dtype(_torch_name(rows))
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if isinstance(rows, Tensor) and rows.layout != torch.strided:
        raise ValueError(f"{label}: layout must be strided, got {rows.layout}")
    return stored


def _torch_name(rows: Rows) -> str:
    return str(rows.dtype).removeprefix("torch.")


def nbytes(rows: Rows) -> int:
    """Bytes of the values."""
    return math.prod(rows.shape) * rows.dtype.itemsize


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Header of version 1.0, padded so that the array begins at a multiple of 64 bytes."""
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape})
    padding = -(10 + len(text) + 1) % 64
    body = (text + " " * padding + "\n").encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def _as_bytes(block: Tensor, stored: np.dtype[Any]) -> memoryview:
    flat = block.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.dtype in (torch.bfloat16, *_FLOAT8):
        flat = flat.view(torch.int16 if flat.dtype == torch.bfloat16 else torch.uint8)
    array = flat.numpy()
    assert array.dtype == stored
    return array.view(np.uint8).data


def open_array(folder: Path, entry: ArrayEntry, *, random: bool = False) -> Tensor:
    """Map the file of ``entry``, checking that it is there and is what the entry says; its values are not read.

    Args:
        folder: Where the file is.
        entry: From a manifest.
        random: See :func:`~pagraph.mapped.map_npy`.

    Raises:
        FormatError: The file is missing, or has another size, dtype or shape.
    """
    file = folder / entry.file
    if not file.is_file():
        raise FormatError(f"{file} is missing, and the manifest names it")
    size = file.stat().st_size
    if size != entry.bytes:
        raise FormatError(f"{file} must have {entry.bytes} bytes as the manifest says, got {size}")
    tensor = map_npy(file, random_access=random)
    stored, dtype = stored_dtype(entry.dtype), getattr(torch, entry.dtype)
    got = str(tensor.dtype).removeprefix("torch.")
    if got != stored.name or tuple(tensor.shape) != entry.shape:
        raise FormatError(
            f"{file} must hold {stored.name} of shape {list(entry.shape)} as the manifest says, "
            f"got {got} of shape {list(tensor.shape)}"
        )
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def file_digest(file: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    digest = hashlib.sha256()
    with open(file, "rb", buffering=0) as stream:
        while block := stream.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def check_sum(folder: Path, entry: ArrayEntry) -> None:
    """Read the file of ``entry`` and compare its checksum.

    Raises:
        FormatError: It is missing, or has another checksum.
    """
    try:
        got = file_digest(folder / entry.file)
    except FileNotFoundError:
        raise FormatError(f"{folder / entry.file} is missing, and the manifest names it") from None
    if got != entry.sha256:
        want = entry.sha256[:16]
        raise FormatError(f"{folder / entry.file} is corrupt: its SHA-256 must be {want}..., got {got[:16]}...")
