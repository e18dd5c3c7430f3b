"""The attack campaign can be run: a few trials of each part, and what fails is kept."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ("dgl", "torch_geometric", "pyarrow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]


def run(keep, *arguments):
    command = [sys.executable, "-m", "tests.chaos", "--keep", str(keep), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CHAOS_BATCH_SECONDS": "1"}, capture_output=True, text=True, timeout=280
    )


def test_every_part_runs(tmp_path):
    done = run(tmp_path / "kept", "--trials", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [line.split()[1:4:2] for line in done.stdout.splitlines() if len(line.split()) > 6]
    assert counts.count(["2", "0"]) or "2" in done.stdout
    assert not list((tmp_path / "kept").iterdir())
