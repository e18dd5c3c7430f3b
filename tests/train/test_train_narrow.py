"""Training on fields in fewer bytes: the same bits as on the values they are read as, by both
faces."""

import pytest
import torch

from pagraph import Graph
from pagraph.datasets import sbm, write_graph
from pagraph.train import TrainOptions
from pagraph.train.loop import train
from pagraph.train.task import make_task


@pytest.mark.every
@pytest.mark.parametrize("layers", ["dgl", "pyg"])
@pytest.mark.parametrize("name", ["float16", "int8"])
def test_a_run_is_that_on_the_values(name, layers, tmp_path):
    pytest.importorskip({"dgl": "pagraph.dgl", "pyg": "torch_geometric"}[layers])
    write_graph(sbm(300, num_features=12, seed=0), tmp_path / "graph", store=name)
    narrow = Graph.open(tmp_path / "graph")
    plain = Graph(narrow.csc, ndata={**narrow.ndata, "feat": narrow.ndata["feat"].materialize()})
    options = TrainOptions(epochs=2, batch_size=60, hidden=8, layers=layers, device="cpu")
    torch.use_deterministic_algorithms(True)
    try:
        runs = [train(make_task(graph, options), options) for graph in (narrow, plain)]
    finally:
        torch.use_deterministic_algorithms(False)
    losses = [[rank.loss for record in run.epochs for rank in record.ranks] for run in runs]
    assert losses[0] == losses[1] and runs[0].test_accuracy == runs[1].test_accuracy
