from functools import partial

import pytest
import torch
from faces import NAMES, whole_block

from pagraph import Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.train import Reporter, TrainOptions
from pagraph.train.evaluate import predict
from pagraph.train.loop import begin_training, in_turn, train
from pagraph.train.models import GAT, GCN, NORM, GraphSAGE
from pagraph.train.task import make_task

MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}
QUICK = {
    "batch_size": 100,
    "epochs": 8,
    "hidden": 16,
    "fanout": (5, 5),
    "device": "cpu",
    "lr": 0.01,
}


class Listener(Reporter):
    def __init__(self):
        self.batches, self.records = [], []

    def batch(self, epoch, done, total):
        self.batches.append((epoch, done, total))

    def epoch(self, record):
        self.records.append(record)


def run(graph, reporter=None, **settings):
    options = TrainOptions(**{**QUICK, **settings})
    return train(make_task(graph, options), options, reporter=reporter)


KINDS = {
    "dgl": {"layers": "dgl"},
    "DGL's own": {"loader": "dgl"},
    "pyg": {"layers": "pyg"},
    "PyG's own": {"loader": "pyg"},
}


@pytest.fixture(params=KINDS)
def kind(request, pyg_without_extensions):
    """Layers and loader of a run."""
    return KINDS[request.param]


@pytest.mark.every
@pytest.mark.parametrize("model", MODELS)
def test_learns(graph, model, kind, no_threads_left):
    # Evaluated seldom: each evaluation takes as long as some epochs of so small a graph.
    result = run(graph, model=model, epochs=30, eval_every=10, **kind)
    # The class that the features show is right for 70 % of the vertices.
    assert result.test_accuracy > 0.85
    assert result.epochs[-1].loss < 0.6 * result.epochs[0].loss


@pytest.mark.learning
def test_all_loaders_and_layers_reach_the_same_accuracy(graph, pyg_without_extensions):
    short = {"epochs": 20, "eval_every": 10}
    first, *others = (
        sum(run(graph, seed=seed, **short, **kind).test_accuracy for seed in range(3)) / 3
        for kind in KINDS.values()
    )
    assert others == pytest.approx([first] * len(others), abs=0.05)


def test_runs_in_turn_are_those_by_themselves(graph):
    """Dropout draws from torch's generator in both."""
    alone, runs = {}, {}
    for name, settings in {"first": {"seed": 3}, "second": {"seed": 4, "layers": "pyg"}}.items():
        options = TrainOptions(**{**QUICK, "epochs": 3, **settings})
        alone[name] = [record.loss for record in run(graph, epochs=3, **settings).epochs]
        runs[name] = partial(begin_training, make_task(graph, options), options)
    found = [(name, record.loss) for name, record in in_turn(runs, torch.device("cpu"))]
    assert found == [(name, alone[name][epoch]) for epoch in range(3) for name in alone]


@pytest.mark.many
@pytest.mark.parametrize("layers", NAMES)
def test_the_same_seed_gives_the_same_run_whatever_the_threads(graph, layers):
    first = run(graph, seed=3, epochs=3, layers=layers)
    again = run(graph, seed=3, epochs=3, num_workers=3, prefetch=0, layers=layers)
    other = run(graph, seed=4, epochs=3, layers=layers)
    assert [e.loss for e in first.epochs] == [e.loss for e in again.epochs]
    assert first.test_accuracy == again.test_accuracy
    assert [e.loss for e in first.epochs] != [e.loss for e in other.epochs]


def test_evaluating_does_not_change_training(graph):
    often, once = run(graph, epochs=4), run(graph, epochs=4, eval_every=3)
    assert [e.loss for e in often.epochs] == [e.loss for e in once.epochs]
    assert [e.val_accuracy is not None for e in once.epochs] == [False, False, True, True]


@pytest.mark.every
@pytest.mark.parametrize("model", MODELS)
def test_with_all_neighbours_both_frameworks_train_alike(graph, model):
    settings = {"fanout": (-1, -1), "batch_size": 1000, "dropout": 0.0, "epochs": 3, "model": model}
    ours, theirs = (run(graph, layers=layers, **settings) for layers in NAMES)
    assert [e.loss for e in ours.epochs] == pytest.approx([e.loss for e in theirs.epochs], rel=1e-3)
    assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=0.02)


def test_what_is_reported(graph, kind):
    listener = Listener()
    result = run(graph, listener, epochs=2, **kind)
    num_batches = -(-int(graph.ndata["train_mask"].sum()) // 100)
    expected = [(epoch, done + 1, num_batches) for epoch in range(2) for done in range(num_batches)]
    assert listener.batches == expected
    assert tuple(listener.records) == result.epochs
    for record in result.epochs:
        parts = record.loading_seconds + record.computing_seconds
        assert record.loading_seconds > 0 and record.computing_seconds > 0
        assert parts <= record.seconds
    assert (result.hit_rate is None) == ("loader" in kind)


@pytest.mark.parametrize("layers", NAMES)
def test_the_cache_is_used_for_features_on_disk(graph, tmp_path, layers):
    write_graph(graph, tmp_path / "graph")
    result = run(open_graph(tmp_path / "graph"), cache="1MiB", layers=layers, epochs=3)
    assert result.epochs[-1].hit_rate == 1.0
    assert run(open_graph(tmp_path / "graph"), cache="0", layers=layers, epochs=3).hit_rate == 0.0


def test_a_failing_reporter_stops_the_run_and_leaves_no_thread(graph, no_threads_left):
    class Failing(Reporter):
        def batch(self, epoch, done, total):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(graph, Failing())


@pytest.mark.every
@pytest.mark.parametrize("row_normalize", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_layer_wise_prediction_equals_the_whole_graph(graph, name, row_normalize, framework):
    task = make_task(graph, TrainOptions(model=name))
    torch.manual_seed(1)
    model = MODELS[name]([8, 9, 6, 4], framework, dropout=0.5, row_normalize=row_normalize, heads=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    got = predict(model, task.evaluation())
    assert model.training
    model.eval()
    x = task.graph.ndata["feat"]
    x = x / x.abs().sum(1, keepdim=True) if row_normalize else x
    with torch.no_grad():
        for i in range(3):
            x = model.layer(i, whole_block(framework, task.graph), x, task.graph.ndata.get(NORM))
    torch.testing.assert_close(got, x, rtol=1e-4, atol=1e-4)


def test_prediction_cleans_up_after_a_failure(graph, framework):
    task = make_task(graph, TrainOptions())
    model = GraphSAGE([7, 4, 4], framework, dropout=0.5)
    with pytest.raises(RuntimeError, match="shapes"):
        predict(model, task.evaluation())
    assert model.training


@pytest.mark.memory
def test_too_little_memory_for_evaluation_is_refused_before_the_first_batch(framework):
    """The number that is said suffices."""
    count, listener = 60_000, Listener()
    fields = {"feat": torch.eye(4).repeat(count // 4, 1), "label": torch.arange(count) % 4}
    fields |= {
        f"{part}_mask": torch.arange(count) % 3 == i
        for i, part in enumerate(("train", "val", "test"))
    }
    graph = Graph.from_coo(range(1, count), [0] * (count - 1), count, ndata=fields)
    settings = {"hidden": 64, "batch_size": 1000, "epochs": 1, "fanout": (5, 5)}
    with pytest.raises(
        ValueError, match=r"memory must be at least (\d+MiB) for evaluation, which gets a quarter"
    ) as told:
        run(graph, listener, memory="90MB", **settings)
    assert not listener.batches
    run(graph, listener, memory=str(told.value).split()[5], **settings)
    assert listener.batches


def test_normalised_rows_are_those_of_a_graph_that_has_them(graph, kind):
    settings = {"epochs": 2, "fanout": (-1, -1), "batch_size": 1000, "dropout": 0.0, **kind}
    ours = run(graph, row_normalize=True, **settings)
    feat = graph.ndata["feat"]
    graph.set_field("feat", feat / feat.abs().sum(1, keepdim=True))
    theirs = run(graph, **settings)
    assert [e.loss for e in ours.epochs] == pytest.approx([e.loss for e in theirs.epochs], rel=1e-4)
    assert ours.test_accuracy == pytest.approx(theirs.test_accuracy, abs=0.02)


@pytest.mark.every
@pytest.mark.parametrize("layers", NAMES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8]
)
def test_features_of_any_type(graph, dtype, layers):
    graph.set_field("feat", graph.ndata["feat"].mul(4).clamp(min=0).to(dtype))
    assert run(graph, epochs=1, layers=layers).epochs[0].loss < 20


@pytest.mark.every
@pytest.mark.parametrize("kind", [KINDS["dgl"], KINDS["DGL's own"], KINDS["pyg"]], ids=str)
def test_gcn_on_cora_comes_near_the_published_accuracy(data_folder, kind):
    # Published 81.5 (Kipf and Welling, 2017); 3 seeds here gave 80.0 to 82.9 with either loader, an
    # MLP 54.5.
    options = TrainOptions(
        model="gcn", epochs=50, eval_every=5, lr=0.01, row_normalize=True, device="cpu", **kind
    )
    assert train(make_task(open_graph(data_folder / "cora"), options), options).test_accuracy > 0.79
