"""Whatever is wrong with a partition folder is found, also where every checksum matches."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import torch
from damage import changed, edit_json, found, rewrite, seal, write_from
from hypothesis import given, settings
from plain_partition import make_partition, partitions
from tiers import examples

from pagraph import FormatError, Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.partition import open_partition, partition_graph, write_partition
from pagraph.partition.verification import Finding, Verification, verify_partition


class TestRight:
    @pytest.mark.parametrize("hops", [1, 2])
    @pytest.mark.parametrize("features", ["copy", "reference"])
    def test_everything_is_compared(self, whole, source, tmp_path, features, hops, monkeypatch):
        monkeypatch.setattr("pagraph.partition.verification._EDGES_AT_ONCE", 50)
        monkeypatch.setattr("pagraph.partition.verification._BYTES_AT_ONCE", 500)
        partition = partition_graph(whole, 3, hops=hops, method="hash")
        manifest = write_partition(partition, tmp_path / "out", source=source, features=features)
        calls = []
        result = verify_partition(
            tmp_path / "out", progress=lambda done, total: calls.append((done, total))
        )
        assert result.ok
        assert result.train == len(partition.train)
        assert result.vertices == sum(manifest.vertices_per_part)
        assert result.edges == sum(manifest.edges_per_part)
        assert calls == [(1, 3), (2, 3), (3, 3)]

    @settings(max_examples=examples(20))
    @given(partitions())
    def test_any_graph(self, tmp_path_factory, partition):
        folder = tmp_path_factory.mktemp("any")
        write_graph(partition.graph, folder / "graph")
        write_partition(partition, folder / "out", source=folder / "graph")
        result = verify_partition(folder / "out")
        result.raise_if_wrong()
        assert result.missing == 0 or partition.dropped is not None

    def test_parts_that_evaluate_themselves(self, whole, source, divided, tmp_path):
        evaluated = (whole.ndata["val_mask"] | whole.ndata["test_mask"]).nonzero().squeeze(1)
        partition = dataclasses.replace(
            divided, evaluated=evaluated, evaluation=(evaluated % 3).int()
        )
        write_partition(partition, tmp_path / "out", source=source)
        assert verify_partition(tmp_path / "out").ok

    def test_another_split(self, whole, source, tmp_path):
        graph = changed(
            whole, pub_train_mask=torch.arange(300) < 20, pub_val_mask=torch.arange(300) > 290
        )
        write_graph(graph, tmp_path / "graph")
        partition = partition_graph(open_graph(tmp_path / "graph", split="pub_"), 2, method="hash")
        write_partition(partition, tmp_path / "out", source=tmp_path / "graph", split="pub_")
        result = verify_partition(tmp_path / "out")
        assert (result.ok, result.train) == (True, 20)

    def test_fields_of_odd_shapes(self, tmp_path):
        fields = {
            "empty": torch.ones(3, 0),
            "complex": torch.tensor([1j, 2, 3]),
            "deep": torch.rand(3, 2, 2),
            "mask": torch.tensor([True, False, True]),
        }
        graph = Graph.from_coo([0, 1], [1, 2], ndata=fields)
        write_graph(graph, tmp_path / "graph")
        write_partition(
            make_partition(graph, [1, 2], [0, 1], 2, 1), tmp_path / "out", source=tmp_path / "graph"
        )
        assert verify_partition(tmp_path / "out").ok

    def test_moved_together_and_apart(self, source, divided, tmp_path):
        shutil.copytree(source, tmp_path / "a" / "graph")
        write_partition(
            divided, tmp_path / "a" / "out", source=tmp_path / "a" / "graph", features="reference"
        )
        os.rename(tmp_path / "a", tmp_path / "b")
        assert verify_partition(tmp_path / "b" / "out").ok
        os.rename(tmp_path / "b" / "graph", tmp_path / "elsewhere")
        with pytest.raises(
            FormatError, match=r"made from must be at .*b/graph' or .*a/graph', got no"
        ):
            verify_partition(tmp_path / "b" / "out")
        assert verify_partition(tmp_path / "b" / "out", source=tmp_path / "elsewhere").ok


class TestWrongParts:
    """Parts written from a graph that differs from the source in one thing: all checksums and
    counts are right."""

    @pytest.mark.parametrize("name", ["feat", "label", "words", "half"])
    def test_a_field(self, whole, source, tmp_path, name):
        wrong = whole.ndata[name].clone()
        wrong.view(300, -1)[:, 0] += torch.arange(300) == 40
        partition = write_from(changed(whole, **{name: wrong}), source, tmp_path / "out")
        findings = verify_partition(tmp_path / "out").findings
        assert findings
        for finding in findings:
            row = partition.vertices(finding.part).ids.tolist().index(40)
            assert finding.check == "fields"
            assert (
                finding.message
                == f"field '{name}' of its vertices must have the source's rows, row {row} differs"
            )

    def test_an_edge_field(self, whole, source, tmp_path):
        write_from(changed(whole, edata={"w": whole.edata["w"] + 1}), source, tmp_path / "out")
        findings = verify_partition(tmp_path / "out").findings
        assert [str(f) for f in findings] == [
            f"part {i}: field 'w' of its edges must have the source's rows, row 0 differs"
            for i in range(3)
        ]

    def test_a_missing_and_an_extra_field(self, whole, source, tmp_path):
        graph = changed(whole, mine=torch.zeros(300))
        del graph.ndata["label"]
        write_from(graph, source, tmp_path / "out")
        messages = {finding.message for finding in verify_partition(tmp_path / "out").findings}
        assert messages == {
            "field 'label' of its vertices must be there as in the source, got none",
            "field 'mine' of its vertices must not be there, the source has none",
        }

    def test_a_field_of_another_dtype(self, whole, source, tmp_path):
        write_from(changed(whole, label=whole.ndata["label"].int()), source, tmp_path / "out")
        assert "must be torch.int64 of shape" in str(verify_partition(tmp_path / "out").findings[0])


def swap(array):
    array[[0, 1]] = array[[1, 0]]
    return array


def put(position, value):
    def change(array):
        array.reshape(-1)[position] = value
        return array

    return change


class TestWrongArrays:
    """One array of one part is replaced, with all checksums made right."""

    @pytest.mark.every
    @pytest.mark.parametrize(
        ("name", "change", "check", "message"),
        [
            (
                "global_ids",
                put(-1, 300),
                "vertices",
                r"global_ids must be in \[0, 300\), got 0 to 300",
            ),
            ("global_ids", put(-1, -1), "vertices", "global_ids must be in"),
            ("global_ids", lambda a: put(-1, a[0])(a), "vertices", "global_ids must be distinct"),
            ("global_ids", swap, "vertices", "its seeds must be in ascending order"),
            ("train", swap, "vertices", "train must be ascending"),
            ("train", lambda a: a[:-1], "vertices", "its seeds must be the first"),
            ("train", put(-1, 10**6), "files", "train.npy must hold ids in"),
            ("val", swap, "vertices", "val must be ascending"),
            (
                "val",
                lambda a: a[:-1],
                "fields",
                "field 'val_mask' of its vertices must have the source's rows",
            ),
            (
                "in_degrees",
                put(3, 77),
                "fields",
                "field 'in_degrees' of its vertices must have .* row 3 differs",
            ),
            (
                "out_degrees",
                put(4, 77),
                "fields",
                "field 'out_degrees' of its vertices must have .* row 4 differs",
            ),
            ("train_mask", lambda a: ~a, "fields", "field 'train_mask' of its vertices"),
            ("feat", put(-1, np.nan), "fields", "field 'feat' of its vertices"),
            ("indices", put(0, 10**6), "files", r"indices must be in \[0, \d+\), got 1000000"),
            ("indptr", put(1, 10**6), "files", "indptr must be non-decreasing"),
            ("indptr", put(-1, 5), "files", "indptr must run from 0 to the number of edges"),
            ("edge_ids", put(0, -7), "edges", r"must be edge \d+ of the source, got -7"),
            ("edge_ids", lambda a: a.astype(np.float32), "files", "must hold int32"),
        ],
    )
    def test_found(self, out, name, change, check, message):
        rewrite(out, 1, name, change)
        result = verify_partition(out)
        finding = next(finding for finding in result.findings if finding.part == 1)
        assert finding.check == check
        with pytest.raises(FormatError, match=message):
            Verification(0, 0, 0, 0, 0, (finding,)).raise_if_wrong()

    def test_counts_of_missing_edges(self, tmp_path):
        graph = Graph.from_coo([1, 2, 2, 3], [0, 0, 0, 2], 4)
        write_graph(graph, tmp_path / "graph")
        partition = make_partition(graph, [0], [0], 1, 2, dropped=(torch.tensor([2]),))
        write_partition(partition, tmp_path / "out", source=tmp_path / "graph")
        assert verify_partition(tmp_path / "out").missing == 2
        edit_json(
            tmp_path / "out" / "manifest.json", lambda value: value["folders"][0].update(missing=1)
        )
        message = "in-edges missing must be 1 from 1 vertices, got 2 from 1"
        assert found(tmp_path / "out") == ("edges", 0, message)
        edit_json(
            tmp_path / "out" / "manifest.json", lambda value: value["folders"][0].update(missing=2)
        )
        edit_json(tmp_path / "out" / "manifest.json", lambda value: value.update(capped=False))
        message = "the in-neighbourhood must be complete, got 2 in-edges missing"
        assert found(tmp_path / "out") == ("edges", 0, message)


class TestDamagedFiles:
    @pytest.mark.attack
    def test_any_flipped_bit(self, out):
        for path in sorted((out / "part-2").iterdir()):
            content = path.read_bytes()
            path.write_bytes(content[:-3] + bytes([content[-3] ^ 4]) + content[-2:])
            check, part, _ = found(out)
            assert (check, part) == ("files", 2), path.name
            path.write_bytes(content)
        assert verify_partition(out).ok

    def test_a_missing_part(self, out):
        shutil.rmtree(out / "part-1")
        check, part, message = found(out)
        assert (check, part) == ("files", 1)
        assert message == f"{out / 'part-1'} is missing, and {out / 'manifest.json'} names it"

    def test_parts_that_changed_places(self, out):
        os.rename(out / "part-0", out / "x")
        os.rename(out / "part-1", out / "part-0")
        os.rename(out / "x", out / "part-1")
        findings = verify_partition(out).findings
        assert [(finding.check, finding.part) for finding in findings] == [
            ("files", 0),
            ("files", 1),
        ]
        for part in (0, 1):
            seal(out, part)
        assert not verify_partition(out).ok

    def test_referenced_features(self, divided, source, tmp_path):
        shutil.copytree(source, tmp_path / "graph")
        write_partition(divided, tmp_path / "out", source=tmp_path / "graph", features="reference")
        path = tmp_path / "graph" / "node-feat.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        check, part, message = found(tmp_path / "out")
        assert (check, part) == ("files", None)
        assert message.startswith(f"{path} is corrupt: its SHA-256 must be")


class TestSource:
    def test_unknown(self, divided, tmp_path):
        write_partition(divided, tmp_path / "out")
        with pytest.raises(
            ValueError, match="source must be given, as .* does not name the graph it was made from"
        ):
            verify_partition(tmp_path / "out")

    def test_given(self, divided, source, tmp_path):
        write_partition(divided, tmp_path / "out")
        assert verify_partition(tmp_path / "out", source=source).ok

    def test_another_graph(self, out, tmp_path):
        write_graph(Graph.from_coo([0], [1]), tmp_path / "other")
        with pytest.raises(
            ValueError, match="source must be the graph of 300 vertices and .* got Graph"
        ):
            verify_partition(out, source=tmp_path / "other")

    def test_one_that_is_another_graph_by_now(self, divided, source, tmp_path):
        shutil.copytree(source, tmp_path / "graph")
        write_partition(divided, tmp_path / "out", source=tmp_path / "graph")
        edit_json(
            tmp_path / "graph" / "manifest.json", lambda value: value["origin"].update(made="anew")
        )
        with pytest.raises(
            FormatError,
            match="must be that of the graph that .* was made from, got another SHA-256",
        ):
            verify_partition(tmp_path / "out")


def test_findings_in_words():
    findings = (Finding("edges", 2, "a"), Finding("training", None, "b"))
    assert [str(finding) for finding in findings] == ["part 2: a", "b"]
    with pytest.raises(FormatError, match=r"part 2: a \(and 1 more\)"):
        Verification(3, 0, 0, 0, 0, findings).raise_if_wrong()
    assert Verification(3, 0, 0, 0, 0, ()).raise_if_wrong() is None


@pytest.mark.every
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
@pytest.mark.parametrize(
    "name", ["manifest.json", "part-1/manifest.json", "part-1/indices.npy", "part-1/train.npy"]
)
def test_what_is_no_file_is_refused_at_once(out, name, kind):
    path = out / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(FormatError):
        verify_partition(out).raise_if_wrong()
    with pytest.raises(FormatError):
        open_partition(out, 1, verify=True)
