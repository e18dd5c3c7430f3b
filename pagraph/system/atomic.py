"""Atomic writing of files and folders: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .checks import StrPath

_NEW_SECONDS = 60  # more than a writer takes from creating its sibling to locking it
_UNFINISHED = re.compile(r"(?s)\..+\.[0-9a-f]{8}\.partial")


def check_absent(folder: StrPath, *, name: str = "folder") -> Path:
    """The path of a folder that may be created; called before long work starts.

    Args:
        folder: The path.
        name: Name of the argument, for errors.

    Raises:
        FileExistsError: Something is at that path already, even an empty folder.
    """
    path = Path(folder)
    if os.path.lexists(path):
        raise FileExistsError(f"{name} must not exist yet, got {str(path)!r}")
    return path


def is_unfinished(folder: StrPath) -> bool:
    """Whether ``folder`` is, or is inside, a temporary folder of :func:`new_folder`.

    Its writer is still at work, or was killed.
    """
    return any(_UNFINISHED.fullmatch(name) for name in Path(os.path.abspath(folder)).parts)


@contextlib.contextmanager
def new_folder(folder: StrPath) -> Iterator[Path]:
    """Create ``folder`` with all its files in one step.

    Yields a hidden sibling to write into. When the block ends, its files are flushed to disk and it
    is renamed to ``folder``. If the block raises, it is removed. A killed process leaves the hidden
    sibling: no reader of this package opens it, and the next writer of ``folder`` removes it.
    Parent folders are created.

    Raises:
        FileExistsError: Something is at that path already.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "new"
        >>> with new_folder(target) as part:
        ...     _ = (part / "a.txt").write_text("hello")
        ...     before = target.exists()
        >>> before, (target / "a.txt").read_text()
        (False, 'hello')
    """
    target = check_absent(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    part = _part_of(target)
    try:
        part.mkdir()  # in here, as Ctrl-C may come before this call returns
        with _named(folder), _opened(part) as descriptor:
            # The lock tells other processes that the writer is alive. On file systems without
            # locks, leftovers must be removed by hand.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield part
            _sync_tree(part)
            check_absent(target)
            os.rename(part, target)
    except BaseException:
        # Also on Ctrl-C, nothing half-written may be left.
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync(target.parent)


def write_json(path: StrPath, value: Any) -> None:
    """Write ``value`` as JSON by :func:`new_file`; NaN and infinities become ``null``."""
    text = json.dumps(_without_nan(value), indent=2, allow_nan=False) + "\n"
    with new_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def new_file(path: StrPath) -> Iterator[IO[bytes]]:
    """Write a file atomically: a reader sees the old file or the new one.

    Yields a hidden sibling, open for writing. When the block ends, it is flushed to disk and
    replaces ``path``. If the block raises, it is removed. A killed process leaves it, and the next
    writer of ``path`` removes it. If ``path`` is not a regular file, such as ``/dev/stdout``, it is
    written directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with _named(path), open(target, "wb") as file:
            yield file
        return
    _remove_leftovers(target)
    part = _part_of(target)
    try:
        with _named(path), open(part, "xb") as file:
            with contextlib.suppress(OSError):  # as for a folder
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
            # Renamed while locked, since another writer takes an unlocked sibling for a leftover.
            os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def check_writable(name: str, path: StrPath) -> Path:
    """The absolute path of a file that :func:`new_file` can write; called before long work starts.

    Creates and removes a hidden sibling, since only the system knows what may be written.

    Args:
        name: Name of the argument, for errors.
        path: The file, which may exist.

    Raises:
        IsADirectoryError: There is a folder at that path.
        FileNotFoundError: Its folder does not exist.
        NotADirectoryError: Its parent is not a folder.
        PermissionError: The user may not write there.
        OSError: Writing fails, for example in a read-only file system.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{name} must be a file, got the folder {str(path)!r}")
    if target.exists() and not target.is_file():
        if not os.access(target, os.W_OK):
            raise PermissionError(f"{name} must be writable, got {str(path)!r}")
        return target
    part = _part_of(target)
    try:
        part.touch(exist_ok=False)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise type(error)(f"{name} must be in a folder that exists, got {str(path)!r}") from None
    except OSError as error:
        raise type(error)(f"{name} must be writable, got {str(path)!r}: {error.strerror}") from None
    part.unlink()
    return target


def _part_of(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


@contextlib.contextmanager
def _named(path: StrPath) -> Iterator[None]:
    """Add the path to errors that name no file, such as a full disk, which write() reports.

    ``torch.save`` raises a RuntimeError for it, whose context is the error of write().
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError) and cause.errno is not None and cause.filename is None:
            cause.filename = os.fspath(path)
            raise cause from None
        raise


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_leftovers(target: Path) -> None:
    """Remove what killed writers of ``target`` left; siblings of living writers are locked or
    new."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            is_new = time.time() - part.lstat().st_mtime < _NEW_SECONDS
            plain = not part.is_symlink() and (part.is_dir() or part.is_file())
            if not plain or not is_unfinished(part) or (is_new and _is_empty(part)):
                continue
            with _opened(part) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if part.is_dir():
                    shutil.rmtree(part, ignore_errors=True)
                else:
                    part.unlink()


def _is_empty(part: Path) -> bool:
    return not any(part.iterdir()) if part.is_dir() else part.stat().st_size == 0


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _sync(path: Path) -> None:
    with _opened(path) as descriptor:
        os.fsync(descriptor)
