"""``pagraph bench gpu``: the whole of it under the interpreter, and what it refuses."""

import json

import pytest
import torch
from runs import fails, run

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled for the GPU in this process")


@interpreted
def test_measures_under_the_interpreter(tmp_path):
    pytest.importorskip("triton")
    file = tmp_path / "roofline.json"
    result = run("bench", "gpu", "--device", "interpreter", "--row-bytes", 64, "--json", file)
    assert result.exit_code == 0, result.output
    assert "device copy" in result.stdout
    assert "random 64-byte rows, pinned host" in result.stdout
    assert "these figures mean nothing" in result.stdout
    written = json.loads(file.read_text())
    assert written["settings"]["row_bytes"] == 64
    assert written["rates"][0]["name"] == "device copy"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_says_that_there_is_no_gpu():
    line = fails("bench", "gpu")
    assert line.startswith("Error: device='cuda' needs a CUDA device, this machine has none that torch")


@pytest.mark.parametrize("device", ["cpu", "gpu", "cuda:x", "meta"])
def test_measures_nothing_but_gpus(device):
    assert fails("bench", "gpu", "--device", device) == (
        f"Error: --device must be cuda, cuda:N or interpreter, got {device!r}"
    )


@interpreted
@pytest.mark.parametrize("name", ["rows", "reads", "row-bytes", "repeats"])
def test_refuses_sizes_of_nothing(name):
    line = fails("bench", "gpu", "--device", "interpreter", f"--{name}", 0)
    assert line == f"Error: --{name} must be at least 1, got 0"


@interpreted
def test_refuses_a_file_that_cannot_be_written(tmp_path):
    assert "--json" in fails("bench", "gpu", "--device", "interpreter", "--json", tmp_path / "no" / "x.json")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_measures_a_gpu(tmp_path):
    file = tmp_path / "roofline.json"
    sizes = ["--rows", 1 << 16, "--reads", 1 << 14, "--scale", 12, "--repeats", 2]
    result = run("bench", "gpu", *sizes, "--json", file)
    assert result.exit_code == 0, result.output
    assert "mean nothing" not in result.stdout
    assert json.loads(file.read_text())["device"] == torch.cuda.get_device_name()
