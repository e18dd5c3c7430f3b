"""Loads scipy's sparse ``.npz`` files, checked before scipy's C++ code trusts them."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from typing import Any

import numpy as np

from ..errors import FormatError

__all__ = ["load_sparse"]

# What numpy, zipfile and scipy raise for content that is not what it should be.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, AttributeError, RuntimeError, EOFError, OSError),
    *(OverflowError, MemoryError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


def load_sparse(path: str | os.PathLike[str]) -> Any:
    """The CSR, CSC or COO matrix in a file of ``scipy.sparse.save_npz``; nothing is unpickled.

    Raises:
        FormatError: The file is no such matrix, is truncated, or has ids outside its shape.
        FileNotFoundError: There is no such file.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no .npz file")
            file.seek(0)
            members = np.load(file, allow_pickle=False)
            arrays = {name: members[name] for name in members.files}
        return _build(arrays)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise FormatError(f"{path} must be a sparse matrix saved by scipy: {error}") from error


def _build(arrays: dict[str, Any]) -> Any:
    if "format" not in arrays or "shape" not in arrays:
        raise ValueError(f"it holds {sorted(arrays)}, and neither 'format' nor 'shape'")
    kind = arrays["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    shape = tuple(int(n) for n in arrays["shape"])
    if kind not in ("csr", "csc", "coo") or len(shape) != 2:
        raise ValueError(f"the format must be csr, csc or coo in 2 dimensions, got {kind!r} of {shape}")
    for name in ("indices", "indptr", "row", "col", "coords"):
        if name in arrays and arrays[name].dtype.kind not in "iu":
            raise ValueError(f"{name} must hold integers, got {arrays[name].dtype}")
    return _matrix(kind, arrays, shape)


def _matrix(kind: str, arrays: dict[str, Any], shape: tuple[int, ...]) -> Any:
    import scipy.sparse

    if kind == "coo":
        coords = tuple(arrays["coords"]) if "coords" in arrays else (arrays["row"], arrays["col"])
        return scipy.sparse.coo_matrix((arrays["data"], coords), shape=shape)
    build = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    matrix = build((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
    # The quick check of the constructor lets through what makes tocoo() write out of bounds.
    matrix.check_format(full_check=True)
    return matrix
