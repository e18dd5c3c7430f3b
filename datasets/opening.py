"""Opens graph folders of every form, and reads graphs from other files: scipy's, DGL's, PyG's and edge lists."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import FormatError
from ..graph.graph import EDGE_TYPE, Graph
from ..system.atomic import is_unfinished
from .edge_list import read_edge_list
from .edges import mirror
from .manifest import MANIFEST
from .native import open_native
from .pagraph_folder import ADJACENCY, PARTS, load_sparse, open_pagraph

__all__ = ["existing_folder", "folder_form", "open_graph", "read_graph", "source_form"]

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
    """Read a square sparse matrix that scipy saved; ``matrix[src, dst]`` stored means an edge.

    Args:
        path: A file of ``scipy.sparse.save_npz``.
        undirected: Store both directions of every entry that is off the diagonal.
        weight: Name of an edge field for the entries' values. Default: they are left out.

    Raises:
        FormatError: The file is corrupt, or the matrix is not square.
    """
    matrix = load_sparse(path).tocoo()
    if matrix.shape[0] != matrix.shape[1]:
        raise FormatError(f"{path} must hold a square matrix, got shape {tuple(matrix.shape)}")
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
    """Read the first graph of a file that ``dgl.save_graphs`` wrote, with all its fields; needs DGL.

    Raises:
        FormatError: It is no such file, or a corrupt one.
        MissingDependencyError: DGL is not installed.
    """
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

    Raises:
        FormatError: It is no such file, a corrupt one, or holds other objects than tensors and plain values.
        MissingDependencyError: PyG is not installed.
    """
    from ..pyg.fields import load_saved_data

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
