"""Batches and whole graphs as each framework's layers take them."""

import torch

from pagraph.train.models import framework_of

NAMES = ["dgl", "pyg"]


def loader_of(framework, graph, fanout, seeds, fields, **more):
    """Ours, all seeds in one batch."""
    settings = {
        "own": False,
        "batch_size": len(seeds),
        "num_workers": 0,
        "device": torch.device("cpu"),
        **more,
    }
    return framework.loader(graph, seeds, fanout, fields, "label", **settings)


def read(framework, item, fanout, fields):
    """Blocks, the rows of the fields, and the seeds in their order."""
    blocks, rows, labels = framework.batch(item, len(fanout), "label")
    seeds = item[1] if framework.name == "dgl" else item.n_id[: item.batch_size]
    assert len(seeds) == len(labels)
    return blocks, [rows[name] for name in fields], seeds


def sampled(framework, graph, fanout, seeds, fields, **more):
    (item,) = loader_of(framework, graph, fanout, seeds, fields, **more)
    return read(framework, item, fanout, fields)


def whole_block(framework, graph):
    """One block in which every vertex of a graph is source and destination."""
    if framework.name == "dgl":
        from pagraph.dgl import to_dgl

        return to_dgl(graph)
    from pagraph.pyg.training import PyGBlock

    return PyGBlock(
        torch.stack([graph.csc.indices, graph.csc.destinations()]).long(), graph.num_nodes
    )


def all_frameworks():
    return {name: framework_of(name) for name in NAMES}
