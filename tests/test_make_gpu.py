"""``make gpu``: what it refuses, and its benchmarks under the interpreter, from the checkout."""

import gzip
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fresh_processes import HANGING, bare_python, forked_python

from pagraph.accelerator import HostAccelerator

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(
        not (BENCHMARKS / "gpu.py").exists(), reason="needs the checkout, not only its tests"
    ),
]


@pytest.fixture(scope="module")
def found():
    """Modules of the folder of benchmarks, by name."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path[:] = before


def run(*command, **environment):
    # A make inside of make says where it is, and takes over what the outer one was given.
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")
    }
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=HANGING,
        cwd=ROOT,
        env={**own, **environment},
    )


def measure(*options):
    return run(forked_python(), "benchmarks/gpu.py", *map(str, options))


class TestMake:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
    def test_says_in_one_line_that_it_needs_a_gpu(self):
        done = run("make", "gpu", f"GPU_PYTHON={sys.executable}")
        assert done.returncode != 0
        (line,) = (line for line in done.stderr.splitlines() if not line.startswith("make:"))
        assert line.startswith("make gpu needs a CUDA device, this machine has none that torch")
        assert done.stdout == ""

    def test_says_in_one_line_which_packages_are_missing(self, tmp_path):
        alone = tmp_path / "python"
        alone.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -S -E "$@"\n')
        alone.chmod(0o755)
        done = run("make", "gpu", f"GPU_PYTHON={alone}")
        assert done.returncode != 0
        (line,) = (line for line in done.stderr.splitlines() if not line.startswith("make:"))
        assert line.startswith("make gpu needs torch, triton, numpy,")
        assert "make venv" in line

    def test_takes_the_environment_that_there_is(self, tmp_path):
        environment = tmp_path / "bin" / "python"
        environment.parent.mkdir()
        environment.write_text("")
        assert str(environment) in run("make", "-n", "gpu", f"VENV={tmp_path}").stdout
        assert (
            "/nowhere/python9 benchmarks"
            in run("make", "-n", "gpu", "VENV=/no", "PYTHON=/nowhere/python9").stdout
        )

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
    def test_the_benchmark_alone_says_so_too(self):
        done = measure()
        assert done.returncode != 0
        assert done.stderr.startswith("device='cuda' needs a CUDA device")
        assert done.stderr.count("\n") == 1

    def test_collects_no_file_that_needs_dgl(self):
        marked = [path for path in (ROOT / "tests").rglob("*.py") if "mark.gpu" in path.read_text()]
        code = (
            "import sys; sys.modules['dgl'] = None; import pytest; "
            "sys.exit(pytest.main(['-q', '--collect-only', '-m', 'gpu', "
            f"*{[str(path) for path in marked]}]))"
        )
        done = run(bare_python(), "-c", code)
        assert done.returncode == 0, done.stdout


class TestReport:
    @pytest.mark.parametrize(
        ("rule", "measured", "met", "says"),
        [
            ("AT_LEAST", 0.9, True, "yes"),
            ("AT_LEAST", 0.7, False, "NO"),
            ("AT_MOST", 0.7, True, "yes"),
            ("AT_MOST", None, None, "-"),
        ],
    )
    def test_targets(self, found, rule, measured, met, says):
        report = found("gpu_report")
        target = report.Target("x", 0.8, getattr(report, rule), measured, "%")
        assert target.met is met
        assert target.cells()[3] == says
        assert target.to_json()["met"] is met

    def test_a_failure_does_not_lose_the_others(self, found, tmp_path, capsys):
        report = found("gpu_report").Report("x", tmp_path, {"card": {}}, time.monotonic() + 60)
        section = report.section("some")
        assert section.measure("good", lambda: {"seconds": 1.0}) == {"seconds": 1.0}
        assert section.measure("bad", lambda: 1 / 0) is None
        assert section.measure("better", lambda: 2.0) == 2.0
        report.write()
        written = json.loads((tmp_path / "x.json").read_text())
        assert written["sections"] == {"some": {"good": {"seconds": 1.0}, "better": 2.0}}
        assert written["failures"] == ["some: bad: ZeroDivisionError: division by zero"]
        assert written["machine"]["torch"] == torch.__version__
        assert "ZeroDivisionError" in capsys.readouterr().err

    def test_nothing_is_begun_after_the_deadline(self, found):
        report = found("gpu_report").Report("x", None, {}, time.monotonic() - 1)
        assert report.section("some").measure("late", lambda: 1) is None
        assert report.left_out == {"some: late": "no time was left"}


class TestStreams:
    def test_adds_up_what_runs_at_once(self, found):
        def event(stream, begin, seconds, category="kernel"):
            return {
                "cat": category,
                "ts": begin * 1e6,
                "dur": seconds * 1e6,
                "args": {"stream": stream},
            }

        events = [
            event(7, 0, 4),
            event(7, 3, 2),
            event(9, 1, 2, "gpu_memcpy"),
            event(9, 10, 1),
            event(0, 0, 99, "cpu_op"),
        ]
        figures = found("gpu_timeline").streams({"traceEvents": events})
        assert figures["device_busy"] == pytest.approx(6)
        assert figures["several_streams_at_once"] == pytest.approx(2)
        assert figures["by_stream"] == {"7": pytest.approx(5), "9": pytest.approx(3)}


class TestBaselines:
    @pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
    @pytest.mark.parametrize("name", ["dgl_loader", "pyg_loader", "plain_loop"])
    def test_give_what_the_model_takes(self, found, monkeypatch, name):
        pytest.importorskip("torch_geometric")
        if name == "dgl_loader" and importlib.util.find_spec("dgl") is None:
            pytest.skip("needs DGL")
        if name == "pyg_loader":  # PyG's own needs a binary; ours takes the same arguments
            import pagraph.pyg

            monkeypatch.setattr("torch_geometric.loader.NeighborLoader", pagraph.pyg.NeighborLoader)
        workload = found("gpu_workload")
        work = workload.Workload(HostAccelerator(), workload.TINY)
        batches = list(getattr(found("gpu_baselines"), name)(work)())
        assert len(batches) == workload.TINY.steps
        for x, y, layers in batches:
            assert (x.shape[1], len(y)) == (workload.TINY.dim, workload.TINY.batch_size)
            scores = work.trainer.model(x, layers)
            assert len(scores) >= len(y)
            assert scores.isfinite().all()


class TestRun:
    def test_of_every_section(self, tmp_path):
        pytest.importorskip("torch_geometric")
        done = measure("--device", "interpreter", "--results", tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        written = json.loads((tmp_path / "gpu-interpreter.json").read_text())
        assert written["failures"] == []
        assert {key: len(figures) for key, figures in written["sections"].items() if key != "training"} == {
            "roofline": 1, "large_table": 1, "host": 3, "sampling": 4, "whole_step": 3, "compiled": 2,
            "caches": 7, "options": 14, "timelines": 2,
        }  # fmt: skip
        rates = [written["sections"]["caches"][name]["hit_rate"] for name in ("0%", "20%", "100%")]
        assert rates[0] == 0 < rates[1] < rates[2] == 1
        assert len(written["targets"]) == 10
        assert "look-up: share of the time of hits" in done.stdout
        for name in ("overlap", "serial"):
            with gzip.open(tmp_path / f"gpu-interpreter-{name}.json.gz", "rt") as file:
                assert json.load(file)["traceEvents"]

    def test_writes_nothing_of_the_interpreter_unless_told_where(self):
        before = sorted((BENCHMARKS / "results").iterdir())
        done = measure("--device", "interpreter", "--section", "sampling")
        assert done.returncode == 0, done.stderr
        assert "written:" not in done.stdout
        assert sorted((BENCHMARKS / "results").iterdir()) == before

    def test_refuses_other_devices(self):
        done = measure("--device", "cpu")
        assert (done.returncode, done.stderr) == (
            1,
            "--device must be cuda, cuda:N or interpreter, got 'cpu'\n",
        )
