"""Features on disk: the loader with a RAM cache of some of their rows against the same loader
without it.

Both read one ``.npy`` file through a memory map, each time with the page cache cold: the mapping is
closed (or its pages are unmapped), the file is synced and dropped with ``POSIX_FADV_DONTNEED``, and
``mincore`` on a fresh mapping must then find less than 1 % of it in memory, else the run stops.

Two situations are measured, ours and the peer in turn:

* ``epoch``: cold when the epoch begins; filling the cache is part of the time. The system keeps
  what was read, so this is the case of a file that fits into memory.
* ``batch``: cold again before every batch, which stands for a file much larger than memory. Filling
  the cache is timed apart; batches are prepared when they are asked for, so that none is read
  ahead.

Before that, one cold read of 100 000 random rows is timed in three ways: through the mapping as it
is, with ``MADV_RANDOM``, and as our loaders do it, with all pages asked for at once.

Run: ``python benchmarks/disk_cache.py`` (about 5 minutes; needs 1.3 GiB in the temporary folder).
"""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
from cold_files import disk_bytes, make_cold
from report import summarise, write

from pagraph import Loader, NeighborSampler
from pagraph.datasets import rmat
from pagraph.features import DiskFeature, HostFeature
from pagraph.graph.mapped import map_npy


def make_loader(graph, seeds, options, cache, prefetch):
    return Loader(
        graph,
        seeds,
        NeighborSampler([int(n) for n in options.fanout.split(",")]),
        fields=["feat"],
        batch_size=options.batch_size,
        cache=cache,
        num_workers=options.workers,
        prefetch=prefetch,
        seed=0,
    )


def run_epoch(graph, path, seeds, options, cache):
    """Seconds of an epoch that begins cold, the filling of the cache included."""
    make_cold(path)
    graph.set_field("feat", map_npy(path, random_access=True))
    loader = make_loader(graph, seeds, options, cache, prefetch=2)
    before, begin = disk_bytes(), time.perf_counter()
    total = sum(float(batch.features["feat"][:, 0].sum()) for batch in loader)
    seconds = time.perf_counter() - begin
    result = {
        "seconds": seconds,
        "read_bytes": disk_bytes() - before,
        "hit_rate": loader.stats.total.hit_rate,
    }
    graph.ndata.pop("feat")
    return result, total


def run_batches(graph, path, seeds, options, cache):
    """Seconds of an epoch's batches, each of which begins cold; filling the cache is timed
    apart."""
    make_cold(path)
    tensor = map_npy(path, random_access=True)
    graph.set_field("feat", tensor)
    loader = make_loader(graph, seeds, options, cache, prefetch=0)
    begin = time.perf_counter()
    batches = iter(loader)
    result = {"fill_seconds": time.perf_counter() - begin, "seconds": 0.0, "read_bytes": 0}
    total = 0.0
    for _ in range(len(loader)):
        make_cold(path, tensor)
        before, begin = disk_bytes(), time.perf_counter()
        batch = next(batches)
        result["seconds"] += time.perf_counter() - begin
        result["read_bytes"] += disk_bytes() - before
        total += float(batch.features["feat"][:, 0].sum())
    result["hit_rate"] = loader.stats.total.hit_rate
    graph.ndata.pop("feat")
    return result, total


def run_reads(graph, path, repeats, count=100_000):
    """Seconds of one cold read of random rows: plain mapping, ``MADV_RANDOM``, and with pages asked
    for."""
    ways = {
        "mapping": lambda: HostFeature(map_npy(path)),
        "mapping, MADV_RANDOM": lambda: HostFeature(map_npy(path, random_access=True)),
        "pages asked for": lambda: DiskFeature(map_npy(path, random_access=True)),
    }
    generator = torch.Generator().manual_seed(0)
    raw = {name: [] for name in ways}
    for _ in range(repeats):
        ids = torch.randint(0, graph.num_nodes, (min(count, graph.num_nodes),), generator=generator)
        for name, make in ways.items():
            make_cold(path)
            feature = make()
            out = torch.zeros(len(ids), *feature.row_shape)
            before, begin = disk_bytes(), time.perf_counter()
            feature.read(ids, out)
            raw[name].append(
                {"seconds": time.perf_counter() - begin, "read_bytes": disk_bytes() - before}
            )
            del feature
    seconds = {name: summarise([run["seconds"] for run in runs]) for name, runs in raw.items()}
    medians = {name: round(figures["median"], 3) for name, figures in seconds.items()}
    print(f"one read of {count} rows, seconds: {medians}", flush=True)
    return {"rows": count, "seconds": seconds, "runs": raw}


def write_features(path, num_rows, width):
    """A ``.npy`` file of random float32, written in pieces so that it never is in memory as a
    whole."""
    generator = np.random.default_rng(0)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(num_rows, width))
    for start in range(0, num_rows, 1 << 16):
        stop = min(num_rows, start + (1 << 16))
        array[start:stop] = generator.random((stop - start, width), dtype=np.float32)
    array.flush()


def measure(run, graph, path, options, batches):
    """Runs the peer and ours in turn; returns the raw results, medians and the ratio of medians."""
    generator = torch.Generator().manual_seed(0)
    raw = {"without_cache": [], "with_cache": []}
    for _ in range(options.repeats):
        seeds = torch.randperm(graph.num_nodes, generator=generator)[: batches * options.batch_size]
        totals = []
        for name, cache in (("without_cache", 0), ("with_cache", options.cache)):
            result, total = run(graph, path, seeds, options, cache)
            raw[name].append(result)
            totals.append(total)
            print(
                f"  {name:14s}", {key: round(value, 3) for key, value in result.items()}, flush=True
            )
        if totals[0] != totals[1]:
            raise RuntimeError(f"both must read the same values, got sums {totals}")
    seconds = {name: summarise([run["seconds"] for run in runs]) for name, runs in raw.items()}
    ratio = seconds["without_cache"]["median"] / seconds["with_cache"]["median"]
    return {"seconds": seconds, "ratio": ratio, "runs": raw}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--num-edges", type=int, default=10_000_000)
    parser.add_argument(
        "--width", type=int, default=256, help="float32 columns; 256 make 1 GiB at scale 20"
    )
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument(
        "--batches", type=int, default=100, help="of an epoch; cold batches are a fifth"
    )
    parser.add_argument("--cache", default="10%")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where the file is made; must be on a disk")
    options = parser.parse_args()
    graph = rmat(options.scale, num_edges=options.num_edges, undirected=True, seed=0)
    result = {"settings": {key: value for key, value in vars(options).items() if key != "folder"}}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "feat.npy")
        write_features(path, graph.num_nodes, options.width)
        result["file_bytes"] = os.path.getsize(path)
        warm_seeds = torch.arange(options.batch_size)
        for cache in (0, options.cache):  # compiles the kernels
            run_epoch(graph, path, warm_seeds, options, cache)
        result["reads"] = run_reads(graph, path, options.repeats)
        for name, run, batches in (
            ("epoch", run_epoch, options.batches),
            ("batch", run_batches, options.batches // 5),
        ):
            print(name)
            result[name] = measure(run, graph, path, options, batches)
            print(f"  ratio {result[name]['ratio']:.2f} (without / with the cache)")
    write("disk_cache", result)


if __name__ == "__main__":
    main()
