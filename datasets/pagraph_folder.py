"""Reads PaGraph's folders (``adj.npz``, labels, masks, ``feat.npy`` or ``feat.npz``) and scipy's sparse matrices."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import Graph
from ..graph.mapped import map_npy, read_npy_header

__all__ = ["ADJACENCY", "PARTS", "load_sparse", "open_pagraph"]

ADJACENCY = "adj.npz"
PARTS = ("train", "val", "test")
"""Vertex sets of a split; in a graph the mask of each is a field."""


def open_pagraph(folder: str | os.PathLike[str]) -> Graph:
    """Open a folder in PaGraph's form; fields are named as DGL's data sets name them.

    ``adj[src, dst]`` stored means an edge; edge ids follow ``adj.tocoo()``. The vertex fields are ``feat`` (a dense
    ``feat.npy`` is memory-mapped; ``feat.npz`` becomes float32 in RAM), ``label``, ``train_mask`` and so on, and for a
    second split (``pub_train.npy``) ``pub_train_mask``. Everything but ``adj.npz`` may be absent.

    Raises:
        FormatError: A file is corrupt, or does not have one row per vertex.
    """
    path = Path(folder)
    adjacency = load_sparse(path / ADJACENCY)
    if adjacency.shape[0] != adjacency.shape[1]:
        raise FormatError(f"{path / ADJACENCY} must be square, got shape {tuple(adjacency.shape)}")
    graph = Graph.from_scipy(adjacency)
    for name, tensor in _fields(path).items():
        try:
            graph.set_field(name, tensor)
        except ValueError as error:
            raise FormatError(f"{path}: {error}") from None
    return graph


def _fields(path: Path) -> dict[str, Tensor]:
    fields: dict[str, Tensor] = {}
    if (path / "feat.npy").is_file():
        fields["feat"] = _map_or_read(path / "feat.npy")
    elif (path / "feat.npz").is_file():
        fields["feat"] = _dense(load_sparse(path / "feat.npz"))
    if (path / "labels.npy").is_file():
        fields["label"] = _map_or_read(path / "labels.npy")
    further = {file.name.removesuffix("train.npy") for file in path.glob("*train.npy")} - {""}
    for prefix in ("", *sorted(further)):
        for part in PARTS:
            if (path / f"{prefix}{part}.npy").is_file():
                fields[f"{prefix}{part}_mask"] = _mask(path / f"{prefix}{part}.npy")
    return fields


def _map_or_read(file: Path) -> Tensor:
    """Mapped where the file's bytes can be used as they are, otherwise converted in RAM."""
    with open(file, "rb") as stream:
        header = read_npy_header(stream)
    if header.dtype.isnative and not (header.fortran_order and len(header.shape) > 1):
        return map_npy(file, random_access=len(header.shape) > 1)
    try:
        array: Any = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{file} cannot be read: {error}") from error
    return torch.from_numpy(np.ascontiguousarray(array, dtype=header.dtype.newbyteorder("=")))


def _mask(file: Path) -> Tensor:
    tensor = _map_or_read(file)
    if tensor.dim() != 1:
        raise FormatError(f"{file} must be a 1-D mask, got shape {list(tensor.shape)}")
    if tensor.dtype == torch.bool:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex() or bool(((tensor != 0) & (tensor != 1)).any()):
        raise FormatError(f"{file} must be a mask of bool, or of the integers 0 and 1, got {tensor.dtype}")
    return tensor.bool()


def _dense(matrix: Any) -> Tensor:
    """A sparse matrix as dense float32, by blocks of rows, so that no second dense copy is needed."""
    rows = matrix.tocsr()
    out = torch.empty(rows.shape, dtype=torch.float32)
    for begin in range(0, rows.shape[0], 4096):
        block = rows[begin : begin + 4096].toarray()
        out[begin : begin + 4096] = torch.from_numpy(block.astype(np.float32, copy=False))
    return out


# What numpy, zipfile and scipy raise for content that is not what it should be.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, AttributeError, RuntimeError, EOFError, OSError),
    *(OverflowError, MemoryError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


def load_sparse(path: str | os.PathLike[str]) -> Any:
    """Load the CSR, CSC or COO matrix in a file of ``scipy.sparse.save_npz``, without unpickling anything.

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
    import scipy.sparse

    if kind == "coo":
        coords = tuple(arrays["coords"]) if "coords" in arrays else (arrays["row"], arrays["col"])
        return scipy.sparse.coo_matrix((arrays["data"], coords), shape=shape)
    build = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    matrix = build((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
    # The quick check of the constructor lets through what makes tocoo() write out of bounds.
    matrix.check_format(full_check=True)
    return matrix
