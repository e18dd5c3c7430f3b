"""Fields in fewer bytes in folders: written, opened, in parts, exported; what is damaged or unknown
is refused."""

import json

import pytest
import torch
from click.testing import CliRunner

from pagraph import FormatError, Graph, open_partition
from pagraph.cli import main
from pagraph.datasets import read_graph, sbm, write_graph
from pagraph.datasets.forms import export_graph
from pagraph.datasets.summary import summarise, summarise_folder
from pagraph.features import IndexedRows, NarrowRows, on_disk
from pagraph.graph.row_form import FORMS
from pagraph.partition import Partition, verify_partition, write_partition
from pagraph.train.preaggregation import preaggregate

pytestmark = pytest.mark.kernels


NAMES = list(FORMS)
FILE = {"float16": "float16", "bfloat16": "int16", "int8": "uint8"}


@pytest.fixture(scope="module")
def graph():
    made = sbm(120, num_features=9, seed=0)
    made.set_field(
        "w", torch.rand(made.num_edges, 3, dtype=torch.float64), edge_type=made.edge_types[0]
    )
    made.set_field("weight", torch.rand(made.num_edges), edge_type=made.edge_types[0])
    return made


@pytest.fixture(params=NAMES)
def folder(request, graph, tmp_path):
    write_graph(graph, tmp_path / "graph", store=request.param)
    return tmp_path / "graph"


def edit(folder, change):
    """Change the entry of feat in the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    change(manifest, manifest["node_types"][0]["fields"]["feat"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_wide_fields_are_stored_and_read_as_the_form_has_them(graph, folder, request):
    name = request.node.callspec.params["folder"]
    opened = Graph.open(folder, verify=True)
    feat, w = opened.ndata["feat"], opened.edata["w"]
    assert isinstance(feat, NarrowRows) and feat.form.name == name and on_disk(feat)
    assert torch.equal(feat.materialize(), NarrowRows.of(graph.ndata["feat"], name).materialize())
    assert w.dtype == torch.float64 and torch.equal(
        w.stored, NarrowRows.of(graph.edata["w"], name).stored
    )
    assert (
        torch.equal(opened.edata["weight"], graph.edata["weight"])
        and opened.ndata["label"].dtype == torch.int64
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["node_types"][0]["fields"]["feat"]
    assert (manifest["version"], entry["dtype"], entry["shape"]) == (2, "float32", [120, 9])
    assert entry["stored"] == name and "stored" not in manifest["node_types"][0]["fields"]["label"]


def test_what_is_narrow_stays_as_it_is(folder, tmp_path):
    opened = Graph.open(folder)
    write_graph(opened, tmp_path / "again", store="float16")
    assert (tmp_path / "again" / "node-feat.npy").read_bytes() == (
        folder / "node-feat.npy"
    ).read_bytes()


def test_folders_without_such_fields_are_what_they_were(graph, tmp_path):
    write_graph(graph, tmp_path / "plain")
    text = (tmp_path / "plain" / "manifest.json").read_text()
    assert json.loads(text)["version"] == 1 and "stored" not in text


def test_a_value_that_cannot_be_stored_leaves_nothing(tmp_path):
    feat = torch.ones(3, 2)
    feat[2, 1] = float("nan")
    graph = Graph.from_coo([0, 1], [1, 2], ndata={"feat": feat})
    with pytest.raises(
        ValueError, match="int8 must hold the values of row 2 of node-feat, got nan"
    ):
        write_graph(graph, tmp_path / "graph", store="int8")
    assert not list(tmp_path.iterdir())


DAMAGE = [
    (
        lambda manifest, entry: entry.update(stored="int4"),
        "stored must be one of float16, bfloat16, int8",
    ),
    (lambda manifest, entry: entry.update(stored=8), "stored must be a JSON str, got 8"),
    (
        lambda manifest, entry: entry.update(dtype="int64"),
        "stored must be one of .* of a field of float32 or float64",
    ),
    (
        lambda manifest, entry: entry.update(shape=[120, 8]),
        r"node-feat.npy must hold .* of shape \[120, 8|1[0-9]\]",
    ),
    (lambda manifest, entry: entry.pop("stored"), "bytes must be above|must hold float32"),
    (lambda manifest, entry: manifest.update(version=3), "version must be 1 or 2, got 3"),
]


@pytest.mark.parametrize(("change", "text"), DAMAGE)
def test_damaged_entries_are_refused(folder, change, text):
    edit(folder, change)
    with pytest.raises(FormatError, match=text):
        Graph.open(folder)


def test_info_says_the_form_and_the_bytes(folder, request):
    name = request.node.callspec.params["folder"]
    by_folder, by_graph = summarise_folder(folder), summarise(Graph.open(folder))
    assert by_folder.to_json() == by_graph.to_json()
    feat = next(array for array in by_folder.arrays if array.name == "feat")
    assert (feat.dtype, feat.stored, feat.shape) == ("float32", name, (120, 9))
    assert feat.bytes == 120 * (13 if name == "int8" else 18)
    result = CliRunner().invoke(main, ["info", str(folder)])
    assert result.exit_code == 0 and f"float32 as {name}" in result.output


@pytest.mark.parametrize("features", ["copy", "reference"])
def test_parts_hold_or_refer_to_the_stored_rows(folder, features, tmp_path):
    whole = Graph.open(folder)
    train = torch.arange(0, 120, 2)
    partition = Partition(whole, train, (torch.arange(60) % 2).to(torch.int32), 2, 1, "hash")
    write_partition(partition, tmp_path / "out", features=features, source=folder)
    assert not verify_partition(tmp_path / "out").findings
    part = open_partition(tmp_path / "out", 1, verify=True)
    feat = part.graph.ndata["feat"]
    assert isinstance(feat, NarrowRows) and isinstance(feat.stored, IndexedRows) == (
        features == "reference"
    )
    assert torch.equal(feat.materialize(), whole.ndata["feat"][part.global_ids])
    version = json.loads((tmp_path / "out" / "manifest.json").read_text())["version"]
    assert version == (2 if features == "reference" else 1)


@pytest.mark.parametrize("form", ["dgl", "pyg", "ogb"])
def test_exports_hold_the_values(folder, form, tmp_path):
    pytest.importorskip({"dgl": "pagraph.dgl", "pyg": "torch_geometric", "ogb": "torch"}[form])
    source = Graph.open(folder)
    whole = Graph(source.csc, ndata={"feat": source.ndata["feat"], "label": source.ndata["label"]})
    out = tmp_path / f"out{ {'dgl': '.bin', 'pyg': '.pt', 'ogb': ''}[form] }"
    export_graph(whole, out, form=form)
    assert torch.equal(read_graph(out).ndata["feat"].float(), whole.ndata["feat"].materialize())


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_preaggregation_reads_the_values(folder, model, tmp_path):
    source = Graph.open(folder)
    plain = Graph(source.csc, ndata={"feat": source.ndata["feat"].materialize()})
    preaggregate(
        Graph(source.csc, ndata={"feat": source.ndata["feat"]}), tmp_path / "a", model=model
    )
    preaggregate(plain, tmp_path / "b", model=model)
    sums = {"sage": "feat_mean", "gcn": "feat_gcn"}[model]
    got, want = Graph.open(tmp_path / "a"), Graph.open(tmp_path / "b")
    assert torch.equal(got.ndata[sums], want.ndata[sums])
    if model == "sage":
        assert torch.equal(got.ndata["feat"].stored, source.ndata["feat"].stored)


def test_import_and_generate_store_what_they_are_asked_to(tmp_path):
    for arguments in (
        ["generate", "sbm", "a", "--nodes", "200", "--store", "int8"],
        ["import", "a", "b"],
    ):
        paths = [str(tmp_path / word) if word in ("a", "b") else word for word in arguments]
        if arguments[0] == "import":
            export_graph(Graph.open(tmp_path / "a"), tmp_path / "x", form="ogb")
            paths = ["import", str(tmp_path / "x"), str(tmp_path / "b"), "--store", "bfloat16"]
        result = CliRunner().invoke(main, paths)
        assert result.exit_code == 0, result.output
    assert Graph.open(tmp_path / "a").ndata["feat"].form.name == "int8"
    assert Graph.open(tmp_path / "b").ndata["feat"].form.name == "bfloat16"
