"""Partitioning: all methods beside the original algorithm; seconds, largest part, replication
factor, balance, memory.

Without arguments: RMAT graphs of scale 17 (1.9 M stored edges, 1 hop) and 13 (111 k, 1 and 2 hops),
65 % training vertices, 4 parts, methods in turn in each round. ``--large``: scale 22 (4.2 M
vertices, 65 M stored edges), 8 parts, 1 and 2 hops, each in a process of its own that maps the
graph from a folder. ``--graphs FOLDER``: every graph folder in it at 2, 4 and 8 parts, 1 and 2
hops, with the graph's own training vertices and with 65 % drawn.

Run: ``python benchmarks/partitioning.py [--large] [--graphs FOLDER] [--methods NAME...]`` (half a
minute; the large graph takes minutes for each method with 2 hops, METIS the longest).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from original_partitioner import original_parts
from report import summarise, write

from pagraph import Graph
from pagraph.datasets import rmat, write_graph
from pagraph.partition import METHODS, Partition, draw_train, train_ids
from pagraph.partition.steps import PeakMemory

SMALL = [(17, 1), (13, 1), (13, 2)]


def generate(scale):
    return rmat(scale, edge_factor=8, undirected=True, simple=True, seed=0)


def quality(graph, train, parts, num_parts, hops, method):
    """Largest part and all parts over the graph, and most training vertices over the mean."""
    partition = Partition(
        graph, train, torch.as_tensor(parts, dtype=torch.int32), num_parts, hops, method
    )
    held = [len(partition.vertices(part).ids) for part in range(num_parts)]
    largest = int(torch.bincount(partition.parts).max())
    return {
        "largest_share": max(held) / graph.num_nodes,
        "replication_factor": sum(held) / graph.num_nodes,
        "balance": largest * num_parts / len(train),
    }


def timed(divide, *arguments):
    begin = time.perf_counter()
    parts = divide(*arguments)
    return parts, time.perf_counter() - begin


def warm_up(methods):
    """Compile what is not compiled yet."""
    graph = rmat(8, seed=0)
    for method in methods:
        for hops in (1, 2):
            METHODS[method](graph, torch.arange(256), 4, hops)


def small(methods, rounds):
    rows = []
    for scale, hops in SMALL:
        graph = generate(scale)
        train = draw_train(graph, 0.65)
        divide = {"original": original_parts, **{method: METHODS[method] for method in methods}}
        seconds = {name: [] for name in divide}
        for _ in range(rounds):
            for name, function in divide.items():
                parts, took = timed(function, graph, train, 4, hops)
                seconds[name].append(took)
                if len(seconds[name]) == 1:
                    found = quality(graph, train, parts, 4, hops, name)
                    rows.append(
                        {
                            "scale": scale,
                            "edges": graph.num_edges,
                            "hops": hops,
                            "method": name,
                            **found,
                        }
                    )
        original = statistics.median(seconds["original"])
        for row in rows[-len(divide) :]:
            row["seconds"] = summarise(seconds[row["method"]])
            row["speedup"] = original / row["seconds"]["median"]
            print(
                f"scale {scale} {graph.num_edges:9,} edges {hops} hops  {row['method']:10s} "
                f"{row['seconds']['median']:8.4f} s {row['speedup']:7.1f}x  largest "
                f"{row['largest_share']:.4f}  RF {row['replication_factor']:.4f}  "
                f"balance {row['balance']:.4f}",
                flush=True,
            )
    return rows


def child(folder, method, num_parts, hops):
    """One run on a mapped graph."""
    warm_up([method])
    graph = Graph.open(folder)
    train = draw_train(graph, 0.65)
    with PeakMemory() as memory:
        parts, seconds = timed(METHODS[method], graph, train, num_parts, hops)
    found = quality(graph, train, parts, num_parts, hops, method)
    print(
        json.dumps(
            {"method": method, "hops": hops, "seconds": seconds, **memory.use.to_json(), **found}
        )
    )


def large(methods, scale, num_parts):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_graph(generate(scale), Path(folder) / "graph")
        for hops in (1, 2):
            for method in methods:
                command = [
                    sys.executable,
                    __file__,
                    "--child",
                    f"{folder}/graph",
                    method,
                    str(num_parts),
                    str(hops),
                ]
                done = subprocess.run(command, capture_output=True, text=True)
                # METIS may run out of memory; the others' figures count all the same.
                if done.returncode:
                    rows.append(
                        {
                            "method": method,
                            "hops": hops,
                            "failed": done.stderr[-300:],
                            "rc": done.returncode,
                        }
                    )
                    print(
                        f"scale {scale} {hops} hops  {method:10s} failed: {done.returncode}",
                        flush=True,
                    )
                    continue
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                row = rows[-1]
                private = row["private_bytes"]  # None where it was over before anybody looked
                own = "" if private is None else f" ({private / 2**30:.2f} without mapped pages)"
                print(
                    f"scale {scale} {hops} hops  {method:10s} {row['seconds']:8.1f} s  RF "
                    f"{row['replication_factor']:.4f}  balance {row['balance']:.4f}  peak "
                    f"{row['peak_bytes'] / 2**30:.2f} GiB{own}",
                    flush=True,
                )
    return rows


def train_sets(graph):
    """The graph's own training vertices, where it has some, and 65 % drawn."""
    if "train_mask" in graph.ndata:
        yield "own", train_ids(graph)
    yield "65 %", draw_train(graph, 0.65)


def real(folder, methods):
    rows = []
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        graph = Graph.open(path)
        for train_name, train in train_sets(graph):
            for num_parts in (2, 4, 8):
                for hops in (1, 2):
                    row = {
                        "graph": path.name,
                        "train": train_name,
                        "parts": num_parts,
                        "hops": hops,
                        "methods": {},
                    }
                    for method in methods:
                        parts, seconds = timed(METHODS[method], graph, train, num_parts, hops)
                        found = quality(graph, train, parts, num_parts, hops, method)
                        row["methods"][method] = {"seconds": seconds, **found}
                    rows.append(row)
                    figures = "  ".join(
                        f"{m} {f['largest_share']:.3f}" for m, f in row["methods"].items()
                    )
                    print(
                        f"{path.name:18s} {train_name:5s} {num_parts} parts {hops} hops  {figures}",
                        flush=True,
                    )
    return rows


def beside_best(rows):
    """For each method: in what share of the cases it is best or within 2 %, and its largest
    distance from the best, by the largest part."""
    summary = {}
    for method in rows[0]["methods"] if rows else ():
        ratios = []
        for row in rows:
            factors = {name: figures["largest_share"] for name, figures in row["methods"].items()}
            ratios.append(factors[method] / min(factors.values()))
        summary[method] = {
            "best": sum(r == 1 for r in ratios) / len(ratios),
            "within_2_percent": sum(r <= 1.02 for r in ratios) / len(ratios),
            "mean_ratio_to_best": statistics.mean(ratios),
            "worst_ratio_to_best": max(ratios),
        }
        print(
            f"{method:10s} "
            + "  ".join(f"{key} {value:.3f}" for key, value in summary[method].items())
        )
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, help="default: all (--large: all but metis)"
    )
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--scale", type=int, default=22, help="of the large graph")
    parser.add_argument("--parts", type=int, default=8, help="of the large graph")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--child", nargs=4, metavar=("FOLDER", "METHOD", "PARTS", "HOPS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.child:
        folder, method, num_parts, hops = options.child
        child(folder, method, int(num_parts), int(hops))
        return
    methods = options.methods or list(METHODS)
    warm_up(methods)
    if options.graphs is not None:
        rows = real(options.graphs, methods)
        write("partitioning_graphs", {"rows": rows, "beside_best": beside_best(rows)})
    elif options.large:
        chosen = options.methods or [method for method in METHODS if method != "metis"]
        write(
            "partitioning_large",
            {"scale": options.scale, "rows": large(chosen, options.scale, options.parts)},
        )
    else:
        write("partitioning", {"rows": small(methods, options.rounds)})


if __name__ == "__main__":
    main()
