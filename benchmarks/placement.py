"""Placement of all vertices: rows that an epoch reads from other parts, by how vertices are placed.

Four parts, fan-out 10,10, batches of 1000 seeds, the graph's own training vertices or 10 % drawn
(of the block model 5 %). For each graph: training vertices where `auto` puts them and the others
nearly at random, as `write_dgl` did before; METIS over all vertices by DGL, plain and with even
training vertices and edges, as DGL's own partitioner calls it; and `place_vertices`, for few rows and
for few edges cut.

``--large``: RMAT graph of scale 20 and 20 M edges, each way in a process of its own that maps the
graph: seconds and memory.

Run: ``python benchmarks/placement.py FOLDER...`` (graph folders; a minute each), or ``--large``.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from report import write

from pagraph import Graph
from pagraph.datasets import rmat, sbm, write_graph
from pagraph.dgl.graphbolt import import_dgl
from pagraph.partition import (
    describe_placement,
    draw_train,
    partition_graph,
    place_vertices,
    train_ids,
)
from pagraph.partition.extract import vertex_owners
from pagraph.partition.steps import PeakMemory

PARTS = 4
HOPS = 2


def metis_owners(graph, train, *, even):
    """DGL's METIS over all vertices; ``even`` as ``dgl.distributed.partition_graph`` balances."""
    dgl = import_dgl()
    ends = graph.csc.indices.long(), graph.csc.destinations().long()
    structure = dgl.graph(ends, num_nodes=graph.num_nodes)
    kinds = None
    if even:
        kinds = torch.zeros(graph.num_nodes, dtype=torch.int64)
        kinds[train] = 1
    with contextlib.redirect_stdout(io.StringIO()):
        owner = dgl.partition.metis_partition_assignment(
            structure, PARTS, balance_ntypes=kinds, balance_edges=even
        )
    return owner.int()


def with_owner(partition, owner):
    return replace(partition, owner=owner, parts=owner[partition.train])


def divided(graph, train, method="auto"):
    return partition_graph(graph, PARTS, hops=HOPS, train=train, method=method)


WAYS = {
    "before": lambda partition: with_owner(partition, vertex_owners(partition)),
    "metis": lambda partition: with_owner(
        partition, metis_owners(partition.graph, partition.train, even=False)
    ),
    "metis, even": lambda partition: with_owner(
        partition, metis_owners(partition.graph, partition.train, even=True)
    ),
    "placed": place_vertices,
    "placed, cut": partial(place_vertices, minimize="cut"),
}


def graphs(folders):
    """Name, graph and training vertices of each."""
    graph = sbm(50_000, num_features=1, seed=0)
    yield "sbm of 50,000", graph, draw_train(graph, 0.05)
    graph = rmat(17, edge_factor=8, undirected=True, simple=True, seed=0)
    yield "RMAT 17", graph, draw_train(graph, 0.1)
    for folder in folders:
        graph = Graph.open(folder)
        has_mask = "train_mask" in graph.ndata
        yield folder.name, graph, train_ids(graph) if has_mask else draw_train(graph, 0.1)


def figures(partition):
    report = describe_placement(partition)
    return {
        "train": report.train.share,
        "evaluated": report.evaluated.share,
        "cut": report.cut,
        **{f"{kind}_balance": report.balance(kind) for kind in ("vertices", "edges", "train")},
    }


def compare(folders):
    warm = sbm(500, seed=0)
    for minimize in ("rows", "cut"):
        place_vertices(divided(warm, train_ids(warm)), minimize=minimize)
    rows = []
    for name, graph, train in graphs(folders):
        # Masks of the block model are those of all its vertices; 5 % are trained on here.
        partition = divided(graph, train)
        row = {"graph": name, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
        row |= {"train": len(train), "ways": {}}
        for way, place in WAYS.items():
            begin = time.perf_counter()
            placed = place(partition)
            seconds = time.perf_counter() - begin
            row["ways"][way] = {**figures(placed), "seconds": seconds}
            found = row["ways"][way]
            print(
                f"{name:18s} {way:12s} rows {found['train']:.3f} {found['evaluated']:.3f}  cut "
                f"{found['cut']:.3f}  even {found['vertices_balance']:.2f} "
                f"{found['edges_balance']:.2f} {found['train_balance']:.2f}  {seconds:.1f} s",
                flush=True,
            )
        rows.append(row)
    return rows


def child(folder, way):
    graph = Graph.open(folder)
    train = draw_train(graph, 0.1)
    small = rmat(8, seed=0)
    for minimize in ("rows", "cut"):
        place_vertices(divided(small, torch.arange(256), "halo"), minimize=minimize)
    # METIS needs no parts to begin with.
    method = "hash" if way.startswith("metis") else "auto"
    with PeakMemory() as memory:
        begin = time.perf_counter()
        partition = divided(graph, train, method)
        dividing = time.perf_counter() - begin
        placed = WAYS[way](partition)
        seconds = time.perf_counter() - begin
    found = {"way": way, "dividing": dividing, "seconds": seconds, **memory.use.to_json()}
    print(json.dumps({**found, **figures(placed)}))


def large():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        graph = rmat(20, edge_factor=20, seed=0)
        write_graph(graph, Path(folder) / "graph")
        for way in ("before", "placed", "placed, cut", "metis", "metis, even"):
            command = [sys.executable, __file__, "--child", f"{folder}/graph", way]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                rows.append({"way": way, "failed": done.stderr[-300:], "rc": done.returncode})
                print(f"{way:12s} failed: {done.returncode}", flush=True)
                continue
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            row = rows[-1]
            print(
                f"{way:12s} {row['seconds']:6.1f} s ({row['dividing']:.1f} dividing)  peak "
                f"{row['peak_bytes'] / 2**20:.0f} MiB, {row['private_bytes'] / 2**20:.0f} without "
                f"mapped pages  rows {row['train']:.3f} {row['evaluated']:.3f}  cut "
                f"{row['cut']:.3f}",
                flush=True,
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
    elif options.large:
        write("placement_large", {"parts": PARTS, "rows": large()})
    else:
        write("placement", {"parts": PARTS, "rows": compare(options.folders)})


if __name__ == "__main__":
    main()
