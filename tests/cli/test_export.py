"""``pagraph export`` writes what ``pagraph import`` reads; a wrong path says which verb takes
it."""

import pytest
import scipy.io
import scipy.sparse
from click.testing import CliRunner

from pagraph import Graph
from pagraph.cli import main
from pagraph.datasets import sbm, write_graph


def run(*args):
    return CliRunner().invoke(main, [*map(str, args)])


@pytest.fixture
def blocks(tmp_path):
    write_graph(sbm(60, num_features=4), tmp_path / "blocks")
    return tmp_path / "blocks"


def test_tables_and_back(blocks, tmp_path):
    pytest.importorskip("pyarrow")
    done = run("export", blocks, tmp_path / "tables", "--form", "ogb")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'tables'}: 60 vertices, ") and done.stdout.endswith(
        "as ogb reads it\n"
    )
    assert run("import", tmp_path / "tables", tmp_path / "back").exit_code == 0
    want, got = Graph.open(blocks), Graph.open(tmp_path / "back", verify=True)
    assert {name: values.tolist() for name, values in got.ndata.items()} == {
        n: v.tolist() for n, v in want.ndata.items()
    }


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("out", ["--form", "dgl"], "OUT must end in .bin for the form dgl, got"),
        ("blocks", ["--form", "ogb"], "OUT must not exist yet"),
        ("out", ["--form", "csv"], "'csv' is not one of 'dgl', 'pyg', 'ogb'"),
        ("out", [], "Missing option '--form'"),
        ("out", ["--form", "ogb", "--split", "x_"], "--split must be one of"),
    ],
)
def test_refuses(out, options, message, blocks, tmp_path):
    done = run("export", blocks, tmp_path / out, *options)
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks"]


@pytest.mark.parametrize("verb", ["info", "train", "profile", "preaggregate"])
def test_a_file_to_import(verb, tmp_path):
    path = tmp_path / "a graph.mtx"
    scipy.io.mmwrite(path, scipy.sparse.eye(3))
    done = run(verb, path, *([tmp_path / "out"] if verb == "preaggregate" else []))
    assert done.exit_code == 2
    assert done.stderr.endswith(
        f"; it is a Matrix Market file: `pagraph import '{path}' OUT` converts it "
        "to a graph folder\n"
    )


def test_no_hint_about_what_is_to_be_written(blocks, tmp_path):
    (tmp_path / "out.pt").touch()
    done = run("export", blocks, tmp_path / "out.pt", "--form", "pyg")
    assert (
        done.exit_code == 2
        and done.stderr == f"Error: OUT must not exist yet, got '{tmp_path / 'out.pt'}'\n"
    )


def test_a_folder_to_import(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "edge.csv.gz").touch()
    done = run("info", tmp_path)
    assert f"; it is an OGB data set: `pagraph import {tmp_path} OUT` converts it" in done.stderr


def test_a_folder_of_parts_and_a_file_of_a_folder(blocks, tmp_path):
    parts = tmp_path / "parts"
    assert (
        run(
            "partition", blocks, parts, "-k", 2, "--hops", 1, "--method", "hash", "--cache", 0
        ).exit_code
        == 0
    )
    for verb in (["info", parts], ["import", parts, tmp_path / "out"]):
        done = run(*verb)
        assert done.exit_code == 2
        assert (
            f"; a folder of parts is for `pagraph train {parts}` and `pagraph partition verify"
            in done.stderr
        )
    for verb in (
        ["info", blocks / "manifest.json"],
        ["import", blocks / "manifest.json", tmp_path / "out"],
    ):
        assert run(*verb).stderr.endswith(f"; give its folder: {blocks}\n")


def test_fields_and_hints_of_import(tmp_path):
    (tmp_path / "e.txt").write_text("a b\nb c\n")
    assert (
        "; --relabel takes any words as ids"
        in run("import", tmp_path / "e.txt", tmp_path / "g").stderr
    )
    done = run(
        "import", tmp_path / "e.txt", tmp_path / "g", "--relabel", "--train", "0.7", "--test", "0.3"
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert Graph.open(tmp_path / "g").ndata["train_mask"].sum() == 2
    wrong = run("import", tmp_path / "e.txt", tmp_path / "h", "--relabel", "--train", "2")
    assert wrong.stderr == "Error: --train must be a file or a fraction in (0, 1], got 2\n"
