"""Loading for link prediction: our DataLoader against DGL's, in turn, on an RMAT graph; see
contest.py.

A batch holds edges, one random pair for each, and the sampled neighbourhood of all their ends,
without the batch's edges and their reverses. The same without leaving them out tells what that
costs, in percent of a batch.

Run: ``python benchmarks/link_prediction.py`` (about 20 minutes, 12 GiB of memory).
"""

from contest import Case, arguments, loaders, read_rows, run, show, write
from dgl.dataloading import NeighborSampler, as_edge_prediction_sampler
from dgl.dataloading.negative_sampler import Uniform
from rmat_graph import generate, random_ids, reverse_ids, size_of


def count(batch):
    input_nodes, pairs, random_pairs, blocks = batch
    return {
        "batches": 1,
        "pairs": pairs.num_edges() + random_pairs.num_edges(),
        "edges": sum(block.num_edges() for block in blocks),
        "rows": read_rows(input_nodes, blocks[0], ["feat"]),
    }


def exclusion_cost(result):
    """How much longer an epoch takes with exclusion than without, in percent, for each loader."""
    with_it, without = (result[key]["loaders"] for key in ("reverse_id", "no_exclusion"))
    return {name: 100 * (with_it[name]["median"] / without[name]["median"] - 1) for name in with_it}


def cases(options):
    """The graph's size, and cases by name."""
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_edges(), options.seeds)
    nodes = NeighborSampler(
        [int(fanout) for fanout in options.fanout.split(",")], prefetch_node_feats=["feat"]
    )
    samplers = {
        "reverse_id": as_edge_prediction_sampler(
            nodes,
            exclude="reverse_id",
            reverse_eids=reverse_ids(graph),
            negative_sampler=Uniform(1),
        ),
        "no_exclusion": as_edge_prediction_sampler(nodes, negative_sampler=Uniform(1)),
    }
    made = {
        key: Case(loaders(graph, seeds, s, options.batch_size), count)
        for key, s in samplers.items()
    }
    return size_of(graph), made


def main():
    options = arguments(
        __doc__, scale=20, edges=10_000_000, dim=128, fanout="15,10,5", batch_size=512, seeds=20_480
    )
    facts, result = run(__file__, options)
    show(result, facts)
    result["exclusion_percent_of_a_batch"] = exclusion_cost(result)
    print("\nexclusion costs")
    for name, percent in result["exclusion_percent_of_a_batch"].items():
        print(f"  {name:20s} {percent:6.1f} % of a batch")
    write("link_prediction", options, facts | result)


if __name__ == "__main__":
    main()
