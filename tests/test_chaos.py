"""The attack campaign can be run: a few trials of each part, and what fails is kept."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import PARTS
from chaos.campaign import _checking_bounds
from chaos.worker import unclear

from pagraph import FormatError

ROOT = Path(__file__).parents[1]
NEEDED = ("dgl", "torch_geometric", "pyarrow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"
    ),
]


def test_every_part_runs(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--keep",
        str(tmp_path / "kept"),
        "--trials",
        "1",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CHAOS_BATCH_SECONDS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in PARTS:
        assert re.search(rf"{part} +\S 1 +\S 0 ", done.stdout), done.stdout
    assert not list((tmp_path / "kept").iterdir())


def test_arrays_that_lie(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--part",
        "hostile",
        "--keep",
        str(tmp_path / "kept"),
    ]
    done = subprocess.run(
        [*command, "--trials", "20"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"hostile +\S 20 +\S 0 ", done.stdout), done.stdout


def test_kernels_of_the_campaign_check_their_bounds(tmp_path):
    script = """
import numpy as np
from pagraph.graph._csc import find_rows
from tests.chaos.worker import unclear
try:
    one = np.zeros(1, int)
    find_rows(one, one, one, 9, one[:0])
except IndexError as error:
    print(error, unclear(error, (), ""))
"""
    environment = {**os.environ, **_checking_bounds(), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert "index is out of bounds raised by another package" in done.stdout, (
        done.stdout + done.stderr
    )


def test_what_is_unclear():
    assert unclear(RuntimeError("deep inside"), (), "") == "an unexpected kind of error"
    assert unclear(ValueError("a\nb"), (), "") == "no message of one line"
    assert unclear(FormatError("g.npz must be whole"), (), "") is None
    assert (
        unclear(OSError(28, "No space left on device"), (), "")
        == "an error of the system without a file"
    )
    with pytest.raises(ValueError) as caught:
        int("x")
    assert unclear(caught.value, (), "") == "raised by another package"
