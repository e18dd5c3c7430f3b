"""Files of compiled kernels: private, whole or not at all, and verified before they are loaded."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numba
from numba.core.serialize import dumps

from ._compiling import say_damaged

_DIGEST = hashlib.sha256
_DIGEST_BYTES = _DIGEST().digest_size


class KernelFiles:
    """The compiled forms of one kernel, in place of numba's files; each form has a file.

    A file begins with the digest of its content. A full disk or a power cut may leave any bytes
    behind a name, and what numba loads from flipped ones may crash the process. So a file whose
    digest is another one counts as missing: the kernel is compiled, and the file is replaced.

    numba itself keeps an index of a kernel's files. Two processes that compile at once may then
    take one name for two forms, and a later process would run the wrong one. Here the name of a
    file follows from its form.

    Args:
        stem: Path of the files, without the ending.
        source: What changes with the kernel's source: files of another source are replaced.
    """

    def __init__(self, stem: str, source: Any) -> None:
        self._stem = stem
        self._origin = _DIGEST(repr((numba.__version__, source)).encode()).digest()

    def load(self, key: Any) -> Any:
        """The saved form of a kernel, or None; numba calls it with a signature and a processor."""
        path = self._path(key)
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            return None
        digest = content[:_DIGEST_BYTES]
        content = content[_DIGEST_BYTES:]
        if _DIGEST(content).digest() != digest:
            say_damaged(path)
            return None
        if content[:_DIGEST_BYTES] != self._origin:
            return None
        saved_key, form = pickle.loads(content[_DIGEST_BYTES:])
        return form if saved_key == key else None

    def save(self, key: Any, form: Any) -> None:
        """Save a form in place of an earlier one."""
        content = self._origin + dumps((key, form))
        with new_private_file(self._path(key)) as file:
            file.write(_DIGEST(content).digest() + content)

    def _path(self, key: Any) -> str:
        return f"{self._stem}.{_DIGEST(repr(key).encode()).hexdigest()[:16]}.nbc"


@contextlib.contextmanager
def new_private_file(path: str) -> Iterator[IO[bytes]]:
    """Write a file, whole or not at all, which nobody else may read or write."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
