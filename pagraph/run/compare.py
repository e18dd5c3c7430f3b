"""Runs a script several times with its own loaders and with ours, in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from .replacing import Settings
from .session import NUMBERS
from .summary import Summary, compared


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
                code = _run([*chosen, *target], numbers)
                if code:
                    return code
                found.append(_read(numbers))
    table = compared(sides["theirs"], sides["ours"])
    click.echo(f"\n{table}", err=True)
    if report is not None:
        from .page import write_page

        write_page(report, sides["ours"][-1], [sides["theirs"][-1]], table)
    return 0


def _run(arguments: Sequence[str], numbers: Path) -> int:
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


def _read(path: Path) -> Summary:
    saved = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return Summary.from_json(saved)
