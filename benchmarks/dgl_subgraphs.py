"""Batches of one subgraph (ShaDow, Cluster-GCN, GraphSAINT): DGL's samplers in ours and in DGL's
DataLoader, in turn.

DGL's own code draws for DGL's loader, our kernels for ours; the rows of all vertices are read by
both. Clusters are of equal size and at random, for METIS takes minutes; a batch of them has few
edges, so that rows take most of the time. See contest.py for how loaders are compared.

Run: ``python benchmarks/dgl_subgraphs.py`` (about 20 minutes, 8 GiB of memory).
"""

import pickle
import tempfile
from pathlib import Path

import torch
from contest import Case, arguments, loaders, run, show, write
from rmat_graph import generate, random_ids, size_of

import dgl  # isort: skip: after pagraph.dgl, which contest.py imports


def clusters(graph, count, names):
    """DGL's sampler of ``count`` clusters at random, which it reads from a file of its own form."""
    num_nodes = graph.num_nodes()
    bounds = torch.arange(count + 1) * num_nodes // count
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clusters.pkl"
        path.write_bytes(pickle.dumps((bounds, random_ids(num_nodes, num_nodes))))
        return dgl.dataloading.ClusterGCNSampler(graph, count, str(path), prefetch_ndata=names)


def count_subgraphs(names):
    """Counts a batch, after reading the columns ``names`` of its vertices."""

    def count(batch):
        subgraph = batch[2] if isinstance(batch, tuple) else batch
        for name in names:
            assert len(subgraph.ndata[name]) == subgraph.num_nodes()
        return {"batches": 1, "edges": subgraph.num_edges(), "rows": subgraph.num_nodes()}

    return count


def cases(options):
    """The graph's size, and cases by name."""
    graph, d = generate(options.scale, options.edges, options.dim), dgl.dataloading
    names = ["feat"]
    seeds, numbers = (
        random_ids(graph.num_nodes(), options.batches * options.batch_size),
        torch.arange(options.batches),
    )
    fanouts, roots = [int(fanout) for fanout in options.fanouts.split(",")], options.budget // 4
    few = 2 * options.batches
    samplers = {
        "shadow": (
            seeds,
            d.ShaDowKHopSampler(fanouts, prefetch_node_feats=names),
            options.batch_size,
        ),
        "cluster": (
            torch.arange(options.clusters)[:few],
            clusters(graph, options.clusters, names),
            2,
        ),
        "saint_node": (numbers, d.SAINTSampler("node", options.budget, prefetch_ndata=names), 1),
        "saint_edge": (
            numbers,
            d.SAINTSampler("edge", options.budget // 2, prefetch_ndata=names),
            1,
        ),
        "saint_walk": (numbers, d.SAINTSampler("walk", (roots, 3), prefetch_ndata=names), 1),
    }
    made = {
        name: Case(loaders(graph, *of_case), count_subgraphs(names))
        for name, of_case in samplers.items()
    }
    return size_of(graph), made


def main():
    options = arguments(
        __doc__,
        scale=20,
        edges=10_000_000,
        dim=128,
        fanouts="10,5",
        batch_size=256,
        batches=20,
        clusters=200,
        budget=20_000,
    )
    facts, result = run(__file__, options)
    show(result, facts)
    write("dgl_subgraphs", options, facts | result)


if __name__ == "__main__":
    main()
