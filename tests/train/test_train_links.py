"""Link prediction: what is held out, what a batch sees, what is measured and learned."""

import json

import pytest
import torch
from community import community_graph
from faces import NAMES, all_frameworks
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.train import TrainOptions
from pagraph.train.links import _auc, _measured, make_link_task
from pagraph.train.loop import train

QUICK = {
    "task": "links",
    "batch_size": 500,
    "epochs": 4,
    "hidden": 16,
    "fanout": (5, 5),
    "device": "cpu",
    "lr": 0.01,
}


def links_of(csc):
    ends = zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True)
    return [frozenset(pair) for pair in ends if pair[0] != pair[1]]


def held_out(task):
    return {
        name: [frozenset(pair) for pair in getattr(task, name).T.tolist()]
        for name in ("val", "test")
    }


def ends_of_training(task):
    csc = task.graph.csc
    return [frozenset((int(csc.indices[e]), int(csc.destinations()[e]))) for e in task.train]


@st.composite
def graphs(draw):
    """A graph with self-loops, parallel edges and isolated vertices, perhaps with every edge in
    both directions."""
    n = draw(st.integers(11, 20))
    end = st.integers(0, n - 1)
    edges = [(v + 1, v) for v in range(n - 1)] + draw(st.lists(st.tuples(end, end), max_size=60))
    edges = edges + [(v, u) for u, v in edges] if draw(st.booleans()) else edges
    return Graph.from_coo(*zip(*edges, strict=True), n + 2, ndata={"feat": torch.ones(n + 2, 3)})


@pytest.mark.parametrize("model", ["sage", "gcn"])
@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs())
def test_held_out_links_have_no_edge_left_in_either_direction(model, graph):
    task = make_link_task(graph, TrainOptions(model=model, **QUICK))
    every, parts, seen = set(links_of(graph.csc)), held_out(task), set(links_of(task.graph.csc))
    assert len(parts["val"]) == len(parts["test"]) == len(every) // 10
    gone = {*parts["val"], *parts["test"]}
    assert len(gone) == 2 * (len(every) // 10) and seen == every - gone
    # Each link once.
    assert sorted(map(sorted, ends_of_training(task))) == sorted(map(sorted, seen))
    loops = int((graph.csc.indices == graph.csc.destinations()).sum())
    assert int((task.source.csc.indices == task.source.csc.destinations()).sum()) == loops
    assert len(links_of(task.source.csc)) == sum(link not in gone for link in links_of(graph.csc))


def test_the_split_is_that_of_the_graph_not_of_the_seed(graph):
    first, other = (make_link_task(graph, TrainOptions(**QUICK, seed=seed)) for seed in (0, 1))
    assert torch.equal(first.val, other.val) and torch.equal(first.train, other.train)


def test_masks_of_the_edges_say_which_is_which():
    src, dst = torch.tensor([5, 0, 1, 0, 2, 3, 4, 1]), torch.tensor([4, 1, 0, 2, 3, 3, 5, 2])
    masks = {"train_mask": [1, 1, 0, 1, 0, 1, 0, 0], "val_mask": [0, 0, 0, 0, 1, 0, 0, 0]}
    # The other direction of the first edge, which is to train.
    masks["test_mask"] = [0, 0, 0, 0, 0, 0, 1, 0]
    graph = Graph.from_coo(src, dst, 6, ndata={"feat": torch.ones(6, 3)}, edata=masks)
    task = make_link_task(graph, TrainOptions(**QUICK))
    assert held_out(task) == {"val": [{2, 3}], "test": [{4, 5}]}
    assert ends_of_training(task) == [{0, 1}, {0, 2}]
    assert sorted(map(sorted, links_of(task.graph.csc))) == [[0, 1], [0, 1], [0, 2], [1, 2]]


@pytest.mark.parametrize(
    ("edata", "message"),
    [
        (
            {"train_mask": torch.ones(4)},
            "val_mask must have one value for each edge if any edge mask is given, got none",
        ),
        (
            {f"{name}_mask": torch.ones(4, 2) for name in ("train", "val", "test")},
            r"train_mask must have one value for each edge if any edge mask is given, got shape "
            r"\(4, 2\)",
        ),
        (
            {
                "train_mask": torch.tensor([1, 0, 0, 1]),
                "val_mask": torch.eye(4)[3],
                "test_mask": torch.eye(4)[1],
            },
            "val_mask must select at least 1 edge between different vertices, got 0",
        ),
        (
            {
                "train_mask": torch.eye(4)[0],
                "val_mask": torch.eye(4)[0],
                "test_mask": torch.eye(4)[1],
            },
            "train_mask must select at least 1 edge of a link that is not held out, got 0",
        ),
        ({}, "graph must have at least 10 links to hold some of them out, got 3"),
    ],
)
def test_edges_that_do_not_fit(edata, message):
    graph = Graph.from_coo(
        [0, 1, 2, 3], [1, 2, 3, 3], ndata={"feat": torch.ones(4, 2)}, edata=edata
    )
    with pytest.raises(ValueError, match=message):
        make_link_task(graph, TrainOptions(**QUICK))


def test_other_input_that_does_not_fit(graph):
    graph.set_field("feat_mean", graph.ndata["feat"])
    with pytest.raises(
        ValueError,
        match="task must be 'nodes' with pre-aggregated features, which include held-out",
    ):
        make_link_task(graph, TrainOptions(**QUICK))
    with pytest.raises(
        ValueError, match="must have the fields feat to be trained on, it lacks feat"
    ):
        make_link_task(Graph.from_coo([0], [1]), TrainOptions(**QUICK))


@pytest.mark.parametrize("framework", all_frameworks().values(), ids=NAMES)
def test_no_vertex_sees_a_neighbour_over_a_link_of_the_batch(framework):
    """On parallel edges and both directions; random pairs keep the sources of the links."""
    graph = community_graph(60, degree=3)
    task = make_link_task(graph, TrainOptions(**QUICK))
    more = {"batch_size": 16, "num_workers": 0, "device": torch.device("cpu"), "seed": 3}
    batches = 0
    start = task.seeds([("_N", "feat")])
    for item in framework.loader(start, [-1, -1], own=False, **more):
        batch = framework.batch(item, start, 2)
        blocks, rows, (links, others) = batch
        assert torch.equal(links[0], others[0])
        ids = item[0] if framework.name == "dgl" else item.n_id
        torch.testing.assert_close(rows[0], graph.ndata["feat"][ids])
        of_batch = {frozenset(pair) for pair in ids[links].T.tolist()}
        assert of_batch <= set(ends_of_training(task))
        given, found = [], []

        def compute(kept, rows, given=given):
            given += kept
            return torch.zeros(len(rows), 4)

        loss, size = task.loss(framework, batch, compute)
        assert (size, float(loss)) == (links.shape[1], pytest.approx(0.6931, abs=1e-4))
        for block, kept in zip(blocks, given, strict=True):
            before, after = (
                [frozenset(p) for p in ids[torch.stack(framework.edges(b))].T.tolist()]
                for b in (block, kept)
            )
            assert after == [pair for pair in before if pair not in of_batch]
            found.append(len(before) - len(after))
        batches += all(found)
    assert batches > 0


def test_metrics_are_those_of_plain_loops():
    g = torch.Generator().manual_seed(1)
    embedding = torch.randint(-2, 3, (50, 2), generator=g).float()  # with many ties
    links = torch.randint(0, 50, (2, 1500), generator=g)
    got = _measured(embedding, links)
    rivals = torch.Generator().manual_seed(0)
    ends = torch.cat([torch.randint(50, (n, 100), generator=rivals) for n in (1024, 476)])
    right, wrong = (
        (embedding[links[0]] * embedding[links[1]]).sum(1),
        (embedding[links[0], None] * embedding[ends]).sum(2),
    )
    ranks = [
        1 + int((w > r).sum()) + int((w == r).sum()) / 2 for r, w in zip(right, wrong, strict=True)
    ]
    assert got["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 1500)
    pairs = right[:, None] - wrong[None, :, 0]
    assert got["auc"] == pytest.approx(
        float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2)
    )
    assert (_auc(torch.ones(3), torch.zeros(2)), _auc(torch.ones(3), torch.ones(2))) == (1.0, 0.5)


KINDS = [{"layers": "dgl"}, {"loader": "dgl"}, {"layers": "pyg"}, {"loader": "pyg"}]


@pytest.mark.learning
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_learns(kind, tmp_path, pyg_without_extensions):
    write_graph(community_graph(600, degree=6), tmp_path / "graph")
    options = TrainOptions(**QUICK | {"epochs": 15}, model="gcn", **kind)
    result = train(make_link_task(open_graph(tmp_path / "graph"), options), options)
    # An edge between communities, of which 11 % of all are, is no more likely than a random pair.
    assert result.best.test["auc"] > 0.75
    assert result.epochs[-1].loss < result.epochs[0].loss
    report = json.loads(json.dumps(result.to_json()))
    assert (
        report["test_auc"]
        == report["test_auc_by_epoch"][report["best_epoch"]]
        == result.best.test["auc"]
    )
    assert len(report["val_mrr_by_epoch"]) == 15 and "test_accuracy" not in report


@pytest.mark.every
@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("layers", NAMES)
def test_the_same_seed_gives_the_same_run_whatever_the_threads(graph, layers, model):
    runs = []
    for more in ({"seed": 3}, {"seed": 3, "num_workers": 3, "prefetch": 0}, {"seed": 4}):
        options = TrainOptions(**QUICK | {"epochs": 2}, layers=layers, model=model, **more)
        result = train(make_link_task(graph, options), options)
        runs.append(([e.loss for e in result.epochs], result.best.test))
    assert runs[0] == runs[1] != runs[2]
