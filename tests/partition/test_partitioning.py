"""What may be divided: the rules of the arguments, told before the work."""

import pytest
import torch

from pagraph import CSC, Graph
from pagraph.datasets import citation
from pagraph.partition import draw_train, partition_graph, train_ids


def path(vertices=10, **fields):
    return Graph.from_coo(range(vertices - 1), range(1, vertices), ndata=fields)


class TestTrainingVertices:
    @pytest.mark.parametrize("train", [[7, 2, 4], torch.tensor([4, 7, 2], dtype=torch.int32)])
    def test_ids_are_sorted(self, train):
        ids = train_ids(path(), torch.as_tensor(train))
        assert (ids.tolist(), ids.dtype) == ([2, 4, 7], torch.int64)

    def test_a_mask(self):
        assert train_ids(path(), torch.arange(10) % 4 == 1).tolist() == [1, 5, 9]

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
    def test_the_field(self, dtype):
        assert train_ids(path(train_mask=(torch.arange(10) > 7).to(dtype))).tolist() == [8, 9]

    @pytest.mark.parametrize(
        ("train", "error", "message"),
        [
            (
                torch.ones(9, dtype=torch.bool),
                ValueError,
                r"train must have shape \[10\] as a mask, got \[9\]",
            ),
            (
                torch.ones(11, dtype=torch.bool),
                ValueError,
                r"train must have shape \[10\] as a mask, got \[11\]",
            ),
            (torch.ones(10, 1, dtype=torch.bool), ValueError, r"as a mask, got \[10, 1\]"),
            (
                torch.zeros(10, dtype=torch.bool),
                ValueError,
                "train must select at least 1 vertex, got 0",
            ),
            (
                torch.empty(0, dtype=torch.int64),
                ValueError,
                "train must select at least 1 vertex, got 0",
            ),
            (
                torch.tensor([1, 2, 1]),
                ValueError,
                r"train must be a list of distinct ids, got 2 in shape \[3\]",
            ),
            (
                torch.tensor([[1, 2]]),
                ValueError,
                r"train must be a list of distinct ids, got 2 in shape \[1, 2\]",
            ),
            (
                torch.tensor(3),
                ValueError,
                r"train must be a list of distinct ids, got 1 in shape \[\]",
            ),
            (torch.tensor([0, 10]), ValueError, r"train must hold ids in \[0, 10\), got 0 to 10"),
            (torch.tensor([-1, 3]), ValueError, r"train must hold ids in \[0, 10\), got -1 to 3"),
            (
                torch.tensor([0.5]),
                TypeError,
                "train must hold ids or be a boolean mask, got torch.float32",
            ),
            ([1, 2], TypeError, "train must be a tensor, got list"),
            (
                None,
                ValueError,
                "graph must have the field train_mask, or train must be given, got neither",
            ),
        ],
    )
    def test_refused(self, train, error, message):
        with pytest.raises(error, match=message):
            partition_graph(path(), 1, method="hash", train=train)


def test_a_partition_is_told_in_one_line():
    partition = partition_graph(path(), 2, hops=3, method="hash", train=torch.tensor([1, 2, 7]))
    assert repr(partition) == (
        "Partition(2 parts, hops=3, method='hash', train=3, Graph(num_nodes=10, num_edges=9, "
        "ids=int32))"
    )


class TestDrawn:
    def test_a_share_of_distinct_vertices(self):
        drawn = draw_train(path(1000), 0.25, seed=3)
        assert len(drawn) == 250
        assert torch.equal(drawn, torch.unique(drawn))
        assert torch.equal(drawn, draw_train(path(1000), 0.25, seed=3))
        assert not torch.equal(drawn, draw_train(path(1000), 0.25, seed=4))
        assert len(draw_train(path(), 1e-9)) == 1

    @pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
    def test_a_share_that_is_none(self, fraction):
        with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\], got"):
            draw_train(path(), fraction)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_parts": 0}, "num_parts must be at least 1, got 0"),
        ({"num_parts": 4}, "num_parts must be at most the number of training vertices 3, got 4"),
        ({"hops": 0}, "hops must be from 1 to 253, got 0"),
        ({"hops": -1}, "hops must be from 1 to 253, got -1"),
        ({"hops": 254}, "hops must be from 1 to 253, got 254"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"method": "best"}, "method must be one of auto, .*, got 'best'"),
        ({"evaluation": "here"}, "evaluation must be one of source, parts, got 'here'"),
        (
            {"evaluation": "parts"},
            "evaluation must be source for a graph without val_mask and test_mask, got parts",
        ),
        (
            {"max_replication": 0.2},
            r"max_replication must be at least 0\.3, the share of training vertices, got 0\.2",
        ),
        ({"max_replication": float("nan")}, "max_replication must be at least .*, got nan"),
        (
            {"max_replication": 1, "fanout": [1]},
            "fanout must have one number for each of 2 hops, got 1",
        ),
    ],
)
def test_a_setting_that_breaks_its_rule(arguments, message):
    settings = {"num_parts": 2, "method": "hash", "train": torch.arange(3)}
    with pytest.raises(ValueError, match=message):
        partition_graph(path(), **{**settings, **arguments})


@pytest.mark.parametrize("arguments", [{"num_parts": 2.0}, {"hops": 1.5}, {"seed": 0.5}])
def test_a_number_that_is_none_of_parts(arguments):
    with pytest.raises(TypeError, match=f"{next(iter(arguments))} must be an integer, got "):
        partition_graph(
            path(), **{"num_parts": 2, "method": "hash", "train": torch.arange(3), **arguments}
        )


def test_a_graph_of_another_library():
    with pytest.raises(
        TypeError, match=r"graph must be a pagraph\.Graph \(.*from_dgl.*\), got dict"
    ):
        partition_graph({}, 2)


class TestSeveralTypes:
    def test_the_type_with_the_mask_is_trained_on(self, papers):
        partition = partition_graph(papers, 3, method="hash")
        mask = papers.node_fields("paper")["train_mask"]
        assert partition.train_type == "paper"
        assert torch.equal(partition.train, mask.nonzero().squeeze(1))

    def test_a_named_type(self, papers):
        partition = partition_graph(
            papers, 2, method="hash", train=torch.tensor([5, 1]), node_type="author"
        )
        assert (partition.train_type, partition.train.tolist()) == ("author", [1, 5])
        assert len(draw_train(papers, 0.5, node_type="author")) == round(
            papers.num_nodes_of("author") * 0.5
        )

    def test_which_type_is_meant(self, papers):
        message = (
            "node_type must be given to choose one of the types paper, author, institution, "
            "got None"
        )
        with pytest.raises(ValueError, match=message):
            partition_graph(papers, 2, train=torch.tensor([1, 2]))
        papers.set_field(
            "train_mask", torch.ones(papers.num_nodes_of("author")), node_type="author"
        )
        with pytest.raises(
            ValueError, match="one of the types paper, author with train_mask, got None"
        ):
            partition_graph(papers, 2)
        assert partition_graph(papers, 2, method="hash", node_type="author").train_type == "author"

    def test_wrong_types(self, papers):
        with pytest.raises(
            ValueError, match="node_type must be one of paper, author, institution, got 'book'"
        ):
            partition_graph(papers, 2, node_type="book")
        with pytest.raises(
            ValueError, match="graph must have the field train_mask, or train must be given"
        ):
            partition_graph(papers, 2, node_type="institution")
        with pytest.raises(ValueError, match=r"train must hold ids in \[0, 1\), got 1 to 1"):
            partition_graph(papers, 1, node_type="institution", train=torch.tensor([1]))
        with pytest.raises(
            ValueError, match="num_parts must be at most the number of training vertices 1, got 2"
        ):
            partition_graph(papers, 2, node_type="institution", train=torch.tensor([0]))

    def test_a_type_without_vertices(self):
        graph = Graph({("b", "to", "a"): CSC.from_coo([], [], (3, 0))})
        with pytest.raises(ValueError, match="train must select at least 1 vertex, got 0"):
            partition_graph(graph, 1, node_type="a", train=torch.zeros(0, dtype=torch.bool))
        assert partition_graph(graph, 2, node_type="b", train=torch.arange(3)).num_parts == 2

    def test_no_edge_types(self):
        with pytest.raises(ValueError, match="graph must have at least 1 edge type"):
            partition_graph(Graph({}, {"a": 3}), 1, train=torch.arange(3))

    def test_ids_out_of_range(self, papers):
        papers.csc_of(("paper", "cites", "paper")).indices[0] = 50
        with pytest.raises(ValueError, match=r"indices must be in \[0, 50\), got 50"):
            partition_graph(papers, 2, method="hash")


@pytest.fixture
def papers():
    return citation(50, num_features=2, num_author_features=2)


def test_ids_out_of_range():
    graph = path()
    graph.csc.indices[3] = 10
    with pytest.raises(ValueError, match=r"indices must be in \[0, 10\), got 10"):
        partition_graph(graph, 2, method="hash", train=torch.arange(3))
