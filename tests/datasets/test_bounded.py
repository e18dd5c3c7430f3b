"""Folders written in bounded memory are those of memory, byte for byte, and appear whole or not at
all."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pytest
from fresh_processes import HANGING, OF_CUDA, forked_python
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError, Graph
from pagraph.datasets import (
    edge_list,
    edge_sort,
    edge_text,
    import_graph,
    read_graph,
    rmat,
    text_blocks,
    write_graph,
)

LITTLE = edge_sort._SORT_ROW_BYTES * 100  # so little that edges need many buckets


def same_folders(one, other):
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture
def little(monkeypatch):
    monkeypatch.setattr(edge_sort, "FEW_EDGES", -1)
    monkeypatch.setattr(edge_sort, "room_of", lambda memory: LITTLE)
    monkeypatch.setattr(edge_list, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(edge_text, "_FEW_BYTES", 0)
    monkeypatch.setattr(edge_list, "_ID_BYTES", 10)


@pytest.mark.every
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0, "edge_factor": 3},
        {"scale": 9, "num_features": 3, "num_classes": 4},
        {"scale": 8, "num_edges": 0, "num_features": 5, "feature_dtype": "float16"},
        {"scale": 7, "noise": 0.05, "num_features": 2, "feature_dtype": "bfloat16", "seed": 3},
    ],
)
def test_rmat(tmp_path, undirected, simple, options):
    options = {"undirected": undirected, "simple": simple} | options
    scale = options.pop("scale")
    write_graph(rmat(scale, **options), tmp_path / "memory", origin={"a": 1})
    graph = rmat(scale, **options, out=tmp_path / "files", origin={"a": 1})
    same_folders(tmp_path / "memory", tmp_path / "files")
    assert graph.num_edges == Graph.open(tmp_path / "memory").num_edges


LISTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(-9, 9, width=32)),
    min_size=1,
    max_size=90,
)


@pytest.mark.every
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("kind", ["txt", "words", "large ids", "parquet", "npy"])
@settings(max_examples=examples(15), deadline=None)
@given(edges=LISTS, undirected=st.booleans(), ordered=st.booleans(), wide=st.booleans())
def test_import(kind, edges, undirected, ordered, wide):
    edges = sorted(edges, key=lambda edge: edge[1]) if ordered else edges
    options = {"undirected": undirected}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "edges.txt")
        if kind == "npy":
            path = path.with_suffix(".npy")
            dtype = np.int64 if wide else np.uint8
            np.save(path, np.array([edge[:2] for edge in [*edges, *edges, *edges]], dtype=dtype))
        elif kind == "parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            columns = dict(
                zip(("src", "dst", "w"), map(list, zip(*edges, strict=True)), strict=True)
            )
            path, options["weight"] = path.with_suffix(".parquet"), "w"
            parquet.write_table(parquet.read_table.__globals__["pa"].table(columns), path)
        else:
            shift = 2**40 if kind == "large ids" else 0
            lead = "v" if kind == "words" else ""
            lines = [f"{lead}{u - shift} {lead}{v + shift} {w!r}\n" for u, v, w in edges]
            path.write_text("".join(lines))
            options |= {"weight": "w", "relabel": kind != "txt"}
            options |= {"header": False} if kind == "words" else {}
        write_graph(read_graph(path, **options, train=0.5), Path(folder, "memory"))
        import_graph(path, Path(folder, "files"), **options, train=0.5)
        same_folders(Path(folder, "memory"), Path(folder, "files"))


def save(path, rows):
    """Save 2-D numbers by the ending of ``path``."""
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".parquet":
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {
            "a": rows[:, 0],
            "b": pa.FixedSizeListArray.from_arrays(rows[:, 1:].reshape(-1), rows.shape[1] - 1),
        }
        parquet.write_table(pa.table(columns), path)
    else:
        np.savetxt(path, rows, delimiter=",", fmt="%d" if rows.dtype.kind == "i" else "%.9g")


@pytest.mark.every
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("ending", ["npy", "parquet", "csv", "csv.gz"])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_features_in_files(tmp_path, monkeypatch, ending, dtype):
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 10_000)
    # More than DuckDB gives at once.
    rows = np.random.default_rng(0).normal(0, 1000, (3000, 3)).astype(dtype)
    (tmp_path / "a.txt").write_text("0 2999\n5 3\n")
    save(tmp_path / f"x.{ending}", rows)
    save(tmp_path / f"y.{ending}", rows[:, :2].astype(np.int64))
    options = {"features": tmp_path / f"x.{ending}", "labels": tmp_path / f"y.{ending}"}
    write_graph(read_graph(tmp_path / "a.txt", **options), tmp_path / "memory")
    got = import_graph(tmp_path / "a.txt", tmp_path / "files", **options)
    same_folders(tmp_path / "memory", tmp_path / "files")
    assert np.array_equal(got.ndata["feat"].numpy(), rows)


@pytest.mark.usefixtures("little")
def test_words_that_do_not_fit(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"a{i} b{i}\n" for i in range(1000)))
    with pytest.raises(
        FormatError, match="must have ids that take at most 6.25 KiB, 2,000 of 4 bytes"
    ):
        import_graph(tmp_path / "a.txt", tmp_path / "g", relabel=True, header=False)
    (tmp_path / "b.txt").write_text("".join(f"{2**50 + i} {i}\n" for i in range(1000)))
    with pytest.raises(ValueError, match="memory must be at least .* to relabel ids"):
        import_graph(tmp_path / "b.txt", tmp_path / "g", relabel=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("memory", ["1KiB", 10**6, 0, "0.5", "50%", 0.5])
def test_memory_that_is_none(tmp_path, memory):
    with pytest.raises(ValueError, match="memory must"):
        rmat(4, out=tmp_path / "g", memory=memory)
    assert list(tmp_path.iterdir()) == []


def test_memory_bounds_what_is_read_into_memory(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.zeros((2, 2**20), dtype=np.int64))
    with pytest.raises(
        FormatError, match=r"g.npz must fit into memory, got 16 MiB of arrays for 15 MiB"
    ):
        import_graph(tmp_path / "g.npz", tmp_path / "h", memory="15MiB")
    assert not (tmp_path / "h").exists()
    assert import_graph(tmp_path / "g.npz", tmp_path / "h", memory="17MiB").num_edges == 2**20


def test_progress_covers_all_steps(tmp_path):
    calls = []
    rmat(10, num_features=4, out=tmp_path / "g", progress=lambda *call: calls.append(call))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]


GENERATE = (
    "import sys; from pagraph.datasets import rmat; rmat(18, num_features=64, "
    "num_classes=2, out=sys.argv[1])"
)
IMPORT = (
    "import sys; from pagraph.datasets import import_graph; import_graph(sys.argv[2], sys.argv[1])"
)


@pytest.fixture(scope="module")
def long_list(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "edges.txt"
    ends = f"hash(1, i) % {2**20}, hash(2, i) % {2**20}"
    form = "format csv, delimiter ' ', header false"
    duckdb.sql(f"COPY (SELECT {ends} FROM range(2_000_000) AS rows(i)) TO '{path}' ({form})")
    return path


def sizes(folder):
    """Bytes in each unfinished folder."""
    found = {}
    for part in folder.glob(".*.partial"):
        with contextlib.suppress(FileNotFoundError):  # taken away meanwhile
            found[part.name] = sum(file.stat().st_size for file in part.iterdir())
    return found


@pytest.mark.memory
@pytest.mark.parametrize("code", [GENERATE, IMPORT])
@pytest.mark.parametrize(
    ("how", "share"), [(signal.SIGKILL, 0.1), (signal.SIGKILL, 0.7), (signal.SIGINT, 0.4)]
)
def test_a_run_that_ends_early_leaves_nothing_half_written(tmp_path, long_list, code, how, share):
    whole = 70e6 if code is GENERATE else 30e6
    command = [forked_python(), "-c", code, tmp_path / "g", long_list]
    for _ in range(5):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        end = time.monotonic() + HANGING
        while max(sizes(tmp_path).values(), default=0) < share * whole and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.002)
        process.send_signal(how)
        process.communicate(timeout=HANGING)
        if process.returncode:
            break
        # On a busy machine it has ended before it was looked at again.
        shutil.rmtree(tmp_path / "g")
    assert process.returncode != 0
    assert not (tmp_path / "g").exists()
    if how == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []
        return
    # Hidden, opened by no reader, and taken away by the next writer.
    assert len(list(tmp_path.iterdir())) == 1
    rmat(4, out=tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    assert sorted(path.suffix for path in (tmp_path / "g").iterdir()) == [".json", ".npy", ".npy"]


@pytest.mark.memory
@pytest.mark.parametrize("code", [GENERATE, IMPORT])
@pytest.mark.parametrize("megabytes", [1, 12, 25])
def test_a_full_disk_is_named_and_left_empty(tmp_path, long_list, code, megabytes):
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", tmp_path], capture_output=True
    )
    if mount.returncode:
        pytest.skip("no right to mount")
    try:
        done = subprocess.run(
            [forked_python(), "-c", code, tmp_path / "g", long_list], capture_output=True, text=True
        )
        left = list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert done.returncode != 0
    assert (
        done.stderr.splitlines()[-1]
        == f"OSError: [Errno 28] No space left on device: '{tmp_path / 'g'}'"
    )
    assert left == []


@pytest.mark.memory
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the peak of memory from /proc"
)
def test_memory_does_not_grow_with_the_edges(tmp_path):
    code = """
import resource, sys
from pagraph.datasets import rmat
rmat(10, out=sys.argv[1] + "warm", memory=sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rmat(21, num_features=32, feature_dtype="float16", out=sys.argv[1] + "g", memory=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", code, f"{tmp_path}/", f"{320 + OF_CUDA}MiB"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400 * 1024  # with mapped pages; in memory: 1 GiB
