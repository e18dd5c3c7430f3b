"""Everything that is promised of a GPU, measured: ``make gpu``.

Sections: the machine's ceilings and how near each way of loading comes to them, also with a table
of 16 GiB; the interpreter's time a batch; sampling on the device against the CPU; GraphSAGE trained
with batches that are all on the device already, with ours, and with other loaders; the whole step
as one CUDA graph, and compiled; epochs by size of the cache; by prefetch depth, transfer and
sampling device; a timeline of five steps. Figures go to ``results/gpu-<card>.json`` after every
section, whatever becomes of the next.

Run: ``python benchmarks/gpu.py`` (begins nothing after 8 minutes; 64 GiB of memory, 32 GiB on the
GPU), ``--quick`` for a smaller graph. ``--device interpreter`` runs all of it on the CPU, tiny and
with Triton's interpreter: that checks the code, and its figures mean nothing.
"""

import argparse
import gc
import importlib.util
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from gpu_report import AT_LEAST, AT_MOST, Report, card, settings
from report import RESULTS, summarise

INTERPRETER = "interpreter"
CACHES = (0, 0.05, 0.1, 0.2, 0.5, 1.0, "auto")


def roofline(work, section):
    """The ceilings, and each way of rows and neighbours as a share of its own."""
    figures = section.measure("roofline", ceilings, work, {}) or {}
    section.target("hits: share of the device's copy", 0.80, AT_LEAST, figures.get("hits"), "%")
    section.target("misses: share of the pinned copy", 0.85, AT_LEAST, figures.get("misses"), "%")
    section.target("look-up: share of the time of hits", 0.05, AT_MOST, figures.get("lookup"), "%")


def large_table(work, section):
    """Misses where the table is 16 GiB, whose random rows run the bus at a fraction of its rate."""
    figures = section.measure("roofline", ceilings, work, {"rows": 1 << 25}) or {}
    share = figures.get("misses")
    section.target("misses of 16 GiB: share of the pinned copy", 0.85, AT_LEAST, share, "%")


def ceilings(work, sizes):
    """What the device reaches, and what hits, misses and look-ups reach of it."""
    from gpu_roofline import (
        HITS,
        LOOKUP,
        MODES,
        TINY,
        RooflineSizes,
        measure_roofline,
        misses,
        print_table,
    )

    on_cpu = work.accelerator.device.type == "cpu"
    found = measure_roofline(work.accelerator, RooflineSizes(**(TINY if on_cpu else sizes)))
    print_table(found)
    rates = {rate.name: rate for rate in found.rates}
    ways = [rates[misses(mode)] for mode in MODES if misses(mode) in rates]
    return found.to_json() | {
        "hits": found.share(rates[HITS]),
        "misses": max(map(found.share, ways)),
        "lookup": rates[LOOKUP].median / rates[HITS].median,
    }


def host(work, section):
    """How long the interpreter is busy with a batch: CPU time in ``next()``, after a pause in which
    the device has made the batch. Where other threads make batches, their time is in
    "processor"."""
    ways = {
        "sampled": {"fields": [], "labels": [], "cache": 0},
        "sampled and read": {},
        "sampled on the CPU and read": {"sampling_device": "cpu"},
    }
    found = {name: section.measure(name, busy, work, options) for name, options in ways.items()}
    read = found["sampled and read"]
    milliseconds = read and read["milliseconds"]["median"]
    section.target("interpreter, ms a batch", 0.2, AT_MOST, milliseconds, "ms")


def busy(work, options):
    """Milliseconds of CPU time in ``next()``, of its wall time, and of CPU time of all threads,
    without the pauses."""
    loader = work.loader(**options)
    try:
        for _ in range(3):
            for _ in loader:
                pass
        found = [], [], []
        loader.set_epoch(1)
        batches = iter(loader)
        batch = next(batches)
        while batch is not None:
            pause(0.003)
            clocks = time.thread_time, time.perf_counter, time.process_time
            begun = [clock() for clock in clocks]
            batch = next(batches, None)
            spent = [clock() - begin for clock, begin in zip(clocks, begun, strict=True)]
            spent[2] += pause(0.003)  # threads may have begun another
            for runs, seconds in zip(found, spent, strict=True):
                runs.append(seconds * 1e3)
        placement = loader.sampling_placement
    finally:
        loader.close()
    # The last ends the epoch.
    return {
        "milliseconds": summarise(found[0][:-1]),
        "wall": summarise(found[1][:-1]),
        "processor": summarise(found[2][:-1]),
        "sampled": placement,
        "transfers": loader.transfers,
    }


def pause(seconds):
    """Be busy, as a training loop is: after a sleep a processor is slow. Returns the CPU seconds of
    other threads."""
    end = time.perf_counter() + seconds
    spent, own = time.process_time(), time.thread_time()
    while time.perf_counter() < end:
        pass
    return (time.process_time() - spent) - (time.thread_time() - own)


def sampling(work, section):
    """Edges per second through the loader, which reads no field: the CPU with one thread and with
    more, the device."""
    cores = len(os.sched_getaffinity(0))
    nothing = {"fields": [], "labels": [], "cache": 0}
    on_cpu = nothing | {"device": "cpu", "sampling_device": "cpu"}
    threads = sorted({1, max(1, cores // 4), max(1, cores // 2), cores})
    on_cpus = [
        section.measure(
            f"CPU, {count} threads",
            edges_per_second,
            work,
            on_cpu | {"num_workers": count, "prefetch": count},
        )
        for count in threads
    ]
    on_device = section.measure("device", edges_per_second, work, nothing | {"prefetch": 4})
    pinned = nothing | {"prefetch": 4, "sampling_budget": 0}
    section.measure("device, graph in pinned memory", edges_per_second, work, pinned)
    best = max((figures["edges_per_second"] for figures in on_cpus if figures), default=None)
    times = on_device["edges_per_second"] / best if best and on_device else None
    section.target("sampling: times the best number of CPU threads", 10, AT_LEAST, times, "x")


def edges_per_second(work, options):
    """Of epoch 1, the median of the rounds."""
    loader = work.loader(**options)
    try:
        # A recorded launch is learned from the first batches.
        work.seconds(lambda: [None for _ in loader])
        runs = []
        for _ in range(work.sizes.rounds):
            loader.set_epoch(1)
            runs.append(work.seconds(lambda: [None for _ in loader]))
        edges = loader.stats.epochs[-1].counts["edges"]
    finally:
        loader.close()
    return {
        "edges": edges,
        "seconds": summarise(runs),
        "edges_per_second": edges / statistics.median(runs),
    }


def training(work, section):
    """The same epoch without loading, with ours, and with others' loaders, in turn."""
    from gpu_baselines import baselines, plain_loop

    section.measure("batches on the device", lambda: len(work.resident))
    section.measure("warming up", work.train_resident)
    ours = section.measure("cache of 20 %, against batches on the device", in_turn, work, {})
    times = ours and ours["times_resident"]
    section.target("epoch: times that of batches on the device", 1.05, AT_MOST, times, "x")
    work.forget_resident()
    found, missing = baselines(work)
    for name, reason in missing.items():
        section.leave_out(name, reason)
    seconds = {
        name: section.measure(name, baseline, work, batches) for name, batches in found.items()
    }
    section.measure("plain loop", baseline, work, plain_loop(work))
    name = next(iter(found), None)
    theirs = seconds.get(name)
    note = f"against {name}" if name else "; ".join(missing.values())
    ready = ours and theirs
    times = theirs / ours["seconds"]["median"] if ready else None
    section.target("epoch: times as fast as the other loader's", 10, AT_LEAST, times, "x", note)
    less = loading_reduced(theirs, ours) if ready else None
    section.target("loading: reduced against the other loader's", 0.97, AT_LEAST, less, "%", note)


def in_turn(work, options):
    """Our epoch and the one without loading, round by round."""
    loader = work.loader(**options)
    try:
        work.warm_up(loader)
        rounds = [(work.train_resident(), work.train(loader)) for _ in range(work.sizes.rounds)]
        figures = about(loader)
    finally:
        loader.close()
    resident, seconds = zip(*rounds, strict=True)
    return {
        "seconds": summarise(list(seconds)),
        "resident": summarise(list(resident)),
        "times_resident": statistics.median(s / r for r, s in rounds),
    } | figures


def whole_step(work, section):
    """Epochs of fixed shapes, the step as it is and as one CUDA graph, against the step as it is on
    batches that are on the device already."""
    from gpu_workload import Trainer

    from pagraph import WholeStep

    rounds = range(max(3, work.sizes.rounds))
    work.train_resident()
    resident = section.measure(
        "batches on the device", lambda: summarise([work.train_resident() for _ in rounds])
    )
    fixed = {"shapes": "fixed"}
    for name, wrapped in (("fixed shapes", lambda step: step), ("recorded", WholeStep)):
        trainer = Trainer(work.accelerator.device, work.sizes, capturable=True)
        found = section.measure(name, steps, work, fixed, wrapped(trainer.step), iter)
    times = found["seconds"]["median"] / resident["median"] if found and resident else None
    section.target("whole step: times eager, on the device", 0.45, AT_MOST, times, "x")


def compiled(work, section):
    """Epochs with ``torch.compile(dynamic=True)``, a second baseline of the step."""
    from gpu_workload import Trainer, ours

    trainer = Trainer(work.accelerator.device, work.sizes)
    # Inductor's code for a CPU says nothing of a GPU, and its C++ takes a minute to compile.
    backend = "inductor" if work.accelerator.device.type == "cuda" else "aot_eager"
    trainer.model = torch.compile(trainer.model, dynamic=True, backend=backend)
    section.measure("ours", steps, work, {}, trainer.step_of, ours)
    section.measure("batches on the device", steps_resident, work, trainer)


def steps_resident(work, trainer):
    from gpu_workload import ours

    runs = [work.seconds(lambda: trainer.epoch(ours(work.resident))) for _ in range(3)]
    return summarise([seconds * work.sizes.steps / len(work.resident) for seconds in runs])


def steps(work, options, step, batches_of):
    """Seconds of epoch 1, each batch handed to the step."""
    loader = work.loader(**options)

    def epoch():
        loader.set_epoch(1)
        for batch in batches_of(loader):
            step(batch)

    try:
        for _ in range(2):
            epoch()
        runs = [work.seconds(epoch) for _ in range(max(3, work.sizes.rounds))]
        return {"seconds": summarise(runs), "envelope": str(getattr(loader, "envelope", None))}
    finally:
        loader.close()


def baseline(work, batches):
    """Seconds of another loader's epoch, once: it takes far longer, and compiles nothing."""
    return work.seconds(lambda: work.trainer.epoch(batches()))


def loading_reduced(theirs, ours):
    """By which share what an epoch takes beyond computing is less with ours."""
    computing = ours["resident"]["median"]
    return 1 - max(0.0, ours["seconds"]["median"] - computing) / max(theirs - computing, 1e-9)


def caches(work, section):
    """Epochs over the size of the cache."""
    for cache in CACHES:
        name = cache if isinstance(cache, str) else f"{cache:.0%}"
        section.measure(name, epochs, work, {"cache": cache})


def options(work, section):
    """Epochs over how far ahead batches are made and by how many threads, how rows come, where
    neighbours are drawn."""
    cores = len(os.sched_getaffinity(0))
    for prefetch in (0, 1, 2, 4):
        section.measure(f"prefetch {prefetch}", epochs, work, {"prefetch": prefetch})
    for threads in (1, 2, 4):
        section.measure(f"threads {threads}", epochs, work, {"num_workers": threads})
    for transfer in ("zero-copy", "staging", "auto"):
        section.measure(f"{transfer}, no cache", epochs, work, {"transfer": transfer, "cache": 0})
    for name, ways in (
        ("sampling on the device", {}),
        ("sampling on the device, graph in pinned memory", {"sampling_budget": 0}),
        ("sampling on the CPU", {"sampling_device": "cpu"}),
        (
            f"sampling on the CPU, {cores} threads",
            {"sampling_device": "cpu", "num_workers": cores, "prefetch": cores},
        ),
    ):
        section.measure(name, epochs, work, ways)


def epochs(work, settings):
    """Our epochs with these options, after one that compiles, measures and fills."""
    begin = time.perf_counter()
    loader = work.loader(**settings)
    try:
        work.warm_up(loader)
        prepared = time.perf_counter() - begin
        runs = [work.train(loader) for _ in range(work.sizes.rounds)]
        figures = {
            "median": statistics.median(runs),
            "seconds": summarise(runs),
            "preparing": prepared,
        } | about(loader)
    finally:
        loader.close()
    work.accelerator.release_memory()
    return figures


def about(loader):
    """What a loader says of its last epoch and of itself."""
    loader.stats.settle()
    stats = loader.stats.epochs[-1]
    return {
        "hit_rate": stats.hit_rate,
        "waiting": stats.loading_seconds,
        "device_waiting": stats.device_seconds.get("waiting"),
        "stages": dict(stats.seconds),
        "device_stages": dict(stats.device_seconds),
        "transfers": loader.transfers,
        "sampled": loader.sampling_placement,
        "plan": repr(loader.cache_plan),
    }


def timelines(work, section):
    """Traces of five steps."""
    from gpu_timeline import timeline

    report = section.report
    with tempfile.TemporaryDirectory() as folder:
        for name, prefetch in (("overlap", 2), ("serial", 0)):
            path = Path(report.folder or folder) / f"{report.name}-{name}.json.gz"
            section.measure(name, timeline, work, prefetch, path)


TRAINING = {"training", "whole_step", "compiled", "caches", "options", "timelines"}
SECTIONS = {
    "roofline": roofline,
    "large_table": large_table,
    "host": host,
    "sampling": sampling,
    "training": training,
    "whole_step": whole_step,
    "compiled": compiled,
    "caches": caches,
    "options": options,
    "timelines": timelines,
}


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help=f"cuda[:N] or {INTERPRETER} [cuda]")
    parser.add_argument("--quick", action="store_true", help="a graph of scale 20, short epochs")
    parser.add_argument("--scale", type=int, help="base-2 logarithm of the vertices [22]")
    parser.add_argument("--batch-size", type=int, help="seeds a batch [1024]")
    parser.add_argument("--steps", type=int, help="batches an epoch [200]")
    parser.add_argument("--rounds", type=int, help="timed epochs [3]")
    parser.add_argument(
        "--section", action="append", choices=SECTIONS, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="nothing is begun after that [8]"
    )
    parser.add_argument("--results", type=Path, help="folder for the results [benchmarks/results]")
    return parser.parse_args()


def accelerator_of(device):
    """The accelerator; ends the process with one line where there is none."""
    if device == INTERPRETER:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
        from pagraph.accelerator import HostAccelerator

        return HostAccelerator()
    if not re.fullmatch("cuda(:[0-9]+)?", device):
        sys.exit(f"--device must be cuda, cuda:N or {INTERPRETER}, got {device!r}")
    from pagraph.accelerator import accelerator_for
    from pagraph.accelerator.cuda import resolve_device

    try:
        return accelerator_for(resolve_device(device))
    except ValueError as error:
        sys.exit(str(error))


def sizes_of(given):
    """The sizes that the command line asks for."""
    from gpu_workload import FULL, QUICK, TINY

    base = TINY if given.device == INTERPRETER else QUICK if given.quick else FULL
    return replace(
        base,
        **{
            k: v
            for k in ("scale", "batch_size", "steps", "rounds")
            if (v := getattr(given, k)) is not None
        },
    )


def main():
    given = arguments()
    accelerator = accelerator_of(given.device)
    from gpu_workload import Workload

    sizes = sizes_of(given)
    name, about = card(accelerator)
    folder = given.results or (None if given.device == INTERPRETER else RESULTS)
    deadline = time.monotonic() + 60 * given.minutes
    report = Report(f"gpu-{name}", folder, {"card": about, "sizes": settings(sizes)}, deadline)
    work = Workload(accelerator, sizes)
    trains = importlib.util.find_spec("torch_geometric") is not None
    for section in given.section or SECTIONS:
        if not trains and section in TRAINING:
            report.left_out[section] = "torch_geometric is not installed"
            continue
        begin = time.perf_counter()
        SECTIONS[section](work, report.section(section))
        print(f"({section}: {time.perf_counter() - begin:.1f} s)")
        gc.collect()
        report.write()
    print(
        "",
        report.table(),
        *(f"left out: {what}: {why}" for what, why in report.left_out.items()),
        sep="\n",
    )
    if report.failures:
        sys.exit("\n".join(["", f"{len(report.failures)} failed:", *report.failures]))


if __name__ == "__main__":
    main()
