"""Graphs of OGB data sets, and of their folders, against what OGB's own readers give.

Nothing is downloaded: OGB is pointed at small folders of the same form.
"""

import importlib.util

import numpy as np
import pytest
import torch
from tiny_graphs import assert_same, ends

from pagraph import CSC, FormatError, Graph
from pagraph.datasets import import_graph, read_graph
from pagraph.graph.graph import EDGE_TYPE

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
# OGB's own, and those of what it imports.
pytestmark = pytest.mark.filterwarnings("ignore")
NODES = 60
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture
def ogb(monkeypatch):
    """OGB's package, whose ``torch.load`` takes its own files with newer torch, too."""
    monkeypatch.setenv("OUTDATED_IGNORE", "1")  # it would ask a server for newer versions
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    if importlib.util.find_spec("dgl"):
        import pagraph.dgl  # noqa: F401  (DGL alone may not load beside this torch)
    pytest.importorskip("ogb", reason="needs OGB's package (pip install ogb)")
    import ogb.nodeproppred

    return ogb


def table(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(
        path, index=False, header=options.get("header", False), compression="gzip"
    )


def described(folder, **changes):
    """What OGB knows of a data set, for a folder that is there already."""
    (folder / "RELEASE_v1.txt").touch()
    (folder / "processed").mkdir(exist_ok=True)
    return {
        "dir_path": str(folder),
        "version": 1,
        "download_name": "none",
        "url": "none",
        "num tasks": 1,
        "num classes": 5,
        "eval metric": "acc",
        "task type": "multiclass classification",
        "is hetero": "False",
        "binary": "False",
        "add_inverse_edge": "False",
        "has_node_attr": "True",
        "has_edge_attr": "True",
        "additional node files": "node_year",
        "additional edge files": "edge_weight",
        "split": "time",
    } | changes


def drawn(binary):
    """Arrays of a graph of one type: features, years, fields of edges, labels and a split."""
    draw = np.random.default_rng(3)
    ids = draw.permutation(NODES)
    label = draw.integers(0, 5, (NODES, 1)).astype(np.float32)
    if binary:
        label[ids[40:]] = np.nan
    return (
        {
            "edge_index": draw.integers(0, NODES, (2, 300)),
            "node_feat": draw.standard_normal((NODES, 4)).astype(np.float32),
            "node_year": draw.integers(1990, 2020, (NODES, 1)),
            "edge_feat": draw.integers(0, 9, (300, 2)),
            "edge_weight": draw.random((300, 1)).astype(np.float32),
        },
        label,
        {"train": ids[:20], "valid": ids[20:30], "test": ids[30:40]},
    )


def one_type(folder, *, binary, packed=False):
    """A folder of a graph of one type, and OGB's description of it."""
    arrays, label, split = drawn(binary)
    raw, sets = folder / "raw", folder / "split" / "time"
    raw.mkdir(parents=True)
    sets.mkdir(parents=True)
    if binary:
        save = np.savez_compressed if packed else np.savez
        counts = {"num_nodes_list": np.array([NODES]), "num_edges_list": np.array([300])}
        save(raw / "data.npz", **arrays, **counts)
        save(raw / "node-label.npz", node_label=label)
        torch.save(split, sets / "split_dict.pt")
    else:
        table(raw / "edge.csv.gz", arrays["edge_index"].T)
        table(raw / "num-node-list.csv.gz", [NODES])
        table(raw / "num-edge-list.csv.gz", [300])
        table(raw / "node-label.csv.gz", label.astype(int))
        for name in ("node_feat", "edge_feat"):
            table(raw / f"{name.replace('_', '-')}.csv.gz", arrays[name].astype(object))
        for name in ("node_year", "edge_weight"):
            table(raw / f"{name}.csv.gz", arrays[name].astype(object))
        for name, ids in split.items():
            table(sets / f"{name}.csv.gz", ids)
    return described(folder, binary=str(binary))


def several_types(folder, *, binary):
    """A folder like ogbn-mag's, and OGB's description of it."""
    draw = np.random.default_rng(4)
    raw, sets = folder / "raw", folder / "split" / "time"
    counts = {"author": 7, "paper": 9}
    edges = {
        WRITES: np.stack([draw.integers(0, 7, 40), draw.integers(0, 9, 40)]),
        CITES: draw.integers(0, 9, (2, 30)),
    }
    feat, year = draw.standard_normal((9, 3)).astype(np.float32), draw.integers(2000, 2020, (9, 1))
    label, ids = draw.integers(0, 5, (9, 1)), draw.permutation(9)
    split = {"train": ids[:4], "valid": ids[4:6], "test": ids[6:]}
    raw.mkdir(parents=True)
    sets.mkdir(parents=True)
    if binary:
        by_name = {"___".join(etype): ends for etype, ends in edges.items()}
        np.savez_compressed(raw / "edge_index_dict.npz", **by_name)
        np.savez(raw / "num_nodes_dict.npz", **{t: np.array([n]) for t, n in counts.items()})
        sizes = {name: np.array([ends.shape[1]]) for name, ends in by_name.items()}
        np.savez(raw / "num_edges_dict.npz", **sizes)
        kinds = {name: np.full((len(e[0]), 1), i) for i, (name, e) in enumerate(by_name.items())}
        np.savez(raw / "edge_reltype.npz", **kinds)
        np.savez(raw / "node_feat_dict.npz", paper=feat)
        np.savez(raw / "node_year.npz", paper=year)
        np.savez(raw / "node-label.npz", paper=label)
        torch.save({name: {"paper": some} for name, some in split.items()}, sets / "split_dict.pt")
    else:
        table(raw / "triplet-type-list.csv.gz", list(edges))
        table(raw / "num-node-dict.csv.gz", {t: [n] for t, n in counts.items()}, header=True)
        for i, (etype, both) in enumerate(edges.items()):
            of_type = raw / "relations" / "___".join(etype)
            table(of_type / "edge.csv.gz", both.T)
            table(of_type / "num-edge-list.csv.gz", [both.shape[1]])
            table(of_type / "edge_reltype.csv.gz", np.full((both.shape[1], 1), i))
        table(raw / "node-feat" / "paper" / "node-feat.csv.gz", feat.astype(object))
        table(raw / "node-feat" / "paper" / "node_year.csv.gz", year)
        table(raw / "nodetype-has-label.csv.gz", {"author": [False], "paper": [True]}, header=True)
        table(sets / "nodetype-has-split.csv.gz", {"author": [False], "paper": [True]}, header=True)
        table(raw / "node-label" / "paper" / "node-label.csv.gz", label)
        for name, some in split.items():
            table(sets / "paper" / f"{name}.csv.gz", some)
    return described(
        folder,
        **{
            "binary": str(binary),
            "is hetero": "True",
            "additional edge files": "edge_reltype",
            "has_edge_attr": "False",
        },
    )


FORMS = {
    "tables": lambda folder: one_type(folder, binary=False),
    "arrays": lambda folder: one_type(folder, binary=True),
    "packed arrays": lambda folder: one_type(folder, binary=True, packed=True),
    "tables of types": lambda folder: several_types(folder, binary=False),
    "arrays of types": lambda folder: several_types(folder, binary=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_in_memory_and_in_files(form, tmp_path):
    FORMS[form](tmp_path / "o")
    assert_same(import_graph(tmp_path / "o", tmp_path / "g"), read_graph(tmp_path / "o"))


def plain_graph(dataset, split):
    """What OGB's reader of plain arrays gives, as a graph made by hand."""
    arrays, labels = dataset[0]
    typed = "edge_index_dict" in arrays
    counts = arrays["num_nodes_dict"] if typed else {"_N": arrays["num_nodes"]}
    edges = arrays["edge_index_dict"] if typed else {EDGE_TYPE: arrays["edge_index"]}
    graph = Graph(
        {t: csc(both, counts, t) for t, both in edges.items()},
        {t: int(n) for t, n in counts.items()},
    )
    for name, values in arrays.items():
        ours = name.removesuffix("_dict")
        owner, _, field = ours.partition("_")
        if owner not in ("node", "edge") or ours == "edge_index" or values is None:
            continue
        only = "_N" if owner == "node" else EDGE_TYPE
        for kind, rows in (values if typed else {only: values}).items():
            rows = torch.from_numpy(rows)
            rows = rows if field == "feat" or rows.shape[1] > 1 else rows[:, 0]
            options = {"node_type": kind} if owner == "node" else {"edge_type": kind}
            graph.set_field(field, rows, **options)
    for kind, rows in (labels if typed else {"_N": labels}).items():
        dtype = torch.float32 if np.isnan(rows).any() else torch.int64
        graph.set_field("label", torch.from_numpy(rows)[:, 0].to(dtype), node_type=kind)
    for name, part in (("train", "train"), ("valid", "val"), ("test", "test")):
        for kind, ids in (split[name] if typed else {"_N": split[name]}).items():
            mask = torch.zeros(int(counts[kind]), dtype=torch.bool)
            mask[torch.as_tensor(ids)] = True
            graph.set_field(f"{part}_mask", mask, node_type=kind)
    return graph


def csc(both, counts, etype):
    return CSC.from_coo(both[0], both[1], (int(counts[etype[0]]), int(counts[etype[2]])))


@pytest.mark.parametrize("form", FORMS)
def test_plain_arrays(form, ogb, tmp_path):
    meta = FORMS[form](tmp_path / "o")
    dataset = ogb.nodeproppred.NodePropPredDataset("ogbn-any", meta_dict=meta)
    want = plain_graph(dataset, dataset.get_idx_split())
    assert_same(Graph.from_ogb(dataset), want)
    assert_same(read_graph(tmp_path / "o"), want)
    # Read again from what OGB kept.
    assert_same(
        Graph.from_ogb(ogb.nodeproppred.NodePropPredDataset("ogbn-any", meta_dict=meta)), want
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["PygNodePropPredDataset", "DglNodePropPredDataset"])
def test_of_pyg_and_dgl(name, form, ogb, tmp_path):
    package = "torch_geometric" if name.startswith("Pyg") else "dgl"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    meta = FORMS[form](tmp_path / "o")
    graph = Graph.from_ogb(getattr(ogb.nodeproppred, name)("ogbn-any", meta_dict=meta))
    assert_same(graph, read_graph(tmp_path / "o"))
    processed = tmp_path / "o" / "processed" / "geometric_data_processed.pt"
    if processed.exists():  # the same but for the split, which is in other files, and some names
        assert ends(read_graph(processed), graph.edge_types[0]).equal(
            ends(graph, graph.edge_types[0])
        )


def test_both_directions_are_those_of_ogb(ogb, tmp_path):
    meta = one_type(tmp_path / "o", binary=False) | {"add_inverse_edge": "True"}
    dataset = ogb.nodeproppred.NodePropPredDataset("ogbn-any", meta_dict=meta)
    graph = Graph.from_ogb(dataset)
    assert ends(graph, EDGE_TYPE).T.numpy().tolist() == dataset[0][0]["edge_index"].tolist()
    # Of the folder the same edges in another order, self-loops once.
    folder = ends(read_graph(tmp_path / "o", undirected=True), EDGE_TYPE).tolist()
    loops = sum(src == dst for src, dst in folder)
    assert graph.num_edges == len(folder) + loops
    assert {tuple(pair) for pair in folder} == {
        tuple(pair) for pair in ends(graph, EDGE_TYPE).tolist()
    }


def test_labels_of_a_regression_are_floats(ogb, tmp_path):
    meta = one_type(tmp_path / "o", binary=False) | {"task type": "regression"}
    dataset = ogb.nodeproppred.NodePropPredDataset("ogbn-any", meta_dict=meta)
    assert Graph.from_ogb(dataset).ndata["label"].dtype == torch.float32


def test_a_split_that_is_none(ogb, tmp_path, monkeypatch):
    meta = one_type(tmp_path / "o", binary=False)
    dataset = ogb.nodeproppred.NodePropPredDataset("ogbn-any", meta_dict=meta)
    for split, message in (
        ({"train": np.array([0, 60])}, "dataset's split 'train' must hold ids of vertices"),
        ({"train": np.array([0.5])}, "dataset's split 'train' must hold ids of vertices"),
        (
            {"train": np.array([4, 5]), "valid": np.array([1, 5])},
            "split 'valid' must have no vertex in common with dataset's split 'train', got 1, "
            "such as 5",
        ),
    ):
        monkeypatch.setattr(dataset, "get_idx_split", lambda split=split: split)
        with pytest.raises(FormatError, match=message):
            Graph.from_ogb(dataset)


def test_links(ogb, tmp_path, caplog):
    import ogb.linkproppred

    meta = one_type(tmp_path / "o", binary=False)
    sets = tmp_path / "o" / "split" / "time"
    for file in list(sets.iterdir()):
        file.unlink()
    for name in ("train", "valid", "test"):
        torch.save({"edge": torch.zeros(3, 2, dtype=torch.int64)}, sets / f"{name}.pt")
    (tmp_path / "o" / "raw" / "node-label.csv.gz").unlink()
    dataset = ogb.linkproppred.LinkPropPredDataset("ogbl-any", meta_dict=meta)
    graph = Graph.from_ogb(dataset)
    assert set(graph.ndata) == {"feat", "year"} and set(graph.edata) == {"feat", "weight"}
    assert "dataset: left out: train, valid, test (sets of links" in caplog.text
    assert_same(read_graph(tmp_path / "o"), graph)
    assert "time: left out: train.pt, valid.pt, test.pt (sets of links" in caplog.text


@pytest.mark.parametrize("given", [None, {"edge_index": [[0], [1]]}, "ogbn-arxiv", torch.zeros(3)])
def test_an_object_that_is_no_data_set_of_ogb(given):
    with pytest.raises(TypeError, match="dataset must be a data set of ogb.nodeproppred or ogb."):
        Graph.from_ogb(given)


def test_a_data_set_of_many_graphs(ogb):
    import ogb.graphproppred

    dataset = object.__new__(ogb.graphproppred.GraphPropPredDataset)
    with pytest.raises(TypeError, match="must be a data set of .* got GraphPropPredDataset"):
        Graph.from_ogb(dataset)


def test_the_way_is_named(ogb):
    dataset = object.__new__(ogb.nodeproppred.NodePropPredDataset)
    with pytest.raises(TypeError, match=r"pagraph\.Graph\.from_ogb\(dataset\) converts it"):
        Graph.from_scipy(dataset)
