"""A process whose script is watched: from the first hook to the table at its very end.

The table has to come however the script ends. At an ordinary end, or Ctrl-C, this process prints
it. At ``os._exit``, a signal or a crash it cannot, and may not be kept from dying: a second
process, forked before the script begins, waits for that and prints what was last written.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .frameworks import hook
from .imports import ImportHook
from .ledger import Ledger
from .replacing import Replacer, Settings
from .summary import Summary

# To `pagraph run --compare`, which starts others: where they leave their numbers.
NUMBERS = "PAGRAPH_RUN_NUMBERS"


@dataclass(frozen=True)
class Outputs:
    """What comes of a session besides the table.

    Attributes:
        report: An HTML page.
        timeline: A trace of our loaders.
    """

    report: Path | None = None
    timeline: Path | None = None


@dataclass(eq=False)
class Session:
    """Watches the loaders of this process, and of those that it spawns or forks."""

    name: str
    settings: Settings
    outputs: Outputs = field(default_factory=Outputs)
    # Killed by SIGINT at the very end, as Python is by an unhandled KeyboardInterrupt.
    interrupted: bool = False
    _folder: Path = field(init=False)
    _ledger: Ledger = field(init=False)
    _tracer: Any = field(default=None, init=False)
    _done: int = field(default=-1, init=False)
    _pid: int = field(default_factory=os.getpid, init=False)

    def begin(self) -> None:
        """Watch from now on, until the process ends; before the script imports anything."""
        self._folder = Path(tempfile.mkdtemp(prefix="pagraph-run-"))
        self._done = _beside(self)
        self._ledger = Ledger(self._folder)
        replacer = Replacer(self.settings, self._ledger, self._trace)
        watch(replacer, self._ledger, self._folder)
        # The first to be registered is the last to be called: after the script's own handlers.
        atexit.register(self._finish)

    def _trace(self, loader: Any) -> None:
        if self.outputs.timeline is None or os.getpid() != self._pid:
            return
        from ..stats.trace import Tracer

        if self._tracer is None:
            self._tracer = Tracer(self.outputs.timeline)
        number = len(self._ledger.snapshot(looks=False)["lines"])
        loader.trace(self._tracer, label=f"{type(loader).__name__} {number}")

    def _finish(self) -> None:
        if os.getpid() != self._pid:  # a forked process that ends as this one would
            return
        with contextlib.suppress(Exception):
            # A loader that still works ahead must not be cut off by the file.
            if self._tracer is not None:
                self._tracer.stop()
        own = self._ledger.snapshot()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        show(self, own)
        with contextlib.suppress(OSError):
            os.write(self._done, b"x")
        if self.interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(self._pid, signal.SIGINT)

    def parts(self, own: dict[str, Any] | None) -> list[dict[str, Any]]:
        """What the processes wrote, the script's own first; ``own`` in place of what it wrote."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        first = own or found.get(str(self._pid))
        found.pop(str(self._pid), None)
        others = [part for part in found.values() if part["lines"]]
        return others if first is None else [first, *others]

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)


def watch(replacer: Replacer, ledger: Ledger, folder: Path) -> ImportHook:
    """Install the hook, and take it along into spawned processes."""
    imports = hook(replacer, ledger)
    child = _InChild(folder, replacer.settings)

    def spawning(module: ModuleType) -> None:
        original: Any = vars(module)["get_preparation_data"]

        def get_preparation_data(name: str) -> dict[str, Any]:
            # The child passes over keys that it does not know; by then this one has done its work.
            return {**original(name), "pagraph": child}

        replacer.cover(module, "get_preparation_data", get_preparation_data)

    imports.wait_for("multiprocessing.spawn", spawning)
    imports.install()
    return imports


@dataclass(frozen=True)
class _InChild:
    """Unpickled in a spawned process before its main module runs: watches there, too."""

    folder: Path
    settings: Settings

    def __reduce__(self) -> tuple[Any, ...]:
        # As text for `exec`: where pagraph cannot be imported, the child must run all the same.
        code = (
            "try:\n"
            "    from pagraph.run.session import in_child\n"
            f"    in_child({str(self.folder)!r}, {self.settings.to_json()!r})\n"
            "except Exception:\n"
            "    pass\n"
        )
        return exec, (code,)


def in_child(folder: str, settings: dict[str, Any]) -> None:
    """Watch a spawned process; its numbers go to the one that spawned it."""
    ledger = Ledger(Path(folder), "spawned")
    watch(Replacer(Settings(**settings), ledger), ledger, Path(folder))
    atexit.register(ledger.flush)


def show(session: Session, own: dict[str, Any] | None) -> None:
    """Print the table, and write what else was asked for; never an error, which would be the
    script's."""
    summary = Summary.of(session.parts(own), theirs=session.settings.theirs, name=session.name)
    session.close()
    try:
        numbers = os.environ.get(NUMBERS)
        if numbers:
            Path(numbers).write_text(json.dumps(summary.to_json()), encoding="utf-8")
        rank = os.environ.get("RANK", "0")
        if rank != "0":  # torchrun's, and accelerate's: one table for all
            return
        if session.outputs.report is not None:
            from .page import write_page

            write_page(session.outputs.report, summary)
        text = f"\n{summary}\n"
        if os.environ.get("WORLD_SIZE", "1") != "1":
            text += f"This is rank 0 of {os.environ['WORLD_SIZE']}; the others print no table.\n"
    except Exception as error:
        text = f"\npagraph run: {type(error).__name__}: {error}\n"
    # By the descriptor: the script may have put anything in the place of `sys.stderr`.
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="replace"))


def _beside(session: Session) -> int:
    """Start the process that prints the table if this one cannot; the pipe that says it could."""
    if not hasattr(os, "pidfd_open"):
        return -1
    read, write = os.pipe()
    watched = os.pidfd_open(os.getpid())
    # Twice, so that it is no child of this process: a script may wait for all of its own.
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(read)
        os.close(watched)
        return write
    try:
        # Out of the terminal's reach: Ctrl-C is for the script.
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(write)
        _stand_by(session, read, watched)
    finally:
        os._exit(0)


def _stand_by(session: Session, done: int, watched: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    # Whoever ends all processes of this name ends the script, and with it this one, a moment later.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1):  # a pipe that the script writes to must end with the script
        os.dup2(nowhere, descriptor)
    while True:
        ready, _, _ = select.select([done, watched], [], [])
        if watched in ready:
            break
        if os.read(done, 1):
            return
        # The script closed what it did not open: it is still there.
        select.select([watched], [], [])
        break
    # It may have said so just before it went.
    readable, _, _ = select.select([done], [], [], 0)
    if readable and os.read(done, 1):
        return
    show(session, None)
