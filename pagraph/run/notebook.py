"""``%load_ext pagraph``: replaces and measures a notebook's loaders from then on."""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import Any

from .frameworks import ImportHook, hook
from .ledger import Ledger
from .replacing import Replacer, Settings
from .summary import Summary

_USAGE = "%pagraph shows the loaders; %pagraph ours, theirs or reset applies from now on"


class Notebook:
    """State of the extension while it is loaded."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._replacer = Replacer(Settings(), self._ledger)
        self._hook: ImportHook = hook(self._replacer, self._ledger)
        self._hook.install()

    @property
    def summary(self) -> Summary:
        """The loaders seen so far."""
        settings = self._replacer.settings
        return Summary.of([self._ledger.snapshot()], theirs=settings.theirs, name="this notebook")

    def magic(self, line: str) -> Summary | None:
        """``%pagraph [ours|theirs|reset]``.

        Raises:
            UsageError: There is another word. IPython shows the error as one line.
        """
        words = shlex.split(line)
        if not words:
            return self.summary
        if words == ["reset"]:
            self._ledger.reset()
        elif words in (["ours"], ["theirs"]):
            # Applies to loaders that are made from now on.
            self._replacer.settings = Settings(theirs=words == ["theirs"])
        else:
            error = import_module("IPython.core.error").UsageError
            raise error(f"%pagraph takes ours, theirs, reset or nothing, got {line!r}")
        return None

    def end(self) -> None:
        """Stop replacing and measuring. Existing loaders stay what they are."""
        self._hook.remove()
        self._replacer.undo()


_loaded: dict[int, Notebook] = {}


def load(shell: Any) -> None:
    """Load the extension into IPython's ``shell``, unless it is loaded."""
    if id(shell) in _loaded:
        return
    notebook = Notebook()
    _loaded[id(shell)] = notebook
    magic: Any = notebook.magic
    shell.register_magic_function(_named(magic), magic_kind="line", magic_name="pagraph")


def _named(magic: Any) -> Any:
    def pagraph(line: str) -> Any:
        return magic(line)

    pagraph.__doc__ = _USAGE
    return pagraph


def unload(shell: Any) -> None:
    """Unload the extension."""
    notebook = _loaded.pop(id(shell), None)
    if notebook is not None:
        notebook.end()
        shell.magics_manager.magics["line"].pop("pagraph", None)
