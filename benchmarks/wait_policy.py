"""What OpenMP's waiting threads cost while a model trains: epochs with ``OMP_WAIT_POLICY`` unset
and "passive", on an idle machine and on a busy one.

GraphSAGE of DGL's and of PyG's layers, on the CPU: the model alone, on batches that are there; with
their loaders (PyG's where pyg-lib or torch-sparse is installed, see ``build_pyg_lib.py``), 0, 1 and
2 workers; with ours, without threads and with 1 and 2. Each epoch is run in both settings, in turn
(``contest.py``). Then the same, in fewer batches, beside a program for every core that never rests.

Run: ``python benchmarks/wait_policy.py`` on an idle machine (about 10 minutes on 2 cores, 2 GiB of
memory).
"""

import argparse
import itertools
import os
import subprocess
import sys
from contextlib import contextmanager

import torch
import torch_geometric.typing
from contest import Case, arguments, run, write
from sides import SETTINGS

import pagraph.dgl
import pagraph.pyg
from pagraph.datasets import sbm

import dgl  # isort: skip
from torch_geometric.loader import NeighborLoader  # isort: skip
from torch_geometric.nn import SAGEConv  # isort: skip

WORKERS = (0, 1, 2)
PREPARED = 4
"""Different batches of the model alone, which it computes with again and again."""
HAS_PYGS = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE


def cases(options):
    """The graph's size, and a case for each framework."""
    graph = sbm(options.nodes, num_features=options.dim, seed=0)
    seeds = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
    seeds = seeds[: options.batches * options.batch_size]
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    classes = int(graph.ndata["label"].max()) + 1
    sizes = [options.dim, *[options.hidden] * (len(fanouts) - 1), classes]
    facts = {"vertices": graph.num_nodes, "edges": graph.num_edges}
    common = {"batch_size": options.batch_size, "shuffle": True}
    return facts, {
        "dgl": dgl_case(graph, seeds, fanouts, sizes, common),
        "pyg": pyg_case(graph, seeds, fanouts[::-1], sizes, common),
    }


def dgl_case(graph, seeds, fanouts, sizes, common):
    """DGL's loader and ours of its face, and DGL's layers."""
    of_dgl = pagraph.dgl.to_dgl(graph)
    of_dgl.create_formats_()
    sampler = dgl.dataloading.NeighborSampler(
        fanouts, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )

    def loader(kind, **more):
        return lambda: kind(of_dgl, seeds, sampler, **common, **more)

    layers = [dgl.nn.SAGEConv(*pair, "mean") for pair in itertools.pairwise(sizes)]

    def forward(model, batch):
        _, _, blocks = batch
        rows = blocks[0].srcdata["feat"]
        for layer, block in zip(model[:-1], blocks[:-1], strict=True):
            rows = layer(block, rows).relu()
        return model[-1](blocks[-1], rows), blocks[-1].dstdata["label"]

    theirs, ours = dgl.dataloading.DataLoader, pagraph.dgl.DataLoader
    return case("dgl", loader, theirs, ours, layers, forward, len(seeds) // common["batch_size"])


def pyg_case(graph, seeds, fanouts, sizes, common):
    """PyG's loader, where it can run, and ours of its face, and PyG's layers."""
    data = pagraph.pyg.to_pyg(graph)

    def loader(kind, **more):
        return lambda: kind(data, fanouts, input_nodes=seeds, **common, **more)

    layers = [SAGEConv(*pair) for pair in itertools.pairwise(sizes)]

    def forward(model, batch):
        rows = batch.x
        for layer in model[:-1]:
            rows = layer(rows, batch.edge_index).relu()
        scores = model[-1](rows, batch.edge_index)
        return scores[: batch.batch_size], batch.y[: batch.batch_size]

    theirs, ours = NeighborLoader if HAS_PYGS else None, pagraph.pyg.NeighborLoader
    return case("pyg", loader, theirs, ours, layers, forward, len(seeds) // common["batch_size"])


def case(peer, loader, theirs, ours, layers, forward, batches):
    """The model alone, the peer's loader and ours; each batch that is counted is a training step.

    Args:
        peer: Name of the framework.
        loader: Of a class and more options: what makes a loader.
        theirs: The framework's class; None: it cannot run.
        ours: Our class.
        layers: The model's.
        forward: Of the model and a batch: scores of the seeds, and their labels.
        batches: In an epoch.
    """
    model = torch.nn.ModuleList(layers)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch):
        scores, labels = forward(model, batch)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"batches": 1}

    def alone():
        prepared = list(itertools.islice(loader(ours, prefetch=0)(), PREPARED))
        return list(itertools.islice(itertools.cycle(prepared), batches))

    loaders = {"model alone": alone}
    if theirs:
        loaders |= {f"{peer}, {n} workers": loader(theirs, num_workers=n) for n in WORKERS}
    for n in WORKERS:
        loaders[f"pagraph, {n} threads"] = loader(
            ours, **({"num_workers": n} if n else {"prefetch": 0})
        )
    return Case(loaders, step, peer)


@contextmanager
def busy(programs):
    """So many programs at work that never rest."""
    running = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(programs)
    ]
    try:
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def show(results):
    """A line for each loader: milliseconds a batch in both settings, idle and busy."""
    settings = [(state, setting) for state in results for setting in SETTINGS]
    print(f"\n{'milliseconds a batch':24s}", *(f"{' '.join(names):>14s}" for names in settings))
    for key, of_case in results["idle"].items():
        for name in of_case["loaders"]:
            cells = []
            for state, setting in settings:
                found = results[state][key]["loaders"][name]["settings"][setting]
                cells.append(f"{1000 * found['median'] / found['batches']:14.1f}")
            print(f"{key + ': ' + name:24s}", *cells)


def main():
    options = arguments(
        __doc__,
        nodes=100_000,
        dim=100,
        hidden=64,
        fanout="10,10",
        batch_size=1000,
        batches=30,
        busy_batches=8,
        busy_rounds=2,
    )
    if not HAS_PYGS:
        print("PyG's own loader is left out: neither pyg-lib nor torch-sparse is installed")
    load = os.getloadavg()
    results = {}
    print("idle", flush=True)
    facts, results["idle"] = run(__file__, options)
    programs = len(os.sched_getaffinity(0))
    print(f"busy: {programs} programs beside it", flush=True)
    fewer = {"batches": options.busy_batches, "rounds": options.busy_rounds}
    with busy(programs):
        _, results["busy"] = run(__file__, argparse.Namespace(**vars(options) | fewer))
    show(results)
    write("wait_policy", options, facts | {"load_average": load} | results)


if __name__ == "__main__":
    main()
