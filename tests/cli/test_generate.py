"""``pagraph generate`` writes what the library generates."""

import json
import subprocess

import pytest
import torch
from click.testing import CliRunner
from fresh_processes import HANGING, forked_python
from runs import on_terminal

from pagraph import Graph
from pagraph.cli import main
from pagraph.cli.generate import command
from pagraph.datasets import citation, rmat, sbm, shop


def run(*args):
    return CliRunner().invoke(main, ["generate", *map(str, args)])


def same(one, other):
    assert torch.equal(one.csc.indptr, other.csc.indptr)
    assert torch.equal(one.csc.indices, other.csc.indices)
    assert list(one.ndata) == list(other.ndata)
    assert all(torch.equal(value, other.ndata[name]) for name, value in one.ndata.items())


def test_rmat(tmp_path):
    args = (
        "--scale 9 --edges 3000 --probabilities 0.5,0.2,0.2,0.1 --noise 0.05 --undirected --simple"
    )
    done = run("rmat", tmp_path / "g", *args.split(), "--features", 3, "--classes", 4, "--seed", 7)
    want = rmat(
        9,
        num_edges=3000,
        probabilities=(0.5, 0.2, 0.2, 0.1),
        noise=0.05,
        undirected=True,
        simple=True,
        num_features=3,
        num_classes=4,
        seed=7,
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'g'}: 512 vertices, {want.num_edges:,} edges, ")
    same(Graph.open(tmp_path / "g", verify=True), want)


def test_sbm(tmp_path):
    args = (
        "--nodes 300 --edges 900 --classes 3 --homophily 0.8 --exponent 3 --features 5 "
        "--feature-noise 0.1"
    )
    done = run("sbm", tmp_path / "g", *args.split(), "--fractions", "0.5,0.3,0.1", "--seed", 2)
    assert done.exit_code == 0
    want = sbm(
        300,
        num_edges=900,
        num_classes=3,
        homophily=0.8,
        exponent=3.0,
        num_features=5,
        feature_noise=0.1,
        fractions=(0.5, 0.3, 0.1),
        seed=2,
    )
    same(Graph.open(tmp_path / "g", verify=True), want)


def test_citation(tmp_path):
    args = (
        "--papers 300 --authors 200 --institutions 9 --authorships 3 --citations 2 --classes 3 "
        "--homophily 0.8"
    )
    done = run(
        "citation",
        tmp_path / "g",
        *args.split(),
        "--features",
        5,
        "--author-features",
        4,
        "--seed",
        2,
    )
    assert done.exit_code == 0
    want = citation(
        300,
        num_authors=200,
        num_institutions=9,
        authorships=3.0,
        citations=2.0,
        num_classes=3,
        homophily=0.8,
        num_features=5,
        num_author_features=4,
        seed=2,
    )
    assert done.stdout.startswith(f"{tmp_path / 'g'}: 509 vertices, {want.num_edges:,} edges, ")
    got = Graph.open(tmp_path / "g", verify=True)
    assert got.edge_types == want.edge_types
    for edge_type in want.edge_types:
        assert torch.equal(got.csc_of(edge_type).indices, want.csc_of(edge_type).indices)
    for name in want.node_types:
        assert list(got.node_fields(name)) == list(want.node_fields(name))
        assert all(
            torch.equal(value, want.node_fields(name)[key])
            for key, value in got.node_fields(name).items()
        )


def test_origin_and_reproducibility(tmp_path):
    for name in ("a", "b"):
        assert run("sbm", tmp_path / name, "--nodes", 100).exit_code == 0
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    origin = json.loads((tmp_path / "a" / "manifest.json").read_text())["origin"]
    assert (origin["generator"], origin["size"], origin["seed"]) == ("sbm", 100, 0)


@pytest.mark.parametrize(
    ("verb", "generator"), [("rmat", rmat), ("sbm", sbm), ("citation", citation), ("shop", shop)]
)
def test_defaults_are_the_library_s(verb, generator):
    params = command.commands[verb].make_context(verb, ["OUT"]).params
    for name, want in generator.__kwdefaults__.items():
        if name not in ("progress", "origin", "out"):
            assert params[name] == want, name
    size = {"rmat": "scale", "sbm": "num_nodes", "citation": "num_papers", "shop": "num_customers"}[
        verb
    ]
    assert set(params) - set(generator.__kwdefaults__) - {"out", "store"} == {size}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rmat", "--scale", "99"], "scale must be in [0, 40], got 99"),
        (
            ["rmat", "--probabilities", "1,2"],
            "probabilities must be 4 numbers with commas between, got '1,2'",
        ),
        (["rmat", "--probabilities", "a,b,c,d"], "probabilities must be 4 numbers"),
        (["rmat", "--fractions", "1,1,1"], "fractions must add up to at most 1"),
        (
            ["rmat", "--memory", "100MiB"],
            "that the process holds (one eighth of memory is reserved for it); got 100 MiB",
        ),
        (["rmat", "--memory", "10%"], "--memory must be bytes "),
        (["rmat", "--memory", "0"], ", and more than 0, got '0'"),
        (["sbm", "--nodes", "0"], "--nodes must be in"),
        (["sbm", "--homophily", "2"], "homophily must be in [0, 1], got 2.0"),
        (["sbm", "--fractions", "0.5"], "fractions must be 3 numbers"),
        (["shop", "--periods", "3"], "--periods must be at least 4, got 3"),
        (["shop", "--persistence", "0.4"], "persistence must be in [0.5, 1], got 0.4"),
        (["citation", "--papers", "0"], "--papers must be in"),
        (["citation", "--citations", "-1"], "citations must be a number of at least 0, got -1.0"),
    ],
)
def test_refuses(tmp_path, args, message):
    done = run(args[0], tmp_path / "g", *args[1:])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_refused_before_the_work(tmp_path):
    done = run("rmat", tmp_path, "--scale", "30")
    assert done.exit_code == 2
    assert done.stderr == f"Error: OUT must not exist yet, got '{tmp_path}'\n"


@pytest.mark.processes
def test_bar_on_a_terminal_and_none_in_a_pipe(tmp_path):
    command_line = [
        forked_python(),
        "-m",
        "pagraph",
        "generate",
        "rmat",
        "--scale",
        "10",
        str(tmp_path / "a"),
    ]
    piped = subprocess.run(command_line, capture_output=True, timeout=HANGING)
    assert (piped.returncode, piped.stderr) == (0, b"")
    command_line[-1] = str(tmp_path / "b")
    seen, screen = on_terminal(command_line)
    assert seen.returncode == 0
    assert b"generating" in screen
    assert b"\x1b" not in seen.stdout
