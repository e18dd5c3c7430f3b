"""``pagraph import`` writes what the library reads."""

import gzip
import json

import numpy as np
import pytest
import scipy.sparse
import torch
from click.testing import CliRunner

from pagraph import Graph
from pagraph.cli import main
from pagraph.datasets import sbm


def run(*args):
    return CliRunner().invoke(main, ["import", *map(str, args)])


def test_edge_list(tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"alice\tbob\t2\nbob\tcarl\t3\n"))
    done = run(
        tmp_path / "a.tsv.gz",
        tmp_path / "g",
        "--relabel",
        "--undirected",
        "--weight",
        "w",
        "--no-header",
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'g'}: 3 vertices, 4 edges, ")
    graph = Graph.open(tmp_path / "g", verify=True)
    assert graph.edata["w"].tolist() == [2, 3, 2, 3]
    origin = json.loads((tmp_path / "g" / "manifest.json").read_text())["origin"]
    assert origin == {"source": "a.tsv.gz"}


def test_times_keep_their_digits(tmp_path):
    (tmp_path / "h.csv").write_text(
        "src,dst,weight,time\na,b,0.5,1600000001\nb,c,2,1600000002\nc,a,3,1600000003\n"
    )
    assert run(tmp_path / "h.csv", tmp_path / "g", "--relabel", "--weight", "time").exit_code == 0
    times = Graph.open(tmp_path / "g").edata["time"]
    assert times.tolist() == [1600000001, 1600000002, 1600000003]
    assert (
        run(tmp_path / "h.csv", tmp_path / "f", "--relabel", "--weight", "time:float32").exit_code
        == 0
    )
    assert Graph.open(tmp_path / "f").edata["time"].tolist() == [1.6e9] * 3
    (tmp_path / "i.csv").write_text("src,dst,w\n1,2,0.5\n2,1,9007199254740993\n")
    done = run(tmp_path / "i.csv", tmp_path / "i", "--weight", "w")
    assert done.exit_code == 2 and done.stderr.endswith(
        "got 9007199254740993; --weight w:float64 rounds it\n"
    )


@pytest.mark.parametrize("option", ["time", "features", "labels", "train", "val", "test"])
def test_an_option_that_would_take_the_place_of_another(option, tmp_path):
    (tmp_path / "h.csv").write_text("src,dst,w,t\n0,1,0.5,1\n")
    done = run(tmp_path / "h.csv", tmp_path / "g", f"--{option}", "w", f"--{option}", "t")
    assert done.exit_code == 2 and f"{option} must be given once" in done.stderr
    assert "got 'w' and 't'" in done.stderr
    assert not (tmp_path / "g").exists()


def test_columns_of_an_edge_list(tmp_path, caplog):
    (tmp_path / "h.csv").write_text(
        'src,dst,amount,year,note,w\n0,1,1.5,2019,hi,3\n1,2,2.5,2020,"a, b",\n'
    )
    done = run(tmp_path / "h.csv", tmp_path / "all")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1] == "fields: of edges: amount: float32 [2], year: int64 [2]"
    assert "left out: note (its texts differ from row to row)" in caplog.text
    done = run(
        *(tmp_path / "h.csv", tmp_path / "some", "--weight", "amount", "--weight", "w:float32"),
        *("--field", "note", "--time", "year", "--missing", "nan"),
    )
    assert done.exit_code == 2 and "its texts differ from row to row" in done.stderr
    done = run(
        *(tmp_path / "h.csv", tmp_path / "some", "--weight", "amount", "--field", "w"),
        *("--time", "year", "--missing", "-1"),
    )
    assert done.exit_code == 0 and done.stderr == ""
    fields = Graph.open(tmp_path / "some", verify=True).edata
    assert {name: rows.tolist() for name, rows in fields.items()} == {
        "amount": [1.5, 2.5],
        "w": [3, -1],
        "time": [2019, 2020],
    }
    done = run(
        tmp_path / "h.csv", tmp_path / "few", "--skip-column", "year", "--skip-column", "note"
    )
    assert done.stdout.splitlines()[1] == "fields: of edges: amount: float32 [2]"


def test_a_line_for_each_column_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "h.csv").write_text(
        "src,dst,x,n,note,day,kind\n0,1,,1,hi,2024-01-01,a\n1,2,2.5,,b,2024-01-02,b\n"
        "2,2,3,NA,c,2024-01-02,a\n2,1,3,4,d,2024-01-02,a\n"
    )
    done = run(tmp_path / "h.csv", tmp_path / "g")
    assert [line.split(maxsplit=4) for line in done.stdout.splitlines()[2:]] == [
        ["column", "becomes", "missing", "notes"],
        ["x", "float32", "x", "1", "1 missing ones are NaN"],
        ["n", "nothing", "2", "2", "rows have no value: --missing -1 fills them"],
        ["note", "nothing", "0", "its", "texts differ from row to row"],
        ["day", "int64", "day", "0", "seconds"],
        ["kind", "int64", "kind", "0", "2 words: a, b"],
    ]
    columns = json.loads((tmp_path / "g" / "manifest.json").read_text())["columns"]
    assert columns[0] == {
        "table": "",
        "column": "x",
        "becomes": "float32 x",
        "missing": 1,
        "notes": "1 missing ones are NaN",
    }
    assert Graph.open(tmp_path / "g", verify=True).num_edges == 4
    # Numbers alone, from a text without names.
    (tmp_path / "a.txt").write_text("0 1\n")
    assert len(run(tmp_path / "a.txt", tmp_path / "a").stdout.splitlines()) == 2


def test_matrices_have_one_weight(tmp_path):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.eye(3, format="csr"))
    done = run(tmp_path / "a.npz", tmp_path / "g", "--weight", "w", "--weight", "v")
    assert done.exit_code == 2
    assert "--weight must be given once for a source of the form 'scipy'" in done.stderr
    done = run(tmp_path / "a.npz", tmp_path / "g", "--field", "w")
    assert done.exit_code == 2 and "--field must not be given for a source" in done.stderr
    assert run(tmp_path / "a.npz", tmp_path / "g", "--weight", "w").exit_code == 0


def test_says_whose_rows_were_taken(tmp_path):
    (tmp_path / "a.txt").write_text("user-2 user-10\n")
    np.save(tmp_path / "labels.npy", np.array([10, 2]))
    done = run(tmp_path / "a.txt", tmp_path / "g", "--relabel", "--labels", tmp_path / "labels.npy")
    assert done.exit_code == 0 and "in the order of the sorted ids" in done.stderr


def test_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x y\n0 1\n")
    assert run(tmp_path / "a.txt", tmp_path / "g", "--num-nodes", 7, "--header").exit_code == 0
    assert Graph.open(tmp_path / "g").num_nodes == 7


def test_scipy(tmp_path):
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.csr_matrix(np.eye(3)))
    assert run(tmp_path / "m.npz", tmp_path / "g").exit_code == 0
    assert Graph.open(tmp_path / "g").num_edges == 3


def test_dgl(tmp_path):
    pytest.importorskip("pagraph.dgl")
    import dgl

    dgl.save_graphs(str(tmp_path / "g.bin"), [dgl.rand_graph(10, 30)])
    assert run(tmp_path / "g.bin", tmp_path / "g").exit_code == 0
    assert Graph.open(tmp_path / "g", verify=True).num_edges == 30


def test_pyg_and_training_on_it(tmp_path):
    pytest.importorskip("pagraph.dgl")
    data = pytest.importorskip("torch_geometric.data")
    source = sbm(500, num_features=8)
    src, dst = source.csc.indices, source.csc.destinations()
    graph = data.Data(
        x=source.ndata["feat"], edge_index=torch.stack([src, dst]).long(), y=source.ndata["label"]
    )
    graph.update(
        {f"{part}_mask": source.ndata[f"{part}_mask"] for part in ("train", "val", "test")}
    )
    torch.save(graph.to_dict(), tmp_path / "g.pt")
    done = run(tmp_path / "g.pt", tmp_path / "g")
    assert (done.exit_code, done.stderr) == (0, "")
    opened = Graph.open(tmp_path / "g", verify=True)
    assert set(opened.ndata) == {"feat", "label", "train_mask", "val_mask", "test_mask"}
    assert torch.equal(opened.csc.indices, source.csc.indices)
    trained = CliRunner().invoke(main, ["train", str(tmp_path / "g"), "--epochs", "1"])
    assert trained.exit_code == 0, trained.output
    torch.save(torch.nn.Linear(2, 2), tmp_path / "bad.pt")
    bad = run(tmp_path / "bad.pt", tmp_path / "h")
    assert bad.exit_code == 2 and "it holds torch.nn.modules.linear.Linear" in bad.stderr
    assert not (tmp_path / "h").exists()


def test_pagraph_folder_with_another_split(tmp_path, data_folder):
    done = run(data_folder / "amazon-computers", tmp_path / "g", "--split", "pub_")
    assert done.exit_code == 0
    graph = Graph.open(tmp_path / "g", verify=True)
    assert int(graph.ndata["train_mask"].sum()) == 200
    assert graph.ndata["feat"].shape == (13752, 767)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", "0 1\nx 2\n", [], "line 2 must begin with two integers, got 'x 2'"),
        ("a.txt", "", [], "must hold at least 1 edge, got none"),
        ("a.txt", "0 5\n", ["--num-nodes", "3"], "must be below --num-nodes 3, got 5"),
        ("a.npz", "no zip", [], "must be a sparse matrix saved by scipy: it is not an .npz file"),
        ("a.bin", "no graph", [], "must be a file that DGL wrote"),
        ("a.xyz", "0 1\n", [], "source must be a graph folder, a file named out.NAME"),
        (
            "a.txt",
            "0 1\n",
            ["--split", "pub_"],
            "Error: --split must not be given for a source of the form 'edge list'",
        ),
        (None, None, [], "source must exist, got"),
    ],
)
def test_refuses(tmp_path, name, content, options, message):
    source = tmp_path / (name or "none")
    if name:
        source.write_text(content)
    done = run(source, tmp_path / "g", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "g").exists()
    assert len(list(tmp_path.iterdir())) == (1 if name else 0)


def test_existing_folder(tmp_path):
    (tmp_path / "a.txt").write_text("0 1\n")
    done = run(tmp_path / "a.txt", tmp_path)
    assert (done.exit_code, done.stderr) == (
        2,
        f"Error: OUT must not exist yet, got '{tmp_path}'\n",
    )
