"""Start-up: the command line and imports, against ``import torch``; how soon a first batch comes.

Every figure is from a fresh process, and every round runs all of them in turn, in this checkout and
in the one ``--before``; a first batch, which compiles what no process has compiled yet, is not
counted. Processor seconds are given as well: they say the same on a machine with other work.

Run: ``python benchmarks/start_up.py --before ../before`` (about five minutes).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import revision, summarise, write

HERE = Path(__file__).resolve().parent.parent
TORCH = "import torch"
# Name to the arguments of ``pagraph``. E is an edge list of two edges, G a graph folder.
COMMANDS = {
    "--help": "--help",
    "--version": "--version",
    "import --help": "import --help",
    "train --help": "train --help",
    "profile --help": "profile --help",
    "generate rmat --help": "generate rmat --help",
    "partition verify --help": "partition verify --help",
    "mistake: no such option": "reorder --nope",
    "mistake: no such folder": "train nowhere",
    "mistake: a wrong type": "partition G P -k two",
    "mistake: of a cache": "train G --cache -1",
    "mistake: of a scale": "generate rmat NEW --scale 99",
    "mistake: of a memory": "import E.txt NEW --memory 3XB",
    "a TAB": "",
    "info": "info G",
    "import of two edges": "import E.txt NEW",
}
# Seconds of each import after the ones before it.
FACE = """
import importlib, json, sys, time
seconds = {}
for module in sys.argv[1:]:
    begin = time.process_time()
    importlib.import_module(module)
    seconds[module] = time.process_time() - begin
print(json.dumps(seconds))
"""
FACES = {
    "PyG": ["torch", "torch_geometric.loader", "numba", "pagraph.pyg"],
    # DGL cannot be imported before: a placeholder stands for its GraphBolt.
    "DGL": ["torch", "numba", "pagraph.loader", "pagraph.dgl"],
}
FIRST_BATCH = """
import json, time
import torch, pagraph.dgl
begin = time.perf_counter()
import dgl
graph = dgl.rand_graph(10_000, 200_000)
graph.ndata["feat"] = torch.randn(10_000, 64)
sampler = dgl.dataloading.NeighborSampler([10, 10], prefetch_node_feats=["feat"])
loader = pagraph.dgl.DataLoader(graph, torch.arange(10_000), sampler, batch_size=512, shuffle=True)
next(iter(loader))
print(json.dumps({"first batch": time.perf_counter() - begin}))
"""


def run(arguments, checkout, folder, **environment):
    """Seconds and processor seconds of a process, and what it prints."""
    paths = {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "", **environment}
    paths["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    begin = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | paths,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"wall": time.perf_counter() - begin, "processor": processor}, done


def commands(checkout, folder, only=("",)):
    """Figures of ``import torch`` and of each command whose name has one of ``only``."""
    found = {TORCH: run(["-c", TORCH], checkout, folder)[0]}
    for name, words in COMMANDS.items():
        if not any(part in name for part in only):
            continue
        environment = {}
        if name == "a TAB":
            environment = {
                "_PAGRAPH_COMPLETE": "bash_complete",
                "COMP_WORDS": "pagraph train --ca",
                "COMP_CWORD": "2",
            }
        found[name], done = run(["-m", "pagraph", *words.split()], checkout, folder, **environment)
        expected = 2 if name.startswith("mistake") else 0
        assert done.returncode == expected, (name, done.stderr)
        subprocess.run(["rm", "-rf", str(folder / "NEW")], check=True)
    return found


def faces(checkout, folder):
    """Processor seconds of the imports of each face, and seconds to a first batch."""
    found = {}
    for face, modules in FACES.items():
        _, done = run(["-c", FACE, *modules], checkout, folder)
        assert done.returncode == 0, done.stderr
        for module, seconds in json.loads(done.stdout.splitlines()[-1]).items():
            found[f"{face}: import {module}"] = {"processor": seconds}
    _, done = run(["-c", FIRST_BATCH], checkout, folder)
    assert done.returncode == 0, done.stderr
    found["DGL: first batch"] = {"wall": json.loads(done.stdout.splitlines()[-1])["first batch"]}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="A checkout to compare with.")
    parser.add_argument("--only", nargs="+", help="Commands whose name has one of these, no faces.")
    options = parser.parse_args()
    checkouts = {"now": HERE}
    if options.before is not None:
        checkouts["before"] = options.before.resolve()
    runs = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "E.txt").write_text("0 1\n1 2\n")
        run(["-m", "pagraph", "generate", "sbm", "G", "--nodes", "1000"], HERE, folder)
        # The first round compiles bytecode and kernels.
        for place in range(options.rounds + 1):
            for name, checkout in checkouts.items():
                found = commands(checkout, folder, options.only or [""])
                found |= {} if options.only else faces(checkout, folder)
                if place:
                    runs[name].append(found)
    result = {"options": {"rounds": options.rounds}, "revisions": {}}
    for name, checkout in checkouts.items():
        result["revisions"][name] = revision(checkout)
        result[name] = _summaries(runs[name])
        print(f"\n{name}: wall, over import torch; processor, over import torch (medians)")
        for what, figures in result[name].items():
            texts = [
                f"{figure['median']:.3f} s {figure.get('over torch', 0):6.2f}"
                for figure in figures.values()
            ]
            print(f"  {what:34s} {'   '.join(texts)}")
    if not options.only:
        write("start_up", result)


def _summaries(rounds):
    """Medians by figure and kind; those of commands also over ``import torch`` of their round."""
    found = {}
    for what in rounds[0]:
        found[what] = {}
        for kind in rounds[0][what]:
            summary = summarise([each[what][kind] for each in rounds])
            if what == TORCH or what in COMMANDS:
                ratios = [each[what][kind] / each[TORCH][kind] for each in rounds]
                summary["over torch"] = summarise(ratios)["median"]
            found[what][kind] = summary
    return found


if __name__ == "__main__":
    main()
