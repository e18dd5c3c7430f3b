"""The first batch on a fresh machine: seconds to compile what a kind of loader needs, and those of
the next process.

Each figure is from a process of its own, whose folder of compiled kernels is empty, or was filled
by the process before. The clock runs around the first batch alone: imports, the graph and the
loader are made before. ``cpu`` are the process's seconds of work, which other jobs on the machine
move less than ``wall``.

Run: ``python benchmarks/first_batch.py`` (about 4 minutes); with ``--before ../before``, another
checkout, that one in turn.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from report import revision, write

HERE = Path(__file__).parent

SETUP = """
import json, sys, time
import torch
from pagraph import Loader, NeighborSampler
from pagraph.datasets import sbm

graph = sbm(1000)
seeds = torch.arange(1000)
"""
CORE = "loader = Loader(graph, seeds, {sampler}, batch_size=500, fields=['feat'], labels=['label'])"
PYG = """
import pagraph.pyg as pyg
data = pyg.to_pyg(graph)
"""
DGL = """
import pagraph.dgl
import dgl.dataloading as theirs
sampler = {sampler}
loader = pagraph.dgl.DataLoader(pagraph.dgl.to_dgl(graph), seeds, sampler, batch_size=500)
"""
HETERO = """
from torch_geometric.data import HeteroData
typed = HeteroData()
typed["v"].x = data.x
typed["v", "to", "v"].edge_index = data.edge_index
"""
TIMES = """
times = {"time_attr": "time", "input_time": torch.full((1000,), 10**6), "input_nodes": seeds}
data.time = torch.arange(1000)
"""

KINDS = {
    "core, uniform": CORE.format(sampler="NeighborSampler([5])"),
    "DGL, uniform": DGL.format(sampler="theirs.NeighborSampler([5], prefetch_node_feats=['feat'])"),
    "PyG, uniform": PYG + "loader = pyg.NeighborLoader(data, [5], batch_size=500)",
    "DGL, LABOR": DGL.format(sampler="theirs.LaborSampler([5], prefetch_node_feats=['feat'])"),
    "DGL, links": DGL.format(
        sampler="theirs.as_edge_prediction_sampler(theirs.NeighborSampler([5]), "
        "negative_sampler=theirs.negative_sampler.Uniform(1))"
    ),
    "core, LADIES": "from pagraph.sampling import LayerSampler\n"
    + CORE.format(sampler="LayerSampler([64])"),
    "core, weights": "graph.edata['w'] = torch.rand(graph.num_edges)\n"
    + CORE.format(sampler="NeighborSampler([5], prob='w')"),
    "PyG, links": PYG + "loader = pyg.LinkNeighborLoader(data, [5], batch_size=500, "
    "edge_label_index=data.edge_index[:, :1000], neg_sampling_ratio=1.0)",
    "PyG, times": PYG + TIMES + "loader = pyg.NeighborLoader(data, [5], batch_size=500, **times)",
    "PyG, types in time": PYG + TIMES + HETERO + "typed['v'].time = data.time\n"
    "times['input_nodes'] = ('v', seeds)\n"
    "loader = pyg.NeighborLoader(typed, [5], batch_size=500, **times)",
    "PyG, HGT": PYG + HETERO + "loader = pyg.HGTLoader(typed, [64], 'v', batch_size=500)",
    "PyG, ShaDow": PYG + "loader = pyg.ShaDowKHopSampler(data, 2, 5, batch_size=500)",
}
MEASURE = """
begin, worked = time.perf_counter(), time.process_time()
next(iter(loader))
cpu = time.process_time() - worked
print(json.dumps({"wall": time.perf_counter() - begin, "cpu": cpu}))
"""


def first_batch(checkout, kind, folder):
    """Seconds of one process's first batch."""
    paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "NUMBA_CACHE_DIR": folder,
        "PAGRAPH_QUIET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    # The graph's kernels are compiled, too: one process makes it, none is counted for it.
    program = SETUP + KINDS[kind] + MEASURE
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=folder,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(checkouts, kinds, rounds):
    """Seconds by kind, checkout, and whether kernels had been compiled."""
    found = {kind: {name: {"first": [], "second": []} for name in checkouts} for kind in kinds}
    for number in range(rounds):
        for kind in kinds:
            for name, checkout in checkouts.items():
                with tempfile.TemporaryDirectory() as folder:
                    for which in ("first", "second"):
                        found[kind][name][which].append(first_batch(checkout, kind, folder))
                first, second = (found[kind][name][w][-1] for w in ("first", "second"))
                print(
                    f"round {number + 1}, {kind}, {name}: {first['wall']:.1f} s ({first['cpu']:.1f} "
                    f"of work), then {second['wall']:.2f}",
                    flush=True,
                )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    checkouts = {"now": HERE.parent}
    if options.before is not None:
        checkouts["before"] = options.before.resolve()
    found = measure(checkouts, options.kinds, options.rounds)
    medians = {
        kind: {
            name: {
                f"{which}_{clock}": median(each[clock] for each in runs)
                for which, runs in by_run.items()
                for clock in ("wall", "cpu")
            }
            for name, by_run in by_checkout.items()
        }
        for kind, by_checkout in found.items()
    }
    revisions = {name: revision(folder) for name, folder in checkouts.items()}
    write("first_batch", {"medians": medians, "runs": found, "revisions": revisions})


if __name__ == "__main__":
    main()
