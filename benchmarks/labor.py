"""LABOR (Balin and Catalyurek, NeurIPS 2023): our DataLoader against DGL's, in turn, with DGL's
LaborSampler.

Neighbours of different seeds are drawn with common random numbers, so that a batch has fewer input
nodes: the rows a batch are to be compared as well as the seconds. See contest.py for the rest.

Run: ``python benchmarks/labor.py`` (about 12 minutes, 8 GiB of memory).
"""

from contest import Case, arguments, count_nodes, loaders, run, show, write
from dgl.dataloading import LaborSampler, NeighborSampler
from rmat_graph import generate, random_ids, size_of


def cases(options):
    """The graph's size, and cases by name."""
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
    made = {
        key: Case(
            loaders(graph, seeds, s, options.batch_size),
            count_nodes(*(["feat"] if "rows" in key else [])),
        )
        for key, s in samplers.items()
    }
    return size_of(graph), made


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
    facts, result = run(__file__, options)
    show(result, facts)
    write("labor", options, facts | result)


if __name__ == "__main__":
    main()
