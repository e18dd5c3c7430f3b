"""OGB's folders written in bounded memory are those of memory, byte for byte."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from fresh_processes import forked_python
from test_bounded import little, same_folders  # noqa: F401  (a fixture)

from pagraph import FormatError
from pagraph.datasets import arrays as readers
from pagraph.datasets import edge_sort, import_graph, ogb_graph, read_graph, write_graph

NODES, EDGES = 90, 700
TYPES = {"author": 40, "paper": 90, "field": 5}
RELATIONS = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "has", "field")]


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """So few rows at a time that there are many blocks."""
    for module in (ogb_graph, edge_sort):
        monkeypatch.setattr(module, "_BLOCK_ROWS", 64)
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 256)


def arrays(draw):
    """A graph with self-loops and edges that come again."""
    edges = draw.integers(0, NODES, (2, EDGES))
    edges[:, ::50] = edges[:1, ::50]
    return {
        "edge_index": edges,
        "num_nodes_list": np.array([NODES]),
        "num_edges_list": np.array([EDGES]),
        "node_feat": draw.standard_normal((NODES, 5)).astype(np.float32),
        "node_year": draw.integers(1990, 2020, (NODES, 1)),
        "edge_feat": draw.random((EDGES, 3)).astype(np.float32),
        "edge_weight": draw.random((EDGES, 1)),
    }


def split(folder, ids):
    folder.mkdir(parents=True)
    torch.save({"train": ids[:20], "valid": ids[20:30], "test": ids[30:]}, folder / "split_dict.pt")


def one_type(folder, *, save=np.savez, **changes):
    draw = np.random.default_rng(0)
    (folder / "raw").mkdir(parents=True)
    save(folder / "raw" / "data.npz", **arrays(draw) | changes)
    label = draw.integers(0, 4, (NODES, 1)).astype(np.float32)
    save(folder / "raw" / "node-label.npz", node_label=label)
    split(folder / "split" / "time", torch.from_numpy(draw.permutation(NODES)))
    return folder


def several_types(folder):
    draw = np.random.default_rng(1)
    raw = folder / "raw"
    raw.mkdir(parents=True)
    edges = {}
    for source, relation, target in RELATIONS:
        ends = [draw.integers(0, TYPES[ntype], 300) for ntype in (source, target)]
        edges[f"{source}___{relation}___{target}"] = np.stack(ends)
    np.savez_compressed(raw / "edge_index_dict.npz", **edges)
    np.savez(raw / "num_nodes_dict.npz", **{t: np.array([n]) for t, n in TYPES.items()})
    np.savez(raw / "num_edges_dict.npz", **dict.fromkeys(edges, np.array([300])))
    np.savez(raw / "edge_reltype.npz", **{name: np.full((300, 1), 7) for name in edges})
    np.savez(raw / "node_feat_dict.npz", paper=draw.random((90, 3)).astype(np.float32))
    np.savez(raw / "node-label.npz", paper=draw.integers(0, 4, (90, 1)))
    ids = torch.from_numpy(draw.permutation(90))
    sets = {"train": {"paper": ids[:20]}, "valid": {"paper": ids[20:30]}, "test": {}}
    (folder / "split" / "time").mkdir(parents=True)
    torch.save(sets, folder / "split" / "time" / "split_dict.pt")
    return folder


def the_same(source, tmp_path, **options):
    in_memory = {name: value for name, value in options.items() if name != "store"}
    store = options.get("store")
    write_graph(read_graph(source, **in_memory), tmp_path / "memory", store=store)
    graph = import_graph(source, tmp_path / "files", **options)
    same_folders(tmp_path / "memory", tmp_path / "files")
    return graph


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("options", [{}, {"undirected": True}, {"store": "int8"}])
def test_arrays(save, options, tmp_path):
    graph = the_same(one_type(tmp_path / "o", save=save), tmp_path, **options)
    assert graph.ndata["label"].dtype == torch.int64 and graph.ndata["train_mask"].sum() == 20


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    "changes",
    [
        {"edge_index": np.asfortranarray(arrays(np.random.default_rng(0))["edge_index"])},
        {"edge_index": arrays(np.random.default_rng(0))["edge_index"].astype(">i4")},
        {"edge_index": arrays(np.random.default_rng(0))["edge_index"].astype(np.uint16)},
        {"edge_index": np.zeros((2, 0), dtype=np.int64), "num_edges_list": np.array([0])}
        | {"edge_feat": np.zeros((0, 3)), "edge_weight": np.zeros((0, 1))},
        {"node_feat": np.asfortranarray(np.random.default_rng(0).random((NODES, 5)))},
        {"node_feat": np.random.default_rng(0).random((NODES, 2, 3)).astype(">f4")},
    ],
)
def test_arrays_in_other_orders(changes, tmp_path):
    the_same(one_type(tmp_path / "o", **changes), tmp_path)


@pytest.mark.usefixtures("little")
def test_data_npz_alone(tmp_path):
    the_same(one_type(tmp_path / "o") / "raw" / "data.npz", tmp_path, undirected=True)


@pytest.mark.usefixtures("little")
def test_several_types(tmp_path):
    graph = the_same(several_types(tmp_path / "o"), tmp_path)
    assert graph.csc_of(RELATIONS[2]).num_dst == 5
    assert graph.node_fields("paper")["train_mask"].sum() == 20


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("make", [one_type, several_types])
def test_tables(make, tmp_path):
    pytest.importorskip("pyarrow")
    from pagraph.datasets import export_graph

    graph = read_graph(make(tmp_path / "o"))
    for etype in graph.edge_types:
        fields = graph.edge_fields(etype)
        if "weight" in fields:
            fields["weight"] = fields["weight"].float()
    export_graph(graph, tmp_path / "tables", form="ogb")
    the_same(tmp_path / "tables", tmp_path)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": np.full((2, EDGES), NODES)}, r"data.npz: src must be in \[0, 90\), got 90"),
        ({"edge_index": -np.ones((2, EDGES), dtype=int)}, r"src must be in \[0, 90\), got -1"),
        ({"num_edges_list": np.array([3])}, "must hold the 3 edges that num_edges_list says"),
        (
            {"edge_weight": np.ones((3, 1))},
            r"field 'weight' must have a row per edge \(700\), got 3",
        ),
        (
            {"node_feat": np.ones((3, 1))},
            r"field 'feat' must have one row per vertex \(90\), got 3",
        ),
        ({"num_nodes_list": np.array([2**60])}, "no more vertices than fit into memory"),
    ],
)
def test_what_does_not_fit_is_refused_as_in_memory(changes, message, tmp_path):
    source = one_type(tmp_path / "o", **changes)
    for read in (lambda: read_graph(source), lambda: import_graph(source, tmp_path / "g")):
        with pytest.raises(FormatError, match=message):
            read()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o"]


LARGE = """
import sys
import numpy as np
from pathlib import Path
raw = Path(sys.argv[1]) / "raw"
raw.mkdir(parents=True)
draw = np.random.default_rng(0)
feat = draw.integers(0, 255, (400_000, 512), dtype=np.uint8).view(np.float32)
np.savez(raw / "data.npz", edge_index=draw.integers(0, 400_000, (2, 24_000_000), dtype=np.int64),
         node_feat=np.tile(feat, 2), num_nodes_list=np.array([400_000]))
np.savez_compressed(raw / "node-label.npz", node_label=np.full((400_000, 1), np.nan))
"""


@pytest.mark.memory
def test_a_folder_larger_than_the_memory(in_group, tmp_path):
    # 0.8 GB of arrays, in two halves of which neither fits.
    subprocess.run([forked_python(), "-c", LARGE, tmp_path / "o"], check=True)
    command = [sys.executable, "-m", "pagraph", "import", tmp_path / "o", tmp_path / "g"]
    in_group(320, *command)
    whole = read_graph(tmp_path / "o")
    write_graph(whole, tmp_path / "memory", origin={"source": "o"})
    same_folders(tmp_path / "memory", tmp_path / "g")
