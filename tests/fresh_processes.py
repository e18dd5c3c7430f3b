"""Scripts run as ``python SCRIPT`` runs them, without the seconds that importing torch, DGL and PyG
takes each time.

A server imports them once and forks a process for each script. Nothing has run in the server but
imports, so a script finds what it would find in a process of its own.
"""

import contextlib
import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
# What cannot be imported, as without DGL, is passed over.
_context.set_forkserver_preload(["torch", "pagraph.datasets", "pagraph.dgl", "pagraph.pyg"])


def run_text(
    text: str, folder: Path, arguments: Sequence[str] = (), *, timeout: float = 200
) -> str:
    """Run a script that is given as text, as ``python -c`` would; return what it prints."""
    return _run(("text", text, ["-c", *arguments]), folder, timeout)


def run_script(
    script: Path, arguments: Sequence[str], folder: Path, *, timeout: float = 200
) -> str:
    """Run ``python SCRIPT ARGUMENTS``; return what it prints."""
    return _run(("path", str(script), [str(script), *arguments]), folder, timeout)


def _run(job: tuple[str, str, list[str]], folder: Path, timeout: float) -> str:
    with tempfile.TemporaryDirectory() as outside:
        out = Path(outside) / "stdout"
        err = Path(outside) / "stderr"
        process = _context.Process(
            target=_in_the_fork, args=(job, str(folder), dict(os.environ), str(out), str(err))
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        printed = out.read_text()
        assert process.exitcode == 0, (
            f"{job[1]}\nexit code {process.exitcode}\n{printed}{err.read_text()}"
        )
    return printed


def _in_the_fork(
    job: tuple[str, str, list[str]], folder: str, environment: dict[str, str], out: str, err: str
) -> None:
    kind, script, arguments = job
    os.chdir(folder)
    # The server has kept the environment of the moment it was started.
    os.environ.clear()
    os.environ.update(environment)
    # File descriptors, not sys.stdout: a script's own processes print too.
    for name, number in ((out, 1), (err, 2)):
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(target, number)
        os.close(target)
    sys.argv = arguments
    sys.path[0] = folder if kind == "text" else str(Path(script).parent)
    try:
        if kind == "text":
            main = sys.modules["__main__"].__dict__
            exec(compile(script, "<string>", "exec"), main)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
