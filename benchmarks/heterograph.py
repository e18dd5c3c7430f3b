"""Neighbour loading on a heterograph: our DataLoader against DGL's, in turn; see contest.py.

Papers, authors and institutions in the proportions of ogbn-mag, 5 edge types; the fan-out holds for
each edge type, seeds are papers, and papers and authors have features of different widths.

Run: ``python benchmarks/heterograph.py`` (about 5 minutes, 5 GiB of memory).
"""

import os

# Spinning threads would slow both down on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pagraph.dgl  # isort: skip
from contest import Case, arguments, count_nodes, loaders, run, show
from dgl.dataloading import NeighborSampler
from report import write
from rmat_graph import random_ids

from pagraph.datasets import citation


def main():
    options = arguments(
        __doc__,
        papers=715_000,
        dim=128,
        author_dim=64,
        fanout="10,10",
        batch_size=1024,
        seeds=51_200,
    )
    core = citation(
        options.papers, num_features=options.dim, num_author_features=options.author_dim
    )
    graph = pagraph.dgl.to_dgl(core)
    graph.create_formats_()
    seeds = {"paper": random_ids(graph.num_nodes("paper"), options.seeds)}
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    cases = {}
    for key, names in (("sampling", []), ("sampling_and_rows", ["feat"])):
        sampler = NeighborSampler(fanouts, prefetch_node_feats={"paper": names, "author": names})
        cases[key] = Case(loaders(graph, seeds, sampler, options.batch_size), count_nodes(*names))
    result = run(cases, options.rounds)
    show(result, graph)
    counts = {
        "vertices": {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes},
        "edges": {"/".join(etype): graph.num_edges(etype) for etype in graph.canonical_etypes},
    }
    write("heterograph", {"options": vars(options)} | counts | result)


if __name__ == "__main__":
    main()
