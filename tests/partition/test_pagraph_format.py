"""PaGraph's own folder of parts: what is written, and what comes back."""

import os
import shutil

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plain_pagraph import plain_pagraph_part, write_plain_pagraph
from plain_partition import in_edges, make_partition, partitions, plain_hops
from tiers import examples

from pagraph import FormatError, Graph, open_partition
from pagraph.datasets import write_graph
from pagraph.partition import (
    open_pagraph_part,
    partition_graph,
    read_pagraph_partition,
    write_pagraph_partition,
    write_partition,
)
from pagraph.partition.extract import extract_part


def labelled(partition):
    partition.graph.set_field("label", torch.arange(partition.graph.num_nodes) * 3)
    return partition


def train_lists(partition):
    return [partition.train_of(part).tolist() for part in range(partition.num_parts)]


def edges_of(partition, part):
    structure = extract_part(partition, part)
    ids = structure.vertices.ids
    return sorted(
        zip(
            ids[structure.csc.indices].tolist(),
            ids[structure.csc.destinations()].tolist(),
            strict=True,
        )
    )


@pytest.fixture
def folder(divided, tmp_path):
    write_pagraph_partition(divided, tmp_path / "3naive")
    return tmp_path / "3naive"


class TestWriting:
    @settings(max_examples=examples(40))
    @given(partitions())
    def test_is_what_pagraph_writes(self, tmp_path_factory, partition):
        partition = labelled(partition)
        assume(partition.dropped is None)
        out = tmp_path_factory.mktemp("pagraph") / "out"
        write_pagraph_partition(partition, out)
        for part in range(partition.num_parts):
            train = partition.train_of(part).tolist()
            hop_of = plain_hops(partition.graph, train, partition.hops)
            loaded = {
                name: np.load(out / f"sub_{name}_{part}.npy")
                for name in ("trainid", "train2fullid", "label")
            }
            adjacency = scipy.sparse.load_npz(out / f"subadj_{part}.npz")
            assert loaded["train2fullid"].tolist() == sorted(hop_of)
            assert loaded["train2fullid"][loaded["trainid"]].tolist() == train
            assert loaded["label"].tolist() == [3 * v for v in train]
            rows = in_edges(partition.graph)
            if all(rows[v] for v in train):  # PaGraph has no vertices without edges
                theirs, ids, train_ids = plain_pagraph_part(partition.graph, train, partition.hops)
                assert (theirs != adjacency).nnz == 0
                assert ids.tolist() == loaded["train2fullid"].tolist()
                assert train_ids.tolist() == loaded["trainid"].tolist()

    def test_files(self, folder):
        names = (
            "sub_label_{}.npy",
            "sub_train2fullid_{}.npy",
            "sub_trainid_{}.npy",
            "subadj_{}.npz",
        )
        assert sorted(os.listdir(folder)) == sorted(
            name.format(part) for name in names for part in range(3)
        )
        adjacency = scipy.sparse.load_npz(folder / "subadj_1.npz")
        assert (adjacency.format, adjacency.dtype, set(adjacency.data)) == ("csr", np.uint8, {1})
        for name in ("sub_trainid_1", "sub_train2fullid_1", "sub_label_1"):
            assert np.load(folder / f"{name}.npy").dtype == np.int64

    def test_an_edge_is_source_then_destination(self, tmp_path):
        graph = Graph.from_coo([5, 5], [2, 2], 6, ndata={"label": torch.zeros(6)})
        write_pagraph_partition(make_partition(graph, [2], [0], 1, 1), tmp_path / "out")
        assert scipy.sparse.load_npz(tmp_path / "out" / "subadj_0.npz").toarray().tolist() == [
            [0, 0],
            [1, 0],
        ]

    def test_256_parallel_edges_are_one(self, tmp_path):
        graph = Graph.from_coo([0] * 256, [1] * 256, ndata={"label": torch.zeros(2)})
        write_pagraph_partition(make_partition(graph, [1], [0], 1, 1), tmp_path / "out")
        assert scipy.sparse.load_npz(tmp_path / "out" / "subadj_0.npz").toarray().tolist() == [
            [0, 1],
            [0, 0],
        ]

    def test_progress_counts_parts(self, divided, tmp_path):
        seen = []
        write_pagraph_partition(
            divided, tmp_path / "out", progress=lambda done, total: seen.append((done, total))
        )
        assert seen == [(1, 3), (2, 3), (3, 3)]

    def test_needs_labels(self, tmp_path):
        graph = Graph.from_coo([0], [0])
        with pytest.raises(
            ValueError, match=r"graph must have the field label for PaGraph's form, got \[\]"
        ):
            write_pagraph_partition(make_partition(graph, [0], [0], 1, 1), tmp_path / "out")

    def test_has_no_evaluated_vertices(self, divided, tmp_path):
        more = {"evaluated": torch.tensor([0]), "evaluation": torch.zeros(1, dtype=torch.int32)}
        partition = make_partition(divided.graph, [1], [0], 1, 1, **more)
        with pytest.raises(ValueError, match="partition must be for training only"):
            write_pagraph_partition(partition, tmp_path / "out")

    def test_the_folder_exists(self, divided, tmp_path):
        with pytest.raises(FileExistsError, match="folder must not exist yet"):
            write_pagraph_partition(divided, tmp_path)


class TestReading:
    @settings(max_examples=examples(40))
    @given(partitions())
    def test_round_trip(self, tmp_path_factory, partition):
        partition = labelled(partition)
        out = tmp_path_factory.mktemp("pagraph") / "out"
        write_pagraph_partition(partition, out)
        again = read_pagraph_partition(out, partition.graph)
        assert train_lists(again) == train_lists(partition)
        assert again.hops <= partition.hops
        for part in range(partition.num_parts):
            assert sorted(again.vertices(part).ids.tolist()) == sorted(
                partition.vertices(part).ids.tolist()
            )
            assert edges_of(again, part) == edges_of(partition, part)

    @settings(max_examples=examples(40))
    @given(partitions(), st.booleans())
    def test_what_pagraph_wrote(self, tmp_path_factory, partition, masked):
        partition = labelled(partition)
        rows, trains = in_edges(partition.graph), train_lists(partition)
        assume(all(any(rows[v] for v in train) for train in trains))
        if masked:
            mask = torch.zeros(partition.graph.num_nodes, dtype=torch.bool)
            mask[partition.train] = True
            partition.graph.set_field("train_mask", mask)
        else:  # without a mask nothing tells a vertex that stands for another from a training vertex
            assume(all(rows[v] for train in trains for v in train))
        out = tmp_path_factory.mktemp("pagraph") / "out"
        write_plain_pagraph(out, partition.graph, trains, partition.hops)
        try:
            again = read_pagraph_partition(out, partition.graph)
        except FormatError:
            # A vertex of one part stood for one without edges in another, and which of them lies is
            # not to be seen.
            assert not all(rows[v] for train in trains for v in train)
            return
        with_edges = [[v for v in train if rows[v]] for train in trains]
        if all(rows[v] for train in trains for v in train):
            assert train_lists(again) == with_edges
        assert set(again.train.tolist()) <= set(partition.train.tolist())
        for part in range(partition.num_parts):
            assert set(with_edges[part]) <= {v for train in train_lists(again) for v in train}

    def test_one_part(self, folder, whole, divided):
        part = open_pagraph_part(folder, 2)
        ids = divided.vertices(2).ids.sort().values
        assert part.global_ids.tolist() == ids.tolist() == part.graph.ndata["global_ids"].tolist()
        assert part.global_ids[part.train].tolist() == divided.train_of(2).tolist()
        assert part.labels.tolist() == whole.ndata["label"][divided.train_of(2)].tolist()
        assert (part.index, part.num_parts) == (2, 3)
        assert repr(part).startswith(
            f"PagraphPart(2 of 3, train={len(part.train)}, Graph(num_nodes={len(ids)}"
        )

    def test_the_graph_in_the_folder_above(self, divided, tmp_path):
        write_graph(divided.graph, tmp_path / "graph")
        write_pagraph_partition(divided, tmp_path / "graph" / "3naive")
        assert train_lists(read_pagraph_partition(tmp_path / "graph" / "3naive")) == train_lists(
            divided
        )

    def test_becomes_a_folder_of_parts(self, folder, divided, tmp_path):
        write_partition(read_pagraph_partition(folder, divided.graph), tmp_path / "out")
        part = open_partition(tmp_path / "out", 1, verify=True)
        assert part.global_ids[part.train].tolist() == divided.train_of(1).tolist()
        assert part.manifest.method == "imported"

    def test_a_first_vertex_that_stands_for_one_without_edges(self, tmp_path):
        # Vertex 0 trains and has no edges: PaGraph lists vertex 1 in its place, which does not
        # train.
        mask = torch.tensor([True, False, True, True, False])
        graph = Graph.from_coo(
            [1, 2, 4], [2, 3, 3], 5, ndata={"label": torch.arange(5), "train_mask": mask}
        )
        write_plain_pagraph(tmp_path / "out", graph, [[0, 2], [3]], 1)
        assert open_pagraph_part(tmp_path / "out", 0).train.tolist() == [0, 1]
        assert train_lists(read_pagraph_partition(tmp_path / "out", graph)) == [[2], [3]]

    def test_a_first_vertex_that_another_part_trains_on(self, tmp_path):
        # The same, but vertex 1 is a training vertex of the second part.
        graph = Graph.from_coo([1, 0, 2, 4], [3, 1, 1, 2], 6, ndata={"label": torch.arange(6)})
        write_plain_pagraph(tmp_path / "out", graph, [[0, 3], [1, 2]], 1)
        assert train_lists(read_pagraph_partition(tmp_path / "out", graph)) == [[3], [1, 2]]

    def test_a_vertex_listed_twice_is_there_once(self, tmp_path):
        graph = Graph.from_coo([2, 3], [1, 1], 4, ndata={"label": torch.arange(4)})
        write_plain_pagraph(tmp_path / "out", graph, [[0, 1]], 1)
        assert np.load(tmp_path / "out" / "sub_trainid_0.npy").tolist() == [0, 0]
        part = open_pagraph_part(tmp_path / "out", 0)
        assert (part.train.tolist(), part.labels.tolist()) == ([0], [1])


class TestBadInput:
    def test_no_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="folder must exist, got"):
            open_pagraph_part(tmp_path / "none", 0)

    def test_another_folder(self, tmp_path):
        with pytest.raises(
            FormatError,
            match=r"must hold a partition in PaGraph's form, got .* without subadj_0.npz",
        ):
            read_pagraph_partition(tmp_path)

    def test_an_unfinished_folder(self, folder):
        part = folder.rename(folder.parent / ".3naive.0123abcd.partial")
        with pytest.raises(FormatError, match="folder must be finished"):
            read_pagraph_partition(part)

    @pytest.mark.parametrize("index", [-1, 3])
    def test_index(self, folder, index):
        with pytest.raises(
            ValueError, match=rf"index must be in \[0, 3\), the number of parts in .*, got {index}"
        ):
            open_pagraph_part(folder, index)

    @pytest.mark.parametrize(
        "name", ["sub_trainid_1.npy", "sub_train2fullid_1.npy", "sub_label_1.npy"]
    )
    def test_a_missing_file(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(FormatError, match=f"{name} is missing"):
            open_pagraph_part(folder, 1)

    @pytest.mark.parametrize(
        "name", ["subadj_1.npz", "sub_trainid_1.npy", "sub_train2fullid_1.npy", "sub_label_1.npy"]
    )
    @pytest.mark.parametrize("keep", [0, 9, 100, -1])
    def test_a_truncated_file(self, folder, name, keep):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:keep])
        with pytest.raises(FormatError, match=name):
            open_pagraph_part(folder, 1)

    @settings(
        max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(st.data())
    def test_any_changed_byte_reads_or_is_refused(self, tmp_path, data):
        graph = Graph.from_coo([0, 1, 3, 3], [1, 2, 2, 4], 5, ndata={"label": torch.arange(5)})
        if not (tmp_path / "out").exists():
            write_pagraph_partition(make_partition(graph, [1, 2], [0, 1], 2, 1), tmp_path / "out")
        file = data.draw(st.sampled_from(sorted((tmp_path / "out").iterdir())))
        before = file.read_bytes()
        content = bytearray(before)
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        file.write_bytes(content)
        try:
            assert set(read_pagraph_partition(tmp_path / "out", graph).train.tolist()) <= set(
                range(5)
            )
        except FormatError as error:
            assert "\n" not in str(error)
        finally:
            file.write_bytes(before)

    @pytest.mark.parametrize(
        "name", ["sub_trainid_1.npy", "sub_train2fullid_1.npy", "sub_label_1.npy"]
    )
    def test_nothing_is_unpickled(self, folder, name):
        np.save(folder / name, np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(FormatError, match="must hold plain numbers"):
            open_pagraph_part(folder, 1)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            (
                "sub_trainid_1.npy",
                np.array([0.5]),
                "must hold a list of integers, got torch.float64",
            ),
            (
                "sub_trainid_1.npy",
                np.array([[0]]),
                r"must hold a list of integers, got torch.int64 of shape \[1, 1\]",
            ),
            ("sub_trainid_1.npy", np.array([-1]), r"must hold ids in \[0, \d+\), got -1 to -1"),
            ("sub_trainid_1.npy", np.array([300]), r"must hold ids in \[0, \d+\), got 300 to 300"),
            ("sub_trainid_1.npy", np.array([0]), r"sub_label_1.npy must have 1 rows, got shape"),
            (
                "sub_train2fullid_1.npy",
                np.array([7]),
                r"must hold \d+ ids, one for each vertex, got 1",
            ),
        ],
    )
    def test_a_list_that_does_not_fit(self, folder, name, value, message):
        np.save(folder / name, value)
        with pytest.raises(FormatError, match=message):
            open_pagraph_part(folder, 1)

    @pytest.mark.parametrize("value", [-1, 3])
    def test_ids_that_no_graph_has(self, folder, value):
        ids = np.load(folder / "sub_train2fullid_1.npy")
        ids[ids == 3] = 299
        ids[:2] = value
        np.save(folder / "sub_train2fullid_1.npy", ids)
        with pytest.raises(
            FormatError, match="must hold distinct ids from 0 on, got repeated or negative ones"
        ):
            open_pagraph_part(folder, 1)

    def test_a_matrix_that_is_not_square(self, folder):
        scipy.sparse.save_npz(folder / "subadj_1.npz", scipy.sparse.csr_matrix(np.ones((2, 3))))
        with pytest.raises(FormatError, match=r"subadj_1.npz must be square, got shape \(2, 3\)"):
            open_pagraph_part(folder, 1)

    def test_a_missing_part(self, folder, whole):
        (folder / "subadj_1.npz").rename(folder / "subadj_9.npz")
        assert read_pagraph_partition(folder, whole).num_parts == 1
        (folder / "subadj_0.npz").unlink()
        with pytest.raises(FormatError, match="without subadj_0.npz"):
            read_pagraph_partition(folder, whole)

    def test_is_no_partition_of_ours(self, folder):
        with pytest.raises(FormatError, match="read_pagraph_partition reads, got"):
            open_partition(folder, 0)


class TestAnotherGraph:
    def test_smaller(self, folder):
        graph = Graph.from_coo([0], [1])
        with pytest.raises(
            FormatError, match=r"part 0 must be of Graph\(num_nodes=2, .*, got the vertex \d+"
        ):
            read_pagraph_partition(folder, graph)

    def test_other_labels(self, folder, whole):
        graph = Graph(whole.csc, ndata={"label": whole.ndata["label"] + 1})
        with pytest.raises(FormatError, match="part 0 must have the labels of"):
            read_pagraph_partition(folder, graph)

    def test_other_edges(self, folder, whole):
        graph = Graph.from_coo((whole.csc.indices + 1) % 300, whole.csc.destinations())
        with pytest.raises(
            FormatError,
            match=r"part 0 must hold the edges of .*, got \d+ edges where \d+ are needed",
        ):
            read_pagraph_partition(folder, graph)

    def test_none_above(self, folder):
        with pytest.raises(FormatError, match="must hold manifest.json"):
            read_pagraph_partition(folder)

    def test_a_training_vertex_in_two_parts(self, folder, whole):
        for name in (
            "subadj_{}.npz",
            "sub_trainid_{}.npy",
            "sub_train2fullid_{}.npy",
            "sub_label_{}.npy",
        ):
            shutil.copy(folder / name.format(0), folder / name.format(1))
        with pytest.raises(
            FormatError, match=r"a training vertex must be in one part, got \d+ in parts \[0, 1\]"
        ):
            read_pagraph_partition(folder, Graph(whole.csc))

    def test_several_types(self, folder):
        csc = Graph.from_coo([0], [0]).csc
        with pytest.raises(ValueError, match="graph must have one vertex type and one edge type"):
            read_pagraph_partition(folder, Graph({("a", "r", "b"): csc, ("b", "s", "a"): csc}))

    def test_a_drawn_set_of_training_vertices(self, whole, tmp_path):
        partition = partition_graph(Graph(whole.csc, ndata={"label": whole.ndata["label"]}), 2, hops=2, method="hash",
                                    train=torch.arange(0, 300, 9))  # fmt: skip
        write_pagraph_partition(partition, tmp_path / "out")
        assert train_lists(
            read_pagraph_partition(tmp_path / "out", partition.graph)
        ) == train_lists(partition)
