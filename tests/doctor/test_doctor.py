"""``pagraph doctor``: what it says is so, and nothing that is broken stops it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fresh_processes import HANGING

import pagraph
from pagraph import _jit, _kernel_folder, doctor
from pagraph.cli import main
from pagraph.doctor import Diagnosis, diagnose, measure_disk


@pytest.fixture(scope="module")
def whole():
    return diagnose()


def test_versions_and_machine(whole):
    versions = whole.sections["versions"]
    assert versions["torch"] == torch.__version__ and versions["pagraph"] == pagraph.__version__
    assert f"{len(os.sched_getaffinity(0))} of them usable" in whole.sections["cores"]["cores"]
    assert whole.sections["cores"]["threads of torch"] == str(torch.get_num_threads())
    assert whole.sections["memory"]["available"].split()[1].startswith(("MiB", "GiB", "TiB"))


def test_settings_of_threads(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.delenv("KMP_AFFINITY", raising=False)
    cores = doctor._cores(Diagnosis())
    assert cores["OMP_WAIT_POLICY"] == "passive"
    assert cores["KMP_AFFINITY"] == "not set"


@pytest.mark.parametrize("policy", [None, "passive"])
def test_waiting_threads_on_busy_cores(monkeypatch, policy):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    for load, is_busy in ((0.0, False), (1e6, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        found = Diagnosis()
        doctor._cores(found)
        is_said = any("OMP_WAIT_POLICY=passive" in finding for finding in found.findings)
        assert is_said == (is_busy and policy is None)


def test_who_samples_for_dgl(whole):
    pytest.importorskip("pagraph.dgl", reason="needs DGL")
    paths = whole.sections["DGL: who samples"]
    subgraphs = "ShaDowKHopSampler", "ClusterGCNSampler", "SAINTSampler"
    blocks = (
        "NeighborSampler",
        "MultiLayerFullNeighborSampler",
        "LaborSampler",
        "edges, negative_sampler.Uniform",
    )
    for name in (*blocks, *subgraphs):
        assert paths[name] == "pagraph's kernels"
    assert paths["a subclass with its own sample_blocks"].startswith("its own code")
    assert paths["edges, your own negative sampler"] == "pagraph's kernels, and your function"
    placeholder = type(sys.modules.get("dgl.graphbolt")).__name__ == "_Placeholder"
    assert ("placeholder" in paths["dgl.graphbolt"]) == placeholder


def test_who_samples_for_pyg(whole):
    pytest.importorskip("pagraph.pyg", reason="needs PyG")
    paths = whole.sections["PyG: who samples"]
    for name in ("NeighborLoader", "LinkNeighborLoader"):
        assert paths[name].startswith("pagraph's kernels")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU other rows are cached")
def test_who_reads_rows(whole):
    rows = whole.sections["who reads rows"]
    assert rows["in memory"] == "pagraph's kernels; on cpu a cache would save nothing"
    assert rows["in a mapped file"].startswith("pagraph's kernels; on cpu a cache")
    assert rows["columns swapped"].startswith("torch: rows are not contiguous")


def test_how_files_are_read(whole):
    ways = whole.sections["how files are read"]
    assert ways["past the page cache"] in ("aio", "threads")
    assert ways["through the page cache"] in ("readahead", "threads")
    assert ("aio" in ways) == (ways["past the page cache"] != "aio")


def test_findings_come_first():
    text = str(Diagnosis(["This is broken.", "That too."], {"versions": {"a": "1", "long": "2"}}))
    assert text == (
        "2 things to fix:\n1. This is broken.\n2. That too.\n\nversions\n  a     1\n  long  2"
    )
    assert (
        str(Diagnosis(["One."])) == "1 thing to fix:\n1. One."
        and str(Diagnosis()) == "nothing to fix"
    )


def test_what_is_to_mend(monkeypatch):
    nowhere = _kernel_folder.KernelFolder("", ("others may write to ~",))
    monkeypatch.setattr(_kernel_folder, "kernel_folder", lambda: nowhere)
    monkeypatch.setattr(_jit.numba.config, "DISABLE_JIT", 1)
    monkeypatch.setattr(doctor, "host_available", lambda: 1 << 20)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    found = diagnose()
    assert [sentence.split(",")[0] for sentence in found.findings] == [
        "compiled kernels are not kept",
        "NUMBA_DISABLE_JIT must be 0: pagraph's kernels run only compiled",
        "only 1 MiB of memory are available",
        f"torch computes with 10000 threads on {len(os.sched_getaffinity(0))} usable cores: set "
        "OMP_NUM_THREADS="
        f"{len(os.sched_getaffinity(0))}",
    ]
    kernels = {"folder": "none", "kept": "no", "compiled": "0 kernels", "compiler": "off"}
    assert found.sections["compiled kernels"] == kernels


def test_names_no_home(whole):
    assert str(Path.home()) not in str(whole)
    assert doctor._without_home(f"{Path.home()}/x") == "~/x"


def test_without_the_faces(monkeypatch):
    monkeypatch.setattr(
        doctor, "_installed", lambda package: package not in ("dgl", "torch_geometric")
    )
    found = diagnose()
    assert not any("DGL" in finding or "PyG" in finding for finding in found.findings)
    assert (
        "not installed" in found.sections["DGL: who samples"]
        and "not installed" in found.sections["PyG: who samples"]
    )


@pytest.mark.processes
@pytest.mark.parametrize("packages", [("dgl", "torch_geometric"), ("torch",), ("numba",)])
def test_a_package_that_cannot_be_imported_is_a_finding(tmp_path, packages):
    for package in packages:
        (tmp_path / package).mkdir()
        text = "raise RuntimeError('this build\\nis broken')"
        (tmp_path / package / "__init__.py").write_text(text)
    path = os.pathsep.join(
        [str(tmp_path), str(Path(pagraph.__file__).parent.parent), *filter(None, sys.path)]
    )
    command = [sys.executable, "-m", "pagraph", "doctor", "--json", str(tmp_path / "out.json")]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGING, env=environment, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    findings = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert len(findings) >= len(packages)
    assert all("RuntimeError: this build is broken" in finding for finding in findings), findings
    assert "to fix:\n1. " in done.stdout and "memory\n  physical" in done.stdout


def test_rates_of_a_disk(tmp_path):
    rates = measure_disk(tmp_path)
    assert rates.in_order > 0 and rates.random > 0 and list(tmp_path.iterdir()) == []


def test_command(tmp_path):
    done = CliRunner().invoke(
        main, ["doctor", "--disk", str(tmp_path), "--json", str(tmp_path / "out.json")]
    )
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert str(Diagnosis(**written)) == done.stdout.rstrip("\n") and "\x1b" not in done.stdout
    disk = written["sections"]["disk"]
    assert (
        "page cache" in disk
        and "reads/s of 4 KiB" in disk["random"]
        and str(tmp_path) not in done.stdout
    )


def test_a_disk_that_cannot_be_measured(tmp_path):
    missing = tmp_path / "missing"
    done = CliRunner().invoke(main, ["doctor", "--disk", str(missing)])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert any(finding.startswith("disk: ") for finding in diagnose(missing).findings)
