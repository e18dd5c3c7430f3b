"""Wrong lists of training, validation and test vertices are found, also where every checksum
matches."""

import json
import shutil

import numpy as np
import torch
from damage import changed, edit_json, found, rewrite, write_from

from pagraph import open_partition
from pagraph.datasets import write_graph
from pagraph.partition import PartitionManifest, partition_graph, verify_partition, write_partition


class TestTraining:
    def test_a_training_vertex_in_no_part(self, whole, source, tmp_path):
        train = whole.ndata["train_mask"].nonzero().squeeze(1)
        mask = whole.ndata["train_mask"].clone()
        mask[train[5]] = False
        write_from(changed(whole, train_mask=mask), source, tmp_path / "out")
        message = (
            f"vertex {int(train[5])} of the source must be in a part (1 differ from its train_mask)"
        )
        assert found(tmp_path / "out") == ("training", None, message)

    def test_a_vertex_that_is_not_for_training(self, whole, source, tmp_path):
        mask = whole.ndata["train_mask"].clone()
        vertex = int((~mask).nonzero()[0])
        mask[vertex] = True
        write_from(changed(whole, train_mask=mask), source, tmp_path / "out")
        findings = [f for f in verify_partition(tmp_path / "out").findings if f.check == "training"]
        assert findings[0].message.startswith(
            f"vertex {vertex} of the source must not be a training vertex"
        )

    def test_a_training_vertex_in_two_parts(self, whole, source, tmp_path):
        for seed in (0, 1):
            partition = partition_graph(whole, 2, hops=1, method="hash", seed=seed)
            write_partition(partition, tmp_path / f"out{seed}", source=source)
        shutil.rmtree(tmp_path / "out0" / "part-1")
        shutil.copytree(tmp_path / "out1" / "part-1", tmp_path / "out0" / "part-1")
        other = json.loads((tmp_path / "out1" / "manifest.json").read_text())

        def take_over(value):
            value["folders"][1] = other["folders"][1]
            for name in ("train", "val", "test", "vertices", "edges"):
                value[f"{name}_per_part"][1] = other[f"{name}_per_part"][1]
            value["replication_factor"] = sum(value["vertices_per_part"]) / 300

        edit_json(tmp_path / "out0" / "manifest.json", take_over)
        messages = [str(finding) for finding in verify_partition(tmp_path / "out0").findings]
        assert any(
            m.startswith("training vertex") and m.endswith("must be in one part, got 0 and 1")
            for m in messages
        )
        assert any("of the source must be in a part" in m for m in messages)

    def test_a_training_set_that_is_no_mask(self, whole, source, tmp_path):
        partition = partition_graph(
            whole, 2, hops=1, method="hash", train=torch.tensor([5, 9, 100])
        )
        write_partition(partition, tmp_path / "out", source=source)
        assert verify_partition(tmp_path / "out").ok
        edit_json(
            tmp_path / "out" / "manifest.json", lambda value: value["train"].update(sha256="0" * 64)
        )
        message = "the training vertices must be those that were divided, got 3 others"
        assert found(tmp_path / "out") == ("training", None, message)


def move(out, name, vertex, giver, taker):
    """Let another part list a vertex of the source, in its mask as well; None: no part gives or
    takes it."""
    for index, there in ((giver, False), (taker, True)):
        if index is None:
            continue
        part = open_partition(out, index)
        local = int((part.global_ids == vertex).nonzero())
        listed = set(getattr(part, name).tolist())
        changed_list = np.array(sorted(listed | {local} if there else listed - {local}))

        def set_mask(mask, local=local, there=there):
            mask[local] = there
            return mask

        rewrite(out, index, f"{name}_mask", set_mask)
        rewrite(out, index, name, lambda _, ids=changed_list: ids)


def held(out, name, *, ties):
    """A vertex that a part lists, that part, and one that holds it as near (``ties``) or farther
    off."""
    parts = [open_partition(out, index) for index in range(3)]
    hops = [
        {int(v): int(i >= part.hop_ends[0]) for i, v in enumerate(part.global_ids)}
        for part in parts
    ]
    for part in parts:
        for v in part.global_ids[getattr(part, name)].tolist():
            for other in {0, 1, 2} - {part.index}:
                if v in hops[other] and (hops[other][v] == hops[part.index][v]) == ties:
                    return v, part.index, other
    raise AssertionError("no such vertex")


class TestEvaluation:
    def test_validation_vertices(self, whole, source, tmp_path):
        write_from(
            changed(whole, val_mask=torch.zeros(300, dtype=torch.bool)), source, tmp_path / "out"
        )
        checks = {finding.check for finding in verify_partition(tmp_path / "out").findings}
        assert checks == {"evaluation"}

    def test_any_of_the_nearest_parts_may_have_a_vertex(self, out):
        move(out, "val", *held(out, "val", ties=True))
        verify_partition(out).raise_if_wrong()

    def test_a_part_that_holds_a_vertex_farther_off(self, whole, source, tmp_path):
        """A validation vertex that is trained on as well, elsewhere."""
        train = whole.ndata["train_mask"].nonzero().squeeze(1)
        val = whole.ndata["val_mask"].clone().index_fill_(0, train[:9], True)
        graph = changed(whole, val_mask=val)
        write_graph(graph, tmp_path / "graph")
        out = tmp_path / "out"
        write_partition(
            partition_graph(graph, 3, hops=1, method="hash"), out, source=tmp_path / "graph"
        )
        verify_partition(out).raise_if_wrong()
        vertex, giver, taker = held(out, "val", ties=False)
        move(out, "val", vertex, giver, taker)
        message = (
            f"vertex {vertex} of the source must be in the val list of a part that holds it "
            "at hop 0, got one at hop 1"
        )
        assert found(out) == ("evaluation", taker, f"{message} (1 are wrong)")

    def test_a_vertex_in_two_lists(self, out):
        vertex, giver, taker = held(out, "test", ties=True)
        move(out, "test", vertex, None, taker)
        first, second = sorted([giver, taker])
        message = (
            f"test vertex {vertex} of the source must be in one part, got {first} and {second}"
        )
        assert found(out) == ("evaluation", None, message)

    def test_a_vertex_in_no_list(self, out):
        vertex, giver, _ = held(out, "test", ties=True)
        move(out, "test", vertex, giver, None)
        edit_json(
            out / "manifest.json",
            lambda value: value["outside"].update(test=value["outside"]["test"] + 1),
        )
        message = (
            f"test vertex {vertex} of the source must be in a part's list, got none (1 are missing)"
        )
        assert found(out) == ("evaluation", None, message)

    def test_a_vertex_that_is_not_for_validation(self, out, whole):
        part = open_partition(out, 1)
        vertex = int(part.global_ids[part.test[0]])
        move(out, "val", vertex, None, 1)
        message = f"vertex {vertex} of the source must be in no val list (1 are wrong)"
        assert found(out) == ("evaluation", 1, message)

    def test_outside(self, out):
        right = PartitionManifest.read(out).outside["test"]
        edit_json(out / "manifest.json", lambda value: value["outside"].update(test=right + 3))
        message = f"test vertices in no part's list must be {right + 3}, got {right}"
        assert found(out) == ("evaluation", None, message)
