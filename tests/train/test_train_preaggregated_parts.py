"""Parts of a graph with pre-aggregated features hold one hop less, and train and predict as the
whole graph."""

from dataclasses import replace

import pytest
import torch
from community import community_graph

from pagraph import Graph
from pagraph.datasets import write_graph
from pagraph.partition import open_partition, partition_graph, write_partition
from pagraph.train import TrainOptions
from pagraph.train.assignment import assign, default_fanout
from pagraph.train.distributed import World
from pagraph.train.evaluate import predict
from pagraph.train.loop import train
from pagraph.train.models import GCN, GraphSAGE, framework_of
from pagraph.train.preaggregation import preaggregate
from pagraph.train.task import make_task

pytestmark = pytest.mark.processes

MODELS = {"sage": GraphSAGE, "gcn": GCN}
FULL = {
    "fanout": (-1,),
    "batch_size": 1000,
    "epochs": 4,
    "hidden": 8,
    "dropout": 0.0,
    "lr": 0.05,
    "device": "cpu",
}


class Pretended(World):
    """One of several processes, whose others always agree."""

    def gather(self, value):
        return [value] * self.size


@pytest.fixture(scope="module", params=MODELS)
def folders(request, tmp_path_factory):
    """The model's name, the ordinary graph, and a folder of it pre-aggregated and divided in two
    ways."""
    path = tmp_path_factory.mktemp(request.param)
    ordinary = community_graph(300, degree=3)
    write_graph(ordinary, path / "ordinary")
    preaggregate(Graph.open(path / "ordinary"), path / "graph", model=request.param)
    graph = Graph.open(path / "graph")
    one = partition_graph(graph, 1, hops=1, method="hash")
    two = partition_graph(graph, 2, hops=1, method="hash")
    others = (graph.ndata["val_mask"] | graph.ndata["test_mask"]).nonzero().squeeze(1)
    two = replace(two, evaluated=others, evaluation=(torch.arange(len(others)) % 2).int())
    write_partition(one, path / "one", source=path / "graph")
    write_partition(two, path / "two", source=path / "graph", features="reference")
    return request.param, ordinary, path


@pytest.mark.parametrize("layers", ["dgl", "pyg"])
def test_one_part_trains_as_the_whole_graph_does_with_one_hop_more(folders, layers):
    name, ordinary, path = folders
    options = TrainOptions(model=name, layers=layers, **FULL)
    work = assign(path / "one", options)
    assert work.task.preaggregated
    got = train(work.task, options, evaluation=work.evaluation).to_json()
    more = replace(options, fanout=(-1, -1))
    want = train(make_task(ordinary, more), more).to_json()
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-3)
    assert got["test_accuracy_by_epoch"] == pytest.approx(want["test_accuracy_by_epoch"], abs=0.01)


def test_parts_predict_for_their_own_what_the_ordinary_graph_does(folders):
    name, ordinary, path = folders
    options = TrainOptions(model=name, **FULL)
    torch.manual_seed(1)
    framework = framework_of("dgl")
    early, late = (
        MODELS[name]([8, 6, 4], framework, dropout=0.5, preaggregated=flag)
        for flag in (True, False)
    )
    late.load_state_dict(early.state_dict())
    everything = predict(late, make_task(ordinary, options).evaluation())
    seen = []
    for rank in range(2):
        part = open_partition(path / "two", rank)
        work = assign(path / "two", options, world=Pretended(rank=rank, size=2))
        nodes = torch.cat([work.task.val, work.task.test])
        got = predict(early, work.evaluation, ids=nodes)
        torch.testing.assert_close(got, everything[part.global_ids[nodes]], rtol=1e-4, atol=1e-5)
        seen += part.global_ids[nodes].tolist()
    assert (
        sorted(seen)
        == (ordinary.ndata["val_mask"] | ordinary.ndata["test_mask"]).nonzero().squeeze(1).tolist()
    )


def test_one_hop_more_than_the_parts_have_is_refused(folders):
    name, _, path = folders
    with pytest.raises(
        ValueError, match=r"fanout must be no longer than the hops of the parts, 1, got \[5, 5\]"
    ):
        assign(path / "one", TrainOptions(model=name, fanout=(5, 5)))
    assert default_fanout(path / "one") == (10,)
    assert default_fanout(path) == (10, 10)


def test_another_model_is_refused(folders):
    name, _, path = folders
    with pytest.raises(
        ValueError, match=f"model must be '{name}', for which the features are pre-aggregated"
    ):
        assign(path / "one", TrainOptions(model={"sage": "gcn", "gcn": "sage"}[name], fanout=(5,)))
