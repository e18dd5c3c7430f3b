"""How much of a loader's work the training loop's own thread does, with ``TensorFrame``s on every
vertex and a ``transform`` that takes 20 ms of a processor.

A graph of users and items, as RelBench's are, with numerical, categorical, timestamp, embedding and
multicategorical columns. The step is a sleep of 30 ms, as of a device that computes. Work is
processor time: of the loop's thread inside ``next()``, and of the whole process and its children
less the loop's own, so that other programs on the machine change it little. PyG's loader has our
sampler, as neither pyg-lib nor torch-sparse is needed then; all else, processes, shared memory and
indexing, is its own. Rounds go in turn.

Run: ``python benchmarks/transform_ahead.py`` (about 2 minutes, 3 GiB; needs pytorch-frame).
"""

import argparse
import gc
import resource
import time

import torch
import torch_frame
from report import summarise, write
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import NeighborLoader, NeighborSampler

FANOUT = [10, 10]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="Name of the one loader to measure.")
    options = parser.parse_args()
    # One thread for torch's functions: each thread's processor time is then its own work.
    torch.set_num_threads(1)
    data = graph(options.users)
    seeds = torch.arange(options.batches * options.batch_size)
    common = {"batch_size": options.batch_size, "shuffle": True, "transform": busy}
    input_nodes = ("user", seeds)
    loaders = {
        "pagraph": NeighborLoader(
            data, FANOUT, input_nodes, num_workers=options.workers, seed=0, **common
        ),
        "pagraph, num_workers=0": NeighborLoader(data, FANOUT, input_nodes, seed=0, **common),
        "PyG": NodeLoader(
            data,
            NeighborSampler(data, FANOUT),
            input_nodes=input_nodes,
            num_workers=options.workers,
            **common,
        ),
        "PyG, num_workers=0": NodeLoader(
            data, NeighborSampler(data, FANOUT), input_nodes=input_nodes, **common
        ),
    }
    if options.only:
        loaders = {options.only: loaders[options.only]}
    runs = {name: [] for name in loaders}
    for round_ in range(options.rounds + 1):
        for name, loader in loaders.items():
            figures = epoch(loader)
            if round_:  # The first one compiles, and finds out what is in the data.
                runs[name].append(figures)
    result = {}
    for name, figures in runs.items():
        result[name] = {
            figure: summarise([one[figure] for one in figures]) for figure in figures[0]
        }
        medians = {figure: round(found["median"], 4) for figure, found in result[name].items()}
        print(f"{name}: {medians}")
    if not options.only:
        write("transform_ahead", {"options": vars(options)} | result)


def graph(users):
    """Users and items, ten purchases each; the frames' parts as RelBench makes them of tables."""
    items = users // 2
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    for ntype, count in (("user", users), ("item", items)):
        data[ntype].tf = frame(count, generator)
    ends = torch.stack(
        [
            torch.randint(users, (10 * users,), generator=generator),
            torch.randint(items, (10 * users,), generator=generator),
        ]
    )
    data["user", "buys", "item"].edge_index = ends
    data["item", "bought_by", "user"].edge_index = ends.flip(0)
    return data


def frame(count, generator):
    """A frame with 8 numbers, 8 categories, 2 times, a text of 300 numbers, a list a row."""
    stype = torch_frame.stype
    lengths = torch.randint(5, (count,), generator=generator)
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    values = torch.randint(50, (int(offset[-1]),), generator=generator)
    embedding = torch.randn(count, 300, generator=generator)
    features = {
        stype.numerical: torch.randn(count, 8, generator=generator),
        stype.categorical: torch.randint(20, (count, 8), generator=generator),
        stype.timestamp: torch.randint(60, (count, 2, 7), generator=generator),
        stype.embedding: MultiEmbeddingTensor.from_tensor_list([embedding]),
        stype.multicategorical: MultiNestedTensor(count, 1, values, offset),
    }
    widths = dict(zip(features, (8, 8, 2, 1, 1), strict=True))
    names = {part: [f"{part.value}{i}" for i in range(widths[part])] for part in features}
    return torch_frame.TensorFrame(features, names)


def busy(batch):
    """A transform that computes for 20 ms, in functions that let other threads run."""
    end = time.thread_time() + 0.02
    x = torch.rand(50_000)
    while time.thread_time() < end:
        x = x.sqrt()
    batch.computed = x
    return batch


def epoch(loader):
    """Processor seconds of one epoch by who spent them, and the loop's wall time."""
    gc.collect()
    began = time.perf_counter()
    cpu = processor_seconds()
    in_loop = waited = 0.0
    batches = 0
    iterator = iter(loader)
    started = time.perf_counter() - began
    while True:
        begin = time.perf_counter()
        own = time.thread_time()
        batch = next(iterator, None)
        in_loop += time.thread_time() - own
        waited += time.perf_counter() - begin
        if batch is None:
            break
        batches += 1
        del batch
        time.sleep(0.03)
    del iterator  # Processes count once they have ended.
    seconds = time.perf_counter() - began
    work = processor_seconds() - cpu
    return {
        "share_in_loop": in_loop / work,
        "loop_ms_a_batch": in_loop / batches * 1e3,
        "work_ms_a_batch": work / batches * 1e3,
        "waited_ms_a_batch": waited / batches * 1e3,
        "starting_seconds": started,
        "seconds": seconds,
    }


def processor_seconds():
    """Processor time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
