"""Reads sparse matrices as graphs: SciPy's ``.npz``, Matrix Market, and the ``.npz`` of GNN benchmarks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import Graph
from ..system.memory import host_available
from ..system.units import bytes_text
from .arrays import UNREADABLE, array_tensor, load_npz, npz_members, one_column
from .edges import build_graph, check_size

__all__ = ["dense", "load_sparse", "read_benchmark", "read_matrix_market", "read_scipy"]

_LEAST_ENTRY = 4  # bytes of a line "1 1\n"
_GZIP_RATE = 1032  # what gzip can make of a byte


def load_sparse(path: str | os.PathLike[str]) -> Any:
    """Load a file of ``scipy.sparse.save_npz`` (CSR, CSC, COO) without unpickling; FormatError if none or damaged."""
    try:
        with open(path, "rb") as file:
            npz_members(file)
            members = np.load(file, allow_pickle=False)
            arrays = {name: members[name] for name in members.files}
        return _build(arrays)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
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


def dense(matrix: Any) -> Tensor:
    """A sparse matrix as dense float32, by blocks of rows, so that no second dense copy is needed."""
    rows = matrix.tocsr()
    least, free = 4 * rows.shape[0] * rows.shape[1], host_available()
    if least > free:
        raise FormatError(f"a matrix must fit into memory to be dense, got {bytes_text(least)} of {bytes_text(free)}")
    out = torch.empty(rows.shape, dtype=torch.float32, device="cpu")
    for begin in range(0, rows.shape[0], 4096):
        block = rows[begin : begin + 4096].toarray()
        out[begin : begin + 4096] = torch.from_numpy(block.astype(np.float32, copy=False))
    return out


def read_scipy(path: str | os.PathLike[str], *, undirected: bool = False, weight: str | None = None) -> Graph:
    """Read a square sparse matrix that scipy saved; ``matrix[src, dst]`` stored means an edge."""
    return _graph(path, load_sparse(path), undirected=undirected, weight=weight)


def _graph(path: str | os.PathLike[str], matrix: Any, *, undirected: bool, weight: str | None) -> Graph:
    coo = matrix.tocoo()
    if coo.shape[0] != coo.shape[1]:
        raise FormatError(f"{path} must hold a square matrix, got shape {tuple(coo.shape)}")
    edata = {} if weight is None else {weight: array_tensor(path, coo.data)}
    return build_graph(path, coo.row, coo.col, int(coo.shape[0]), edata=edata, undirected=undirected)


def read_matrix_market(path: str | os.PathLike[str], *, undirected: bool = False, weight: str | None = None) -> Graph:
    """Read a square Matrix Market file in coordinate form, plain or gzipped; row and column are source and target.

    A symmetric matrix, which names each entry once, becomes edges in both directions.

    Raises:
        FormatError: The file is damaged, dense, not square, or has no values for ``weight``.
        ValueError: ``undirected`` for a symmetric matrix.
    """
    import scipy.io

    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        rows, columns, entries, form, field, symmetry = scipy.io.mminfo(os.fspath(path))
    except UNREADABLE as error:
        raise FormatError(f"{path} must be a Matrix Market file: {error}") from error
    if form != "coordinate" or rows != columns:
        raise FormatError(f"{path} must hold a square matrix in coordinate form, got {rows} x {columns} as {form}")
    if entries * _LEAST_ENTRY > os.path.getsize(path) * (_GZIP_RATE if packed else 1):
        raise FormatError(f"{path} must hold {entries:,} entries as its header says, it is too short for them")
    check_size(path, rows)
    if weight is not None and field == "pattern":
        raise FormatError(f"{path} must hold values for the field {weight!r}, it is a pattern without any")
    if undirected and symmetry != "general":
        raise ValueError(f"undirected=True must not be given for {path}, whose {symmetry} matrix has both directions")
    try:
        matrix = scipy.io.mmread(os.fspath(path))
    except UNREADABLE as error:
        raise FormatError(f"{path} must be a Matrix Market file: {error}") from error
    return _graph(path, matrix, undirected=undirected, weight=weight)


_BENCHMARK_NAMES = {"attr": "feat", "attr_matrix": "feat", "labels": "label"}


def read_benchmark(path: str | os.PathLike[str], *, undirected: bool = False, weight: str | None = None) -> Graph:
    """Read the ``.npz`` of GNN benchmarks: the CSR matrix ``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape``.

    ``attr_data`` and so on (sparse), or ``attr_matrix``, becomes the field ``feat``, dense float32 if it was sparse,
    and ``labels`` ``label``. Other arrays of numbers with a row per vertex keep their names. Lists of names, which are
    pickled, stay behind.
    """
    arrays = load_npz(path)
    matrices = {name: _take_csr(path, arrays, name) for name in ("attr", "labels") if f"{name}_data" in arrays}
    graph = _graph(path, _take_csr(path, arrays, "adj"), undirected=undirected, weight=weight)
    fields = {name: dense(matrix) for name, matrix in matrices.items()}
    for name, array in arrays.items():
        if array.ndim and len(array) == graph.num_nodes and array.dtype.kind in "biuf":
            fields[name] = array_tensor(path, array)
    for name, values in fields.items():
        ours = _BENCHMARK_NAMES.get(name, name)
        if len(values) != graph.num_nodes:
            raise FormatError(f"{path}: {name} must have a row per vertex ({graph.num_nodes}), got {len(values)}")
        graph.set_field(ours, one_column(values) if ours == "label" else values)
    return graph


def _take_csr(path: str | os.PathLike[str], arrays: dict[str, npt.NDArray[Any]], name: str) -> Any:
    """Take the arrays of one CSR matrix out of ``arrays``."""
    try:
        parts = {part: arrays.pop(f"{name}_{part}") for part in ("data", "indices", "indptr", "shape")}
        matrix = _build({"format": np.array("csr"), **parts})
        check_size(path, matrix.shape[0])
        return matrix
    except FormatError:
        raise
    except UNREADABLE as error:
        raise FormatError(f"{path} must hold a CSR matrix {name}_data, {name}_indices, ...: {error}") from error
