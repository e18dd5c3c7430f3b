"""A part opens as what it is; whatever is missing or damaged is one clear error."""

import os
import shutil

import numpy as np
import pytest
import torch
from damage import edit_json, rewrite, seal

import pagraph
from pagraph import FormatError, Graph, open_partition
from pagraph.datasets import write_graph
from pagraph.partition import Part, partition_graph, write_partition


class TestPart:
    def test_attributes(self, out, divided):
        part = open_partition(out, 1, world_size=3)
        assert isinstance(part, Part)
        assert (part.index, part.num_parts, part.hops) == (1, 3, 1)
        vertices = divided.vertices(1)
        assert part.hop_ends == vertices.hop_ends
        assert torch.equal(part.global_ids, vertices.ids)
        assert torch.equal(part.global_ids[part.train], divided.train_of(1))
        assert [ids.dtype for ids in (part.train, part.val, part.test, part.global_ids)] == [
            torch.int64
        ] * 4
        assert part.manifest.train_per_part[1] == len(part.train)
        assert repr(part) == f"Part(1 of 3, hops=1, train={len(part.train)}, {part.graph})"

    def test_the_whole_graph(self, out, whole):
        assert torch.equal(open_partition(out, 0).open_source().csc.indices, whole.csc.indices)

    def test_a_graph_that_was_never_in_a_folder(self, divided, tmp_path):
        write_partition(divided, tmp_path / "out")
        with pytest.raises(FormatError, match="must be in a folder that write_partition was given"):
            open_partition(tmp_path / "out", 0).open_source()

    def test_ranks_of_any_integer_type(self, out):
        assert open_partition(str(out), np.int32(2)).index == 2
        with pytest.raises(TypeError):
            open_partition(out, 1.0)

    def test_it_is_exported(self):
        assert pagraph.open_partition is open_partition

    def test_writing_to_a_part_leaves_its_files(self, out):
        part = open_partition(out, 0)
        part.graph.ndata["label"] += 1
        part.train[0] = 2
        assert open_partition(out, 0, verify=True).train[0] == 0

    def test_a_form_with_features_in_one_file(self, whole, tmp_path):
        """PaGraph's own folders can be referred to as well."""
        import scipy.sparse

        (tmp_path / "g").mkdir()
        shape = (300, 300)
        entries = (
            np.ones(whole.num_edges),
            (whole.csc.indices.numpy(), whole.csc.destinations().numpy()),
        )
        scipy.sparse.save_npz(tmp_path / "g" / "adj.npz", scipy.sparse.coo_matrix(entries, shape))
        np.save(tmp_path / "g" / "feat.npy", whole.ndata["feat"].numpy())
        np.save(tmp_path / "g" / "train.npy", whole.ndata["train_mask"].numpy())
        partition = partition_graph(Graph.open(tmp_path / "g"), 2, method="hash")
        write_partition(partition, tmp_path / "out", source=tmp_path / "g", features="reference")
        part = open_partition(tmp_path / "out", 1, verify=True)
        got, want = part.graph.ndata["feat"][:], whole.ndata["feat"][part.global_ids]
        assert torch.equal(got.nan_to_num(9), want.nan_to_num(9))


class TestWrongArguments:
    @pytest.mark.parametrize("rank", [-1, 3])
    def test_rank(self, out, rank):
        with pytest.raises(ValueError, match=rf"rank must be in \[0, 3\), .*, got {rank}"):
            open_partition(out, rank)

    @pytest.mark.parametrize("size", [1, 2, 4])
    def test_world_size(self, out, size):
        with pytest.raises(
            ValueError, match=f"world_size must be the number of parts 3 in .*, got {size}"
        ):
            open_partition(out, 0, world_size=size)

    def test_no_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="out must exist, got '.*none'"):
            open_partition(tmp_path / "none", 0)

    def test_a_file(self, out):
        with pytest.raises(NotADirectoryError, match="out must be a folder, got the file"):
            open_partition(out / "manifest.json", 0)

    def test_an_empty_folder(self, tmp_path):
        with pytest.raises(
            FormatError, match=r"out must hold a partition, got '.*' without manifest\.json"
        ):
            open_partition(tmp_path, 0)

    def test_a_graph_folder(self, source):
        message = (
            "format must be 'pagraph-partition', got 'pagraph-graph': \"pagraph partition .* "
            'OUT -k K" divides'
        )
        with pytest.raises(FormatError, match=message):
            open_partition(source, 0)

    def test_a_part(self, out):
        with pytest.raises(
            FormatError, match=f"got 'pagraph-graph': it is a part of the partition '{out}'"
        ):
            open_partition(out / "part-0", 0)

    def test_a_rank_from_the_environment(self, out):
        with pytest.raises(TypeError, match="rank must be an integer, got '0'"):
            open_partition(out, "0")

    def test_a_partition_is_no_graph(self, out):
        rule = (
            "format must be 'pagraph-graph', got 'pagraph-partition': its parts are graph "
            "folders, such as '.*/part-0'"
        )
        with pytest.raises(FormatError, match=rule):
            Graph.open(out)

    def test_unfinished(self, out):
        part = out.with_name(".out.0123abcd.partial")
        shutil.copytree(out, part)
        with pytest.raises(FormatError, match="out must be finished"):
            open_partition(part, 0)


class TestDamage:
    def test_only_the_part_itself_must_be_there(self, out):
        shutil.rmtree(out / "part-0")
        shutil.rmtree(out / "part-2")
        assert open_partition(out, 1, verify=True).index == 1
        with pytest.raises(FormatError, match=r"part-0 is missing, and .*manifest\.json names it"):
            open_partition(out, 0)

    def test_every_missing_file(self, out):
        for path in sorted((out / "part-1").iterdir()):
            os.rename(path, out / "kept")
            with pytest.raises(FormatError, match=rf"{path.name} is missing"):
                open_partition(out, 1)
            os.rename(out / "kept", path)
        assert open_partition(out, 1, verify=True).index == 1

    def test_truncated_anywhere(self, out):
        for path in sorted([*(out / "part-1").iterdir(), out / "manifest.json"]):
            content = path.read_bytes()
            for length in (0, len(content) // 2, len(content) - 2):
                path.write_bytes(content[:length])
                with pytest.raises(FormatError):
                    open_partition(out, 1)
            path.write_bytes(content)
        assert open_partition(out, 1, verify=True).index == 1

    def test_flipped_bits_are_found_by_verify(self, out):
        for path in sorted((out / "part-1").glob("*.npy")):
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(FormatError, match=rf"{path.name} is corrupt: its SHA-256 must be"):
                open_partition(out, 1, verify=True)
            path.write_bytes(content)

    def test_a_part_of_another_partition(self, out, whole, tmp_path):
        write_partition(
            partition_graph(whole, 3, hops=1, method="hash", seed=9), tmp_path / "other"
        )
        shutil.rmtree(out / "part-1")
        shutil.copytree(tmp_path / "other" / "part-1", out / "part-1")
        with pytest.raises(
            FormatError, match="must be the one written with the partition, of SHA-256"
        ):
            open_partition(out, 1)
        seal(out, 1)
        with pytest.raises(FormatError):
            open_partition(out, 1, verify=True)

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("train", lambda a: a - 1, r"train\.npy must hold ids in \[0, \d+\)"),
            ("val", lambda a: a + 10**6, r"val\.npy must hold ids in \[0, \d+\)"),
            ("indices", lambda a: a.reshape(-1, 1), "indices must have shape"),
        ],
    )
    def test_wrong_under_matching_checksums(self, out, name, change, message):
        rewrite(out, 1, name, change)
        with pytest.raises(FormatError, match=message):
            open_partition(out, 1)

    @pytest.mark.parametrize("owner", ["node_types", "edge_types"])
    def test_without_global_ids(self, out, owner):
        path = out / "part-1" / "manifest.json"
        edit_json(path, lambda value: value[owner][0]["fields"].pop("global_ids"))
        seal(out, 1)
        with pytest.raises(FormatError, match="must hold the .*' global_ids, got None"):
            open_partition(out, 1)

    def test_other_counts(self, out):
        def change(value):
            value["folders"][1]["hop_ends"][-1] += 1
            value["vertices_per_part"][1] += 1
            value["replication_factor"] = sum(value["vertices_per_part"]) / 300

        edit_json(out / "manifest.json", change)
        with pytest.raises(
            FormatError, match=r"part-1 must hold \d+ vertices and \d+ edges as the partition's"
        ):
            open_partition(out, 1)


class TestReferences:
    @pytest.fixture
    def graph(self, source, tmp_path):
        shutil.copytree(source, tmp_path / "graph")
        return tmp_path / "graph"

    @pytest.fixture
    def referring(self, divided, graph, tmp_path):
        write_partition(divided, tmp_path / "out", source=graph, features="reference")
        return tmp_path / "out"

    def test_source_gone(self, referring, graph):
        shutil.rmtree(graph)
        with pytest.raises(
            FormatError, match=r"it was made from must be at '.*', got no manifest\.json there"
        ):
            open_partition(referring, 0)

    def test_source_elsewhere_but_at_its_absolute_path(self, referring, tmp_path):
        (tmp_path / "deep" / "down").mkdir(parents=True)
        os.rename(referring, tmp_path / "deep" / "down" / "out")
        assert (
            open_partition(tmp_path / "deep" / "down" / "out", 0).graph.ndata["feat"].shape[1] == 64
        )

    def test_another_graph_at_its_place(self, referring, graph):
        shutil.rmtree(graph)
        write_graph(Graph.from_coo([0], [1]), graph)
        with pytest.raises(
            FormatError,
            match="must be that of the graph that .* was made from, got another SHA-256",
        ):
            open_partition(referring, 0)

    def test_features_gone_or_shortened(self, referring, graph):
        os.truncate(graph / "node-feat.npy", 1000)
        with pytest.raises(
            FormatError, match=r"node-feat\.npy must have \d+ bytes as the manifest says, got 1000"
        ):
            open_partition(referring, 0)
        (graph / "node-feat.npy").unlink()
        with pytest.raises(FormatError, match=r"node-feat\.npy is missing"):
            open_partition(referring, 0)

    def test_features_changed(self, referring, graph):
        path = graph / "node-feat.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(FormatError, match=r"node-feat\.npy is corrupt"):
            open_partition(referring, 0, verify=True)
