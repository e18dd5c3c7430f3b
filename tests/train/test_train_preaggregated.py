"""Models on pre-aggregated features: the same parameters and results as without, one hop less."""

import pytest
import torch
from faces import NAMES, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import Graph
from pagraph.datasets import open_graph
from pagraph.options.names import SUMS
from pagraph.train import TrainOptions
from pagraph.train.evaluate import predict
from pagraph.train.loop import train
from pagraph.train.models import GCN, GraphSAGE, framework_of
from pagraph.train.preaggregation import NeighborSums, preaggregate
from pagraph.train.task import make_task

MODELS = {"sage": GraphSAGE, "gcn": GCN}
PARTS = ("train_mask", "val_mask", "test_mask")
QUICK = {"batch_size": 100, "epochs": 30, "hidden": 16, "device": "cpu", "lr": 0.01}


@st.composite
def graphs(draw):
    """Directed, with self-loops, parallel edges and isolated vertices; every vertex is in every
    part."""
    n = draw(st.integers(2, 15))
    ends = st.lists(st.integers(0, n - 1), min_size=(m := draw(st.integers(0, 60))), max_size=m)
    g = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    masks = dict.fromkeys(PARTS, torch.ones(n, dtype=torch.bool))
    fields = {"feat": torch.randn(n, 5, generator=g), "label": torch.arange(n) % 3, **masks}
    return Graph.from_coo(draw(ends), draw(ends), n, ndata=fields)


def with_sums(graph, model, row_normalize=False):
    """What ``preaggregate`` writes, in memory."""
    sums = NeighborSums(graph, model=model, row_normalize=row_normalize)
    fields = {name: value for name, value in graph.ndata.items() if name != "feat"}
    if model == "sage":
        fields["feat"] = sums.features[:]
    return Graph(graph.csc, ndata=fields | {SUMS[model]: sums[:]})


def scores(framework, task, model, seeds):
    """The model's output for ``seeds``, ascending, from all neighbours."""
    fanout = [-1] * (len(model.layers) - int(model.preaggregated))
    blocks, rows, order = sampled(framework, task.graph, fanout, seeds, model.fields, prefetch=0)
    return model(blocks, *rows)[order.argsort()]


@pytest.mark.every
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(25))
@given(graph=graphs(), row_normalize=st.booleans(), layers=st.integers(2, 3))
def test_the_same_parameters_give_the_same_scores(name, kind, graph, row_normalize, layers):
    framework = framework_of(kind)
    torch.manual_seed(0)
    sizes = [5, *[4] * (layers - 1), 3]
    ordinary = MODELS[name](sizes, framework, dropout=0.5, row_normalize=row_normalize).eval()
    early = MODELS[name](sizes, framework, dropout=0.5, preaggregated=True).eval()
    for parameter in ordinary.parameters():
        torch.nn.init.normal_(parameter)
    early.load_state_dict(ordinary.state_dict())
    whole = make_task(graph, TrainOptions(model=name))
    less = make_task(with_sums(graph, name, row_normalize), TrainOptions(model=name))
    assert (whole.preaggregated, less.preaggregated) == (False, True)
    assert (less.widths, less.num_outputs) == (whole.widths, whole.num_outputs)
    seeds = torch.arange(graph.num_nodes)
    want = scores(framework, whole, ordinary, seeds)
    torch.testing.assert_close(scores(framework, less, early, seeds), want, rtol=1e-4, atol=1e-4)
    ordinary.load_state_dict(early.state_dict())
    assert [p.shape for p in ordinary.parameters()] == [p.shape for p in early.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_same_too(graph, name, framework):
    torch.manual_seed(0)
    ordinary, early = (
        MODELS[name]([8, 6, 4], framework, dropout=0.0, preaggregated=flag)
        for flag in (False, True)
    )
    early.load_state_dict(ordinary.state_dict())
    options, seeds = TrainOptions(model=name), torch.arange(0, 600, 7)
    for model, source in ((ordinary, graph), (early, with_sums(graph, name))):
        task = make_task(source, options)
        loss = torch.nn.functional.cross_entropy(
            scores(framework, task, model, seeds), graph.ndata["label"][seeds]
        )
        loss.backward()
    for one, other in zip(ordinary.parameters(), early.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [2, 3])
def test_layer_wise_prediction(graph, name, layers, framework):
    torch.manual_seed(1)
    model = MODELS[name]([8, *[6] * (layers - 1), 4], framework, dropout=0.5, preaggregated=True)
    task = make_task(with_sums(graph, name), TrainOptions(model=name))
    got = predict(model, task.evaluation())
    assert model.training
    everyone = torch.arange(600)
    torch.testing.assert_close(
        got, scores(framework, task, model.eval(), everyone).detach(), rtol=1e-4, atol=1e-4
    )


@pytest.mark.every
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [{"layers": "dgl"}, {"loader": "dgl"}, {"layers": "pyg"}], ids=str)
def test_learns_from_a_folder(graph, name, kind, tmp_path):
    preaggregate(graph, tmp_path / "graph", model=name)
    options = TrainOptions(**QUICK, model=name, fanout=(5,), **kind)
    result = train(make_task(open_graph(tmp_path / "graph"), options), options)
    # The class that the features show is right for 70 % of the vertices.
    assert result.test_accuracy > 0.85


@pytest.mark.learning
@pytest.mark.parametrize("name", MODELS)
def test_the_accuracy_is_that_of_one_hop_more(graph, name):
    """Sampled, the first layer's sums are exact instead of estimated: no worse."""
    accuracy = {}
    for source, fanout in ((graph, (5, 5)), (with_sums(graph, name), (5,))):
        settings = {**QUICK, "epochs": 20, "model": name, "fanout": fanout}
        runs = [TrainOptions(**settings, seed=seed) for seed in range(3)]
        accuracy[fanout] = (
            sum(train(make_task(source, options), options).test_accuracy for options in runs) / 3
        )
    assert accuracy[(5,)] == pytest.approx(accuracy[(5, 5)], abs=0.06)


def test_features_of_half_precision(graph, tmp_path):
    graph.set_field("feat", graph.ndata["feat"].half())
    preaggregate(graph, tmp_path / "graph", model="sage")
    options = TrainOptions(**QUICK | {"epochs": 1}, fanout=(5,))
    task = make_task(open_graph(tmp_path / "graph"), options)
    assert [task.graph.ndata[name].dtype for name in ("feat", "feat_mean")] == [
        torch.float16,
        torch.float32,
    ]
    assert train(task, options).epochs[0].loss < 20


@pytest.mark.parametrize(("made_for", "asked"), [("sage", "gcn"), ("gcn", "sage"), ("sage", "gat")])
def test_another_model_is_refused(graph, made_for, asked):
    message = (
        f"model must be '{made_for}', for which the features are pre-aggregated, got '{asked}'"
    )
    with pytest.raises(ValueError, match=message):
        make_task(with_sums(graph, made_for), TrainOptions(model=asked))


def test_normalising_too_late_is_refused(graph):
    with pytest.raises(
        ValueError,
        match="row_normalize must be False for pre-aggregated features, got True",
    ):
        make_task(with_sums(graph, "gcn"), TrainOptions(model="gcn", row_normalize=True))


def test_fields_that_do_not_fit(graph):
    graph.set_field("feat_mean", torch.zeros(600, 7))
    with pytest.raises(
        ValueError, match=r"feat_mean must be a 2-D real field 8 wide, got torch.float32 \(600, 7\)"
    ):
        make_task(graph, TrainOptions())
    del graph.ndata["feat"]
    with pytest.raises(
        ValueError, match=r"must have the fields feat, feat_mean, label, .*it lacks feat and has"
    ):
        make_task(graph, TrainOptions())


def test_the_task_says_so(graph):
    assert "8 pre-aggregated features" in str(
        make_task(with_sums(graph, "gcn"), TrainOptions(model="gcn"))
    )
