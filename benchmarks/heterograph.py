"""Neighbour loading on a heterograph: our DataLoader against DGL's, in turn; see contest.py.

Papers, authors and institutions in the proportions of ogbn-mag, 5 edge types; the fan-out holds for
each edge type, seeds are papers, and papers and authors have features of different widths.

Run: ``python benchmarks/heterograph.py`` (about 10 minutes, 10 GiB of memory).
"""

import pagraph.dgl  # isort: skip
from contest import Case, arguments, count_nodes, loaders, run, show, write
from dgl.dataloading import NeighborSampler
from rmat_graph import random_ids

from pagraph.datasets import citation


def cases(options):
    """Vertices and edges of each type, and cases by name."""
    core = citation(
        options.papers, num_features=options.dim, num_author_features=options.author_dim
    )
    graph = pagraph.dgl.to_dgl(core)
    graph.create_formats_()
    seeds = {"paper": random_ids(graph.num_nodes("paper"), options.seeds)}
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    made = {}
    for key, names in (("sampling", []), ("sampling_and_rows", ["feat"])):
        sampler = NeighborSampler(fanouts, prefetch_node_feats={"paper": names, "author": names})
        made[key] = Case(loaders(graph, seeds, sampler, options.batch_size), count_nodes(*names))
    counts = {
        "vertices": {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes},
        "edges": {"/".join(etype): graph.num_edges(etype) for etype in graph.canonical_etypes},
    }
    return counts, made


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
    facts, result = run(__file__, options)
    show(result, facts)
    write("heterograph", options, facts | result)


if __name__ == "__main__":
    main()
