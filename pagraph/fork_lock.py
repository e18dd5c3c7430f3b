"""ForkLock: a lock that a forked child never finds held by a thread that only its parent has."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["ForkLock"]


class ForkLock:
    """A lock for ``with``; do not fork inside. For what samplers share, which PyG's and torch's workers call as well.

    In a child it is free. So what it guards must be sound wherever a thread may be cut off: change one reference last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _alive.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_alive: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in _alive:
        lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
