"""Runs a script: in this process as ``python script.py`` would, or to compare in several others."""

from __future__ import annotations

import io
import json
import os
import pkgutil
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any
from zipfile import is_zipfile

import click

from ..system.tables import output_width
from .replacing import Settings
from .session import NUMBERS, Session
from .summary import Summary, compared, write_page

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
        return _exit_code(error)
    except BaseException as error:
        _report(error)
        if isinstance(error, KeyboardInterrupt):
            session.interrupted = threading.current_thread() is threading.main_thread()
        return 1
    return 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    sys.stderr.write(f"{error.code}\n")
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
    printed on stderr.

    Returns:
        0, or the first exit code that is not 0, after which nothing more is run.
    """
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings.to_json().items()
        if name != "theirs" and value is not None
    ]
    sides: dict[str, list[Summary]] = {"theirs": [], "ours": []}
    with tempfile.TemporaryDirectory(prefix="pagraph-run-") as folder:
        numbers = Path(folder) / "numbers.json"
        for _ in range(count):
            for side, found in sides.items():
                chosen = ["--theirs"] if side == "theirs" else options
                code = _run_once([*chosen, *target], numbers)
                if code:
                    return code
                found.append(_read_numbers(numbers))
    table = compared(sides["theirs"], sides["ours"])
    click.echo(f"\n{table.text(output_width(2))}", err=True)
    if report is not None:
        write_page(report, sides["ours"][-1], [sides["theirs"][-1]], table)
    return 0


def _run_once(arguments: Sequence[str], numbers: Path) -> int:
    command = [sys.executable, "-m", "pagraph", "run", *arguments]
    environment = os.environ | {NUMBERS: str(numbers)}
    with subprocess.Popen(command, env=environment) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the script, too
            process.wait()
            raise
    # A shell's exit code for a process that a signal ended.
    return code if code >= 0 else 128 - code


def _read_numbers(path: Path) -> Summary:
    saved = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return Summary.from_json(saved)
