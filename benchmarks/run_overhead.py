"""What ``pagraph run`` costs: around a script, against the same script with its import changed by
hand; and ``--theirs`` around scripts with DGL's and PyG's own loaders, against those alone.

Each script times its own epochs, and the waits in them by its own clock. Both ways run in turn, as
processes of their own; seconds of the wall and of the CPU. PyG's own loaders need pyg-lib: give
``--pyg-lib``, a folder of ``build_pyg_lib.py``.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

SCRIPT = """
import json, os, sys, time
begun = time.time()
{imports}
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
{make}
epochs = []
for epoch in range(6):
    waited = 0.0
    begin = time.perf_counter()
    cpu = time.process_time()
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            waited += time.perf_counter() - asked
            break
        waited += time.perf_counter() - asked
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass
    spent = time.perf_counter() - begin
    epochs.append([spent, time.process_time() - cpu, waited])
json.dump({{"begun": begun, "epochs": epochs}}, open(sys.argv[1], "w"))
"""
PYG = """
from torch_geometric.data import Data
n = 20_000
data = Data(x=torch.randn(n, 64), edge_index=torch.randint(n, (2, 200_000)))
loader = NeighborLoader(data, [10, 10], batch_size=100)
"""
DGL = """
graph = dgl.rand_graph(20_000, 200_000)
graph.ndata["feat"] = torch.randn(20_000, 64)
sampler = dgl.dataloading.NeighborSampler([10, 10], prefetch_node_feats=["feat"])
loader = DataLoader(graph, torch.arange(20_000), sampler, batch_size=100)
"""
IMPORTS = {
    ("pyg", "theirs"): "from torch_geometric.loader import NeighborLoader",
    ("pyg", "ours"): "from pagraph.pyg import NeighborLoader",
    ("dgl", "theirs"): "import dgl\nfrom dgl.dataloading import DataLoader",
    ("dgl", "ours"): "from pagraph.dgl import DataLoader\nimport dgl",
    # Makes DGL importable where GraphBolt's binary is missing, as `pagraph run` does.
    ("dgl", "alone"): "import pagraph.dgl\nimport dgl\nfrom dgl.dataloading import DataLoader",
    ("pyg", "alone"): "from torch_geometric.loader import NeighborLoader",
}


def once(folder, framework, imports, options, pyg_lib):
    """One process: seconds until the script begins, its epochs, what ``pagraph run`` saw."""
    script = folder / "script.py"
    make = PYG if framework == "pyg" else DGL
    script.write_text(SCRIPT.format(imports=IMPORTS[framework, imports], make=make))
    out = folder / "out.json"
    numbers = folder / "numbers.json"
    command = [sys.executable, str(script), str(out)]
    if options is not None:
        command[1:1] = ["-m", "pagraph", "run", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PAGRAPH_RUN_NUMBERS": str(numbers)}
    if pyg_lib:
        environment["PYTHONPATH"] = f"{pyg_lib}:{environment.get('PYTHONPATH', '')}"
    begin = time.time()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    end = time.time()
    told = json.loads(out.read_text())
    epochs = told["epochs"][1:]  # the first compiles and fills
    saw = json.loads(numbers.read_text()) if options is not None else None
    return {
        "start": told["begun"] - begin,
        "whole": end - begin,
        "epoch": statistics.median(epoch[0] for epoch in epochs),
        "cpu": statistics.median(epoch[1] for epoch in epochs),
        "waited": sum(epoch[2] for epoch in told["epochs"]),
        "seen": None if saw is None else saw["waited"],
    }


def pair(folder, framework, sides, rounds, pyg_lib):
    """Both sides in turn; medians, and what the second costs."""
    runs = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (imports, options) in sides.items():
            runs[name].append(once(folder, framework, imports, options, pyg_lib))
    first, second = (runs[name] for name in sides)
    result = {
        name: {
            figure: report.summarise([each[figure] for each in found])
            for figure in ("start", "epoch", "cpu")
        }
        for name, found in runs.items()
    }
    for figure in ("epoch", "cpu"):
        ratios = [b[figure] / a[figure] for a, b in zip(first, second, strict=True)]
        result[f"{figure} ratio"] = report.summarise(ratios)
    starts = [b["start"] - a["start"] for a, b in zip(first, second, strict=True)]
    result["start added"] = report.summarise(starts)
    result["seen / own clock"] = report.summarise([b["seen"] / b["waited"] for b in second])
    return result


class Numbers:
    """A loader whose batches cost nothing: what is left is the watching."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def per_batch(folder, rounds, count=200_000):
    """CPU seconds that watching adds to one batch."""
    from pagraph.run.ledger import Ledger, watched

    class Watched(Numbers):
        __iter__ = watched(Numbers.__iter__, Ledger(folder))

    runs = {Numbers: [], Watched: []}
    for _ in range(rounds):
        for kind, found in runs.items():
            loader = kind(count)
            begin = time.process_time()
            for _ in loader:
                pass
            found.append((time.process_time() - begin) / count)
    pairs = zip(*runs.values(), strict=True)
    return report.summarise([with_it - without for without, with_it in pairs])


def start(folder, rounds):
    """CPU seconds, of all its processes, that ``pagraph run`` adds to a script that does nothing."""
    script = folder / "empty.py"
    script.write_text("")
    runs = {"python": [], "pagraph run": []}
    for _ in range(rounds):
        for name, found in runs.items():
            command = [sys.executable, *(["-m", "pagraph", "run"] if name != "python" else [])]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*command, str(script)], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(sum(after[:2]) - sum(before[:2]))
    pairs = zip(*runs.values(), strict=True)
    return report.summarise([with_it - without for without, with_it in pairs])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pyg-lib", help="folder with a pyg-lib")
    parser.add_argument("--only", default="", help="comparisons whose name has this")
    options = parser.parse_args()
    saved = report.RESULTS / "run_overhead.json"
    # What an earlier call measured stays, comparison by comparison.
    result = json.loads(saved.read_text()) if saved.exists() and options.only else {}
    result |= {"batches an epoch": 200, "epochs": 6}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in "a batch":
            result["CPU seconds a batch"] = per_batch(folder, options.rounds)
            result["CPU seconds at the start"] = start(folder, options.rounds)
            report.write("run_overhead", result)
        for framework in ("pyg", "dgl"):
            sides = {
                "ours": {"by hand": ("ours", None), "pagraph run": ("theirs", [])},
                "theirs": {"alone": ("alone", None), "--theirs": ("theirs", ["--theirs"])},
            }
            for kind, both in sides.items():
                title = f"{framework} {kind}"
                if options.only not in title:
                    continue
                if title == "pyg theirs" and not options.pyg_lib:
                    print("left out: PyG's own loader needs pyg-lib (--pyg-lib)")
                    continue
                lib = options.pyg_lib if title == "pyg theirs" else None
                result[title] = pair(folder, framework, both, options.rounds, lib)
                shown = {k: v["median"] for k, v in result[title].items() if "median" in v}
                print(title, shown, flush=True)
                report.write("run_overhead", result)


if __name__ == "__main__":
    main()
