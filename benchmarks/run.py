"""All benchmarks, one after the other: ``make bench``. Each writes ``results/NAME.json``."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = [
    "start_up",
    "run_overhead",
    "dgl_loader",
    "heterograph",
    "link_prediction",
    "pyg_loader",
    "pyg_samplers",
    "dgl_subgraphs",
    "walks",
    "weighted",
    "layerwise",
    "labor",
    "memory",
    "partition_memory",
    "per_batch",
    "fixed_shapes",
    "gather",
    "disk_cache",
    "larger_than_memory",
    "policies",
    "partitioning",
    "profiling_cost",
    "timeline",
    "wait_policy",
    "preaggregation",
    "edge_list",
    "databases",
]


def main():
    for name in NAMES:
        print(f"\n== {name} ==", flush=True)
        subprocess.run([sys.executable, HERE / f"{name}.py", *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
