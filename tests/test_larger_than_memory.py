"""The benchmark of graphs larger than memory, at a size that takes seconds, and what it measures
with."""

import functools
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fresh_processes import HANGING, forked_python

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(
        not (BENCHMARKS / "disk_runs.py").exists(), reason="needs the checkout, not only its tests"
    ),
]


@pytest.fixture(scope="module")
def found():
    """Modules of the folder of benchmarks, by name."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path[:] = before


@pytest.fixture
def hierarchy(found):
    groups = found("memory_group")
    try:
        return groups.find_hierarchy()
    except groups.NoGroupError as error:
        pytest.skip(str(error))


class TestMemoryGroup:
    def test_a_command_without_a_limit(self, found):
        done = found("memory_group").run(
            [sys.executable, "-c", "print('here'); bytearray(200 << 20)"]
        )
        assert (done.code, done.output, done.peak, done.out_of_memory) == (0, ["here"], None, False)
        assert done.resident > 200 << 20

    def test_ends_what_takes_too_long(self, found):
        done = found("memory_group").run(["sh", "-c", "echo begun; sleep 60"], timeout=1)
        assert done.timed_out
        assert done.code < 0
        assert done.output == ["begun"]
        assert done.seconds < 30

    @pytest.mark.parametrize(("asked", "killed"), [(16, False), (400, True)])
    def test_kills_what_needs_more_than_its_limit(self, found, hierarchy, asked, killed):
        code = f"a = bytearray({asked} << 20); a[::4096] = b'x' * len(a[::4096]); print('done')"
        before = set(hierarchy.root.iterdir())
        limit = 128 << 20
        done = found("memory_group").run(
            [sys.executable, "-c", code], limit=limit, hierarchy=hierarchy, timeout=HANGING
        )
        assert done.out_of_memory == killed
        assert done.output == ([] if killed else ["done"])
        assert asked << 20 < done.peak or killed
        assert done.peak <= limit
        assert set(hierarchy.root.iterdir()) == before

    def test_says_why_it_can_make_none(self, found, tmp_path):
        groups = found("memory_group")
        with pytest.raises(groups.NoGroupError, match="version 1 in .*memory: No such file"):
            groups.find_hierarchy(tmp_path)


class TestDisk:
    def test_its_own_rate(self, found, tmp_path):
        (tmp_path / "file").write_bytes(bytes(4 << 20))
        try:
            rate = found("disk_rate").random_reads(tmp_path / "file", 5000, depth=8, seconds=0.1)
        except OSError as error:
            pytest.skip(f"no asynchronous direct reads here: {error}")
        assert rate["request_bytes"] == 5120
        assert rate["bytes"] == pytest.approx(rate["reads"] * 5120)

    def test_refuses_a_file_of_few_reads(self, found, tmp_path):
        (tmp_path / "file").write_bytes(bytes(1 << 20))
        with pytest.raises(ValueError, match="at least 100 times as long as a read, got 16"):
            found("disk_rate").random_reads(tmp_path / "file", 1 << 16)


def test_small_run(found, tmp_path, monkeypatch):
    driver, runs = found("larger_than_memory"), found("disk_runs")
    sizes = {"scale": 15, "width": 64, "batches": 3, "structure_scale": 14, "rounds": 1}
    monkeypatch.setattr(driver, "QUICK", runs.Settings(**sizes, structure_limit=2 << 30))
    # Of the processes that write graphs or count; those that are measured remain real ones.
    monkeypatch.setattr(sys, "executable", forked_python())
    work = runs.Bench.work

    def counting(bench, contender, *arguments, **options):
        if contender.name == "count":
            contender = replace(contender, python=forked_python())
        return work(bench, contender, *arguments, **options)

    monkeypatch.setattr(runs.Bench, "work", counting)
    short = functools.partial(runs.random_reads, seconds=0.2)
    monkeypatch.setattr(runs, "random_reads", short)
    command = ["larger_than_memory.py", "--folder", str(tmp_path), "--rows", "sampling", "features"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "out")])
    driver.main()
    written = json.loads((tmp_path / "out" / "larger_than_memory.json").read_text())
    sampling, features = (written["rows"][name] for name in ("sampling", "features"))
    ours = sampling["contenders"]["pagraph"]
    assert ours["complete"] == 1
    assert not ours["out_of_memory"]
    assert ours["read_bytes"] > 0.5 * sampling["needed"]["bytes"] > 0
    seeds = np.load(tmp_path / "rmat-15-64-seeds-600.npy")
    assert len(np.unique(seeds)) == 600
    (needed,) = features["needed"]
    assert 600 < needed["distinct_rows"] == needed["rows"] <= 2**15
    ours = features["contenders"]["pagraph"]
    assert ours["rows"] >= needed["distinct_rows"]
    assert ours["read_bytes"] >= 0.9 * needed["distinct_rows"] * needed["row_bytes"]
    assert "timeline" in features

    monkeypatch.setattr(runs.Bench, "measure", None)  # all is there already
    driver.main()
