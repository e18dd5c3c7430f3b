"""Locks of objects that belong to the user, and may not be safe from several threads."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["lock_of"]

_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def lock_of(item: Any) -> threading.RLock:
    """The lock of an object, the same for all loaders; a new one where it cannot be told apart."""
    with _guard:
        try:
            return _locks.setdefault(item, threading.RLock())
        except TypeError:  # not hashable, or no weak references
            return threading.RLock()
