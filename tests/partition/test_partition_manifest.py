"""The manifest of a partition is read strictly."""

import copy
import json

import pytest

from pagraph import FormatError, Graph
from pagraph.datasets import write_graph
from pagraph.datasets.paths import is_partition
from pagraph.partition import PartitionManifest, partition_graph, write_partition


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifest")
    fields = {"feat": [[1.0], [2.0], [3.0]], "train_mask": [True, True, False]}
    write_graph(Graph.from_coo([0, 1, 2], [1, 0, 0], ndata=fields), folder / "g")
    partition = partition_graph(Graph.open(folder / "g"), 2, hops=1, method="hash")
    write_partition(
        partition,
        folder / "out",
        source=folder / "g",
        features="reference",
        seed=7,
        max_replication=2,
        origin={"by": "me"},
    )
    return {
        name: value
        for name, value in json.loads((folder / "out" / "manifest.json").read_text()).items()
        if name != "checksum"
    }


def read(tmp_path, value):
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    return PartitionManifest.read(tmp_path)


def change(value, path, new):
    """A copy of ``value`` with ``new`` at ``path``; Ellipsis takes the entry away."""
    value = copy.deepcopy(value)
    *parents, last = path
    at = value
    for key in parents:
        at = at[key]
    if new is ...:
        del at[last]
    else:
        at[last] = new
    return value


def test_round_trip(tmp_path, valid):
    manifest = read(tmp_path, valid)
    assert manifest.to_json() == valid
    assert (manifest.seed, manifest.max_replication, manifest.origin) == (7, 2.0, {"by": "me"})
    assert (manifest.num_nodes, manifest.num_edges, manifest.features) == (3, 3, "reference")
    assert manifest.source.fields[None]["feat"].shape == (3, 1)


PART = ["folders", 0]


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        (["format"], "pagraph-graph", "format must be 'pagraph-partition', got 'pagraph-graph'"),
        (["version"], 4, "version must be 1 or 2 or 3, got 4"),
        (["version"], ..., "version must be 1 or 2 or 3, got None"),
        (["method"], 3, "method must be a JSON str, got 3"),
        (["hops"], 0, "hops must be from 1 to 253, got 0"),
        (["hops"], 2, "hop_ends must be 3 numbers, got 2"),
        (["hops"], True, "hops must be a JSON int, got True"),
        (["seed"], "x", "seed must be a JSON int, got 'x'"),
        (["seed"], ..., "seed must be a JSON int, got None"),
        (["capped"], 1, "capped must be a JSON bool, got 1"),
        (["max_replication"], "2", "max_replication must be a JSON float, got '2'"),
        (["features"], "link", "features must be one of copy, reference, got 'link'"),
        (["evaluation"], "no", "evaluation must be one of source, parts, got 'no'"),
        (["num_nodes"], 0, "num_nodes must be at least 1, got 0"),
        (["num_nodes"], -1, "num_nodes must be at least 0, got -1"),
        (["num_nodes"], 1, "a part must not be larger than the graph"),
        (["num_edges"], 0, "a part must not be larger than the graph"),
        (["parts"], 3, "parts must be 2 as the parts say, got 3"),
        (
            ["train_per_part"],
            [2, 0],
            r"train_per_part must be \[1, 1\] as the parts say, got \[2, 0\]",
        ),
        (["replication_factor"], 1, "replication_factor must be .* as the parts say, got 1"),
        (["outside"], {"val": 0}, "test must be a JSON int, got None"),
        (["train"], {}, "sha256 must be a JSON str, got None"),
        (["train", "is_mask"], 0, "is_mask must be a JSON bool, got 0"),
        (["folders"], [], "folders must hold at least 1 part, got 0"),
        (["folders"], {}, "folders must be a JSON list"),
        (["origin"], [], "origin must be a JSON dict"),
        ([*PART, "hop_ends"], [2, 1], "hop_ends must be ascending numbers"),
        ([*PART, "hop_ends"], [1, True], "hop_ends must be ascending numbers"),
        ([*PART, "hop_ends"], [1, 2.5], "hop_ends must be ascending numbers"),
        ([*PART, "num_edges"], -1, "num_edges must be at least 0, got -1"),
        ([*PART, "dropped"], None, "dropped must be a JSON int, got None"),
        ([*PART, "sha256"], "../x", "sha256 must be 64 hexadecimal digits"),
        ([*PART, "train", "file"], "../train.npy", "file must be the plain name of a .npy file"),
        ([*PART, "train", "file"], "/etc/train.npy", "file must be the plain name of a .npy file"),
        ([*PART, "train", "dtype"], "int32", r"train must be int64 of shape \[n\], n at most"),
        (
            [*PART, "val", "shape"],
            [9],
            r"val must be int64 of shape \[n\], n at most 3, got int64 of shape \[9\]",
        ),
        (["source"], None, "source must be given if features is 'reference', got None"),
        (["source"], [], "source must be a JSON dict"),
        (["source", "form"], "dgl", "form must be one of native, pagraph, got 'dgl'"),
        (["source", "path"], "a\0b", "path must not hold a NUL character"),
        (
            ["source", "fields", "feat", "file"],
            "../../secret.npy",
            "file must be the plain name of a .npy file",
        ),
    ],
)
def test_wrong_entry(tmp_path, valid, path, new, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path, change(valid, path, new))
    assert str(tmp_path / "manifest.json") in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_entry_is_needed(tmp_path, valid):
    for key in valid:
        with pytest.raises(FormatError):
            read(tmp_path, change(valid, [key], ...))


def test_is_partition(tmp_path, valid):
    assert not is_partition(tmp_path)
    read(tmp_path, valid)
    assert is_partition(tmp_path)
    for text in ("", "[]", '{"format": "pagraph-graph"}'):
        (tmp_path / "manifest.json").write_text(text)
        assert not is_partition(tmp_path)
