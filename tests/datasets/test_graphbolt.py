"""Folders for GraphBolt's ``OnDiskDataset``."""

import logging

import numpy as np
import pytest
import torch
from tiny_graphs import ends

from pagraph import FormatError
from pagraph.datasets import read_graph
from pagraph.graph.graph import EDGE_TYPE

yaml = pytest.importorskip("yaml")


def array(folder, name, values, form="numpy"):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if form == "torch":
        torch.save(torch.as_tensor(values), path)
    else:
        np.save(path, values)
    return {"format": form, "path": name}


def describe(folder, description):
    (folder / "metadata.yaml").write_text(yaml.safe_dump(description))
    return folder


@pytest.fixture(params=["seed_nodes", "seeds"])
def one_type(request, tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n3,0\n")
    sets = {
        name: [{"data": [{"name": request.param, **array(tmp_path, f"set/{name}.npy", np.array(ids))},
                         {"name": "labels", **array(tmp_path, f"set/{name}-l.npy", np.array(labels))}]}]
        for name, ids, labels in (("train_set", [0, 3], [5, 6]), ("validation_set", [1], [7]))
    }  # fmt: skip
    return {
        "dataset_name": "tiny",
        "graph": {"nodes": [{"num": 4}], "edges": [{"format": "csv", "path": "edges.csv"}]},
        "feature_data": [
            {
                "domain": "node",
                "name": "feat",
                **array(tmp_path, "feat.npy", np.ones((4, 2), dtype=np.float32)),
            },
            {
                "domain": "edge",
                "type": None,
                "name": "w",
                **array(tmp_path, "w.pt", [1.0, 2.0, 3.0], "torch"),
            },
        ],
        "tasks": [{"name": "classes", "num_classes": 8, **sets}],
    }


def test_one_type(one_type, tmp_path):
    for source in (describe(tmp_path, one_type), tmp_path / "metadata.yaml"):
        graph = read_graph(source)
        assert ends(graph, EDGE_TYPE).tolist() == [[0, 1], [1, 2], [3, 0]]
        assert graph.ndata["feat"].shape == (4, 2) and graph.edata["w"].tolist() == [1, 2, 3]
        assert graph.ndata["label"].tolist() == [5, 7, -1, 6]
        assert graph.ndata["train_mask"].tolist() == [True, False, False, True]
        assert graph.ndata["val_mask"].tolist() == [False, True, False, False]
        assert "test_mask" not in graph.ndata


def test_several_types(tmp_path, caplog):
    edges = array(tmp_path, "e.npy", np.array([[0, 1], [2, 0]]))
    seeds = {"name": "seed_nodes", **array(tmp_path, "s.pt", [1], "torch")}
    pairs = {"name": "node_pairs", **array(tmp_path, "p.npy", np.array([[0, 2]]))}
    description = {
        "graph": {
            "nodes": [{"type": "author", "num": 2}, {"type": "paper", "num": 3}],
            "edges": [{"type": "author:writes:paper", **edges}],
            "feature_data": [
                {
                    "domain": "node",
                    "type": "paper",
                    "name": "year",
                    **array(tmp_path, "y.npy", np.arange(3)),
                }
            ],
        },
        "tasks": [
            {"name": "links", "train_set": [{"type": "author:writes:paper", "data": [pairs]}]},
            {"name": "classes", "train_set": [{"type": "paper", "data": [seeds]}]},
        ],
    }
    with caplog.at_level(logging.WARNING):
        graph = read_graph(describe(tmp_path, description))
    assert "the task 'links' is left out" in caplog.text
    assert graph.num_nodes_by_type == {"author": 2, "paper": 3}
    assert ends(graph, ("author", "writes", "paper")).tolist() == [[0, 2], [1, 0]]
    assert graph.node_fields("paper")["year"].tolist() == [0, 1, 2]
    assert graph.node_fields("paper")["train_mask"].tolist() == [False, True, False]


def test_labels_among_the_features_stay(one_type, tmp_path):
    label = {"domain": "node", "name": "label", **array(tmp_path, "label.npy", np.arange(4))}
    one_type["feature_data"].append(label)
    assert read_graph(describe(tmp_path, one_type)).ndata["label"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [np.uint8, bool])
def test_labels_without_a_sign(dtype, one_type, tmp_path):
    for name in ("train_set", "validation_set"):
        labels = np.load(tmp_path / "set" / f"{name}-l.npy") % 2
        np.save(tmp_path / "set" / f"{name}-l.npy", labels.astype(dtype))
    assert read_graph(describe(tmp_path, one_type)).ndata["label"].tolist() == [1, 1, -1, 0]


def test_labels_of_another_kind(one_type, tmp_path):
    np.save(tmp_path / "set" / "validation_set-l.npy", np.array([0.5]))
    with pytest.raises(
        FormatError, match="labels must be of one kind, one row per seed, got torch.float64"
    ):
        read_graph(describe(tmp_path, one_type))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("graph"), "graph must be a JSON dict|graph must be"),
        (lambda d: d["graph"].update(nodes=[{"num": -1}]), "num must be at least 0, got -1"),
        (
            lambda d: d["graph"].update(nodes=[{"num": 2}]),
            r"edges _N:_E:_N: .* must be in \[0, 2\), got",
        ),
        (lambda d: d["graph"].update(edges=[]), "edges must hold at least 1 edge type"),
        (
            lambda d: d["graph"]["edges"][0].update(type="a:b"),
            "type must be source:relation:target, got 'a:b'",
        ),
        (
            lambda d: d["graph"]["edges"][0].update(type="a:b:c"),
            r"edges must join types of \['_N'\], got a:b:c",
        ),
        (
            lambda d: d["graph"]["edges"][0].update(path="none.csv"),
            "none.csv is missing, and .* names it",
        ),
        (lambda d: d["feature_data"][0].update(path="../../etc/passwd"), "must name a file inside"),
        (lambda d: d["feature_data"][0].update(path="/etc/passwd"), "must name a file inside"),
        (lambda d: d["feature_data"][0].update(path="w.pt"), "must be a .npy file"),
        (
            lambda d: d["feature_data"][0].update(format="pickle"),
            "format must be 'numpy' or 'torch'",
        ),
        (
            lambda d: d["feature_data"][1].update(domain="node"),
            r"field 'w' must have one row per vertex \(4\), got 3",
        ),
        (
            lambda d: d["feature_data"][0].update(name="\x1b[2J"),
            "name must be printable characters",
        ),
        (lambda d: d.update(tasks="no"), "tasks must be"),
        (lambda d: d.update(tasks=[1]), "train_set must be in a mapping, got 1"),
        (
            lambda d: d["tasks"][0].update(train_set=[{"data": [1]}]),
            "name must be in a mapping, got 1",
        ),
        (lambda d: d["graph"].update(edges=["edges.csv"]), "path must be a JSON str, got None"),
    ],
)
def test_refuses(change, message, one_type, tmp_path):
    change(one_type)
    with pytest.raises(FormatError, match=message):
        read_graph(describe(tmp_path, one_type))


@pytest.mark.parametrize(
    "text", ["[", "- 1", "!!python/object/apply:os.mkdir [evil]", "a" * 2**21, "\x00"]
)
def test_what_is_no_description(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metadata.yaml").write_text(text)
    with pytest.raises(
        FormatError, match="must be YAML|must hold a mapping|must be a file of at most"
    ):
        read_graph(tmp_path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("deepest", ["[*a8, *a8]", "&b [*b]"])
def test_what_repeats_itself_without_end(deepest, tmp_path):
    lines = [
        "a0: &a0 [x]",
        *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(8)),
    ]
    (tmp_path / "metadata.yaml").write_text("\n".join([*lines, f"graph: {deepest}"]))
    with pytest.raises(
        FormatError, match="must have at most 100000 entries, with those that it repeats"
    ):
        read_graph(tmp_path)


def test_preprocessed_folder(tmp_path):
    describe(tmp_path, {"graph_topology": {"type": "FusedCSCSamplingGraph", "path": "g.pt"}})
    with pytest.raises(
        FormatError, match="it describes a preprocessed data set: give the folder above it"
    ):
        read_graph(tmp_path)
