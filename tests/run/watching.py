"""Loaders watched in this process, and scripts run by ``pagraph run`` in processes of their own."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import torch
from fresh_processes import HANGING

from pagraph.run.frameworks import hook
from pagraph.run.ledger import Ledger
from pagraph.run.replacing import Replacer, Settings
from pagraph.run.summary import Summary

DATA = """
import torch
from torch_geometric.data import Data
torch.manual_seed(0)
data = Data(x=torch.randn(100, 4), edge_index=torch.randint(0, 100, (2, 500)))
"""
COMPARES = """
import sys
sys.executable = sys.argv.pop(1)
from pagraph.cli import main
main()
"""


@contextmanager
def watched(**settings):
    """Replace and measure inside; gives what says what was seen."""
    ledger = Ledger()
    replacer = Replacer(Settings(**settings), ledger)
    imports = hook(replacer, ledger)
    imports.install()

    def seen():
        theirs = replacer.settings.theirs
        return Summary.of([ledger.snapshot()], theirs=theirs, name="a test")

    try:
        yield seen
    finally:
        imports.remove()
        replacer.undo()


def of_line(summary, kind):
    """The only line of a class: its key and its numbers."""
    ((key, line),) = [item for item in summary.lines.items() if item[0].kind == kind]
    return key, line


def small_data():
    from torch_geometric.data import Data

    torch.manual_seed(0)
    return Data(x=torch.randn(100, 4), edge_index=torch.randint(0, 100, (2, 500)))


def run(folder, *arguments, text=None, python=(), program=None, timeout=HANGING, **environment):
    """``pagraph run ARGUMENTS`` in a folder, of a script with this text if there is one.

    ``program`` stands for ``sys.executable``, here and in the runs of ``--compare``.

    Returns the finished process; its ``numbers`` are what it saw, None if it did not say.
    """
    if text is not None:
        (folder / "script.py").write_text(text)
    numbers = folder / "numbers.json"
    command = [program or sys.executable, *python, "-m", "pagraph", "run", *map(str, arguments)]
    if program and "--compare" in arguments:  # which imports nothing slow itself
        command[: -len(arguments)] = [sys.executable, "-c", COMPARES, program, "run"]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"PAGRAPH_RUN_NUMBERS": str(numbers)} | environment,
    )
    done.numbers = json.loads(numbers.read_text()) if numbers.exists() else None
    return done


def alone(folder, *arguments, timeout=HANGING):
    """``python ARGUMENTS``."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
