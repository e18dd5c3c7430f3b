"""The whole import line can be swapped: all classes of ``torch_geometric.loader``, ours first."""

import subprocess

import pytest
import torch
import torch_geometric.loader
from fresh_processes import HANGING, bare_python

import pagraph.pyg

OURS = {
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "HGTLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "ShaDowKHopSampler",
    "core_graph",
}


@pytest.mark.parametrize(
    "name", [*sorted({*torch_geometric.loader.__all__} - OURS), "RandomNodeSampler"]
)
def test_pygs_own_classes_come_unchanged(name):
    assert getattr(pagraph.pyg, name) is getattr(torch_geometric.loader, name)
    assert name in dir(pagraph.pyg)


@pytest.mark.parametrize("name", sorted(OURS))
def test_ours_are_never_shadowed(name):
    assert getattr(pagraph.pyg, name).__module__.startswith("pagraph.pyg.")


def test_a_star_import_brings_what_pygs_brings():
    names, theirs = {}, {}
    exec("from pagraph.pyg import *", names)
    exec("from torch_geometric.loader import *", theirs)
    assert {*theirs} <= {*names} and names["NeighborLoader"] is pagraph.pyg.NeighborLoader
    assert len(pagraph.pyg.__all__) == len({*pagraph.pyg.__all__})


@pytest.mark.parametrize(
    "name", ["utils", "mixin", "deprecated", "torch", "_private", "__wrapped__", "Data"]
)
def test_other_names_are_refused(name):
    with pytest.raises(
        AttributeError,
        match=f"'pagraph.pyg' has no attribute '{name}', nor has 'torch_geometric.loa",
    ):
        getattr(pagraph.pyg, name)
    assert name not in dir(pagraph.pyg)


def test_without_pyg():
    code = """
import sys
sys.modules["torch_geometric"] = None
from pagraph import MissingDependencyError
try: import pagraph.pyg
except MissingDependencyError as error: print(error)
"""
    done = subprocess.run(
        [bare_python(), "-c", code], capture_output=True, text=True, timeout=HANGING
    )
    assert (
        done.stdout.strip()
        == "pagraph.pyg needs PyG, which is not installed: pip install 'pagraph[pyg]'"
    ), done.stderr


@pytest.mark.processes
def test_needs_no_binary_of_pygs_and_gives_no_warning():
    """Neither of what PyPI has no wheels of can be imported, and every warning is an error."""
    code = """
import sys
for name in ("torch_sparse", "pyg_lib", "torch_scatter", "torch_cluster"):
    sys.modules[name] = None
import torch
from pagraph.pyg import LinkNeighborLoader, NeighborLoader
from torch_geometric.data import Data
edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
data = Data(x=torch.ones(4, 2), edge_index=edge_index)
print(sum(b.num_nodes for b in NeighborLoader(data, [2], batch_size=2)), end=" ")
print(sum(len(b.input_id) for b in LinkNeighborLoader(data, [2], edge_label_index=edge_index, batch_size=2)))
"""
    done = subprocess.run(
        [bare_python(), "-W", "error", "-c", code], capture_output=True, text=True, timeout=HANGING
    )
    assert done.stdout.split() == ["5", "3"], done.stderr


def test_the_core_says_that_a_sampler_is_pygs():
    """`from pagraph.pyg import *` hides the core's sampler of the same name."""
    data = torch_geometric.data.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(TypeError, match="PyG's samplers are for pagraph.pyg.NeighborLoader"):
        pagraph.Loader(
            pagraph.Graph.from_coo([0], [1]), [0], pagraph.pyg.NeighborSampler(data, [2])
        )
    with pytest.raises(TypeError, match="samplers of blocks are for pagraph.Loader"):
        pagraph.pyg.NeighborLoader(data, [2], neighbor_sampler=pagraph.NeighborSampler([2]))
