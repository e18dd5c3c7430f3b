"""Training with the first layer's neighbour sums computed once, beside ordinary training: time,
accuracy, parts.

On a block-model graph whose features are mapped from a folder, for both models of
``pagraph train``: seconds and private memory (no pages of mapped files) of ``preaggregate``, then
epochs of ordinary training and of training with one sampled hop less, each in the faster setting of
``OMP_WAIT_POLICY`` (``sides.py``), and the replication factors of partitions with as many hops.

Run: ``python benchmarks/preaggregation.py`` (about 8 minutes, 4 GiB of memory, 1 GiB of disk).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pagraph.dgl  # noqa: F401  (before dgl)
from pagraph.datasets import open_graph
from pagraph.partition import partition_graph
from pagraph.train.preaggregation import preaggregate

from report import counted, summarise, write  # isort: skip
from sides import SETTINGS, trained  # isort: skip

MODELS = ("sage", "gcn")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    settings = {
        "nodes": 300_000,
        "dim": 128,
        "epochs": 10,
        "fanout": "10,10",
        "parts": 4,
        "method": "pagraph",
    }
    for name, default in settings.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"[{default}]")
    options = parser.parse_args()
    fanout = tuple(int(part) for part in options.fanout.split(","))
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "graph")
        # 3 % to train on, as in the large public graphs: most of what a batch needs lies two hops
        # away.
        sizes = ["--nodes", options.nodes, "--features", options.dim, "--fractions", "0.03,0.1,0.1"]
        command = [sys.executable, "-m", "pagraph", "generate", "sbm", source, *sizes]
        # A process of its own: memory is measured in this one.
        subprocess.run([*map(str, command)], check=True)
        graph = open_graph(source)
        result = {"options": vars(options), "vertices": graph.num_nodes, "edges": graph.num_edges}
        for model in MODELS:
            result[model] = compare(source, Path(place, model), model, fanout, options)
        result["replication_factor"] = {
            hops: replication(graph, hops, options) for hops in (len(fanout) - 1, len(fanout))
        }
    show(result)
    write("preaggregation", result)


def compare(source, folder, model, fanout, options):
    """Figures of both ways for one model, whose sums go into a folder."""
    graph = open_graph(source)
    before, during = private_bytes(), []
    begin = time.perf_counter()
    preaggregate(
        graph, folder, model=model, progress=lambda _done, _total: during.append(private_bytes())
    )
    seconds = time.perf_counter() - begin
    return {
        "preaggregate": {"seconds": seconds, "added_private_bytes": max(during) - before},
        "ordinary": measure(source, model, fanout, options.epochs),
        "preaggregated": measure(folder, model, fanout[1:], options.epochs),
    }


def private_bytes():
    """Memory of this process that is no page of a file."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    ]
    return int(line.split()[1]) * 1024


def measure(folder, model, fanout, epochs):
    """Epochs of ``pagraph train`` in both settings, evaluated at the end."""
    options = ["--model", model, "--fanout", ",".join(map(str, fanout)), "--epochs", epochs]
    options += ["--eval-every", epochs, "--lr", 0.01, "--device", "cpu"]
    figures = {}
    for setting in SETTINGS:
        report = trained(setting, folder, *options)
        figures[setting] = {
            "seconds": summarise(report["epoch_seconds"]),
            "loading_seconds": summarise(report["loading_seconds"]),
            "test_accuracy": report["test_accuracy"],
        }
    return counted(figures, "seconds")


def replication(graph, hops, options):
    partition = partition_graph(graph, options.parts, hops=hops, method=options.method)
    sizes = [len(partition.vertices(part).ids) for part in range(options.parts)]
    return sum(sizes) / graph.num_nodes


def show(result):
    print(f"{result['vertices']:,} vertices, {result['edges']:,} edges")
    for model in MODELS:
        figures = result[model]
        made = figures["preaggregate"]
        print(
            f"{model}: preaggregate {made['seconds']:.2f} s, "
            f"{made['added_private_bytes'] / 2**20:.0f} MiB"
        )
        for way in ("ordinary", "preaggregated"):
            run = figures[way]
            print(
                f"  {way:14} epoch {run['seconds']['median']:.3f} s, loading "
                f"{run['loading_seconds']['median']:.3f} s, "
                f"test accuracy {run['test_accuracy']:.4f}"
            )
    for hops, factor in result["replication_factor"].items():
        print(f"{result['options']['parts']} parts, {hops} hops: replication factor {factor:.2f}")


if __name__ == "__main__":
    main()
