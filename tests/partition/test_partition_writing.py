"""What is written is the part, whole or not at all."""

import json
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest
import torch
from fresh_processes import HANGING, forked_python
from hypothesis import given, settings
from plain_partition import in_edges, make_partition, partitions, plain_part
from tiers import examples

from pagraph import FormatError, Graph, open_partition
from pagraph.datasets import write_graph
from pagraph.partition import PartitionManifest, draw_train, partition_graph, write_partition
from pagraph.partition.writing import check_out


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


class TestContent:
    @settings(max_examples=examples(20))
    @given(partitions())
    def test_structure_equals_the_reference(self, tmp_path_factory, partition):
        out = tmp_path_factory.mktemp("parts") / "out"
        write_partition(partition, out)
        degrees = partition.graph.in_degrees(), partition.graph.out_degrees()
        for index in range(partition.num_parts):
            part = open_partition(out, index, verify=True)
            without = () if partition.dropped is None else set(partition.dropped[index].tolist())
            seeds = partition.seeds_of(index).tolist()
            ids, edges = plain_part(partition.graph, seeds, partition.hops, without)
            assert part.global_ids.tolist() == ids
            assert part.global_ids[part.train].tolist() == seeds
            edge_ids = part.global_edge_ids.tolist()
            assert [[(u, edge_ids[e]) for u, e in row] for row in in_edges(part.graph)] == edges
            assert part.graph.ndata["in_degrees"].tolist() == degrees[0][part.global_ids].tolist()
            assert part.graph.ndata["out_degrees"].tolist() == degrees[1][part.global_ids].tolist()
            loops = [
                [u for u, _ in row].count(v) for v, row in enumerate(in_edges(partition.graph))
            ]
            if any(loops):
                assert part.graph.ndata["self_loops"].tolist() == [loops[v] for v in ids]
            else:
                assert "self_loops" not in part.graph.ndata

    @pytest.mark.parametrize("features", ["copy", "reference"])
    def test_fields_are_the_sources_rows(self, divided, source, whole, tmp_path, features):
        write_partition(divided, tmp_path / "out", features=features, source=source)
        for index in range(3):
            part = open_partition(tmp_path / "out", index, verify=True)
            for name in ("feat", "label", "half", "words"):
                got, want = part.graph.ndata[name][:], whole.ndata[name][part.global_ids]
                assert got.dtype == want.dtype
                assert torch.equal(got.nan_to_num(9e9), want.nan_to_num(9e9))
            assert torch.equal(part.graph.edata["w"], whole.edata["w"][part.global_edge_ids.long()])
            there = (tmp_path / "out" / f"part-{index}" / "feat.npy").exists()
            assert there == (features == "copy")

    def test_files(self, out):
        assert names(out) == ["manifest.json", "part-0", "part-1", "part-2"]
        structure = [
            "edge-w",
            "edge_ids",
            "global_ids",
            "in_degrees",
            "indices",
            "indptr",
            "out_degrees",
        ]
        fields = ["feat", "half", "labels", "test_mask", "train_mask", "val_mask", "words"]
        arrays = {f"{name}.npy" for name in [*structure, *fields, "train", "val", "test"]}
        assert set(names(out / "part-1")) == arrays | {"manifest.json"}
        assert np.load(out / "part-1" / "global_ids.npy").dtype == np.int64

    def test_each_part_is_a_graph_folder(self, out, divided):
        graph = Graph.open(out / "part-2", verify=True)
        seeds = graph.ndata["global_ids"][graph.ndata["train_mask"]]
        assert seeds.tolist() == divided.train_of(2).tolist()

    def test_masks_are_the_parts_own(self, out):
        for index in range(3):
            part = open_partition(out, index)
            for name, ids in (("train", part.train), ("val", part.val), ("test", part.test)):
                assert (
                    part.graph.ndata[f"{name}_mask"].nonzero().squeeze(1).tolist() == ids.tolist()
                )

    def test_the_same_bytes_again(self, out, divided, source, tmp_path):
        write_partition(divided, tmp_path / "again", source=source, seed=4)
        for path in out.rglob("*"):
            if path.is_file():
                assert (
                    tmp_path / "again" / path.relative_to(out)
                ).read_bytes() == path.read_bytes()

    def test_a_drawn_training_set_gets_a_mask(self, tmp_path):
        graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 0])
        write_partition(
            partition_graph(graph, 2, method="hash", train=draw_train(graph, 0.5)), tmp_path / "out"
        )
        part = open_partition(tmp_path / "out", 0)
        assert part.graph.ndata["train_mask"].sum() == len(part.train) == 1
        assert len(part.val) == len(part.test) == 0
        assert not part.manifest.train_is_mask

    def test_field_names_that_files_have_already(self, tmp_path):
        graph = Graph.from_coo([0, 1], [1, 2])
        fields = ["train", "labels", "label", "indptr", "edge-w", "Feat", "feat", "a/b"]
        for number, name in enumerate(fields):
            graph.set_field(name, torch.full((3,), number))
        graph.set_field("w", [8, 9], edge_type=graph.edge_types[0])
        write_partition(make_partition(graph, [1], [0], 1, 1), tmp_path / "out")
        part = open_partition(tmp_path / "out", 0, verify=True)
        assert [int(part.graph.ndata[name][0]) for name in fields] == list(range(len(fields)))
        assert part.graph.edata["w"].tolist() == [8]
        assert part.train.tolist() == [0]

    def test_arrays_larger_than_a_chunk(self, divided, whole, tmp_path, monkeypatch):
        monkeypatch.setattr("pagraph.datasets.native._CHUNK_BYTES", 100)
        write_partition(divided, tmp_path / "out")
        part = open_partition(tmp_path / "out", 0, verify=True)
        assert torch.equal(part.graph.ndata["words"], whole.ndata["words"][part.global_ids])

    def test_progress(self, divided, tmp_path):
        calls = []
        write_partition(
            divided, tmp_path / "out", progress=lambda done, total: calls.append((done, total))
        )
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert len({total for _, total in calls}) == 1
        assert calls[-1][0] == calls[-1][1]
        assert calls[-2][0] > 0.9 * calls[-2][1]


class TestManifest:
    def test_says_what_was_written(self, out, divided, source):
        manifest = PartitionManifest.read(out)
        assert (manifest.method, manifest.hops, manifest.seed, manifest.num_parts) == (
            "hash",
            1,
            4,
            3,
        )
        sizes = [len(divided.vertices(part).ids) for part in range(3)]
        assert manifest.vertices_per_part == tuple(sizes)
        assert manifest.replication_factor == sum(sizes) / 300
        assert sum(manifest.train_per_part) == len(divided.train)
        assert manifest.train_is_mask
        assert repr(manifest).startswith(
            "PartitionManifest(3 parts, hops=1, method='hash', num_nodes=300, "
        )
        assert manifest.source.path == os.path.relpath(source, out)
        assert manifest.source.absolute == str(source)
        assert json.loads((out / "manifest.json").read_text())["vertices_per_part"] == sizes

    def test_dropped_vertices_are_counted(self, tmp_path):
        graph = Graph.from_coo([1, 2, 2, 3], [0, 0, 0, 2], 4)
        dropped = (torch.tensor([2]),)
        manifest = write_partition(
            make_partition(graph, [0], [0], 1, 2, dropped=dropped), tmp_path / "out"
        )
        assert (manifest.folders[0].dropped, manifest.folders[0].missing) == (1, 2)
        assert manifest.vertices_per_part == (2,)


class TestRefusals:
    def test_out_exists(self, divided, tmp_path):
        with pytest.raises(FileExistsError, match="must not exist yet"):
            write_partition(divided, tmp_path)

    @pytest.mark.parametrize("inside", ["out", "a/b/out"])
    def test_out_inside_the_source(self, divided, source, inside):
        before = names(source)
        with pytest.raises(ValueError, match="out must not be inside the graph's folder"):
            write_partition(divided, source / inside, source=source)
        assert names(source) == before

    def test_out_inside_the_source_through_a_link(self, source, tmp_path):
        (tmp_path / "link").symlink_to(source)
        with pytest.raises(ValueError, match="out must not be inside the graph's folder"):
            check_out(tmp_path / "link" / "out", source)

    def test_the_source_inside_out(self, divided, source):
        with pytest.raises(FileExistsError, match="must not exist yet"):
            write_partition(divided, source.parent, source=source)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"features": "link"}, "features must be one of copy, reference, got 'link'"),
            (
                {"features": "reference"},
                "source must be given if features is 'reference', got None",
            ),
        ],
    )
    def test_wrong_options(self, divided, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            write_partition(divided, tmp_path / "out", **options)
        assert names(tmp_path) == []

    def test_another_graph(self, divided, tmp_path):
        write_graph(Graph.from_coo([0], [1]), tmp_path / "other")
        with pytest.raises(
            ValueError, match="source must hold the graph of 300 and .* got 2 vertices and 1 edges"
        ):
            write_partition(divided, tmp_path / "out", source=tmp_path / "other")
        assert names(tmp_path) == ["other"]

    def test_a_field_that_the_source_has_not(self, whole, source, tmp_path):
        graph = Graph(whole.csc, ndata={**whole.ndata, "mine": torch.ones(300, 2)})
        partition = partition_graph(graph, 2, method="hash")
        with pytest.raises(ValueError, match="features must be 'copy' for fields .* got 'mine'"):
            write_partition(partition, tmp_path / "out", source=source, features="reference")

    @pytest.mark.parametrize("name", ["global_ids", "in_degrees"])
    def test_names_that_parts_use(self, tmp_path, name):
        graph = Graph.from_coo([0], [1], ndata={name: [0, 1]})
        with pytest.raises(
            ValueError, match=f"graph must not have a field with a name .* got '{name}'"
        ):
            write_partition(make_partition(graph, [0], [0], 1, 1), tmp_path / "out")

    def test_an_origin_that_json_cannot_hold(self, divided, tmp_path):
        with pytest.raises(TypeError):
            write_partition(divided, tmp_path / "out", origin={"x": object()})
        assert names(tmp_path) == []

    def test_a_field_that_cannot_be_stored(self, whole, tmp_path):
        graph = Graph(
            whole.csc,
            ndata={"train_mask": whole.ndata["train_mask"], "bag": torch.eye(300).to_sparse()},
        )
        with pytest.raises(ValueError, match="field 'bag' of the vertices: layout must be strided"):
            write_partition(partition_graph(graph, 2, method="hash"), tmp_path / "out")
        assert names(tmp_path) == []


WRITER = """
import os, resource, signal, sys
from pagraph import Graph
from pagraph.partition import partition_graph, write_partition
graph = Graph.open(sys.argv[1])
calls = []
def progress(done, total):
    calls.append(done)
    if len(calls) == when or (when < 0 and done == total):
        os.kill(os.getpid(), signal.SIGKILL)
when = int(sys.argv[3])
if when == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
write_partition(partition_graph(graph, 3, hops=1, method="hash"), sys.argv[2], source=sys.argv[1], progress=progress)
"""


class TestFailures:
    def run(self, source, out, when):
        command = [forked_python(), "-c", WRITER, str(source), str(out), str(when)]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANGING)

    @pytest.mark.parametrize("when", [1, 20, -1])
    @pytest.mark.attack
    def test_killed_while_writing(self, divided, source, tmp_path, when):
        out = tmp_path / "out"
        assert self.run(source, out, when).returncode == -signal.SIGKILL
        assert not out.exists()
        (left,) = tmp_path.iterdir()
        assert left.name.endswith(".partial")
        with pytest.raises(FileNotFoundError, match="out must exist"):
            open_partition(out, 0)
        with pytest.raises(FormatError, match="out must be finished"):
            open_partition(left, 0)
        with pytest.raises(FormatError, match="folder must be finished"):
            Graph.open(left / "part-0")
        write_partition(divided, out)
        assert names(tmp_path) == ["out"]
        assert open_partition(out, 2, verify=True).num_parts == 3

    @pytest.mark.attack
    def test_a_disk_that_is_full(self, source, tmp_path):
        done = self.run(source, tmp_path / "out", 0)
        assert done.returncode == 1
        assert done.stderr.strip().splitlines()[-1].startswith("OSError: [Errno 27]")
        assert names(tmp_path) == []

    def test_an_interrupted_run(self, divided, tmp_path):
        def stop(_done, _total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_partition(divided, tmp_path / "out", progress=stop)
        assert names(tmp_path) == []


def test_parts_move_to_another_machine(out, tmp_path):
    """A part needs itself and the manifest, nothing else."""
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(out / "manifest.json", there)
    shutil.copytree(out / "part-1", there / "part-1")
    want = open_partition(out, 1).graph.ndata["feat"].clone()
    shutil.rmtree(out)
    assert torch.equal(
        open_partition(there, 1, verify=True).graph.ndata["feat"].nan_to_num(9), want.nan_to_num(9)
    )
