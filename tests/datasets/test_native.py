"""The native folder: every dtype and shape round-trips, and nothing that is wrong opens."""

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import torch
from fresh_processes import HANGING, forked_python
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.datasets.native import open_native
from pagraph.graph.graph import EDGE_TYPE

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
]


def field(rows, dtype, shape=()):
    """Random bits of ``dtype``; bool gets only 0 and 1."""
    torch.manual_seed(rows)
    size = math.prod((rows, *shape)) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    return raw.view(dtype).reshape(rows, *shape)


def same_bits(a, b):
    as_bytes = [
        t.contiguous().reshape(-1).view(torch.uint8) if t.numel() else torch.empty(0)
        for t in (a, b)
    ]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*as_bytes)


@pytest.fixture
def graph():
    made = Graph.from_coo([0, 1, 1, 3, 2, 2], [2, 0, 2, 1, 2, 2], 5)
    made.set_field("feat", field(5, torch.float32, (3,)))
    made.set_field("label", [0, 1, 2, 0, 1])
    made.set_field("train_mask", [True, False, True, False, False])
    made.set_field("w", torch.arange(6, dtype=torch.float16), edge_type=EDGE_TYPE)
    return made


@pytest.fixture
def folder(graph, tmp_path):
    write_graph(graph, tmp_path / "g", origin={"made": "by hand"})
    return tmp_path / "g"


def edit(folder, change):
    """Change the manifest in place, which then vouches for nothing in itself."""
    path = folder / "manifest.json"
    value = json.loads(path.read_text())
    del value["checksum"]
    change(value)
    path.write_text(json.dumps(value))


class TestRoundTrip:
    @pytest.mark.every
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(), (3,), (2, 2), (1, 2, 3), (0,)], ids=str)
    def test_fields(self, tmp_path, dtype, shape):
        graph = Graph.from_coo([0, 1, 2], [1, 2, 3], 7)
        graph.set_field("x", field(7, dtype, shape))
        graph.set_field("e", field(3, dtype, shape), edge_type=EDGE_TYPE)
        write_graph(graph, tmp_path / "g")
        opened = open_native(tmp_path / "g", verify=True)
        assert same_bits(opened.ndata["x"], graph.ndata["x"])
        assert same_bits(opened.edata["e"], graph.edata["e"])

    def test_bfloat16_is_stored_as_int16(self, tmp_path):
        graph = Graph.from_coo(
            [0], [1], ndata={"x": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)}
        )
        write_graph(graph, tmp_path / "g")
        stored = np.load(tmp_path / "g" / "node-x.npy", allow_pickle=False)
        assert stored.dtype == np.int16
        assert open_graph(tmp_path / "g").ndata["x"][0] == 1.5

    @settings(max_examples=examples(50), deadline=None)
    @given(st.data())
    def test_structure(self, tmp_path_factory, data):
        num_nodes = data.draw(st.integers(1, 10))
        ids = st.lists(st.integers(0, num_nodes - 1), min_size=8, max_size=8)
        graph = Graph.from_coo(data.draw(ids), data.draw(ids), num_nodes)
        target = tmp_path_factory.mktemp("native") / "g"
        write_graph(graph, target)
        opened = open_native(target, verify=True)
        assert opened.num_nodes == num_nodes
        for name in ("indptr", "indices", "edge_ids"):
            want, got = getattr(graph.csc, name), getattr(opened.csc, name)
            assert (want is None and got is None) or same_bits(want, got)

    @pytest.mark.parametrize(("num_nodes", "ends"), [(0, []), (4, []), (1, [0]), (1, [0, 0, 0])])
    def test_small_graphs(self, tmp_path, num_nodes, ends):
        write_graph(Graph.from_coo(ends, ends, num_nodes), tmp_path / "g")
        opened = open_native(tmp_path / "g", verify=True)
        assert (opened.num_nodes, opened.num_edges) == (num_nodes, len(ends))

    def test_int64_ids_stay(self, tmp_path):
        csc = CSC(torch.tensor([0, 1]), torch.tensor([0]), 1, torch.tensor([2**40]))
        write_graph(Graph(csc), tmp_path / "g")
        opened = open_native(tmp_path / "g", verify=True).csc
        assert opened.indices.dtype == torch.int64
        assert opened.edge_ids.tolist() == [2**40]

    def test_tensors_that_are_views(self, tmp_path):
        base = torch.arange(24.0).reshape(4, 6)
        graph = Graph.from_coo([0], [3])
        graph.set_field("columns", base[:, ::2])
        graph.set_field("turned", base.T[:4])
        graph.set_field("repeated", torch.tensor([5.0]).expand(4, 3))
        graph.set_field("trained", torch.ones(4, requires_grad=True))
        graph.set_field("conjugate", torch.ones(4, dtype=torch.complex64).mul(1j).conj())
        write_graph(graph, tmp_path / "g")
        opened = open_native(tmp_path / "g", verify=True)
        for name, value in graph.ndata.items():
            assert torch.equal(opened.ndata[name], value.detach())

    def test_arrays_larger_than_a_chunk(self, tmp_path, monkeypatch):
        monkeypatch.setattr("pagraph.datasets.native._CHUNK_BYTES", 100)
        graph = Graph.from_coo(list(range(50)), list(range(50)), ndata={"x": torch.randn(50, 33)})
        calls = []
        write_graph(graph, tmp_path / "g", progress=lambda done, total: calls.append((done, total)))
        assert torch.equal(open_native(tmp_path / "g", verify=True).ndata["x"], graph.ndata["x"])
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert calls[-1][0] == calls[-1][1] == 50 * 33 * 4 + (51 + 50) * 4

    def test_several_types(self, tmp_path):
        writes = Graph.from_coo([0, 1, 1], [0, 0, 1]).csc
        cites = Graph.from_coo([0], [1]).csc
        types = {("author", "writes", "paper"): writes, ("paper", "cites", "paper"): cites}
        ndata = {"paper": {"feat": torch.ones(2, 3)}, "author": {"feat": torch.zeros(2, 1)}}
        graph = Graph(types, ndata=ndata, edata={("paper", "cites", "paper"): {"w": [7]}})
        write_graph(graph, tmp_path / "g")
        opened = open_native(tmp_path / "g", verify=True)
        assert opened.edge_types == graph.edge_types
        assert opened.node_types == graph.node_types
        assert opened.csc_of(("author", "writes", "paper")).indices.tolist() == [0, 1, 1]
        assert opened.node_fields("author")["feat"].shape == (2, 1)
        assert opened.edge_fields(("paper", "cites", "paper"))["w"].tolist() == [7]

    def test_field_names_of_any_kind(self, tmp_path):
        names = [
            "a/b",
            "../x",
            "A",
            "a",
            "",
            "ü",
            "x" * 300,
            "indptr",
            "a b",
            "a_b",
            "manifest.json",
        ]
        graph = Graph.from_coo([0], [1], ndata={name: [i, i] for i, name in enumerate(names)})
        write_graph(graph, tmp_path / "g")
        opened = open_native(tmp_path / "g", verify=True)
        assert {name: int(value[0]) for name, value in opened.ndata.items()} == {
            n: i for i, n in enumerate(names)
        }
        assert os.listdir(tmp_path) == ["g"]

    def test_an_opened_graph_can_be_written_again(self, folder, tmp_path):
        write_graph(open_graph(folder), tmp_path / "again", origin={"made": "by hand"})
        for file in folder.iterdir():
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


class TestFolder:
    def test_arrays_are_plain_npy(self, folder, graph):
        assert np.array_equal(
            np.load(folder / "node-feat.npy"), graph.ndata["feat"].numpy(), equal_nan=True
        )
        assert np.load(folder / "edge-indptr.npy").tolist() == graph.csc.indptr.tolist()

    def test_manifest_says_what_there_is(self, folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        assert (manifest["format"], manifest["version"]) == ("pagraph-graph", 1)
        assert manifest["origin"] == {"made": "by hand"}
        feat = manifest["node_types"][0]["fields"]["feat"]
        content = (folder / feat["file"]).read_bytes()
        assert feat == {
            "file": "node-feat.npy",
            "dtype": "float32",
            "shape": [5, 3],
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        assert manifest["edge_types"][0]["num_edges"] == 6

    def test_arrays_begin_at_64_bytes(self, folder):
        for file in folder.glob("*.npy"):
            with open(file, "rb") as stream:
                version = np.lib.format.read_magic(stream)
                assert version == (1, 0)
                np.lib.format.read_array_header_1_0(stream)
                assert stream.tell() % 64 == 0

    def test_writing_to_a_field_leaves_the_file(self, folder):
        before = (folder / "node-label.npy").read_bytes()
        graph = open_graph(folder)
        graph.ndata["label"] += 10
        assert graph.ndata["label"].tolist() == [10, 11, 12, 10, 11]
        assert (folder / "node-label.npy").read_bytes() == before
        assert open_graph(folder, verify=True).ndata["label"].tolist() == [0, 1, 2, 0, 1]

    def test_a_folder_without_write_permission_opens(self, folder):
        for path in (*folder.iterdir(), folder):
            path.chmod(0o500)
        assert open_graph(folder, verify=True).num_edges == 6
        folder.chmod(0o700)

    def test_opens_in_milliseconds_whatever_its_size(self, tmp_path):
        rows = 200_000
        graph = Graph.from_coo(
            torch.arange(rows), torch.arange(rows), ndata={"feat": torch.zeros(rows, 128)}
        )
        write_graph(graph, tmp_path / "g")
        open_graph(tmp_path / "g")
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            open_graph(tmp_path / "g")
            times.append(time.perf_counter() - begin)
        assert min(times) < 0.01


class TestWriteRefusals:
    def test_existing_folder(self, graph, folder):
        with pytest.raises(FileExistsError, match=f"folder must not exist yet, got '{folder}'"):
            write_graph(graph, folder)

    def test_invalid_ids(self, tmp_path):
        bad = Graph(CSC(torch.tensor([0, 1]), torch.tensor([5]), 1))
        with pytest.raises(ValueError, match=r"indices must be in \[0, 1\), got 5"):
            write_graph(bad, tmp_path / "g")
        assert list(tmp_path.iterdir()) == []

    def test_sparse_field(self, graph, tmp_path):
        graph.set_field("bag", torch.eye(5).to_sparse())
        with pytest.raises(ValueError, match="node-bag: layout must be strided"):
            write_graph(graph, tmp_path / "g")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.filterwarnings("ignore:ComplexHalf")
    def test_dtype_that_cannot_be_stored(self, graph, tmp_path):
        graph.ndata["x"] = torch.zeros(5, dtype=torch.complex32)
        with pytest.raises(ValueError, match="node-x: dtype must be one of .* got 'complex32'"):
            write_graph(graph, tmp_path / "g")

    def test_origin_that_json_cannot_hold(self, graph, tmp_path):
        with pytest.raises(TypeError):
            write_graph(graph, tmp_path / "g", origin={"x": object()})
        assert list(tmp_path.iterdir()) == []

    def test_failing_progress(self, graph, tmp_path):
        def stop(_done, _total):
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            write_graph(graph, tmp_path / "g", progress=stop)
        assert list(tmp_path.iterdir()) == []


class TestKilledWriter:
    @pytest.mark.every
    @pytest.mark.parametrize("arrays_written", [0, 2, 4])
    def test_nothing_opens_and_the_next_run_succeeds(self, tmp_path, arrays_written):
        code = (
            "import os, signal, sys, torch\n"
            "from pagraph import Graph\nfrom pagraph.datasets import write_graph\n"
            "graph = Graph.from_coo([0, 1], [1, 2], ndata={'feat': torch.ones(3, 2), 'label': [1, "
            "2, 3]})\n"
            "calls = []\n"
            "def progress(done, total):\n"
            "    calls.append(done)\n"
            "    if len(calls) > int(sys.argv[2]) or done == total:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "write_graph(graph, sys.argv[1], progress=progress)\n"
        )
        target = tmp_path / "g"
        done = subprocess.run(
            [forked_python(), "-c", code, str(target), str(arrays_written)], timeout=HANGING
        )
        assert done.returncode == -signal.SIGKILL
        left = list(tmp_path.iterdir())
        assert len(left) == 1
        assert left[0].name.endswith(".partial")
        with pytest.raises(FileNotFoundError):
            open_graph(target)
        with pytest.raises(FormatError, match="folder must be finished"):
            open_graph(left[0])
        write_graph(Graph.from_coo([0], [1]), target)
        assert [p.name for p in tmp_path.iterdir()] == ["g"]

    def test_complete_but_not_renamed_does_not_open(self, folder):
        part = folder.with_name(".g.0123abcd.partial")
        shutil.copytree(folder, part)
        with pytest.raises(FormatError, match="folder must be finished"):
            open_native(part)


class TestWhatIsNoFile:
    @pytest.mark.parametrize("name", ["node-feat.npy", "manifest.json"])
    @pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
    @pytest.mark.parametrize("verify", [False, True])
    def test_is_refused_at_once(self, folder, name, kind, verify):
        path = folder / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero" if kind == "device" else path)
        with pytest.raises(FormatError, match="must be a file|must hold manifest.json"):
            Graph.open(folder, verify=verify)


class TestNamesThatATerminalObeys:
    BELL = "a\x1b]0;b\x07"

    def test_are_not_stored(self, tmp_path):
        graph = Graph.from_coo([0], [1], ndata={self.BELL: torch.zeros(2)})
        with pytest.raises(ValueError, match="names must be printable characters to be stored"):
            write_graph(graph, tmp_path / "g")

    @pytest.mark.parametrize(
        "change",
        [
            lambda value, bell: value["node_types"][0].update(name=bell),
            lambda value, bell: value["node_types"][0]["fields"].update({bell: {}}),
            lambda value, bell: value["edge_types"][0].update(type=["_N", bell, "_N"]),
        ],
    )
    def test_are_not_read(self, folder, change):
        edit(folder, lambda value: change(value, self.BELL))
        with pytest.raises(FormatError, match="printable characters"):
            Graph.open(folder)


class TestCorruptArrays:
    @pytest.mark.parametrize(
        "name", ["node-feat", "edge-indptr", "edge-indices", "edge-ids", "edge-field-w"]
    )
    def test_missing(self, folder, name):
        (folder / f"{name}.npy").unlink()
        for verify in (False, True):
            with pytest.raises(
                FormatError, match=rf"{name}\.npy is missing, and the manifest names it"
            ):
                open_graph(folder, verify=verify)

    @pytest.mark.parametrize("name", ["node-feat", "edge-indptr", "edge-ids"])
    @pytest.mark.parametrize("change", [-1, 1])
    def test_wrong_size(self, folder, name, change):
        path = folder / f"{name}.npy"
        os.truncate(path, path.stat().st_size + change)
        with pytest.raises(
            FormatError, match=rf"{name}\.npy must have \d+ bytes as the manifest says, got \d+"
        ):
            open_graph(folder)

    def test_empty(self, folder):
        os.truncate(folder / "node-feat.npy", 0)
        with pytest.raises(FormatError, match="got 0"):
            open_graph(folder)

    def test_another_dtype_of_the_same_size(self, folder):
        path = folder / "node-feat.npy"
        path.write_bytes(path.read_bytes().replace(b"<f4", b"<i4"))
        with pytest.raises(FormatError, match=r"must hold float32 of shape \[5, 3\] .* got int32"):
            open_graph(folder)

    def test_another_shape_of_the_same_size(self, folder):
        path = folder / "node-feat.npy"
        path.write_bytes(path.read_bytes().replace(b"(5, 3)", b"(3, 5)"))
        with pytest.raises(FormatError, match=r"got float32 of shape \[3, 5\]"):
            open_graph(folder)

    def test_pickled_objects(self, folder):
        path = folder / "node-feat.npy"
        path.write_bytes(path.read_bytes().replace(b"'<f4',", b"'|O', "))
        with pytest.raises(FormatError, match="plain numbers"):
            open_graph(folder)

    def test_flipped_bit_is_found_by_verify(self, folder):
        path = folder / "node-feat.npy"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        open_graph(folder)
        with pytest.raises(FormatError, match=r"node-feat\.npy is corrupt: its SHA-256 must be"):
            open_graph(folder, verify=True)

    @pytest.mark.parametrize(
        ("name", "position", "value", "verify", "message"),
        [
            (
                "edge-indptr",
                0,
                1,
                False,
                "indptr must run from 0 to the number of edges 6, got 1 to 6",
            ),
            (
                "edge-indptr",
                -1,
                5,
                False,
                "indptr must run from 0 to the number of edges 6, got 0 to 5",
            ),
            ("edge-indptr", 1, 100, True, "indptr must be non-decreasing"),
            ("edge-indices", 2, 5, True, r"indices must be in \[0, 5\), got 5"),
            ("edge-indices", 2, -1, True, r"indices must be in \[0, 5\), got -1"),
            ("edge-ids", 0, 6, True, r"edge_ids must be in \[0, 6\), got 6"),
            ("edge-ids", 0, -3, True, r"edge_ids must be in \[0, 6\), got -3"),
        ],
    )
    def test_ids_out_of_range_under_a_matching_checksum(
        self, folder, name, position, value, verify, message
    ):
        path = folder / f"{name}.npy"
        array = np.load(path)
        array[position] = value
        np.save(path, array)
        key = name.removeprefix("edge-").replace("ids", "edge_ids")

        def change(manifest):
            entry = manifest["edge_types"][0][key]
            entry.update(
                bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
            )

        edit(folder, change)
        with pytest.raises(FormatError, match=message):
            open_graph(folder, verify=verify)


def test_truncated_anywhere_is_a_format_error(folder, tmp_path):
    for file in sorted(folder.iterdir()):
        size = file.stat().st_size
        for length in sorted({0, 1, size // 2, size - 2}):
            copy = tmp_path / f"{file.name}-{length}"
            shutil.copytree(folder, copy)
            os.truncate(copy / file.name, length)
            with pytest.raises(FormatError):
                open_graph(copy)


def test_arrays_written_at_once_are_those_written_in_turn(tmp_path, monkeypatch):
    fields = {f"f{n}": torch.arange(50_000 * n).reshape(-1, n) for n in (1, 3, 2, 7)}
    # Of one name on file systems that do not tell upper from lower case.
    fields["F1"] = torch.ones(50_000)
    graph = Graph.from_coo([0, 1, 2], [1, 2, 0], num_nodes=50_000, ndata=fields)
    for workers in (1, 2):
        monkeypatch.setattr("pagraph.datasets.native.usable_cpus", lambda n=workers: n)
        write_graph(graph, tmp_path / f"by-{workers}")
    names = sorted(path.name for path in (tmp_path / "by-1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "by-2").iterdir())
    for name in names:
        assert (tmp_path / "by-1" / name).read_bytes() == (tmp_path / "by-2" / name).read_bytes()


def test_an_array_that_fails_ends_the_others_and_leaves_nothing(
    tmp_path, monkeypatch, no_threads_left
):
    # Two threads, of which the second has a long array in work when the first one fails.
    monkeypatch.setattr("pagraph.datasets.native.usable_cpus", lambda: 2)
    blocks = []

    def as_bytes(block, stored):
        if block.dtype == torch.float64:
            raise OSError(28, "No space left on device")
        blocks.append(len(block))
        time.sleep(0.01)
        return block.numpy().view(np.uint8).reshape(-1).data

    monkeypatch.setattr("pagraph.datasets.native._as_bytes", as_bytes)
    monkeypatch.setattr("pagraph.datasets.native._CHUNK_BYTES", 8)
    fields = {"a": torch.ones(20_000, dtype=torch.float64), "b": torch.arange(20_000)}
    graph = Graph.from_coo([0], [1], num_nodes=20_000, ndata=fields)
    with pytest.raises(OSError, match="No space left"):
        write_graph(graph, tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []
    assert len(blocks) < 1_000
