"""Opens a graph folder, whichever form it has."""

from __future__ import annotations

import os
from pathlib import Path

from ..atomic import is_unfinished
from ..errors import FormatError
from ..graph import Graph
from .manifest import MANIFEST
from .native import open_native
from .pagraph_folder import ADJACENCY, open_pagraph

__all__ = ["existing_folder", "folder_form", "open_graph"]

_PARTS = ("train", "val", "test")


def existing_folder(folder: str | os.PathLike[str], *, name: str = "folder") -> Path:
    """The path of a folder whose writer finished; ``name`` is what the caller calls it.

    Raises:
        FileNotFoundError: There is nothing at that path.
        NotADirectoryError: It is a file.
        FormatError: Its writer did not finish.
    """
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"{name} must exist, got {str(path)!r}")
    if not path.is_dir():
        raise NotADirectoryError(f"{name} must be a folder, got the file {str(path)!r}")
    if is_unfinished(path):
        raise FormatError(f"{name} must be finished, got {str(path)!r}, which its writer did not complete")
    return path


def folder_form(folder: str | os.PathLike[str]) -> str:
    """The form of a graph folder: "native" or "pagraph".

    Raises:
        FileNotFoundError: There is nothing at that path.
        NotADirectoryError: It is a file.
        FormatError: It is a folder of neither form, or one whose writer did not finish.
    """
    path = existing_folder(folder)
    if (path / MANIFEST).is_file():
        return "native"
    if (path / ADJACENCY).is_file():
        return "pagraph"
    raise FormatError(
        f"folder must hold {MANIFEST} (native form) or {ADJACENCY} (PaGraph's form), got {str(path)!r} with neither"
    )


def open_graph(folder: str | os.PathLike[str], *, verify: bool = False, split: str = "") -> Graph:
    """Open a graph folder, native (memory-mapped) or PaGraph's; the form is found out.

    Args:
        folder: The graph folder.
        verify: Read everything once: compare the checksums and check every id (PaGraph's form is always
            read whole).
        split: Use another split where the folder has several: ``"pub_"`` takes the masks from
            ``pub_train_mask`` and so on (from ``pub_train.npy`` in PaGraph's form).

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
    suffix = "train_mask"
    names = sorted(name.removesuffix(suffix) for name in fields if name.endswith(suffix))
    if split not in names:
        raise ValueError(f"split must be one of {names}, got {split!r}")
    for part in _PARTS:
        fields.pop(f"{part}_mask", None)
        mask = fields.pop(f"{split}{part}_mask", None)
        if mask is not None:
            fields[f"{part}_mask"] = mask
