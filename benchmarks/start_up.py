"""Start-up: what importing costs, and how soon a second process has its first batch.

Every figure is from a fresh process; the first one compiles the kernels if no other has, and is not
counted.

Run: ``python benchmarks/start_up.py`` (about a minute).
"""

import argparse
import json
import subprocess
import sys

from report import summarise, write

CHILD = """
import json, time
t0 = time.perf_counter()
import torch
t1 = time.perf_counter()
import pagraph
t2 = time.perf_counter()
import pagraph.dgl
t3 = time.perf_counter()
import dgl
graph = dgl.rand_graph(10_000, 200_000)
graph.ndata["feat"] = torch.randn(10_000, 64)
sampler = dgl.dataloading.NeighborSampler([10, 10], prefetch_node_feats=["feat"])
loader = pagraph.dgl.DataLoader(graph, torch.arange(10_000), sampler, batch_size=512, shuffle=True)
next(iter(loader))
t4 = time.perf_counter()
print(json.dumps({"import torch": t1 - t0, "import pagraph after torch": t2 - t1,
                  "import pagraph.dgl after pagraph": t3 - t2, "first batch after import pagraph.dgl": t4 - t3}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    runs = []
    for _ in range(options.rounds + 1):
        done = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    seconds = {name: summarise([run[name] for run in runs[1:]]) for name in runs[0]}
    for name, figure in seconds.items():
        print(f"{name:40s} {figure['median']:.4f} s  ({figure['min']:.4f} to {figure['max']:.4f})")
    write("start_up", {"options": vars(options), "first_process": runs[0], "seconds": seconds})


if __name__ == "__main__":
    main()
