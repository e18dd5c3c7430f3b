"""The attack campaign can be run: a few trials of each part, and what fails is kept."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import PARTS
from chaos.worker import unclear

from pagraph import FormatError

ROOT = Path(__file__).parents[1]
NEEDED = ("dgl", "torch_geometric", "pyarrow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]


def test_every_part_runs(tmp_path):
    command = [sys.executable, "-m", "tests.chaos", "--keep", str(tmp_path / "kept"), "--trials", "1"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CHAOS_BATCH_SECONDS": "1"}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in PARTS:
        assert re.search(rf"{part} +\S 1 +\S 0 ", done.stdout), done.stdout
    assert not list((tmp_path / "kept").iterdir())


def test_what_is_unclear():
    assert unclear(RuntimeError("deep inside"), (), "") == "an unexpected kind of error"
    assert unclear(ValueError("a\nb"), (), "") == "no message of one line"
    assert unclear(FormatError("g.npz must be whole"), (), "") is None
    assert unclear(OSError(28, "No space left on device"), (), "") == "an error of the system without a file"
    with pytest.raises(ValueError) as caught:
        int("x")
    assert unclear(caught.value, (), "") == "raised by another package"
