"""Reads YAML files that describe a graph: loaded safely, their keys checked, the files they name kept inside."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from ..errors import FormatError

__all__ = ["load_yaml", "named_file"]

_SIZE_LIMIT = 2**20


def load_yaml(path: Path) -> dict[str, Any]:
    """Load the mapping in a YAML file; FormatError if it is none, or larger than 1 MiB, also by what it repeats."""
    import yaml

    if not path.is_file() or path.stat().st_size > _SIZE_LIMIT:
        raise FormatError(f"{path} must be a file of at most {_SIZE_LIMIT} bytes")
    try:
        value = yaml.safe_load(path.read_bytes())
        size = _entries(value, {})
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} must be YAML: {' '.join(str(error).split())[:200]}") from error
    if size > _SIZE_LIMIT:  # a few lines of *names can stand for more than any memory holds
        raise FormatError(f"{path} must have at most {_SIZE_LIMIT} entries, with those that it repeats by *name")
    if not isinstance(value, dict):
        raise FormatError(f"{path} must hold a mapping, got {type(value).__name__}")
    return value


def _entries(value: Any, known: dict[int, float]) -> float:
    """How many entries a value has, each as often as it is repeated; endless if it holds itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_entries(part, known) for part in parts)
    return known[id(value)]


def named_file(folder: Path, name: Any, where: str) -> Path:
    """The path of a file that a description in ``folder`` names; FormatError unless it is a file in that folder."""
    if not isinstance(name, str) or not name.isprintable():
        raise FormatError(f"{where} must name a file, got {name!r}"[:300])
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(os.path.normpath(folder)):
        raise FormatError(f"{where} must name a file inside {folder}, got {name!r}"[:300])
    if not path.is_file():
        raise FormatError(f"{where}: {path} must be a file, and is none")
    return path
