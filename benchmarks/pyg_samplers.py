"""Every sampling loader of PyG that needs a binary, against ours in turn; see contest.py.

PyG's neighbour loader samples with pyg-lib (``build_pyg_lib.py`` builds it): uniform, temporal
(uniform and last; a tree for each seed) and heterogeneous. HGT, ShaDow and GraphSAINT need
torch-sparse, built from source; Cluster-GCN needs one of the two to make its clusters, which are
ours here for both. GraphSAINT's edges are left out: for 6000 of 20 M edges PyG draws 120 G numbers.
What cannot run is left out and named. Batches hold 128 float32 for each vertex, or with ``--dim 0``
none.

Run: ``PYTHONPATH=~/pyg-lib:~/torch-sparse python benchmarks/pyg_samplers.py`` (on 2 cores about 20
minutes; 12 GiB of memory).
"""

import os
import warnings

import torch
import torch_geometric.typing
from contest import Case, arguments, run, show, write
from rmat_graph import random_ids

import pagraph.pyg
from pagraph.datasets import citation, rmat, sbm
from pagraph.pyg import to_pyg

from torch_geometric import loader as pyg  # isort: skip

PYG_LIB, TORCH_SPARSE = (
    torch_geometric.typing.WITH_PYG_LIB,
    torch_geometric.typing.WITH_TORCH_SPARSE,
)


def count(batch):
    """Vertices and edges of a batch."""
    for store in batch.node_stores:
        assert "x" not in store or store.x.shape[0] == store.num_nodes
    return {"batches": 1, "edges": batch.num_edges, "rows": batch.num_nodes}


def contest(name, *args, workers=(0, 2), threads=(None, 2), **settings):
    """PyG's class with 0 and 2 workers, and ours with no thread and two."""

    def theirs(n):
        return lambda: getattr(pyg, name)(*args, **settings, num_workers=n)

    def ours(n):
        more = {"prefetch": 0} if n is None else {"num_workers": n}
        return lambda: getattr(pagraph.pyg, name)(*args, **settings, **more)

    loaders = {f"pyg, {n} workers": theirs(n) for n in workers}
    loaders |= {
        f"pagraph, {'no thread' if n is None else f'{n} threads'}": ours(n) for n in threads
    }
    return Case(loaders, count, peer="pyg")


def neighbour_cases(options, data, papers):
    """Cases of the neighbour loader, which pyg-lib draws for PyG."""
    seeds = random_ids(data.num_nodes, options.batches * options.batch_size)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    settings = {"input_nodes": seeds, "batch_size": options.batch_size, "shuffle": True}
    timed = {"time_attr": "time", "disjoint": True}
    first = ("paper", random_ids(papers["paper"].num_nodes, options.batches * options.batch_size))
    return {
        "neighbours": contest("NeighborLoader", data, fanouts, **settings),
        "temporal, uniform": contest("NeighborLoader", data, fanouts, **settings, **timed),
        "temporal, last": contest(
            "NeighborLoader", data, fanouts, **settings, **timed, temporal_strategy="last"
        ),
        "heterogeneous": contest(
            "NeighborLoader", papers, [10, 10], **settings | {"input_nodes": first}
        ),
    }


def sparse_cases(options, data, papers):
    """Cases that torch-sparse draws for PyG; sizes are those of PyG's examples, batches made a few
    an epoch."""
    first = ("paper", random_ids(papers["paper"].num_nodes, options.batches * 128))
    roots = random_ids(data.num_nodes, options.batches * 1024)
    steps = {"num_steps": options.batches, "batch_size": 6000}
    return {
        "HGT": contest("HGTLoader", papers, [512] * 4, first, batch_size=128, shuffle=True),
        "ShaDow": contest("ShaDowKHopSampler", data, 2, 5, roots, batch_size=1024, shuffle=True),
        "SAINT, vertices": contest("GraphSAINTNodeSampler", data, **steps),
        "SAINT, walks": contest("GraphSAINTRandomWalkSampler", data, walk_length=2, **steps),
    }


def cluster_case(options):
    """Batches of 20 clusters, which are made once and are the same for both."""
    data = to_pyg(sbm(options.clustered, num_features=max(1, options.dim)))
    if not options.dim:
        del data.x
    clusters = pagraph.pyg.ClusterData(data, options.clusters, log=False)
    return {"Cluster": contest("ClusterLoader", clusters, batch_size=20, shuffle=True)}


def cases(options):
    """The size of the graph of one type, and the cases that can run here."""
    warnings.filterwarnings("ignore", message="Using 'NeighborSampler' without")
    graph = rmat(options.scale, num_edges=options.edges, undirected=True, simple=True, seed=0)
    data = to_pyg(graph)
    data.time = torch.randint(1000, (data.num_nodes,), generator=torch.Generator().manual_seed(0))
    papers = to_pyg(citation(options.papers, num_features=max(1, options.dim)))
    if options.dim:
        data.x = torch.randn(
            data.num_nodes, options.dim, generator=torch.Generator().manual_seed(0)
        )
    else:
        del papers["paper"].x, papers["author"].x
    made = {}
    if PYG_LIB:
        made |= neighbour_cases(options, data, papers)
    if TORCH_SPARSE:
        made |= sparse_cases(options, data, papers)
    made |= cluster_case(options)
    asked = {key: case for key, case in made.items() if options.only in key}
    return {"vertices": graph.num_nodes, "edges": graph.num_edges}, asked


def main():
    options = arguments(
        __doc__,
        scale=20,
        edges=10_000_000,
        dim=128,
        fanout="15,10,5",
        batch_size=1000,
        papers=200_000,
        batches=20,
        clustered=200_000,
        clusters=1500,
        only="",
    )
    for name, there in {"pyg-lib": PYG_LIB, "torch-sparse": TORCH_SPARSE}.items():
        if not there:
            print(f"left out, for want of {name}: what it draws for PyG")
    load = os.getloadavg()
    facts, result = run(__file__, options, apart=True)
    show(result, facts)
    name = "pyg_samplers" if options.dim else "pyg_samplers_without_rows"
    write(name, options, facts | {"load_average": load, "cases": result})


if __name__ == "__main__":
    main()
