"""Neighbour loading: our DataLoader against DGL's, in turn, on an RMAT graph; DGL blocks handed
over by both.

Each contender runs one whole epoch per round; the ratio is taken against the better of DGL's
loaders. See contest.py.

Run: ``python benchmarks/dgl_loader.py`` (about 8 minutes, 8 GiB of memory).
"""

from contest import Case, arguments, count_nodes, loaders, run, show, write
from dgl.dataloading import NeighborSampler
from rmat_graph import generate, random_ids, size_of


def cases(options):
    """The graph's size, and cases by name."""
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    made = {}
    for key, names in (("sampling", []), ("sampling_and_rows", ["feat"])):
        sampler = NeighborSampler(fanouts, prefetch_node_feats=names)
        made[key] = Case(loaders(graph, seeds, sampler, options.batch_size), count_nodes(*names))
    return size_of(graph), made


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
    facts, result = run(__file__, options)
    show(result, facts)
    write("dgl_loader", options, facts | result)


if __name__ == "__main__":
    main()
