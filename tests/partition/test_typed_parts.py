"""Parts of graphs with several types equal a slow reference; written, opened and sampled they are
the whole graph's."""

import numpy as np
import pytest
import torch
from damage import edit_json, rewrite
from hypothesis import given, settings
from plain_partition import in_edges
from plain_types import numbers, plain_typed_part, typed_partitions
from tiers import examples

from pagraph import CSC, FormatError, Graph, NeighborSampler, open_partition
from pagraph.datasets import citation, write_graph
from pagraph.partition import (
    METHODS,
    CacheTrial,
    describe,
    limit_replication,
    partition_graph,
    verify_partition,
    write_pagraph_partition,
    write_partition,
)
from pagraph.partition.cache_trial import row_bytes
from pagraph.partition.extract import extract_part
from pagraph.partition.partition import merged

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def small_citation():
    graph = citation(200, num_features=6, num_author_features=3, seed=2)
    graph.set_field("year", torch.rand(graph.csc_of(CITES).num_edges), edge_type=CITES)
    graph.set_field(
        "train_mask", torch.arange(graph.num_nodes_of("institution")), node_type="institution"
    )
    return graph


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed") / "graph"
    write_graph(small_citation(), folder)
    return folder


@pytest.fixture(scope="module")
def papers(source):
    return Graph.open(source)


@pytest.fixture
def out(papers, source, tmp_path):
    write_partition(
        partition_graph(papers, 2, method="hash", node_type="paper"),
        tmp_path / "out",
        source=source,
    )
    return tmp_path / "out"


def seeds_of(partition, part):
    return [(partition.train_type, v) for v in partition.train_of(part).tolist()]


class TestStructure:
    @settings(max_examples=examples(40))
    @given(typed_partitions())
    def test_equals_the_reference(self, partition):
        for part in range(partition.num_parts):
            structure = extract_part(partition, part)
            without = ()
            if partition.dropped is not None:
                by_type = partition.numbering.split(partition.dropped[part])
                without = {(name, v) for name, ids in by_type.items() for v in ids.tolist()}
            ids, edges, hop_of = plain_typed_part(
                partition.graph, seeds_of(partition, part), partition.hops, without
            )
            assert sorted(structure.vertices.ids.tolist()) == numbers(partition, hop_of)
            for name, found in structure.types.items():
                assert found.ids.tolist() == ids[name]
                ends = [
                    sum(h <= hop for (t, _), h in hop_of.items() if t == name)
                    for hop in range(partition.hops + 1)
                ]
                assert list(found.hop_ends) == ends
            for edge_type, found in structure.edges.items():
                own = found.edge_ids.tolist()
                assert [[(u, own[at]) for u, at in row] for row in in_edges(found.csc)] == edges[
                    edge_type
                ]

    @settings(max_examples=examples(25))
    @given(typed_partitions())
    def test_merged_edges_are_those_of_all_types(self, partition):
        graph, numbering = partition.graph, partition.numbering
        rows = [[] for _ in range(graph.num_nodes)]
        for source, relation, target in graph.edge_types:
            first = numbering.begin(source)
            for v, edges in enumerate(in_edges(graph.csc_of((source, relation, target)))):
                rows[numbering.begin(target) + v] += [first + u for u, _ in edges]
        assert [[u for u, _ in row] for row in in_edges(merged(graph))] == rows
        everything = torch.arange(graph.num_nodes)
        assert {n: ids.tolist() for n, ids in numbering.split(everything).items()} == {
            name: [*range(count)] for name, count in graph.num_nodes_by_type.items()
        }

    def test_the_copy_is_made_once_and_of_several_types_alone(self, papers):
        assert merged(papers) is merged(papers)
        plain = Graph.from_coo([0], [1])
        assert merged(plain) is plain


class TestMethods:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("hops", [1, 2])
    def test_each_training_vertex_is_in_one_part_and_parts_are_even(self, papers, method, hops):
        partition = partition_graph(papers, 3, hops=hops, method=method, node_type="paper", seed=1)
        sizes = torch.bincount(partition.parts, minlength=3)
        assert torch.equal(
            partition.train, papers.node_fields("paper")["train_mask"].nonzero().squeeze(1)
        )
        assert int(sizes.max() - sizes.min()) <= 2
        if method != "metis":  # DGL's does not repeat itself
            again = partition_graph(papers, 3, hops=hops, method=method, node_type="paper", seed=1)
            assert torch.equal(partition.parts, again.parts)

    def test_auto_holds_less_than_hash(self, papers):
        held = {
            method: describe(
                partition_graph(papers, 4, hops=1, method=method, node_type="paper"), cache=None
            )
            for method in ("auto", "hash")
        }
        assert held["auto"].replication_factor < held["hash"].replication_factor

    def test_evaluated_vertices_are_of_the_same_type(self, papers, source, tmp_path):
        partition = partition_graph(
            papers, 2, hops=1, method="halo", evaluation="parts", node_type="paper"
        )
        fields = papers.node_fields("paper")
        assert torch.equal(
            partition.evaluated, (fields["val_mask"] | fields["test_mask"]).nonzero().squeeze(1)
        )
        write_partition(partition, tmp_path / "out", source=source)
        verify_partition(tmp_path / "out").raise_if_wrong()
        parts = [open_partition(tmp_path / "out", part) for part in range(2)]
        found = torch.cat([part.global_ids_of("paper")[part.val] for part in parts])
        assert sorted(found.tolist()) == fields["val_mask"].nonzero().squeeze(1).tolist()

    def test_a_limit_on_replication(self, papers, source, tmp_path):
        partition = partition_graph(papers, 2, hops=2, method="hash", node_type="paper")
        held = describe(partition, cache=None).replication_factor
        limited = limit_replication(partition, 0.75 * held, fanout=(5, 5))
        report = describe(limited, cache=None)
        assert report.replication_factor <= 0.75 * held
        assert 0 < limited.lost < 1
        write_partition(limited, tmp_path / "out", source=source, max_replication=0.75 * held)
        verify_partition(tmp_path / "out").raise_if_wrong()


class TestExpectedDraws:
    def test_each_edge_type_is_drawn_from_by_itself(self):
        """Vertex a0 has 4 in-edges from b and 1 from a: of a fan-out of 2, 2 draws go to b and 1 to
        a."""
        graph = Graph(
            {
                ("b", "to", "a"): CSC.from_coo([0, 1, 2, 3], [0] * 4, (4, 2)),
                ("a", "to", "a"): CSC.from_coo([1], [0], 2),
            }
        )
        partition = partition_graph(graph, 1, hops=1, train=torch.tensor([0]), node_type="a")
        limited = limit_replication(partition, 4 / 6, fanout=(2,))
        assert limited.numbering.split(limited.dropped[0])["a"].tolist() == []
        assert limited.lost == pytest.approx(1 / 3)  # two vertices of b, each drawn half a time


class TestFolder:
    @pytest.mark.parametrize("features", ["copy", "reference"])
    def test_rows_ids_and_lists(self, papers, source, tmp_path, features):
        partition = partition_graph(papers, 3, hops=2, method="hash", node_type="paper")
        manifest = write_partition(partition, tmp_path / "out", source=source, features=features)
        assert manifest.node_types == papers.num_nodes_by_type
        for index in range(3):
            part = open_partition(tmp_path / "out", index, verify=True)
            types = partition.vertices(index).by_type(partition.numbering)
            assert part.train_type == "paper"
            for name, found in types.items():
                ids = part.global_ids_of(name)
                assert torch.equal(ids, found.ids) and part.hop_ends_of(name) == found.hop_ends
                for field, rows in papers.node_fields(name).items():
                    if name != "paper" or not field.endswith("mask"):
                        assert torch.equal(part.graph.node_fields(name)[field][:], rows[ids])
            assert torch.equal(types["paper"].ids[part.train], partition.train_of(index))
            masked = part.graph.node_fields("paper")["train_mask"].nonzero().squeeze(1)
            assert torch.equal(masked, part.train)
            years = papers.edge_fields(CITES)["year"][part.global_edge_ids_of(CITES).long()]
            assert torch.equal(part.graph.edge_fields(CITES)["year"], years)
            assert "in_degrees" not in part.graph.node_fields("paper")
        result = verify_partition(tmp_path / "out")
        assert (result.ok, result.train) == (True, len(partition.train))
        assert part.open_source().num_nodes_by_type == papers.num_nodes_by_type

    @settings(max_examples=8)
    @given(typed_partitions())
    def test_any_graph(self, tmp_path_factory, partition):
        folder = tmp_path_factory.mktemp("any")
        write_graph(partition.graph, folder / "graph")
        write_partition(partition, folder / "out", source=folder / "graph")
        result = verify_partition(folder / "out")
        result.raise_if_wrong()
        assert result.missing == 0 or partition.dropped is not None

    def test_ids_of_one_type_are_asked_for_by_name(self, out):
        part = open_partition(out, 0)
        for attribute in ("global_ids", "hop_ends", "global_edge_ids"):
            with pytest.raises(ValueError, match="the graph must have exactly 1 "):
                getattr(part, attribute)

    def test_another_graph_of_the_same_size(self, papers, out, tmp_path):
        counts = {"paper": 200, "author": 299, "institution": 4}
        other = Graph({CITES: papers.csc_of(CITES)}, counts)
        write_graph(other, tmp_path / "other")
        with pytest.raises(ValueError, match="source must be the graph of"):
            verify_partition(out, source=tmp_path / "other")


def move_an_edge(indptr):
    """The first vertex with in-edges has one less, the next one more."""
    indptr[int(np.flatnonzero(indptr)[0])] -= 1
    return indptr


class TestDamage:
    """Each file is changed under checksums that match."""

    @pytest.mark.every
    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("node-author-global_ids", lambda a: a[::-1], "of type 'author' (of hop 1) must be"),
            (
                "node-author-global_ids",
                lambda a: a + 10**6,
                "global_ids of type 'author' must be in [0, 300)",
            ),
            (
                "node-author-feat",
                lambda a: a + 1,
                "field 'feat' of its vertices of type 'author' must have the source's",
            ),
            (
                "edge-paper-cites-paper-field-year",
                lambda a: a + 1,
                "of its edges of type 'paper/cites/paper' must have",
            ),
            ("edge-author-writes-paper-indices", lambda a: np.roll(a, 1), "must come from vertex"),
            ("edge-author-writes-paper-ids", lambda a: a[::-1].copy(), "must be edge"),
            ("edge-author-writes-paper-indptr", move_an_edge, "in-edges, got"),
        ],
    )
    def test_is_found(self, out, name, change, message):
        rewrite(out, 1, name, change)
        (finding,) = verify_partition(out).findings
        assert finding.part == 1 and message in finding.message

    @pytest.mark.parametrize(
        ("keys", "value", "message"),
        [
            (("node_types", "author"), 7, "num_nodes and train must be of"),
            (("node_types",), {}, "node_types must hold at least 1 type in version 3, got 0"),
            (("train", "node_type"), "book", "num_nodes and train must be of"),
            (("folders", 0, "hop_ends"), [1, 2, 3], "hop_ends must be a JSON dict"),
            (("folders", 0, "hop_ends", "author"), [0, 9], "author must be 3 numbers, got 2"),
            (("folders", 0, "hop_ends", "author"), [1, 2, 3], "with seeds of 'paper' alone"),
            (("version",), 1, "hop_ends must be a JSON list"),
        ],
    )
    def test_wrong_manifests(self, out, keys, value, message):
        def change(manifest):
            for key in keys[:-1]:
                manifest = manifest[key]
            manifest[keys[-1]] = value

        edit_json(out / "manifest.json", change)
        with pytest.raises(FormatError, match=message):
            open_partition(out, 0)


class TestBatches:
    """The promise for one type holds: with all neighbours a part's batches are the whole
    graph's."""

    @pytest.mark.parametrize("hops", [1, 2])
    def test_all_neighbours_equal_those_of_the_whole_graph(self, papers, source, tmp_path, hops):
        partition = partition_graph(papers, 2, hops=hops, method="halo", node_type="paper")
        write_partition(partition, tmp_path / "out", source=source)
        sampler = NeighborSampler([-1] * hops)
        for index in range(2):
            part = open_partition(tmp_path / "out", index)
            seeds = part.train[::7]
            ids = {name: part.global_ids_of(name) for name in part.graph.node_types}
            ours = sampler.sample(part.graph, {"paper": seeds}, 3)
            theirs = sampler.sample(papers, {"paper": ids["paper"][seeds]}, 3)
            for block, whole in zip(ours.blocks, theirs.blocks, strict=True):
                for name, own in block.src_nodes.items():
                    assert torch.equal(ids[name][own.long()], whole.src_nodes[name].long())
                for edge_type, relation in block.relations.items():
                    assert torch.equal(relation.indices, whole.relations[edge_type].indices)
                    assert torch.equal(relation.indptr, whole.relations[edge_type].indptr)
                    positions = part.graph.csc_of(edge_type).ids_at(relation.positions).long()
                    wanted = (
                        papers.csc_of(edge_type).ids_at(whole.relations[edge_type].positions).long()
                    )
                    assert torch.equal(part.global_edge_ids_of(edge_type)[positions].long(), wanted)

    def test_sampled_neighbours_are_drawn_as_often(self, papers, source, tmp_path):
        """Chi-square of one vertex's draws over 400 keys, on the part and on the whole graph."""
        partition = partition_graph(papers, 2, hops=1, method="hash", node_type="paper")
        write_partition(partition, tmp_path / "out", source=source)
        part = open_partition(tmp_path / "out", 0)
        degrees = torch.diff(part.graph.csc_of(WRITES).indptr)[part.train]
        seed = part.train[degrees.argmax()].reshape(1)
        counts = []
        for graph, ids, own in (
            (part.graph, part.global_ids_of("author"), seed),
            (
                papers,
                torch.arange(papers.num_nodes_of("author")),
                part.global_ids_of("paper")[seed],
            ),
        ):
            found = torch.zeros(papers.num_nodes_of("author"))
            for key in range(400):
                (block,) = NeighborSampler([3]).sample(graph, {"paper": own}, key).blocks
                found[ids[block.src_nodes["author"].long()]] += 1
            counts.append(found[found > 0])
        expected = 3 * 400 / int(degrees.max())
        for found in counts:
            assert len(found) == int(degrees.max())
            statistic = float(((found - expected) ** 2 / expected).sum())
            assert statistic < len(found) + 4 * (2 * len(found)) ** 0.5


class TestReport:
    def test_counts_by_type(self, papers):
        partition = partition_graph(papers, 2, hops=2, method="hash", node_type="paper")
        report = describe(partition, cache=CacheTrial("10%", batch_size=32))
        for part, found in enumerate(report.parts):
            types = partition.vertices(part).by_type(partition.numbering)
            assert dict(found.types) == {name: len(own.ids) for name, own in types.items()}
            assert found.vertices == sum(found.types.values())
        written = report.to_json()
        held = [part["author"] for part in written["vertices_by_type_per_part"]]
        assert written["replication_by_type"]["author"] == sum(held) / papers.num_nodes_of("author")
        assert 0 < report.caches.hit_rate < 1

    def test_a_cache_holds_only_what_has_rows(self, papers):
        partition = partition_graph(papers, 2, hops=2, method="hash", node_type="paper")
        trial = CacheTrial("100%", batch_size=32)
        assert row_bytes(trial, papers) == {"paper": 24, "author": 12}
        caches = describe(partition, cache=trial).caches
        assert caches.hit_rate == 1.0
        assert caches.nbytes == 24 * 200 + 12 * 300
        for part, use in enumerate(caches.parts):
            types = partition.vertices(part).by_type(partition.numbering)
            own = partition.numbering.split(use.ids)
            assert len(own["institution"]) == 0
            for name in ("paper", "author"):
                assert sorted(own[name].tolist()) == sorted(types[name].ids.tolist())

    def test_the_best_rows_of_all_types_are_cached(self, papers):
        """Authors' rows are half as wide, so that as many bytes hold more of them; the budget is
        never exceeded."""
        partition = partition_graph(papers, 2, hops=2, method="hash", node_type="paper")
        for budget in (2000, "5%", "30%"):
            caches = describe(
                partition, cache=CacheTrial(budget, batch_size=32, policy="degree")
            ).caches
            for part, use in enumerate(caches.parts):
                own = partition.numbering.split(use.ids)
                spent = 24 * len(own["paper"]) + 12 * len(own["author"])
                if budget == 2000:  # bytes pay for tables as well
                    held = partition.vertices(part).by_type(partition.numbering)
                    spent += sum(
                        4 * len(held[name].ids) for name in ("paper", "author") if len(own[name])
                    )
                assert 0 < spent <= caches.nbytes


def test_pagraphs_form_has_no_types(papers, tmp_path):
    partition = partition_graph(papers, 2, method="hash", node_type="paper")
    with pytest.raises(
        ValueError, match="partition must be of one vertex type and one edge type in PaGraph's form"
    ):
        write_pagraph_partition(partition, tmp_path / "out")
