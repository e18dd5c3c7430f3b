import dataclasses
import importlib.util
import sys

import pytest
import torch

from pagraph.train import TrainOptions

INSTALLED = "dgl" if importlib.util.find_spec("dgl") is not None else "pyg"


def test_defaults_are_valid_and_frozen():
    options = TrainOptions()
    assert (options.model, options.layers, options.loader, options.fanout) == (
        "sage",
        INSTALLED,
        "pagraph",
        (10, 10),
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.epochs = 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("task", "edges", "task must be one of nodes, links, got 'edges'"),
        ("model", "gin", "model must be one of sage, gcn, gat, got 'gin'"),
        ("loader", "pyt", "loader must be one of pagraph, dgl, pyg, got 'pyt'"),
        ("layers", "jax", "layers must be one of auto, dgl, pyg, got 'jax'"),
        ("fanout", (), "fanout must have at least 1 entry, each -1 or at least 1, got []"),
        (
            "fanout",
            (10, 0),
            "fanout must have at least 1 entry, each -1 or at least 1, got [10, 0]",
        ),
        ("fanout", (-2,), "fanout must have at least 1 entry, each -1 or at least 1, got [-2]"),
        ("batch_size", 0, "batch_size must be at least 1, got 0"),
        ("epochs", -1, "epochs must be at least 1, got -1"),
        ("hidden", 0, "hidden must be at least 1, got 0"),
        ("heads", 0, "heads must be at least 1, got 0"),
        ("eval_every", 0, "eval_every must be at least 1, got 0"),
        ("lr", 0.0, "lr must be positive and finite, got 0.0"),
        ("lr", float("nan"), "lr must be positive and finite, got nan"),
        ("lr", float("inf"), "lr must be positive and finite, got inf"),
        ("dropout", 1.0, "dropout must be in [0, 1), got 1.0"),
        ("dropout", float("nan"), "dropout must be in [0, 1), got nan"),
        ("weight_decay", -0.1, "weight_decay must be at least 0 and finite, got -0.1"),
        ("weight_decay", float("nan"), "weight_decay must be at least 0 and finite, got nan"),
        ("num_workers", -1, "num_workers must be at least 0, got -1"),
        ("prefetch", -1, "prefetch must be at least 0, got -1"),
        ("lookahead", "-1", "lookahead must be at least 0, got -1"),
        ("lookahead", "far", "lookahead must be \"auto\" or an integer, got 'far'"),
        ("memory", "10%", "memory must be bytes"),
        ("memory", "0", "more than 0, got '0'"),
        ("seed", -1, "seed must be in [0, 2**32), got -1"),
        ("seed", 2**32, "seed must be in [0, 2**32), got 4294967296"),
        ("cache", "lots", "got 'lots'"),
        ("cache", "-1GiB", "got '-1GiB'"),
        ("cache_policy", "magic", "cache_policy must be one of"),
        ("cache_dtype", "uint8", "torch.bfloat16, torch.int8 or their names, got 'uint8'"),
        ("device", "gpu", "device must be auto, cpu or cuda[:N], got 'gpu'"),
        ("device", "meta", "device must be auto, cpu or cuda[:N], got 'meta'"),
        ("device", "cuda:99", "CUDA devices, got 'cuda:99'"),
    ],
)
def test_rules(name, value, message):
    with pytest.raises(ValueError) as error:
        TrainOptions(**{name: value})
    assert message in str(error.value)


def test_auto_takes_the_gpu_where_there_is_one():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert TrainOptions().torch_device().type == expected
    assert TrainOptions(device="cpu").torch_device() == torch.device("cpu")


def test_boundaries_are_accepted():
    options = TrainOptions(
        fanout=(-1,), dropout=0.0, weight_decay=0.0, num_workers=0, prefetch=0, seed=2**32 - 1
    )
    assert options.fanout == (-1,)


def test_heads_share_the_hidden_width():
    with pytest.raises(ValueError, match="hidden must be a multiple of heads, 4, for GAT, got 10"):
        TrainOptions(model="gat", hidden=10)
    assert TrainOptions(model="sage", hidden=10).heads == 4


def test_layers_go_with_the_loader():
    assert [TrainOptions(loader=name).layers for name in ("pagraph", "dgl", "pyg")] == [
        INSTALLED,
        "dgl",
        "pyg",
    ]
    assert TrainOptions(layers="pyg").loader == "pagraph"
    with pytest.raises(ValueError, match="layers must be 'pyg' with pyg's loader, got 'dgl'"):
        TrainOptions(layers="dgl", loader="pyg")


@pytest.mark.parametrize(
    ("missing", "expected"), [(["dgl"], "pyg"), (["dgl", "torch_geometric"], "auto")]
)
def test_layers_are_those_that_are_installed(monkeypatch, missing, expected):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    assert TrainOptions().layers == expected


def test_every_option_but_the_loader_is_documented():
    fields = dataclasses.fields(TrainOptions)
    assert [field.name for field in fields if not field.metadata.get("help")] == ["loader"]
