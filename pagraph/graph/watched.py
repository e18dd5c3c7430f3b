"""Files behind tensors, whoever mapped them: whether they were written, shortened or replaced."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ..errors import FormatError
from ..system.memory import mapped_file
from .mapped import MappedFile, check_again, identity_of

if TYPE_CHECKING:
    from torch import Tensor


class WatchedFile:
    """A file that a tensor is mapped from, looked at when an epoch begins.

    A file of a graph folder must keep its layout; of one that a user mapped, nobody knows it.

    Args:
        path: The file.
        on_disk: Whether it is on a disk, and not in memory (``/dev/shm``, any tmpfs).
        mapping: The mapping, if it is ours.

    Attributes:
        written: How often it was found written since.
    """

    def __init__(self, path: str, on_disk: bool, mapping: MappedFile | None) -> None:
        self.path = path
        self.on_disk = on_disk
        self.written = 0
        # Weak, so that replaced values are freed.
        self._mapping = None if mapping is None else weakref.ref(mapping)
        self._opened = identity_of(path) if mapping is None else mapping.seen
        self._last = self._opened

    def look(self) -> None:
        """Count it as written if its size or its time of modification is another."""
        now = identity_of(self.path)
        # The mapping still has the rows of a file that was removed or replaced.
        if now[:2] == self._opened[:2] and now != self._last:
            self._last = now
            self.written += 1
            written_files.add(self.path)

    def check_size(self) -> None:
        """Raise FormatError if it was shortened; takes 2 us.

        Called before pages are touched: touching one beyond the file's end kills the process.
        """
        now = identity_of(self.path)
        if now[:2] == self._opened[:2] and now[2:3] < self._opened[2:3]:
            raise FormatError(
                f"{self.path} was shortened while it was open: {now[2]} of {self._opened[2]} bytes "
                "are left"
            )

    def check(self) -> None:
        """Raise FormatError if its rows can no longer be read.

        It was shortened; or it is a file of ours that was replaced, or whose array was.
        """
        self.check_size()
        mapping = None if self._mapping is None else self._mapping()
        now = identity_of(self.path)
        if mapping is None or now in ((), self._opened):
            return
        if now[:2] != self._opened[:2]:
            raise FormatError(
                f"{self.path} must not be replaced while it is open: open the graph again"
            )
        if now[2] != self._opened[2] or not mapping.has_same_header():
            raise FormatError(
                f"{self.path} must keep its dtype and shape while it is open: open the graph again"
            )


# By storage, as a storage never moves to another file. None: it is in plain memory. Without a lock,
# which forked workers could find held: a look-up, an insertion and `keyrefs` are atomic.
_known: weakref.WeakKeyDictionary[torch.UntypedStorage, WatchedFile | None] = (
    weakref.WeakKeyDictionary()
)


written_files: set[str] = set()
"""Paths of files that were found written; none in most processes."""


def writes_of(storage: torch.UntypedStorage) -> int:
    """How often the file behind a storage was found written."""
    file = _known.get(storage)
    return 0 if file is None else file.written


def file_behind(tensor: Tensor) -> WatchedFile | None:
    """The file that a strided CPU tensor is mapped from; None if it is in memory, or unknown."""
    storage = tensor.untyped_storage()
    if storage in _known:
        return _known[storage]
    found = None
    # What torch allocated can be resized. To look an address up takes a millisecond.
    if tensor.numel() and not storage.resizable():
        shown = mapped_file(tensor.data_ptr())
        if shown is not None:
            mapping = MappedFile.of(tensor)
            path = shown.path if mapping is None else mapping.path
            found = WatchedFile(path, shown.on_disk, mapping)
    return _known.setdefault(storage, found)


def look_at_files() -> None:
    """Note which files were written since the last look, and have edges check theirs again.

    Takes 2 us a file. Called when an epoch begins.
    """
    check_again()
    for held in _known.keyrefs():
        storage = held()
        file = None if storage is None else _known.get(storage)
        if file is not None:
            file.look()
