"""DGL's, PyG's and RelBench's own example scripts, unchanged, under ``pagraph run``: which run,
which loaders became ours, how long each waits, and whether the results are theirs.

Nothing of the scripts is in this repository. They come from checkouts of the projects; their data
sets are generated in the form that each script reads (``script_data.py``), so that nothing is
downloaded:

    python benchmarks/run_scripts.py --dgl ~/dgl --pyg ~/pytorch_geometric --work /tmp/scripts

PyG's own loaders need pyg-lib (``--pyg-lib``: a folder of ``build_pyg_lib.py``), some of them
torch-sparse (``--torch-sparse``: a folder with it and torch-scatter). Scripts need ``ogb``,
``torchmetrics``, ``scikit-learn``, ``rdflib``, ``pytorch_lightning``, ``tensorboardX``, and
``relbench`` with ``pytorch_frame``. What is missing is said, not skipped silently. Each script runs
with its own loaders and with ours, once a seed; a seed is set before the script begins.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import report
from script_data import citations, dgl_data, interactions, mag, products, proteins, pyg_data, shop

from pagraph.run.ledger import CANNOT

# Behind what a script calls its figure.
NUMBER = r"\W*(?:roc_auc\W*)?([0-9]+\.[0-9]+)"
LABOR = "--gpu -1 --num-epochs 5 --num-hidden 64 --fan-out 5,5,5 --batch-size 128 --lr 0.01"
# It reads a checkpoint as torch from 2.6 on refuses to.
LABOR += " --disable-checkpoint"
SHOP = "--dataset shop --task buys --epochs 3 --channels 32 --num_neighbors 16"
# Framework, script below examples/, arguments, and how it calls the figure that it prints last.
SCRIPTS = [
    ("pyg", "reddit.py", "", "Test: "),
    ("pyg", "hierarchical_sampling.py", "", None),
    ("pyg", "cluster_gcn_reddit.py", "", "test: "),
    ("pyg", "cluster_gcn_ppi.py", "", "Test: "),
    ("pyg", "graph_sage_unsup_ppi.py", "", "Test F1: "),
    ("pyg", "infomax_inductive.py", "", "Test Accuracy: "),
    ("pyg", "graph_saint.py", "", "Test: "),
    ("pyg", "graph_saint.py", "--use_normalization", "Test: "),
    ("pyg", "shadow.py", "", "Test: "),
    ("pyg", "graph_sage_unsup.py", "", "Test: "),
    ("pyg", "hetero/to_hetero_mag.py", "", "Val: "),
    ("pyg", "hetero/to_hetero_mag.py", "--use_hgt_loader", "Val: "),
    ("pyg", "hetero/hierarchical_sage.py", "", "Val: "),
    ("pyg", "hetero/recommender_system.py", "", "MAP@20: "),
    ("pyg", "hetero/temporal_link_pred.py", "", "Test RMSE: "),
    ("pyg", "hetero/bipartite_sage_unsup.py", "", "Test: "),
    ("pyg", "ogbn_train.py", "--dataset ogbn-products --dataset_dir DATA --epochs 5", "Test: "),
    ("pyg", "pytorch_lightning/graph_sage.py", "", "test_acc"),
    ("pyg", "pytorch_lightning/relational_gnn.py", "", "test_acc"),
    ("dgl", "pytorch/graphsage/node_classification.py", "", "Test Accuracy "),
    ("dgl", "pytorch/graphsage/link_pred.py", "", "Test MRR "),
    ("dgl", "pytorch/graphsage/advanced/train_lightning_unsupervised.py", "--gpu -1", None),
    ("dgl", "legacy/node_classification.py", "", "Test accuracy "),
    ("dgl", "legacy/link_prediction.py", "", "Test MRR "),
    (
        "dgl",
        "pytorch/ogb/ogbn-products/graphsage/main.py",
        "--gpu -1 --num-epochs 6 --num-workers 2",
        "Test Acc ",
    ),
    (
        "dgl",
        "pytorch/ogb/ogbn-products/gat/main.py",
        "--gpu -1 --num-epochs 2 --num-workers 2 --num-hidden 16",
        "Average test accuracy:",
    ),
    (
        "dgl",
        "pytorch/ogb/ogbn-products/gat/gat.py",
        "--cpu --n-runs 1 --n-epochs 10 --n-hidden 32 --seed SEED",
        "Average test score:",
    ),
    (
        "dgl",
        "pytorch/ogb/ogbn-products/mlp/mlp.py",
        "--cpu --n-runs 1 --n-epochs 10 --n-hidden 64 --seed SEED",
        "Average test score:",
    ),
    (
        "dgl",
        "pytorch/ogb/ogbn-proteins/gat.py",
        "--cpu --n-runs 1 --n-epochs 10 --n-layers 2 --n-hidden 16 --seed SEED",
        "Average test score:",
    ),
    (
        "dgl",
        "pytorch/ogb/cluster-gat/main.py",
        "--gpu -1 --num_epochs 2 --num_partitions 20 --batch_size 4 --num_workers 2",
        "Average test accuracy:",
    ),
    ("dgl", "pytorch/labor/train_lightning.py", LABOR, "Test accuracy: "),
    ("dgl", "pytorch/labor/train_lightning.py", f"{LABOR} --sampler neighbor", "Test accuracy: "),
    (
        "dgl",
        "pytorch/labor/train_lightning.py",
        f"{LABOR} --sampler ladies --lad-out 800,600,400",
        "Test accuracy: ",
    ),
    (
        "dgl",
        "pytorch/gas/main_sampling.py",
        "--max_epoch 5 --num_workers 2 --v_hid_dim 16",
        "Test AUC: ",
    ),
    (
        "dgl",
        "pytorch/caregnn/main_sampling.py",
        "--dataset yelp --max_epoch 3 --num_workers 2",
        "Test AUC: ",
    ),
    ("dgl", "pytorch/rgcn/entity_sample.py", "", "Test accuracy "),
    ("dgl", "pytorch/rgcn-hetero/entity_classify_mb.py", "-d aifb --num_workers 1", "Test Acc: "),
    ("dgl", "pytorch/rgat/train.py", "", "Test accuracy "),
    ("dgl", "core/rgcn/hetero_rgcn.py", "--dataset ogbn-mag", "Test accuracy "),
    ("dgl", "pytorch/ogb/ogbn-mag/hetero_rgcn.py", "--runs 1", "Final Test: "),
    ("relbench", "gnn_entity.py", f"{SHOP} --seed SEED", "test metrics"),
]

# Imports once what takes seconds, then forks a process for each seed.
IMPORTS = "torch pandas scipy.sparse scipy.io networkx numba sklearn.metrics"
FORKS = """import importlib, os, runpy, signal, sys, time
said, limit, seeds, imports, *command = sys.argv[1:]
for name in imports.split():
    importlib.import_module(name)
for seed in range(int(seeds)):
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        break
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.05)
        if time.monotonic() - begin > float(limit):
            os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(ended[1])
    with open(f"{said}/{seed}.code", "w") as file:
        file.write(str(code))
    if code:
        sys.exit()
else:
    sys.exit()
file = os.open(f"{said}/{seed}.out", os.O_WRONLY | os.O_CREAT)
os.dup2(file, 1), os.dup2(file, 2)
# OGB asks whether to download what is newer.
answer = os.memfd_create("answer")
os.write(answer, b"n" + bytes([10])), os.lseek(answer, 0, 0), os.dup2(answer, 0)
os.environ["PAGRAPH_RUN_NUMBERS"] = f"{said}/{seed}.json"
sys.argv = ["pagraph", *(word.replace("SEED", str(seed)) for word in command)]
runpy.run_module("pagraph", run_name="__main__")
"""
SEEDED = """import random, runpy, sys
import numpy, torch
seed = int(sys.argv[1])
random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
sys.argv = sys.argv[2:]
sys.path[0] = sys.argv[0].rpartition("/")[0] or "."
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# RelBench's script asks a language model for its texts' meaning. The weights would be a download.
EMBEDDER = """import zlib
import numpy, torch

class SentenceTransformer:
    def __init__(self, name, device=None):
        pass

    def encode(self, texts, convert_to_tensor=True):
        return torch.stack([self.of(text) for text in texts])

    def of(self, text):
        seeds = [zlib.crc32(word.encode()) for word in text.split()] or [0]
        words = [numpy.random.default_rng(seed).normal(size=16) for seed in seeds]
        return torch.tensor(numpy.mean(words, 0), dtype=torch.float)
"""


def generate(work):
    """All data sets, where the scripts look for them."""
    rng = np.random.default_rng(0)
    pyg_data(work / "pyg/data", rng)
    interactions(work / "pyg/data/PPI/raw", rng)
    # Lightning's look below the working folder, and others in the one above.
    for place in (work / "pyg/examples", work / "pyg/examples/pytorch_lightning"):
        if not (place / "data").exists():
            (place / "data").symlink_to(work / "pyg/data")
    products(work / "ogb/ogbn_products", rng)
    proteins(work / "ogb/ogbn_proteins", rng)
    dgl_data(work / "dgl-data", rng)
    shop(work / "relbench/examples/shop", rng)
    (work / "stand-ins").mkdir()
    (work / "stand-ins/sentence_transformers.py").write_text(EMBEDDER)
    (work / "ogb-pyg/ogbn-products").mkdir(parents=True)
    shutil.copytree(work / "ogb/ogbn_products", work / "ogb-pyg/ogbn-products/ogbn_products")
    home = work / "ogb/ogbn_mag"
    home.mkdir()
    mag(home / "raw", home / "split/time", home, rng)
    citations(work / "ogb/ogbl_citation2", rng)
    for _, script, _, _ in [entry for entry in SCRIPTS if entry[0] == "dgl"]:
        place = (work / "dgl/examples" / script).parent / "dataset"
        if not place.exists():
            place.symlink_to(work / "ogb")


def run(work, entry, theirs, options):
    """Run a script once a seed, to the first that fails; what it and ``pagraph run`` said."""
    framework, script, arguments, figure = entry
    home = (work / framework / "examples" / script).parent
    # One thread of torch's: spinning threads of OpenMP take the cores from workers on both sides.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    environment["DGL_DOWNLOAD_DIR"] = str(work / "dgl-data")
    # Ours need neither; one script asks for torch-sparse itself.
    paths = [str(work / "stand-ins"), environment.get("PYTHONPATH", "")]
    if theirs and framework != "dgl":
        paths += [options.pyg_lib, options.torch_sparse]
    elif script == "graph_saint.py":
        paths.append(options.torch_sparse)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    said = work / "said"
    shutil.rmtree(said, ignore_errors=True)
    said.mkdir()
    command = ["run", *(["--theirs"] if theirs else []), str(work / "seeded.py"), "SEED"]
    command += [Path(script).name, *arguments.replace("DATA", str(work / "ogb-pyg")).split()]
    imports = IMPORTS if framework == "dgl" else f"{IMPORTS} torch_geometric.loader"
    forks = [
        sys.executable,
        "-c",
        FORKS,
        str(said),
        str(options.limit),
        str(options.seeds),
        imports,
    ]
    done = subprocess.run(
        [*forks, *command], cwd=home, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [result(said, seed, figure) for seed in range(len(list(said.glob("*.code"))))]


def result(said, seed, figure):
    """What one run printed, and the numbers that it left."""
    out = (said / f"{seed}.out").read_text()
    code = int((said / f"{seed}.code").read_text())
    numbers = said / f"{seed}.json"
    found = json.loads(numbers.read_text()) if numbers.exists() else {}
    error = found.pop("error", "")
    instead = [line["why"] for line in found.get("lines", ()) if line["why"].startswith(CANNOT)]
    if code == -9:
        found["error"] = "took too long"
    elif code:
        found["error"] = error or f"exit code {code}"
    elif instead:  # so ours ran
        found["error"] = instead[0]
    figures = re.findall(re.escape(figure) + NUMBER, out) if figure else []
    if figures:
        found["figure"] = float(figures[-1])
    return found


def summarised(entry, runs):
    """One script's line."""
    framework = entry[0]
    line = {"framework": framework, "script": title(entry)}
    for side, found in runs.items():
        good = [each for each in found if "error" not in each]
        errors = [each["error"] for each in found if "error" in each]
        figures = [each["figure"] for each in good if "figure" in each]
        line[side] = {
            "runs": len(good),
            "error": errors[0] if errors else None,
            "figures": figures,
            "mean": statistics.mean(figures) if figures else None,
            "spread": statistics.stdev(figures) if len(figures) > 1 else None,
            "waited": statistics.median([each["waited"] for each in good]) if good else None,
            "seconds": statistics.median([each["seconds"] for each in good]) if good else None,
            "share": statistics.median([each["share"] for each in good]) if good else None,
        }
    good = [each for each in runs.get("ours", ()) if "lines" in each]
    names = ("kind", "place", "ran", "why", "epochs")
    if good:
        line["loaders"] = [{name: each[name] for name in names} for each in good[-1]["lines"]]
    return line


def title(entry):
    _, script, arguments, _ = entry
    return f"{script} {arguments}".strip()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dgl", type=Path, required=True, help="checkout of DGL")
    parser.add_argument("--pyg", type=Path, required=True, help="checkout of PyG")
    parser.add_argument("--relbench", type=Path, help="checkout of RelBench, 3.0 or newer")
    parser.add_argument("--pyg-lib", help="folder with a pyg-lib, for PyG's own loaders")
    parser.add_argument("--torch-sparse", help="folder with torch-sparse, for PyG's own loaders")
    parser.add_argument("--work", type=Path, help="folder for copies and data [a temporary one]")
    parser.add_argument("--seeds", type=int, default=5, help="runs each way [%(default)s]")
    parser.add_argument(
        "--limit", type=int, default=300, help="seconds a run may take [%(default)s]"
    )
    parser.add_argument(
        "--only", nargs="*", default=[""], help="scripts whose name has one of these"
    )
    parser.add_argument("--sides", nargs="*", default=["theirs", "ours"], help="ways [both]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = (options.work or Path(folder)).resolve()
        if not (work / "seeded.py").exists():
            for name in ("dgl", "pyg", "relbench"):
                if getattr(options, name) is not None:
                    shutil.copytree(getattr(options, name) / "examples", work / name / "examples")
            generate(work)
            (work / "seeded.py").write_text(SEEDED)
        saved = report.RESULTS / "run_scripts.json"
        # What an earlier call found stays, script by script and way by way.
        kept = json.loads(saved.read_text())["scripts"] if saved.exists() else []
        lines = {(line["framework"], line["script"]): line for line in kept}
        for entry in SCRIPTS:
            if not any(name in f"{entry[0]}/{title(entry)}" for name in options.only):
                continue
            runs = {side: run(work, entry, side == "theirs", options) for side in options.sides}
            line = summarised(entry, runs)
            print(json.dumps(line), flush=True)
            place = (entry[0], title(entry))
            lines[place] = lines.get(place, {}) | line
            report.write("run_scripts", {"seeds": options.seeds, "scripts": list(lines.values())})


if __name__ == "__main__":
    main()
