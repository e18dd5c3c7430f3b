"""Session: watches a script from the first import hook to the table at its very end.

The table must be printed however the script ends, and once. After a normal end, an error or Ctrl-C
this process prints it. After ``os._exit``, a signal or a crash it cannot. For this case a second
process, forked before the script begins, waits for its end and prints the numbers that were last
written, if they are still there.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import select
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .._streams import flush, say_past_replacement
from ..system.atomic import new_file
from ..system.tables import output_width
from .frameworks import ImportHook, hook
from .ledger import Ledger, read_numbers
from .replacing import Replacer, Settings, error_in_short
from .summary import Summary, write_page

# Environment variable by which `pagraph run --compare` tells a run where to write its numbers.
NUMBERS = "PAGRAPH_RUN_NUMBERS"
_EXIT_CODE = "exit_code"
"""File with the argument of ``os._exit``, beside the numbers."""
# How often the witness looks whether the script's process is still there. It learns of its end at
# once, unless another process has inherited the script's end of the pipe.
_LOOK_SECONDS = 0.5
_UNKNOWN = -1  # in place of a wait status
_DUMPED = 0x80  # of a wait status: memory was dumped
# From linux/pidfd.h.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3


@dataclass(eq=False)
class Session:
    """Watches the loaders of this process, and of those that it spawns or forks.

    Args:
        name: The script, for the title.
        settings: Options of ``pagraph run``.
        report: HTML page to write at the end.
        timeline: Trace of our loaders to write.
        exit_code, error: What the summary tells of the script's end. After an unhandled Ctrl-C the
            process is killed by SIGINT at its very end, as Python is.
        folder: Where processes write their numbers.
    """

    name: str
    settings: Settings
    report: Path | None = None
    timeline: Path | None = None
    exit_code: int | None = 0
    error: str = ""
    folder: Path = field(init=False)
    _ledger: Ledger = field(init=False)
    _tracer: Any = field(default=None, init=False)
    _pid: int = field(default_factory=os.getpid, init=False)

    def begin(self) -> None:
        """Watch until the process ends. To be called before the script imports anything."""
        self.folder = Path(tempfile.mkdtemp(prefix="pagraph-run-"))
        with contextlib.suppress(OSError):
            Witness(self).start()
        self._ledger = Ledger(self.folder)
        replacer = Replacer(self.settings, self._ledger, self._trace)
        replacer.cover(os, "_exit", self._noting(os._exit))
        watch(replacer, self._ledger, self.folder)
        # The handler registered first is called last, after those of the script.
        atexit.register(self._finish)

    def _noting(self, original: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        """An ``os._exit`` that writes the exit code for the witness."""

        @functools.wraps(original)
        def _exit(status: int) -> NoReturn:
            if os.getpid() == self._pid:
                with contextlib.suppress(OSError):
                    (self.folder / _EXIT_CODE).write_text(str(status & 0xFF))
            original(status)

        return _exit

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
        with contextlib.suppress(Exception):
            flush()
        show(self, own)
        if self.exit_code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(self._pid, signal.SIGINT)

    def parts(self, own: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Numbers of all processes, the script's first. ``own`` replaces those that it wrote."""
        found = {}
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                found[path.stem] = read_numbers(path)
        first = own or found.get(str(self._pid))
        found.pop(str(self._pid), None)
        others = [part for part in found.values() if part["lines"]]
        return others if first is None else [first, *others]

    def close(self) -> None:
        """Remove the processes' numbers, by which the witness sees that they are told."""
        shutil.rmtree(self.folder, ignore_errors=True)


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
    summary = Summary.of(
        session.parts(own),
        theirs=session.settings.theirs,
        name=session.name,
        exit_code=session.exit_code,
        error=session.error,
    )
    numbers = os.environ.get(NUMBERS)
    text = ""
    try:
        # Of torchrun's or accelerate's processes one prints.
        if os.environ.get("RANK", "0") == "0":
            if session.report is not None:
                write_page(session.report, summary)
            text = f"\n{summary.text(output_width(2))}\n"
            if os.environ.get("WORLD_SIZE", "1") != "1":
                others = f"of {os.environ['WORLD_SIZE']}; the others print no table."
                text += f"This is rank 0 {others}\n"
    except Exception as error:
        text = f"\npagraph run: {error_in_short(error)}\n"
    say_past_replacement(text)
    session.close()
    if numbers:
        with contextlib.suppress(OSError), new_file(Path(numbers)) as file:
            file.write(json.dumps(summary.to_json()).encode())


class Witness:
    """A process that prints the table if the script's process ends without doing so."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pid = os.getpid()

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: The system refuses such a process, or what it needs.
        """
        # An open file, as another process may get the number.
        stat = _above_streams(os.open(f"/proc/{self._pid}/stat", os.O_RDONLY))
        # Nobody writes to the other end: it closes with the script's process.
        ends, held = map(_above_streams, os.pipe())
        # Forked twice, so that it is no child of this process: a script may wait for all of those.
        child = os.fork()
        if child == 0:
            try:
                # In another session, as Ctrl-C is for the script.
                os.setsid()
                if os.fork() == 0:
                    os.close(held)
                    self._wait_for_end(ends, stat)
            finally:
                os._exit(0)
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored
            os.waitpid(child, 0)
        os.close(ends)
        os.close(stat)

    def _wait_for_end(self, ends: int, stat: int) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        # `killall` ends the script, too, and this process ends right after it.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for descriptor in (0, 1):  # readers of the script's output must see its end
            os.dup2(nowhere, descriptor)
        pidfd = _pidfd(self._pid)
        events = [ends]
        while (status := _status(stat, pidfd, is_closed=not events)) is None:
            ready, _, _ = select.select(events, [], [], _LOOK_SECONDS)
            if ready:  # or the script has closed all descriptors
                events = []
        session = self._session
        if not session.folder.exists():  # it was printed
            return
        session.exit_code = None if status == _UNKNOWN else os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError, ValueError):
            session.exit_code = int((session.folder / _EXIT_CODE).read_text())
        show(session, None)


def _status(stat: int, pidfd: int | None, *, is_closed: bool) -> int | None:
    """Wait status of a process; None while it runs.

    Args:
        stat: Its file in ``/proc``.
        pidfd: Its descriptor, if there is one.
        is_closed: Whether it has closed its files.
    """
    try:
        state, *fields = os.pread(stat, 4096, 0).rpartition(b")")[2].split()
    except OSError:  # its parent has waited for it
        return _kept_status(pidfd)
    status = int(fields[-1]) & ~_DUMPED
    if state in (b"Z", b"X"):
        return status
    # It closes them just before its parent can wait for it. One that is stopped has another signal.
    return status if is_closed and status and state not in (b"T", b"t") else None


def _above_streams(descriptor: int) -> int:
    """A copy of a descriptor in its place, with a number that is no standard stream's.

    Where one of these is closed, a new descriptor gets its number.
    """
    above = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return above


def _pidfd(pid: int) -> int | None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old kernel, or one that is not Linux itself
            return _above_streams(os.pidfd_open(pid))
    return None


def _kept_status(pidfd: int | None) -> int:
    """Wait status of a process that is gone, which Linux keeps from 6.15 on."""
    info = bytearray(64)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(-1 if pidfd is None else pidfd, _PIDFD_GET_INFO, info)
    except (OSError, ValueError):
        return _UNKNOWN
    known, status = struct.unpack("=Q52xi", info)
    return int(status) & ~_DUMPED if known & _PIDFD_INFO_EXIT else _UNKNOWN
