"""``benchmarks/gpu_roofline.py``: the whole of it under the interpreter, and what it refuses."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from fresh_processes import HANGING, forked_python

pytestmark = pytest.mark.compilers


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_roofline.py"
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled for the GPU in this process"
)


def run(*options):
    command = [forked_python(), SCRIPT, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)


@interpreted
def test_measures_under_the_interpreter(tmp_path):
    pytest.importorskip("triton")
    file = tmp_path / "roofline.json"
    done = run("--device", "interpreter", "--json", file)
    assert done.returncode == 0, done.stderr
    assert "device copy" in done.stdout
    assert "random 64-byte rows, pinned host" in done.stdout
    assert "these figures mean nothing" in done.stdout
    written = json.loads(file.read_text())
    assert written["settings"]["row_bytes"] == 64
    assert written["rates"][0]["name"] == "device copy"


def test_measures_nothing_but_gpus():
    assert (
        "--device must be cuda, cuda:N or interpreter, got 'cpu'" in run("--device", "cpu").stderr
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_measures_a_gpu(tmp_path):
    file = tmp_path / "roofline.json"
    done = run("--json", file)
    assert done.returncode == 0, done.stderr
    assert "mean nothing" not in done.stdout
    assert json.loads(file.read_text())["device"] == torch.cuda.get_device_name()
