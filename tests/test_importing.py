"""``import pagraph`` is cheap and harmless: no optional or slow package, no CUDA, no global state changed."""

import json
import subprocess
import sys

import pytest

SLOW_OR_OPTIONAL = [
    "dgl",
    "torch_geometric",
    "numba",
    "scipy",
    "networkx",
    "click",
    "rich",
    "pandas",
    "matplotlib",
    "pyarrow",
]

STATE = """
import logging, os, random, signal, sys, threading, warnings
import numpy, torch

def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "warnings": [str(f) for f in warnings.filters],
        "handlers": [str(h) for h in logging.getLogger().handlers] + [logging.getLogger().level],
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "threads": threading.active_count(),
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch defaults": [str(torch.get_default_dtype()), torch.is_grad_enabled()],
        "torch random": torch.get_rng_state().tolist(),
        "numpy random": [str(x) for x in numpy.random.get_state()],
        "numpy errors": numpy.geterr(),
        "python random": hash(random.getstate()),
        "cuda": torch.cuda.is_initialized(),
    }
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_takes_no_slow_or_optional_package():
    loaded = json.loads(run("import pagraph, sys, json; print(json.dumps(sorted(sys.modules)))"))
    assert "pagraph" in loaded
    assert [name for name in SLOW_OR_OPTIONAL if name in loaded] == []


def test_import_changes_no_global_state():
    out = run(
        STATE + "before = state()\nimport pagraph\nafter = state()\nprint([k for k in before if before[k] != after[k]])"
    )
    assert out.strip() == "[]"


def test_import_writes_nothing_to_the_terminal():
    assert run("import pagraph") == ""


@pytest.mark.parametrize(
    "module",
    ["pagraph.errors", "pagraph.graph", "pagraph.train", "pagraph.datasets", "pagraph.partition", "pagraph.profile"],
)
def test_rooms_outside_the_faces_import_neither_dgl_nor_pyg(module):
    loaded = run(f"import {module}, sys; print('dgl' in sys.modules, 'torch_geometric' in sys.modules)")
    assert loaded.split() == ["False", "False"]


ROOMS = [
    "cache",
    "dgl",
    "features",
    "graph",
    "loader",
    "minibatch",
    "partition",
    "pipeline",
    "profile",
    "pyg",
    "sampling",
    "sampling.accesses",
    "train",
]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_may_be_the_first_to_be_imported(room):
    """A circle of imports shows only from some of its members."""
    assert run(f"import pagraph.{room}") == ""


def test_the_pyg_face_does_not_import_dgl():
    loaded = run("import pagraph.pyg, sys; print('dgl' in sys.modules, 'torch_geometric' in sys.modules)")
    assert loaded.split() == ["False", "True"]


@pytest.mark.parametrize("name", ["Graph", "Loader", "NeighborSampler", "open_partition"])
def test_every_name_may_be_the_first_to_be_imported(name):
    assert run(f"from pagraph import {name}") == ""


def test_names_that_are_exported_exist():
    code = """
import importlib, pkgutil, pagraph
bad = []
for info in pkgutil.walk_packages(pagraph.__path__, "pagraph."):
    module = importlib.import_module(info.name)
    bad += [f"{info.name}.{name}" for name in getattr(module, "__all__", []) if not hasattr(module, name)]
print(bad)
"""
    assert run(code).strip() == "[]"
