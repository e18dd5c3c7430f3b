"""Classification of paths by name: folders and their forms, files, fractions instead of files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import FormatError
from ..system.atomic import is_unfinished
from ..system.checks import StrPath
from ..system.files import read_small
from .manifest import MANIFEST, PARTITION_FORMAT

VertexSet = StrPath | float
"""A file of ids or of a mask, or a fraction of the vertices."""

TEXTS = tuple(
    f".{kind}{packed}" for kind in ("txt", "tsv", "csv") for packed in ("", ".gz", ".xz", ".bz2")
)
ADJACENCY = "adj.npz"
"""File of a folder in PaGraph's form."""
METADATA = "metadata.yaml"
"""File of a GraphBolt dataset's folder."""
OGB_TABLES = ("edge.csv.gz", "triplet-type-list.csv.gz")
"""An OGB dataset's folder ``raw`` has one of these, or of :data:`OGB_ARRAYS`."""
OGB_ARRAYS = ("data.npz", "edge_index_dict.npz")
EDGE_INDEX = "edge_index"
"""The array of edges, in files of several forms."""
COUNTS = "num_nodes_list"
"""The array with the number of vertices, in OGB's files."""
PARTS = ("train", "val", "test")
"""Vertex sets of a split; a graph has a mask for each."""


def existing_folder(folder: StrPath, *, name: str = "folder") -> Path:
    """Check that ``folder`` exists and is finished; errors call it ``name``."""
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"{name} must exist, got {str(path)!r}")
    if not path.is_dir():
        raise NotADirectoryError(f"{name} must be a folder, got the file {str(path)!r}")
    if is_unfinished(path):
        raise FormatError(
            f"{name} must be finished, got {str(path)!r}, which its writer did not complete"
        )
    return path


def folder_form(folder: StrPath) -> str:
    """Detect the form of a graph folder, "native" or "pagraph"; else FormatError."""
    path = existing_folder(folder)
    # If a folder has both, prefer ours, which has checksums.
    if (path / MANIFEST).is_file():
        return "native"
    if (path / ADJACENCY).is_file():
        return "pagraph"
    raise FormatError(
        f"folder must hold {MANIFEST} (native form) or {ADJACENCY} (PaGraph's form), got "
        f"{str(path)!r} with neither"
    )


def is_partition(folder: Path) -> bool:
    """Whether the manifest in ``folder`` is a partition's."""
    try:
        value = json.loads(read_small(folder / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("format") == PARTITION_FORMAT


def is_ogb(folder: Path) -> bool:
    """Whether ``folder`` is an OGB dataset, with raw tables or arrays."""
    return any((folder / "raw" / name).is_file() for name in (*OGB_TABLES, *OGB_ARRAYS))


def fraction_of(value: VertexSet) -> float | None:
    """A vertex set as a fraction (``0.6`` or ``60%``); None for a file."""
    text = str(value)
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None


def check_files(files: Iterable[VertexSet | None]) -> None:
    """Raise FileNotFoundError for a missing file (not a fraction or None), before long work."""
    for file in files:
        if file is not None and fraction_of(file) is None and not os.path.exists(str(file)):
            raise FileNotFoundError(f"file must exist, got {str(file)!r}")
