"""Files that ``torch.save`` wrote of PyG's data are read, and nothing else in them is unpickled."""

import os
import pickle
import traceback

import pytest
import torch
from test_from_pyg import heterogeneous, homogeneous, in_dicts
from torch_geometric.data import Data, InMemoryDataset

from pagraph import FormatError
from pagraph.datasets import open_graph, read_graph, write_graph

reads_objects = pytest.mark.skipif(
    not hasattr(torch.serialization, "safe_globals"),
    reason="torch before 2.5 reads plain values alone",
)
KEPT = ("x", "edge_index", "edge_attr", "train_mask", "name", "scale", "three", "words")


def plain():
    """Tensors and plain values only."""
    return Data(**{name: homogeneous()[name] for name in KEPT}, y=torch.tensor([2, 0, 1, 2]))


def file_of(content, folder):
    torch.save(content, folder / "g.pt")
    return folder / "g.pt"


def in_a_data_set(data, slices=None):
    """What ``InMemoryDataset.save`` writes."""
    return data.to_dict(), slices, type(data)


FORMS = [
    pytest.param(lambda data: data, marks=reads_objects),
    lambda data: data.to_dict(),
    pytest.param(in_a_data_set, marks=reads_objects),
    pytest.param(lambda data: (data, None), marks=reads_objects),  # of older versions
    lambda data: [data.to_dict()],
]


@pytest.mark.parametrize("form", FORMS)
def test_data(form, tmp_path):
    data = plain()
    write_graph(read_graph(file_of(form(data), tmp_path)), tmp_path / "g")
    graph = open_graph(tmp_path / "g", verify=True)
    assert set(graph.ndata) == {"feat", "label", "train_mask"} and set(graph.edata) == {"edge_attr"}
    assert torch.equal(graph.ndata["feat"], data.x) and graph.ndata["label"].tolist() == [
        2,
        0,
        1,
        2,
    ]
    assert graph.csc.indices.tolist() == [2, 0, 3, 1]
    assert graph.csc.edge_ids is not None and graph.csc.edge_ids.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("form", FORMS)
def test_several_types(form, tmp_path):
    graph = read_graph(file_of(form(heterogeneous()), tmp_path))
    assert graph.edge_types == [("a", "to", "b"), ("a", "own", "a")]
    assert [graph.num_nodes_of(ntype) for ntype in graph.node_types] == [3, 2]
    assert set(graph.node_fields("a")) == {"feat"} and set(graph.edge_fields(("a", "to", "b"))) == {
        "weight"
    }


@pytest.mark.parametrize("form", FORMS)
def test_types_in_dicts(form, tmp_path):
    data = in_dicts()
    write_graph(read_graph(file_of(form(data), tmp_path)), tmp_path / "g")
    graph = open_graph(tmp_path / "g", verify=True)
    assert graph.num_nodes_by_type == {"author": 2, "paper": 3}
    assert {etype: graph.csc_of(etype).num_edges for etype in graph.edge_types} == {
        ("author", "writes", "paper"): 3,
        ("paper", "cites", "paper"): 2,
    }
    fields = graph.node_fields("paper")
    assert set(fields) == {"feat", "label", "node_year"} and torch.equal(
        fields["feat"], data.x_dict["paper"]
    )
    assert fields["label"].tolist() == [1, 0, 1]
    assert graph.edge_fields(("paper", "cites", "paper"))["edge_reltype"].tolist() == [[1], [1]]


def test_what_stays_behind_is_named_with_the_file(tmp_path, caplog):
    path = file_of(
        {"edge_index": torch.tensor([[0], [1]]), "x": torch.zeros(2, 1), "words": ["a", "b"]},
        tmp_path,
    )
    read_graph(path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: left out: words (no numbers with a row per vertex or edge)"
    ]
    caplog.clear()
    data = heterogeneous()
    data["a"].words = ["a", "b", "c"]
    path = file_of(data.to_dict(), tmp_path)
    read_graph(path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: left out: a.words (no dense rows of vertices or edges)"
    ]


@reads_objects
def test_a_data_set_of_pygs(tmp_path):
    class Blocks(InMemoryDataset):
        processed_file_names = ("data.pt",)

        def process(self):
            self.save([plain()], self.processed_paths[0])

    dataset = Blocks(tmp_path, log=False)
    graph = read_graph(dataset.processed_paths[0])
    assert graph.num_nodes == 4 and torch.equal(graph.csc.indptr, torch.tensor([0, 2, 4, 4, 4]))
    dataset.save([plain(), plain()], dataset.processed_paths[0])
    with pytest.raises(
        FormatError, match=r"data\.pt must hold one valid PyG graph: the file holds 2 graphs"
    ):
        read_graph(dataset.processed_paths[0])


def test_a_column_of_labels_and_several_splits(tmp_path):
    data = Data(
        x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([[1], [0]])
    )
    data.train_mask = torch.tensor([[True, False], [False, True]])
    data.test_mask = torch.tensor([False, True])
    write_graph(read_graph(file_of(data.to_dict(), tmp_path)), tmp_path / "g")
    fields = open_graph(tmp_path / "g").ndata
    assert fields["label"].tolist() == [1, 0] and fields["test_mask"].tolist() == [False, True]
    assert fields["train_mask"].tolist() == [True, False] and fields[
        "split1_train_mask"
    ].tolist() == [False, True]


def test_names_that_are_taken(tmp_path):
    data = Data(x=torch.zeros(2, 1), feat=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    fields = read_graph(file_of(data.to_dict(), tmp_path)).ndata
    assert fields["x"].shape == (2, 1) and fields["feat"].shape == (2, 3)


def test_vertices_that_nothing_counts(tmp_path):
    assert (
        read_graph(file_of({"edge_index": torch.tensor([[0, 5], [1, 2]])}, tmp_path)).num_nodes == 6
    )


@pytest.fixture
def older_torch(monkeypatch):
    """Torch as before 2.5: no object is allowed."""
    if not hasattr(torch.serialization, "safe_globals"):
        yield
        return
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    monkeypatch.delattr(torch.serialization, "safe_globals")
    yield
    torch.serialization.add_safe_globals(allowed)


def test_objects_of_pygs_on_an_older_torch(older_torch, tmp_path):
    text = (
        r"g\.pt holds a PyG object, torch_geometric\.data\..*: save data\.to_dict\(\), or "
        r"upgrade torch$"
    )
    for content in (plain(), in_a_data_set(plain())):
        with pytest.raises(FormatError, match=text):
            read_graph(file_of(content, tmp_path))
    assert read_graph(file_of(plain().to_dict(), tmp_path)).num_nodes == 4


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "wrap", [lambda evil: evil, lambda evil: {"edge_index": torch.zeros(2, 0), "what": evil}]
)
def test_nothing_else_is_unpickled(wrap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = file_of(wrap(Evil()), tmp_path)
    with pytest.raises(
        FormatError,
        match=r"g\.pt must hold only tensors and plain values, it holds posix\.mkdir: save",
    ):
        read_graph(path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(2, 3), "edge_index must hold integers, got torch.float32"),
        ({"weight": torch.zeros(2)}, "the file holds a dict without edge_index"),
        ([], "the file holds a list"),
        pytest.param(
            Data(edge_index=torch.tensor([[9], [0]]), num_nodes=3),
            r"edge_index\[0\] must be in \[0, 3\), got 9",
            marks=reads_objects,
        ),
        pytest.param(
            Data(edge_index=torch.zeros(3, dtype=torch.int64), num_nodes=3),
            "one valid PyG graph",
            marks=reads_objects,
        ),
        ({"a": {"x": 1}, "b": {}}, "one valid PyG graph"),
        pytest.param(
            Data(x=torch.zeros(3, 2), edges=torch.zeros(2, 7)),
            r"the file holds a Data without edges: x \[3, 2\], edges \[2, 7\]",
            marks=reads_objects,
        ),
        ({"x_dict": {"a": torch.zeros(3)}}, r"the file holds a HeteroData without edges: "),
    ],
)
def test_what_is_no_graph(content, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        read_graph(file_of(content, tmp_path))


def test_damaged_files(tmp_path):
    path = file_of(plain(), tmp_path)
    content = path.read_bytes()
    for length in (0, 3, 100, len(content) // 2, len(content) - 20):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError, match=r"g\.pt must be a file that torch\.save wrote"):
            read_graph(path)


def test_text_is_no_graph(tmp_path):
    (tmp_path / "g.pt").write_text("hello")
    with pytest.raises(
        FormatError, match=r"g\.pt must be a file that torch\.save wrote, it cannot be read"
    ):
        read_graph(tmp_path / "g.pt")


def test_torchs_advice_to_unpickle_anything_is_not_repeated(tmp_path):
    (tmp_path / "g.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FormatError, match=r"g\.pt must ") as caught:
        read_graph(tmp_path / "g.pt")
    assert "weights_only" not in "".join(traceback.format_exception(caught.value))


def test_options_of_other_forms(tmp_path):
    with pytest.raises(
        ValueError, match="undirected must not be given for a source of the form 'pyg'"
    ):
        read_graph(file_of(plain(), tmp_path), undirected=True)
