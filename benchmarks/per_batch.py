"""What one batch costs: calls of Python functions, milliseconds, and the interpreter's lock; ours,
the peers', before.

Four tables; homogeneous RMAT graph, fan-out 10,5, one field of 64 float32, CPU:

- calls of Python functions a batch, in the reader's thread, with one field and one label; and of
  one uncached read;
- milliseconds a batch of 1 to 1024 seeds, in the reader's thread and with 1 and 2 threads, against
  DGL's loader with 0 workers, and PyG's with 0 workers where pyg-lib or torch-sparse is installed;
- the same of ours where a second field, as wide, is written after each batch, as node memories are;
- milliseconds a batch for which our threads keep the main thread from running Python, see
  ``time_lock`` in ``per_batch_worker.py``; the estimate is checked by a thread that is known to
  hold the lock for 1 ms.

Each checkout runs in processes of its own, one in each setting of ``OMP_WAIT_POLICY``
(``sides.py``), which wait while another one measures; all contenders take turns, round after round,
after one that is not counted. Milliseconds a batch are those of a contender's faster setting; calls
and the lock, for which there is no peer, are measured in the default. A ratio is the median of the
rounds' ratios.

Run: ``python benchmarks/per_batch.py`` (about 12 minutes, 6 GiB of memory); with
``--baseline ../before``, another checkout, twice as long: its figures are then in the column
"before". ``--quick`` only shows that everything runs.
"""

from contextlib import ExitStack
from pathlib import Path

from contest import arguments, write
from report import counted, revision, summarise
from sides import Sides

import pagraph

FACES = {"core": "dgl's", "dgl": "dgl's", "pyg": "pyg's"}
"""Ours, and the peer of each."""
SEEDS = (1, 16, 128, 1024)
LOCK_SEEDS = (16, 1024)
THREADS = (0, 1, 2)
QUICK = {"scale": 12, "edges": 20_000, "batches": 16, "seconds": 0.1, "rounds": 1}


def opened(folder, options):
    """A checkout's processes, and what they tell of themselves."""
    names = ("scale", "edges", "dim", "fanout", "batches")
    sizes = {name: getattr(options, name) for name in names}
    sides = Sides("per_batch_worker:Loaders", [folder], **sizes)
    versions = sides.ask("versions")["default"]
    found = Path(versions.pop("pagraph"))
    if not found.is_relative_to(folder):
        raise RuntimeError(f"pagraph of {folder} expected, got {found}")
    return sides, versions


def count_calls(checkouts, batches):
    """Median calls a batch, by face, and of one read; then by checkout."""
    asked = {face: ("calls", face) for face in FACES} | {
        "one uncached read": ("read_calls", "core")
    }
    result = {}
    for name, (measure, face) in asked.items():
        request = {"loader": face, "seeds": 16, "batches": batches}
        counts = {
            of: sides.by_setting["default"].ask(measure, **request)
            for of, sides in checkouts.items()
        }
        result[name] = {
            of: {
                kind: summarise([calls[kind] for calls in of_batch])["median"]
                for kind in ("named", "all")
            }
            for of, of_batch in counts.items()
        }
    return result


def in_turn(contenders, rounds):
    """Runs of every contender, round after round; the first round is not kept."""
    runs = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name, measure in contenders.items():
            figure = measure()
            if round_:
                runs[name].append(figure)
    return runs


def time_batches(checkouts, options, peers):
    """Milliseconds a batch: seeds, then face and threads, then contender."""
    request = {"batches": options.batches, "seconds": options.seconds}
    result = {}
    for seeds in SEEDS:

        def measure(sides, loader, workers=0, seeds=seeds):
            return lambda: sides.ask("time", loader=loader, seeds=seeds, workers=workers, **request)

        contenders = {(peer, 0, peer): measure(checkouts["now"], peer) for peer in peers}
        contenders |= {
            (face, threads, of): measure(sides, face, threads)
            for threads in THREADS
            for face in FACES
            for of, sides in checkouts.items()
        }
        runs = in_turn(contenders, options.rounds)
        figures = {name: counted(summarise_each(of_name)) for name, of_name in runs.items()}
        theirs = {peer: figures[peer, 0, peer] for peer in peers}
        result[str(seeds)] = theirs | {
            name_of(face, threads): compare(
                {of: figures[face, threads, of] for of in checkouts}, theirs, FACES[face]
            )
            for face in FACES
            for threads in THREADS
        }
        show_times(seeds, result[str(seeds)], peers)
    return result


def compare(ours, theirs, peer):
    """The figures, and how many times as fast as each peer and as before."""
    result = dict(ours)
    rivals = {name: figures for name, figures in theirs.items() if name in (peer, "dgl's")}
    for name, figures in rivals.items():
        result[f"times_as_fast_as_{name}"] = ratio(figures, ours["now"])
    if "before" in ours:
        result["times_as_fast_as_before"] = ratio(ours["before"], ours["now"])
    return result


def ratio(others, ours):
    rounds = zip(others["runs"], ours["runs"], strict=True)
    return summarise([other / own for other, own in rounds])["median"]


def time_written(checkouts, options):
    """Milliseconds a batch with a field that each step writes, by seeds, face and threads."""
    result = {}
    limits = {"batches": options.batches, "seconds": options.seconds}
    print("\nms a batch with a field that is written in every step")
    for seeds, face, threads in [(s, f, n) for s in LOCK_SEEDS for f in FACES for n in THREADS]:
        request = {"loader": face, "seeds": seeds, "workers": threads, **limits}
        runs = in_turn(
            {
                of: lambda sides=sides, request=request: sides.ask("time_written", **request)
                for of, sides in checkouts.items()
            },
            options.rounds,
        )
        ours = {of: counted(summarise_each(of_name)) for of, of_name in runs.items()}
        name = f"{name_of(face, threads)}, {seeds} seeds"
        result[name] = compare(ours, {}, FACES[face])
        times = "   ".join(f"{of} {figures['median']:7.3f}" for of, figures in ours.items())
        print(f"  {name:32s} {times}   {result[name].get('times_as_fast_as_before', 1):.2f} x")
    return result


def time_lock(checkouts, options):
    """Milliseconds a batch for which our threads hold up the main thread, by seeds, face and
    threads."""
    result = {}
    cases = [(seeds, face, n) for seeds in LOCK_SEEDS for face in FACES for n in THREADS[1:]]
    limits = {"batches": options.batches, "seconds": 4 * options.seconds}
    processes = {of: sides.by_setting["default"] for of, sides in checkouts.items()}
    held = in_turn(
        {0: lambda: processes["now"].ask("check_lock", held=1e-3, **limits)}, options.rounds
    )[0]
    result["a thread that holds it for 1 ms"] = {"now": summarise_each(held)}
    for seeds, face, threads in cases:
        request = {"loader": face, "seeds": seeds, "workers": threads, **limits}
        runs = in_turn(
            {
                of: lambda process=process, request=request: process.ask("lock", **request)
                for of, process in processes.items()
            },
            options.rounds,
        )
        row = {of: summarise_each(of_checkout) for of, of_checkout in runs.items()}
        if "before" in row:
            row["share_of_before"] = row["now"]["held"]["median"] / row["before"]["held"]["median"]
        result[f"{name_of(face, threads)}, {seeds} seeds"] = row
    return result


def summarise_each(runs):
    """Summaries by name of runs that are figures by name."""
    return {name: summarise([run[name] for run in runs]) for name in runs[0]}


def name_of(face, threads):
    return f"{face}, {('no thread', '1 thread', '2 threads')[threads]}"


def show_calls(result):
    print("\ncalls of Python functions a batch: named functions of pagraph's files (all)")
    for name, row in result.items():
        print(
            f"  {name:20s}",
            "   ".join(f"{of} {r['named']:.0f} ({r['all']:.0f})" for of, r in row.items()),
        )


def show_times(seeds, result, peers):
    print(
        f"\nms a batch of {seeds} seeds:",
        *(f"  {peer} {result[peer]['median']:.3f}" for peer in peers),
    )
    for name, row in result.items():
        if name not in peers:
            times = "   ".join(
                f"{of} {row[of]['median']:7.3f}" for of in ("now", "before") if of in row
            )
            ratios = "   ".join(
                f"{key[14:]} {row[key]:.2f} x" for key in row if key.startswith("times_")
            )
            print(f"  {name:20s} {times}   {ratios}", flush=True)


def show_lock(result):
    print("\nms a batch that loader threads hold up the main thread: held, slowed; next() itself")
    for name, row in result.items():
        for of in ("now", "before"):
            if of in row:
                held, slowed, took = (row[of][key]["median"] for key in ("held", "slowed", "next"))
                print(f"  {name:32s} {of:6s} {held:7.3f} {slowed:7.3f}   {took:7.3f}")


def main():
    options = arguments(
        __doc__,
        scale=18,
        edges=2_500_000,
        dim=64,
        fanout="10,5",
        batches=500,
        seconds=0.5,
        baseline="",
        quick=False,
    )
    if options.quick:
        vars(options).update(QUICK)
    folders = {"now": Path(pagraph.__file__).parents[1]}
    if options.baseline:
        folders["before"] = Path(options.baseline).resolve()
    with ExitStack() as stack:
        checkouts = {}
        versions = {}
        for of, folder in folders.items():
            sides, versions[of] = opened(folder, options)
            checkouts[of] = stack.enter_context(sides)
        result = measured(checkouts, versions["now"], options)
    if not options.quick:
        revisions = {of: revision(folder) for of, folder in folders.items()}
        del options.baseline  # a path of this machine
        write("per_batch", options, {"revisions": revisions} | result)


def measured(checkouts, versions, options):
    """All four tables."""
    peers = ["dgl's", "pyg's"] if versions["pygs_backend"] else ["dgl's"]
    if "pyg's" not in peers:
        print("PyG's own loader is left out: neither pyg-lib nor torch-sparse is installed")
    result = {**versions, "calls": count_calls(checkouts, batches=11)}
    show_calls(result["calls"])
    result["milliseconds"] = time_batches(checkouts, options, peers)
    result["written_milliseconds"] = time_written(checkouts, options)
    result["lock_milliseconds"] = time_lock(checkouts, options)
    show_lock(result["lock_milliseconds"])
    return result


if __name__ == "__main__":
    main()
