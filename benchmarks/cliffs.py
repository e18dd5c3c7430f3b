"""What a batch costs with each kind of sampling, against the same batch with ``NeighborSampler``.

A subclass that overrides nothing, excluded edges, a mask, LABOR, layer-wise sampling, all in-edges,
subgraphs, trees, trees in time, and edges in a file whose pages the system holds but does not tell
of: batches of 1, 16 and 500 seeds, fan-out 10,10, on a random graph with 100,000 vertices and 2 M
edges (in a file 20 M). Times are of sampling alone, in one thread, without a loader.

All samplers take turns, round after round, after two rounds that are not counted. For each: the
median time a batch; its ratio to ``NeighborSampler`` in the same round, by batch and by edge of the
result (median of the rounds); and the in-edges of all frontiers by edge of the result, as LABOR and
layer-wise sampling look at each of them.

Run: ``python benchmarks/cliffs.py`` (3 minutes, 2 GiB of memory); with ``--baseline ../before``,
another checkout, its process takes turns with this one's.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import RESULTS, revision, write
from sides import Side

import pagraph
from pagraph import CSC, Graph, NeighborSampler
from pagraph.datasets.native import write_graph
from pagraph.graph.mapped import MappedFile
from pagraph.sampling import LaborSampler, LayerSampler, SubgraphSampler
from pagraph.system.buffers import BufferPools

try:
    from pagraph.sampling.drawing import ExcludedEdges
except ImportError:  # where a checkout from before had it
    from pagraph.sampling.block_sampler import ExcludedEdges

SEEDS = (1, 16, 500)
FANOUTS = [10, 10]
BATCHES = 40
BASES = {"in a file": "in memory"}
"""What a case is compared with, if not with "neighbor"."""


class Subclass(NeighborSampler):
    """Overrides nothing."""


@dataclass
class Sampled:
    """One way to sample a graph."""

    sampler: Any
    graph: Graph
    more: dict[str, Any]


def random_ends(num_nodes, num_edges):
    """Sources and destinations; few vertices have most edges."""
    draws = np.random.default_rng(0)
    return [(num_nodes * draws.random(num_edges) ** 2).astype(int) for _ in range(2)]


class Samples:
    """All ways to sample, of the pagraph that this process imports.

    Args:
        folder: The graph in a file.
    """

    def __init__(self, folder, num_nodes, num_edges):
        torch.set_num_threads(1)
        draws = np.random.default_rng(1)
        graph = Graph.from_coo(*random_ends(num_nodes, num_edges), num_nodes)
        graph.edata["mask"] = torch.from_numpy(draws.random(num_edges) > 0.5)
        graph.ndata["time"] = torch.from_numpy(draws.integers(0, 1000, num_nodes))
        some = torch.from_numpy(draws.integers(0, num_edges, 1000)).to(graph.csc.indices.dtype)
        excluded = {"exclude": {graph.edge_types[0]: ExcludedEdges(some)}}
        # As for a user who may read files that are another's.
        MappedFile.tells_pages = False
        in_file = Graph.open(folder)
        csc = in_file.csc
        ids = None if csc.edge_ids is None else csc.edge_ids.clone()
        copied = CSC(csc.indptr.clone(), csc.indices.clone(), csc.num_src, ids)
        in_memory = Graph(copied, csc.num_dst)
        neighbors = NeighborSampler(FANOUTS)
        self._ways = {
            "neighbor": Sampled(neighbors, graph, {}),
            "subclass": Sampled(Subclass(FANOUTS), graph, {}),
            "excluded edges": Sampled(neighbors, graph, excluded),
            "mask": Sampled(NeighborSampler(FANOUTS, prob="mask"), graph, {}),
            "labor": Sampled(LaborSampler(FANOUTS), graph, {}),
            "layer-wise": Sampled(None, graph, {}),
            "all in-edges": Sampled(NeighborSampler([-1]), graph, {}),
            "subgraph": Sampled(SubgraphSampler(FANOUTS), graph, {}),
            "trees": Sampled(SubgraphSampler(FANOUTS, disjoint=True), graph, {}),
            "trees in time": Sampled(SubgraphSampler(FANOUTS, time="time"), graph, {}),
            "in memory": Sampled(neighbors, in_memory, {}),
            "in a file": Sampled(neighbors, in_file, {}),
        }
        self._pools = BufferPools(2)

    def names(self):
        """The ways to sample."""
        return list(self._ways)

    def run(self, name, seeds):
        """Seconds a batch, and edges a batch of the result and of its frontiers."""
        way = self._ways[name]
        # As many vertices as NeighborSampler finds at most, up to a few thousand.
        sampler = way.sampler or LayerSampler([8 * seeds, 4 * seeds])
        num_nodes = way.graph.num_nodes
        of_batches = [
            torch.from_numpy(np.random.default_rng(i).integers(0, num_nodes, seeds))
            for i in range(BATCHES)
        ]
        degrees = torch.diff(way.graph.csc.indptr)
        edges = 0
        looked_at = 0
        seconds = 0.0
        for key, ids in enumerate(of_batches):
            begin = time.perf_counter()
            batch = sampler.sample(way.graph, ids, key, pools=self._pools, **way.more)
            seconds += (time.perf_counter() - begin) / BATCHES
            if not hasattr(batch, "blocks"):
                edges += sum(each.num_edges for each in batch.edges.values())
                continue
            for block in batch.blocks:
                edges += len(block.indices)
                looked_at += int(degrees[block.src_nodes[: block.num_dst].long()].sum())
        return seconds, edges / BATCHES, looked_at / BATCHES


def measured(sides, rounds):
    """Figures by number of seeds, checkout and name."""
    result = {}
    for seeds in SEEDS:
        runs = defaultdict(list)
        for round_ in range(rounds + 2):
            for name in sides["now"].ask("names"):
                for of, side in sides.items():
                    run = side.ask("run", name=name, seeds=seeds)
                    if round_ > 1:
                        runs[of, name].append(run)
        result[str(seeds)] = {of: figures(of, runs) for of in sides}
        for of, table in result[str(seeds)].items():
            print(f"{seeds} seeds, {of}")
            for name, row in table.items():
                print(f"  {name:14} " + ", ".join(f"{key} {row[key]:.2f}" for key in row))
    return result


def figures(of, runs):
    """The figures of one checkout."""
    table = {}
    for (whose, name), own in runs.items():
        if whose != of:
            continue
        base = runs[of, BASES.get(name, "neighbor")]
        pairs = list(zip(own, base, strict=True))
        table[name] = {
            "us_a_batch": 1e6 * statistics.median(run[0] for run in own),
            "ratio_a_batch": statistics.median(a[0] / b[0] for a, b in pairs),
            "ratio_an_edge": statistics.median(a[0] / a[1] / (b[0] / b[1]) for a, b in pairs),
            "in_edges_an_edge": own[0][2] / own[0][1],
        }
        if of == "now" and ("before", name) in runs:
            before = runs["before", name]
            table[name]["times_as_fast_as_before"] = statistics.median(
                b[0] / a[0] for a, b in zip(own, before, strict=True)
            )
    return table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-nodes", type=int, default=100_000)
    parser.add_argument("--num-edges", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--baseline", help="another checkout")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    folders = {"now": Path(pagraph.__file__).parents[1]}
    if options.baseline:
        folders["before"] = Path(options.baseline).resolve()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = str(Path(place, "graph"))
        many = 10 * options.num_nodes
        write_graph(Graph.from_coo(*random_ends(many, 10 * options.num_edges), many), folder)
        sizes = {"num_nodes": options.num_nodes, "num_edges": options.num_edges}
        sides = {
            of: Side("default", "cliffs:Samples", [path], folder=folder, **sizes)
            for of, path in folders.items()
        }
        for side in sides.values():
            stack.callback(side.close)
        result = measured(sides, options.rounds)
    revisions = {of: revision(path) for of, path in folders.items()}
    write("cliffs", {"options": sizes, "revisions": revisions, "seeds": result}, options.output)


if __name__ == "__main__":
    main()
