"""The GPU kernels of sampling, compiled for a GPU without one: they compile, and keep to their registers."""

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# Where kernels are interpreted they cannot be compiled: it is decided when they are imported.
COMPILE = r"""
import json, os, re, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pagraph.sampling import _gpu

ptxas = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "ptxas")


def compile(name, graph, batch, capability, aligned, constants):
    kernel = getattr(_gpu, name)
    of_graph = dict.fromkeys(["indptr", "indices", "starts", "degrees", "positions", "neighbors"], "*" + graph)
    of_batch = dict.fromkeys(["nodes", "counts", "out_indptr", "places", "local_ids"], "*" + batch)
    others = {"state": "*i64", "first": "*i32", "flags": "*i32", "ranks": "*i32"}
    sizes = {"num_nodes": graph, "num_edges": graph, "hop": "i32", "capacity": "i32", "begin": "i32"}
    types = {**of_graph, **of_batch, **others, **sizes, **dict.fromkeys(constants, "constexpr")}
    signature = {argument: types[argument] for argument in kernel.arg_names}
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, argument in enumerate(kernel.arg_names)
        if signature[argument].startswith("*") and (aligned or argument not in ("indptr", "indices"))
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4}).asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.ptx")
        with open(path, "w") as file:
            file.write(ptx)
        target = re.search(r"\.target (\w+)", ptx).group(1)
        command = [ptxas, "-v", f"--gpu-name={target}", path, "-o", os.devnull]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {"ptx": ptx, "report": report}


print(json.dumps([compile(*job) for job in json.loads(sys.stdin.read())]))
"""

WIDTHS = [(1, 1), (2, 2), (3, 4), (5, 8), (10, 16), (25, 32), (64, 64), (128, 128)]


def variants():
    """Kernel and constants of everything that a batch may launch, fan-outs by one example of each width."""
    from pagraph.sampling.device_run import _BLOCK, _TILE

    yield "enter_seeds", {"BLOCK": _BLOCK}
    for fanout, width in WIDTHS:
        for kernel in ("pick_distinct", "pick_repeated"):
            yield kernel, {"FANOUT": fanout, "K": width, "BLOCK": _TILE // width}
    for fanout, replace in ((-1, False), (0, False), (10, False), (10, True)):
        yield "measure", {"FANOUT": fanout, "REPLACE": replace, "BLOCK": _BLOCK}
    for steps in (8, 16, 24, 32):
        yield "pick_all", {"STEPS": steps, "BLOCK": _BLOCK}
    yield "find_places", {"BLOCK": _BLOCK}
    yield "relabel", {"BLOCK": _BLOCK}
    for clear in (False, True):
        yield "settle", {"CLEAR": clear, "BLOCK": _BLOCK}


@pytest.fixture(scope="module", params=[80, 90])
def compiled(request):
    """Each variant for one compute capability, some for other ids and alignments, with what ptxas says of them."""
    jobs = [(name, "i32", "i64", request.param, True, constants) for name, constants in variants()]
    others = [("i64", "i64", True), ("i32", "i32", False)]
    few = {name: constants for name, constants in variants() if constants.get("K", 16) == 16}
    jobs += [(name, *ids, request.param, aligned, few[name]) for name in few for *ids, aligned in others]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, env=environment)
    if "ptxas" in done.stderr and "No such file" in done.stderr:
        pytest.skip("needs ptxas, which Triton's wheels for Linux have")
    assert done.returncode == 0, done.stderr[-2000:]
    return list(zip(jobs, json.loads(done.stdout), strict=True))


def test_no_variant_spills_registers(compiled):
    for job, result in compiled:
        assert ".local" not in result["ptx"], job
        assert re.findall(r"(\d+) bytes spill", result["report"]) == ["0", "0"], job
        # 16 warps of each multiprocessor at least are there to hide the latency of random reads
        assert int(re.search(r"Used (\d+) registers", result["report"]).group(1)) <= 128, job


def test_atomics_order_nothing_else(compiled):
    """Fences around each atomic would cost more than the atomic; kernels follow each other anyway."""
    for job, result in compiled:
        atomics = re.findall(r"atom\.\S+", result["ptx"])
        assert all("relaxed" in atomic for atomic in atomics), (job, atomics)
        assert bool(atomics) == (job[0] in ("enter_seeds", "pick_distinct", "pick_repeated", "pick_all") or (
            job[0] == "measure" and job[5]["FANOUT"] != 0)), job  # fmt: skip


def test_ids_are_read_as_wide_as_they_are(compiled):
    for (name, graph, *_), result in compiled:
        if name == "measure":
            loads = re.findall(r"ld\.global\S*\.(b\d+)", result["ptx"])
            assert ("b32" in loads) == (graph == "i32"), (name, graph, loads)


def test_what_is_read_and_written_in_order_moves_16_bytes_at_a_time(compiled):
    wide = {  # loads and stores of 16 bytes, for int32 in the graph and int64 in the batch
        "measure": {"ld.global.v2.b64", "st.global.v2.b64", "st.global.v4.b32"},
        "find_places": {"ld.global.v4.b32", "st.global.v2.b64", "st.global.v4.b32"},
        "relabel": {"ld.global.v2.b64", "st.global.v2.b64"},
    }
    for (name, graph, batch, *_), result in compiled:
        if name in wide and (graph, batch) == ("i32", "i64"):
            assert wide[name] <= set(re.findall(r"(?:ld|st)\.global\.\S+", result["ptx"])), name
