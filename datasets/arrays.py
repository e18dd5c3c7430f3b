"""Reads one array from a file: ``.npy`` (mapped), ``.npz``, ``.pt``, Parquet, or text with one row
per line."""

from __future__ import annotations

import logging
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import writeable
from ..graph.mapped import map_npy
from ..system.arrays import Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.files import open_plain, read_npy_header
from ..system.torch_file import load_saved
from ..system.units import one_line
from .column_files import ColumnFile, MemoryColumn, Scratch
from .numbers import NumberColumn, NumberField, first_wide
from .paths import TEXTS
from .tables.number_tables import read_numbers

_log = logging.getLogger(__name__)

# Rows of Parquet at a time: of 128 float32 each they take 32 MiB.
_BATCH_ROWS = 2**16
# Spellings of a missing number in a table. Arrow would else also take words such as "NULL" and
# "n/a", which are more likely a wrong column.
_MISSING = ["", "nan", "NaN"]
# Parquet's reader would hold whole columns of a row group otherwise.
_BUFFER_BYTES = 2**20

# Many, as damage reaches deep: NumPy parses headers as Python source (TokenError) and allocates
# the shape they claim (OverflowError, MemoryError).
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


def has_ending(path: StrPath, endings: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these endings, in any case."""
    return Path(path).name.lower().endswith(endings)


def read_array(path: StrPath, scratch: Scratch | None = None, *, field: str = "values") -> Tensor:
    """Read the one array of a file, by its name's ending; text and Parquet give two dimensions.

    A ``.npy`` file is mapped; with ``scratch`` so are the numbers of text and Parquet, in a new
    file. Binary formats keep their dtype.

    Args:
        path: The file.
        scratch: For the numbers of text and Parquet. Default: they are read into memory.
        field: See :func:`read_numbers`.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The ending is unknown, or the file does not hold exactly one array.
        MissingDependencyError: Text or Parquet without pyarrow.
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
        return _read_parquet(file, scratch)
    if has_ending(file, TEXTS):
        return read_numbers(file, scratch, field=field)
    raise FormatError(f"{file} must end in one of .npy, .npz, .pt, .parquet, {', '.join(TEXTS)}")


def one_column(rows: Tensor) -> Tensor:
    """Rows of one number each as a 1-D tensor; others as they are."""
    return rows.squeeze(1) if rows.dim() == 2 and rows.shape[1] == 1 else rows


def bool_mask(name: str, values: Tensor) -> Tensor:
    """Integers 0 and 1 of a field whose name ends in ``mask`` as bools, other fields as they
    are."""
    is_mask = (
        name.endswith("mask")
        and not values.is_floating_point()
        and bool(((values == 0) | (values == 1)).all())
    )
    return values.bool() if is_mask else values


def array_tensor(path: StrPath, array: Array) -> Tensor:
    """An array as a tensor; FormatError if torch has no such dtype."""
    # torch takes only arrays in the machine's byte order, and warns of those it may not write to.
    try:
        return torch.from_numpy(
            writeable(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
        )
    except TypeError as error:
        raise FormatError(f"{path} must hold values that torch has a dtype for: {error}") from error


def map_or_read(file: Path) -> Tensor:
    """Map a ``.npy`` file where its bytes can be used as they are; otherwise convert it in
    memory."""
    with open_plain(file) as stream:
        header = read_npy_header(stream)
        header.check_size(stream)
    if header.dtype.isnative and not (header.fortran_order and len(header.shape) > 1):
        return map_npy(file, random_access=len(header.shape) > 1)
    # Columns first, or the other byte order: a copy in memory is needed.
    check_fits(file, header.nbytes, "numbers")
    try:
        array: Any = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{file} cannot be read: {error}") from error
    return array_tensor(file, array)


def npz_members(file: IO[bytes]) -> dict[str, bool]:
    """Name of each array of an ``.npz`` file, and whether it can be read without unpickling.

    Raises:
        ValueError: An array is larger than what is there: NumPy makes room for what a header says.
            It is packed in another way than NumPy packs.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no .npz file")
    file.seek(0)
    members = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            # bzip2 and LZMA unpack to far more memory for a byte than deflate's thousandfold.
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
    """Shape, whether the first index runs fastest, and dtype of an array in an ``.npz`` file."""
    # Only the header is read: version 1 has a length of 2 bytes, later ones of 4.
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return header


def check_npz(path: StrPath, file: IO[bytes]) -> None:
    """Raise FormatError if the arrays of an ``.npz`` file, unpacked, do not fit into memory."""
    with zipfile.ZipFile(file) as archive:
        check_fits(path, sum(member.file_size for member in archive.infolist()), "arrays")
    file.seek(0)


def load_npz(path: StrPath) -> dict[str, Array]:
    """Read the arrays of an ``.npz`` file, but for those of Python objects; FormatError if it is
    damaged."""
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
    """Names of the arrays in an ``.npz`` file that are not among those that were ``read``."""
    with open(path, "rb") as file:
        return [name for name in npz_members(file) if name not in read]


def left_behind(path: StrPath, names: Iterable[object], reason: str) -> None:
    """Log one warning that names what of a file is not read, if anything, and why."""
    words = ", ".join(map(str, names))
    if words:
        _log.warning("%s: left behind: %s (%s)", path, words, reason)


def _read_parquet(path: Path, scratch: Scratch | None) -> Tensor:
    """All columns of a Parquet file side by side; a column of lists, all as long, is a matrix
    already."""
    import pyarrow as pa
    import pyarrow.parquet

    values: MemoryColumn | ColumnFile | None = None
    shape: tuple[int, ...] = ()
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES) as file:
            # Without rows there are no batches, but the columns still say width and dtype.
            batches = (
                file.iter_batches(_BATCH_ROWS)
                if file.metadata.num_rows
                else [file.schema_arrow.empty_table()]
            )
            for batch in batches:
                columns = [parquet_values(path, name, batch[name]) for name in batch.schema.names]
                if not columns:
                    raise FormatError(f"{path} must have at least 1 column, got none")
                rows = np.concatenate([c if c.ndim == 2 else c[:, None] for c in columns], axis=1)
                _check_promotion(path, batch.schema.names, columns, rows.dtype)
                if values is None:
                    values = (
                        MemoryColumn(rows.dtype) if scratch is None else scratch.column(rows.dtype)
                    )
                    shape = rows.shape
                if rows.shape[1:] != shape[1:]:
                    raise FormatError(
                        f"{path} must hold lists of the same length, got rows of {rows.shape[1]} "
                        "numbers"
                    )
                values.append(rows.reshape(-1))
                check_fits(path, values.nbytes, "numbers")
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        raise FormatError(f"{path} is no whole Parquet file of numbers: {error}") from error
    assert values is not None
    return values.mapped().reshape(-1, *shape[1:])


def _check_promotion(
    path: StrPath,
    names: list[str],
    columns: list[Array],
    dtype: np.dtype[Any],
) -> None:
    """FormatError where a column's integers are not held by the floats that they become beside
    other columns."""
    for name, values in zip(names, columns, strict=True):
        place = (
            first_wide(values.reshape(-1))
            if dtype.kind == "f" and values.dtype.kind in "iu"
            else -1
        )
        if place >= 0:
            got = values.reshape(-1)[place]
            raise FormatError(
                f"{path}, column {name!r} must hold integers below 2**53 beside the others, got "
                f"{got}"
            )


def parquet_values(path: StrPath, name: str, column: Any) -> Array:
    """The numbers of an Arrow column, 2-D for a column of lists; FormatError for others and for
    missing ones."""
    import pyarrow as pa
    import pyarrow.compute

    chunk = column
    width = None
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.combine_chunks()
    types = pa.types
    if (
        types.is_list(chunk.type)
        or types.is_large_list(chunk.type)
        or types.is_fixed_size_list(chunk.type)
    ):
        lengths = set(pa.compute.list_value_length(chunk).unique().to_pylist())
        if len(lengths) > 1:
            raise FormatError(
                f"{path}, column {name!r} must hold lists of the same length, got {lengths}"
            )
        width = next(iter(lengths), 0) or 0
        chunk = chunk.flatten()
    is_number = (
        types.is_integer(chunk.type)
        or types.is_floating(chunk.type)
        or types.is_boolean(chunk.type)
    )
    # Flattening leaves out lists that are missing: then there are fewer numbers than the rows say.
    if (
        not is_number
        or chunk.null_count
        or (width is not None and len(chunk) != width * len(column))
    ):
        got = "missing ones" if is_number else chunk.type
        raise FormatError(f"{path}, column {name!r} must hold numbers, got {got}")
    values: Array = chunk.to_numpy(zero_copy_only=False)
    return values if width is None else values.reshape(len(column), width)
