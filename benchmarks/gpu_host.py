"""What a batch for a device costs its host: Python calls, launches, and the interpreter's lock.
Needs no GPU.

The CPU stands in for the device (``HostAccelerator``; Triton's interpreter runs the kernels). A
small random graph, three hops, a field and a label, a cache of a fifth of the rows,
``transfer="zero-copy"``, which is what a GPU takes; "types": two vertex types with a field each,
three edge types and two hops; "trees in time": a tree for each seed, edges by their vertices'
times. By path:

- calls of pagraph's named functions a batch in the reader's thread, ``prefetch=0``, as
  ``per_batch.py`` counts them, and kernels that are launched one by one. What is recorded
  (``Accelerator.recorded``) is one replay on a GPU, so that nothing in it is counted;
- microseconds a batch for which the interpreter's lock is held: in the reader's thread, CPU time of
  ``next()`` with ``prefetch=0``, and by the loader's threads with ``prefetch=2``, as
  ``time_lock`` in ``per_batch_worker.py`` finds it. Replays and launches do nothing then: the
  interpreter's time says nothing about a GPU. So CUDA's own calls are in no figure.

Run: ``python benchmarks/gpu_host.py`` (about 5 minutes); ``--quick`` only shows that it runs.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is first imported

import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from contest import arguments, write
from per_batch_worker import WARM_UP, forever, time_lock
from report import summarise
from torch_geometric.data import Data, HeteroData

import pagraph
from pagraph.accelerator import HostAccelerator, triton_kernels
from pagraph.features.gpu.link import Link
from pagraph.pyg import NeighborLoader

FOLDER = os.path.dirname(pagraph.__file__) + os.sep
LAUNCH = triton_kernels.launch
LAUNCHES = "triton_kernels.py:launch"
KERNELS = ("gpu/kernels.py", "_gpu.py")
QUICK = {"batches": 3, "seconds": 0.1, "rounds": 1}
SHOWN = 12
"""Functions that ``--by-function`` lists of each path."""


class Counted(HostAccelerator):
    """Knows when a replay is under way, and can leave replays out.

    Attributes:
        is_replaying: Whether recorded work is being done again now.
        skips: Whether replays do nothing.
    """

    def __init__(self):
        super().__init__()
        self.is_replaying = False
        self.skips = False

    def recorded(self, work):
        again = super().recorded(work)

        def work_again():
            self.is_replaying = True
            try:
                again()
            finally:
                self.is_replaying = False

        def replay():
            if not self.skips:
                work_again()

        work_again()  # as CUDA does, which compiles the kernels before it captures them
        return replay


def made_data(vertices=256, edges=2560):
    rng = np.random.default_rng(0)
    edge_index = torch.from_numpy(rng.integers(0, vertices, (2, edges)))
    return Data(x=torch.rand(vertices, 16), y=torch.arange(vertices) % 7, edge_index=edge_index)


def made_types():
    """Buyers and goods: both ways between them, and among goods."""
    rng = np.random.default_rng(0)
    counts = {"buyer": 160, "good": 96}
    data = HeteroData()
    for name, count in counts.items():
        data[name].x = torch.rand(count, 16)
    data["buyer"].y = torch.arange(counts["buyer"]) % 7
    for src, name, dst in TYPES:
        ends = [torch.from_numpy(rng.integers(0, counts[of], 850)) for of in (src, dst)]
        data[src, name, dst].edge_index = torch.stack(ends)
    return data


def made_typed_loader(path, device, prefetch):
    data = made_types()
    if path.startswith("PyG"):
        return made_pyg_loader(data, path, device, prefetch)
    graph = pagraph.Graph.from_pyg(data)
    return pagraph.Loader(
        graph,
        {"buyer": torch.arange(160)},
        pagraph.NeighborSampler([4, 3]),
        fields={name: ["x"] for name in graph.node_types},
        labels={"buyer": ["y"]},
        prefetch=prefetch,
        **COMMON,
        **core_options(path, device),
    )


def core_options(path, device):
    """Options of the core loader by which it takes a path."""
    if path.endswith("on a CPU"):
        return {}
    there = {"device": device, "transfer": "zero-copy", "cache": 0.2, "cache_policy": "degree"}
    if path.endswith("device samples"):
        there["sampling_device"] = device
    return there


def made_graph(data):
    graph = pagraph.Graph.from_coo(*data.edge_index, data.num_nodes)
    graph.ndata["feat"] = data.x
    graph.ndata["label"] = data.y
    return graph


def made_loader(data, path, device, prefetch):
    if "types" in path:
        return made_typed_loader(path, device, prefetch)
    if path.startswith("PyG"):
        return made_pyg_loader(data, path, device, prefetch)
    graph = made_graph(data)
    return pagraph.Loader(
        graph,
        torch.arange(graph.num_nodes),
        pagraph.NeighborSampler([4, 3, 2]),
        fields=["feat"],
        labels=["label"],
        prefetch=prefetch,
        **COMMON,
        **core_options(path, device),
    )


def made_pyg_loader(data, path, device, prefetch):
    there = {}
    hops = [4, 3, 2]
    if isinstance(data, HeteroData):
        there["input_nodes"] = "buyer"
        hops = [4, 3]
    if "time" in path:
        data.time = torch.arange(data.num_nodes) % 50
        there["time_attr"] = "time"
    with ExitStack() as patches:
        if not path.endswith("on a CPU"):
            there |= {"device": "cpu", "cache": 0.2, "cache_policy": "degree"}
            # Its `device` is torch's, and it has no `transfer`.
            patches.enter_context(patch("pagraph.engine.engine.accelerator_for", lambda of: device))
            patches.enter_context(patch("pagraph.cache.fields.Link", zero_copy_link))
        return NeighborLoader(
            data,
            hops,
            prefetch=prefetch,
            sampling_device=device if path.endswith("device samples") else "cpu",
            **COMMON,
            **there,
        )


def zero_copy_link(accelerator, mode):
    return Link(accelerator, "zero-copy")


PATHS = (
    "core, device samples",
    "core, CPU samples",
    "core on a CPU",
    "PyG, device samples",
    "PyG, CPU samples",
    "PyG on a CPU",
    "core, types, device samples",
    "core, types, CPU samples",
    "core, types, on a CPU",
    "PyG, types, device samples",
    "PyG, types, CPU samples",
    "PyG, types, on a CPU",
    "PyG, trees in time, device samples",
    "PyG, trees in time, CPU samples",
)
COMMON = {"batch_size": 16, "shuffle": True, "seed": 0}
TYPES = (("buyer", "buys", "good"), ("good", "bought", "buyer"), ("good", "like", "good"))


def warmed_up(loader):
    batches = forever(loader)
    # More than one epoch: the cache is filled, fields have settled.
    for _ in range(len(loader) + WARM_UP):
        next(batches)
    return batches


def count(read, device, batches):
    """Calls a batch by function, and launches: medians of their sums, and one batch's functions."""
    runs = [_calls_of(lambda: next(read), device) for _ in range(batches)]
    return {
        "calls": statistics.median(run.total() for run in runs),
        "launches": statistics.median(run[LAUNCHES] for run in runs),
        "by_function": dict(runs[-1].most_common()),
    }


def _calls_of(work, device):
    counts = Counter()

    def seen(frame, event, argument):
        code = frame.f_code
        if event != "call" or device.is_replaying or code.co_name[0] == "<":
            return
        file = code.co_filename
        # The interpreter calls kernels for each of their programs.
        if file.startswith(FOLDER) and not file.endswith(KERNELS):
            counts[f"{Path(file).name}:{code.co_name}"] += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def skip_launches():
    """Make every launch do nothing, in all modules that launch."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pagraph") and getattr(module, "launch", None) is LAUNCH:
            module.launch = lambda *arguments, **constants: None


def time_reader(batches, most, seconds):
    """Median microseconds of CPU time in ``next()``."""
    runs = []
    end = time.perf_counter() + seconds
    while len(runs) < most and (time.perf_counter() < end or len(runs) < 5):
        begin = time.thread_time_ns()
        batch = next(batches)  # freed after the clock is read
        runs.append((time.thread_time_ns() - begin) * 1e-3)
        del batch
    return statistics.median(runs)


def main():
    options = arguments(__doc__, batches=400, seconds=2.0, quick=False, by_function=False)
    if options.quick:
        vars(options).update(QUICK)
    data = made_data()
    result = {}
    readers = {}
    for path in PATHS:
        # On a CPU the reader works for itself where that is faster.
        for prefetch in (0,) if path.endswith("on a CPU") else (0, 2):
            device = Counted()
            batches = warmed_up(made_loader(data, path, device, prefetch))
            if not prefetch:
                result[path] = count(batches, device, min(options.batches, 11))
            readers[path, prefetch] = batches
            device.skips = True
    skip_launches()
    microseconds = {key: [] for key in readers}
    for _ in range(options.rounds):
        for (path, prefetch), batches in readers.items():
            if prefetch:
                found = time_lock(batches, options.batches, options.seconds)["held"] * 1e3
            else:
                found = time_reader(batches, options.batches, options.seconds)
            microseconds[path, prefetch].append(found)
    print(f"{'':28s} calls  launches   us of next()   us held by threads (prefetch=2)")
    for path, row in result.items():
        shown = f"{path:28s} {row['calls']:5.0f} {row['launches']:9.0f}"
        for who, prefetch in (("reader", 0), ("threads", 2)):
            if (path, prefetch) in microseconds:
                summary = row[f"{who}_microseconds"] = summarise(microseconds[path, prefetch])
                shown += f"{summary['median']:15.0f}"
        print(shown)
        if options.by_function:
            for name, calls in list(row["by_function"].items())[:SHOWN]:
                print(f"    {calls:4d} {name}")
    for batches in readers.values():
        batches.close()
    if not options.quick:
        write("gpu_host", options, {"paths": result})


if __name__ == "__main__":
    main()
