"""What LinkNeighborLoader refuses, and with which words; its signature and class."""

import inspect

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader
from torch_geometric.loader import LinkNeighborLoader as PyGs

from pagraph.pyg import LinkNeighborLoader
from pagraph.pyg.pipelined import OURS

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
WRITES = ("author", "writes", "paper")


def homogeneous(**attributes):
    return Data(num_nodes=5, edge_index=EDGES, **attributes)


def heterogeneous():
    data = HeteroData()
    data["author"].num_nodes, data["paper"].num_nodes = 4, 6
    data[WRITES].edge_index = EDGES
    return data


def test_signature_is_pygs_with_ours_by_keyword():
    ours, pygs = (inspect.signature(cls.__init__).parameters for cls in (LinkNeighborLoader, PyGs))
    positional = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    expected = [p for p in pygs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == [(p.name, p.default) for p in expected]
    added = [p.name for p in ours.values() if p.kind is p.KEYWORD_ONLY]
    assert added == ["time_window", "share_trees", *OURS, "batch_dependency"]


def test_it_is_pygs_class():
    loader = LinkNeighborLoader(homogeneous(), [1])
    assert isinstance(loader, PyGs | LinkLoader)
    assert str(loader) == "LinkNeighborLoader()"
    assert loader.dataset == range(4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"edge_label_time": torch.arange(4)},
            "Received conflicting 'edge_label_time' and 'time_attr' arguments",
        ),
        ({"neg_sampling": ("binary", 0)}, "'amount' needs to be positive"),
        ({"neg_sampling": ("triplet", 1.5)}, "'amount' needs to be an integer"),
        ({"neg_sampling_ratio": -1}, "'amount' needs to be positive"),
        ({"neg_sampling": "other"}, "'other' is not a valid NegativeSamplingMode"),
        (
            {"neg_sampling": "triplet", "edge_label": torch.ones(4)},
            "'edge_label' needs to be undefined",
        ),
        (
            {"edge_label": torch.ones(3)},
            r"edge_label must have one label per link \(4\), got shape \(3,\)",
        ),
        (
            {"edge_label": torch.tensor(1)},
            r"edge_label must have one label per link \(4\), got shape \(\)",
        ),
        (
            {"edge_label_index": torch.arange(4)},
            r"edge_label_index must have shape \(2, num_links\), got \(4,\)",
        ),
        (
            {"edge_label_index": EDGES.t()},
            r"edge_label_index must have shape \(2, num_links\), got \(4, 2\)",
        ),
    ],
)
def test_values_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(homogeneous(), [1], **arguments)


def test_times_without_their_argument():
    with pytest.raises(ValueError, match="'edge_label_time' is not set while 'time_attr' is set"):
        LinkNeighborLoader(homogeneous(time=torch.arange(4)), [1], time_attr="time")


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (
            torch.arange(3),
            ValueError,
            r"edge_label_time must have one time per link \(4\), got shape \(3,\)",
        ),
        (
            torch.tensor([0, -(2**63), 1, 2]),
            ValueError,
            r"edge_label_time must not be missing \(NaN or NaT\), got -9223",
        ),
        (
            torch.rand(4),
            TypeError,
            "edge_label_time must be integers, like the data's 'time', got torch.float32",
        ),
        (
            torch.ones(4).bool(),
            TypeError,
            "edge_label_time must be a tensor of integers or floats, got torch.bool",
        ),
    ],
)
def test_times_that_are_refused(times, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(
            homogeneous(time=torch.arange(5)), [1], edge_label_time=times, time_attr="time"
        )


@pytest.mark.parametrize("name", ["edge_label", "edge_label_time"])
def test_labels_and_times_that_are_no_tensors(name):
    with pytest.raises(TypeError, match=f"{name} must be a tensor or None, got list"):
        LinkNeighborLoader(
            homogeneous(time=torch.arange(5)), [1], time_attr="time", **{name: [1, 2, 3, 4]}
        )


def test_ids_of_links():
    loader = LinkNeighborLoader(
        homogeneous(), [1], input_id=torch.tensor([7, 5, 3, 1]), batch_size=3
    )
    assert [batch.input_id.tolist() for batch in loader] == [[7, 5, 3], [1]]
    with pytest.raises(ValueError, match=r"input_id must have one entry per link \(4\), got 3"):
        LinkNeighborLoader(homogeneous(), [1], input_id=torch.arange(3))


@pytest.mark.parametrize(
    "links", [EDGES.float(), EDGES > 1, [[0], [1]]], ids=["float", "bool", "list"]
)
def test_links_that_are_no_integers(links):
    with pytest.raises(TypeError, match="edge_label_index must be a tensor of integers"):
        LinkNeighborLoader(homogeneous(), [1], links)


@pytest.mark.parametrize("bad", [-1, 5])
def test_links_out_of_the_graph(bad):
    with pytest.raises(IndexError, match=rf"edge_label_index\[1\] must be in \[0, 5\), got {bad}"):
        LinkNeighborLoader(homogeneous(), [1], torch.tensor([[0, 1], [0, bad]]))


def test_links_out_of_a_type():
    with pytest.raises(IndexError, match=r"edge_label_index\[0\] must be in \[0, 4\), got 4"):
        LinkNeighborLoader(heterogeneous(), [1], (WRITES, torch.tensor([[4], [4]])))


def test_data_without_edges_to_take():
    with pytest.raises(
        ValueError, match="edge_label_index must be given if data has no edge_index"
    ):
        LinkNeighborLoader(Data(num_nodes=5), [1])


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (None, "must be an edge type or a pair of an edge type and links .* got None"),
        (EDGES, "must be an edge type or a pair of an edge type and links .* got Tensor"),
        ((WRITES, EDGES, EDGES), "a pair of an edge type and links .* tuple of tuple, Tensor, Ten"),
        ([WRITES, WRITES], "a pair of an edge type .* got list of tuple, tuple: make one loader "),
        ((WRITES, WRITES), "got tuple of tuple, tuple: make one loader for each edge type"),
        ([WRITES] * 5, "got list of tuple, tuple, tuple, tuple: make one loader for each edge"),
        ([(WRITES, EDGES)] * 2, "got list of tuple, tuple: make one loader for each edge type"),
        ({WRITES: EDGES}, "a pair of an edge type and links .* got dict$"),
        ([WRITES], "got list of tuple$"),
        ((), "got tuple of nothing$"),
        ((EDGES[0], EDGES[1]), "a pair of an edge type and links .* got tuple of Tensor, Tensor"),
        (("writes", EDGES), "a pair of an edge type and links .* got tuple of str, Tensor"),
        ((None, EDGES), "a pair of an edge type and links .* got tuple of NoneType, Tensor"),
        (
            ("author", "reads", "paper"),
            "must name an edge type that has an edge_index, got .*reads",
        ),
        (
            (("author", "reads", "paper"), None),
            "must name an edge type that has an edge_index, got .*reads",
        ),
        (
            (("author", "knows", "editor"), EDGES),
            "must name an edge type between vertex types among .* got 'editor'",
        ),
    ],
    ids=str,
)
def test_forms_that_are_refused_and_leave_the_data_alone(links, message):
    data = heterogeneous()
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(data, [1], links)
    assert data.edge_types == [WRITES] and data.node_types == ["author", "paper"]


@pytest.mark.parametrize(
    ("end", "weight", "error", "message"),
    [
        ("src", torch.ones(3), ValueError, r"needs to match the number of nodes 5 \(got 3\)"),
        ("dst", torch.ones(6), ValueError, r"needs to match the number of nodes 5 \(got 6\)"),
        ("dst", -torch.ones(5), ValueError, "must be finite and not negative, got -1.0"),
        ("src", torch.zeros(5), ValueError, "must have a positive number, got only 0"),
        ("dst", [1.0] * 5, TypeError, "must be a tensor of numbers, got list"),
    ],
)
def test_weights_that_are_refused(end, weight, error, message):
    name = f"{end}_weight"
    if message.startswith("must"):
        message = f"^{name} {message}"
    with pytest.raises(error, match=message):
        LinkNeighborLoader(homogeneous(), [1], neg_sampling={"mode": "binary", name: weight})


def test_no_links():
    empty = torch.empty(2, 0, dtype=torch.int64)
    loader = LinkNeighborLoader(homogeneous(), [1], empty, neg_sampling="binary", batch_size=2)
    assert len(loader) == 0
    assert list(loader) == []
