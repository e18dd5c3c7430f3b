"""How a benchmark ends: the machine named, what counts, JSON under ``results/``."""

import json
import os
import platform
import statistics
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numba
import numpy as np
import torch

import pagraph

RESULTS = Path(__file__).parent / "results"
PEERS = ("dgl", "torch_geometric", "pyg_lib", "torch_sparse")


def machine():
    """What the figures were measured on, and with."""
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
        **{name: installed(name) for name in PEERS},
        # A benchmark that sets it for its own processes says so beside each figure.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
    }


def installed(name):
    """Version of a package; None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def summarise(runs):
    """Median, minimum and maximum of a list of figures."""
    return {"median": statistics.median(runs), "min": min(runs), "max": max(runs), "runs": runs}


def counted(settings, key=None):
    """A contender's figures in the setting in which it is faster, and those of both; see
    ``sides.py``.

    Args:
        settings: Setting to figures.
        key: The summary among them that decides; None: they are one.
    """
    name = min(settings, key=lambda s: (settings[s][key] if key else settings[s])["median"])
    return settings[name] | {"counted": name, "settings": settings}


def revision(folder):
    """A checkout's commit, marked where files differ from it; None where git knows of none, or is
    not there."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def write(name, result, folder=RESULTS):
    """Write ``NAME.json`` into a folder, whole or not at all."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    told = {"machine": machine(), "revision": revision(Path(__file__).parent), **result}
    temporary.write_text(json.dumps(told, indent=1) + "\n")
    os.replace(temporary, path)
    print(f"written: {path}")
