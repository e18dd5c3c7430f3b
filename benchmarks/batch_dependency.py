"""Batches that share random numbers: misses of a cache, bytes from disk, and accuracy, by
``batch_dependency``.

* ``misses``: the input nodes of two epochs go through LRU caches, simulated, with a fifth of the
  vertices, as in GraphBolt's experiment (ogbn-products, LABOR, 500,000 of 2.4 million rows: 62 %
  misses, with a dependency of 32 22 %), and with a twenty-fifth, where that is less than a batch
  reads; counted in the second epoch. Beside them the distinct rows over 16 consecutive batches and
  a batch's own.
* ``overlap``: the share of a batch's edges that are in the next one, ours and DGL's LaborSampler,
  whose formula is in ``tests/dgl_face/test_batch_dependency_dgl.py``.
* ``disk``: an epoch of the real loader, whose features are in a file out of the page cache, without
  a cache: the rows and bytes that it reads with groups of up to 16 batches (``loader.stats``), and
  what the process had read from disks.
* ``accuracy``: test accuracy of GraphSAGE on real graphs after training, over several seeds; of the
  features their first 64 principal components, whitened, so that it takes minutes.

Run: ``python benchmarks/batch_dependency.py --data DATA`` (about 25 minutes, 4 GiB of memory, 0.6
GB of disk).
"""

import argparse
import gc
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from cold_files import disk_bytes, make_cold
from report import write

import pagraph.dgl
from pagraph import Loader, NeighborSampler
from pagraph.datasets import open_graph, rmat
from pagraph.graph.mapped import map_npy
from pagraph.sampling import LaborSampler

import dgl  # isort: skip

PERIODS = (1, 16, 64, 256, 4096)
SAMPLERS = {"uniform": NeighborSampler, "labor": LaborSampler}
# Epochs, learning rate and batch size: enough batches an epoch for the dependency to tell.
TASKS = {"cora": (30, 0.01, 16), "amazon-computers": (3, 0.01, 64), "facebook-pages": (2, 0.01, 64)}
TOGETHER = 16
SHARES = (0.2, 0.04)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="misses,overlap,disk,accuracy", help="[%(default)s]")
    parser.add_argument("--data", type=Path, help="folder of real graphs, for accuracy")
    parser.add_argument("--graphs", default=",".join(TASKS), help="of these [%(default)s]")
    parser.add_argument(
        "--scale",
        type=int,
        default=20,
        help="vertices of the R-MAT graph, as a power of 2 [%(default)s]",
    )
    parser.add_argument("--edges", type=int, default=10_000_000, help="[%(default)s]")
    parser.add_argument("--fanout", default="10,10,10", help="[%(default)s]")
    parser.add_argument("--batch-size", type=int, default=1000, help="[%(default)s]")
    parser.add_argument(
        "--share", type=float, default=0.08, help="of the vertices that are seeds [%(default)s]"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each accuracy [%(default)s]")
    parser.add_argument("--folder", help="on a disk, for the features [the temporary folder]")
    parser.add_argument("--output", type=Path, help="folder of the results [benchmarks/results]")
    options = parser.parse_args()
    parts, result = (
        options.parts.split(","),
        {"options": {k: str(v) for k, v in vars(options).items()}},
    )
    if {"misses", "disk"} & set(parts):
        graph = rmat(options.scale, num_edges=options.edges, undirected=True, simple=True, seed=0)
        result |= {"vertices": graph.num_nodes, "edges": graph.num_edges}
        for part, measure in {"misses": misses, "disk": disk}.items():
            if part in parts:
                result[part] = measure(graph, options)
    if "overlap" in parts:
        result["overlap"] = overlap()
    if "accuracy" in parts:
        result["accuracy"] = {
            name: accuracy(options.data / name, options, *TASKS[name])
            for name in options.graphs.split(",")
        }
    write("batch_dependency", result, *[options.output] if options.output else [])


def make_loader(graph, kind, period, options, **more):
    sampler = SAMPLERS[kind]([int(n) for n in options.fanout.split(",")], batch_dependency=period)
    count = int(graph.num_nodes * options.share)
    seeds = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))[:count]
    return Loader(
        graph,
        seeds,
        sampler,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=0,
        **more,
    )


class Lru:
    """An exact least-recently-used cache of rows; within a batch no row is older than another."""

    def __init__(self, num_rows, room):
        self._used, self._room, self._now = np.zeros(num_rows, np.int64), room, 0

    def read(self, ids):
        """Misses of a batch's distinct rows, which are then in the cache."""
        self._now += 1
        missed = int((self._used[ids] == 0).sum())
        self._used[ids] = self._now
        held = np.flatnonzero(self._used)
        if len(held) > self._room:
            out = len(held) - self._room
            self._used[held[np.argpartition(self._used[held], out - 1)[:out]]] = 0
        return missed


def misses(graph, options):
    result = {}
    for kind in SAMPLERS:
        for period in PERIODS:
            loader, caches = make_loader(graph, kind, period, options), {}
            for share in SHARES:
                caches[share] = Lru(graph.num_nodes, int(share * graph.num_nodes))
            for _ in range(2):  # the first fills the cache
                missed, rows, together, window = dict.fromkeys(SHARES, 0), [], [], []
                for batch in loader:
                    ids = batch.input_nodes.numpy()
                    for share, cache in caches.items():
                        missed[share] += cache.read(ids)
                    rows.append(len(ids))
                    window.append(ids)
                    if len(window) == TOGETHER:
                        together.append(len(np.unique(np.concatenate(window))))
                        window = []
            found = {
                "batches": len(rows),
                "rows": statistics.mean(rows),
                "misses": {share: missed[share] / sum(rows) for share in SHARES},
            }
            found["distinct"] = statistics.mean(together)
            result[f"{kind} {period}"] = found
            print(
                f"{kind:8} k = {period:4}: misses {found['misses']}, {found['rows']:,.0f} rows a "
                "batch, "
                f"{found['distinct']:,.0f} distinct in {TOGETHER}",
                flush=True,
            )
    return result


def overlap(period=64, degree=40, centres=2000):
    """Share of a batch's edges that are in the next one, for every fan-out; all batches have the
    same seeds."""
    graph = dgl.graph(
        (
            torch.arange(centres, centres * (1 + degree)),
            torch.arange(centres).repeat_interleave(degree),
        )
    )
    seeds, result = torch.arange(centres).repeat(period), {}
    for fanout in (1, 2, 4, 10, 20):
        sampler = dgl.dataloading.LaborSampler([fanout], batch_dependency=period)
        told = []
        for make, more in ((pagraph.dgl.DataLoader, {"seed": 1}), (dgl.dataloading.DataLoader, {})):
            before, same = None, []
            for _, _, (block,) in make(graph, seeds, sampler, batch_size=centres, **more):
                taken = np.zeros(graph.num_edges(), dtype=bool)
                taken[block.edata[dgl.EID].numpy()] = True
                if before is not None:
                    same.append((taken & before).sum() / taken.sum())
                before = taken
            told.append(statistics.mean(same))
        result[f"{fanout} of {degree}"] = dict(zip(("ours", "dgl"), told, strict=True))
        print(
            f"{fanout:2} of {degree}, k = {period}: new in a batch {1 - told[0]:.3%}, with DGL "
            f"{1 - told[1]:.3%}"
        )
    return result


def disk(graph, options, dim=256):
    """Small batches, so that groups of 16 have room, and more rows than half of the memory: past
    the page cache."""
    result, small = {}, argparse.Namespace(fanout="10,10", batch_size=250, share=0.03)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "feat.npy"
        np.save(path, np.random.default_rng(0).random((graph.num_nodes, dim), np.float32))
        for kind in SAMPLERS:
            for period in PERIODS:
                make_cold(path)
                graph.ndata["feat"] = map_npy(path, random_access=True)
                more = {"fields": ["feat"], "cache": 0, "lookahead": TOGETHER, "memory": "1GiB"}
                loader, before = make_loader(graph, kind, period, small, **more), disk_bytes()
                for _ in loader:
                    pass
                counts = loader.stats.total.counts
                found = {"rows": counts["input_nodes"], "read": counts.get("window_rows", 0)}
                found |= {"bytes": counts.get("window_bytes", 0), "process": disk_bytes() - before}
                result[f"{kind} {period}"] = found
                print(
                    f"{kind:8} k = {period:4}: {found['rows']:,} rows, {found['read']:,} read, "
                    f"{found['bytes'] / 1e9:.2f} GB, the process {found['process'] / 1e9:.2f} GB",
                    flush=True,
                )
                loader.close()
                del loader
                gc.collect()  # the mapping goes with it: a mapped file cannot be made cold
                graph.ndata.pop("feat")
    return result


def accuracy(folder, options, epochs, lr, batch_size):
    """Mean and deviation of the test accuracy, by sampler and dependency: 2 layers, 5 neighbours in
    each."""
    graph, result = pagraph.dgl.to_dgl(open_graph(folder)), {}
    torch.manual_seed(0)
    rows, _, _ = torch.pca_lowrank(graph.ndata["feat"], q=64)
    graph.ndata["feat"] = rows * len(rows) ** 0.5
    for kind, of_dgl in {"uniform": "NeighborSampler", "labor": "LaborSampler"}.items():
        for period in (1, 64, 4096):
            sampler = getattr(dgl.dataloading, of_dgl)(
                [5, 5], prefetch_node_feats=["feat"], prefetch_labels=["label"]
            )
            more = {"batch_size": batch_size, "shuffle": True, "batch_dependency": period}
            runs = [
                trained(graph, sampler, epochs, lr, seed=seed, **more)
                for seed in range(options.seeds)
            ]
            mean, deviation = statistics.mean(runs), statistics.stdev(runs)
            result[f"{kind} {period}"] = {"mean": mean, "deviation": deviation, "runs": runs}
            print(
                f"{folder.name:17} {kind:8} k = {period:4}: {100 * mean:.2f} +- "
                f"{100 * deviation:.2f}",
                flush=True,
            )
    return result


class Sage(torch.nn.Module):
    """Two layers of GraphSAGE with means."""

    def __init__(self, width, classes):
        super().__init__()
        sizes = (width, 64), (64, classes)
        self.layers = torch.nn.ModuleList(
            [dgl.nn.SAGEConv(*size, "mean", feat_drop=0.5) for size in sizes]
        )

    def forward(self, blocks, rows):
        return self.layers[1](blocks[1], self.layers[0](blocks[0], rows).relu())


def trained(graph, sampler, epochs, lr, seed, **options):
    """Test accuracy with all neighbours after the last epoch."""
    torch.manual_seed(seed)
    rows, labels = graph.ndata["feat"], graph.ndata["label"]
    model = Sage(rows.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=5e-4)
    seeds = graph.ndata["train_mask"].nonzero().squeeze(1)
    loader = pagraph.dgl.DataLoader(graph, seeds, sampler, seed=seed, **options)
    for _ in range(epochs):
        model.train()
        for _, _, blocks in loader:
            loss = torch.nn.functional.cross_entropy(
                model(blocks, blocks[0].srcdata["feat"]), blocks[1].dstdata["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model([graph, graph], rows).argmax(1) == labels
    return right[graph.ndata["test_mask"]].float().mean().item()


if __name__ == "__main__":
    main()
