"""A framework's loader class whose objects become ours when they are made, where ours can do it.

The class itself stays: it is what scripts and libraries import, subclass and test for, whenever
they imported it. Only what its constructor leaves behind is an object of our subclass of it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from .ledger import OURS, THEIRS, Key, Ledger, made_at

_MARK = "_pagraph_replaces"
# Of an error in a table.
_LONGEST = 90


class NotOurs(Exception):
    """Why a loader stays theirs, for the table."""


@dataclass(frozen=True)
class Settings:
    """What ``pagraph run`` was asked for.

    Attributes:
        theirs: Replace nothing.
        cache, memory, num_workers: For our loaders that are not given them by the script.
    """

    theirs: bool = False
    cache: str | None = None
    memory: str | None = None
    num_workers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As arguments."""
        return dict(vars(self))


@dataclass(frozen=True)
class Offer:
    """What we have in place of a class.

    Attributes:
        ours: Our class, a subclass of theirs; imported when it is called, and not before.
        arguments: Turn a call of theirs into one of ours; raises ``NotOurs``.
        note: What of a loader that is ours is not; "" for nothing.
        is_loader: Whether it is iterated, and so belongs into the table.
    """

    ours: Callable[[], type]
    arguments: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    note: Callable[[Any], str] = lambda loader: ""
    is_loader: bool = True


class Replacer:
    """Has classes make ours; all that it needs to undo it.

    Args:
        settings: See there.
        ledger: Is told of each loader.
        on_ours: Called with each loader that is ours.
    """

    def __init__(
        self, settings: Settings, ledger: Ledger, on_ours: Callable[[Any], object] | None = None
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._on_ours = on_ours
        self._undo: list[Callable[[], object]] = []
        # Objects that this thread's constructors are at: theirs call each other by `super()`.
        self._making = threading.local()

    def cover(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module, until :meth:`undo`."""
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back; loaders that live stay as they are."""
        while self._undo:
            self._undo.pop()()

    def offer(self, theirs: type, offer: Offer) -> None:
        """Have the constructor of a class make ours."""
        if _MARK in vars(theirs):  # its module was imported anew
            return
        original: Any = theirs.__init__  # type: ignore[misc]

        @functools.wraps(original)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            making = vars(self._making).setdefault("objects", [])
            if any(other is loader for other in making):
                original(loader, *args, **kwargs)
                return
            making.append(loader)
            try:
                self._make(loader, original, args, kwargs)
            finally:
                making.pop()

        self.cover(theirs, "__init__", __init__)
        self.cover(theirs, _MARK, offer)

    def _make(
        self, loader: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Make ours of an object, or what it is."""
        kind = type(loader)
        if is_of_pagraph(kind):  # by the script's own import, or by us
            original(loader, *args, **kwargs)
            return
        offer: Offer = getattr(kind, _MARK)
        before = dict(vars(loader))
        place = made_at(loader)
        why: str | None = "--theirs"
        if not self.settings.theirs:
            why = self._try(loader, offer, args, kwargs)
        if why is None:
            if not offer.is_loader:
                return

            def give_up(error: BaseException) -> bool:
                _back(loader_of(), kind, before)
                self._theirs(loader_of(), original, args, kwargs, place, reason(error))
                return True

            # Not the loader itself: what would make it again must not keep it.
            loader_of = weakref.ref(loader)
            note = ""
            # What is only for the table and the timeline must not be an error of the script's.
            with contextlib.suppress(Exception):
                note = offer.note(loader)
            self._ledger.made(loader, Key(kind.__name__, place, OURS, note), give_up)
            with contextlib.suppress(Exception):
                if self._on_ours is not None:
                    self._on_ours(loader)
            return
        _back(loader, kind, before)
        if offer.is_loader:
            self._theirs(loader, original, args, kwargs, place, why)
        else:
            original(loader, *args, **kwargs)

    def _theirs(
        self,
        loader: Any,
        original: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        place: str,
        why: str,
    ) -> None:
        # Outside of any `except`: the script sees their error, and not ours behind it.
        making = vars(self._making).setdefault("objects", [])
        making.append(loader)
        try:
            original(loader, *args, **kwargs)
        finally:
            making.pop()
        self._ledger.made(loader, Key(type(loader).__name__, place, THEIRS, why))

    def _try(
        self, loader: Any, offer: Offer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """Make ours; None, or why it cannot be."""
        try:
            if offer.arguments is not None:
                args, kwargs = offer.arguments(loader, *args, **kwargs)
                # Lightning notes what a loader was made of, to make it again for several processes.
                # Of ours the arguments are others, and it finds them in the attributes.
                for name in [name for name in vars(loader) if name.startswith("__pl_saved")]:
                    del vars(loader)[name]
            ours = offer.ours()
            # Theirs come first in what a subclass overrides; then ours; then what is theirs.
            kind: Any = type(loader)
            object.__setattr__(loader, "__class__", _mixed(kind, ours))
            init: Any = ours.__init__  # type: ignore[misc]
            before = set(vars(loader))
            init(loader, *args, **(self._defaults(offer) | kwargs))
            # For a pickle: all others are the subclass's.
            vars(loader)[_OWN] = frozenset(vars(loader)) - before | {_OWN}
        except MemoryError:
            raise
        except Exception as error:
            return reason(error)
        return None

    def _defaults(self, offer: Offer) -> dict[str, Any]:
        if not offer.is_loader:
            return {}
        chosen = self.settings.to_json()
        del chosen["theirs"]
        return {name: value for name, value in chosen.items() if value is not None}


def _back(loader: Any, kind: type, before: Mapping[str, Any]) -> None:
    """Make an object what it was before our constructor."""
    object.__setattr__(loader, "__class__", kind)
    attributes = vars(loader)
    attributes.clear()
    attributes.update(before)


def reason(error: BaseException) -> str:
    """An error as a reason in a table: its first sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, NotOurs | ValueError | TypeError | NotImplementedError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def is_of_pagraph(kind: type) -> bool:
    """Whether a class is one of ours, or made of one."""
    return any(base.__module__.partition(".")[0] == "pagraph" for base in kind.__mro__)


@functools.cache
def _mixed(kind: Any, ours: Any) -> type:
    """Our class for objects of a class of theirs, or of a subclass of it.

    Python lets an object change to a class only where both inherit their layout from the same
    class, which is that of the first base. Ours have another one first, so one is put before it:
    a subclass itself, else an empty class over torch's loader.

    Raises:
        TypeError: The subclass has other bases that do not go with ours.
    """
    names: dict[str, Any] = {name: getattr(kind, name) for name in _NAMED}
    # A subclass that says itself how it is pickled goes on doing so.
    if _pickles_as_any(kind):
        names |= {"__reduce_ex__": _reduced, "_pagraph_made_of": (kind, ours)}
    if _MARK not in vars(kind) and any(_MARK in vars(base) for base in kind.__mro__):
        return type(kind.__name__, (kind, ours), names)
    if issubclass(ours.__base__ or object, kind):
        return cast(type, ours)
    return type(kind.__name__, (_layout(kind), ours), names)


_NAMED = ("__module__", "__qualname__", "__doc__")


@functools.cache
def _layout(kind: type) -> type:
    """An empty class that lies in memory as ``kind`` does."""
    root = next(base for base in kind.__mro__ if "__dict__" in vars(base))
    return type(root.__name__, (root,), {"__module__": root.__module__})


def _pickles_as_any(kind: type) -> bool:
    names = ("__reduce_ex__", "__reduce__")
    return all(getattr(kind, name) is getattr(object, name) for name in names)


_OWN = "_pagraph_own"


def _reduced(loader: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle an object as one of ours, with what a subclass added to it."""
    kind, ours = loader._pagraph_made_of
    subclass = None if _MARK in vars(kind) else kind
    if ours.__reduce__ is object.__reduce__:  # by its attributes, all of them
        return _unpickled, (subclass, ours), loader.__getstate__()
    make, (_, *rest) = ours.__reduce__(loader)
    attributes = vars(loader)
    own = attributes.get(_OWN, ())
    added = {name: value for name, value in attributes.items() if name not in own}
    return _remade, (subclass, ours, make, rest, added)


def _unpickled(subclass: type | None, ours: type) -> Any:
    return object.__new__(ours if subclass is None else _mixed_anew(subclass, ours))


def _remade(
    subclass: type | None,
    ours: Any,
    make: Callable[..., Any],
    rest: list[Any],
    added: dict[str, Any],
) -> Any:
    kind = ours if subclass is None else _mixed_anew(subclass, ours)

    def construct(**arguments: Any) -> Any:
        # Our constructor and not the subclass's: the arguments are those that ours was given.
        loader = object.__new__(kind)
        ours.__init__(loader, **arguments)
        return loader

    loader = make(construct, *rest)
    vars(loader).update(added)
    return loader


def _mixed_anew(kind: type, ours: type) -> type:
    """The mixed class in a process where nothing may be replaced."""
    if any(_MARK in vars(base) for base in kind.__mro__):
        return _mixed(kind, ours)
    return type(kind.__name__, (kind, ours), {"__module__": kind.__module__})
