"""``import pagraph`` is cheap and harmless: no optional or slow package, no CUDA, no global state
changed."""

import json
import pkgutil
import subprocess
import sys

import pytest
from fresh_processes import HANGING, answer, bare_python, forked_python

import pagraph

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


def run(code: str, python: str = sys.executable) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    return done.stdout


FIRST = """
import json, os, sys

def outcome(code):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1), os.dup2(write, 2)
        try:
            exec(code, {})
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said

outcomes = {code: outcome(code) for code in json.loads(sys.argv[1])}
json.dump(outcomes, open(os.environ["PAGRAPH_TEST_ANSWER"], "w"))
"""
TELL = "; import sys; print('dgl' in sys.modules, 'torch_geometric' in sys.modules)"


@pytest.fixture(scope="module")
def first():
    """What statements write that are the first of pagraph's in a process: a fork of one that has
    imported torch."""
    modules = {*OUTSIDE, "pagraph.pyg", *(f"pagraph.{room}" for room in ROOMS)}
    codes = [f"import {module}{TELL}" for module in sorted(modules)]
    codes += [f"from pagraph import {name}" for name in NAMES]
    command = [bare_python(), "-c", FIRST, json.dumps(codes)]
    outcomes = answer(command)

    def said(code):
        status, text = outcomes[code]
        assert status == 0, text
        return text

    return said


@pytest.mark.wheel
def test_import_takes_no_slow_or_optional_package():
    loaded = json.loads(run("import pagraph, sys, json; print(json.dumps(sorted(sys.modules)))"))
    assert "pagraph" in loaded
    assert [name for name in SLOW_OR_OPTIONAL if name in loaded] == []


def test_import_changes_no_global_state():
    out = run(
        STATE + "before = state()\nimport pagraph\nafter = state()\nprint([k for k in before if "
        "before[k] != after[k]])",
        bare_python(),
    )
    assert out.strip() == "[]"


@pytest.mark.wheel
def test_import_writes_nothing_to_the_terminal():
    assert run("import pagraph") == ""


OUTSIDE = [
    "pagraph.errors",
    "pagraph.graph.graph",
    "pagraph.train",
    "pagraph.train.assignment",
    "pagraph.train.loop",
    "pagraph.datasets",
    "pagraph.partition",
    "pagraph.profile",
]


@pytest.mark.processes
@pytest.mark.parametrize("module", OUTSIDE)
def test_rooms_outside_the_faces_import_neither_dgl_nor_pyg(module, first):
    assert first(f"import {module}{TELL}").split() == ["False", "False"]


ROOMS = sorted(
    {info.name for info in pkgutil.iter_modules(pagraph.__path__)} - {"__main__"}
    | {"ranking.presample"}
)


@pytest.mark.every
@pytest.mark.parametrize("room", ROOMS)
def test_every_room_may_be_the_first_to_be_imported(room, first):
    """A circle of imports shows only from some of its members."""
    told = first(f"import pagraph.{room}{TELL}")
    assert told in {f"{dgl} {pyg}\n" for dgl in (True, False) for pyg in (True, False)}


def test_the_pyg_face_does_not_import_dgl(first):
    assert first(f"import pagraph.pyg{TELL}").split() == ["False", "True"]


NAMES = ["Graph", "Loader", "NeighborSampler", "open_partition"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_may_be_the_first_to_be_imported(name, first):
    assert first(f"from pagraph import {name}") == ""


@pytest.mark.wheel
@pytest.mark.every
def test_names_that_are_exported_exist():
    code = """
import importlib, pkgutil, pagraph
bad = []
for info in pkgutil.walk_packages(pagraph.__path__, "pagraph."):
    try:
        module = importlib.import_module(info.name)
    except ModuleNotFoundError as error:
        # The kernels of GPUs; an installation without any has no Triton.
        if error.name != "triton":
            raise
        continue
    bad += [f"{info.name}.{name}" for name in getattr(module, "__all__", []) if not hasattr(module, name)]
print(bad)
"""
    assert run(code, forked_python()).strip() == "[]"
