"""Training on a GPU; apart, because these tests are collected where DGL is not installed."""

import importlib.util

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("layers", "loader"), [("dgl", "pagraph"), ("dgl", "dgl"), ("pyg", "pagraph")]
)
def test_learns_on_a_gpu(graph, layers, loader):
    from pagraph.options.training import FRAMEWORKS
    from pagraph.train import TrainOptions
    from pagraph.train.loop import train
    from pagraph.train.task import make_task

    if importlib.util.find_spec(FRAMEWORKS[layers]) is None:
        pytest.skip(f"needs {layers}")
    if layers == "dgl":
        import pagraph.dgl  # noqa: F401  (makes DGL importable)

        import dgl  # isort: skip

        if not dgl.ndarray.gpu(0).exist:
            pytest.skip("needs a DGL that was built for CUDA")
    settings = {
        "batch_size": 100,
        "epochs": 30,
        "hidden": 16,
        "fanout": (5, 5),
        "device": "cuda",
        "lr": 0.01,
    }
    options = TrainOptions(layers=layers, loader=loader, **settings)
    assert train(make_task(graph, options), options).test_accuracy > 0.85
