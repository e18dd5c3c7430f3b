"""The attack campaign can be run: a few trials of each part, and what fails is kept."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import BOUNDS_CHECKED, PARTS
from chaos.campaign import _checking_bounds
from chaos.worker import unclear
from fresh_processes import HANGING, bare_python, forked_python

from pagraph import FormatError

ROOT = Path(__file__).parents[1]
NEEDED = ("dgl", "torch_geometric", "pyarrow")
pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"
    ),
]


UNCHECKED = [part for part in PARTS if part not in BOUNDS_CHECKED]


@pytest.mark.parametrize(("parts", "trials"), [(UNCHECKED, 1), ([*BOUNDS_CHECKED], 20)])
def test_parts_run(tmp_path, parts, trials):
    """Twenty trials of the part whose arrays lie: in fewer, few kernels meet any."""
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "tests.chaos", "--keep", str(kept), "--trials", str(trials)]
    for part in parts:
        command += ["--part", part]
    environment = {"CHAOS_BATCH_SECONDS": "1", "CHAOS_PYTHON": forked_python()}
    environment["CHAOS_CLEAN_PYTHON"] = bare_python()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in parts:
        assert re.search(rf"{part} +\S {trials} +\S 0 ", done.stdout), done.stdout
    assert not list(kept.iterdir())


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
    command = [bare_python(), "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGING
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
