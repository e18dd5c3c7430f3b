"""Batches and whole graphs as each framework's layers take them."""

import torch

from pagraph.framework import Seeds
from pagraph.train.models import framework_of

NAMES = ["dgl", "pyg"]


def seeds_of(graph, seeds, fields):
    """Vertices of a graph of one type, with their labels and some fields."""
    return Seeds(graph, seeds, tuple(fields), "label")


def loader_of(framework, graph, fanout, seeds, fields, **more):
    """Ours, all seeds in one batch."""
    settings = {
        "own": False,
        "batch_size": len(seeds),
        "num_workers": 0,
        "device": torch.device("cpu"),
        **more,
    }
    return framework.loader(seeds_of(graph, seeds, fields), fanout, **settings)


def read(framework, item, fanout, fields):
    """Blocks, the rows of the fields, and the seeds in their order."""
    blocks, rows, (labels,) = framework.batch(item, seeds_of(None, None, fields), len(fanout))
    seeds = item[1] if framework.name == "dgl" else item.n_id[: item.batch_size]
    assert len(seeds) == len(labels)
    return blocks, rows, seeds


def sampled(framework, graph, fanout, seeds, fields, **more):
    (item,) = loader_of(framework, graph, fanout, seeds, fields, **more)
    return read(framework, item, fanout, fields)


def whole_block(framework, graph):
    """One block in which every vertex of a graph is source and destination."""
    if framework.name == "dgl":
        from pagraph.dgl import to_dgl

        return to_dgl(graph)
    from pagraph.pyg.training import PyGBlock

    edges = torch.stack([graph.csc.indices, graph.csc.destinations()]).long()
    return PyGBlock({None: edges}, {None: graph.num_nodes})


def all_frameworks():
    return {name: framework_of(name) for name in NAMES}
