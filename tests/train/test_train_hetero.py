"""Training on graphs of several types: what is computed, that it learns, and that parts train as
the whole."""

import json
import re

import numpy as np
import pytest
import torch
from faces import NAMES
from processes import torchrun
from typed_csc import typed_csc

from pagraph import Graph
from pagraph.datasets import citation, open_graph, write_graph
from pagraph.partition import partition_graph, write_partition
from pagraph.train import TrainOptions
from pagraph.train.assignment import assign
from pagraph.train.distributed import World
from pagraph.train.hetero import make_hetero_task, predict
from pagraph.train.loop import train
from pagraph.train.models import framework_of
from pagraph.train.task import make_task

COUNTS = {"a.b": 30, "c": 12, "source": 9, "none": 0, "far": 4}
EDGES = {
    ("c", "to", "a.b"): 60,
    ("a.b", "to", "c"): 50,
    ("a.b", "to", "a.b"): 40,
    ("source", "to", "c"): 20,
    ("none", "to", "a.b"): 0,
    ("far", "to", "source"): 10,
    ("c", "to", "far"): 10,
}


def odd_graph():
    """Types with odd names, without vertices, without features, without in-edges that count, and
    too far away."""
    rng, csc = np.random.default_rng(0), {}
    for (src, relation, dst), count in EDGES.items():
        # Some vertices have no in-edges; some edges are parallel.
        ends = (
            rng.integers(0, max(1, COUNTS[src]), count),
            rng.integers(0, max(1, COUNTS[dst] - 2), count),
        )
        csc[src, relation, dst] = typed_csc(*ends, COUNTS[src], COUNTS[dst])
    ndata = {
        "a.b": {"feat": torch.rand(30, 5), "label": torch.arange(30) % 3},
        "c": {"feat": torch.randint(0, 200, (12, 3), dtype=torch.uint8)},
        "none": {"feat": torch.empty(0, 2)},
        "far": {"feat": torch.rand(4, 6)},
    }
    part = torch.arange(30) % 3
    ndata["a.b"] |= {f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))}
    return Graph(csc, COUNTS, ndata=ndata)


def plain_outputs(model, graph):
    """R-GCN vertex by vertex and edge by edge."""
    x = {t: model.begin(t, graph.node_fields(t)[name]) for t, name in model.fields}
    for i, layer in enumerate(model.layers):
        out = {t: own(x[t]) for t, own in zip(layer.types, layer.own, strict=True)}
        for etype in layer.edge_types:
            csc, sent = graph.csc_of(etype), layer.sent(etype, x[etype[0]])
            for v in range(csc.num_dst):
                sources = csc.indices[int(csc.indptr[v]) : int(csc.indptr[v + 1])].tolist()
                if sources:
                    out[etype[2]][v] = out[etype[2]][v] + sum(sent[u] for u in sources) / len(
                        sources
                    )
        x = out if i + 1 == len(model.layers) else {t: rows.relu() for t, rows in out.items()}
    return x["a.b"]


def options_of(**settings):
    return TrainOptions(**{"device": "cpu", "hidden": 8, "lr": 0.01, **settings})


@pytest.mark.every
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("layers", NAMES)
def test_batches_evaluation_and_a_plain_reference_agree(layers, hops):
    options = options_of(layers=layers, fanout=(-1,) * hops, dropout=0.0, row_normalize=hops == 2)
    task, framework = make_hetero_task(odd_graph(), options), framework_of(layers)
    torch.manual_seed(1)
    model = task.model(options, framework)
    with torch.no_grad():
        for parameter in model.parameters():  # biases too
            parameter.copy_(torch.randn(parameter.shape))
        expected = plain_outputs(model, task.graph)
    ids = torch.tensor([7, 3, 29, 0, 28])
    torch.testing.assert_close(predict(model, task.graph, ids), expected[ids], rtol=1e-4, atol=1e-4)
    more = {"own": False, "batch_size": 100, "device": torch.device("cpu"), "num_workers": 0}
    start = task.seeds(model.fields)
    (item,) = framework.loader(start, options.fanout, **more)
    blocks, rows, (labels,) = framework.batch(item, start, hops)
    got = model(blocks, *rows)
    seeds = item[1]["a.b"] if layers == "dgl" else item["a.b"].n_id[: len(labels)]
    torch.testing.assert_close(got, expected[seeds], rtol=1e-4, atol=1e-4)
    assert torch.equal(labels, seeds % 3) and sorted(seeds.tolist()) == task.train.tolist()
    # What the outputs do not depend on has no parameters: several processes would wait for their
    # gradients.
    got.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    known = {1: {"a.b", "c", "none"}, 2: {"a.b", "c", "none", "source"}, 3: set(COUNTS)}
    assert set(task.shape.types[0]) == known[hops] and set(task.shape.embedded) == known[hops] & {
        "source"
    }


@pytest.mark.parametrize("several", [False, True])
def test_pygs_blocks_are_the_same_where_no_hop_was_counted(several, graph):
    """torch-sparse counts none: the edges say what each hop found."""
    options = options_of(layers="pyg", fanout=(3, 2, 2))
    task = make_hetero_task(odd_graph(), options) if several else make_task(graph, options)
    framework = framework_of("pyg")
    start = task.seeds(task.model(options, framework).fields)
    more = {"own": False, "batch_size": 4, "device": torch.device("cpu"), "num_workers": 0}
    batches = 0
    for item in framework.loader(start, options.fanout, **more):
        counted = framework.batch(item, start, 3).blocks
        for store in item.stores:
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                if name in store:
                    del store[name]
        for ours, theirs in zip(framework.batch(item, start, 3).blocks, counted, strict=True):
            assert ours.num_dst == theirs.num_dst
            assert ours.edge_index.keys() == theirs.edge_index.keys()
            for etype, pairs in theirs.edge_index.items():
                assert torch.equal(ours.edge_index[etype], pairs)
        batches += 1
    assert batches > 1


def test_both_frameworks_begin_with_the_same_parameters():
    states = []
    for layers in NAMES:
        options = options_of(layers=layers)
        torch.manual_seed(3)
        model = make_hetero_task(odd_graph(), options).model(options, framework_of(layers))
        states.append([parameter for layer in model.layers for parameter in layer.own.parameters()])
        states[-1] += [
            framework_of(layers).weights(conv).neighbours
            for layer in model.layers
            for conv in layer.convolutions
        ]
    for ours, theirs in zip(*states, strict=True):
        assert ours.shape == theirs.shape
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(*states, strict=True) if ours.dim() == 1
    )


FEATURES_ALONE = 1 - 0.45 + 0.45 / 10
"""The most that a model can be right that sees the papers' features alone; see
``pagraph.datasets.sbm``."""
QUICK = {"batch_size": 200, "epochs": 8, "hidden": 32, "fanout": (5, 5), "lr": 0.02}


@pytest.fixture(scope="module")
def papers():
    return citation(2000, seed=1)


KINDS = {
    "dgl": {"layers": "dgl"},
    "DGL's own": {"loader": "dgl"},
    "pyg": {"layers": "pyg"},
    "PyG's own": {"loader": "pyg"},
}


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
def test_relations_tell_what_features_do_not(papers, kind, pyg_without_extensions, no_threads_left):
    options = options_of(**QUICK, **KINDS[kind])
    result = train(make_hetero_task(papers, options), options)
    assert result.test_accuracy > FEATURES_ALONE + 0.13
    assert result.epochs[-1].loss < 0.5 * result.epochs[0].loss


@pytest.mark.many
def test_the_same_bits_whatever_the_threads_and_after_a_break(papers, tmp_path):
    def run(**settings):
        checkpoint = settings.pop("checkpoint", None)
        options = options_of(**(QUICK | {"epochs": 2, "layers": "pyg"} | settings))
        return train(make_hetero_task(papers, options), options, checkpoint=checkpoint)

    losses = [e.loss for e in run().epochs]
    assert [e.loss for e in run(num_workers=2, prefetch=0).epochs] == losses
    assert [e.loss for e in run(seed=1).epochs] != losses
    run(epochs=1, checkpoint=tmp_path / "saved")
    assert [e.loss for e in run(checkpoint=tmp_path / "saved").epochs] == losses


FULL = {
    "fanout": (-1, -1),
    "batch_size": 1000,
    "epochs": 3,
    "hidden": 8,
    "dropout": 0.0,
    "lr": 0.05,
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts")
    write_graph(citation(400, num_classes=3, seed=2), path / "graph")
    graph = open_graph(path / "graph")
    for name, more in {"whole": {}, "evaluated": {"evaluation": "parts"}}.items():
        partition = partition_graph(graph, 2, hops=2, method="hash", **more)
        write_partition(partition, path / name, source=path / "graph")
    return path


class Pretended(World):
    """One of two processes, whose values all others are said to have, too."""

    def gather(self, value):
        return [value] * self.size


@pytest.mark.many
@pytest.mark.parametrize("name", ["whole", "evaluated"])
def test_a_part_predicts_for_its_own_what_the_whole_graph_does(parts, name):
    options = options_of(layers="pyg", **FULL)
    whole = make_hetero_task(open_graph(parts / "graph"), options)
    torch.manual_seed(1)
    model = whole.model(options, framework_of("pyg"))
    every = predict(model, whole.graph, torch.arange(400))
    for rank in range(2):
        work = assign(parts / name, options, world=Pretended(rank=rank, size=2))
        assert work.task.shape == whole.shape and work.task.num_outputs == 3
        own = work.part.global_ids_of("paper")
        torch.testing.assert_close(
            predict(model, work.task.graph, work.task.train), every[own[work.task.train]]
        )
        ids, graph = torch.cat([work.evaluation.val, work.evaluation.test]), work.evaluation.graph
        global_ids = own[ids] if work.evaluation.is_part else ids
        assert work.evaluation.is_part == (name == "evaluated") and len(ids)
        torch.testing.assert_close(predict(model, graph, ids), every[global_ids])
        if work.evaluation.is_part:
            right = every.argmax(1) == whole.graph.node_fields("paper")["label"]
            expected = [
                float(right[own[some]].double().mean())
                for some in (work.evaluation.val, work.evaluation.test)
            ]
            got = work.evaluation.metrics(model, world=Pretended(rank=rank, size=2))
            assert [measured["accuracy"] for measured in got] == pytest.approx(expected)


@pytest.mark.processes
def test_two_processes_on_parts_train_as_one_on_the_whole(parts, tmp_path):
    options = options_of(layers="pyg", **FULL)
    one = train(make_hetero_task(open_graph(parts / "graph"), options), options)
    arguments = [
        "--epochs",
        3,
        "--hidden",
        8,
        "--dropout",
        0,
        "--lr",
        0.05,
        "--fanout=-1,-1",
        "--layers",
        "pyg",
    ]
    result = torchrun(
        2, parts / "whole", *arguments, "--device", "cpu", "--json", tmp_path / "run.json"
    )
    assert result.returncode == 0, result.stderr
    assert re.search(
        r"part 0: .* 64 features of 'paper', 32 features of 'author', embeddings of 'inst",
        result.stdout,
    )
    two = json.loads((tmp_path / "run.json").read_text())
    assert two["loss"] == pytest.approx([e.loss for e in one.epochs], rel=1e-3)
    assert two["test_accuracy_by_epoch"] == pytest.approx(
        [e.test_accuracy for e in one.epochs], abs=0.02
    )


def changed(**fields):
    """The odd graph with other fields of "a.b", or without one."""
    graph = odd_graph()
    for name, rows in fields.items():
        if rows is None:
            del graph.node_fields("a.b")[name]
        else:
            graph.set_field(name, rows, node_type="a.b")
    return graph


@pytest.mark.parametrize(
    ("graph", "settings", "text"),
    [
        (
            {},
            {"model": "gat"},
            "model must be 'sage' for a graph of several types, where it is R-GCN, got 'gat'",
        ),
        ({}, {"task": "links"}, "task must be 'nodes' for a graph of several types, got 'links'"),
        (
            {"train_mask": None},
            {},
            r"graph must have the field train_mask for one vertex type .*, got \[\]",
        ),
        ({"val_mask": None}, {}, "graph must have the field val_mask, it has feat, label"),
        (
            {"test_mask": torch.zeros(30, dtype=torch.bool)},
            {},
            "test_mask must select at least 1 vertex, got 0",
        ),
        ({"label": None}, {}, "label must be a 1-D field of integers, got none"),
        ({"label": torch.rand(30)}, {}, "label must be a 1-D field of integers, got torch.float32"),
        (
            {"feat": torch.rand(30)},
            {},
            r"feat of 'a.b' must be a 2-D real field, got torch.float32 \(30,\)",
        ),
    ],
)
def test_bad_input(graph, settings, text):
    with pytest.raises(ValueError, match=text):
        make_hetero_task(changed(**graph), options_of(**settings))


def test_too_many_vertices_to_learn_an_embedding_each(monkeypatch):
    monkeypatch.setattr("pagraph.train.hetero._MOST_EMBEDDED", 8)
    with pytest.raises(
        ValueError, match="must be at most 8 of a type, got 9 of 'source': give them the field feat"
    ):
        make_hetero_task(odd_graph(), options_of())


def test_memory_that_does_not_hold_an_evaluation(papers):
    options = options_of(memory="1MiB", layers="pyg")
    with pytest.raises(ValueError, match="memory must be at least .* for evaluation"):
        train(make_hetero_task(papers, options), options)
