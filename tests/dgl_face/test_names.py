"""The whole import line can be swapped: all names of ``dgl.dataloading``, ours first."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from cases import dgl
from fresh_processes import HANGING, bare_python

import pagraph.dgl
from pagraph.datasets import sbm, write_graph

SAMPLING = [
    *(
        "BlockSampler",
        "ClusterGCNSampler",
        "EdgePredictionSampler",
        "LaborSampler",
        "MultiLayerFullNeighborSampler",
    ),
    *(
        "MultiLayerNeighborSampler",
        "NeighborSampler",
        "SAINTSampler",
        "Sampler",
        "ShaDowKHopSampler",
    ),
    *("as_edge_prediction_sampler", "find_exclude_eids", "negative_sampler"),
]
LOADING = [
    "GraphDataLoader",
    "GraphCollator",
    "NodeCollator",
]
LAZY = [f"set_{what}_lazy_features" for what in ("node", "edge", "src", "dst")]


@pytest.mark.parametrize("name", SAMPLING + LOADING + LAZY)
def test_dgls_own_objects_come_unchanged(name):
    if not hasattr(dgl.dataloading, name):
        pytest.skip(f"dgl {dgl.__version__} has no {name}")
    assert getattr(pagraph.dgl, name) is getattr(dgl.dataloading, name)
    assert name in dir(pagraph.dgl)


@pytest.mark.parametrize("name", ["DistNodeDataLoader", "DistEdgeDataLoader"])
def test_loaders_of_distdgl_are_ours_and_dgls(name):
    theirs = getattr(dgl.dataloading, name, None) or getattr(dgl.distributed, name)
    ours = getattr(pagraph.dgl, name)
    assert ours is not theirs and issubclass(ours, theirs)
    assert name in dir(pagraph.dgl)


def test_a_swapped_import_line():
    from pagraph.dgl import (
        DataLoader,
        NeighborSampler,
        as_edge_prediction_sampler,
        negative_sampler,
    )

    graph = dgl.graph((torch.arange(9), torch.arange(1, 10)))
    sampler = as_edge_prediction_sampler(
        NeighborSampler([2]), negative_sampler=negative_sampler.Uniform(2)
    )
    (batch,) = DataLoader(graph, torch.arange(3), sampler, batch_size=3)
    assert batch[1].edata[dgl.EID].tolist() == [0, 1, 2] and batch[2].num_edges() == 6


def test_graph_classification_through_dgls_loader():
    from pagraph.dgl import GraphDataLoader

    graphs = [dgl.graph(([0] * n, [0] * n)) for n in (1, 2, 3)]
    batches = [batch.batch_num_edges().tolist() for batch in GraphDataLoader(graphs, batch_size=2)]
    assert batches == [[1, 2], [3]]


def test_ours_are_never_shadowed():
    assert pagraph.dgl.DataLoader is not dgl.dataloading.DataLoader
    for name in vars(pagraph.dgl).keys() & set(pagraph.dgl.__all__):
        assert getattr(pagraph.dgl, name).__module__.startswith("pagraph.")
    assert len(pagraph.dgl.__all__) == len(set(pagraph.dgl.__all__))
    assert pagraph.dgl.__name__ == "pagraph.dgl"


@pytest.mark.parametrize(
    "name", ["np", "os", "torch_geometric", "DGLGraph", "NodeDataLoader", "_private", "__wrapped__"]
)
def test_other_names_are_refused(name):
    with pytest.raises(
        AttributeError, match=f"'pagraph.dgl' has no attribute '{name}', nor has 'dgl.dataloading'"
    ):
        getattr(pagraph.dgl, name)
    assert name not in dir(pagraph.dgl)


def test_importing_a_name_that_is_not_there():
    with pytest.raises(ImportError, match="NodeDataLoader"):
        from pagraph.dgl import NodeDataLoader  # noqa: F401


def test_a_star_import_brings_what_dgls_brings():
    names, theirs = {}, {}
    exec("from pagraph.dgl import *", names)
    exec("from dgl.dataloading import *", theirs)
    assert names["DataLoader"] is pagraph.dgl.DataLoader and names["to_dgl"] is pagraph.dgl.to_dgl
    for name in SAMPLING + LAZY:
        assert name == "negative_sampler" or names[name] is theirs[name]
    assert "np" not in names and "os" not in names


def test_the_walks_are_an_attribute_as_dgls_are():
    assert pagraph.dgl.sampling.random_walk.__module__ == "pagraph.dgl.sampling"
    assert pagraph.dgl.sampling.pack_traces is dgl.sampling.pack_traces


@pytest.mark.processes
def test_dgl_may_be_imported_first():
    """Where it fails alone, as with a torch that its GraphBolt does not fit, ours mends it."""
    text = """
try:
    import dgl
except Exception:
    pass
import pagraph.dgl
import dgl, torch
graph = dgl.graph(([0, 1], [1, 2]))
loader = pagraph.dgl.DataLoader(graph, torch.arange(3), dgl.dataloading.NeighborSampler([2]))
assert isinstance(loader, dgl.dataloading.DataLoader)
print(len(list(loader)))
"""
    command = [bare_python(), "-W", "ignore", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("home", "arguments"),
    [
        ("empty", ["-c", "import pagraph.dgl"]),
        ("missing", ["-c", "import pagraph.dgl"]),
        ("/dev/null/unwritable", ["-c", "import pagraph.dgl"]),
        ("empty", ["-m", "pagraph", "run", "script.py"]),
        ("empty", ["-m", "pagraph", "train", "graph", "--compare", "dgl", "--epochs", "1"]),
        ("empty", ["-m", "pagraph", "doctor"]),
    ],
)
def test_dgl_tells_no_backend_and_writes_none(home, arguments, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "script.py").write_text("import dgl\n")
    write_graph(sbm(500), tmp_path / "graph")
    kernels = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    environment = os.environ | {"HOME": str(tmp_path / home), "XDG_CACHE_HOME": kernels}
    for name in ("DGLBACKEND", "DGLDEFAULTDIR"):
        environment.pop(name, None)
    done = subprocess.run(
        [bare_python(), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.returncode == 0, done.stderr
    assert "DGLBACKEND" not in done.stdout and "backend not selected" not in done.stderr
    assert not (tmp_path / home / ".dgl").exists()
    if "-c" in arguments or "run" in arguments:
        assert done.stdout == ""
