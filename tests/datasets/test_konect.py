"""KONECT's ``out.*`` files."""

import pytest
import torch

from pagraph import FormatError
from pagraph.datasets import read_graph


@pytest.fixture
def write(tmp_path):
    def write(text, name="out.tiny"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_directed_with_weights_and_times(write):
    text = "% asym positive\n% 3 4 4\n1 2 5 1082040961\n2 3 -1 1082040962\n4 4 1 1082040963\n"
    for separated in (text, text.replace(" 10820", "\t10820"), text.replace(" ", "\t")):
        graph = read_graph(write(separated), weight="w")
        assert graph.num_nodes == 4
        assert graph.csc.indices.tolist() == [0, 1, 3]
        assert graph.edata["w"].tolist() == [5, -1, 1]
        assert graph.edata["time"].tolist() == [1082040961, 1082040962, 1082040963]
    assert set(read_graph(write(text)).edata) == {"time"}
    assert read_graph(write(text), undirected=True).num_edges == 5


def test_times_that_are_no_integers(write):
    graph = read_graph(write("% asym unweighted\n1 2 1 1082040961.5\n"))
    assert (
        graph.edata["time"].tolist() == [1082040961.5]
        and graph.edata["time"].dtype == torch.float64
    )


def test_undirected(write):
    path = write("% sym unweighted\n% 2 3 3\n1 2\n2 3\n")
    assert read_graph(path).num_edges == 4
    with pytest.raises(ValueError, match="undirected=True must not be given .* undirected"):
        read_graph(path, undirected=True)


def test_bipartite(write):
    path = write("% bip weighted\n% 3 2 4\n1 4 3.5\n2 4 1\n2 1 2\n")
    graph = read_graph(path, weight="rating", undirected=True)
    assert graph.num_nodes_by_type == {"left": 2, "right": 4}
    assert graph.edge_types == [("left", "to", "right"), ("right", "rev_to", "left")]
    for edge_type in graph.edge_types:
        assert graph.edge_fields(edge_type)["rating"].tolist() == [3.5, 1, 2]
    assert read_graph(path).edge_types == [("left", "to", "right")]
    assert read_graph(write("% bip unweighted\n1 3\n")).num_nodes_by_type == {"left": 1, "right": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n", "must begin with KONECT's header"),
        ("", "must begin with KONECT's header"),
        ("% asym unweighted\n0 1\n", "ids in .* must be at least 1, as KONECT's are, got 0"),
        ("% asym unweighted\n% 1 2 2\n1 3\n", r"must be in \[0, 2\), got 2"),
        ("% bip unweighted\n% 1 2 2\n3 1\n", r"must be in \[0, 2\), got 2"),
        ("% asym unweighted\n1 b\n", "line 2 must begin with two integers"),
        ("% asym unweighted\n1 2 1 5\n2 1\n", "line 3 must have a number .* as its 4th field"),
        (
            "% asym unweighted\n% 1 9000000000000000 9000000000000000\n1 3\n",
            "must have at most 10000000 vertices for 1 edges, it says 9000000000000000",
        ),
    ],
)
def test_refuses(text, message, write):
    with pytest.raises(FormatError, match=message):
        read_graph(write(text))
