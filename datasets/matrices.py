"""Readers of sparse matrices as graphs: SciPy's ``.npz``, Matrix Market, and GNN benchmarks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.fields import is_single
from ..graph.graph import Graph
from ..system.arrays import Array
from ..system.budget import check_fits
from ..system.checks import StrPath
from ..system.progress import Progress
from .arrays import (
    UNREADABLE,
    array_tensor,
    check_npz,
    left_behind,
    load_npz,
    npz_members,
    one_column,
    unread_npz,
)
from .edge_rows import EdgeColumn, EdgeRows, Reading
from .edge_sort import build_graph
from .edge_text import read_integers
from .edges import check_count, check_size
from .numbers import NumberField, number_array
from .text_blocks import first_line, read_blocks

_MATRIX_MARKET = re.compile(
    rb"%%MatrixMarket\s+matrix\s+coordinate\s+(real|integer|pattern|complex)"
    rb"\s+(general|symmetric|skew-symmetric|hermitian)\s",
    re.IGNORECASE,
)
# Names in `scipy.sparse.save_npz` files; `coords` and `_is_array` are from sparse arrays.
_MATRIX_PARTS = (
    "format",
    "shape",
    "data",
    "indices",
    "indptr",
    "row",
    "col",
    "coords",
    "_is_array",
)


def load_sparse(path: StrPath) -> Any:
    """Load a ``scipy.sparse.save_npz`` file (CSR, CSC, COO) without unpickling, or FormatError."""
    try:
        with open(path, "rb") as file:
            npz_members(file)
            check_npz(path, file)
            members = np.load(file, allow_pickle=False)
            arrays = {name: members[name] for name in members.files}
        return _build(arrays)
    except (FileNotFoundError, FormatError):
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
        raise ValueError(
            f"the format must be csr, csc or coo in 2 dimensions, got {kind!r} of {shape}"
        )
    for name in ("indices", "indptr", "row", "col", "coords"):
        if name in arrays and arrays[name].dtype.kind not in "iu":
            raise ValueError(f"{name} must hold integers, got {arrays[name].dtype}")
    import scipy.sparse

    if kind == "coo":
        coords = tuple(arrays["coords"]) if "coords" in arrays else (arrays["row"], arrays["col"])
        return scipy.sparse.coo_matrix((arrays["data"], coords), shape=shape)
    build = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    matrix = build((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
    # The constructor's quick check misses damage that makes tocoo() write out of bounds.
    matrix.check_format(full_check=True)
    return matrix


def dense(path: StrPath, matrix: Any) -> Tensor:
    """A sparse matrix as dense float32, made in blocks of rows to avoid a second dense copy."""
    check_fits(path, 4 * matrix.shape[0] * matrix.shape[1], "a matrix made dense")
    rows = matrix.tocsr()
    out = torch.empty(rows.shape, dtype=torch.float32, device="cpu")
    # 4096 rows of a thousand columns take 16 MiB as float32.
    for begin in range(0, rows.shape[0], 4096):
        block = rows[begin : begin + 4096].toarray()
        out[begin : begin + 4096] = torch.from_numpy(block.astype(np.float32, copy=False))
    return out


def read_scipy(path: StrPath, *, undirected: bool = False, weight: str | None = None) -> Graph:
    """Read a square sparse matrix that scipy saved; a stored ``matrix[src, dst]`` is an edge.

    Weights keep the matrix's dtype, unless ``weight`` is "NAME:DTYPE". Other arrays in the file are
    left out with a warning.
    """
    matrix = load_sparse(path)
    left_behind(path, unread_npz(path, _MATRIX_PARTS), "not part of a sparse matrix")
    return _graph(path, matrix, undirected=undirected, weight=weight)


def _graph(path: StrPath, matrix: Any, *, undirected: bool, weight: str | None) -> Graph:
    coo = matrix.tocoo()
    if coo.shape[0] != coo.shape[1]:
        raise FormatError(f"{path} must hold a square matrix, got shape {tuple(coo.shape)}")
    check_count(path, int(coo.shape[0]), coo.nnz)
    field = NumberField.of("weight", weight)
    edata = {}
    if field is not None:
        edata[field.name] = array_tensor(path, number_array(path, field, coo.data))
    count = int(coo.shape[0])
    return build_graph(path, coo.row, coo.col, count, edata=edata, undirected=undirected)


def read_matrix_market(
    path: StrPath,
    *,
    undirected: bool = False,
    weight: str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a square Matrix Market file in coordinate form, also compressed.

    Rows are sources, columns targets. A symmetric matrix becomes edges in both directions. Weights
    are floats if the head says "real", else int64; ``weight`` is as in
    :func:`~pagraph.datasets.read_edge_list`. The file is read as an edge list, since SciPy's reader
    crashes on some damaged files.

    Raises:
        FormatError: The file is damaged, dense, not square, or has no real values for ``weight``.
        ValueError: ``undirected`` for a symmetric matrix.
    """
    head = _MatrixHead.of(path)
    check_count(path, head.size, head.entries)
    weights = NumberField.of("weight", weight)
    if weights is not None and head.kind in ("pattern", "complex"):
        raise FormatError(
            f"{path} must hold real values for the field {weights.name!r}, its matrix is "
            f"{head.kind}"
        )
    if undirected and head.symmetry != "general":
        raise ValueError(
            f"undirected=True must not be given for {path}, whose {head.symmetry} matrix has both "
            "directions"
        )
    lines = EdgeRows(path, real=head.kind == "real")
    kept = [] if weights is None else [EdgeColumn(weights)]
    # The line of sizes takes the place of a header.
    read_integers(Reading(lines, header=True, columns=kept, progress=progress))
    if len(lines) != head.entries:
        raise FormatError(
            f"{path} must hold {head.entries} entries as its header says, got {len(lines)}"
        )
    values = lines.arrays()
    is_open = weights is not None and weights.dtype is None
    if is_open and head.kind == "integer" and any(v.dtype != np.int64 for v in values.values()):
        raise FormatError(f"{path} must hold integers as its header says, got fractions")
    edata = {name: torch.from_numpy(numbers) for name, numbers in values.items()}
    # The file has only one triangle of a symmetric matrix.
    both = undirected or head.symmetry != "general"
    src = lines.src - 1
    dst = lines.dst - 1
    graph = build_graph(path, src, dst, head.size, edata=edata, undirected=both)
    # a[j, i] = -a[i, j]; the reverse edges come after the file's entries.
    if head.symmetry == "skew-symmetric" and weights is not None:
        graph.edata[weights.name][head.entries :] *= -1
    return graph


@dataclass(frozen=True)
class _MatrixHead:
    """The head of a Matrix Market file.

    Attributes:
        kind: "real", "integer", "pattern" or "complex".
        symmetry: "general", "symmetric", "skew-symmetric" or "hermitian".
        size: Number of rows and of columns.
        entries: Number of entries.
    """

    kind: str
    symmetry: str
    size: int
    entries: int

    @classmethod
    def of(cls, path: StrPath) -> _MatrixHead:
        """Read it; FormatError for a matrix in another form, or one that is not square."""
        block = next(read_blocks(path), None)
        head = _MATRIX_MARKET.match(block.data) if block is not None else None
        sizes = first_line(block.data)[1].split() if block is not None else []
        are_numbers = all(word.isdigit() and len(word) < 19 for word in sizes)
        if head is None or len(sizes) != 3 or not are_numbers:
            raise FormatError(
                f"{path} must be a Matrix Market file in coordinate form, its header says otherwise"
            )
        rows, columns, entries = map(int, sizes)
        if rows != columns:
            raise FormatError(f"{path} must hold a square matrix, got {rows} x {columns}")
        return cls(head[1].lower().decode(), head[2].lower().decode(), rows, entries)


_BENCHMARK_NAMES = {"attr": "feat", "attr_matrix": "feat", "labels": "label"}


def read_benchmark(path: StrPath, *, undirected: bool = False, weight: str | None = None) -> Graph:
    """Read the ``.npz`` of GNN benchmarks, with a CSR matrix ``adj_data``, ``adj_indices`` etc.

    ``attr_data`` etc. (sparse, made dense float32) or ``attr_matrix`` becomes the field ``feat``,
    and ``labels`` becomes ``label``. Other numeric arrays with a row per vertex keep their names.
    All others, such as pickled lists of names, are left out with a warning.
    """
    arrays = load_npz(path)
    left = unread_npz(path, arrays)
    matrices = {
        name: _take_csr(path, arrays, name)
        for name in ("attr", "labels")
        if f"{name}_data" in arrays
    }
    graph = _graph(path, _take_csr(path, arrays, "adj"), undirected=undirected, weight=weight)
    fields = {name: dense(path, matrix) for name, matrix in matrices.items()}
    for name, array in arrays.items():
        if array.ndim and len(array) == graph.num_nodes and array.dtype.kind in "biuf":
            fields[name] = array_tensor(path, array)
        elif name in _BENCHMARK_NAMES:
            raise FormatError(
                f"{path}: {name} must be numbers with a row per vertex ({graph.num_nodes}), got "
                f"{array.dtype} of shape "
                f"{list(array.shape)}"
            )
        elif not is_single(array):
            left.append(name)
    left_behind(path, left, "no numbers with a row per vertex")
    for name, values in fields.items():
        if len(values) != graph.num_nodes:
            raise FormatError(
                f"{path}: {name} must have a row per vertex ({graph.num_nodes}), got {len(values)}"
            )
        ours = _BENCHMARK_NAMES.get(name, name)
        rows = one_column(values) if ours == "label" else values
        graph.set_field(ours, rows)
    return graph


def _take_csr(path: StrPath, arrays: dict[str, Array], name: str) -> Any:
    """Take the arrays of one CSR matrix out of ``arrays``."""
    try:
        parts = {
            part: arrays.pop(f"{name}_{part}") for part in ("data", "indices", "indptr", "shape")
        }
        matrix = _build({"format": np.array("csr"), **parts})
        check_size(path, matrix.shape[0])
        return matrix
    except FormatError:
        raise
    except UNREADABLE as error:
        raise FormatError(
            f"{path} must hold a CSR matrix {name}_data, {name}_indices, ...: {error}"
        ) from error
