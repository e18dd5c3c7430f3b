"""MadeOfFields: what is made of a CSC's edges and a field's values, once, and kept as long as both live."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from ..field_version import FieldVersion
from ..fork_lock import ForkLock

if TYPE_CHECKING:
    from torch import Tensor

    from ..csc import CSC

__all__ = ["MadeOfFields"]

T = TypeVar("T")
_MOST_VERSIONS = 4


class MadeOfFields(Generic[T]):
    """Remembers what was made of the last few fields of each CSC; safe from any number of threads.

    Values that were written in place or replaced are made something of anew; those of a tensor made in inference mode,
    whose writes cannot be seen, at every call.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._versions: weakref.WeakKeyDictionary[CSC, _Versions[T]] = weakref.WeakKeyDictionary()

    def get(self, csc: CSC, values: Tensor, make: Callable[[], T], *, kind: str = "") -> T:
        """What ``make`` makes of these values; whoever asks while it is being made waits for it.

        Args:
            csc: The edges.
            values: The field.
            make: Makes it; must not keep the CSC alive in what it returns.
            kind: What is made, where of the same values different things are.
        """
        with self._lock:
            versions = self._versions.setdefault(csc, _Versions())
        return versions.get(kind, values, make)


class _Versions(Generic[T]):
    """What was made for one CSC, the last one first."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._known: list[tuple[str, FieldVersion, T]] = []

    def get(self, kind: str, values: Tensor, make: Callable[[], T]) -> T:
        version = FieldVersion.of(values)
        with self._lock:
            # What was written over or has gone will not be asked for again.
            self._known = [known for known in self._known if _may_return(known[1], version)]
            for known_kind, known, made in self._known:
                if known_kind == kind and known == version:
                    return made
            fresh = make()
            self._known = [(kind, version, fresh), *self._known][:_MOST_VERSIONS]
            return fresh


def _may_return(known: FieldVersion, now: FieldVersion) -> bool:
    storage = known.storage()
    if storage is None:
        return False
    return known == now or storage is not now.storage() or known.layout != now.layout
