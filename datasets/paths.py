"""Says what is behind a path by names alone: folders and their forms, files, fractions in place of
files."""

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
"""In a folder of PaGraph's form."""
METADATA = "metadata.yaml"
"""In the folder of a data set of GraphBolt's."""
OGB_TABLES = ("edge.csv.gz", "triplet-type-list.csv.gz")
"""In the folder ``raw`` of a data set of OGB's, one of them or of :data:`OGB_ARRAYS`."""
OGB_ARRAYS = ("data.npz", "edge_index_dict.npz")
EDGE_INDEX = "edge_index"
"""An array of edges, in files of several forms."""
COUNTS = "num_nodes_list"
"""An array that OGB's files have beside it."""
PARTS = ("train", "val", "test")
"""Vertex sets of a split; in a graph the mask of each is a field."""


def existing_folder(folder: StrPath, *, name: str = "folder") -> Path:
    """Check that ``folder`` exists and that its writer finished; errors call it ``name``."""
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
    """Detect the form of a graph folder, "native" or "pagraph"; FormatError for neither and for
    unfinished ones."""
    path = existing_folder(folder)
    # A folder may hold both, as an import beside its source: ours has checksums.
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
    """Whether ``folder`` is a data set of OGB's, with its raw tables or arrays."""
    return any((folder / "raw" / name).is_file() for name in (*OGB_TABLES, *OGB_ARRAYS))


def fraction_of(value: VertexSet) -> float | None:
    """The fraction that a vertex set is, of ``0.6`` and ``60%``; None for a file."""
    text = str(value)
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None


def check_files(files: Iterable[VertexSet | None]) -> None:
    """Raise FileNotFoundError unless each is there, a fraction, or None; long work calls this
    before it starts."""
    for file in files:
        if file is not None and fraction_of(file) is None and not os.path.exists(str(file)):
            raise FileNotFoundError(f"file must exist, got {str(file)!r}")
