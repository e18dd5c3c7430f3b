"""Neighbour loading: our DataLoader against DGL's, in turn, on an RMAT graph; DGL blocks handed over by both.

Each contender runs one whole epoch per round, round after round, in one process; the figure is the median over the
rounds and the ratio is taken against the better of DGL's loaders. "columns" also reads each block's edge ids and the
features' values, so that nothing lazy is left out.

Run: ``python benchmarks/dgl_loader.py`` (about 4 minutes, 4 GiB of memory).
"""

import argparse
import os
import time
import warnings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads would slow both down on few cores

import torch

import pagraph.dgl
from pagraph.datasets import rmat

import dgl  # isort: skip
from report import summarise, write  # isort: skip


def contenders(graph, seeds, sampler, batch_size):
    """Name to a function that makes a loader."""

    def theirs(workers):
        return lambda: dgl.dataloading.DataLoader(
            graph, seeds, sampler, batch_size=batch_size, shuffle=True, num_workers=workers
        )

    def ours(**options):
        return lambda: pagraph.dgl.DataLoader(graph, seeds, sampler, batch_size=batch_size, shuffle=True, **options)

    return {
        "dgl, 0 workers": theirs(0),
        "dgl, 2 workers": theirs(2),
        "pagraph, no thread": ours(prefetch=0),
        "pagraph, 1 thread": ours(num_workers=1),
        "pagraph, 2 threads": ours(num_workers=2),
    }


def epoch(loader, feature):
    """Seconds of one epoch, sampled edges and rows."""
    edges = rows = 0
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DGL's advice on CPU affinity, each epoch
        for input_nodes, _, blocks in loader:
            edges += sum(block.num_edges() for block in blocks)
            rows += len(input_nodes)
            if feature:
                assert blocks[0].srcdata["feat"].shape[0] == len(input_nodes)
    return time.perf_counter() - begin, edges, rows


def measure(graph, seeds, options, feature):
    """All contenders in turn, ``rounds`` times after one round that is not counted."""
    names = ["feat"] if feature else []
    sampler = dgl.dataloading.NeighborSampler([int(f) for f in options.fanout.split(",")], prefetch_node_feats=names)
    loaders = contenders(graph, seeds, sampler, options.batch_size)
    seconds = {name: [] for name in loaders}
    sizes = {}
    for round_ in range(options.rounds + 1):
        for name, make in loaders.items():
            loader = make()
            took, edges, rows = epoch(loader, feature)
            if round_:
                seconds[name].append(took)
            sizes[name] = {"edges": edges, "rows": rows}
            if name == "pagraph, 2 threads":
                stages = dict(loader.stats.total.seconds)
    result = {name: summarise(runs) | sizes[name] for name, runs in seconds.items()}
    best = min(r["median"] for name, r in result.items() if name.startswith("dgl"))
    for r in result.values():
        r["times_as_fast_as_dgl"] = best / r["median"]
    return {"loaders": result, "stage_seconds_of_2_threads": stages}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--edges", type=int, default=10_000_000, help="undirected")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    core = rmat(options.scale, num_edges=options.edges, undirected=True, simple=True, seed=0)
    graph = pagraph.dgl.to_dgl(core)
    graph.ndata["feat"] = torch.randn(graph.num_nodes(), options.dim, generator=torch.Generator().manual_seed(0))
    graph.create_formats_()
    seeds = torch.randperm(graph.num_nodes(), generator=torch.Generator().manual_seed(1))[: options.seeds]
    result = {"options": vars(options), "vertices": graph.num_nodes(), "edges": graph.num_edges()}
    for feature in (False, True):
        key = "sampling_and_rows" if feature else "sampling"
        result[key] = measure(graph, seeds, options, feature)
        print(f"\n{key} ({graph.num_nodes():,} vertices, {graph.num_edges():,} edges)")
        for name, r in result[key]["loaders"].items():
            times = f"{r['median']:7.3f} s  ({r['min']:.3f} to {r['max']:.3f})"
            print(f"  {name:20s} {times}  {r['times_as_fast_as_dgl']:5.2f} x  {r['edges']:,} edges  {r['rows']:,} rows")
        print("  stages of 2 threads:", {k: round(v, 3) for k, v in result[key]["stage_seconds_of_2_threads"].items()})
    write("dgl_loader", result)


if __name__ == "__main__":
    main()
