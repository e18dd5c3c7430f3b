"""Runs a script: in this process as ``python script.py`` would, or to compare in several others."""

from __future__ import annotations

import io
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any
from zipfile import is_zipfile

from .._streams import print_notice
from ..system.tables import output_width
from ..system.units import escaped
from .replacing import Settings, error_in_short, in_short
from .session import NUMBERS, Session
from .summary import Summary, compared, write_page

# More than it takes until the witness of a killed script has written its numbers.
_WITNESS_SECONDS = 10
# Frames of files in this folder are left out of a script's traceback.
_HERE = os.path.dirname(os.path.abspath(__file__))


def run_script(path: str, arguments: Sequence[str], session: Session) -> int:
    """Run a file as ``python FILE ARGUMENTS``, and return the exit code."""
    main = _new_main(path)
    sys.argv[:] = [path, *arguments]
    if os.path.isdir(path) or is_zipfile(path):
        _first_on_path(path)
        return _guarded(lambda: _run_as_main("__main__", alter_argv=False), session)
    # Python follows links to the file's real folder.
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    return _guarded(lambda: exec(_code_of(path), vars(main)), session)


def run_module(name: str, arguments: Sequence[str], session: Session) -> int:
    """Run a module as ``python -m MODULE ARGUMENTS``, and return the exit code."""
    _new_main(None)
    # runpy replaces "-m" by the module's file.
    sys.argv[:] = ["-m", *arguments]
    _first_on_path(os.getcwd())
    return _guarded(lambda: _run_as_main(name, alter_argv=True), session)


def _run_as_main(name: str, *, alter_argv: bool) -> None:
    # Private, but what `python -m` calls: it sets argv and `__spec__`, and knows packages.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _new_main(path: str | None) -> ModuleType:
    """A new ``__main__``, so that pickles, spawned processes and ``sys.modules`` find the
    script's."""
    main = ModuleType("__main__")
    names: dict[str, Any] = {"__builtins__": __builtins__, "__annotations__": {}}
    if path is not None:
        # As in Python, whose tracebacks have the absolute path, while `sys.argv` has the given one.
        whole = os.path.abspath(path)
        loader = SourceFileLoader("__main__", whole)
        names |= {"__file__": whole, "__cached__": None, "__loader__": loader}
    vars(main).update(names)
    sys.modules["__main__"] = main
    return main


def _first_on_path(folder: str) -> None:
    """Put the script's folder first on ``sys.path``.

    It replaces the working folder of ``python -m pagraph``, or that of the console script.
    """
    if getattr(sys.flags, "safe_path", False):
        return
    sys.path[0] = folder


def _code_of(path: str) -> CodeType:
    path = os.path.abspath(path)
    with io.open_code(path) as file:
        compiled: CodeType | None = pkgutil.read_code(file)
        if compiled is not None:
            return compiled
        file.seek(0)
        return compile(file.read(), path, "exec", dont_inherit=True)


def _guarded(run: Any, session: Session) -> int:
    """Run, and return the interpreter's exit code; tracebacks are printed without our frames."""
    try:
        run()
    except SystemExit as error:
        code = _exit_code(error, session)
        session.exit_code = code & 0xFF  # what the system keeps
        return code
    except BaseException as error:
        _report(error)
        session.error = error_in_short(error)
        session.exit_code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        return 1
    return 0


def _exit_code(error: SystemExit, session: Session) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    session.error = in_short(str(error.code))
    print_notice(error.code)
    return 1


def _report(error: BaseException) -> None:
    """Print an error as the interpreter does, without our frames."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = _without_us(link.__traceback__)
            links += [link.__cause__, link.__context__]
    # `pdb.pm()` and interactive shells read these.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:
        sys.__excepthook__(type(error), error, error.__traceback__)


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without frames of ours and of runpy."""
    kept = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        is_runpys = name == runpy.__file__ or name.startswith("<frozen runpy")
        if not is_runpys and os.path.dirname(os.path.abspath(name)) != _HERE:
            kept.append(trace)
        trace = trace.tb_next
    for each, following in zip(kept, [*kept[1:], None], strict=False):
        each.tb_next = following
    return kept[0] if kept else None


def compare_runs(count: int, settings: Settings, target: Sequence[str], report: Path | None) -> int:
    """Run a script ``count`` times with its own loaders and ``count`` times with ours.

    Each run is a separate process with this one's input, output and terminal. The comparison is
    printed on stderr. If theirs cannot run here, ours run alone.

    Returns:
        0, or the first exit code that is not 0, after which nothing more is run.
    """
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings.to_json().items()
        if name != "theirs" and value is not None
    ]
    sides: dict[str, list[Summary]] = {"theirs": [], "ours": []}
    cannot: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pagraph-run-") as folder:
        numbers = Path(folder) / "numbers.json"
        for number in range(1, count + 1):
            for side, found in sides.items():
                if side == "theirs" and cannot:
                    continue
                chosen = ["--theirs"] if side == "theirs" else options
                summary = _run_once([*chosen, *target], numbers)
                if summary.exit_code:
                    text = f"run {number} of {count} with {summary.whose} {summary.ended}"
                    print_notice(f"\npagraph run --compare: {text}")
                    # A shell's exit code for a process that a signal ended.
                    return summary.exit_code if summary.exit_code > 0 else 128 - summary.exit_code
                found.append(summary)
                cannot += summary.instead
    table, shown = None, sides["ours"][-1]
    if cannot:
        shown = sorted(sides["ours"], key=lambda each: each.waited)[count // 2]
        title = f"pagraph run --compare: the median of {count} runs with pagraph's loaders"
        text = "\n".join([title, *cannot, "", shown.text(output_width(2))])
    else:
        table = compared(sides["theirs"], sides["ours"])
        text = table.text(output_width(2))
    print_notice(f"\n{escaped(text)}")
    if report is not None:
        write_page(report, shown, sides["theirs"][-1:], table)
    return 0


def _run_once(arguments: Sequence[str], numbers: Path) -> Summary:
    """One run: its numbers, and how it ended."""
    command = [sys.executable, "-m", "pagraph", "run", *arguments]
    environment = os.environ | {NUMBERS: str(numbers)}
    with subprocess.Popen(command, env=environment) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the script, too
            process.wait()
            raise
    deadline = time.monotonic() + _WITNESS_SECONDS
    # After `os._exit` or a signal another process writes them.
    while not numbers.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if not numbers.exists():
        return Summary(theirs="--theirs" in arguments[:1], exit_code=code)
    saved = json.loads(numbers.read_text(encoding="utf-8"))
    numbers.unlink()
    return replace(Summary.from_json(saved), exit_code=code)
