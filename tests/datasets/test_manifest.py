"""The manifest: whatever is wrong with it gets one clear error."""

import copy
import json

import pytest

from pagraph import FormatError, Graph
from pagraph.datasets import write_graph
from pagraph.datasets.manifest import ArrayEntry, Manifest, stored_dtype


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifest") / "g"
    write_graph(Graph.from_coo([0, 1, 2], [1, 0, 0], ndata={"x": [1, 2, 3]}), folder)
    return folder


@pytest.fixture(scope="module")
def valid(folder):
    """A manifest as older versions wrote it, without a checksum."""
    value = json.loads((folder / "manifest.json").read_text())
    del value["checksum"]
    return value


def read(tmp_path, value):
    text = value if isinstance(value, str) else json.dumps(value)
    (tmp_path / "manifest.json").write_text(text)
    return Manifest.read(tmp_path)


def test_round_trip(tmp_path, valid):
    manifest = read(tmp_path, valid)
    assert manifest.to_json() == valid
    assert [entry.file for entry in manifest.arrays()] == [
        *("node-x.npy", "edge-indptr.npy", "edge-indices.npy", "edge-ids.npy")
    ]


def test_every_flipped_bit_of_it_is_found(folder, tmp_path):
    """Or it is one of the layout, and no value is another."""
    content = (folder / "manifest.json").read_bytes()
    expected = Manifest.read(folder)
    path = tmp_path / "manifest.json"
    found = 0
    for place in range(len(content)):
        bit = 1 << place % 8
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        try:
            assert Manifest.read(tmp_path) == expected
        except FormatError as error:
            found += 1
            assert str(path) in str(error) and "\n" not in str(error)
    # Blanks between the values may become others.
    assert found > 0.6 * len(content)


def test_another_layout_is_no_damage(folder, tmp_path):
    value = json.loads((folder / "manifest.json").read_text())
    assert read(tmp_path, dict(reversed(value.items()))) == Manifest.read(folder)
    value["node_types"][0]["fields"]["x"]["unit"] = "seconds"
    with pytest.raises(
        FormatError,
        match=r"manifest.json is damaged: its checksum must begin with \w{16}, got '\w{16}'",
    ):
        read(tmp_path, value)
    with pytest.raises(
        FormatError, match=r"is damaged: its checksum must begin with .* got 'None'"
    ):
        read(tmp_path, value | {"checksum": None})


def test_missing(tmp_path):
    with pytest.raises(FormatError, match=r"manifest\.json cannot be read"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "nonsense", '{"format": "pagraph-graph"', "[" * 100_000, "\ud800"]
)
def test_not_json(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FormatError, match="is not JSON"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "format must be 'pagraph-graph', got 'list'"),
        ({}, "format must be 'pagraph-graph', got None"),
        ({"format": "dgl"}, "format must be 'pagraph-graph', got 'dgl'"),
        ({"format": "pagraph-graph", "version": 3}, "version must be 1 or 2, got 3"),
        ({"format": "pagraph-graph", "version": 1}, "node_types must be a JSON list, got None"),
    ],
)
def test_other_json(tmp_path, value, message):
    with pytest.raises(FormatError, match=message):
        read(tmp_path, value)


def change(value, path, new):
    """A copy of ``value`` with ``new`` at ``path``; None takes the entry away."""
    value = copy.deepcopy(value)
    *parents, last = path
    at = value
    for key in parents:
        at = at[key]
    if new is None:
        del at[last]
    else:
        at[last] = new
    return value


NODE, EDGE = ["node_types", 0], ["edge_types", 0]
FIELD = [*NODE, "fields", "x"]


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        (["origin"], [1], "origin must be a JSON dict"),
        (["node_types"], {}, "node_types must be a JSON list"),
        (["node_types"], [], "must join vertex types of"),
        (["edge_types"], [], "edge_types must hold at least 1 edge type, got 0"),
        ([*NODE, "name"], 5, "name must be a JSON str, got 5"),
        ([*NODE, "name"], "other", "must join vertex types of"),
        ([*NODE, "num_nodes"], "3", "num_nodes must be a JSON int, got '3'"),
        ([*NODE, "num_nodes"], True, "num_nodes must be a JSON int, got True"),
        ([*NODE, "num_nodes"], -3, "num_nodes must be at least 0, got -3"),
        ([*NODE, "num_nodes"], 4, r"field 'x' must have 4 rows, got shape \[3\]"),
        ([*NODE, "fields"], None, "fields must be a JSON dict, got None"),
        ([*FIELD, "file"], "../x.npy", "file must be the plain name"),
        ([*FIELD, "file"], "/etc/x.npy", "file must be the plain name"),
        ([*FIELD, "file"], "x.bin", "file must be the plain name"),
        ([*FIELD, "file"], "x.npy\n", "file must be the plain name"),
        ([*FIELD, "file"], None, "file must be a JSON str"),
        ([*FIELD, "dtype"], "float31", "dtype must be one of .* got 'float31'"),
        ([*FIELD, "dtype"], "nn", "dtype must be one of"),
        ([*FIELD, "shape"], [3, -1], r"shape must be a list of sizes, got \[3, -1\]"),
        ([*FIELD, "shape"], [3.0], "shape must be a list of sizes"),
        ([*FIELD, "shape"], [], r"field 'x' must have 3 rows, got shape \[\]"),
        ([*FIELD, "shape"], [3, 10**9], "bytes must be above"),
        ([*FIELD, "bytes"], 24, "bytes must be above 24"),
        ([*FIELD, "sha256"], "abc", "sha256 must be 64 hexadecimal digits, got 'abc'"),
        ([*EDGE, "type"], ["a", "b"], "type must be three names"),
        ([*EDGE, "type"], ["_N", 1, "_N"], "type must be three names"),
        ([*EDGE, "num_edges"], 4, r"indices must have shape \[4\], got \[3\]"),
        ([*EDGE, "indptr"], None, "indptr must be a JSON dict"),
        ([*EDGE, "indptr", "shape"], [3], r"indptr of '_N/_E/_N' must have shape \[4\], got \[3\]"),
        ([*EDGE, "edge_ids", "shape"], [2], r"edge_ids must have shape \[3\], got \[2\]"),
        ([*EDGE, "edge_ids"], "none", "file must be a JSON str"),
    ],
)
def test_wrong_entry(tmp_path, valid, path, new, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path, change(valid, path, new))
    assert str(tmp_path / "manifest.json") in str(caught.value)


@pytest.mark.parametrize("key", ["node_types", "edge_types"])
def test_a_type_that_is_there_twice(tmp_path, valid, key):
    twice = {**valid, key: valid[key] * 2}
    with pytest.raises(FormatError, match="each vertex type and edge type must be listed once"):
        read(tmp_path, twice)


def test_long_values_are_cut_short(tmp_path, valid):
    with pytest.raises(FormatError) as caught:
        read(tmp_path, change(valid, ["origin"], ["x" * 10_000]))
    assert len(str(caught.value)) < 500


def test_stored_dtype():
    assert stored_dtype("bool").itemsize == 1
    assert stored_dtype("bfloat16").name == "int16"
    with pytest.raises(ValueError, match="got 'object'"):
        stored_dtype("object")


def test_array_entry_json():
    entry = ArrayEntry("a.npy", "float32", (2, 3), 152, "0" * 64)
    assert ArrayEntry.parse(entry.to_json(), "here") == entry
