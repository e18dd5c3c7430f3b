"""DGL's and PyG's own example scripts, unchanged, under ``pagraph run``: which run, which loaders
became ours, how long each waits, and whether the results are theirs.

Nothing of the scripts is in this repository. They come from checkouts of the two projects; their
data sets are generated in the form that each script reads, so that nothing is downloaded:

    python benchmarks/run_scripts.py --dgl ~/dgl --pyg ~/pytorch_geometric --work /tmp/scripts

PyG's own loaders need pyg-lib (``--pyg-lib``: a folder of ``build_pyg_lib.py``); some scripts need
``ogb``, ``torchmetrics`` or ``pytorch_lightning``. What is missing is said, not skipped silently.
Each script runs with its own loaders and with ours in turn, once a seed; a seed is set before the
script begins.
"""

import argparse
import gzip
import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report

NUMBER = r"([0-9.]+)"
LAST_PYG = rf"Test: {NUMBER}"
# Framework, script below examples/, arguments, and the figure that it prints last.
SCRIPTS = [
    ("pyg", "reddit.py", "", LAST_PYG),
    ("pyg", "hierarchical_sampling.py", "", None),
    ("pyg", "cluster_gcn_reddit.py", "", rf"test: {NUMBER}"),
    ("pyg", "infomax_inductive.py", "", rf"Test Accuracy: {NUMBER}"),
    ("pyg", "graph_saint.py", "", rf"Test: {NUMBER}"),
    ("pyg", "graph_saint.py", "--use_normalization", rf"Test: {NUMBER}"),
    ("pyg", "shadow.py", "", rf"Test: {NUMBER}"),
    ("pyg", "graph_sage_unsup.py", "", rf"Test: {NUMBER}"),
    ("pyg", "hetero/to_hetero_mag.py", "", rf"Val: {NUMBER}"),
    ("pyg", "hetero/to_hetero_mag.py", "--use_hgt_loader", rf"Val: {NUMBER}"),
    ("pyg", "hetero/hierarchical_sage.py", "", rf"Val: {NUMBER}"),
    ("pyg", "hetero/recommender_system.py", "", rf"MAP@20: {NUMBER}"),
    ("pyg", "hetero/temporal_link_pred.py", "", rf"Test RMSE: {NUMBER}"),
    ("pyg", "hetero/bipartite_sage_unsup.py", "", rf"Test: {NUMBER}"),
    ("pyg", "ogbn_train.py", "--dataset ogbn-products --dataset_dir DATA --epochs 5", rf"Test: {NUMBER}"),
    ("pyg", "pytorch_lightning/graph_sage.py", "", rf"test_acc\W+{NUMBER}"),
    ("pyg", "pytorch_lightning/relational_gnn.py", "", rf"test_acc\W+{NUMBER}"),
    ("dgl", "pytorch/graphsage/node_classification.py", "", rf"Test Accuracy {NUMBER}"),
    ("dgl", "pytorch/graphsage/link_pred.py", "", rf"Test MRR {NUMBER}"),
    ("dgl", "legacy/node_classification.py", "", rf"Test Accuracy {NUMBER}"),
    ("dgl", "pytorch/ogb/ogbn-products/graphsage/main.py", "--gpu -1 --num-epochs 4", rf"Test Acc {NUMBER}"),
    ("dgl", "pytorch/ogb/ogbn-products/gat/main.py", "--gpu -1 --num-epochs 4", rf"Test Acc {NUMBER}"),
    ("dgl", "pytorch/rgat/train.py", "", rf"Test accuracy {NUMBER}"),
    ("dgl", "core/rgcn/hetero_rgcn.py", "--dataset ogbn-mag --num_epochs 2", None),
    ("dgl", "pytorch/ogb/ogbn-mag/hetero_rgcn.py", "--runs 1", rf"Final Test: {NUMBER}"),
]  # fmt: skip

SEEDED = """import random, runpy, sys
import numpy, torch
seed = int(sys.argv[1])
random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
sys.argv = sys.argv[2:]
sys.path[0] = sys.argv[0].rpartition("/")[0] or "."
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def table(path, rows, head=False):
    """Rows as a packed table of text, as OGB keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        for row in rows:
            values = row if isinstance(row, list | tuple | np.ndarray) else [row]
            file.write(",".join(map(str, values)) + "\n")


def communities(rng, nodes, classes, degree, width):
    """Labels, features that show them through noise, and edges mostly within a class."""
    labels = rng.integers(classes, size=nodes)
    centers = rng.normal(size=(classes, width))
    features = (centers[labels] + 6 * rng.normal(size=(nodes, width))).astype(np.float32)
    members = [np.flatnonzero(labels == c) for c in range(classes)]
    src = np.repeat(np.arange(nodes), degree)
    near = np.array([rng.choice(members[labels[v]]) for v in src])
    dst = np.where(rng.random(len(src)) < 0.8, near, rng.integers(nodes, size=len(src)))
    return labels, features, src, dst


def parts(rng, nodes):
    """Training, validation and test vertices."""
    order = rng.permutation(nodes)
    return np.split(order, [int(0.6 * nodes), int(0.8 * nodes)])


def products(folder, rng, nodes=1500):
    labels, features, src, dst = communities(rng, nodes, 10, 8, 100)
    raw = folder / "raw"
    table(raw / "edge.csv.gz", zip(src, dst, strict=True))
    table(raw / "num-node-list.csv.gz", [nodes])
    table(raw / "num-edge-list.csv.gz", [len(src)])
    table(raw / "node-feat.csv.gz", features.round(3))
    table(raw / "node-label.csv.gz", labels)
    for name, ids in zip(("train", "valid", "test"), parts(rng, nodes), strict=True):
        table(folder / "split/sales_ranking" / f"{name}.csv.gz", ids)
    (folder / "RELEASE_v1.txt").touch()


def mag(raw, split, release, rng, papers=1200):
    labels, features, src, dst = communities(rng, papers, 10, 6, 128)
    counts = {"author": 2000, "field_of_study": 200, "institution": 50, "paper": papers}
    (raw / "node-feat/paper").mkdir(parents=True)
    table(raw / "num-node-dict.csv.gz", [list(counts), list(counts.values())])
    table(raw / "node-feat/paper/node-feat.csv.gz", features.round(3))
    table(raw / "node-feat/paper/node_year.csv.gz", 2010 + rng.integers(10, size=papers))
    table(raw / "node-feat/paper/num-node-list.csv.gz", [papers])
    table(raw / "node-label/paper/node-label.csv.gz", labels)
    fields = rng.permuted(np.arange(200)).reshape(10, 20)
    authors = rng.integers(2000, size=3 * papers)
    edges = {
        ("author", "affiliated_with", "institution"): (np.arange(2000), rng.integers(50, size=2000)),
        ("author", "writes", "paper"): (authors, np.repeat(np.arange(papers), 3)),
        ("paper", "cites", "paper"): (src, dst),
        ("paper", "has_topic", "field_of_study"): (
            np.repeat(np.arange(papers), 2),
            np.concatenate([rng.choice(fields[c], 2) for c in labels]),
        ),
    }  # fmt: skip
    table(raw / "triplet-type-list.csv.gz", list(edges))
    for number, (triplet, ends) in enumerate(edges.items()):
        home = raw / "relations" / "___".join(triplet)
        table(home / "edge.csv.gz", zip(*ends, strict=True))
        table(home / "num-edge-list.csv.gz", [len(ends[0])])
        table(home / "edge_reltype.csv.gz", [number] * len(ends[0]))
    has = [[name for name in counts], [str(name == "paper") for name in counts]]
    table(raw / "nodetype-has-feat.csv.gz", has)
    table(raw / "nodetype-has-label.csv.gz", has)
    table(split / "nodetype-has-split.csv.gz", has)
    for name, ids in zip(("train", "valid", "test"), parts(rng, papers), strict=True):
        table(split / "paper" / f"{name}.csv.gz", ids)
    if release is not None:
        (release / "RELEASE_v2.txt").touch()
    return counts


def pyg_data(data, rng):
    """Raw files of the data sets of PyG's scripts."""
    import scipy.sparse as sp
    import torch

    nodes = 2000
    labels, features, src, dst = communities(rng, nodes, 7, 8, 64)
    adjacency = sp.coo_matrix((np.ones(2 * len(src)), (np.r_[src, dst], np.r_[dst, src])))
    types = np.empty(nodes, np.int64)
    for number, ids in enumerate(parts(rng, nodes), 1):
        types[ids] = number
    reddit = data / "Reddit/raw"
    reddit.mkdir(parents=True)
    np.savez(reddit / "reddit_data.npz", feature=features, label=labels, node_types=types)
    sp.save_npz(reddit / "reddit_graph.npz", adjacency)

    flickr = data / "Flickr/raw"
    flickr.mkdir(parents=True)
    rows = adjacency.tocsr()
    rows.sum_duplicates()
    whole = {name: getattr(rows, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(flickr / "adj_full.npz", **whole)
    np.save(flickr / "feats.npy", features)
    (flickr / "class_map.json").write_text(
        json.dumps({str(i): int(c) for i, c in enumerate(labels)})
    )
    roles = dict(zip(("tr", "va", "te"), (ids.tolist() for ids in parts(rng, nodes)), strict=True))
    (flickr / "role.json").write_text(json.dumps(roles))

    cora = data / "Cora/Cora/raw"
    cora.mkdir(parents=True)
    words = sp.csr_matrix(features - features.min())
    hot = np.eye(7, dtype=np.int64)[labels]
    test = np.arange(1000, 2000)
    lists = {v: rows.indices[rows.indptr[v] : rows.indptr[v + 1]].tolist() for v in range(nodes)}
    pieces = {"x": words[:140], "y": hot[:140], "tx": words[test], "ty": hot[test]}
    pieces |= {"allx": words[:1000], "ally": hot[:1000], "graph": lists}
    for name, value in pieces.items():
        (cora / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (cora / "ind.cora.test.index").write_text("\n".join(map(str, test)))

    for root in (data / "OGB", data):
        raw = root / "mag/raw"
        counts = mag(raw, raw / "split/time", None, np.random.default_rng(1))
        shown = {name: torch.randn(n, 128) for name, n in counts.items() if name != "paper"}
        torch.save(shown, raw / "mag_metapath2vec_emb.pt")

    taobao = data / "Taobao/raw"
    taobao.mkdir(parents=True)
    users = rng.integers(300, size=9000)
    items = (users * 7 + rng.integers(60, size=9000)) % 500
    times = rng.integers(1511539200, 1512316799, size=9000)
    kinds = rng.choice(["pv", "cart", "buy", "fav"], size=9000)
    lines = zip(users, items, items % 20, kinds, times, strict=True)
    (taobao / "UserBehavior.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))

    # Processed: what PyG's own process() asks a language model for.
    from torch_geometric.data import HeteroData, InMemoryDataset

    movies = HeteroData()
    movies["movie"].x = torch.randn(400, 404)
    movies["user"].num_nodes = 200
    user = rng.integers(200, size=8000)
    movie = (user * 3 + rng.integers(80, size=8000)) % 400
    rates = movies["user", "rates", "movie"]
    rates.edge_index = torch.from_numpy(np.stack([user, movie]))
    rates.edge_label = torch.from_numpy(1 + (user + movie) % 5)
    rates.time = torch.from_numpy(np.sort(rng.integers(10**9, size=8000)))
    lens = data / "MovieLens"
    for name in ("movies", "ratings"):
        path = lens / "raw/ml-latest-small" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (lens / "processed").mkdir()
    InMemoryDataset.save([movies], lens / "processed/data_all-MiniLM-L6-v2.pt")


def citations(folder, rng, nodes=1000):
    """ogbl-citation2: an edge list, and pairs with other ends to rank them among."""
    import torch

    _, features, src, dst = communities(rng, nodes, 10, 8, 128)
    # No loops and no edge twice: the script pairs each edge with its reverse.
    pairs = np.unique(np.stack([src, dst], 1)[src != dst], axis=0)
    src, dst = pairs[:, 0], pairs[:, 1]
    raw = folder / "raw"
    table(raw / "edge.csv.gz", zip(src, dst, strict=True))
    table(raw / "num-node-list.csv.gz", [nodes])
    table(raw / "num-edge-list.csv.gz", [len(src)])
    table(raw / "node-feat.csv.gz", features.round(3))
    table(raw / "node_year.csv.gz", 2000 + rng.integers(10, size=nodes))
    split = folder / "split/time"
    split.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        at = rng.choice(len(src), 300, replace=False)
        pairs = {"source_node": src[at], "target_node": dst[at]}
        if name != "train":
            pairs["target_node_neg"] = rng.integers(nodes, size=(300, 100))
        # As tensors: torch 2.6 and newer load no arrays.
        tensors = {key: torch.from_numpy(value) for key, value in pairs.items()}
        torch.save(tensors, split / f"{name}.pt")
    (folder / "RELEASE_v1.txt").touch()


def generate(work):
    """All data sets, where the scripts look for them."""
    rng = np.random.default_rng(0)
    pyg_data(work / "pyg/data", rng)
    # Lightning's look below the working folder, and others in the one above.
    for place in (work / "pyg/examples", work / "pyg/examples/pytorch_lightning"):
        if not (place / "data").exists():
            (place / "data").symlink_to(work / "pyg/data")
    products(work / "ogb/ogbn_products", rng)
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


def run(work, entry, seed, theirs, options):
    """Run a script once; what it and ``pagraph run`` said."""
    framework, script, arguments, figure = entry
    home = (work / framework / "examples" / script).parent
    numbers = work / "numbers.json"
    numbers.unlink(missing_ok=True)
    # One thread of torch's: spinning threads of OpenMP take the cores from workers on both sides.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    environment["PAGRAPH_RUN_NUMBERS"] = str(numbers)
    if theirs and framework == "pyg" and options.pyg_lib:
        environment["PYTHONPATH"] = f"{options.pyg_lib}:{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "pagraph", "run", *(["--theirs"] if theirs else [])]
    command += [str(work / "seeded.py"), str(seed), Path(script).name]
    command += arguments.replace("DATA", str(work / "ogb-pyg")).split()
    if framework == "pyg" and script.startswith("cluster"):
        home = home.parent / "examples"
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            input="n\n",
            timeout=options.limit,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {options.limit} s"}
    said = done.stdout + done.stderr
    result = {"seconds": time.perf_counter() - begin}
    if numbers.exists():
        result |= json.loads(numbers.read_text())
    if done.returncode:
        before = done.stderr.partition("\npagraph run:")[0].strip().splitlines()
        result["error"] = before[-1][:200] if before else f"exit code {done.returncode}"
    found = re.findall(figure, said) if figure else []
    if found:
        result["figure"] = float(found[-1])
    return result


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
    parser.add_argument("--pyg-lib", help="folder with a pyg-lib, for PyG's own loaders")
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
            for name in ("dgl", "pyg"):
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
            runs = {side: [] for side in options.sides}
            for seed in range(options.seeds):
                for side, found in runs.items():
                    if any("error" in each for each in found):
                        continue
                    found.append(run(work, entry, seed, side == "theirs", options))
            line = summarised(entry, runs)
            print(json.dumps(line), flush=True)
            place = (entry[0], title(entry))
            lines[place] = lines.get(place, {}) | line
            report.write("run_scripts", {"seeds": options.seeds, "scripts": list(lines.values())})


if __name__ == "__main__":
    main()
