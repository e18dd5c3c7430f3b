"""Fields in fewer bytes and by reference: every verb and every function that takes a graph takes
them."""

import copy
import pickle
import shutil

import pytest
import torch
from click.testing import CliRunner

from pagraph import Graph, Loader, NeighborSampler, open_partition
from pagraph.cli import VERBS, main
from pagraph.datasets import (
    export_graph,
    new_ids,
    open_graph,
    read_graph,
    reorder,
    sbm,
    write_graph,
)
from pagraph.datasets.summary import summarise
from pagraph.features import IndexedRows, NarrowRows
from pagraph.graph.row_form import FORMS
from pagraph.partition import (
    describe,
    limit_replication,
    partition_graph,
    read_pagraph_partition,
    verify_partition,
    write_dgl,
    write_pagraph_partition,
    write_partition,
)
from pagraph.profile import hit_rate_curve, measure_loading, training_seeds
from pagraph.train import TrainOptions
from pagraph.train.loop import train
from pagraph.train.preaggregation import preaggregate
from pagraph.train.task import make_task

pytestmark = pytest.mark.kernels


NODES = 200
KINDS = [*FORMS, *(f"{form} by reference" for form in FORMS), "by reference"]
SAMPLER = NeighborSampler([3, 2])


def field(values, kind):
    """The values in a form, by reference through ids in another order, or both."""
    form = kind.removesuffix("by reference").strip()
    ids = torch.arange(len(values) - 1, -1, -1)
    if not form:
        return IndexedRows(values.flip(0), ids)
    narrow = NarrowRows.of(values, form)
    if kind == form:
        return narrow
    return NarrowRows(IndexedRows(narrow.stored.flip(0), ids), narrow.dtype)


@pytest.fixture(scope="module", params=KINDS)
def graph(request):
    """A graph with such fields on vertices and edges, of 32 and of 64 bits."""
    made = sbm(NODES, num_features=9, num_classes=4, seed=0)
    made.set_field("feat", field(made.ndata["feat"], request.param))
    made.set_field(
        "w",
        field(torch.rand(made.num_edges, 3, dtype=torch.float64), request.param),
        **of_edges(made),
    )
    if not request.param.startswith("int8"):  # whose rows have a scale each
        made.set_field("age", field(torch.rand(NODES), request.param))
        made.set_field("weight", field(torch.rand(made.num_edges), request.param), **of_edges(made))
    return made


def of_edges(graph):
    return {"edge_type": graph.edge_types[0]}


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow") / "graph"
    write_graph(graph, folder)
    return folder


def assert_same_fields(got, want, ids=slice(None)):
    for name, values in want.ndata.items():
        assert got.ndata[name].dtype == values.dtype
        assert torch.equal(got.ndata[name][:], values[:][ids]), name


def command(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, f"{arguments}\n{result.output}"
    return result.output


@pytest.mark.many
def test_writing_and_opening(graph, folder):
    opened = open_graph(folder, verify=True)
    assert_same_fields(opened, graph)
    assert torch.equal(opened.edata["w"][:], graph.edata["w"][:])
    is_narrow = isinstance(graph.ndata["feat"], NarrowRows)
    assert isinstance(opened.ndata["feat"], NarrowRows) == is_narrow
    assert summarise(graph).num_nodes == summarise(opened).num_nodes


@pytest.mark.parametrize("store", FORMS)
def test_writing_in_a_form(graph, store, tmp_path):
    write_graph(graph, tmp_path / "out", store=store)
    feat = graph.ndata["feat"]
    stays = isinstance(feat, NarrowRows)
    want = feat if stays else NarrowRows.of(feat, store)
    assert torch.equal(Graph.open(tmp_path / "out").ndata["feat"][:], want[:])


@pytest.mark.every
@pytest.mark.parametrize("by", ["reads", "community", "both"])
def test_reordering(graph, by, tmp_path):
    counted = []
    progress = lambda done, total: counted.append((done, total))  # noqa: E731
    task = {"seeds": training_seeds(graph), "sampler": SAMPLER, "batch_size": 32}
    done = reorder(graph, tmp_path / "out", by=by, **task, progress=progress)
    moved = open_graph(tmp_path / "out", verify=True)
    assert_same_fields(moved, graph, moved.ndata["original_id"])
    edges = moved.edata["original_id"].long()
    assert torch.equal(moved.edata["w"][:], graph.edata["w"][:][edges])
    assert torch.equal(new_ids(moved, moved.ndata["original_id"]), torch.arange(NODES))
    assert isinstance(moved.ndata["feat"], NarrowRows) == isinstance(
        graph.ndata["feat"], NarrowRows
    )
    assert done.fields == {graph.node_types[0]: "feat"} and counted[-1][0] <= counted[-1][1]


@pytest.mark.parametrize(("form", "ending"), [("dgl", ".bin"), ("pyg", ".pt"), ("ogb", "")])
def test_exporting(graph, form, ending, tmp_path):
    pytest.importorskip({"dgl": "pagraph.dgl", "pyg": "torch_geometric", "ogb": "torch"}[form])
    edata = {} if form == "ogb" else dict(graph.edata)  # which has no float64
    export_graph(
        Graph(graph.csc, ndata=dict(graph.ndata), edata=edata), tmp_path / f"out{ending}", form=form
    )
    read = read_graph(tmp_path / f"out{ending}")
    assert_same_fields(read, graph)
    for name, values in edata.items():
        assert torch.equal(read.edata[name], values[:])


@pytest.mark.many
def test_partitioning(graph, folder, tmp_path):
    partition = limit_replication(partition_graph(graph, 2, hops=2, method="hash"), 2.0)
    assert len(describe(partition).parts) == 2
    write_partition(partition, tmp_path / "parts")
    assert not verify_partition(tmp_path / "parts", source=folder).findings
    part = open_partition(tmp_path / "parts", 1)
    assert_same_fields(
        Graph(part.graph.csc, ndata={"feat": part.graph.ndata["feat"]}), *wanted(graph, part)
    )
    write_pagraph_partition(partition_graph(graph, 2, hops=2, method="hash"), tmp_path / "pagraph")
    assert read_pagraph_partition(tmp_path / "pagraph", graph).num_parts == 2
    if isinstance(open_graph(folder).ndata["feat"], NarrowRows):
        whole = partition_graph(open_graph(folder), 2, hops=2, method="hash")
        write_partition(whole, tmp_path / "referring", source=folder, features="reference")
        assert not verify_partition(tmp_path / "referring").findings
        part = open_partition(tmp_path / "referring", 0)
        assert_same_fields(
            Graph(part.graph.csc, ndata={"feat": part.graph.ndata["feat"]}), *wanted(graph, part)
        )


def wanted(graph, part):
    """A graph with the features alone, and the rows of a part in it."""
    return Graph(graph.csc, ndata={"feat": graph.ndata["feat"]}), part.global_ids


def test_partitioning_for_dgl(graph, tmp_path):
    dgl = pytest.importorskip("pagraph.dgl").import_dgl()
    write_dgl(partition_graph(graph, 2, hops=1, method="hash"), tmp_path / "out")
    rows = dgl.data.utils.load_tensors(str(tmp_path / "out" / "part0" / "node_feat.dgl"))
    assert torch.equal(rows["_N/feat"], graph.ndata["feat"][:][rows["_N/orig_id"]])


def test_training(graph):
    options = TrainOptions(epochs=1, hidden=4, fanout=(3, 3), batch_size=64, loader="pagraph")
    plain = Graph(graph.csc, ndata={name: values[:] for name, values in graph.ndata.items()})
    losses = [train(make_task(each, options), options).epochs[0].loss for each in (graph, plain)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_preaggregating(graph, model, tmp_path):
    preaggregate(graph, tmp_path / "sums", model=model, row_normalize=model == "gcn")
    plain = Graph(graph.csc, ndata={"feat": graph.ndata["feat"][:]})
    preaggregate(plain, tmp_path / "plain", model=model, row_normalize=model == "gcn")
    name = {"sage": "feat_mean", "gcn": "feat_gcn"}[model]
    got, want = (Graph.open(tmp_path / each).ndata[name] for each in ("sums", "plain"))
    assert torch.equal(got[:], want[:])


def test_loading(graph):
    seeds = training_seeds(graph)
    for cache in (None, "20%", "auto"):
        for batch in Loader(
            graph, seeds, SAMPLER, fields=["feat"], labels=["label"], batch_size=32, cache=cache
        ):
            assert torch.equal(batch.features["feat"], graph.ndata["feat"][:][batch.input_nodes])
    assert measure_loading(graph, seeds, SAMPLER, batch_size=32) is not None
    assert hit_rate_curve(graph, seeds, SAMPLER, batch_size=32) is not None


def test_copies(graph):
    for each in (graph.reverse(), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert_same_fields(each, graph)


def test_as_dgls_graph(graph):
    dgl = pytest.importorskip("pagraph.dgl").import_dgl()
    from pagraph.dgl import DataLoader, to_dgl

    for name, values in graph.ndata.items():
        assert torch.equal(to_dgl(graph).ndata[name], values[:])
    assert torch.equal(to_dgl(graph).edata["w"], graph.edata["w"][:])
    assert_same_fields(Graph.from_dgl(to_dgl(graph)), graph)
    dgl.to_networkx(to_dgl(graph), node_attrs=["feat"])
    sampler = dgl.dataloading.NeighborSampler(
        [3, 2], prefetch_node_feats=["feat"], prefetch_edge_feats=["w"]
    )
    for input_nodes, _, blocks in DataLoader(
        to_dgl(graph), training_seeds(graph), sampler, batch_size=32
    ):
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][:][input_nodes])
        assert torch.equal(blocks[0].edata["w"], graph.edata["w"][:][blocks[0].edata[dgl.EID]])


def test_as_pygs_data(graph):
    pytest.importorskip("torch_geometric")
    from pagraph.pyg import NeighborLoader, to_pyg

    data = to_pyg(graph)
    assert torch.equal(data.x, graph.ndata["feat"][:]) and torch.equal(data.w, graph.edata["w"][:])
    for batch in NeighborLoader(data, [3, 2], input_nodes=training_seeds(graph), batch_size=32):
        assert torch.equal(batch.x, data.x[batch.n_id])


@pytest.mark.parametrize("name", ["train_mask", "val_mask", "test_mask"])
def test_masks(name, tmp_path):
    """A mask by reference, or stored as float16 ones and zeros, is the mask."""
    plain = sbm(NODES, num_features=4, seed=0)
    write_graph(plain, tmp_path / "plain")
    options = TrainOptions(epochs=1, hidden=4, fanout=(3, 3), batch_size=64)
    want = train(make_task(plain, options), options).epochs[0].loss
    for number, values in enumerate(
        [
            IndexedRows(plain.ndata[name], torch.arange(NODES)),
            NarrowRows.of(plain.ndata[name].float(), "float16"),
        ]
    ):
        graph = Graph(plain.csc, ndata={**plain.ndata, name: values})
        assert train(make_task(graph, options), options).epochs[0].loss == want
        partition = partition_graph(graph, 2, hops=1, method="hash", evaluation="parts")
        write_partition(partition, tmp_path / f"parts{number}")
        assert not verify_partition(tmp_path / f"parts{number}", source=tmp_path / "plain").findings


VERB_RUNS = {
    "export": [
        ["export", "graph", "out.pt", "--form", "pyg"],
        ["export", "graph", "out.bin", "--form", "dgl"],
    ],
    "import": [["import", "graph", "out"], ["import", "graph", "narrow", "--store", "bfloat16"]],
    "info": [["info", "graph"], ["info", "graph", "--verify", "--json", "info.json"]],
    "partition": [
        *(
            ["partition", "graph", form, "-k", "2", "--format", form]
            for form in ("native", "dgl", "pagraph")
        ),
        ["partition", "verify", "native"],
        ["partition", "graph", "referring", "-k", "2", "--features", "reference"],
        ["partition", "graph", "whole", "-k", "2", "--evaluation", "parts"],
        ["partition", "graph", "-k", "2", "--compare"],
    ],
    "preaggregate": [
        ["preaggregate", "graph", "sums"],
        ["train", "sums", "--epochs", "1", "--hidden", "8", "--fanout", "5"],
        ["preaggregate", "graph", "gcn", "--model", "gcn", "--row-normalize"],
    ],
    "profile": [
        ["profile", "graph", "--batch-size", "32", "--measure"],
        ["profile", "graph", "--task", "links"],
    ],
    "reorder": [
        ["reorder", "graph", "out", "--batch-size", "32"],
        ["reorder", "graph", "links", "--task", "links"],
    ],
    "train": [
        ["train", "graph", "--epochs", "1", "--hidden", "8", "--checkpoint", "saved"],
        ["train", "graph", "--epochs", "1", "--hidden", "8", "--baseline", "dgl"],
        ["train", "graph", "--epochs", "1", "--hidden", "8", "--task", "links"],
    ],
}
"""Runs of each verb that takes a graph folder."""


@pytest.mark.every
@pytest.mark.parametrize("verb", VERB_RUNS)
def test_verbs(folder, verb, tmp_path, monkeypatch):
    pytest.importorskip("pagraph.dgl")
    pytest.importorskip("torch_geometric")
    shutil.copytree(folder, tmp_path / "graph")
    monkeypatch.chdir(tmp_path)
    for run in VERB_RUNS[verb]:
        command(*run)


def test_no_verb_is_missing():
    without = {"completion", "doctor", "generate", "run", "warmup"}
    assert {*VERB_RUNS, *without} == set(VERBS)
