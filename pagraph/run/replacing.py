"""Replacer: objects of a framework's loader class become ours on construction, where possible.

Scripts and libraries import, subclass and test for the class itself, so it stays. Only its
constructor is replaced, and makes the object one of our subclass.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..system.units import escaped
from .ledger import CANNOT, OURS, THEIRS, Key, Ledger, made_at
from .random_states import RandomStates
from .whose import is_about_data

_MARK = "_pagraph_replaces"
_LONGEST = 90  # characters of an error in the table


class NotOurs(NotImplementedError):
    """The reason why a loader stays theirs, for the table."""


@dataclass(frozen=True)
class Settings:
    """Options of ``pagraph run``.

    Attributes:
        theirs: Replace only what cannot run here.
        cache, memory, num_workers: For our loaders, unless the script sets them.
    """

    theirs: bool = False
    cache: str | None = None
    memory: str | None = None
    num_workers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The settings as arguments of this class."""
        return dict(vars(self))


@dataclass(frozen=True)
class Offer:
    """Our replacement of a class.

    Attributes:
        ours: Returns our class, a subclass of theirs, and imports it only then.
        arguments: Turns arguments of theirs into ours, or raises ``NotOurs``.
        lacks: What theirs needs for these arguments and is not installed, or "".
        note: What of a replaced loader is still theirs, or "".
        is_loader: Whether it is iterated, and so belongs into the table.
    """

    ours: Callable[[], type]
    arguments: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    lacks: Callable[..., str] = lambda *args, **kwargs: ""
    note: Callable[[Any], str] = lambda loader: ""
    is_loader: bool = True


class Replacer:
    """Makes constructors of classes produce ours, until :meth:`undo`.

    Args:
        settings: Options of ``pagraph run``.
        ledger: Gets each loader.
        on_ours: Called with each replaced loader.
    """

    def __init__(
        self, settings: Settings, ledger: Ledger, on_ours: Callable[[Any], object] | None = None
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._on_ours = on_ours
        self._undo: list[Callable[[], object]] = []
        # Objects under construction in this thread. Constructors call each other by `super()`, and
        # only the outermost is replaced.
        self._making = threading.local()

    def cover(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class or module, until :meth:`undo`."""
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back. Existing loaders stay as they are."""
        while self._undo:
            self._undo.pop()()

    def offer(self, theirs: type, offer: Offer) -> None:
        """Have the constructor of a class make ours."""
        if _MARK in vars(theirs):  # its module was reloaded
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
        """Construct an object as ours, or else as theirs; raises what is wrong with the data."""
        kind = type(loader)
        if is_of_pagraph(kind):  # by the script's own import, or by us
            original(loader, *args, **kwargs)
            return
        offer: Offer = getattr(kind, _MARK)
        before = dict(vars(loader))
        place = made_at(loader)
        why: str | None = "--theirs"
        # Asked before anything is made: an error of theirs may come after random numbers are drawn.
        lacks = offer.lacks(loader, *args, **kwargs) if self.settings.theirs else ""
        if lacks or not self.settings.theirs:
            states = RandomStates(loader, kwargs)
            try:
                why = self._try(loader, offer, args, kwargs)
            except BaseException:
                _back(loader, kind, before)
                raise
            if why is not None:
                states.put_back()
        if why is None:
            if not offer.is_loader and not lacks:
                return

            def give_up(error: BaseException) -> bool:
                _back(loader_of(), kind, before)
                self._theirs(loader_of(), original, args, kwargs, place, reason(error))
                return True

            # A weak reference, as `give_up` must not keep the loader alive.
            loader_of = weakref.ref(loader)
            note = f"{CANNOT}{lacks}" if lacks else ""
            # What only the table and the timeline need must not raise an error in the script.
            with contextlib.suppress(Exception):
                note = note or offer.note(loader)
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
        # Not in an `except`, so that the script sees their error without ours as its context.
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
        """Construct ours; returns None, or the reason why that is impossible.

        Raises what is wrong with the data: theirs would not see it, and crash in its first batch.
        """
        try:
            if offer.arguments is not None:
                args, kwargs = offer.arguments(loader, *args, **kwargs)
                # Lightning stores a loader's arguments, to make it again in several processes. Ours
                # has other arguments, and Lightning finds these in the attributes.
                for name in [name for name in vars(loader) if name.startswith("__pl_saved")]:
                    del vars(loader)[name]
            ours = offer.ours()
            # A script's subclass overrides ours, and ours overrides theirs.
            kind: Any = type(loader)
            object.__setattr__(loader, "__class__", _mixed(kind, ours))
            init: Any = ours.__init__  # type: ignore[misc]
            before = set(vars(loader))
            init(loader, *args, **(self._defaults(offer) | kwargs))
            # For pickling: all other attributes are the subclass's.
            vars(loader)[_OWN] = frozenset(vars(loader)) - before | {_OWN}
        except MemoryError:
            raise
        except Exception as error:
            if is_about_data(error):
                raise
            return reason(error)
        return None

    def _defaults(self, offer: Offer) -> dict[str, Any]:
        if not offer.is_loader:
            return {}
        chosen = self.settings.to_json()
        del chosen["theirs"]
        return {name: value for name, value in chosen.items() if value is not None}


def _back(loader: Any, kind: type, before: Mapping[str, Any]) -> None:
    """Restore an object's class and attributes from before our constructor."""
    object.__setattr__(loader, "__class__", kind)
    attributes = vars(loader)
    attributes.clear()
    attributes.update(before)


def reason(error: BaseException) -> str:
    """An error as a short reason for the table."""
    if isinstance(error, NotOurs | ValueError | TypeError | NotImplementedError):
        return in_short(str(error)) or type(error).__name__
    return error_in_short(error)


def error_in_short(error: BaseException) -> str:
    """Type and message of an error, as in the last line of its traceback."""
    text = ""
    with contextlib.suppress(Exception):  # of the error's own __str__
        text = str(error)
    return in_short(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def in_short(text: str) -> str:
    """A text as one line for the table."""
    text = escaped(" ".join(text.split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def is_of_pagraph(kind: type) -> bool:
    """Whether a class is one of ours, or a subclass of one."""
    return any(base.__module__.partition(".")[0] == "pagraph" for base in kind.__mro__)


@functools.cache
def _mixed(kind: Any, ours: Any) -> type:
    """Our class for objects of a class of theirs, or of a script's subclass of it.

    Python lets an object change its class only if both classes inherit their memory layout from the
    same class, by their first base. Ours has another first base, so one is put before it: the
    subclass itself, or else an empty class with torch's layout.

    Raises:
        TypeError: The subclass has bases that cannot be combined with ours.
    """
    names: dict[str, Any] = {name: getattr(kind, name) for name in _NAMED}
    # A subclass that defines how it is pickled keeps doing so.
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
    """An empty class with the memory layout of ``kind``."""
    root = next(base for base in kind.__mro__ if "__dict__" in vars(base))
    return type(root.__name__, (root,), {"__module__": root.__module__})


def _pickles_as_any(kind: type) -> bool:
    names = ("__reduce_ex__", "__reduce__")
    return all(getattr(kind, name) is getattr(object, name) for name in names)


_OWN = "_pagraph_own"


def _reduced(loader: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle an object as one of ours, with the attributes that a subclass added."""
    kind, ours = loader._pagraph_made_of
    subclass = None if _MARK in vars(kind) else kind
    if ours.__reduce__ is object.__reduce__:  # by all its attributes
        return _unpickled, (subclass, ours), loader.__getstate__()
    make, (_, *rest) = ours.__reduce__(loader)
    attributes = vars(loader)
    own = attributes.get(_OWN, ())
    added = {name: value for name, value in attributes.items() if name not in own}
    return _remade, (subclass, ours, make, rest, added)


def _unpickled(subclass: type | None, ours: type) -> Any:
    return object.__new__(_unpickled_class(subclass, ours))


def _remade(
    subclass: type | None,
    ours: Any,
    make: Callable[..., Any],
    rest: list[Any],
    added: dict[str, Any],
) -> Any:
    kind = _unpickled_class(subclass, ours)

    def construct(**arguments: Any) -> Any:
        # Not the subclass's constructor: these are the arguments that ours was given.
        loader: Any = object.__new__(kind)
        ours.__init__(loader, **arguments)
        return loader

    loader = make(construct, *rest)
    vars(loader).update(added)
    return loader


def _unpickled_class(subclass: type | None, ours: type) -> type:
    """Our class, with a script's subclass before it; also in a process that replaces nothing."""
    if subclass is None:
        return ours
    if any(_MARK in vars(base) for base in subclass.__mro__):
        return _mixed(subclass, ours)
    return type(subclass.__name__, (subclass, ours), {"__module__": subclass.__module__})
