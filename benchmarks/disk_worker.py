"""One loader's epochs over a graph on disk, as ``larger_than_memory.py`` has them measured in a
process of their own.

What is the same for every loader, pagraph's and its peers': the arguments, cold files, the clock,
the count of bytes, and what is told, a line of JSON for each event, so that a process that is ended
keeps what it had reached. Imports nothing of pagraph: GraphBolt runs in an environment without it.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
from cold_files import disk_bytes, make_folder_cold


def arguments(contenders):
    """The arguments of a worker: which contender, on which graph, with which batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=contenders)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--warm", type=Path, help="a small graph of the same form, read first: it loads the kernels"
    )
    parser.add_argument("--seeds", type=Path, help="a .npy file of vertex ids")
    parser.add_argument("--fanout", default="10,5", help="the last serves the seeds")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=1, help="only the first one begins cold")
    parser.add_argument("--features", action="store_true", help="read the rows too")
    parser.add_argument(
        "--seconds", type=float, default=300, help="after which an epoch is broken off"
    )
    parser.add_argument(
        "--loader", type=json.loads, default={}, help="JSON: arguments for pagraph's loader"
    )
    parser.add_argument(
        "--windows",
        type=int,
        nargs="*",
        default=[],
        help="batches in a window whose rows are counted",
    )
    options = parser.parse_args()
    options.hops = [int(count) for count in options.fanout.split(",")]
    return options


def say(**event):
    """Tell an event."""
    print(json.dumps(event), flush=True)


def anonymous_bytes():
    """Memory of this process that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell RssAnon")


def read_seeds(options):
    """Seeds of the run, int64."""
    return np.load(options.seeds).astype(np.int64)


def measure(contender, options):
    """Run one contender's epochs and tell what became of them.

    Args:
        contender: Called with a folder, seeds and the options: returns what can be iterated, once
            an epoch, over batches as (input vertices, edges, a sum over the rows' values).
        options: What :func:`arguments` returned.
    """
    warm_up = contender(options.warm, np.arange(3 * options.batch_size) % 1000, options)
    for _ in warm_up:
        pass
    del warm_up
    say(event="ready", base=anonymous_bytes())
    if options.seeds is None:
        return
    seeds = read_seeds(options)
    make_folder_cold(options.folder)
    before, begin = disk_bytes(), time.perf_counter()
    say(event="begin", at=begin)
    loader, total = None, Counter()
    for epoch in range(options.epochs):
        since = begin if epoch == 0 else time.perf_counter()
        loader = loader or contender(options.folder, seeds, options)
        for rows, edges, checksum in loader:
            now = time.perf_counter()
            total.update(batches=1, rows=rows, edges=edges, checksum=checksum)
            say(
                event="batch",
                epoch=epoch,
                seconds=now - since,
                read_bytes=disk_bytes() - before,
                **total,
            )
            if now - since > options.seconds:
                return
        say(event="epoch", epoch=epoch, at=time.perf_counter(), seconds=time.perf_counter() - since)
    for name, value in getattr(loader, "told", {}).items():
        say(event="told", name=name, value=value() if callable(value) else value)
