"""Benchmarks that compare loaders: both settings of ``OMP_WAIT_POLICY``, and that each one runs."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from fresh_processes import bare_python, forked_python

from pagraph.datasets import sbm, write_graph

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(
    not (BENCHMARKS / "sides.py").exists(), reason="needs the checkout, not only its tests"
)
SETTINGS = ["default", "passive"]


@pytest.fixture(scope="module")
def found():
    """Modules of the folder of benchmarks, by name."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path[:] = before


@pytest.fixture
def run(found, monkeypatch, tmp_path):
    """Runs a benchmark, and reads what it writes."""
    monkeypatch.setattr(sys, "executable", forked_python())

    def run_of(name, *options):
        monkeypatch.setattr(sys, "argv", [name, *options, "--output", str(tmp_path)])
        found(name).main()
        return json.loads((tmp_path / f"{name}.json").read_text())

    return run_of


class TestSettings:
    @pytest.mark.parametrize("inherited", [None, "active"])
    def test_the_default_is_no_variable(self, found, monkeypatch, inherited):
        if inherited is None:
            monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        else:
            monkeypatch.setenv("OMP_WAIT_POLICY", inherited)
        monkeypatch.setenv("PYTHONPATH", "/there")
        default, passive = (found("sides").environment(name, "/more") for name in SETTINGS)
        assert "OMP_WAIT_POLICY" not in default
        assert passive == default | {"OMP_WAIT_POLICY": "passive"}
        assert default["PYTHONPATH"] == "/more:/there"

    def test_the_faster_one_counts(self, found):
        report = found("report")
        slow, fast = (report.summarise(runs) for runs in ([3.0, 1.0, 2.0], [9.0, 1.5, 1.5]))
        counted = report.counted({"default": slow, "passive": fast})
        assert (counted["counted"], counted["median"], counted["min"]) == ("passive", 1.5, 1.5)
        assert counted["settings"] == {"default": slow, "passive": fast}
        of_two = {
            "default": {"epoch": slow, "loading": fast},
            "passive": {"epoch": fast, "loading": slow},
        }
        assert report.counted(of_two, "epoch")["loading"] == slow
        assert report.counted(of_two, "loading")["counted"] == "default"

    def test_a_commit_is_named_where_there_is_one(self, found, monkeypatch, tmp_path):
        report = found("report")
        assert report.revision(tmp_path) is None
        monkeypatch.setenv("PATH", str(tmp_path))  # without git
        assert report.revision(BENCHMARKS) is None
        report.write("some", {"a": 1}, tmp_path)
        written = json.loads((tmp_path / "some.json").read_text())
        assert (written["a"], written["revision"]) == (1, None)
        assert {"pagraph", "torch", "dgl", "torch_geometric"} <= set(written["machine"])


PRINTING = """
import os
print("null, which is no answer")
os.write(1, b"nor is this\\n")

class Made:
    def __init__(self, number):
        self.number = number

    def told(self, more):
        print("7")
        return [os.environ.get("OMP_WAIT_POLICY"), self.number + more]

    def end(self):
        os._exit(3)
"""


class TestSides:
    @pytest.fixture
    def sides(self, found, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "executable", bare_python())
        (tmp_path / "printing.py").write_text(PRINTING)
        with found("sides").Sides("printing:Made", [tmp_path], number=1) as sides:
            yield sides

    def test_each_process_has_its_setting(self, sides):
        assert sides.ask("told", more=2) == {"default": [None, 3], "passive": ["passive", 3]}
        assert sides.ask("told", more=5) == {"default": [None, 6], "passive": ["passive", 6]}

    def test_a_process_that_ends_is_an_error(self, sides):
        with pytest.raises(RuntimeError, match=r"printing:Made, passive: the process ended over"):
            sides.by_setting["passive"].ask("end")


LOGGING = """
import os
from contest import Case

class Loader:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def __iter__(self):
        with open(self.log, "a") as file:
            print(self.name, os.environ.get("OMP_WAIT_POLICY", "default"), file=file)
        yield from range(3)

def cases(options):
    case = lambda *names: Case(
        {name: lambda name=name: Loader(options.log, name) for name in names},
        lambda batch: {"batches": 1, "sum": batch},
    )
    return {"size": 5}, {"one": case("dgl, a", "pagraph, b"), "two": case("pagraph, c")}
"""


class TestContest:
    @pytest.mark.parametrize("apart", [False, True])
    def test_loaders_take_turns_in_both_settings(self, found, monkeypatch, tmp_path, apart):
        contest = found("contest")
        monkeypatch.setattr(sys, "executable", forked_python())
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        (tmp_path / "logging_cases.py").write_text(LOGGING)
        log = tmp_path / "log"
        options = contest.argparse.Namespace(rounds=2, log=str(log))
        facts, result = contest.run(tmp_path / "logging_cases.py", options, apart=apart)
        order = ["dgl, a"] * 2 + ["pagraph, b"] * 2 + ["pagraph, c"] * 2
        turns = [f"{name} {setting}" for name, setting in zip(order, SETTINGS * 3, strict=True)]
        wanted = turns[:4] * 3 + turns[4:] * 3 if apart else turns * 3
        assert log.read_text().splitlines() == wanted
        assert facts == {"size": 5}
        assert {key: list(of["loaders"]) for key, of in result.items()} == {
            "one": ["dgl, a", "pagraph, b"],
            "two": ["pagraph, c"],
        }
        theirs, ours = result["one"]["loaders"].values()
        assert theirs["times_as_fast_as_dgl"] == 1
        assert ours["times_as_fast_as_dgl"] == theirs["median"] / ours["median"]
        for figures in (theirs, ours):
            medians = {name: of["median"] for name, of in figures["settings"].items()}
            assert list(medians) == SETTINGS
            assert figures["median"] == min(medians.values()) == medians[figures["counted"]]
            assert len(figures["runs"]) == 2  # the first round is not counted
            assert (figures["batches"], figures["sum"]) == (3, 3)


RMAT = "--scale 9 --edges 2000 --dim 4 --seeds 60 --batch-size 30"
"""A graph and seeds that take no time."""


@pytest.mark.pages
class TestBenchmarks:
    @pytest.fixture(autouse=True)
    def _with_pyg(self):
        pytest.importorskip("torch_geometric")

    @pytest.mark.parametrize(
        ("name", "options", "cases"),
        [
            ("dgl_loader", RMAT, 2),
            ("labor", RMAT, 4),
            ("layerwise", f"{RMAT} --sizes 20,20", 2),
            ("link_prediction", RMAT, 2),
            ("weighted", RMAT, 4),
            ("heterograph", "--papers 500 --dim 4 --author-dim 2 --seeds 60 --batch-size 30", 2),
            (
                "dgl_subgraphs",
                "--scale 9 --edges 2000 --dim 4 --batch-size 30 --batches 2 --clusters 8 "
                "--budget 40",
                5,
            ),
            (
                "walks",
                "--scale 9 --edges 2000 --dim 4 --length 3 --starts 20 --items 100 --batch-size 4",
                8,
            ),
        ],
    )
    def test_measures_each_loader_in_both_settings(self, run, name, options, cases):
        written = run(name, *options.split(), "--rounds", "1")
        results = (of for of in written.values() if isinstance(of, dict))
        found = [of["loaders"] for of in results if "loaders" in of]
        assert len(found) == cases
        for loaders in found:
            for figures in loaders.values():
                assert list(figures["settings"]) == SETTINGS
                assert figures["times_as_fast_as_dgl"] > 0
        assert written["options"]["rounds"] == 1
        assert written["vertices"]
        assert written["machine"]["dgl"]
        assert "revision" in written

    def test_of_pygs_loader(self, run):
        written = run("pyg_loader", *RMAT.split(), "--rounds", "1")
        for case in ("sampling", "sampling_and_rows"):
            faces = written[case]["runs"]
            assert list(faces["dgl"]["loaders"]) == [
                f"pagraph.dgl, {threads}" for threads in ("no thread", "1 thread", "2 threads")
            ]
            for face in faces.values():
                assert all(list(r["settings"]) == SETTINGS for r in face["loaders"].values())

    def test_of_pygs_other_loaders(self, run):
        options = "--scale 9 --edges 2000 --dim 4 --papers 500 --clustered 500 --clusters 40"
        written = run("pyg_samplers", *options.split(), "--only", "Cluster", "--rounds", "1")
        assert list(written["cases"]) == ["Cluster"]

    def test_of_trees_in_time(self, run):
        options = ["--batches", "3", "--batch-size", "8", "--dim", "2", "--fanouts", "3,2"]
        written = run("relational", *options, "--torch-threads", "1", "--rounds", "1")
        key = "3,2, 1 of torch's threads"
        assert list(written["cases"]) == [f"{key}: {of}" for of in ("sampling", "batches", "calls")]

    def test_of_kinds_of_sampling(self, run):
        options = "--num-nodes 600 --num-edges 3000 --rounds 1"
        written = run("cliffs", *options.split())
        for table in written["seeds"].values():
            assert table["now"]["neighbor"]["ratio_a_batch"] == 1
            assert len(table["now"]) == 12

    def test_of_one_batch(self, found, monkeypatch, capsys):
        monkeypatch.setattr(sys, "executable", forked_python())
        monkeypatch.setattr(sys, "argv", ["per_batch", "--quick"])
        per_batch = found("per_batch")
        monkeypatch.setattr(per_batch, "SEEDS", (16,))
        monkeypatch.setattr(per_batch, "LOCK_SEEDS", (16,))
        monkeypatch.setattr(per_batch, "THREADS", (0, 1))
        monkeypatch.setitem(per_batch.QUICK, "seconds", 0.01)
        per_batch.main()
        assert "ms a batch of 16 seeds:" in capsys.readouterr().out

    def test_of_waiting_threads(self, run):
        options = "--nodes 300 --dim 4 --batch-size 20 --batches 2 --busy-batches 1 --busy-rounds 1"
        written = run("wait_policy", *options.split(), "--rounds", "1")
        for state, batches in (("idle", 2), ("busy", 1)):
            for case in ("dgl", "pyg"):
                loaders = written[state][case]["loaders"]
                assert {"model alone", *(f"pagraph, {n} threads" for n in range(3))} <= set(loaders)
                assert {figures["batches"] for figures in loaders.values()} == {batches}

    def test_of_training(self, found, monkeypatch, tmp_path):
        pytest.importorskip("pagraph.dgl", reason="needs DGL")
        monkeypatch.setattr(sys, "executable", forked_python())
        folder = tmp_path / "graph"
        write_graph(sbm(300, num_features=4, seed=0), folder)
        paper = found("paper")
        figures = paper.training(paper.Commands(tmp_path), folder, rounds=1, epochs=2)
        for way in ("dgl", "not_ahead", "ahead"):
            assert list(figures[way]["settings"]) == SETTINGS
        ratio = figures["ahead"]["epoch"]["median"] / figures["dgl"]["epoch"]["median"]
        assert figures["epoch_ahead_over_dgl"]["median"] == ratio
        sums = found("preaggregation").measure(folder, "sage", (3, 2), 2)
        assert list(sums["settings"]) == SETTINGS
        assert sums["test_accuracy"] >= 0

    def test_of_the_demo(self, found, monkeypatch, tmp_path, capfd):
        from pagraph.train.models import peers

        monkeypatch.setattr(sys, "executable", forked_python())
        write_graph(sbm(300, num_features=4, seed=0), tmp_path / "graph")
        monkeypatch.setattr(sys, "argv", ["demo", str(tmp_path / "graph"), "--epochs", "3"])
        found("demo").main()
        written = json.loads((tmp_path / "figures.json").read_text())
        assert list(written["loaders"]) == [*peers()[:1], "pagraph"]
        for figures in written["loaders"].values():
            medians = {name: of["epoch"]["median"] for name, of in figures["settings"].items()}
            assert list(medians) == SETTINGS
            assert figures["epoch"]["median"] == min(medians.values())
            assert len(figures["loading"]["runs"]) == 2  # the first epoch is not counted
        if peers():
            theirs, ours = written["loaders"].values()
            ratio = theirs["epoch"]["median"] / ours["epoch"]["median"]
            assert written["ratios"]["epoch"] == ratio
        assert written["machine"]["torch"]
        assert "run 2 of 2: OMP_WAIT_POLICY=passive pagraph train" in capfd.readouterr().out
