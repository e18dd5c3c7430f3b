"""Says of a folder what it holds, by its names alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..errors import FormatError
from ..system.atomic import is_unfinished
from ..system.files import read_small
from .manifest import MANIFEST, PARTITION_FORMAT

ADJACENCY = "adj.npz"
PARTS = ("train", "val", "test")
"""Vertex sets of a split; in a graph the mask of each is a field."""


def existing_folder(folder: str | os.PathLike[str], *, name: str = "folder") -> Path:
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


def folder_form(folder: str | os.PathLike[str]) -> str:
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
