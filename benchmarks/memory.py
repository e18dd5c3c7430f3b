"""Peak memory of our DataLoader beyond graph and features, counted in batches.

A child process for each depth loads graph and features, makes the loader (which converts the ids),
notes its resident size, then runs an epoch; the growth of the peak is divided by the bytes of the
largest batch.

Run: ``python benchmarks/memory.py`` (about 2 minutes, 3 GiB).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

DEPTHS = [(1, 1), (1, 2), (2, 2), (2, 4), (4, 2)]


def status(field):
    """A memory figure of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def child(workers, prefetch, seeds):
    import torch

    import pagraph.dgl
    from pagraph.datasets import rmat

    import dgl  # isort: skip

    graph = pagraph.dgl.to_dgl(rmat(20, num_edges=10_000_000, undirected=True, simple=True, seed=0))
    graph.ndata["feat"] = torch.randn(graph.num_nodes(), 128)
    sampler = dgl.dataloading.NeighborSampler([15, 10, 5], prefetch_node_feats=["feat"])
    indices = torch.randperm(graph.num_nodes())[:seeds]
    loader = pagraph.dgl.DataLoader(
        graph, indices, sampler, batch_size=1000, num_workers=workers, prefetch=prefetch
    )
    small = pagraph.dgl.DataLoader(graph, indices[:20], sampler, batch_size=10, prefetch=0)
    list(small)  # compiled kernels and converted ids are not batches
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the generator's
    before, largest = status("VmRSS"), 0
    for input_nodes, _, blocks in loader:
        ids = (
            sum(block.num_edges() * (8 + 4) + block.num_dst_nodes() * 8 for block in blocks)
            + len(input_nodes) * 8
        )
        largest = max(largest, ids + blocks[0].srcdata["feat"].nbytes)
    grown = status("VmHWM") - before
    allowed = prefetch + workers + 2
    print(
        json.dumps(
            {
                "grown_bytes": grown,
                "batch_bytes": largest,
                "batches": grown / largest,
                "allowed": allowed,
            }
        )
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, type=int, metavar=("WORKERS", "PREFETCH"))
    parser.add_argument("--seeds", type=int, default=60_000)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.seeds)
        return
    from report import write

    rows = []
    for workers, prefetch in DEPTHS:
        command = [
            sys.executable,
            __file__,
            "--child",
            str(workers),
            str(prefetch),
            "--seeds",
            str(options.seeds),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(
            {"workers": workers, "prefetch": prefetch} | json.loads(done.stdout.splitlines()[-1])
        )
        row = rows[-1]
        print(
            f"workers {workers}, prefetch {prefetch}: {row['grown_bytes'] / 2**20:6.0f} MiB = "
            f"{row['batches']:.2f} batches of {row['batch_bytes'] / 2**20:.0f} MiB (allowed "
            f"{row['allowed']})"
        )
    write("memory", {"options": vars(options), "rows": rows})


if __name__ == "__main__":
    main()
