"""Reordered graphs: the same graph up to the permutation, in bounded memory."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from tiny_graphs import HETEROGENEOUS, HOMOGENEOUS, random_graph

from pagraph import Graph, NeighborSampler
from pagraph.datasets import new_ids, open_graph, reorder, rmat, write_graph
from pagraph.datasets.moved_graph import new_indptr, write_moved
from pagraph.datasets.original_ids import word_rows
from pagraph.graph.graph import CSC
from pagraph.graph.stored_rows import IndexedRows, NarrowRows
from pagraph.options.names import ORDERS
from pagraph.sampling import LayerSampler

DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint8]


def with_fields(graph, seed, *, edge_fields=True):
    """The graph with a field of vertices and of edges of each dtype, masks and a wide field."""
    generator = torch.Generator().manual_seed(seed)
    for ntype in graph.node_types:
        count = graph.num_nodes_of(ntype)
        graph.set_field("feat", torch.randn(count, 3, 2, generator=generator), node_type=ntype)
        graph.set_field("empty", torch.zeros(count, 0), node_type=ntype)
        source, rows = (
            torch.randn(5, 7, generator=generator),
            torch.randint(5, (count,), generator=generator),
        )
        graph.set_field("shared", IndexedRows(source, rows), node_type=ntype)
        for dtype in DTYPES:
            values = torch.randint(0, 2, (count,), generator=generator).to(dtype)
            graph.set_field(str(dtype).removeprefix("torch."), values, node_type=ntype)
    for etype in graph.edge_types if edge_fields else ():
        count = graph.csc_of(etype).num_edges
        graph.set_field("w", torch.randn(count, generator=generator), edge_type=etype)
        graph.set_field("pair", torch.randn(count, 2, generator=generator), edge_type=etype)
    return graph


def assert_moved(new, old):
    """``new`` has the vertices, edges and fields of ``old``, by ``original_id``."""
    assert new.num_nodes_by_type == old.num_nodes_by_type and new.edge_types == old.edge_types
    order = {t: new.node_fields(t)["original_id"] for t in old.node_types}
    for ntype, ids in order.items():
        assert ids.sort().values.equal(torch.arange(len(ids)))
        for name, values in old.node_fields(ntype).items():
            got = new.node_fields(ntype)[name]
            assert got.dtype == values.dtype and got.equal(values[ids]), name
    for etype in old.edge_types:
        was, now = old.csc_of(etype), new.csc_of(etype)
        assert now.edge_ids is None and now.indices.dtype == was.indices.dtype
        positions = [
            torch.arange(int(was.indptr[v]), int(was.indptr[v + 1])) for v in order[etype[2]]
        ]
        positions = torch.cat([torch.empty(0, dtype=torch.int64), *positions])
        assert order[etype[0]][now.indices.long()].equal(was.indices[positions].long())
        assert now.indptr.diff().equal(was.indptr.diff()[order[etype[2]]])
        ids = positions if was.edge_ids is None else was.edge_ids[positions].long()
        fields = new.edge_fields(etype)
        assert ("original_id" in fields) == bool(old.edge_fields(etype) or was.edge_ids is not None)
        if "original_id" in fields:
            assert fields["original_id"].long().equal(ids)
        for name, values in old.edge_fields(etype).items():
            assert fields[name].equal(values[ids]), name


@pytest.mark.many
@settings(max_examples=examples(60), deadline=None)
@given(
    types=st.sampled_from([HOMOGENEOUS, HETEROGENEOUS, ({"_N": 0}, [("_N", "_E", "_N")])]),
    seed=st.integers(0, 1000),
    num_edges=st.sampled_from([0, 1, 20, 60]),
    edge_fields=st.booleans(),
    shuffled=st.booleans(),
    room=st.sampled_from([(1, 1), (40, 32), (10_000, 48), (10_000, 10_000)]),
)
def test_same_graph_at_any_places(
    tmp_path_factory, types, seed, num_edges, edge_fields, shuffled, room
):
    graph, draw = random_graph(types, seed, num_edges), np.random.default_rng(seed)
    if shuffled:
        graph = with_edge_ids(graph, lambda count: draw.permutation(count))
    graph = with_fields(graph, seed, edge_fields=edge_fields)
    places = {t: draw.permutation(n).astype(np.int32) for t, n in graph.num_nodes_by_type.items()}
    offsets = {t: new_indptr(graph, t, places[t[2]]) for t in graph.edge_types}
    out, done = tmp_path_factory.mktemp("moved") / "out", []
    write_moved(
        graph, out, places, offsets, bucket_bytes=room[0], chunk_bytes=room[1], tick=done.append
    )
    new = open_graph(out, verify=True)
    assert_moved(new, graph)
    for ntype, place in places.items():
        assert new.node_fields(ntype)["original_id"].equal(torch.from_numpy(np.argsort(place)))
    assert not [path for path in out.iterdir() if path.suffix not in (".npy", ".json")]


def with_edge_ids(graph, ids):
    """The graph with other edge ids."""
    csc = {t: graph.csc_of(t) for t in graph.edge_types}
    csc = {
        t: CSC(c.indptr, c.indices, c.num_src, torch.as_tensor(ids(c.num_edges)))
        for t, c in csc.items()
    }
    return Graph(csc, graph.num_nodes_by_type)


def task(graph, seeds=None, fanouts=(2, 2), batch_size=3):
    """Arguments of reorder."""
    every = {t: torch.arange(0, n, 2) for t, n in graph.num_nodes_by_type.items()}
    return {
        "seeds": every if seeds is None else seeds,
        "sampler": NeighborSampler(list(fanouts)),
        "batch_size": batch_size,
    }


@pytest.mark.every
@pytest.mark.parametrize("by", ORDERS)
@pytest.mark.parametrize(
    "types", [HOMOGENEOUS, HETEROGENEOUS], ids=["homogeneous", "heterogeneous"]
)
def test_reorder(tmp_path, by, types):
    graph, calls = with_fields(random_graph(types, 3), 3), []
    done = reorder(
        graph, tmp_path / "out", by=by, **task(graph), progress=lambda *call: calls.append(call)
    )
    new = open_graph(tmp_path / "out", verify=True)
    assert_moved(new, graph)
    assert all(0 <= count <= total for count, total in calls) and calls[-1][0] == calls[-1][1]
    assert json.loads(json.dumps(done.to_json()))["by"] == by
    assert done.before["features"].pages > 0 and done.after["topology"].batch_ratio > 0


def test_fields_in_fewer_bytes(tmp_path):
    graph = with_fields(random_graph(HOMOGENEOUS, 3), 3)
    write_graph(graph, tmp_path / "narrow", store="int8")
    narrow = open_graph(tmp_path / "narrow")
    assert any(isinstance(values, NarrowRows) for values in narrow.ndata.values())
    done = reorder(narrow, tmp_path / "out", by="reads", **task(narrow))
    moved = open_graph(tmp_path / "out", verify=True)
    order = moved.ndata["original_id"]
    for name, values in narrow.ndata.items():
        assert moved.ndata[name][:].equal(values[order]), name
    assert all(moved.edata[name].dtype == values.dtype for name, values in narrow.edata.items())
    assert done.after["features"].pages > 0


class TestOriginalIds:
    def test_seeds_of_the_original(self, tmp_path):
        graph = with_fields(random_graph(HETEROGENEOUS, 5), 5)
        reorder(graph, tmp_path / "out", by="both", **task(graph))
        new, wanted = open_graph(tmp_path / "out"), torch.tensor([3, 1])
        for ntype in graph.node_types:
            ids = new_ids(new, wanted, node_type=ntype)
            assert new.node_fields(ntype)["feat"][ids].equal(
                graph.node_fields(ntype)["feat"][wanted]
            )
        for etype in graph.edge_types:
            ids = new_ids(new, wanted, edge_type=etype)
            assert new.edge_fields(etype)["w"][ids].equal(graph.edge_fields(etype)["w"][wanted])

    def test_those_of_the_first_source_are_kept(self, tmp_path):
        graph = rmat(6, seed=1)
        names = torch.randperm(64, generator=torch.Generator().manual_seed(1)) + 1000
        graph.set_field("original_id", names)
        settings_ = task(graph, torch.arange(64))
        reorder(graph, tmp_path / "once", by="reads", **settings_)
        once = open_graph(tmp_path / "once")
        reorder(once, tmp_path / "twice", by="community", **settings_)
        twice = open_graph(tmp_path / "twice")
        for copy in (once, twice):
            same = new_ids(copy, names)
            assert copy.in_degrees()[same].equal(graph.in_degrees())

    def test_words(self):
        graph = Graph.from_coo(
            [0], [1], ndata={"original_id": word_rows(np.array([b"bo", b"anna"]))}
        )
        assert new_ids(graph, ["anna", "bo"]).tolist() == [1, 0]
        with pytest.raises(ValueError, match="original must hold ids of the source, got 'eve'"):
            new_ids(graph, ["eve"])
        with pytest.raises(TypeError, match="original must be a list of words"):
            new_ids(graph, torch.tensor([0]))

    def test_no_guessing(self):
        graph = Graph.from_coo([0, 1], [1, 2])
        with pytest.raises(KeyError, match="graph must have the field original_id of vertices"):
            new_ids(graph, [0])
        graph.set_field("original_id", torch.tensor([5, 7, 7]))
        assert new_ids(graph, [5]).tolist() == [0]
        with pytest.raises(ValueError, match="original must hold ids of the source, got 6"):
            new_ids(graph, [6])
        with pytest.raises(ValueError, match="original must hold ids that one row has, got 7"):
            new_ids(graph, [7])


class TestRefused:
    def test_arguments(self, tmp_path):
        graph = rmat(5, seed=1)
        ways = [
            ({"by": "size"}, "by must be one of reads, community, both, got 'size'"),
            (
                {"memory": "1MiB"},
                "memory must be at least .* for 32 vertices and the .* holds.*; got 1 MiB",
            ),
            ({"memory": "10%"}, "memory must be bytes"),
            ({"seeds": torch.empty(0, dtype=torch.int64)}, "seeds must hold at least 1, got 0"),
            ({"sampler": LayerSampler([4])}, "sampler must draw in-edges with fan-outs"),
        ]
        for change, message in ways:
            with pytest.raises(ValueError, match=message):
                reorder(
                    graph,
                    tmp_path / "out",
                    **{"by": "both", **task(graph, torch.arange(9)), **change},
                )
        assert not [*tmp_path.iterdir()]

    def test_a_part(self, tmp_path):
        graph = rmat(5, seed=1)
        graph.set_field("global_ids", torch.arange(32))
        with pytest.raises(
            ValueError, match="got a part of a partition: reorder first, then divide"
        ):
            reorder(graph, tmp_path / "out", by="both", **task(graph, torch.arange(9)))

    @pytest.mark.parametrize("bucket", [1, 10_000])
    @pytest.mark.parametrize("ids", ["twice", "outside"])
    def test_edge_ids_that_are_no_permutation(self, tmp_path, bucket, ids):
        graph = random_graph(HOMOGENEOUS, 1)
        wrong = {
            "twice": lambda count: np.zeros(count, np.int64),
            "outside": lambda count: np.arange(count) + 1,
        }
        graph = with_fields(with_edge_ids(graph, wrong[ids]), 1)
        places = {"_N": np.arange(7)}
        offsets = {t: new_indptr(graph, t, places["_N"]) for t in graph.edge_types}
        with pytest.raises(ValueError, match="edge ids of a graph with edge fields must"):
            write_moved(graph, tmp_path / "out", places, offsets, bucket_bytes=bucket)
        assert not [*tmp_path.iterdir()]

    def test_an_existing_folder(self, tmp_path):
        graph = rmat(5, seed=1)
        with pytest.raises(FileExistsError):
            reorder(graph, tmp_path, by="both", **task(graph, torch.arange(9)))
