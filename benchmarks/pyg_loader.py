"""Neighbour loading for PyG: our NeighborLoader, our DGL face on the same graph, and PyG's own where it can run.

PyG expands a vertex once, DGL every known vertex in each layer: with the same fan-outs PyG draws fewer edges. So what
is compared are edges and rows per second, each contender running whole epochs in turn. PyG's own loader needs pyg-lib
or torch-sparse; without one it is left out. The conversion from ``edge_index`` is timed apart, in shuffled order.

Run: ``python benchmarks/pyg_loader.py`` (about 2 minutes without PyG's loader, 6 with it; 5 GiB of memory).
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads would slow all down on few cores

import importlib.util
import time
import warnings

import torch
from contest import Case, arguments, count_nodes, run
from dgl.dataloading import NeighborSampler
from report import summarise, write
from rmat_graph import generate, random_ids

import pagraph.dgl
import pagraph.pyg

from torch_geometric.data import Data  # isort: skip
from torch_geometric.loader import NeighborLoader  # isort: skip

PEERS = [name for name in ("pyg_lib", "torch_sparse") if importlib.util.find_spec(name)]


def count_batch(*names):
    """Counts a PyG batch, whose attributes ``names`` must be there."""

    def count(batch):
        for name in names:
            assert batch[name].shape[0] == batch.num_nodes
        return {"batches": 1, "edges": batch.num_edges, "rows": batch.num_nodes}

    return count


def cases(graph, seeds, fanouts, batch_size, names):
    """Our two faces and PyG's own loader, with and without rows."""
    src, dst = graph.edges()
    data = Data(edge_index=torch.stack([src, dst]), num_nodes=graph.num_nodes())
    for name in names:
        data[name] = graph.ndata[name]
    settings = {"input_nodes": seeds, "batch_size": batch_size, "shuffle": True}
    hops = fanouts[::-1]

    def ours(**options):
        return lambda: pagraph.pyg.NeighborLoader(data, hops, **settings, **options)

    def theirs(workers):
        return lambda: NeighborLoader(data, hops, **settings, num_workers=workers, is_sorted=False)

    loaders = {f"{PEERS[0]}, {n} workers": theirs(n) for n in (0, 2)} if PEERS else {}
    loaders |= {
        "pagraph.pyg, no thread": ours(prefetch=0),
        "pagraph.pyg, 1 thread": ours(num_workers=1),
        "pagraph.pyg, 2 threads": ours(num_workers=2),
    }
    sampler = NeighborSampler(fanouts, prefetch_node_feats=names)

    def blocks(**options):
        return lambda: pagraph.dgl.DataLoader(graph, seeds, sampler, batch_size=batch_size, shuffle=True, **options)

    faces = {
        "pagraph.dgl, no thread": blocks(prefetch=0),
        "pagraph.dgl, 1 thread": blocks(num_workers=1),
        "pagraph.dgl, 2 threads": blocks(num_workers=2),
    }
    return Case(loaders, count_batch(*names)), Case(faces, count_nodes(*names))


def rates(results):
    """Edges and rows per second of every loader, against the better of PyG's and against the DGL face's same way."""
    loaders = {name: r for result in results for name, r in result["loaders"].items()}
    table = {}
    for name, r in loaders.items():
        table[name] = {
            "seconds": r["median"],
            "edges_per_second": r["edges"] / r["median"],
            "rows_per_second": r["rows"] / r["median"],
        }
    peers = [table[name] for name in table if not name.startswith("pagraph")]
    for name, row in table.items():
        for what in ("edges_per_second", "rows_per_second"):
            if peers:
                row[f"times_{what}_of_pyg"] = row[what] / max(peer[what] for peer in peers)
            if name.startswith("pagraph.pyg"):
                row[f"times_{what}_of_dgl_face"] = row[what] / table[name.replace(".pyg", ".dgl")][what]
    return table


def conversion(graph, rounds):
    """Seconds from ``edge_index`` in random order to the loader's arrays, and once more for a second loader."""
    edge_index = torch.stack(graph.edges())[:, torch.randperm(graph.num_edges())]
    first, second = [], []
    for _ in range(rounds):
        data = Data(edge_index=edge_index.clone(), num_nodes=graph.num_nodes())
        for runs in (first, second):
            begin = time.perf_counter()
            pagraph.pyg.NeighborLoader(data, [5], input_nodes=torch.arange(10))
            runs.append(time.perf_counter() - begin)
    return {"edges": graph.num_edges(), "first_loader": summarise(first), "second_loader": summarise(second)}


def main():
    options = arguments(__doc__, scale=20, edges=10_000_000, dim=128, fanout="15,10,5", batch_size=1000, seeds=100_000)
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    written = {"options": vars(options), "vertices": graph.num_nodes(), "edges": graph.num_edges()}
    warnings.filterwarnings("ignore", message="Using 'NeighborSampler' without")
    for key, names in (("sampling", []), ("sampling_and_rows", ["feat"])):
        pyg, dgl = cases(graph, seeds, fanouts, options.batch_size, names)
        result = run({"pyg": pyg, "dgl": dgl}, options.rounds)
        written[key] = {"loaders": rates(result.values()), "runs": result}
        print(f"\n{key} ({graph.num_nodes():,} vertices, {graph.num_edges():,} edges)")
        for name, row in written[key]["loaders"].items():
            ratios = "  ".join(f"{what[6:]} {value:.2f}" for what, value in row.items() if what.startswith("times_"))
            speed = f"{row['edges_per_second'] / 1e6:6.2f} M edges/s  {row['rows_per_second'] / 1e6:5.2f} M rows/s"
            print(f"  {name:24s} {row['seconds']:7.3f} s  {speed}  {ratios}")
    written["conversion"] = conversion(graph, options.rounds)
    print("conversion:", {k: round(r["median"], 3) for k, r in written["conversion"].items() if k != "edges"}, "s")
    write("pyg_loader", written)


if __name__ == "__main__":
    main()
