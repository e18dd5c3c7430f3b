"""The rows of ``larger_than_memory.py`` that run whole programs: verbs on one large graph, and
other benchmarks."""

import json
import os
import statistics
import sys

from disk_rate import DiskWatch
from disk_runs import CHECKOUT, OVER
from epochs_against import compare, run_script
from memory_group import run

SCRIPTS = ("dgl_loader", "pyg_loader")


def verb(bench, *arguments, memory, limit=None):
    """Run ``pagraph`` with these arguments under a limit of memory: what it took, and what the disk
    did."""
    command = [sys.executable, "-m", "pagraph", *map(str, arguments)]
    with DiskWatch(bench.folder) as watch:
        done = run(
            command, limit=limit, hierarchy=bench.hierarchy, env={"PYTHONPATH": str(CHECKOUT)}
        )
    if done.code:
        reason = "killed for memory" if done.out_of_memory else done.errors
        raise RuntimeError(f"pagraph {' '.join(map(str, arguments))} failed:\n{reason}")
    disk = watch.total(watch.samples[0][0], watch.samples[-1][0])
    user, system = done.cpu_seconds
    return {
        "seconds": done.seconds,
        "memory": memory,
        "limit": limit,
        "peak": done.peak,
        "resident": done.resident,
        "user_seconds": user,
        "system_seconds": system,
        "disk_busy_seconds": disk["busy_seconds"],
        "read_bytes": done.read_bytes,
        "written_bytes": done.written_bytes,
        "output": done.output[-40:],
    }


def reordered(bench, folder):
    """The folder of a graph after ``pagraph reorder``."""
    target = folder.with_name(folder.name + "-reordered")
    if not target.exists():
        memory = folder.joinpath("node-feat.npy").stat().st_size // 8
        figures = verb(
            bench,
            "reorder",
            folder,
            target,
            "--by",
            "both",
            "--train-fraction",
            "0.01",
            "--memory",
            f"{memory}B",
            memory=memory,
        )
        bench.runs["rows/reorder/verb"] = figures
    return str(target)


def billion(bench, _):
    """Generate, profile, partition and train for one epoch, each with the same memory."""
    settings = bench.settings
    memory, folder = settings.billion_memory, bench.folder
    graph, parts = (
        folder / f"billion-{settings.billion_scale}",
        folder / f"billion-{settings.billion_scale}-parts",
    )
    common = {"memory": memory, "limit": int(OVER * memory) if bench.hierarchy else None}
    sizes = [
        "--scale",
        settings.billion_scale,
        "--features",
        128,
        "--feature-dtype",
        "float16",
        "--classes",
        16,
    ]
    verbs = {
        "generate": ["generate", "rmat", graph, *sizes, "--fractions", "0.01,0.0001,0.0001"],
        "profile": ["profile", graph, "--fanout", settings.fanout],
        "partition": [
            "partition",
            graph,
            parts,
            "-k",
            4,
            "--hops",
            1,
            "--features",
            "reference",
            "--cache",
            0,
        ],
        "train": [
            "train",
            graph,
            "--epochs",
            1,
            "--fanout",
            settings.fanout,
            "--hidden",
            64,
            "--json",
            folder / "train.json",
        ],
    }
    result = {}
    for name, command in verbs.items():
        result[name] = bench.step(
            f"billion/{name}", verb, bench, *command, "--memory", f"{memory}B", **common
        )
    report = folder / "train.json"
    if report.exists():
        result["train"]["report"] = json.loads(report.read_text())
    return result


def in_memory(bench, options):
    """Epochs of graphs in memory, here and in the checkout before, in turn: above 1, ours is
    faster."""
    if not options.before:
        return {"left out": "needs --before"}
    checkouts = {"now": CHECKOUT, "before": options.before}
    runs = {script: {of: [] for of in checkouts} for script in SCRIPTS}
    for turn in range(bench.settings.rounds):
        for script in SCRIPTS:
            for of in list(checkouts)[:: 1 if turn % 2 else -1]:
                step = f"in_memory/{script}/{of}/{turn}"
                runs[script][of].append(
                    bench.step(step, run_script, checkouts[of], script, ["--rounds", "5"])
                )
    result = {}
    for script, of_script in runs.items():
        cases = compare(of_script["now"], of_script["before"])
        ratios = [row["ratio"] for of_case in cases.values() for row in of_case.values()]
        result[script] = {
            "cases": cases,
            "median_ratio": statistics.median(ratios),
            "least_ratio": min(ratios),
        }
    arguments = ["--baseline", os.fspath(options.before)]
    result["per_batch"] = bench.step(
        "in_memory/per_batch", run_script, CHECKOUT, "per_batch", arguments
    )
    return result
