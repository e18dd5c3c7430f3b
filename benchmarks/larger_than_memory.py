"""Graphs larger than memory: sampling and rows from disk under a limit of memory, against the peers
and the disk.

Each run is a process of its own in a control group of memory (version 1 or 2, see
``memory_group.py``; where none can be made the result says why, and nothing is limited), with the
files out of the page cache. Contenders run in turn, the same seeds each; those that take over 100
seconds run once, and after 300 seconds a run is broken off: its rate so far counts. Bytes read are
those of the process (``/proc/self/io``), peaks those of the group, page cache included; queue depth
and size of requests are the disk's. The limit is 5/4 of the memory that the loader is given, and
that is an eighth of the features beside the contender's interpreter, measured before; with
``--all-in`` the interpreter is part of it. Rows:

- sampling: 20 batches of 1000 seeds, fan-out 10,5, from a mapped structure; against the pages that
  the picks lie on;
- features: sampling and rows of 8 times the memory; pagraph, the checkout before (``--before``),
  DGL's and PyG's loaders over ``numpy.memmap`` (PyG's with ``--pyg-lib``), GraphBolt
  (``--graphbolt``, see ``graphbolt_worker.py``); with the disk's own rate at requests of the same
  size, measured after each run (``disk_rate.py``);
- rows: bytes read over those of the distinct rows of each window of batches, as written and after
  ``pagraph reorder``;
- billion: the verbs on one large graph;
- in_memory: ``dgl_loader.py``, ``pyg_loader.py`` and ``per_batch.py`` here and in the checkout
  before, in turn.

``OMP_WAIT_POLICY`` is as users have it, for all contenders: the disk decides here, and no model
computes.

Run: ``python benchmarks/larger_than_memory.py`` (some minutes, 1 GB of disk), or with ``--large``
the sizes of the documentation (hours, 40 GB). Run again, it goes on where it was broken off, for
``--minutes`` each time.
"""

import argparse
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from disk_runs import CHECKOUT, LARGE, OVER, QUICK, Bench, Contender, OutOfTimeError, told
from disk_verbs import billion, in_memory, reordered
from memory_group import NoGroupError, find_hierarchy
from report import summarise, write

AHEAD = 8
"""Batches in a window whose rows are counted."""


def contenders(options, *, features):
    """Who runs: pagraph, the checkout before it, and the peers that are there."""
    found = [Contender("pagraph", loader={"memory": "fill in"})]
    if options.before:
        paths = (str(options.before),)
        found.append(Contender("before", paths=paths, loader={"cache": 0} if features else {}))
        if features:
            found.append(Contender("before, its cache", paths=paths))
    if features:
        found.append(Contender("dgl", kind="dgl"))
        if options.pyg_lib:
            found.append(Contender("pyg", kind="pyg", paths=(str(CHECKOUT), str(options.pyg_lib))))
    if options.graphbolt:
        found.append(
            Contender("graphbolt", kind="graphbolt", python=str(options.graphbolt), paths=())
        )
    return found


def rounds(bench, row, entrants, **settings):
    """Every contender's runs, in turn; name to a list."""
    runs = {contender.name: [] for contender in entrants}
    for number in range(bench.settings.rounds):
        for contender in entrants[:: -1 if number % 2 else 1]:
            earlier = runs[contender.name]
            if earlier and (
                earlier[0]["seconds"] > bench.settings.slow or earlier[0]["out_of_memory"]
            ):
                continue
            done = bench.step(
                f"{row}/{contender.name}/{number}", bench.measure, contender, **settings
            )
            earlier.append(done)
    sums = {
        run["checksum"]
        for name, of_name in runs.items()
        for run in of_name
        if name.startswith(("pagraph", "before")) and run["epochs"]
    }
    if len(sums) > 1:
        raise RuntimeError(
            f"{row}: with and without look-ahead the same values must be read, got sums {sums}"
        )
    return runs


def figures(runs, batches):
    """A contender's runs in short."""
    complete = [run for run in runs if run["epochs"]]
    result = {
        "seconds": summarise([run["seconds"] for run in runs]),
        "complete": len(complete),
        "batches": [run["batches"] for run in runs],
        "out_of_memory": any(run["out_of_memory"] for run in runs),
        "memory": runs[0]["memory"],
        "limit": runs[0]["limit"],
        "loader": runs[0]["loader"],
    }
    if runs[0]["limit"]:
        result["peak"] = max(run["peak"] for run in runs)
    having = [run for run in runs if run["batches"]]
    if having:
        result["rows"] = statistics.median(run["rows"] * batches / run["batches"] for run in having)
        result["rows_per_second"] = statistics.median(run["rows"] / run["so_far"] for run in having)
        result["read_bytes"] = statistics.median(
            run["read_bytes"] * batches / run["batches"] for run in having
        )
        result["first_batch"] = statistics.median(run["first_batch"] for run in having)
    later = [run["epochs"][1] for run in complete if len(run["epochs"]) > 1]
    if later:
        result["second_epoch"] = statistics.median(later)
    shares = [shares_of(run) for run in having]
    for name in shares[0] if shares else ():
        result[name] = statistics.median(share[name] for share in shares)
    return result


def shares_of(run):
    """How much of the disk's own rate at requests of the same size a run reached."""
    disk, own = run["disk"], run["own_rate"]
    busy, seconds = max(disk["busy_seconds"], 1e-3), max(disk["seconds"], 1e-3)
    return {
        "request_bytes": disk["request_bytes"],
        "own_bytes_per_second": own["bytes"],
        "share_of_own_rate": disk["bytes"] / seconds / own["bytes"],
        "share_while_disk_is_busy": disk["bytes"] / busy / own["bytes"],
        "depth": disk["depth"],
    }


def sampling(bench, options):
    """Picks from a mapped structure that does not fit."""
    settings, batches = bench.settings, 20
    folder = bench.graph(settings.structure_scale)
    structure = sum(path.stat().st_size for path in folder.glob("edge-*.npy"))
    seeds = bench.seeds(folder, batches)
    count = Contender("count", kind="pages")
    needed = bench.step(
        "sampling/needed", lambda: told(bench.work(count, folder, "--seeds", seeds))
    )["needed"][0]
    needed["bytes"] = needed["page_bytes"] * (needed["indptr_pages"] + needed["indices_pages"])
    entrants = contenders(options, features=False)
    base = bench.step(f"base/{entrants[0].name}", bench.base, entrants[0])
    limit = settings.structure_limit or base + structure // 2
    runs = rounds(
        bench, "sampling", entrants, folder=folder, batches=batches, features=False, limit=limit
    )
    table = {name: figures(of_name, batches) for name, of_name in runs.items()}
    for row in table.values():
        if "read_bytes" in row:
            row["times_needed_bytes"] = row["read_bytes"] / needed["bytes"]
    compare(table, "seconds")
    return {"structure_bytes": structure, "needed": needed, "contenders": table}


def features(bench, options):
    """Rows of 8 times the memory, with sampling on the mapped structure."""
    settings = bench.settings
    folder = bench.graph(settings.scale, settings.width)
    nbytes = (folder / "node-feat.npy").stat().st_size
    common = {
        "folder": folder,
        "batches": settings.batches,
        "features": True,
        "memory": nbytes // 8,
        "epochs": 2,
    }
    runs = rounds(bench, "features", contenders(options, features=True), **common)
    table = {name: figures(of_name, settings.batches) for name, of_name in runs.items()}
    compare(table, "rows_per_second")
    needed = bench.step("features/needed", needed_rows, bench, folder, [settings.batches])
    timeline = runs["pagraph"][0]["timeline"]
    told_ = runs["pagraph"][0].get("told", {})
    return {
        "feature_bytes": nbytes,
        "needed": needed,
        "contenders": table,
        "timeline": timeline,
        "told": told_,
    }


def compare(table, figure):
    """How many times as fast as each of the others pagraph is."""
    ours = table["pagraph"]
    for name, row in table.items():
        if name == "pagraph" or figure not in row:
            continue
        if figure == "seconds":
            row["pagraph_times_as_fast"] = row["seconds"]["median"] / ours["seconds"]["median"]
        else:
            row["pagraph_times_as_fast"] = ours[figure] / row[figure]


def needed_rows(bench, folder, windows):
    """Distinct rows of windows of the batches, by their length."""
    seeds = bench.seeds(folder, bench.settings.batches)
    done = bench.work(
        Contender("count", kind="rows"), folder, "--seeds", seeds, "--windows", *windows
    )
    return told(done)["needed"]


def rows(bench, _):
    """Bytes read over bytes needed, without a cache; the structure's bytes are counted apart."""
    settings = bench.settings
    plain = bench.graph(settings.scale, settings.width)
    folders = {
        "as written": plain,
        "reordered": bench.step("rows/reorder", reordered, bench, plain),
    }
    loader = {"memory": "fill in", "lookahead": AHEAD, "cache": 0}
    result = {"window": AHEAD}
    for name, folder in folders.items():
        folder = Path(folder)
        needed = bench.step(f"rows/{name}/needed", needed_rows, bench, folder, [AHEAD])[0]
        memory = (folder / "node-feat.npy").stat().st_size // 8
        common = {"folder": folder, "batches": settings.batches, "memory": memory}
        both = {}
        for what in ("structure", "all"):
            contender = Contender(f"pagraph, {AHEAD} ahead", loader=loader)
            both[what] = bench.step(
                f"rows/{name}/{what}", bench.measure, contender, features=what == "all", **common
            )
        nbytes = both["all"]["read_bytes"] - both["structure"]["read_bytes"]
        result[name] = {
            "read_bytes": nbytes,
            "distinct_row_bytes": needed["distinct_rows"] * needed["row_bytes"],
            "times_distinct_rows": nbytes / (needed["distinct_rows"] * needed["row_bytes"]),
            "times_rows_not_in_the_window_before": nbytes / (needed["rows"] * needed["row_bytes"]),
            "times_pages": nbytes / (needed["pages"] * 4096),
            "seconds": both["all"]["seconds"],
        }
    return result


ROWS = {
    "sampling": sampling,
    "features": features,
    "rows": rows,
    "billion": billion,
    "in_memory": in_memory,
}


def show(name, result):
    """Print a row's figures."""
    print(f"\n{name}")
    for contender, row in result.get("contenders", {}).items():
        seconds = row["seconds"]["median"]
        notes = [
            f"{key} {row[key]:.3g}"
            for key in ("first_batch", "second_epoch", "pagraph_times_as_fast")
            if key in row
        ]
        notes += [
            f"{key} {row[key]:.2f}"
            for key in ("times_needed_bytes", "share_of_own_rate")
            if key in row
        ]
        notes += [f"read {row['read_bytes'] / 1e9:.2f} GB"] if "read_bytes" in row else []
        notes += (
            [f"peak {row['peak'] / 1e6:.0f} of {row['limit'] / 1e6:.0f} MB"]
            if row.get("peak")
            else []
        )
        notes += ["killed for memory"] if row["out_of_memory"] else []
        mark = "" if row["complete"] else " (broken off)"
        print(f"  {contender:20s} {seconds:8.2f} s{mark}  " + "  ".join(notes))
    if "contenders" not in result:
        print("  " + json.dumps(result)[:2000])


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="the sizes of the documentation")
    parser.add_argument(
        "--folder",
        type=Path,
        default=CHECKOUT / ".demo" / "disk",
        help="graphs, raw runs [%(default)s]",
    )
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=list(ROWS)[:3], help="[%(default)s]"
    )
    parser.add_argument(
        "--all-in", action="store_true", help="count the interpreter as memory of the loader"
    )
    parser.add_argument("--rounds", type=int, help="runs of each contender")
    parser.add_argument("--minutes", type=float, help="after which no further run begins")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--pyg-lib", type=Path, help="folder with pyg-lib, see build_pyg_lib.py")
    parser.add_argument(
        "--graphbolt", type=Path, help="Python of GraphBolt's environment, see graphbolt_worker.py"
    )
    parser.add_argument("--out", type=Path, help="folder of the result")
    return parser.parse_args()


def main():
    options = arguments()
    settings = LARGE if options.large else QUICK
    settings = replace(settings, rounds=options.rounds or settings.rounds, all_in=options.all_in)
    options.folder.mkdir(parents=True, exist_ok=True)
    result = {"settings": vars(settings), "limit_over_memory": OVER}
    try:
        hierarchy = find_hierarchy()
        result["control_group"] = f"version {hierarchy.version}"
    except NoGroupError as error:
        hierarchy, result["control_group"] = None, str(error)
        print(error)
    bench = Bench(options.folder, settings, hierarchy, options.minutes)
    earlier = options.folder / "larger_than_memory.json"
    done = json.loads(earlier.read_text())["rows"] if earlier.exists() else {}
    result |= {"load_average": os.getloadavg(), "rows": done}
    for name in options.rows:
        try:
            done[name] = ROWS[name](bench, options)
        except OutOfTimeError:
            print(f"{name}: time is over; run again to go on")
            break
        show(name, done[name])
        write("larger_than_memory", result, options.folder)
    else:
        if options.out:
            write("larger_than_memory", result, options.out)
        return
    sys.exit(3)


if __name__ == "__main__":
    main()
