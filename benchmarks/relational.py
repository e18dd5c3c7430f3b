"""Typed trees in time: our NeighborLoader against PyG's with pyg-lib on a database like RelBench's.

Five tables (users, products, stores, orders and the lines of orders), a foreign key along each edge
type and its reverse, times of orders and lines. Seeds are users, each with a time; nothing later is
in its tree. Loaders run in turn, see contest.py: what sampling alone takes, and whole batches with
a tensor of features for each table. The calls of Python functions that an epoch makes are counted
apart.

Run: ``PYTHONPATH=~/pyg-lib python benchmarks/relational.py`` (on 2 cores about 4 minutes; see
build_pyg_lib.py). Without pyg-lib only ours are measured. With ``--frames`` each table has a
``TensorFrame`` in place of its features, as RelBench's have (needs pytorch-frame):

    relational.py --frames --strategy "uniform last" --torch-threads "0 1"
"""

import os
import sys
from collections import Counter

import numpy as np
import torch
import torch_geometric.typing
from contest import Case, arguments, run, show, write
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NodeSamplerInput

import pagraph.pyg

from torch_geometric.loader import NeighborLoader  # isort: skip
from torch_geometric.sampler import NeighborSampler  # isort: skip

USERS = 10_000
PRODUCTS = 2_000
STORES = 40
ORDERS = 58_487
LINES = 194_921
YEAR = 365 * 24 * 3600
FIRST = 1_577_836_800  # 2020 began


def popular(rng, count, choices):
    """Ids of which few are drawn often: places of a power law."""
    weights = (1 + np.arange(choices)) ** -0.5
    return rng.choice(choices, size=count, p=weights / weights.sum())


COLUMNS = {
    "user": {"numerical": 3, "categorical": 3, "timestamp": 1},
    "product": {"numerical": 4, "categorical": 4, "timestamp": 1},
    "store": {"numerical": 2, "categorical": 2, "timestamp": 1},
    "order": {"numerical": 3, "categorical": 3, "timestamp": 1},
    "line": {"numerical": 4, "categorical": 2, "timestamp": 1},
}
"""Columns of each semantic type in a table's frame: 15 parts in all."""


def shop(num_features=32, seed=0, *, frames=False):
    """The database as PyG's data, each table with a tensor of features or with a frame."""
    rng = np.random.default_rng(seed)
    time_of_order = np.sort(rng.integers(FIRST, FIRST + 3 * YEAR, ORDERS))
    # Every order has a line; the others are of any.
    order = np.sort(np.concatenate([np.arange(ORDERS), rng.integers(0, ORDERS, LINES - ORDERS)]))
    keys = {
        ("order", "of", "user"): popular(rng, ORDERS, USERS),
        ("order", "at", "store"): rng.integers(0, STORES, ORDERS),
        ("line", "in", "order"): order,
        ("line", "sells", "product"): popular(rng, LINES, PRODUCTS),
    }
    data = HeteroData()
    sizes = {"user": USERS, "product": PRODUCTS, "store": STORES, "order": ORDERS, "line": LINES}
    for table, rows in sizes.items():
        data[table].num_nodes = rows
        if frames:
            data[table].tf = frame(rng, rows, COLUMNS[table])
        elif num_features:
            data[table].x = torch.from_numpy(rng.random((rows, num_features), dtype=np.float32))
    data["order"].time = torch.from_numpy(time_of_order)
    data["line"].time = torch.from_numpy(time_of_order[order])
    for (child, name, parent), key in keys.items():
        edges = torch.from_numpy(np.stack([np.arange(len(key)), key]))
        # PyG's own loader looks for the latest edges in rows sorted by time, which these are.
        data[child, name, parent].edge_index = edges[:, torch.argsort(edges[1], stable=True)]
        data[parent, f"rev_{name}", child].edge_index = edges.flip(0)
    return data


def frame(rng, rows, columns):
    """A table's ``TensorFrame`` with so many columns of each semantic type."""
    from torch_frame import TensorFrame, stype

    features, names = {}, {}
    for part, number in columns.items():
        if part == "numerical":
            values = torch.from_numpy(rng.random((rows, number), dtype=np.float32))
        elif part == "categorical":
            values = torch.from_numpy(rng.integers(0, 20, (rows, number)))
        else:  # Year, month, day, day of the week, hour, minute, second.
            values = torch.from_numpy(rng.integers(0, 60, (rows, number, 7)))
        features[stype(part)] = values
        names[stype(part)] = [f"{part}{place}" for place in range(number)]
    return TensorFrame(features, names)


def questions(count, seed=1):
    """Users and the times that something is asked of each."""
    rng = np.random.default_rng(seed)
    users = torch.from_numpy(rng.integers(0, USERS, count))
    times = torch.from_numpy(rng.integers(FIRST + YEAR, FIRST + 3 * YEAR, count))
    return users, times


def count(batch):
    """Vertices and edges of a batch."""
    for store in batch.node_stores:
        assert "x" not in store or store.x.shape[0] == store.num_nodes
        assert "tf" not in store or len(store.tf) == store.num_nodes
    return {"batches": 1, "edges": batch.num_edges, "rows": batch.num_nodes}


class Sampling:
    """Samples the batches of an epoch, and does nothing else."""

    def __init__(self, sampler, seeds, times, batch_size):
        self.inputs = [
            NodeSamplerInput(None, nodes, asked, "user")
            for nodes, asked in zip(seeds.split(batch_size), times.split(batch_size), strict=True)
        ]
        self.sampler = sampler

    def __iter__(self):
        for inputs in self.inputs:
            yield self.sampler.sample_from_nodes(inputs)


def count_sampled(output):
    """The same of a sampler's output."""
    edges = sum(len(row) for row in output.row.values())
    return {"batches": 1, "edges": edges, "rows": sum(len(node) for node in output.node.values())}


def contenders(data, fanouts, asked, batch_size, strategy, torch_threads):
    """PyG's loader with 0 and 2 workers and ours without threads, with those that it chooses and
    with two; and both samplers."""
    seeds, times = asked
    settings = {"time_attr": "time", "disjoint": True, "temporal_strategy": strategy}
    batches = {"input_nodes": ("user", seeds), "input_time": times, "batch_size": batch_size}
    batches["shuffle"] = True
    loaders = {
        "pagraph, no thread": (pagraph.pyg.NeighborLoader, {"prefetch": 0}),
        "pagraph, 0 workers": (pagraph.pyg.NeighborLoader, {"num_workers": 0}),
        "pagraph, 2 threads": (pagraph.pyg.NeighborLoader, {"num_workers": 2}),
    }
    samplers = {"pagraph": pagraph.pyg.NeighborSampler}
    if torch_geometric.typing.WITH_PYG_LIB:
        theirs = {f"pyg, {n} workers": (NeighborLoader, {"num_workers": n}) for n in (0, 2)}
        loaders = theirs | loaders
        samplers = {"pyg": NeighborSampler} | samplers

    def loader(kind, more):
        return lambda: kind(data, fanouts, **settings, **batches, **more)

    def sampler(kind):
        return lambda: Sampling(kind(data, fanouts, **settings), *asked, batch_size)

    whole = {name: loader(*each) for name, each in loaders.items()}
    alone = {name: sampler(kind) for name, kind in samplers.items()}
    return {
        "sampling": Case(alone, count_sampled, "pyg", torch_threads),
        "batches": Case(whole, count, "pyg", torch_threads),
    }


def cases(options):
    """The database's size; cases of each fan-out, strategy and number of torch's threads."""
    data = shop(options.dim, frames=options.frames)
    asked = questions(options.batches * options.batch_size)
    made = {}
    for threads in map(int, options.torch_threads.split()):
        for strategy in options.strategy.split():
            for fanout in options.fanouts.split():
                more = [strategy] * (strategy != "uniform")
                more += [f"{threads} of torch's threads"] * (threads > 0)
                numbers = [int(number) for number in fanout.split(",")]
                of = contenders(data, numbers, asked, options.batch_size, strategy, threads)
                key = ", ".join([fanout, *more])
                made |= {f"{key}: {name}": case for name, case in of.items()}
    return {"vertices": data.num_nodes, "edges": data.num_edges}, made


def calls(loader):
    """Python functions that an epoch calls in the reader's thread, all and those of ours, and the
    batches."""
    counts = Counter()
    ours = os.path.dirname(pagraph.__file__)

    def seen(frame, event, argument):
        if event == "call":
            counts["all"] += 1
            counts["ours"] += frame.f_code.co_filename.startswith(ours)

    batches = iter(loader)
    next(batches)
    sys.setprofile(seen)
    try:
        for _ in batches:
            counts["batches"] += 1
    finally:
        sys.setprofile(None)
    return {name: counts[name] / counts["batches"] for name in ("all", "ours")}


def main():
    options = arguments(
        __doc__,
        batches=95,
        batch_size=512,
        dim=32,
        fanouts="32,16 128,64",
        strategy="uniform",
        torch_threads="0",  # as many as torch takes by itself
        frames=False,
    )
    load = os.getloadavg()
    facts, result = run(__file__, options, apart=True)
    show(result, facts)
    # Counted here: the setting changes no call.
    for key, case in cases(options)[1].items():
        if key.endswith(": batches"):
            in_thread = {name: make for name, make in case.loaders.items() if "2" not in name}
            counts = {name: calls(make()) for name, make in in_thread.items()}
            result[key.replace(": batches", ": calls")] = counts
            print(f"calls a batch, {key}: {counts}")
    name = "relational_frames" if options.frames else "relational"
    write(name, options, facts | {"load_average": load, "cases": result})


if __name__ == "__main__":
    main()
