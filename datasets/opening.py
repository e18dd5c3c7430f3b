"""Opening of graph folders: the native form, and PaGraph's."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import Graph
from ..system.checks import StrPath
from ..system.files import check_inside, named_path
from ..system.progress import Progress
from .arrays import map_or_read
from .edges import check_count
from .matrices import dense, load_sparse
from .native import open_native
from .paths import ADJACENCY, PARTS, folder_form


def open_graph(
    folder: StrPath,
    *,
    verify: bool = False,
    split: str = "",
    progress: Progress | None = None,
) -> Graph:
    """Open a graph folder: native (memory-mapped) or PaGraph's.

    Args:
        folder: The graph folder.
        verify: Read everything once to compare checksums and check all ids (PaGraph's form is
            always read completely).
        split: Prefix of another split: ``"pub_"`` takes the masks ``pub_train_mask`` etc.
            (``pub_train.npy`` in PaGraph's form).
        progress: With ``verify``, called with the bytes compared so far and all bytes.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: The folder has neither form, or is inconsistent.
        ValueError: ``split`` does not exist.
    """
    if folder_form(folder) == "native":
        graph = open_native(folder, verify=verify, progress=progress)
    else:
        graph = open_pagraph(folder)
    if split:
        choose_split(graph, split)
    return graph


def open_verified(folder: StrPath, *, split: str = "") -> Graph:
    """Open a graph folder and check everything; see :func:`open_graph`."""
    return open_graph(folder, verify=True, split=split)


def choose_split(graph: Graph, split: str) -> None:
    """Replace the masks of the first split by those of ``split``."""
    fields = graph.ndata
    names = sorted(
        name.removesuffix("train_mask") for name in fields if name.endswith("train_mask")
    )
    if split not in names:
        raise ValueError(f"split must be one of {names}, got {split!r}")
    for part in PARTS:
        fields.pop(f"{part}_mask", None)
        mask = fields.pop(f"{split}{part}_mask", None)
        if mask is not None:
            fields[f"{part}_mask"] = mask


def open_pagraph(folder: StrPath) -> Graph:
    """Open a folder in PaGraph's form; fields have the names of DGL's datasets.

    A stored ``adj[src, dst]`` is an edge; edge ids follow ``adj.tocoo()``. The vertex fields are
    ``feat`` (``feat.npy`` is memory-mapped, sparse ``feat.npz`` becomes float32 in memory),
    ``label``, ``train_mask`` etc., and for a second split (``pub_train.npy``) ``pub_train_mask``.
    All but ``adj.npz`` are optional.
    """
    path = Path(folder)
    adjacency = load_sparse(named_path(path, ADJACENCY, "PaGraph's form"))
    if adjacency.shape[0] != adjacency.shape[1]:
        raise FormatError(f"{path / ADJACENCY} must be square, got shape {tuple(adjacency.shape)}")
    # A tiny sparse matrix may claim any shape.
    check_count(path / ADJACENCY, adjacency.shape[0], adjacency.nnz)
    graph = Graph.from_scipy(adjacency)
    for name, tensor in _fields(path).items():
        try:
            graph.set_field(name, tensor)
        except ValueError as error:
            raise FormatError(f"{path}: {error}") from None
    return graph


def _fields(path: Path) -> dict[str, Tensor]:
    fields: dict[str, Tensor] = {}
    if (file := _there(path, "feat.npy")) is not None:
        fields["feat"] = map_or_read(file)
    elif (file := _there(path, "feat.npz")) is not None:
        fields["feat"] = dense(file, load_sparse(file))
    if (file := _there(path, "labels.npy")) is not None:
        fields["label"] = map_or_read(file)
    further = {file.name.removesuffix("train.npy") for file in path.glob("*train.npy")} - {""}
    for prefix in ("", *sorted(further)):
        for part in PARTS:
            if (file := _there(path, f"{prefix}{part}.npy")) is not None:
                fields[f"{prefix}{part}_mask"] = _mask(file)
    return fields


def _there(folder: Path, name: str) -> Path | None:
    """A file of a folder, or None; FormatError if it is a link out of it."""
    path = folder / name
    if not path.is_file():
        return None
    check_inside(folder, path)
    return path


def _mask(file: Path) -> Tensor:
    tensor = map_or_read(file)
    if tensor.dim() != 1:
        raise FormatError(f"{file} must be a 1-D mask, got shape {list(tensor.shape)}")
    if tensor.dtype == torch.bool:
        return tensor
    if (
        tensor.is_floating_point()
        or tensor.is_complex()
        or bool(((tensor != 0) & (tensor != 1)).any())
    ):
        raise FormatError(
            f"{file} must be a mask of bool, or of the integers 0 and 1, got {tensor.dtype}"
        )
    return tensor.bool()
