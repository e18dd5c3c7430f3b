"""Neighbour loading for PyG: our NeighborLoader, our DGL face on the same graph, and PyG's own
where it can run.

PyG expands a vertex once, DGL every known vertex in each layer: with the same fan-outs PyG draws
fewer edges. So what is compared are edges and rows per second, each contender running whole epochs
in turn. PyG's own loader samples with pyg-lib (``build_pyg_lib.py`` builds it) or torch-sparse; it
is measured with each that is installed, and it is checked that this one draws the batches. The
conversion from ``edge_index`` is timed apart, in shuffled order.

Run: ``python benchmarks/pyg_loader.py`` (on 2 cores about 4 minutes without PyG's loader, 10
with pyg-lib, 20 more with torch-sparse; 10 GiB of memory).
"""

import os
import time
import warnings

import torch
import torch_geometric.typing
from contest import Case, arguments, count_nodes, run, write
from dgl.dataloading import NeighborSampler
from report import summarise
from rmat_graph import generate, random_ids, size_of

import pagraph.dgl
import pagraph.pyg

from torch_geometric.data import Data  # isort: skip
from torch_geometric.loader import NeighborLoader  # isort: skip

SWITCHES = {"pyg_lib": "WITH_PYG_LIB", "torch_sparse": "WITH_TORCH_SPARSE"}
"""Extension that PyG samples with to the name that says in ``torch_geometric.typing`` whether it
could be loaded."""
PEERS = [name for name, switch in SWITCHES.items() if getattr(torch_geometric.typing, switch)]
OPERATORS = {"pyg_lib": "pyg::neighbor_sample", "torch_sparse": "torch_sparse::neighbor_sample"}


class Peer:
    """PyG's loader over the operator of one of the extensions; PyG by itself takes pyg-lib where it
    has both."""

    def __init__(self, extension, loader):
        self.extension, self.loader = extension, loader

    def __iter__(self):
        for name, switch in SWITCHES.items():
            setattr(torch_geometric.typing, switch, name == self.extension)
        yield from self.loader

    def check(self):
        """Check that the extension draws the first batch, which must be made in this process."""
        with torch.profiler.profile() as profiler:
            next(iter(self))
        assert OPERATORS[self.extension] in {event.name for event in profiler.events()}


def count_batch(*names):
    """Counts a batch of either face, whose attributes ``names`` must be there."""
    of_dgl = count_nodes(*names)

    def count(batch):
        if not isinstance(batch, Data):
            return of_dgl(batch)
        for name in names:
            assert batch[name].shape[0] == batch.num_nodes
        return {"batches": 1, "edges": batch.num_edges, "rows": batch.num_nodes}

    return count


def cases(options):
    """The graph's size; all loaders without and with rows."""
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    warnings.filterwarnings("ignore", message="Using 'NeighborSampler' without")
    made = {
        key: case(graph, seeds, fanouts, options.batch_size, names)
        for key, names in (("sampling", []), ("sampling_and_rows", ["feat"]))
    }
    return size_of(graph), made


def case(graph, seeds, fanouts, batch_size, names):
    """PyG's own loader and our two faces."""
    src, dst = graph.edges()
    data = Data(edge_index=torch.stack([src, dst]), num_nodes=graph.num_nodes())
    for name in names:
        data[name] = graph.ndata[name]
    settings = {"input_nodes": seeds, "batch_size": batch_size, "shuffle": True}
    hops = fanouts[::-1]

    def ours(**options):
        return lambda: pagraph.pyg.NeighborLoader(data, hops, **settings, **options)

    def theirs(extension, workers):
        return lambda: Peer(extension, NeighborLoader(data, hops, **settings, num_workers=workers))

    loaders = {
        f"{extension}, {n} workers": theirs(extension, n) for extension in PEERS for n in (0, 2)
    }
    for extension in PEERS:
        theirs(extension, 0)().check()
    loaders |= {
        "pagraph.pyg, no thread": ours(prefetch=0),
        "pagraph.pyg, 1 thread": ours(num_workers=1),
        "pagraph.pyg, 2 threads": ours(num_workers=2),
    }
    sampler = NeighborSampler(fanouts, prefetch_node_feats=names)

    def blocks(**options):
        return lambda: pagraph.dgl.DataLoader(
            graph, seeds, sampler, batch_size=batch_size, shuffle=True, **options
        )

    loaders |= {
        "pagraph.dgl, no thread": blocks(prefetch=0),
        "pagraph.dgl, 1 thread": blocks(num_workers=1),
        "pagraph.dgl, 2 threads": blocks(num_workers=2),
    }
    return Case(loaders, count_batch(*names))


def rates(loaders):
    """Edges and rows per second of every loader, against the better of PyG's with each extension
    and the DGL face."""
    table = {}
    for name, r in loaders.items():
        table[name] = {
            "seconds": r["median"],
            "edges_per_second": r["edges"] / r["median"],
            "rows_per_second": r["rows"] / r["median"],
        }
    for name, row in table.items():
        for what in ("edges_per_second", "rows_per_second"):
            for extension in PEERS:
                best = max(table[f"{extension}, {workers} workers"][what] for workers in (0, 2))
                row[f"times_{what}_of_{extension}"] = row[what] / best
            if name.startswith("pagraph.pyg"):
                row[f"times_{what}_of_dgl_face"] = (
                    row[what] / table[name.replace(".pyg", ".dgl")][what]
                )
    return table


def conversion(graph, rounds):
    """Seconds from ``edge_index`` in random order to the loader's arrays, and once more for a
    second loader."""
    edge_index = torch.stack(graph.edges())[:, torch.randperm(graph.num_edges())]
    first, second = [], []
    for _ in range(rounds):
        data = Data(edge_index=edge_index.clone(), num_nodes=graph.num_nodes())
        for runs in (first, second):
            begin = time.perf_counter()
            pagraph.pyg.NeighborLoader(data, [5], input_nodes=torch.arange(10))
            runs.append(time.perf_counter() - begin)
    return {
        "edges": graph.num_edges(),
        "first_loader": summarise(first),
        "second_loader": summarise(second),
    }


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
    load = os.getloadavg()
    facts, result = run(__file__, options, apart=True)
    written = facts | {"pyg_samples_with": PEERS, "load_average": load}
    for key, of_case in result.items():
        runs = {"pyg": {"loaders": {}}, "dgl": {"loaders": {}}}
        for name, r in of_case["loaders"].items():
            face = "dgl" if name.startswith("pagraph.dgl") else "pyg"
            runs[face]["loaders"][name] = r
        written[key] = {"loaders": rates(of_case["loaders"]), "runs": runs}
        print(f"\n{key} {facts}")
        for name, row in written[key]["loaders"].items():
            ratios = "  ".join(
                f"{what[6:]} {value:.2f}"
                for what, value in row.items()
                if what.startswith("times_")
            )
            speed = (
                f"{row['edges_per_second'] / 1e6:6.2f} M edges/s  "
                f"{row['rows_per_second'] / 1e6:5.2f} M rows/s"
            )
            print(f"  {name:24s} {row['seconds']:7.3f} s  {speed}  {ratios}")
    graph = generate(options.scale, options.edges, 0)
    written["conversion"] = conversion(graph, options.rounds)
    print(
        "conversion:",
        {k: round(r["median"], 3) for k, r in written["conversion"].items() if k != "edges"},
        "s",
    )
    write("pyg_loader", options, written)


if __name__ == "__main__":
    main()
