"""The GPU kernels of sampling, compiled for a GPU without one: what a batch launches compiles, and
as it should."""

import json
import os
import re

import pytest
from fresh_processes import answer, bare_python

pytest.importorskip("triton")

pytestmark = pytest.mark.compilers

# Where kernels are interpreted they cannot be compiled: it is decided when they are imported. So a
# process of its own samples on the CPU's memory, with Triton believing in a GPU; its launches are
# bound and compiled, and go no further.
COMPILE = r"""
import json, os, subprocess, sys, tempfile
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from pagraph import CSC, Graph, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.datasets import citation
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.gpu import run as device_run
from pagraph.sampling.gpu.sampler import DeviceSampler, _Given

capability = int(sys.argv[1])


class NoDriver:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)


class Zeros(HostAccelerator):
    runs_kernels = True

    def empty(self, shape, dtype):  # nothing runs, so sizes stay what they are
        return super().empty(shape, dtype).zero_()


def resources(cubin):
    program = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout


def compile(kernel, programs, *arguments, **constants):
    ids = [str(topology.relations[0].indices.dtype), str(dtype)]
    compiled = kernel.warmup(*arguments, grid=(max(1, programs),), **constants)
    launched.append((kernel.__name__, *ids, constants, compiled.hash))
    if compiled.hash not in variants:
        variants[compiled.hash] = {"ptx": compiled.asm["ptx"], "report": resources(compiled.asm["cubin"])}


driver.set_active(NoDriver())
device_run.launch = compile
launched, variants = [], {}
plain = Graph.from_coo(torch.arange(1000) % 100, torch.arange(1000) % 97, 100)
long = Graph(CSC(plain.csc.indptr.long(), plain.csc.indices.long(), 100))
widths = [1, 2, 3, 5, 10, 25, 64, 128, -1]
few = [10, 10, -1]
for graph, dtype, fanouts in ((plain, torch.int64, widths), (long, torch.int64, few), (plain, torch.int32, few)):
    for replace in (False, True):
        sampler = DeviceSampler(graph, NeighborSampler(fanouts, replace=replace), Zeros(), None)
        topology, seeds = sampler.topology, torch.arange(50, dtype=dtype)
        sampler.sample(seeds, 2**64 - 1)
        subgraphs = DeviceSampler(graph, SubgraphSampler(fanouts, replace=replace), Zeros(), None)
        subgraphs.sample(seeds, 2**64 - 1)
        for drawing in (sampler, subgraphs):
            given = _Given(seeds, [seeds], 2**63, dtype, None, None)
            run, _ = drawing._enqueue(drawing._placed, given)
            parts = run.parts()
            places = [(256 * number, 50) for number in range(len(parts))]
            device_run.copy_out(parts, run.buffers(), run._state, places, slab_at=3)
        subgraphs.close()
typed = citation(300, num_features=2, num_author_features=2)
dtype = torch.int64
for kind in (NeighborSampler, SubgraphSampler):
    sampler = DeviceSampler(typed, kind([10, 10]), Zeros(), None)
    topology, seeds = sampler.topology, torch.arange(50)
    sampler.sample({"paper": seeds}, 2**64 - 1)
seeds = {"paper": torch.arange(50)}
for name in typed.node_types:
    typed.node_fields(name)["time"] = torch.arange(typed.num_nodes_of(name)) % 7
for edge_type in typed.edge_types:
    typed.edge_fields(edge_type)["weight"] = torch.arange(typed.csc_of(edge_type).num_edges) % 5 * 0.5
# Fewer registers there: what fits sm_80 fits sm_90.
for settings in () if capability > 80 else (
    {"disjoint": True},
    {"time": "time", "time_window": 3},
    {"time": "time", "latest": True},
    {"prob": "weight"},
    {"prob": "weight", "disjoint": True},
):
    for replace in (False, True):
        sampler = DeviceSampler(typed, SubgraphSampler([10, -1], replace=replace, **settings), Zeros(), None)
        topology = sampler.topology
        times = {"paper": torch.full((50,), 5)} if "time" in settings else None
        sampler.sample(seeds, 2**64 - 1, seed_times=times)
        if sampler._sampler.disjoint:
            counts = [50 * (name == "paper") for name in typed.node_types]
            run = device_run.DeviceRun(Zeros(), topology, sampler._plan(sampler._placed, counts), torch.int64)
            run._most_trees = 50
            table = run._table(0, 512)[:3]
            compile(run._kernels.enter_known, 1, torch.arange(512), 50, *table, BLOCK=512)
json.dump({"launched": launched, "variants": variants}, open(os.environ["PAGRAPH_TEST_ANSWER"], "w"))
"""


@pytest.fixture(scope="module", params=[80, 90])
def compiled(request):
    """Kernel, dtypes of the graph's and of the batch's ids, constants, and code of each launch,
    with its resources."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [bare_python(), "-c", COMPILE, str(request.param)]
    try:
        found = answer(command, env=environment)
    except AssertionError as error:
        if "cuobjdump" in str(error) and "No such file" in str(error):
            pytest.skip("needs cuobjdump, which Triton's wheels for Linux have")
        raise
    return [(*launch[:-1], found["variants"][launch[-1]]) for launch in found["launched"]]


KERNELS = {
    "enter_seeds",
    "enter_known",
    "measure",
    "pick_weighted",
    "pick_distinct",
    "pick_repeated",
    "pick_all",
    "find_places",
    "relabel",
    "settle",
    "forget",
    "copy_out",
    "put_edges",
}


def test_all_kernels_compile_once_for_all_hops(compiled):
    assert {launch[0] for launch in compiled} | {"enter_known", "pick_weighted"} == KERNELS
    for name in (
        "find_places",
        "relabel",
        "pick_distinct",
        "pick_repeated",
        "pick_all",
        "settle",
        "measure",
    ):
        of_long_ids = [
            launch for launch in compiled if launch[:3] == (name, "torch.int64", "torch.int64")
        ]
        constants = {json.dumps(launch[3]) for launch in of_long_ids}
        assert len({launch[4]["ptx"] for launch in of_long_ids}) <= len(constants), name


def test_no_variant_spills_registers(compiled):
    for name, graph, batch, constants, result in compiled:
        variant = (name, graph, batch, constants)
        assert ".local" not in result["ptx"], variant
        assert "STACK:0" in result["report"] and "LOCAL:0" in result["report"], variant
        # 20 warps of each multiprocessor at least are there to hide the latency of random reads.
        assert int(re.search(r"REG:(\d+)", result["report"]).group(1)) <= 96, variant


def test_atomics_order_nothing_else(compiled):
    """Fences around each atomic would cost more than the atomic; kernels follow each other
    anyway."""
    without = {"find_places", "relabel", "settle", "forget", "copy_out", "put_edges"}
    for name, _, _, constants, result in compiled:
        atomics = re.findall(r"(?:atom|red)\.global\.\S+", result["ptx"])
        assert all("relaxed" in atomic for atomic in atomics), (name, atomics)
        # In trees a vertex is looked up as it is entered.
        assert bool(atomics) == (name not in without or constants.get("TREES", False)), name


def test_what_is_read_and_written_in_order_moves_16_bytes_at_a_time(compiled):
    wide = {  # loads and stores of 16 bytes, for int32 in the graph and int64 in the batch
        "measure": {"ld.global.v2.b64", "st.global.v2.b64", "st.global.v4.b32"},
        "find_places": {"ld.global.v4.b32", "st.global.v2.b64", "st.global.v4.b32"},
        "relabel": {"ld.global.v2.b64", "st.global.v2.b64"},
    }
    for name, graph, batch, constants, result in compiled:
        # The numbers of vertices in trees are int64.
        is_tree = name == "find_places" and constants["TREES"]
        if name in wide and not is_tree and (graph, batch) == ("torch.int32", "torch.int64"):
            expected = wide[name]
            if name == "measure" and constants["ONCE"]:
                # The vertices that draw begin anywhere in the buffer.
                expected = expected - {"ld.global.v2.b64"}
            assert expected <= set(re.findall(r"(?:ld|st)\.global\.\S+", result["ptx"])), name
