"""Memory of several processes that train on the parts of one graph, by how they hold its features.

Real processes, started by torchrun. Each opens its part, makes a ``pagraph.dgl.DataLoader`` and
reads two epochs of batches; then all wait, and each tells its share of memory (PSS: a page that n
processes have counts 1/n in each) from ``/proc/self/smaps``: how much it grew since the libraries
were imported, and how much of that is features.

- reference: parts read the source's mapped file (``write_partition(features="reference")``);
- copy: each part has a file of its own, with the halo's rows once more;
- own: the usual way: each process reads the source's features into its memory, and its rows by
  their global ids.

Run: ``python benchmarks/partition_memory.py`` (about 6 minutes, 4 GiB).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = ["reference", "copy", "own"]


def shares():
    """PSS of this process in bytes: of all, of files named as features, of memory that is no
    file's."""
    found = {"all": 0, "features": 0, "anonymous": 0}
    path = ""
    for line in Path("/proc/self/smaps").read_text(errors="surrogateescape").splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            path = line.split(maxsplit=5)[5] if len(fields) > 5 else ""
        elif fields[0] == "Pss:":
            size = int(fields[1]) * 1024
            found["all"] += size
            found["features"] += size * path.endswith("feat.npy")
            found["anonymous"] += size * (not path.startswith("/"))
    return found


def warm_up():
    """Compile or load the kernels: their memory is the libraries'."""
    import torch

    import pagraph.dgl
    from pagraph.features import IndexedRows

    import dgl  # isort: skip

    ids = torch.arange(50)
    sampler = dgl.dataloading.NeighborSampler([2, 2], prefetch_node_feats=["feat"])
    for feat in (torch.rand(50, 4), IndexedRows(torch.rand(50, 4), ids)):
        graph = pagraph.Graph.from_coo(ids, ids.flip(0), 50, ndata={"feat": feat})
        list(pagraph.dgl.DataLoader(graph, ids, sampler, batch_size=10))


def child(way, folder, options):
    """One rank: loads its part's batches, then rank 0 prints what all ranks hold."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import pagraph.dgl

    import dgl  # isort: skip

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    warm_up()
    dist.barrier()
    before = shares()
    part = pagraph.open_partition(folder, rank, world_size=world)
    held = None
    if way == "own":
        held = torch.from_numpy(np.load(Path(folder).parent / "graph" / "node-feat.npy"))
        part.graph.set_field("feat", held[part.global_ids])
    sampler = dgl.dataloading.NeighborSampler([10, 10], prefetch_node_feats=["feat"])
    loader = pagraph.dgl.DataLoader(
        part.graph, part.train, sampler, batch_size=1000, shuffle=True, cache=options.cache
    )
    begin = time.perf_counter()
    for _ in range(options.epochs):
        for _, _, blocks in loader:
            blocks[0].srcdata["feat"].sum()
        del blocks
    seconds = time.perf_counter() - begin
    dist.barrier()
    after = shares()
    structure = 8 * (part.graph.num_nodes + 1 + 2 * part.graph.num_edges)
    mine = {key: after[key] - before[key] for key in after}
    mine |= {
        "process": after["all"],
        "dgl_structure": structure,
        "seconds": seconds,
        "rows": part.graph.num_nodes,
    }
    everyone = [None] * world
    dist.all_gather_object(everyone, mine)
    dist.barrier()
    if rank == 0:
        print(json.dumps(everyone), flush=True)
    dist.destroy_process_group()


def prepare(folder, options):
    """The graph, and its parts in both forms for every number of processes; the replication
    factors."""
    from pagraph.datasets import sbm, write_graph
    from pagraph.partition import partition_graph, write_partition

    from pagraph import Graph  # isort: skip

    write_graph(sbm(options.nodes, num_features=options.width, seed=0), folder / "graph")
    graph = Graph.open(folder / "graph")
    factors = {}
    for count in options.processes:
        partition = partition_graph(graph, count, hops=2, method=options.method)
        for features in ("reference", "copy"):
            target = folder / f"{features}-{count}"
            manifest = write_partition(
                partition, target, features=features, source=folder / "graph"
            )
        factors[count] = manifest.replication_factor
    return graph.ndata["feat"].nbytes, factors


def measure(way, count, folder, options):
    """The ranks' figures."""
    parts = folder / f"{'copy' if way == 'copy' else 'reference'}-{count}"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={count}",
        __file__,
    ]
    command += [
        "--child",
        way,
        str(parts),
        "--cache",
        options.cache,
        "--epochs",
        str(options.epochs),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"))
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--method", default="hash")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--cache", default="0", help="the cache of each process, in memory of its own"
    )
    options = parser.parse_args()
    if options.child:
        child(*options.child, options)
        return
    from report import write

    rows = []
    with tempfile.TemporaryDirectory() as name:
        size, factors = prepare(Path(name), options)
        for count in options.processes:
            for way in WAYS:
                ranks = measure(way, count, Path(name), options)
                total = {key: sum(rank[key] for rank in ranks) for key in ranks[0]}
                figures = {"replication": factors[count], "sum": total, "ranks": ranks}
                rows.append({"processes": count, "way": way} | figures)
                print(
                    f"{count} processes, {way:9}: grew by {total['all'] / 2**20:6.0f} MiB, mapped "
                    "features "
                    f"{total['features'] / 2**20:5.0f}, no file's "
                    f"{total['anonymous'] / 2**20:5.0f} (DGL's structure "
                    f"{total['dgl_structure'] / 2**20:4.0f}); with libraries "
                    f"{total['process'] / 2**20:6.0f}"
                )
    print(f"features of the graph: {size / 2**20:.0f} MiB")
    write("partition_memory", {"options": vars(options), "feature_bytes": size, "rows": rows})


if __name__ == "__main__":
    main()
