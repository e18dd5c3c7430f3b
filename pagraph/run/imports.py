"""ImportHook: calls functions when a module is imported, whichever code imports it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Found = Callable[[ModuleSpec], object]
Executed = Callable[[ModuleType], object]


class ImportHook(MetaPathFinder):
    """A finder that asks the other finders, and calls functions around a module's execution.

    Args:
        before: Module to a function to call when its code is found and has not run.
        after: Module to a function to call when its code has run; at once if it has already.
    """

    def __init__(self, before: Mapping[str, Found], after: Mapping[str, Executed]) -> None:
        self._before = before
        self._after = dict(after)
        # Names that this thread is looking for. Other finders may import modules themselves, and so
        # come back here.
        self._looking = threading.local()

    def wait_for(self, name: str, call: Executed) -> None:
        """Add a function to ``after``; only before :meth:`install`."""
        self._after[name] = call

    def install(self) -> None:
        """Become the first finder; modules that are already imported count as imported now."""
        sys.meta_path.insert(0, self)
        for name, call in self._after.items():
            module = sys.modules.get(name)
            # Not one that is still being imported, whose classes may be missing.
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                call(module)

    def remove(self) -> None:
        """Stop calling functions at imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that has a function, with a loader that calls it."""
        if fullname not in self._after and fullname not in self._before:
            return None
        looking = vars(self._looking).setdefault("names", set())
        if fullname in looking:
            return None
        looking.add(fullname)
        try:
            spec = self._of_others(fullname, path, target)
        finally:
            looking.discard(fullname)
        if spec is None:
            return None
        if fullname in self._before:
            self._before[fullname](spec)
        if fullname in self._after:
            _call_after(spec, self._after[fullname])
        return spec

    def _of_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def _call_after(spec: ModuleSpec, call: Executed) -> None:
    """Have the spec's loader make a call when the module's code has run.

    Only the loader's method is replaced, so that code that asks the loader for sources or resources
    still finds its type.
    """
    loader: Any = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        # Restored first, as a loader may serve several modules, or this one again at a reload.
        del loader.exec_module
        execute(module)
        call(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without attributes: its module is not changed
        return
