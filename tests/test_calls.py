"""A batch makes no more calls of Python functions than what was reached.

A call costs about 0.1 us by itself, and each holds the interpreter's lock that the training loop
needs. Unlike times, calls can be counted on a busy machine. ``benchmarks/per_batch.py`` counts them
on a larger graph, and times them.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import pagraph
from pagraph import Loader, NeighborSampler
from pagraph.datasets import citation, sbm

ROOT = Path(pagraph.__file__).resolve().parent
ROOMS = tuple(str(folder) for folder in (ROOT, ROOT.parent / "datasets", ROOT.parent / "partition"))

MOST = {
    "core": 56,
    "dgl": 90,
    "pyg": 80,
    "pyg, two types": 98,
    "pyg, two types by weight": 167,
    "pyg, five types in time": 135,
    "pyg, five types in time, frames": 188,
    "hgt, two types": 113,
}
"""Calls a batch, by loader. They may fall. Who lowers one writes the new figure here."""

SEEDS = 16
WARM_UP = 4


def calls_of(work):
    """How often each named function of pagraph's is called; comprehensions do not count, which are
    calls up to Python 3.11 only."""
    counts = Counter()

    def seen(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_name[0] != "<" and code.co_filename.startswith(ROOMS):
            counts[f"{Path(code.co_filename).name}:{code.co_name}"] += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def core_loader(options):
    graph = sbm(2000, num_features=8, seed=0)
    sampler = NeighborSampler([10, 5])
    return Loader(
        graph, graph.ndata["train_mask"], sampler, fields=["feat"], labels=["label"], **options
    )


def dgl_loader(options):
    pytest.importorskip("pagraph.dgl")
    from dgl.dataloading import NeighborSampler as DGLsSampler

    from pagraph.dgl import DataLoader, to_dgl

    graph = to_dgl(sbm(2000, num_features=8, seed=0))
    graph.create_formats_()
    sampler = DGLsSampler([10, 5], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    return DataLoader(graph, graph.ndata["train_mask"].nonzero().squeeze(1), sampler, **options)


def pyg_loader(options):
    pytest.importorskip("pagraph.pyg")
    from torch_geometric.data import Data

    from pagraph.pyg import NeighborLoader, to_pyg

    made = to_pyg(sbm(2000, num_features=8, seed=0))
    data = Data(edge_index=made.edge_index, num_nodes=made.num_nodes, x=made.x, y=made.y)
    return NeighborLoader(data, [5, 10], input_nodes=made.train_mask, **options)


def typed_data():
    pytest.importorskip("pagraph.pyg")
    from pagraph.pyg import to_pyg

    return to_pyg(citation(1000, num_features=8, num_author_features=4, seed=0))


def typed_loader(options):
    data = typed_data()
    from pagraph.pyg import NeighborLoader

    return NeighborLoader(data, [5, 10], input_nodes=("paper", data["paper"].train_mask), **options)


def weighted_loader(options):
    data = typed_data()
    from pagraph.pyg import NeighborLoader

    generator = torch.Generator().manual_seed(0)
    for etype in data.edge_types:
        data[etype].weight = torch.rand(data[etype].num_edges, generator=generator)
    seeds = ("paper", data["paper"].train_mask)
    return NeighborLoader(data, [5, 10], input_nodes=seeds, weight_attr="weight", **options)


def tables_in_time(options):
    """Five tables, as those of a shop, with edges in both directions; orders and lines have times."""
    pytest.importorskip("pagraph.pyg")
    from torch_geometric.data import HeteroData

    from pagraph.pyg import NeighborLoader

    sizes = {"user": 40, "product": 30, "store": 3, "order": 300, "line": 900}
    data = HeteroData()
    for table, rows in sizes.items():
        data[table].x = torch.zeros(rows, 4)
    for table in ("order", "line"):
        data[table].time = torch.arange(sizes[table])
    for child, parent in [
        ("order", "user"),
        ("order", "store"),
        ("line", "order"),
        ("line", "product"),
    ]:
        rows = torch.arange(sizes[child])
        edges = torch.stack([rows, rows % sizes[parent]])
        data[child, "of", parent].edge_index = edges
        data[parent, "has", child].edge_index = edges.flip(0)
    users = torch.arange(sizes["user"]).repeat(10)
    times = torch.arange(len(users))
    return NeighborLoader(
        data, [5, 10], ("user", users), input_time=times, time_attr="time", **options
    )


def frames_in_time(options):
    """The same tables, with frames in place of features."""
    pytest.importorskip("torch_frame", reason="needs PyTorch Frame (pip install pytorch-frame)")
    from torch_frame import TensorFrame, stype

    loader = tables_in_time(options)
    data = loader.data
    for ntype, store in data.node_items():
        rows = len(store.pop("x"))
        features = {
            stype.numerical: torch.zeros(rows, 3),
            stype.categorical: torch.zeros(rows, 2, dtype=torch.int64),
        }
        names = {stype.numerical: ["a", "b", "c"], stype.categorical: ["d", "e"]}
        if ntype in ("order", "line"):
            features[stype.timestamp] = torch.zeros(rows, 1, 7, dtype=torch.int64)
            names[stype.timestamp] = ["f"]
        store.tf = TensorFrame(features, names)
        store.num_nodes = rows
    return loader


def hgt_loader(options):
    data = typed_data()
    from pagraph.pyg import HGTLoader

    return HGTLoader(data, [64, 64], input_nodes=("paper", data["paper"].train_mask), **options)


MADE = {
    "core": core_loader,
    "dgl": dgl_loader,
    "pyg": pyg_loader,
    "pyg, two types": typed_loader,
    "pyg, two types by weight": weighted_loader,
    "pyg, five types in time": tables_in_time,
    "pyg, five types in time, frames": frames_in_time,
    "hgt, two types": hgt_loader,
}


@pytest.mark.parametrize("name", MADE)
def test_a_batch_makes_no_more_calls(name):
    loader = MADE[name]({"batch_size": SEEDS, "shuffle": True, "seed": 0, "prefetch": 0})
    batches = iter(loader)
    for _ in range(WARM_UP):
        next(batches)
    counts = calls_of(lambda: next(batches))
    assert counts, "nothing was counted"
    assert counts.total() <= MOST[name], counts.most_common()
