"""Python processes without the seconds that importing torch, DGL and PyG takes each time.

:func:`forked_python` is a program to use as ``sys.executable`` is. Tests of what happens when ours,
DGL or PyG is imported, or by environment variables that are read then, take :func:`bare_python`;
those of the import of torch, of the end of an interpreter, or of the memory of a whole process
``sys.executable`` itself.
"""

import atexit
import functools
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent

HANGING = 1500.0
"""Seconds after which what a test waits for hangs: 20 times the longest on a quiet machine."""

OF_CUDA = 0 if torch.version.cuda is None else 128
"""MiB to add to the memory of a process: what torch built for CUDA holds (95 MiB) and its share."""


def forked_python() -> str:
    """The path of a program that runs ``python ARGUMENTS`` in a fork of the tests' own server."""
    return _server()[1][1]


def bare_python() -> str:
    """As :func:`forked_python`, of a server that has imported torch and numba, and nothing of
    ours, DGL's or PyG's."""
    return _server()[1][0]


def torchrun_environment() -> dict[str, str]:
    """The environment in which the processes that torchrun starts are forks too."""
    return {**os.environ, "PYTHON_EXEC": forked_python()}


@functools.cache
def _server() -> tuple[subprocess.Popen, list[str]]:
    """The server's process, and the programs: that of the bare one first."""
    folder = tempfile.TemporaryDirectory(prefix="fork-")
    addresses = [os.path.join(folder.name, name) for name in ("bare", "all")]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "fork_server.py"), *addresses], stdin=subprocess.PIPE
    )

    def end() -> None:
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return server, [_program(address) for address in addresses]


def cpu_seconds() -> float:
    """Seconds of CPU of this process, of those that it started and waited for, and of the forked
    ones that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(each.ru_utime + each.ru_stime for each in used)
    if _server.cache_info().currsize:
        pid = _server()[0].pid
        own += sum(map(_cpu_seconds_of_server, [pid, *_children(pid)]))
    return own


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_seconds_of_server(pid: int) -> float:
    """Its own, and those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # a child that has ended since
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _program(address: str) -> str:
    client = [sys.executable, "-I", "-S", str(HERE / "fork_client.py"), address]
    # The first may come before the server listens, which it does before its imports.
    wait = f"while [ ! -S {shlex.quote(address)} ]; do sleep 0.01; done"
    program = Path(f"{address}.python")
    program.write_text(f'#!/bin/sh\n{wait}\nexec {shlex.join(client)} "$@"\n')
    program.chmod(0o755)
    return str(program)


ANSWER = "PAGRAPH_TEST_ANSWER"
"""Variable with the name of the file for a process's answer: what it prints may be a library's."""


def answer(command: Sequence[str], **options: Any) -> Any:
    """Run a command that writes JSON to the file ``os.environ["PAGRAPH_TEST_ANSWER"]``; return it."""
    environment = options.pop("env", os.environ)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answer.json")
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=HANGING,
            env={**environment, ANSWER: str(path)},
            **options,
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
        return json.loads(path.read_text())


def run_text(
    text: str, folder: Path, arguments: Sequence[str] = (), *, timeout: float = HANGING
) -> str:
    """Run a script that is given as text, as ``python -c`` would; return what it prints."""
    return _printed(["-c", text, *arguments], folder, timeout)


def run_script(
    script: Path, arguments: Sequence[str], folder: Path, *, timeout: float = HANGING
) -> str:
    """Run ``python SCRIPT ARGUMENTS``; return what it prints."""
    return _printed([str(script), *arguments], folder, timeout)


def _printed(arguments: list[str], folder: Path, timeout: float) -> str:
    done = subprocess.run(
        [forked_python(), *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, (
        f"{arguments[:2]}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def ended(
    processes: Sequence[subprocess.Popen], seconds: float = HANGING
) -> list[tuple[str, str, int]]:
    """Output, errors and exit code of each process, once all have ended.

    Raises:
        AssertionError: Some run longer. It shows what each has said, and where those in Python are
            if ``PYTHONFAULTHANDLER`` is set for them.
    """
    said = [("", "")] * len(processes)

    def read(number: int) -> None:
        said[number] = processes[number].communicate()

    # All at once: one whose pipe is full would wait for one that is read first.
    readers = [
        threading.Thread(target=read, args=(number,), daemon=True)
        for number in range(len(processes))
    ]
    deadline = time.monotonic() + seconds
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0, deadline - time.monotonic()))
    late = [number for number, reader in enumerate(readers) if reader.is_alive()]
    for number in late:
        processes[number].send_signal(signal.SIGABRT)
    for number in late:
        readers[number].join(10)
        processes[number].kill()
        readers[number].join(10)
    assert not late, f"processes {late} did not end within {seconds} s: {said}"
    return [(*texts, process.returncode) for texts, process in zip(said, processes, strict=True)]
