"""LABOR (Balin and Catalyurek, NeurIPS 2023): our DataLoader against DGL's, in turn, with DGL's
LaborSampler.

Neighbours of different seeds are drawn with common random numbers, so that a batch has fewer input
nodes: the rows a batch are to be compared as well as the seconds. See contest.py for the rest.

Run: ``python benchmarks/labor.py`` (about 6 minutes, 4 GiB of memory).
"""

import os

# Spinning threads would slow both down on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from contest import Case, arguments, count_nodes, loaders, run, show
from dgl.dataloading import LaborSampler, NeighborSampler
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
        seeds=30_000,
    )
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    samplers = {
        "labor": LaborSampler(fanouts),
        "labor_and_rows": LaborSampler(fanouts, prefetch_node_feats=["feat"]),
        "labor_layer_dependency_and_rows": LaborSampler(
            fanouts, layer_dependency=True, prefetch_node_feats=["feat"]
        ),
        # What LABOR saves rows of.
        "neighbours_and_rows": NeighborSampler(fanouts, prefetch_node_feats=["feat"]),
    }
    cases = {
        key: Case(
            loaders(graph, seeds, s, options.batch_size),
            count_nodes(*(["feat"] if "rows" in key else [])),
        )
        for key, s in samplers.items()
    }
    result = run(cases, options.rounds)
    show(result, graph)
    write(
        "labor",
        {"options": vars(options), "vertices": graph.num_nodes(), "edges": graph.num_edges()}
        | result,
    )


if __name__ == "__main__":
    main()
