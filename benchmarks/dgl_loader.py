"""Neighbour loading: our DataLoader against DGL's, in turn, on an RMAT graph; DGL blocks handed
over by both.

Each contender runs one whole epoch per round, round after round, in one process; the figure is the
median over the rounds and the ratio is taken against the better of DGL's loaders.

Run: ``python benchmarks/dgl_loader.py`` (about 4 minutes, 4 GiB of memory).
"""

import os

# Spinning threads would slow both down on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from contest import Case, arguments, count_nodes, loaders, run, show
from dgl.dataloading import NeighborSampler
from report import write
from rmat_graph import generate, random_ids


def main():
    options = arguments(
        __doc__,
        scale=20,
        edges=10_000_000,
        dim=128,
        fanout="15,10,5",
        batch_size=1000,
        seeds=100_000,
    )
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    cases = {}
    for key, names in (("sampling", []), ("sampling_and_rows", ["feat"])):
        sampler = NeighborSampler(fanouts, prefetch_node_feats=names)
        cases[key] = Case(loaders(graph, seeds, sampler, options.batch_size), count_nodes(*names))
    result = run(cases, options.rounds)
    show(result, graph)
    write(
        "dgl_loader",
        {"options": vars(options), "vertices": graph.num_nodes(), "edges": graph.num_edges()}
        | result,
    )


if __name__ == "__main__":
    main()
