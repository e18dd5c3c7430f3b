"""What a timeline costs: epochs without and with ``loader.trace()``, in turn, and the parts by
themselves.

Three epochs of one loader follow each other round after round: no trace; a trace; and again no
trace, whose distance from the first is the noise that the cost is to be seen against. Both the
clock's seconds and the processors' are taken: the latter hardly see what else runs. Writing the
file is timed apart. Off, all that remains of tracing are some looks at an attribute: too little to
be seen in an epoch, so they are timed by themselves.

Run: ``python benchmarks/timeline.py`` (about 2 minutes, 4 GiB of memory).
"""

import gc
import statistics
import tempfile
import time
from pathlib import Path

from contest import arguments, count_nodes, write
from dgl.dataloading import NeighborSampler
from report import summarise
from rmat_graph import generate, random_ids

import pagraph.dgl
from pagraph.stats import Tracer, read_trace
from pagraph.stats.trace import EpochTrace, Tracing

CASES = {"sampling": ("2,2", 100), "sampling_and_rows": ("15,10,5", 1000)}
"""Fan-out and batch size: batches as small as anyone trains with, where an event weighs most, and
usual ones."""


def main():
    options = arguments(__doc__, scale=20, edges=10_000_000, dim=128, seeds=100_000, workers=2)
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    result = {"parts": parts()}
    print(result["parts"])
    for name, (fanout, batch_size) in CASES.items():
        fields = ["feat"] if "rows" in name else []
        sampler = NeighborSampler([int(k) for k in fanout.split(",")], prefetch_node_feats=fields)
        loader = pagraph.dgl.DataLoader(
            graph, seeds, sampler, batch_size=batch_size, shuffle=True, num_workers=options.workers
        )
        result[name] = {"fanout": fanout, "batch_size": batch_size} | compare(
            loader, count_nodes(*fields), options
        )
        show(name, result[name])
    write("timeline", options, result)


def compare(loader, count, options):
    """Seconds an epoch off, on, and off again; what a trace holds."""
    seconds = {"off": [], "on": [], "off_again": []}
    cpu_seconds = {name: [] for name in seconds}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        for round_ in range(options.rounds + 1):
            for name, runs in seconds.items():
                tracer = loader.trace(path) if name == "on" else None
                took, cpu = epoch(loader, count)
                if tracer is not None:
                    begin = time.perf_counter()
                    tracer.stop()
                    writing = time.perf_counter() - begin
                if round_:
                    runs.append(took)
                    cpu_seconds[name].append(cpu)
        events = len(read_trace(path)["traceEvents"])
        size = path.stat().st_size
    batches = len(loader)
    return {
        "seconds": ratios(seconds),
        "cpu_seconds": ratios(cpu_seconds),
        "batches": batches,
        "lines_a_batch": events / batches,
        "bytes_a_batch": size / batches,
        "seconds_to_write": writing,
    }


def ratios(runs):
    """The runs' summaries, and of each round: on to the mean of both off, and one off to the
    other."""
    rounds = list(zip(*runs.values(), strict=True))
    return {name: summarise(of_name) for name, of_name in runs.items()} | {
        "on_to_off": summarise([on / statistics.mean((off, again)) for off, on, again in rounds]),
        "off_to_off": summarise([again / off for off, _, again in rounds]),
    }


def epoch(loader, count):
    begin, cpu = time.perf_counter(), time.process_time()
    for batch in loader:
        count(batch)
    return time.perf_counter() - begin, time.process_time() - cpu


def parts(repeats=200_000):
    """Nanoseconds of each hook, off and on, and bytes an event."""
    import tracemalloc

    tracing = Tracing()
    trace = EpochTrace(tracing, 0)
    result = {f"{name}_off_ns": each(hook, repeats) for name, hook in hooks(trace, tracing).items()}
    with tempfile.TemporaryDirectory() as folder:
        tracer = tracing.start(Tracer(Path(folder, "t.json"), max_events=10**8), "loader")
        result |= {
            f"{name}_on_ns": each(hook, repeats) for name, hook in hooks(trace, tracing).items()
        }
        tracemalloc.start()
        for _ in range(repeats):
            trace.asked(0, 1)
            begin = time.perf_counter_ns()
            tracer.add("sampling", begin, time.perf_counter_ns())
        result["span_bytes"] = tracemalloc.get_traced_memory()[0] / repeats
        tracemalloc.stop()
        tracer.stop()
    return result


def hooks(trace, tracing):
    """What the pipeline calls for: ticket and preparing; the queue's depth; a field's rows;
    ``next()``."""

    def span():
        begin = trace.begin(3)
        trace.end("preparing", begin)

    def answer():
        trace.asked(3, 1)
        trace.answered(1, 2, delivered=True)

    return {
        "span": span,
        "depth": lambda: trace.depth(1, 2),
        "read": lambda: tracing.read("feat", "host", 10, 3, 512, True, 1e-6),
        "next": answer,
    }


def each(hook, repeats):
    """Nanoseconds of the quickest tenth."""
    gc.collect()
    times = []
    for _ in range(10):
        begin = time.perf_counter_ns()
        for _ in range(repeats // 10):
            hook()
        times.append((time.perf_counter_ns() - begin) / (repeats // 10))
    return min(times)


def show(name, r):
    print(f"{name}: fan-out {r['fanout']}, batches of {r['batch_size']}")
    for kind in ("seconds", "cpu_seconds"):
        for key in ("off", "on", "off_again"):
            s = r[kind][key]
            print(f"  {key:10s} {s['median']:7.3f} {kind}  ({s['min']:.3f} to {s['max']:.3f})")
        print(
            f"  on to off {r[kind]['on_to_off']['median']:.3f}, off to off "
            f"{r[kind]['off_to_off']['median']:.3f}"
        )
    print(f"  {r['lines_a_batch']:.1f} lines and {r['bytes_a_batch']:,.0f} bytes a batch")
    print(f"  {r['seconds_to_write']:.2f} s to write", flush=True)


if __name__ == "__main__":
    main()
