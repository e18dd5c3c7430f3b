"""Scattered reads of a cold file: each way that the system allows, by size of a request and depth
of the queue.

``requests``: distinct places of one size, none merged, past the page cache (``direct``) and through
it. In order: a quarter of the file in requests of 128 KiB. ``rows``: rows of 1 KiB at random, by
``FileReader`` with its own choice of way and of what it merges, and by the mapping with all pages
asked for first (``DiskFeature``).

The file is synced and dropped from the page cache before each read, also before direct ones. All
cases run in turn, ``--repeats`` times; medians, with all runs beside them. What else uses the disk
meanwhile shows in their spread.

Run: ``python benchmarks/disk_reads.py``, behind ``chrt -r 20`` where the processor has other work:
else threads, being many, get more of it and seem to be the fastest (about 10 minutes; needs 2 GiB
in the folder, which must be on a disk).
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict

import numpy as np
import torch
from disk_cache import disk_bytes, make_cold, write_features
from report import summarise, write

from pagraph.features import DiskFeature
from pagraph.graph.mapped import map_npy
from pagraph.system.disk import _reads
from pagraph.system.disk.queues import DEPTH, Requests
from pagraph.system.disk.ways import WAYS, rates_of, refusal
from pagraph.system.disk_reads import FileReader

SIZES = (512, 1 << 10, 4 << 10, 16 << 10, 64 << 10)
IN_ORDER = 128 << 10
BLOCK = 512


def kinds():
    """All pairs of way and direct that this system allows."""
    return [
        (way, direct)
        for direct in (True, False)
        for way, kind in WAYS.items()
        if kind.direct in (None, direct) and refusal(way) is None
    ]


def read_places(path, way, direct, depth, size, places):
    """Seconds of wall and of processor for requests of one size at these multiples of it."""
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        queue = WAYS[way](depth)
        block = BLOCK if direct else 1
        out = np.zeros((1, size), dtype=np.uint8)  # all rows go to the same place
        job = (descriptor, 0, size, size, block, block, out.ctypes.data, 0)
        requests = Requests.of(places, out, job, -1)
        cpu, begin = time.process_time(), time.perf_counter()
        queue.read(requests)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        error = int(requests.state[_reads.ERROR])
        if error:
            raise OSError(error, os.strerror(error), path)
        return seconds, cpu
    finally:
        os.close(descriptor)


def measure_requests(path, options):
    """One entry for each kind, size and depth, in turn."""
    generator = np.random.default_rng(0)
    nbytes = os.path.getsize(path)
    runs = defaultdict(list)
    for _ in range(options.repeats):
        for size in (*SIZES, IN_ORDER):
            count = (
                nbytes // 4 // size
                if size == IN_ORDER
                else min(options.reads, options.bytes // size)
            )
            for depth in options.depths if size != IN_ORDER else [DEPTH]:
                for way, direct in kinds():
                    places = np.arange(count)
                    if size != IN_ORDER:
                        places = np.sort(generator.choice(nbytes // size, count, replace=False))
                    make_cold(path)
                    figures = read_places(path, way, direct, depth, size, places)
                    runs[way, direct, size, depth].append((count, *figures))
    return [entry(*key, figures) for key, figures in runs.items()]


def entry(way, direct, size, depth, runs):
    seconds = summarise([run[1] for run in runs])
    count, median = runs[0][0], seconds["median"]
    found = {
        "way": way,
        "direct": direct,
        "bytes": size,
        "depth": depth,
        "in_order": size == IN_ORDER,
        "requests_per_second": count / median,
        "mb_per_second": count * size / median / 1e6,
        "cpu_us_per_request": summarise([run[2] / count * 1e6 for run in runs])["median"],
        "seconds": seconds,
    }
    print(
        f"{way:10s} {'direct' if direct else 'cached':6s} {size:6d} B, depth {depth}: "
        f"{found['requests_per_second']:8.0f}/s {found['mb_per_second']:6.0f} MB/s, "
        f"{found['cpu_us_per_request']:.1f} us of CPU a request",
        flush=True,
    )
    return found


def measure_rows(path, options):
    """Random rows of 1 KiB, by FileReader and by the mapping, in turn; all must read the same."""
    generator = np.random.default_rng(1)
    runs = defaultdict(list)
    tensor = map_npy(path, random_access=True)
    for _ in range(options.repeats):
        rows = np.sort(generator.choice(len(tensor), options.rows, replace=False))
        sums = set()
        for name in ("direct", "cached", "pages asked for"):
            out = torch.zeros(len(rows), tensor.shape[1])
            if name == "pages asked for":
                feature, ids = DiskFeature(tensor), torch.from_numpy(rows)
                make_cold(path, tensor)
                before, cpu, begin = disk_bytes(), time.process_time(), time.perf_counter()
                feature.read(ids, out)
            else:
                reader = FileReader.of(tensor, direct=name == "direct")
                reader.read(rows[:2], out.numpy())
                make_cold(path, tensor)
                before, cpu, begin = disk_bytes(), time.process_time(), time.perf_counter()
                reader.read(rows, out.numpy())
            seconds = time.perf_counter() - begin
            runs[name].append((seconds, time.process_time() - cpu, disk_bytes() - before))
            sums.add(float(out.double().sum()))
        if len(sums) != 1:
            raise RuntimeError(f"all must read the same values, got sums {sums}")
    result = {"rows": options.rows, "row_bytes": 1024}
    for name, figures in runs.items():
        seconds, cpu, read = (summarise(list(column)) for column in zip(*figures, strict=True))
        result[name] = {"seconds": seconds, "cpu_seconds": cpu, "read_bytes": read}
        print(
            f"rows, {name}: {seconds['median']:.3f} s, {cpu['median']:.3f} s of CPU, "
            f"{read['median'] / 1e6:.0f} MB"
        )
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-rows", type=int, default=1 << 21, help="of 1 KiB, in the file")
    parser.add_argument("--reads", type=int, default=8192, help="requests of a case, at most")
    parser.add_argument("--bytes", type=int, default=128 << 20, help="bytes of a case, at most")
    parser.add_argument(
        "--depths", type=lambda text: [int(n) for n in text.split(",")], default=[16, 64, 128, 256]
    )
    parser.add_argument("--rows", type=int, default=15_600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where the file is made; must be on a disk")
    options = parser.parse_args()
    result = {"settings": {key: value for key, value in vars(options).items() if key != "folder"}}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "rows.npy")
        write_features(path, options.num_rows, 256)
        for way, direct in kinds():  # compiles the kernels
            read_places(path, way, direct, 16, 4096, np.arange(64))
        descriptor = os.open(path, os.O_RDONLY)
        result["rates"] = rates_of(descriptor)._asdict()
        os.close(descriptor)
        result["rows"] = measure_rows(path, options)
        result["requests"] = measure_requests(path, options)
    write("disk_reads", result)


if __name__ == "__main__":
    main()
