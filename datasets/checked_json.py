"""JSON of a manifest: read strictly, every value checked where it is taken out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FormatError

__all__ = ["read_manifest_json", "size_of", "take", "write_manifest_json"]

_T = TypeVar("_T")


def read_manifest_json(path: Path, form: str, version: int) -> dict[str, Any]:
    """The JSON object in ``path``, of which only ``format`` and ``version`` are checked.

    Raises:
        FormatError: The file cannot be read, is not JSON, or is of another format or version.
    """
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict) or value.get("format") != form:
        got = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise FormatError(f"{path}: format must be {form!r}, got {got!r}")
    if value.get("version") != version:
        raise FormatError(f"{path}: version must be {version}, got {value.get('version')!r}")
    return value


def write_manifest_json(path: Path, value: dict[str, Any]) -> None:
    """Write what :func:`read_manifest_json` reads, the same bytes for the same values."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def take(value: Any, key: str, kind: type[_T], where: str) -> _T:
    """``value[key]``, which must be a ``kind``; booleans are no integers.

    Raises:
        FormatError: It is missing or of another kind.
    """
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise FormatError(f"{where}: {key} must be a JSON {kind.__name__}, got {found!r}"[:300])
    return found


def size_of(count: int, name: str, where: str) -> int:
    """``count``, which must not be negative.

    Raises:
        FormatError: It is.
    """
    if count < 0:
        raise FormatError(f"{where}: {name} must be at least 0, got {count}")
    return count
