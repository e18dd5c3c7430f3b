"""Runs of a verb, in this process or before a terminal."""

import contextlib
import importlib.util
import os
import pty
import subprocess
import threading

import pytest
from click.testing import CliRunner
from fresh_processes import HANGING

from pagraph.cli import main


def run(verb, *arguments, columns=None):
    """A run whose output is a pipe, or as wide as ``columns``."""
    width = None if columns is None else str(columns)
    result = CliRunner().invoke(main, [verb, *map(str, arguments)], env={"COLUMNS": width})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if importlib.util.find_spec("dgl") is None and "pagraph.dgl needs DGL" in result.output:
        pytest.skip("needs DGL")
    return result


def fails(verb, *arguments):
    """The one line of a run that refuses its input."""
    result = run(verb, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def on_terminal(command, *, timeout=HANGING):
    """A command whose standard error is a terminal: what ran, and what the terminal was sent."""
    terminal, inner = pty.openpty()
    screen = []

    def look():
        # All the while: bars of a slow machine are more than the terminal's buffer holds.
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 100_000):
                screen.append(part)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        seen = subprocess.run(command, stdout=subprocess.PIPE, stderr=inner, timeout=timeout)
    finally:
        os.close(inner)
        reader.join()
        os.close(terminal)
    return seen, b"".join(screen)
