"""GraphML and GML as networkx writes them."""

import gzip
import logging

import networkx
import pytest

from pagraph import FormatError
from pagraph.datasets import read_graph

WRITE = {"graphml": networkx.write_graphml, "gml": networkx.write_gml}


def example(kind):
    graph = kind()
    graph.add_node("b", age=3, tall=True, town="x")
    graph.add_node("a", age=4, tall=False)
    graph.add_node("ü", age=2**20, tall=True)
    graph.add_edge("b", "a", weight=1.5, n=1)
    graph.add_edge("a", "ü", weight=2, n=2)
    graph.add_edge("ü", "ü", weight=0.1, n=3)
    return graph


def words(graph):
    return [bytes(row).rstrip(b"\0").decode() for row in graph.ndata["original_id"].numpy()]


@pytest.mark.parametrize("form", WRITE)
@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph, networkx.MultiDiGraph])
@pytest.mark.parametrize("packed", [False, True])
def test_fields_and_ids(form, kind, packed, tmp_path, caplog):
    path = tmp_path / f"g.{form}"
    WRITE[form](example(kind), path)
    if packed:
        (tmp_path / f"g.{form}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / f"g.{form}.gz"
    with caplog.at_level(logging.WARNING):
        graph = read_graph(path)
    assert (
        "g." in caplog.text and "have no number for them: vertex attribute 'town'\n" in caplog.text
    )
    assert words(graph) == ["b", "a", "ü"]
    assert graph.ndata["age"].tolist() == [3, 4, 2**20] and [
        bool(t) for t in graph.ndata["tall"]
    ] == [
        True,
        False,
        True,
    ]
    both = kind is networkx.Graph
    assert graph.num_edges == 3 + 2 * both  # a self-loop stays one
    assert graph.edata["n"].tolist() == [1, 2, 3] + [1, 2] * both
    assert graph.edata["weight"].tolist() == [1.5, 2, 0.1] + [1.5, 2] * both


def test_parallel_edges(tmp_path):
    source = networkx.MultiDiGraph([("a", "b"), ("a", "b")])
    networkx.write_graphml(source, tmp_path / "g.graphml")
    assert read_graph(tmp_path / "g.graphml").num_edges == 2


def test_numbers_are_ids(tmp_path):
    networkx.write_graphml(networkx.path_graph(3), tmp_path / "g.graphml")
    assert read_graph(tmp_path / "g.graphml").ndata == {}  # they count from 0
    networkx.write_gml(networkx.DiGraph([(10, 7)]), tmp_path / "g.gml")
    assert read_graph(tmp_path / "g.gml").ndata["original_id"].tolist() == [10, 7]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.graphml", "hello", "cannot be read by networkx"),
        ("g.graphml", "<graphml><graph>", "cannot be read by networkx"),
        ("g.graphml", "<other/>", "cannot be read by networkx"),
        ("g.gml", "hello", "cannot be read by networkx"),
        (
            "g.gml",
            "graph [ node [ id 0 ] edge [ source 0 target 1 ] ]",
            "cannot be read by networkx",
        ),
        ("g.gml.gz", "graph [ ]", "cannot be read by networkx"),
        ("g.graphml.gz", "<graphml/>", "must be XML"),
        (
            "g.graphml",
            '<?xml version="1.0" encoding="shift_jis"?><graphml/>',
            "must be XML: multi-byte",
        ),
        (
            "g.graphml",
            '<?xml version="1.0" encoding="none"?><graphml/>',
            "must be XML: unknown encoding",
        ),
    ],
)
def test_damaged(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=message):
        read_graph(tmp_path / name)


def test_damaged_in_the_middle(tmp_path):
    packed = gzip.compress(b"".join(b"<!-- %d -->" % (i * 7919 % 1000) for i in range(3000)))
    (tmp_path / "g.graphml.gz").write_bytes(packed[:100] + b"\xff" * 50 + packed[150:])
    with pytest.raises(FormatError, match="must be XML: Error -3 while decompressing"):
        read_graph(tmp_path / "g.graphml.gz")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_refused(encoding, tmp_path):
    text = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c '
        '"&b;&b;">]><graphml/>'
    )
    (tmp_path / "g.graphml").write_bytes(text.encode(encoding))
    with pytest.raises(FormatError, match="must have no document type"):
        read_graph(tmp_path / "g.graphml")
