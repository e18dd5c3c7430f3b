"""Hit rate of the degree-ranked cache by its size, measured by the loader on real graph folders.

Features are generated, one float a vertex, in a file that is memory-mapped, so that the CPU's cache does its work.
"reversed" samples out-edges instead of in-edges.

Run: ``python benchmarks/hit_rates.py FOLDER...`` (folders with an ``adj.npz`` or a manifest).
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from report import write

from pagraph import Graph, Loader, NeighborSampler
from pagraph.mapped import map_npy

SHARES = [0.01, 0.05, 0.1, 0.2, 0.5]


def hit_rate(graph, seeds, options, share, feat):
    """Hit rate of one epoch with a cache of ``share`` of the vertices."""
    graph.set_field("feat", map_npy(feat, random_access=True))
    loader = Loader(
        graph,
        seeds,
        NeighborSampler([int(f) for f in options.fanout.split(",")]),
        fields=["feat"],
        batch_size=options.batch_size,
        shuffle=True,
        cache=share,
        seed=0,
    )
    for _ in loader:
        pass
    return loader.stats.total.hit_rate


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--fanout", default="25,10")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--train-share", type=float, default=0.65)
    options = parser.parse_args()
    rows = []
    for folder in options.folders:
        forward = Graph.open(folder)
        for direction, graph in (("as stored", forward), ("reversed", forward.reverse())):
            count = int(options.train_share * graph.num_nodes)
            seeds = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[:count]
            with tempfile.TemporaryDirectory() as temporary:
                feat = Path(temporary) / "feat.npy"
                np.save(feat, np.zeros(graph.num_nodes, dtype=np.float32))
                rates = {str(share): hit_rate(graph, seeds, options, share, feat) for share in SHARES}
            rows.append({"graph": folder.name, "direction": direction, "hit_rates": rates})
            print(f"{folder.name:18s} {direction:10s}", "  ".join(f"{s:.0%}: {rates[str(s)]:.3f}" for s in SHARES))
    write("hit_rates", {"options": vars(options) | {"folders": [f.name for f in options.folders]}, "rows": rows})


if __name__ == "__main__":
    main()
