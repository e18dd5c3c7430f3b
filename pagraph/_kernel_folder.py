"""Where compiled kernels are kept for later processes, or why they are not.

It is separate from ``_jit``, so that code that only tells about it does not import numba.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Folders that last and that all users share, for those without a home that is theirs alone.
_SHARED = ("/var/tmp", "/tmp")
_ROOM = 1 << 20  # bytes that must fit on the disk: a batch's kernels take about as much
_ADVICE = "set XDG_CACHE_HOME to a folder that only you may write to"


@dataclass(frozen=True)
class KernelFolder:
    """The folder of compiled kernels.

    Attributes:
        path: The folder; "" if kernels do not outlive their process.
        refused: Why folders that come before it are not used.
        warning: What the user should know of a refused folder, or "".
    """

    path: str
    refused: tuple[str, ...] = ()
    warning: str = ""

    def why_not_kept(self) -> str:
        """Why kernels do not outlive their process, and what to do; "" if they do."""
        reasons = self.refused or ("there is no home folder",)
        if self.path:
            try:
                with tempfile.TemporaryFile(dir=self.path) as file:
                    file.write(bytes(_ROOM))
                return ""
            except OSError as error:
                reasons = (f"{error.strerror} in {self.path}",)
        return f"{'; '.join(reasons)}; {_ADVICE}"

    def count(self) -> int:
        """The number of compiled kernels in it."""
        return sum(1 for _ in Path(self.path).glob("**/*.nbc")) if self.path else 0


class _UnsafeError(Exception):
    """Others than this user and root could change the content of a folder."""


@functools.cache
def kernel_folder() -> KernelFolder:
    """The folder of this process, which is created if necessary.

    It is never inside the package, where files would survive an uninstall.
    """
    return _choose()


def _choose() -> KernelFolder:
    refused: list[str] = []
    danger = ""
    warns = False
    for folder, is_named in _candidates():
        try:
            _make_private(folder)
            if os.access(folder, os.W_OK):
                break
            refused.append(f"{folder} is not writable")
        except _UnsafeError as error:
            refused.append(str(error))
            danger = danger or str(error)
            warns = warns or is_named
        except OSError as error:  # such as a read-only file system, or a path through a file
            refused.append(f"{error.strerror}: {error.filename}")
    else:
        folder = ""
    warning = ""
    # A home that others may write to is nothing to mend while there is another folder.
    if danger and (warns or not folder):
        where = f"each process compiles them anew; {_ADVICE}"
        if folder:
            where = f"they are in {folder} instead"
        warning = (
            "compiled kernels must be in a folder that nobody else may write to or rename, "
            f"{danger}: {where}"
        )
    return KernelFolder(folder, tuple(refused), warning)


def _candidates() -> Iterator[tuple[str, bool]]:
    """Folders in order of preference, and whether a variable names them."""
    leaf = f"py{sys.version_info[0]}{sys.version_info[1]}-numba{_numba_version()}-{_digest()}"
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        root = os.environ.get(variable, "")
        if os.path.isabs(root):
            yield os.path.realpath(os.path.join(root, "pagraph", leaf)), True
    home = os.path.expanduser("~")
    # Folders of the system are not for us to create, not even if the user is root.
    if os.path.isabs(home) and os.path.isdir(home):
        yield os.path.realpath(os.path.join(home, ".cache", "pagraph", leaf)), False
    for root in filter(os.path.isdir, _SHARED):
        # What is below is not resolved, as anybody may have put a link there.
        yield os.path.join(os.path.realpath(root), f"pagraph-{os.getuid()}", leaf), False


def _numba_version() -> str:
    try:
        return version("numba")
    except PackageNotFoundError:  # a frozen program; numba's files name the version, too
        return ""


def _digest() -> str:
    """Digest of all kernel sources, since numba does not notice changes of kernels in other
    files."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    kernels = [
        path
        for pattern in ("_*.py", "*/_*.py", "*/*/_*.py", "*/kernels/*.py")
        for path in here.glob(pattern)
    ]
    for path in sorted(kernels):
        if path.name != "__init__.py":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _make_private(folder: str) -> None:
    """Create a folder, if necessary, that nobody but this user and root can change.

    This matters because the content is unpickled. The path has no links.

    Raises:
        _UnsafeError: Others can change it.
        OSError: It cannot be created.
    """
    is_open = True
    for part in [*reversed(Path(folder).parents), Path(folder)]:
        # Part by part, because makedirs applies the mode only to the last.
        if not os.path.lexists(part):
            with contextlib.suppress(FileExistsError):
                part.mkdir(mode=0o700)
        found = part.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(part))
        if found.st_uid not in (0, os.getuid()):
            raise _UnsafeError(f"{part} belongs to the user {found.st_uid}")
        # With the sticky bit, others can neither rename nor replace what is not theirs.
        if is_open and found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise _UnsafeError(f"others may write to {part}")
        # Everything below a folder that others cannot enter is safe.
        is_open = is_open and bool(found.st_mode & 0o011)
    # It is made so. Whoever opened it may have let others put files there.
    if found.st_mode & 0o077:
        raise _UnsafeError(f"others may enter {folder}")
