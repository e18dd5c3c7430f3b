"""Session: watches a script from the first import hook to the table at its very end.

The table must be printed however the script ends. After a normal end, or Ctrl-C, this process
prints it. After ``os._exit``, a signal or a crash it cannot. For this case a second process, forked
before the script begins, waits for its end and prints the numbers that were last written.
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

from ..system.tables import output_width
from .frameworks import ImportHook, hook
from .ledger import Ledger
from .replacing import Replacer, Settings
from .summary import Summary, write_page

# Environment variable by which `pagraph run --compare` tells a run where to write its numbers.
NUMBERS = "PAGRAPH_RUN_NUMBERS"


@dataclass(eq=False)
class Session:
    """Watches the loaders of this process, and of those that it spawns or forks.

    Args:
        name: The script, for the title.
        settings: Options of ``pagraph run``.
        report: HTML page to write at the end.
        timeline: Trace of our loaders to write.
    """

    name: str
    settings: Settings
    report: Path | None = None
    timeline: Path | None = None
    # The process is killed by SIGINT at its very end, as Python is after an unhandled Ctrl-C.
    interrupted: bool = False
    _folder: Path = field(init=False)
    _ledger: Ledger = field(init=False)
    _tracer: Any = field(default=None, init=False)
    _done: int = field(default=-1, init=False)
    _pid: int = field(default_factory=os.getpid, init=False)

    def begin(self) -> None:
        """Watch until the process ends. To be called before the script imports anything."""
        self._folder = Path(tempfile.mkdtemp(prefix="pagraph-run-"))
        self._done = _start_witness(self)
        self._ledger = Ledger(self._folder)
        replacer = Replacer(self.settings, self._ledger, self._trace)
        watch(replacer, self._ledger, self._folder)
        # The handler registered first is called last, after those of the script.
        atexit.register(self._finish)

    def _trace(self, loader: Any) -> None:
        if self.timeline is None or os.getpid() != self._pid:
            return
        from ..stats.trace import Tracer

        if self._tracer is None:
            self._tracer = Tracer(self.timeline)
        number = len(self._ledger.snapshot(looks=False)["lines"])
        loader.trace(self._tracer, label=f"{type(loader).__name__} {number}")

    def _finish(self) -> None:
        if os.getpid() != self._pid:  # a forked process inherits this handler
            return
        with contextlib.suppress(Exception):
            # A loader may still be working ahead, and writing to the trace.
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
        """Numbers of all processes, the script's first. ``own`` replaces those that it wrote."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        first = own or found.get(str(self._pid))
        found.pop(str(self._pid), None)
        others = [part for part in found.values() if part["lines"]]
        return others if first is None else [first, *others]

    def close(self) -> None:
        """Remove the processes' numbers."""
        shutil.rmtree(self._folder, ignore_errors=True)


def watch(replacer: Replacer, ledger: Ledger, folder: Path) -> ImportHook:
    """Install the import hook here and in spawned processes."""
    imports = hook(replacer, ledger)
    child = _InChild(folder, replacer.settings)

    def spawning(module: ModuleType) -> None:
        original: Any = vars(module)["get_preparation_data"]

        def get_preparation_data(name: str) -> dict[str, Any]:
            # The child ignores unknown keys, but unpickling them has installed the hook.
            return {**original(name), "pagraph": child}

        replacer.cover(module, "get_preparation_data", get_preparation_data)

    imports.wait_for("multiprocessing.spawn", spawning)
    imports.install()
    return imports


@dataclass(frozen=True)
class _InChild:
    """Installs the hook in a spawned process when it is unpickled, before the main module runs."""

    folder: Path
    settings: Settings

    def __reduce__(self) -> tuple[Any, ...]:
        # As text for `exec`, so that the child also runs if it cannot import pagraph.
        code = (
            "try:\n"
            "    from pagraph.run.session import in_child\n"
            f"    in_child({str(self.folder)!r}, {self.settings.to_json()!r})\n"
            "except Exception:\n"
            "    pass\n"
        )
        return exec, (code,)


def in_child(folder: str, settings: dict[str, Any]) -> None:
    """Watch a spawned process; the script's process collects its numbers."""
    ledger = Ledger(Path(folder), "spawned")
    watch(Replacer(Settings(**settings), ledger), ledger, Path(folder))
    atexit.register(ledger.flush)


def show(session: Session, own: dict[str, Any] | None) -> None:
    """Print the table and write the requested files. An error would be the script's, so it is
    printed, too."""
    summary = Summary.of(session.parts(own), theirs=session.settings.theirs, name=session.name)
    session.close()
    try:
        numbers = os.environ.get(NUMBERS)
        if numbers:
            Path(numbers).write_text(json.dumps(summary.to_json()), encoding="utf-8")
        rank = os.environ.get("RANK", "0")
        if rank != "0":  # of torchrun's or accelerate's processes one prints
            return
        if session.report is not None:
            write_page(session.report, summary)
        text = f"\n{summary.text(output_width(2))}\n"
        if os.environ.get("WORLD_SIZE", "1") != "1":
            text += f"This is rank 0 of {os.environ['WORLD_SIZE']}; the others print no table.\n"
    except Exception as error:
        text = f"\npagraph run: {type(error).__name__}: {error}\n"
    # To the descriptor, as the script may have replaced `sys.stderr`.
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="replace"))


def _start_witness(session: Session) -> int:
    """Start the process that prints the table if this one cannot.

    Returns:
        The end of a pipe to write to once this process has printed it; -1 without such a process.
    """
    if not hasattr(os, "pidfd_open"):
        return -1
    read, write = os.pipe()
    watched = os.pidfd_open(os.getpid())
    # Forked twice, so that it is no child of this process: a script may wait for all its children.
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(read)
        os.close(watched)
        return write
    try:
        # In another session, as Ctrl-C is for the script.
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(write)
        _wait_for_end(session, read, watched)
    finally:
        os._exit(0)


def _wait_for_end(session: Session, done: int, watched: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    # `killall` ends the script, too, and this process ends right after it.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1):  # readers of the script's output must see its end
        os.dup2(nowhere, descriptor)
    while True:
        ready, _, _ = select.select([done, watched], [], [])
        if watched in ready:
            break
        if os.read(done, 1):
            return
        # The script closed the pipe, such as by os.closerange, and is still running.
        select.select([watched], [], [])
        break
    # It may have written to the pipe just before its end.
    readable, _, _ = select.select([done], [], [], 0)
    if readable and os.read(done, 1):
        return
    show(session, None)
