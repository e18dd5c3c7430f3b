"""What is written opens with DGL, and every id in it leads back to the source."""

import contextlib
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_partition import in_edges, make_partition, partitions, plain_hops
from tiers import examples

from pagraph import Graph
from pagraph.partition import Partition, partition_graph
from pagraph.partition.dgl_format import ORIGINAL_ID, write_dgl
from pagraph.partition.extract import vertex_owners

pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
dgl = pytest.importorskip("dgl")
NODE, EDGE = "_N", ("_N", "_E", "_N")


@pytest.fixture(autouse=True)
def checked_by_dgl(monkeypatch):
    """DGL's own checks run whenever it loads a part."""
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")


def load(folder, part, name="graph"):
    return dgl.distributed.load_partition(str(folder / f"{name}.json"), part)


def edge_field(fields, name):
    return fields[":".join(EDGE) + "/" + name]


def check_part(partition, loaded, part, owner, halo_hops, node_ids, edge_ids):
    """``node_ids`` and ``edge_ids`` say for DGL's numbers which vertices and edges of the source
    they are."""
    graph, node_fields, edge_fields, book, *_ = loaded
    rows, own = in_edges(partition.graph), (owner == part).nonzero().squeeze(1).tolist()
    hop_of = plain_hops(partition.graph, own, halo_hops)
    ids = [node_ids[new] for new in graph.ndata[dgl.NID].tolist()]
    assert sorted(ids) == sorted(hop_of)
    assert ids[: len(own)] == own == node_fields[f"{NODE}/{ORIGINAL_ID}"].tolist()
    assert graph.ndata["inner_node"].tolist() == [int(v in own) for v in ids]
    assert graph.ndata["part_id"].tolist() == [owner[v] for v in ids]
    assert book.nid2partid(graph.ndata[dgl.NID]).tolist() == [owner[v] for v in ids]
    assert book.nid2localnid(graph.ndata[dgl.NID][: len(own)], part).tolist() == list(
        range(len(own))
    )
    sources, targets = (ends.tolist() for ends in graph.edges(order="eid"))
    edges = [edge_ids[new] for new in graph.edata[dgl.EID].tolist()]
    got = sorted((ids[u], e, ids[v]) for u, v, e in zip(sources, targets, edges, strict=True))
    assert got == sorted(
        (u, e, v) for v, hop in hop_of.items() if hop < halo_hops for u, e in rows[v]
    )
    assert graph.edata["inner_edge"].tolist() == [int(ids[v] in own) for v in targets]
    inner = edge_field(edge_fields, ORIGINAL_ID).tolist()
    assert edges[: len(inner)] == inner
    assert book.eid2partid(graph.edata[dgl.EID]).tolist() == [owner[ids[v]] for v in targets]


class TestStructure:
    @settings(max_examples=examples(30))
    @given(partitions(), st.integers(1, 3))
    def test_ids_lead_back_to_the_source(self, tmp_path_factory, partition, halo_hops):
        out = tmp_path_factory.mktemp("dgl") / "out"
        write_dgl(partition, out, halo_hops=halo_hops)
        parts = [load(out, part) for part in range(partition.num_parts)]
        node_ids = torch.cat([part[1][f"{NODE}/{ORIGINAL_ID}"] for part in parts]).tolist()
        edge_ids = torch.cat([edge_field(part[2], ORIGINAL_ID) for part in parts]).tolist()
        assert sorted(node_ids) == list(range(partition.graph.num_nodes))
        assert sorted(edge_ids) == list(range(partition.graph.num_edges))
        owner = vertex_owners(partition)
        for part, loaded in enumerate(parts):
            check_part(partition, loaded, part, owner, halo_hops, node_ids, edge_ids)

    def test_the_same_in_edges_as_dgls_own_partitioner(self, whole, divided, tmp_path):
        write_dgl(divided, tmp_path / "out", halo_hops=2)
        ends = whole.csc.indices.long(), whole.csc.destinations().long()
        structure = dgl.graph(ends, num_nodes=whole.num_nodes)
        with contextlib.redirect_stdout(None):
            subgraphs, _, _ = dgl.partition.partition_graph_with_halo(
                structure, vertex_owners(divided).long(), 2, True
            )
        order = torch.cat(
            [load(tmp_path / "out", part)[1][f"{NODE}/{ORIGINAL_ID}"] for part in range(3)]
        )
        for part, theirs in subgraphs.items():
            ours = load(tmp_path / "out", part)[0]
            ids, their_ids = order[ours.ndata[dgl.NID]], theirs.ndata["orig_id"]
            assert sorted(ids.tolist()) == sorted(their_ids.tolist())
            assert int(ours.ndata["inner_node"].sum()) == int(theirs.ndata["inner_node"].sum())
            assert int(ours.edata["inner_edge"].sum()) == int(theirs.edata["inner_edge"].sum())
            pairs = [
                sorted(zip(i[g.edges()[0]].tolist(), i[g.edges()[1]].tolist(), strict=True))
                for g, i in ((ours, ids), (theirs, their_ids))
            ]
            assert pairs[0] == pairs[1]

    def test_a_training_vertex_is_its_parts(self, divided, tmp_path):
        write_dgl(divided, tmp_path / "out")
        for part in range(3):
            fields = load(tmp_path / "out", part)[1]
            ids = fields[f"{NODE}/{ORIGINAL_ID}"][fields[f"{NODE}/train_mask"].bool()]
            assert ids.tolist() == divided.train_of(part).tolist()


class TestFields:
    def test_rows_are_the_sources(self, whole, divided, tmp_path):
        write_dgl(divided, tmp_path / "out")
        for part in range(3):
            _, node_fields, edge_fields, *_ = load(tmp_path / "out", part)
            for fields, source, prefix in (
                (node_fields, whole.ndata, NODE),
                (edge_fields, whole.edata, ":".join(EDGE)),
            ):
                assert fields.keys() == {f"{prefix}/{name}" for name in [*source, ORIGINAL_ID]}
                for name, value in source.items():
                    want = value[fields[f"{prefix}/{ORIGINAL_ID}"]]
                    got = fields[f"{prefix}/{name}"]
                    assert got.dtype == (torch.uint8 if want.dtype == torch.bool else want.dtype)
                    assert torch.equal(got.float().nan_to_num(9e9), want.float().nan_to_num(9e9))

    def test_train_mask_is_the_partitions(self, whole, tmp_path):
        train = torch.arange(0, 300, 7)
        write_dgl(partition_graph(whole, 2, method="hash", train=train), tmp_path / "out")
        found = []
        for part in range(2):
            fields = load(tmp_path / "out", part)[1]
            found += fields[f"{NODE}/{ORIGINAL_ID}"][fields[f"{NODE}/train_mask"].bool()].tolist()
        assert sorted(found) == train.tolist()

    def test_named_types(self, tmp_path):
        csc = Graph.from_coo([0, 1], [1, 0]).csc
        graph = Graph({("paper", "cites", "paper"): csc}, ndata={"feat": torch.arange(2)})
        write_dgl(
            make_partition(graph, [0, 1], [1, 0], 2, 1), tmp_path / "out", graph_name="papers"
        )
        _, fields, _, _, name, node_types, edge_types = load(tmp_path / "out", 1, "papers")
        assert (name, node_types, edge_types) == (
            "papers",
            ["paper"],
            [("paper", "cites", "paper")],
        )
        assert fields["paper/feat"].tolist() == [0]

    def test_progress_counts_parts(self, divided, tmp_path):
        seen = []
        write_dgl(
            divided, tmp_path / "out", progress=lambda done, total: seen.append((done, total))
        )
        assert seen == [(1, 3), (2, 3), (3, 3)]


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
    def test_graph_name(self, divided, tmp_path, name):
        with pytest.raises(ValueError, match="graph_name must be a plain file name, got"):
            write_dgl(divided, tmp_path / "out", graph_name=name)
        assert not any(tmp_path.iterdir())

    @pytest.mark.parametrize("hops", [0, -1, 254])
    def test_halo_hops(self, divided, tmp_path, hops):
        with pytest.raises(ValueError, match=f"halo_hops must be from 1 to 253, got {hops}"):
            write_dgl(divided, tmp_path / "out", halo_hops=hops)

    @pytest.mark.parametrize("name", ["a/b", "a:b", ORIGINAL_ID])
    @pytest.mark.parametrize("owner", ["ndata", "edata"])
    def test_a_field_that_the_format_cannot_hold(self, tmp_path, name, owner):
        graph = Graph.from_coo([0], [0], **{owner: {name: torch.zeros(1)}})
        with pytest.raises(
            ValueError, match=f"names of fields must not be 'orig_id' or contain .*, got '{name}'"
        ):
            write_dgl(make_partition(graph, [0], [0], 1, 1), tmp_path / "out")

    def test_the_folder_exists(self, divided, tmp_path):
        with pytest.raises(FileExistsError, match="folder must not exist yet"):
            write_dgl(divided, tmp_path)

    def test_nothing_is_begun_before_vertices_are_numbered(self, tmp_path):
        """A process that is killed in that step, which may take long, leaves nothing."""
        there = []

        class Watching(Partition):
            def vertices(self, part):
                there.extend(tmp_path.iterdir())
                return super().vertices(part)

        parts = torch.zeros(1, dtype=torch.int32)
        write_dgl(
            Watching(Graph.from_coo([0], [1]), torch.tensor([1]), parts, 1, 1, "hash"),
            tmp_path / "out",
        )
        assert not there and (tmp_path / "out").is_dir()


class TestFullDisk:
    def test_leaves_nothing_wherever_it_happens(self, divided, tmp_path, files_of_at_most):
        write_dgl(divided, tmp_path / "out")
        sizes = {path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()}
        largest = max(sizes)
        for limit in {size - lost for size in sizes for lost in (1, 5000) if size > lost}:
            with files_of_at_most(limit), pytest.raises(OSError, match="File too large"):
                write_dgl(divided, tmp_path / "again")
            assert os.listdir(tmp_path) == ["out"]
        with files_of_at_most(largest):
            write_dgl(divided, tmp_path / "again")
