"""Wrong vertices and edges of a part are found, also where every checksum matches."""

import pytest
import torch
from damage import changed, found, write_from
from plain_partition import make_partition

from pagraph import CSC, FormatError, Graph
from pagraph.datasets import write_graph
from pagraph.partition import (
    Partition,
    PartVertices,
    partition_graph,
    verify_partition,
    write_partition,
)


class TestWrongEdges:
    """Parts written from a graph that differs from the source in one thing: all checksums and
    counts are right."""

    def edges(self, whole, change):
        indices = whole.csc.indices.clone()
        row = int(whole.ndata["train_mask"].nonzero()[0])
        while whole.csc.indptr[row + 1] - whole.csc.indptr[row] < 2:
            row += 1
        change(indices, int(whole.csc.indptr[row]))
        return Graph(CSC(whole.csc.indptr, indices, 300), ndata=whole.ndata, edata=whole.edata)

    def test_a_source_of_an_edge(self, whole, source, tmp_path):
        def change(indices, at):
            indices[at] = indices[at + 1]  # now parallel, and no vertex need be new

        write_from(self.edges(whole, change), source, tmp_path / "out")
        findings = verify_partition(tmp_path / "out").findings
        assert findings
        assert {finding.check for finding in findings} <= {"edges", "vertices", "fields"}
        assert any("of the source" in finding.message for finding in findings)

    def test_an_edge_in_the_place_of_a_parallel_one(self, tmp_path):
        """The same neighbours, but not the same number of edges to each."""
        right = Graph.from_coo([1, 1, 2], [0, 0, 0])
        write_graph(right, tmp_path / "graph")
        wrong = Graph(CSC(right.csc.indptr, torch.tensor([1, 2, 2], dtype=torch.int32), 3))
        write_partition(
            make_partition(wrong, [0], [0], 1, 1), tmp_path / "out", source=tmp_path / "graph"
        )
        message = (
            "an in-edge of vertex 0 (0 of the source) must come from vertex 1 of the source, got 2"
        )
        assert found(tmp_path / "out") == ("edges", 0, message)

    def test_an_edge_at_another_vertex(self, tmp_path):
        write_graph(Graph.from_coo([1, 2, 2], [0, 0, 1]), tmp_path / "graph")
        wrong = Graph.from_coo([1, 2, 2], [0, 1, 1])
        write_partition(
            make_partition(wrong, [0, 1], [0, 0], 1, 1), tmp_path / "out", source=tmp_path / "graph"
        )
        message = "vertex 0 (0 of the source) must have 2 in-edges, got 1"
        assert found(tmp_path / "out") == ("edges", 0, message)

    def test_ids_of_edges(self, tmp_path):
        right = Graph(CSC(torch.tensor([0, 2, 2]), torch.tensor([1, 1]), 2, torch.tensor([1, 0])))
        write_graph(right, tmp_path / "graph")
        wrong = Graph(CSC(right.csc.indptr, right.csc.indices, 2))
        write_partition(
            make_partition(wrong, [0], [0], 1, 1), tmp_path / "out", source=tmp_path / "graph"
        )
        message = "an in-edge of vertex 0 (0 of the source) must be edge 1 of the source, got 0"
        assert found(tmp_path / "out") == ("edges", 0, message)


class Lacking(Partition):
    """Its parts lack the last vertex that they should hold."""

    def vertices(self, part):
        right = super().vertices(part)
        return PartVertices(right.ids[:-1], (*right.hop_ends[:-1], right.hop_ends[-1] - 1))


class Larger(Partition):
    """Its parts hold one vertex too many."""

    def vertices(self, part):
        right = super().vertices(part)
        missing = torch.ones(self.graph.num_nodes, dtype=torch.bool)
        missing[right.ids] = False
        ids = torch.cat([right.ids, missing.nonzero()[0]])
        return PartVertices(ids, (*right.hop_ends[:-1], right.hop_ends[-1] + 1))


class Unordered(Partition):
    """The vertices of the first hop are in another order."""

    def vertices(self, part):
        right = super().vertices(part)
        cut = right.hop_ends[0]
        return PartVertices(torch.cat([right.ids[:cut], right.ids[cut:].flip(0)]), right.hop_ends)


class Shallow(Partition):
    """Its parts reach one hop less far than they say."""

    def vertices(self, part):
        right = super().vertices(part)
        return PartVertices(
            right.ids[: right.hop_ends[-2]], (*right.hop_ends[:-1], right.hop_ends[-2])
        )


class Misplaced(Partition):
    """A vertex of the first hop lies among those of the second."""

    def vertices(self, part):
        right = super().vertices(part)
        begin, first, last = right.hop_ends
        order = [*range(begin), *range(begin + 1, last)]
        order.insert(int((right.ids[first:] < right.ids[begin]).sum()) + first - 1, begin)
        return PartVertices(right.ids[order], (begin, first - 1, last))


class TestWrongNeighbourhoods:
    @pytest.mark.parametrize(
        ("kind", "check", "message"),
        [
            (Lacking, "edges", r"the in-neighbourhood must be complete, got \d+ in-edges missing"),
            (Larger, "vertices", r"\d+ vertices must be found at hop 1, got \d+"),
            (Unordered, "vertices", r"vertex \d+ \(of hop 1\) must be \d+ of the source, got \d+"),
            (Shallow, "edges", "the in-neighbourhood must be complete"),
        ],
    )
    def test_found(self, whole, source, tmp_path, kind, check, message):
        mask = torch.zeros(300, dtype=torch.bool)
        mask[[3, 50, 200]] = True
        right = partition_graph(changed(whole, train_mask=mask), 3, hops=1, method="hash")
        partition = kind(right.graph, right.train, right.parts, 3, 1, "hash")
        write_graph(right.graph, tmp_path / "graph")
        write_partition(partition, tmp_path / "out", source=tmp_path / "graph")
        result = verify_partition(tmp_path / "out")
        of_parts = [finding for finding in result.findings if finding.part is not None]
        assert {finding.part for finding in of_parts} == {0, 1, 2}
        assert {finding.check for finding in of_parts} == {check}
        with pytest.raises(FormatError, match=f"part 0: {message}.*more"):
            result.raise_if_wrong()

    def test_the_hop_of_a_vertex(self, tmp_path):
        graph = Graph.from_coo([1, 2, 3, 4], [0, 0, 1, 2])
        write_graph(graph, tmp_path / "graph")
        right = make_partition(graph, [0], [0], 1, 2)
        write_partition(Misplaced(graph, right.train, right.parts, 1, 2, "hash"), tmp_path / "out")
        expected = ("vertices", 0, "2 vertices must be found at hop 1, got 1")
        assert found(tmp_path / "out", source=tmp_path / "graph") == expected
