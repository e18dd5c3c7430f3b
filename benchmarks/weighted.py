"""Non-uniform neighbour loading: our DataLoader against DGL's, in turn, on an RMAT graph; see
contest.py.

"prob" draws neighbours with chances in proportion to a random positive weight of each edge, "mask"
only among the half of the edges that a mask leaves.

Run: ``python benchmarks/weighted.py`` (about 20 minutes, 10 GiB of memory).
"""

import torch
from contest import Case, arguments, count_nodes, loaders, run, show, write
from dgl.dataloading import NeighborSampler
from rmat_graph import generate, random_ids, size_of


def cases(options):
    """The graph's size, and cases by name."""
    graph = generate(options.scale, options.edges, options.dim)
    generator = torch.Generator().manual_seed(2)
    graph.edata["weight"] = torch.rand(graph.num_edges(), generator=generator) + 0.01
    graph.edata["kept"] = torch.rand(graph.num_edges(), generator=generator) < 0.5
    seeds = random_ids(graph.num_nodes(), options.seeds)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    made = {}
    for key, chosen, names in (
        ("prob", {"prob": "weight"}, []),
        ("prob_and_rows", {"prob": "weight"}, ["feat"]),
        ("mask", {"mask": "kept"}, []),
        ("mask_and_rows", {"mask": "kept"}, ["feat"]),
    ):
        sampler = NeighborSampler(fanouts, prefetch_node_feats=names, **chosen)
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
        seeds=30_000,
    )
    facts, result = run(__file__, options)
    show(result, facts)
    write("weighted", options, facts | result)


if __name__ == "__main__":
    main()
