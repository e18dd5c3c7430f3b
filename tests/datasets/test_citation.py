"""The generated heterograph: its types, edges and fields, and that relations tell what features do
not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu

from pagraph import Graph
from pagraph.datasets import citation, random_fields, write_graph
from pagraph.datasets.random_fields import label_rows
from pagraph.datasets.summary import edge_shares
from pagraph.seeds.keys import derive_key

WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "written_by", "author")
CITES = ("paper", "cites", "paper")
WORKS, EMPLOYS = ("author", "affiliated_with", "institution"), ("institution", "employs", "author")
TYPES = ["paper", "author", "institution"]


@pytest.fixture(scope="module")
def graph():
    return citation(8000, seed=1)


def ends(graph, edge_type):
    csc = graph.csc_of(edge_type)
    return csc.indices.numpy().astype(np.int64), csc.destinations().numpy().astype(np.int64)


def by_id(graph, edge_type):
    """Both ends of every edge, in the order of the edge ids."""
    ids = graph.csc_of(edge_type).edge_ids
    src, dst = ends(graph, edge_type)
    order = slice(None) if ids is None else np.argsort(ids.numpy())
    return src[order], dst[order]


def fields_of_study(graph, seed, num_classes=10):
    """The hidden block of every vertex; the papers' are their labels."""
    return {
        t: label_rows(graph.num_nodes_of(t), num_classes, derive_key(seed, 0, i))[:]
        for i, t in enumerate(TYPES)
    }


class TestStructure:
    def test_types_and_counts(self, graph):
        assert graph.edge_types == [WRITES, WRITTEN, CITES, WORKS, EMPLOYS]
        assert {t: graph.num_nodes_of(t) for t in TYPES} == {
            "paper": 8000,
            "author": 12_000,
            "institution": 100,
        }
        counts = {t: graph.csc_of(t).num_edges for t in graph.edge_types}
        assert 0.95 * 9.5 * 8000 < counts[WRITES] == counts[WRITTEN] <= 9.5 * 8000
        assert 0.95 * 7.5 * 8000 < counts[CITES] <= 7.5 * 8000
        assert 0.9 * 12_000 < counts[WORKS] == counts[EMPLOYS] <= 12_000

    def test_simple(self, graph):
        for edge_type in graph.edge_types:
            graph.csc_of(edge_type).validate()
            src, dst = ends(graph, edge_type)
            assert len(np.unique(src * 100_000 + dst)) == len(src)
        src, dst = ends(graph, CITES)
        assert not (src == dst).any()

    @pytest.mark.parametrize(("one", "other"), [(WRITES, WRITTEN), (WORKS, EMPLOYS)])
    def test_an_edge_and_its_reverse_have_one_id(self, graph, one, other):
        src, dst = by_id(graph, one)
        turned_src, turned_dst = by_id(graph, other)
        assert np.array_equal(src, turned_dst) and np.array_equal(dst, turned_src)
        ids = graph.csc_of(other).edge_ids
        assert torch.equal(ids.sort().values, torch.arange(len(src), dtype=ids.dtype))

    @pytest.mark.parametrize("homophily", [0.0, 0.4, 1.0])
    def test_homophily_of_every_type(self, homophily):
        graph = citation(4000, num_classes=5, homophily=homophily, exponent=4.0, seed=3)
        study = fields_of_study(graph, 3, 5)
        assert torch.equal(study["paper"], graph.node_fields("paper")["label"])
        for edge_type in graph.edge_types:
            src, dst = ends(graph, edge_type)
            same = study[edge_type[0]].numpy()[src] == study[edge_type[2]].numpy()[dst]
            assert abs(same.mean() - homophily) < 0.04, edge_type

    def test_degrees_are_skewed_at_both_ends(self):
        graph = citation(20_000, exponent=2.2)
        for edge_type in (WRITES, CITES):
            csc = graph.csc_of(edge_type)
            assert edge_shares(csc.source_counts, (0.01,))[0] > 0.08
            assert edge_shares(torch.diff(csc.indptr).long(), (0.01,))[0] > 0.08
        even = citation(20_000, exponent=8.0).csc_of(CITES)
        assert edge_shares(even.source_counts, (0.01,))[0] < 0.05

    def test_given_counts(self):
        graph = citation(50, num_authors=7, num_institutions=2, authorships=1.5, citations=0.0)
        assert [graph.num_nodes_of(t) for t in TYPES] == [50, 7, 2]
        assert graph.csc_of(CITES).num_edges == 0
        assert 50 < graph.csc_of(WRITES).num_edges <= 75

    def test_a_field_of_study_without_an_institution(self):
        graph = citation(300, num_institutions=1, homophily=1.0)
        assert graph.csc_of(EMPLOYS).num_edges == graph.num_nodes_of("author") - len(
            np.setdiff1d(np.arange(450), ends(graph, WORKS)[0])
        )
        assert graph.csc_of(WORKS).num_edges > 200

    def test_one_of_each(self):
        graph = citation(1, num_authors=1, num_institutions=1, num_classes=1, homophily=1.0)
        counts = [graph.csc_of(t).num_edges for t in (WRITES, CITES, WORKS)]
        assert counts == [1, 0, 1]


class TestFields:
    def test_names_and_widths(self, graph):
        assert sorted(graph.node_fields("paper")) == [
            "feat",
            "label",
            "test_mask",
            "train_mask",
            "val_mask",
        ]
        assert {
            t: {n: tuple(f.shape[1:]) for n, f in graph.node_fields(t).items() if n == "feat"}
            for t in TYPES
        } == {
            "paper": {"feat": (64,)},
            "author": {"feat": (32,)},
            "institution": {},
        }
        paper = graph.node_fields("paper")
        assert [int(paper[f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [
            4800,
            1600,
            1600,
        ]

    @pytest.mark.parametrize("node_type", ["paper", "author"])
    def test_share_of_strays(self, graph, node_type):
        feat, study = graph.node_fields(node_type)["feat"], fields_of_study(graph, 1)[node_type]
        means = torch.stack([feat[study == field].mean(0) for field in range(10)])
        nearest = torch.cdist(feat, means).argmin(1)
        assert abs(float((nearest == study).float().mean()) - (0.55 + 0.045)) < 0.03


class TestDeterminism:
    def test_the_seed_decides(self):
        one, same, other = citation(300, seed=3), citation(300, seed=3), citation(300, seed=4)
        for edge_type in one.edge_types:
            assert torch.equal(one.csc_of(edge_type).indices, same.csc_of(edge_type).indices)
            assert not torch.equal(one.csc_of(edge_type).indptr, other.csc_of(edge_type).indptr)
        for node_type in TYPES:
            for name, value in one.node_fields(node_type).items():
                assert torch.equal(value, same.node_fields(node_type)[name])
                assert not torch.equal(value, other.node_fields(node_type)[name])

    def test_threads_do_not_matter(self, monkeypatch):
        whole = citation(300, seed=3)
        monkeypatch.setattr(random_fields, "_RANGE", 61)
        parts = citation(300, seed=3)
        for edge_type in whole.edge_types:
            assert torch.equal(whole.csc_of(edge_type).indices, parts.csc_of(edge_type).indices)
        assert torch.equal(whole.node_fields("author")["feat"], parts.node_fields("author")["feat"])


def test_progress_counts_all_types():
    seen = []
    citation(200, progress=lambda done, total: seen.append((done, total)))
    total = 200 * 17 + 300
    assert seen == [(1900, total), (3400, total), (total, total)]


def test_as_a_folder(graph, tmp_path):
    write_graph(graph, tmp_path / "g")
    opened = Graph.open(tmp_path / "g", verify=True)
    assert opened.edge_types == graph.edge_types and opened.node_types == graph.node_types
    for edge_type in graph.edge_types:
        assert all(
            np.array_equal(a, b)
            for a, b in zip(by_id(opened, edge_type), by_id(graph, edge_type), strict=True)
        )
    assert torch.equal(opened.node_fields("author")["feat"], graph.node_fields("author")["feat"])


def test_as_a_dgl_graph(graph):
    from pagraph.dgl import to_dgl

    theirs = to_dgl(graph)
    assert set(theirs.canonical_etypes) == set(graph.edge_types)
    for edge_type in graph.edge_types:
        src, dst = theirs.edges(etype=edge_type, order="eid")
        assert [src.tolist(), dst.tolist()] == [ids.tolist() for ids in by_id(graph, edge_type)]
    assert theirs.nodes["author"].data["feat"].shape == (12_000, 32)
    assert dict(theirs.nodes["institution"].data) == {}


def fit(graph, *, relations: bool) -> float:
    """Test accuracy on the papers: an MLP, or two layers of means over the relations with a weight
    for each."""
    torch.manual_seed(0)
    feat = {t: graph.node_fields(t)["feat"] for t in ("paper", "author")}
    used = [WRITES, WRITTEN, CITES] if relations else []
    means = {}
    for edge_type in used:
        src, dst = (torch.from_numpy(part) for part in ends(graph, edge_type))
        size = (graph.num_nodes_of(edge_type[2]), graph.num_nodes_of(edge_type[0]))
        share = 1 / torch.diff(graph.csc_of(edge_type).indptr)[dst].float()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces its sparse tensors
            means[edge_type] = torch.sparse_coo_tensor(
                torch.stack([dst, src]), share, size
            ).to_sparse_csr()
    sizes = {"paper": 64, "author": 32}
    first = nn.ModuleDict({t: nn.Linear(n, 32) for t, n in sizes.items()})
    first.update(
        {edge_type[1]: nn.Linear(sizes[edge_type[0]], 32, bias=False) for edge_type in used}
    )
    last = nn.ModuleDict(
        {name: nn.Linear(32, 10) for name in ("paper", *(t[1] for t in used if t[2] == "paper"))}
    )

    def forward():
        hidden = {t: first[t](x) for t, x in feat.items()}
        for edge_type in used:
            hidden[edge_type[2]] = hidden[edge_type[2]] + means[edge_type] @ first[edge_type[1]](
                feat[edge_type[0]]
            )
        hidden = {t: relu(h) for t, h in hidden.items()}
        out = last["paper"](hidden["paper"])
        for edge_type in (t for t in used if t[2] == "paper"):
            out = out + means[edge_type] @ last[edge_type[1]](hidden[edge_type[0]])
        return out

    paper = graph.node_fields("paper")
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)
    for _ in range(40):
        loss = cross_entropy(forward()[paper["train_mask"]], paper["label"][paper["train_mask"]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = forward().argmax(1) == paper["label"]
    return float(right[paper["test_mask"]].float().mean())


@pytest.mark.learning
def test_a_relational_gnn_learns_what_an_mlp_cannot():
    before = torch.get_num_threads()
    # Waiting OpenMP threads spin: on busy cores two are far slower than one.
    torch.set_num_threads(1)
    try:
        graph = citation(6000, seed=5)
        alone, related = fit(graph, relations=False), fit(graph, relations=True)
    finally:
        torch.set_num_threads(before)
    assert 0.48 < alone < 0.62  # at most 1 - 0.45 + 0.045 for any model
    assert related > alone + 0.25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_papers": 0}, r"num_papers must be in \[1, 2147483647\], got 0"),
        ({"num_authors": 0}, r"num_authors must be in \[1, 2147483647\], got 0"),
        ({"num_institutions": -1}, r"num_institutions must be in \[1, 2147483647\], got -1"),
        ({"authorships": -1.0}, "authorships must be a number of at least 0, got -1.0"),
        ({"citations": float("nan")}, "citations must be a number of at least 0, got nan"),
        ({"num_classes": 51}, r"num_classes must be in \[1, num_papers=50\], got 51"),
        ({"num_features": 0}, "num_features must be at least 1, got 0"),
        ({"num_author_features": 0}, "num_author_features must be at least 1, got 0"),
        ({"homophily": 1.5}, r"homophily must be in \[0, 1\], got 1.5"),
        ({"exponent": 1.0}, "exponent must be above 1, got 1.0"),
        ({"feature_noise": 2.0}, r"feature_noise must be in \[0, 1\], got 2.0"),
        ({"fractions": (0.9, 0.2, 0.2)}, "fractions must add up"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        citation(**{"num_papers": 50, **options})
