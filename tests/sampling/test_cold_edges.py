"""Edges on a cold disk: bytes read, pages that are kept, files that change, little memory; each in
its own process."""

import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
from fresh_processes import HANGING, forked_python

from pagraph import Graph
from pagraph.datasets import rmat
from pagraph.datasets.native import write_graph
from pagraph.system.memory import file_system_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/io")

GROUPS = Path("/sys/fs/cgroup/memory")

START = """
import os, sys, time
import numpy as np, torch
from pagraph import FormatError, Graph, NeighborSampler
from pagraph.graph import csc_pages
from pagraph.graph.resident import keep_resident, release_resident, resident_bytes, topology_bytes

folder, group = sys.argv[1:]
csc_pages.LEAST_BYTES = 1
files = [os.path.join(folder, name) for name in ("edge-indptr.npy", "edge-indices.npy")]
sampler = NeighborSampler([3, 3])


def bytes_read():
    lines = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(lines["read_bytes"])


def forget():
    for file in files:
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sample(graph, batches):
    pages = set()
    for key in range(batches):
        seeds = torch.arange(key, graph.num_nodes, graph.num_nodes // 40)
        for block in sampler.sample(graph, seeds, key).blocks:
            begin = graph.csc.indices.data_ptr() % 4096
            pages.update(((begin + block.positions.numpy().astype(np.int64) * 4) // 4096).tolist())
            begin = graph.csc.indptr.data_ptr() % 4096 + block.src_nodes[: block.num_dst].numpy() * 4
            pages.update((-1 - np.concatenate([begin // 4096, (begin + 4) // 4096])).tolist())
    return pages


sample(Graph.open(folder), 1)  # compiles the kernels
forget()
graph = Graph.open(folder)
assert graph.csc.disk_pages is not None
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph of 17 MB of edges, which the system's read-ahead of up to 8 MiB brings in with two
    faults."""
    path = tmp_path_factory.mktemp("cold") / "graph"
    if file_system_of(path.parent) in ("tmpfs", "ramfs", "overlay"):
        pytest.skip("needs temporary files on a disk")
    write_graph(rmat(18), path)
    return path


def run(folder, body, group=""):
    script = START + textwrap.dedent(body)
    # In a group only the process itself counts, not pages that it shares with the server of forks.
    python = sys.executable if group else forked_python()
    command = [python, "-W", "error", "-c", script, str(folder), str(group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.split()


@pytest.mark.many
def test_only_the_pages_of_the_batches_are_read(folder):
    read, pages = run(
        folder,
        """
        before = bytes_read()
        pages = sample(graph, 4)
        print(bytes_read() - before, len(pages))
        """,
    )
    assert 0 < int(read) <= 1.5 * 4096 * int(pages) < 17e6 / 2


@pytest.mark.memory
def test_what_is_kept_is_not_read_again_and_counts_as_ours(folder):
    kept, whole, ours, read, after = run(
        folder,
        """
        keep_resident(graph, 2**20)
        assert 2**20 - 4096 <= resident_bytes(graph) <= 2**20
        kept = keep_resident(graph, 2**30)
        assert kept == keep_resident(graph, 2**20) == resident_bytes(graph)
        assert keep_resident(Graph.open(folder), 2**20) <= 2**20  # another graph of the same files has its own
        graph.csc.check_rows()
        forget()
        before = bytes_read()
        sample(graph, 4)
        read = bytes_read() - before
        size = {}
        for line in open("/proc/self/smaps"):
            if " " in line and "-" in line.split()[0]:
                name = line.split()[-1]
            elif line.startswith("Private_Dirty:") and name in files:
                size[name] = max(size.get(name, 0), int(line.split()[1]) * 1024)
        release_resident(graph)
        print(kept, topology_bytes(graph), sum(size.values()), read, resident_bytes(graph))
        """,
    )
    assert int(kept) <= int(whole)  # pages without an edge are never read
    assert int(ours) == int(kept) > 16e6
    assert int(read) == 0
    assert int(after) == 0


def test_the_pages_that_are_read_most_are_kept(folder):
    few, most = run(
        folder,
        """
        before = bytes_read()
        sample(graph, 8)
        few = bytes_read() - before
        forget()
        graph = Graph.open(folder)
        keep_resident(graph, topology_bytes(graph) // 4)
        before = bytes_read()
        sample(graph, 8)
        print(few, bytes_read() - before)
        """,
    )
    assert int(most) < 0.6 * int(few)  # a quarter at random would leave 0.75


CHANGES = {
    "shortened": "os.truncate(files[1], 4096)",
    "replaced": "os.replace(other, files[1])",
    "removed": "os.unlink(files[1])",
    "written": "open(files[1], 'r+b').close(); os.utime(files[1])",
}


@pytest.mark.every
@pytest.mark.parametrize("least", [1, 2**40], ids=["asked for", "read ahead"])
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_changes_is_one_clear_error(tmp_path, how, least):
    write_graph(rmat(12), tmp_path / "graph")
    raised = run(
        tmp_path / "graph",
        f"""
        csc_pages.LEAST_BYTES = {least}
        other = os.path.join(folder, "other")
        open(other, "wb").write(open(files[1], "rb").read())
        graph = Graph.open(folder)
        sample(graph, 1)
        {CHANGES[how]}
        time.sleep(0.1)
        for call in (lambda: sample(graph, 1), graph.csc.validate, graph.csc.check_rows):
            try:
                call()
            except FormatError as error:
                assert str(error).startswith(files[1]), error
                print("raised")
        """,
    )
    assert raised == ["raised"] * 3


def test_a_file_that_changed_before_the_first_batch_is_an_error(tmp_path):
    write_graph(rmat(12), tmp_path / "graph")
    raised = run(
        tmp_path / "graph",
        """
        graph = Graph.open(folder)
        os.truncate(files[0], 4096)
        for call in (lambda: sample(graph, 1), lambda: keep_resident(graph, 2**20)):
            try:
                call()
            except FormatError as error:
                assert str(error).startswith(files[0]), error
                print("raised")
        """,
    )
    assert raised == ["raised"] * 2


@pytest.fixture
def small_group():
    """A memory control group of 8 MiB; skipped where this process may make none."""
    group = GROUPS / f"pagraph-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(8 * 2**20))
    except OSError as error:
        pytest.skip(f"needs a memory control group: {error}")
    yield group
    group.rmdir()


@pytest.mark.memory
def test_little_memory_costs_no_more_than_the_pages(folder, small_group):
    read, pages = run(
        folder,
        """
        before, pages = bytes_read(), 0
        with open(os.path.join(group, "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))  # what was taken before, the interpreter above all, counts elsewhere
        for key in range(10):
            pages += len(sample(graph, 1))
        print(bytes_read() - before, pages)
        """,
        small_group,
    )
    assert int(read) <= 3 * 4096 * int(pages)


def test_an_open_graph_takes_no_memory_for_its_second_mapping(folder):
    graph = Graph.open(folder)
    before = _resident()
    assert graph.csc.scattered is graph.csc.scattered
    assert _resident() - before < 2**20


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
