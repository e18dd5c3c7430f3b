"""JSON of a manifest: read strictly, every value checked where it is taken out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FormatError

__all__ = ["read_manifest_json", "size_of", "take", "take_digest", "take_optional", "write_manifest_json"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


def read_manifest_json(
    path: Path, form: str, version: int, *, hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object in ``path``, of which only ``format`` and ``version`` are checked; ``hints`` are what the error
    adds for some other formats.

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
        hint = (hints or {}).get(got, "") if isinstance(got, str) else ""
        raise FormatError(f"{path}: format must be {form!r}, got {got!r}{hint}")
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


def take_optional(value: Any, key: str, kind: type[_T], where: str) -> _T | None:
    """``value[key]``, a ``kind`` or null; it must be there.

    Raises:
        FormatError: It is missing or of another kind.
    """
    return None if key in value and value[key] is None else take(value, key, kind, where)


def take_digest(value: Any, where: str) -> str:
    """``value["sha256"]``.

    Raises:
        FormatError: It is missing, or not 64 hexadecimal digits.
    """
    digest = take(value, "sha256", str, where)
    if not _SHA256.fullmatch(digest):
        raise FormatError(f"{where}: sha256 must be 64 hexadecimal digits, got {digest!r}"[:300])
    return digest
