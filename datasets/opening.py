"""Opens graph folders, native or PaGraph's, and reads graphs from other files: scipy's, DGL's, PyG's and edge lists."""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import EDGE_TYPE, Graph
from ..graph.mapped import map_npy, read_npy_header
from ..system.atomic import is_unfinished
from ..system.memory import host_available
from ..system.units import bytes_text
from .edge_list import read_edge_list
from .edges import mirror
from .manifest import MANIFEST
from .native import open_native

__all__ = [
    *("ADJACENCY", "PARTS", "existing_folder", "folder_form", "load_sparse", "open_graph", "open_pagraph"),
    *("read_graph", "source_form"),
]

ADJACENCY = "adj.npz"
PARTS = ("train", "val", "test")
"""Vertex sets of a split; in a graph the mask of each is a field."""

_TEXTS = (".txt", ".tsv", ".csv", ".txt.gz", ".tsv.gz", ".csv.gz")
_FORMS = dict.fromkeys((*_TEXTS, ".parquet"), "edge list") | {".npz": "scipy", ".bin": "dgl", ".pt": "pyg"}
_DEFAULTS = {"split": "", "num_nodes": None, "relabel": False, "undirected": False, "weight": None, "header": None}
_OPTIONS = {
    "folder": ["split"],
    "dgl": [],
    "pyg": [],
    "scipy": ["undirected", "weight"],
    "edge list": ["num_nodes", "relabel", "undirected", "weight", "header"],
}
_DGL_MAGIC = (0xDD2E4FF046B4A13F).to_bytes(8, "little")


def existing_folder(folder: str | os.PathLike[str], *, name: str = "folder") -> Path:
    """Check that ``folder`` exists and that its writer finished; errors call it ``name``."""
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"{name} must exist, got {str(path)!r}")
    if not path.is_dir():
        raise NotADirectoryError(f"{name} must be a folder, got the file {str(path)!r}")
    if is_unfinished(path):
        raise FormatError(f"{name} must be finished, got {str(path)!r}, which its writer did not complete")
    return path


def folder_form(folder: str | os.PathLike[str]) -> str:
    """Detect the form of a graph folder, "native" or "pagraph"; FormatError for neither and for unfinished ones."""
    path = existing_folder(folder)
    if (path / MANIFEST).is_file():
        return "native"
    if (path / ADJACENCY).is_file():
        return "pagraph"
    raise FormatError(
        f"folder must hold {MANIFEST} (native form) or {ADJACENCY} (PaGraph's form), got {str(path)!r} with neither"
    )


def open_graph(folder: str | os.PathLike[str], *, verify: bool = False, split: str = "") -> Graph:
    """Open a graph folder, native (memory-mapped) or PaGraph's; detects the form.

    Args:
        folder: The graph folder.
        verify: Read everything once: compare the checksums and check every id (PaGraph's form is always read whole).
        split: Prefix of another split: ``"pub_"`` takes the masks from ``pub_train_mask`` and so on (from
            ``pub_train.npy`` in PaGraph's form).

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: The folder has neither form, or does not hold what it says.
        ValueError: ``split`` is none of the folder's splits.
    """
    form = folder_form(folder)
    graph = open_native(folder, verify=verify) if form == "native" else open_pagraph(folder)
    if split:
        _choose_split(graph, split)
    return graph


def _choose_split(graph: Graph, split: str) -> None:
    """Put the masks of ``split`` in the place of the first split's."""
    fields = graph.ndata
    names = sorted(name.removesuffix("train_mask") for name in fields if name.endswith("train_mask"))
    if split not in names:
        raise ValueError(f"split must be one of {names}, got {split!r}")
    for part in PARTS:
        fields.pop(f"{part}_mask", None)
        mask = fields.pop(f"{split}{part}_mask", None)
        if mask is not None:
            fields[f"{part}_mask"] = mask


def open_pagraph(folder: str | os.PathLike[str]) -> Graph:
    """Open a folder in PaGraph's form; fields are named as DGL's data sets name them.

    ``adj[src, dst]`` stored means an edge; edge ids follow ``adj.tocoo()``. The vertex fields are ``feat`` (a dense
    ``feat.npy`` is memory-mapped; ``feat.npz`` becomes float32 in RAM), ``label``, ``train_mask`` and so on, and for a
    second split (``pub_train.npy``) ``pub_train_mask``. Everything but ``adj.npz`` may be absent.
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
    out = torch.empty(rows.shape, dtype=torch.float32, device="cpu")
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
    """Load a file of ``scipy.sparse.save_npz`` (CSR, CSC, COO) without unpickling; FormatError if none or damaged."""
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no .npz file")
            file.seek(0)
            _check_sizes(file)
            members = np.load(file, allow_pickle=False)
            arrays = {name: members[name] for name in members.files}
        return _build(arrays)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise FormatError(f"{path} must be a sparse matrix saved by scipy: {error}") from error


def _check_sizes(file: IO[bytes]) -> None:
    """Raise ValueError for an array larger than what is there: NumPy makes room for what a header says."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            if not dtype.hasobject and math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(
                    f"{member.filename} must hold {dtype} of shape {shape}, it has {member.file_size} bytes"
                )
    file.seek(0)


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


def source_form(source: str | os.PathLike[str]) -> str:
    """Detect the form of ``source`` by its name: "folder", "scipy", "dgl", "pyg" or "edge list"."""
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"source must exist, got {str(path)!r}")
    if path.is_dir():
        return "folder"
    for suffix, form in _FORMS.items():
        if path.name.lower().endswith(suffix):
            return form
    raise FormatError(f"source must be a graph folder or end in one of {', '.join(_FORMS)}, got {str(path)!r}")


def read_graph(
    source: str | os.PathLike[str],
    *,
    split: str = "",
    num_nodes: int | None = None,
    relabel: bool = False,
    undirected: bool = False,
    weight: str | None = None,
    header: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Read a graph from a folder or file of any supported format; fields keep the names they have in DGL.

    Args:
        source: A graph folder, an edge list (``.txt``, ``.tsv``, ``.csv``, also with ``.gz``, or ``.parquet``), a
            sparse matrix of scipy (``.npz``), or a graph that DGL (``.bin``) or PyG (``.pt``) saved.
        split: For folders: see :func:`open_graph`.
        num_nodes: For edge lists, like ``relabel`` and ``header``: see :func:`read_edge_list`.
        relabel: For edge lists.
        undirected: For edge lists and sparse matrices: store both directions of every edge.
        weight: For edge lists and sparse matrices: name of an edge field for the weights.
        header: For edge lists.
        progress: Called with the bytes read and the file's size, where that can be told.

    Raises:
        FileNotFoundError: There is nothing at that path.
        FormatError: The form is not known, or the content is corrupt.
        MissingDependencyError: The form needs DGL, PyG or pyarrow, which is not installed.
        ValueError: An option does not go with the form, or ids are out of range.
    """
    form = source_form(source)
    values = (split, num_nodes, relabel, undirected, weight, header)
    given: dict[str, Any] = {
        name: value for (name, default), value in zip(_DEFAULTS.items(), values, strict=True) if value != default
    }
    for name in given:
        if name not in _OPTIONS[form]:
            raise ValueError(f"{name} must not be given for a source of the form {form!r}")
    if form == "folder":
        return open_graph(source, verify=True, **given)
    if form == "edge list":
        return read_edge_list(source, **given, progress=progress)
    readers: dict[str, Callable[..., Graph]] = {"scipy": read_scipy, "dgl": read_dgl, "pyg": read_pyg}
    return readers[form](source, **given)


def read_scipy(path: str | os.PathLike[str], *, undirected: bool = False, weight: str | None = None) -> Graph:
    """Read a square sparse matrix that scipy saved; ``matrix[src, dst]`` stored means an edge."""
    matrix = load_sparse(path).tocoo()
    if matrix.shape[0] != matrix.shape[1]:
        raise FormatError(f"{path} must hold a square matrix, got shape {tuple(matrix.shape)}")
    least, free = 8 * matrix.shape[0], host_available()
    if least > free:
        raise FormatError(
            f"{path} must have no more vertices than fit into memory, got {matrix.shape[0]:,}, whose index takes "
            f"{bytes_text(least)} of {bytes_text(free)}"
        )
    src, dst, values = matrix.row, matrix.col, matrix.data
    if undirected:
        src, dst, origin = mirror(src, dst)
        values = values[origin]
    graph = Graph.from_coo(src, dst, int(matrix.shape[0]))
    if weight is not None:
        try:
            graph.set_field(weight, torch.from_numpy(np.ascontiguousarray(values)), edge_type=EDGE_TYPE)
        except TypeError as error:
            raise FormatError(f"{path} must hold values that torch has a dtype for: {error}") from error
    return graph


def read_dgl(path: str | os.PathLike[str]) -> Graph:
    """Read the first graph of a file that ``dgl.save_graphs`` wrote, with all its fields; needs DGL."""
    with open(path, "rb") as file:
        magic = file.read(8)
    if magic != _DGL_MAGIC:  # DGL's own reader may crash on other files
        raise FormatError(f"{path} must be a file that dgl.save_graphs wrote, it does not begin like one")
    from ..dgl import load_saved_graph

    return load_saved_graph(path)


def read_pyg(path: str | os.PathLike[str]) -> Graph:
    """Read a ``Data`` or ``HeteroData`` of PyG's that ``torch.save`` wrote, with all its fields; needs PyG.

    The file holds the object, its ``to_dict()``, or a data set's ``processed/data.pt``. Vertex fields get the names
    they have in DGL: ``x`` becomes ``feat`` and ``y`` ``label`` (one column of it 1-D), unless there are such fields
    already. Masks of several splits, a column each, become ``train_mask``, ``split1_train_mask`` and so on.
    """
    from ..pyg.graphs import load_saved_data

    graph = load_saved_data(path)
    for ntype in graph.node_types:
        fields = graph.node_fields(ntype)
        for name, ours in (("x", "feat"), ("y", "label")):
            if name in fields and ours not in fields:
                fields[ours] = fields.pop(name)
        if "label" in fields and fields["label"].dim() == 2 and fields["label"].shape[1] == 1:
            fields["label"] = fields["label"].squeeze(1)
        for name in (f"{part}_mask" for part in PARTS):
            if name in fields and fields[name].dim() == 2:
                for number, mask in enumerate(fields.pop(name).unbind(1)):
                    fields[f"split{number}_{name}" if number else name] = mask
    return graph
