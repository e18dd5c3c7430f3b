"""How a benchmark ends: the machine named, a table, JSON under ``results/``."""

import json
import os
import platform
import statistics
import subprocess
from pathlib import Path

import numba
import numpy as np
import torch

import pagraph

RESULTS = Path(__file__).parent / "results"


def machine():
    """What the figures were measured on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "pagraph": pagraph.__version__,
    }


def summarise(runs):
    """Median, minimum and maximum of a list of figures."""
    return {"median": statistics.median(runs), "min": min(runs), "max": max(runs), "runs": runs}


def revision(folder):
    """A checkout's commit, marked where files differ from it; None where git knows of none."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def write(name, result, folder=RESULTS):
    """Write ``NAME.json`` into a folder, whole or not at all."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    os.replace(temporary, path)
    print(f"written: {path}")
