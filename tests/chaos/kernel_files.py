"""Damaged files of compiled kernels: the next process compiles those anew and delivers the right
batches, and the one after it loads all of them."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

from .campaign import CLEAN_PYTHON
from .worker import Case

READ = """
import hashlib, json, sys
import torch
from pagraph import Graph, Loader, NeighborSampler, _compiling

ends = torch.arange(80_000).view(2, -1) * 7919 % 5003  # so many edges that kernels sort them
graph = Graph.from_coo(*ends)
graph.ndata["feat"] = torch.arange(graph.num_nodes * 4.0).view(-1, 4)
# In one thread: others call kernels by how long they measure these to take.
options = {"batch_size": 500, "seed": 1, "prefetch": 0}
loader = Loader(graph, range(2000), NeighborSampler([3, 2]), fields=["feat"], **options)
found = hashlib.sha256()
for batch in loader:
    for tensor in (batch.input_nodes, batch.blocks[0].indices, batch.features["feat"]):
        found.update(tensor.numpy().tobytes())
with open(sys.argv[1], "w") as file:
    json.dump([found.hexdigest(), len(_compiling._compiled)], file)
"""
"""A process that reads a loader's batches, and counts the kernels that it compiles."""

_whole: list[str] = []  # the digest of batches that were read with whole files


def read(case: Case, kernels: Path) -> tuple[str, int, str]:
    """A process's digest of its batches, the kernels that it compiled, and what it said."""
    answer = case.folder / "answer.json"
    answer.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PAGRAPH_QUIET"}
    environment |= {"NUMBA_CACHE_DIR": str(kernels), "NUMBA_BOUNDSCHECK": "0"}
    command = [CLEAN_PYTHON, "-c", READ, str(answer)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    digest, compiled = json.loads(answer.read_text())
    return digest, compiled, done.stderr


def flip(content: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def zero(content: bytes, rng: Random) -> bytes:
    """Zeros from some place on: blocks of the disk that were not written."""
    at = rng.randrange(len(content))
    return content[:at] + bytes(len(content) - at)


DAMAGES: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "cut": lambda content, rng: content[: rng.randrange(len(content))],
    "flipped": flip,
    "zeroed": zero,
    "emptied": lambda content, rng: b"",
    "missing": lambda content, rng: None,
}


def trial(case: Case) -> None:
    kept = case.samples / "kernels"
    if not _whole:
        shutil.rmtree(kept, ignore_errors=True)
        _whole.append(read(case, kept)[0])
    kernels = case.samples / "damaged kernels"  # in a folder that others cannot enter
    shutil.rmtree(kernels, ignore_errors=True)
    shutil.copytree(kept, kernels)
    files = sorted(kernels.rglob("*.nbc"))
    damaged = case.rng.sample(files, case.rng.randint(1, 4))
    told = ""
    for path in damaged:
        content = path.read_bytes()
        damage = case.choose(path.name, DAMAGES)
        worse = DAMAGES[damage](content, case.rng)
        if worse is None:
            path.unlink()
        elif worse != content:  # the zeros may have been there
            path.write_bytes(worse)
            told = "compiling kernels again"
    digest, compiled, said = read(case, kernels)
    assert digest == _whole[0], "other batches"
    assert 0 < compiled <= len(damaged), f"{compiled} kernels compiled of {len(damaged)}"
    lines = [line for line in said.splitlines() if "(one-time)" not in line]
    assert len(lines) == bool(told) and all(told in line for line in lines), said
    case.figures = {"damages": len(damaged), "kernels compiled": compiled}
    assert read(case, kernels) == (digest, 0, ""), "what was compiled again is not loaded"
