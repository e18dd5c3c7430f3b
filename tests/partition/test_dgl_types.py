"""DGL opens parts of graphs with several types, and every id of every type leads back to the
source."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_types import Rows, plain_typed_hops, typed_partitions

from pagraph import CSC, Graph
from pagraph.datasets import citation
from pagraph.partition import partition_graph, write_dgl
from pagraph.partition.dgl_format import ORIGINAL_ID
from pagraph.partition.extract import vertex_owners

pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
dgl = pytest.importorskip("dgl")


@pytest.fixture(autouse=True)
def checked_by_dgl(monkeypatch):
    """DGL's own checks run whenever it loads a part."""
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")


def load(folder, part):
    return dgl.distributed.load_partition(str(folder / "graph.json"), part)


def by_dgls_ids(parts, names, place):
    """Type to the source's ids in DGL's order, over all parts."""
    return {
        name: torch.cat([part[place][f"{name}/{ORIGINAL_ID}"] for part in parts]).tolist()
        for name in names
    }


class Whole:
    """Source's vertices (type, id) and edges (type, id) by DGL's numbers over all types and
    parts."""

    def __init__(self, graph, parts):
        edge_names = [":".join(edge_type) for edge_type in graph.edge_types]
        self.book = parts[0][3]
        self._nodes = list(by_dgls_ids(parts, graph.node_types, 1).items())
        self._edges = list(
            zip(graph.edge_types, by_dgls_ids(parts, edge_names, 2).values(), strict=True)
        )
        for name, ids in self._nodes:
            assert sorted(ids) == list(range(graph.num_nodes_of(name)))
        for edge_type, ids in self._edges:
            assert sorted(ids) == list(range(graph.csc_of(edge_type).num_edges))

    def vertices(self, numbers):
        types, ids = self.book.map_to_per_ntype(numbers)
        return [
            (self._nodes[t][0], self._nodes[t][1][i])
            for t, i in zip(types.tolist(), ids.tolist(), strict=True)
        ]

    def edges(self, numbers):
        types, ids = self.book.map_to_per_etype(numbers)
        return [
            (self._edges[t][0], self._edges[t][1][i])
            for t, i in zip(types.tolist(), ids.tolist(), strict=True)
        ]


def check_part(partition, whole, loaded, part, halo_hops):
    graph, node_fields, edge_fields, book, *_ = loaded
    owner, rows, numbering = vertex_owners(partition), Rows(partition.graph), partition.numbering
    owned = {
        name: ids.tolist()
        for name, ids in numbering.split((owner == part).nonzero().squeeze(1)).items()
    }
    own = [(name, v) for name, ids in owned.items() for v in ids]
    hop_of = plain_typed_hops(rows, own, halo_hops)
    vertices = whole.vertices(graph.ndata[dgl.NID])
    assert vertices[: len(own)] == own and sorted(vertices) == sorted(hop_of)
    assert graph.ndata["inner_node"].tolist() == [1] * len(own) + [0] * (len(hop_of) - len(own))
    owners = [int(owner[numbering.begin(name) + v]) for name, v in vertices]
    assert (
        graph.ndata["part_id"].tolist() == owners == book.nid2partid(graph.ndata[dgl.NID]).tolist()
    )
    assert graph.ndata[dgl.NTYPE].tolist() == [
        partition.graph.node_types.index(name) for name, _ in vertices
    ]
    for name, ids in owned.items():
        assert node_fields[f"{name}/{ORIGINAL_ID}"].tolist() == ids
    sources, targets = (ends.tolist() for ends in graph.edges(order="eid"))
    edges = whole.edges(graph.edata[dgl.EID])
    got = [(e, vertices[u], vertices[v]) for e, u, v in zip(edges, sources, targets, strict=True)]
    wanted = [((t, e), u, v) for v, hop in hop_of.items() if hop < halo_hops for t, u, e in rows[v]]
    assert sorted(got) == sorted(wanted)
    assert graph.edata[dgl.ETYPE].tolist() == [
        partition.graph.edge_types.index(t) for t, _ in edges
    ]
    inner = graph.edata["inner_edge"].tolist()
    assert inner == [int(v < len(own)) for v in targets] == sorted(inner, reverse=True)
    # An edge's id within the part is what its number says: servers look edges up by it.
    assert book.eid2localeid(graph.edata[dgl.EID][: sum(inner)], part).tolist() == list(
        range(sum(inner))
    )
    for edge_type in partition.graph.edge_types:
        own_edges = [e for t, e in edges[: sum(inner)] if t == edge_type]
        assert edge_fields[f"{':'.join(edge_type)}/{ORIGINAL_ID}"].tolist() == own_edges
    # Rows by type, as DGL's sampling of each type wants them.
    _, _, places = graph.adj_tensors("csc")
    types, ends = graph.edata[dgl.ETYPE][places], [targets[e] for e in places.tolist()]
    assert list(zip(ends, types.tolist(), strict=True)) == sorted(
        zip(ends, types.tolist(), strict=True)
    )


@settings(max_examples=10)
@given(typed_partitions(), st.integers(1, 2))
def test_ids_lead_back_to_the_source(tmp_path_factory, partition, halo_hops):
    out = tmp_path_factory.mktemp("dgl") / "out"
    write_dgl(partition, out, halo_hops=halo_hops)
    parts = [load(out, part) for part in range(partition.num_parts)]
    whole = Whole(partition.graph, parts)
    for part, loaded in enumerate(parts):
        assert loaded[5:] == (partition.graph.node_types, partition.graph.edge_types)
        check_part(partition, whole, loaded, part, halo_hops)


def test_rows_and_training_vertices(tmp_path):
    graph = citation(300, num_features=4, num_author_features=3)
    partition = partition_graph(graph, 3, method="halo")
    write_dgl(partition, tmp_path / "out")
    for part in range(3):
        _, fields, *_ = load(tmp_path / "out", part)
        papers = fields[f"paper/{ORIGINAL_ID}"]
        assert (
            papers[fields["paper/train_mask"].bool()].tolist() == partition.train_of(part).tolist()
        )
        assert "author/train_mask" not in fields
        for name in ("paper", "author"):
            assert torch.equal(
                fields[f"{name}/feat"],
                graph.node_fields(name)["feat"][fields[f"{name}/{ORIGINAL_ID}"]],
            )


@pytest.mark.parametrize("names", [("a/b", "to"), ("a:b", "to"), ("a", "to:")])
def test_types_that_the_format_cannot_hold(tmp_path, names):
    source, relation = names
    graph = Graph({(source, relation, "c"): CSC.from_coo([0], [0], (1, 1))})
    partition = partition_graph(graph, 1, train=torch.tensor([0]), node_type="c")
    with pytest.raises(ValueError, match="names of types must not contain '/' or ':', got"):
        write_dgl(partition, tmp_path / "out")
