"""``Graph.from_pyg``: structure converted once, fields shared."""

import logging

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from pagraph import Graph
from pagraph.features import IndexedRows
from pagraph.graph.graph import EDGE_TYPE
from pagraph.partition import open_partition, partition_graph, write_partition
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler, core_graph, to_pyg

ENDS = torch.tensor([[3, 2, 1, 0], [1, 0, 1, 0]])


class Saved(InMemoryDataset):
    """A data set of these graphs, made in memory."""

    def __init__(self, *graphs):
        super().__init__()
        self.data, self.slices = self.collate(list(graphs))


def homogeneous():
    """As many vertices as edges: which is which is told by the name."""
    return Data(
        x=torch.randn(4, 3),
        edge_index=ENDS.clone(),
        edge_attr=torch.arange(4.0),
        y=np.array([2, 0, 1, 2]),
        train_mask=torch.tensor([True, False, True, False]),
        name="a name",
        scale=torch.tensor(3.0),
        three=torch.zeros(3),
        sparse=torch.eye(4).to_sparse(),
        words=["a", "b", "c", "d"],
    )


def in_dicts():
    """Several types as OGB keeps those of ogbn-mag."""
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    data = Data()
    data.num_nodes_dict = {"author": 2, "paper": torch.tensor([3])}
    data.edge_index_dict = {
        writes: torch.tensor([[1, 0, 1], [0, 2, 2]]),
        cites: torch.tensor([[0, 1], [1, 2]]),
    }
    data.x_dict = {"paper": torch.randn(3, 2)}
    data.y_dict = {"paper": torch.tensor([[1], [0], [1]])}
    data.node_year = {"paper": torch.tensor([[2010], [2011], [2012]])}
    data.edge_reltype = {writes: torch.tensor([[0], [0], [0]]), cites: torch.tensor([[1], [1]])}
    return data


def heterogeneous():
    data = HeteroData()
    data["a"].x = torch.randn(3, 2)
    data["b"].num_nodes = 2
    data["a", "to", "b"].edge_index = torch.tensor([[2, 0, 1], [1, 0, 0]])
    data["a", "to", "b"].weight = torch.rand(3)
    data["a", "own", "a"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["note"] = "global"
    return data


class TestHomogeneous:
    def test_structure_and_fields(self):
        data = homogeneous()
        graph = Graph.from_pyg(data)
        assert (
            graph.is_homogeneous
            and graph.edge_types == [EDGE_TYPE]
            and graph.csc.indices.dtype == torch.int32
        )
        assert graph.csc.indptr.tolist() == [0, 2, 4, 4, 4] and graph.csc.indices.tolist() == [
            2,
            0,
            3,
            1,
        ]
        assert graph.csc.edge_ids is not None and graph.csc.edge_ids.tolist() == [1, 3, 0, 2]
        assert set(graph.ndata) == {"x", "y", "train_mask"} and set(graph.edata) == {"edge_attr"}
        assert graph.ndata["y"].tolist() == [2, 0, 1, 2]

    def test_fields_are_shared(self):
        data = homogeneous()
        data.x.requires_grad_()
        graph = Graph.from_pyg(data)
        assert (
            graph.ndata["x"].data_ptr() == data.x.data_ptr() and not graph.ndata["x"].requires_grad
        )
        graph.ndata["y"][0] = 7
        assert data.y[0] == 7

    def test_no_edges(self):
        graph = Graph.from_pyg(Data(x=torch.zeros(3, 1)))
        assert (graph.num_nodes, graph.num_edges) == (3, 0)

    def test_several_types(self):
        data = heterogeneous()
        graph = Graph.from_pyg(data)
        assert graph.node_types == ["a", "b"] and graph.edge_types == data.edge_types
        assert graph.csc_of(("a", "to", "b")).indices.tolist() == [0, 1, 2]
        assert set(graph.node_fields("a")) == {"x"} and not graph.node_fields("b")
        assert (
            graph.edge_fields(("a", "to", "b"))["weight"].data_ptr()
            == data["a", "to", "b"].weight.data_ptr()
        )


class TestTypesInDicts:
    def test_are_read_by_type(self):
        data = in_dicts()
        graph = Graph.from_pyg(data)
        assert graph.num_nodes_by_type == {"author": 2, "paper": 3}
        assert graph.csc_of(("author", "writes", "paper")).indptr.tolist() == [0, 1, 1, 3]
        assert graph.csc_of(("paper", "cites", "paper")).indices.tolist() == [0, 1]
        assert set(graph.node_fields("paper")) == {"x", "y", "node_year"} and not graph.node_fields(
            "author"
        )
        assert graph.node_fields("paper")["x"].data_ptr() == data.x_dict["paper"].data_ptr()
        assert graph.edge_fields(("author", "writes", "paper"))["edge_reltype"].tolist() == [
            [0],
            [0],
            [0],
        ]

    def test_a_loader_says_how_they_become_its_data(self):
        with pytest.raises(
            ValueError, match=r"HeteroData .* got a Data with edge_index_dict: pagraph\.pyg\.to_pyg"
        ):
            NeighborLoader(in_dicts(), [2], input_nodes=("paper", None))
        loader = NeighborLoader(
            to_pyg(Graph.from_pyg(in_dicts())), [2], input_nodes="paper", batch_size=3
        )
        [batch] = loader
        assert batch["paper"].x.shape == (3, 2) and batch["author"].num_nodes == 2

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("edge_index", ENDS, "data must have either edge_index_dict or edge_index, got both"),
            (
                "z_dict",
                {"river": torch.zeros(3)},
                "z_dict must have types of .* as keys, got 'river'",
            ),
            (
                "x",
                {"paper": torch.zeros(3)},
                "data must hold 'x' of 'paper' only once, got another in ",
            ),
            (
                "x_dict",
                {"paper": torch.zeros(4, 2)},
                r"paper\.x must have a row per vertex \(3\), got 4",
            ),
            (
                "num_nodes_dict",
                {"paper": torch.tensor([3, 3])},
                r"num_nodes_dict\['paper'\] must be one number",
            ),
            (
                "edge_index_dict",
                {"cites": ENDS},
                "edge_index_dict must have triples of types as keys, got 'cites'",
            ),
        ],
    )
    def test_refuses(self, name, value, message):
        data = in_dicts()
        data[name] = value
        with pytest.raises(ValueError, match=message):
            Graph.from_pyg(data)


class TestWhatIsNoField:
    def test_is_named_in_one_warning(self, caplog):
        Graph.from_pyg(homogeneous())
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert (
            record.getMessage()
            == "data: left out: three, sparse, words (no dense rows of vertices or edges)"
        )

    def test_of_several_types(self, caplog):
        data = heterogeneous()
        data["table"] = torch.zeros(7)
        data["a"].words = ["a", "b", "c"]
        data["a", "to", "b"].history = torch.zeros(9)
        data.source = {"from": "a book"}
        graph = Graph.from_pyg(data)
        [record] = caplog.records
        assert "left out: table, source, a.words, a/to/b.history (" in record.getMessage()
        assert set(graph.node_fields("a")) == {"x"}

    def test_what_says_something_of_the_whole_graph_is_none_of_it(self, caplog):
        data = Data(
            x=torch.zeros(2, 1),
            edge_index=torch.tensor([[0], [1]]),
            name="cora",
            y=torch.tensor([3]),
            n=None,
        )
        Graph.from_pyg(data)
        assert not caplog.records

    def test_features_of_other_vertices(self):
        data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0], [1]]), num_nodes=5)
        with pytest.raises(ValueError, match=r"x must have a row per vertex \(5\), got 3"):
            Graph.from_pyg(data)

    @pytest.mark.parametrize("use", [Graph.from_pyg, lambda data: NeighborLoader(data, [2])])
    def test_neither_edges_nor_vertices(self, use):
        data = Data(edges=torch.zeros(2, 7), z_dict={"a": torch.zeros(3)})
        message = (
            r"data must have edge_index, or vertices .*, it holds edges \[2, 7\], z_dict "
            r"\{a: \[3\]\}"
        )
        with pytest.raises(ValueError, match=message):
            use(data)
        with pytest.raises(ValueError, match="it holds nothing"):
            use(Data())

    def test_a_graph_that_is_meant_to_be_empty(self):
        data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3)
        assert (Graph.from_pyg(data).num_nodes, Graph.from_pyg(data).num_edges) == (3, 0)
        assert [batch.n_id.tolist() for batch in NeighborLoader(data, [2], batch_size=3)] == [
            [0, 1, 2]
        ]


class TestSharing:
    def test_converted_once(self):
        data = homogeneous()
        graph = Graph.from_pyg(data)
        assert core_graph(data).csc is graph.csc is Graph.from_pyg(data).csc
        assert NeighborSampler(data, [2]).graph.csc is graph.csc
        assert Graph.from_pyg(Data(edge_index=data.edge_index, num_nodes=4)).csc is graph.csc

    @pytest.mark.parametrize(
        "wrap", [lambda ends: ends, lambda ends: EdgeIndex(ends, sparse_size=(4, 4))]
    )
    def test_a_write_in_place_is_seen(self, wrap):
        data = Data(edge_index=wrap(ENDS.clone()), num_nodes=4)
        before = Graph.from_pyg(data).csc
        assert Graph.from_pyg(data).csc is before and before.indices.tolist() == [2, 0, 3, 1]
        data.edge_index[0, 0] = 2
        assert Graph.from_pyg(data).csc.indices.tolist() == [2, 0, 2, 1]
        assert before.indices.tolist() == [2, 0, 3, 1]


class TestDatasets:
    def test_of_one_graph(self):
        dataset = Saved(homogeneous())
        graph = Graph.from_pyg(dataset)
        assert graph.ndata["x"].data_ptr() == dataset[0].x.data_ptr()
        assert graph.csc is core_graph(dataset[0]).csc

    def test_of_several(self):
        data = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]))
        with pytest.raises(
            ValueError,
            match="data must be a dataset of 1 graph, or one of its graphs, got 2 graphs",
        ):
            Graph.from_pyg(Saved(data, data))


class TestBack:
    def test_homogeneous(self):
        data = homogeneous()
        graph = Graph.from_pyg(data)
        graph.set_field("rows", IndexedRows(torch.arange(9.0), torch.tensor([8, 1, 1, 4])))
        again = to_pyg(graph)
        assert isinstance(again, Data) and again.num_nodes == 4
        assert torch.equal(again.edge_index, data.edge_index)  # in the order of the ids
        assert again.x.data_ptr() == data.x.data_ptr() and torch.equal(
            again.edge_attr, data.edge_attr
        )
        assert again.rows.tolist() == [8, 1, 1, 4]
        assert again.validate()

    def test_several_types(self):
        data = heterogeneous()
        again = to_pyg(Graph.from_pyg(data))
        assert (
            isinstance(again, HeteroData)
            and again.metadata() == data.metadata()
            and again.validate()
        )
        for etype in data.edge_types:
            assert torch.equal(again[etype].edge_index, data[etype].edge_index)
        assert torch.equal(again["a", "to", "b"].weight, data["a", "to", "b"].weight)
        assert [again[ntype].num_nodes for ntype in again.node_types] == [3, 2]

    def test_names(self):
        fields = {"feat": torch.zeros(2, 3), "label": torch.zeros(2), "y": torch.ones(2)}
        data = to_pyg(Graph.from_coo([0], [1], ndata=fields))
        assert data.x is fields["feat"] and data.label is fields["label"] and data.y is fields["y"]
        assert data.edge_index.tolist() == [[0], [1]]

    def test_an_edge_field_with_the_name_of_a_vertex_field(self):
        graph = Graph.from_coo(
            [0, 1, 1], [1, 0, 0], ndata={"w": torch.arange(2)}, edata={"w": torch.arange(3)}
        )
        with pytest.warns(UserWarning, match="edge field 'w' is named 'edge_w' in the Data"):
            data = to_pyg(graph)
        assert data.w.tolist() == [0, 1] and data.edge_w.tolist() == [0, 1, 2]
        assert data.is_node_attr("w") and data.is_edge_attr("edge_w")
        back = Graph.from_pyg(data)
        assert (set(back.ndata), set(back.edata)) == ({"w"}, {"edge_w"})

    def test_an_edge_field_that_becomes_that_of_the_vertices(self):
        graph = Graph.from_coo(
            [0, 1], [1, 0], edata={"w": torch.arange(2), "edge_weight": torch.ones(2)}
        )
        with pytest.warns(UserWarning, match="'w' is named 'edge_w'"):
            data = to_pyg(graph)
        assert set(data.edge_attrs()) == {"edge_index", "edge_w", "edge_weight"} and "w" not in data

    def test_parts_keep_the_ids_of_vertices_and_edges(self, tmp_path):
        graph = Graph.from_coo(
            [0, 1, 2, 3, 3], [1, 2, 3, 0, 1], ndata={"train_mask": torch.ones(4, dtype=torch.bool)}
        )
        write_partition(partition_graph(graph, 2, hops=1), tmp_path / "parts")
        part = open_partition(tmp_path / "parts", 1)
        with pytest.warns(UserWarning, match="'global_ids' is named 'edge_global_ids'"):
            data = to_pyg(part.graph)
        assert torch.equal(data.global_ids, part.graph.ndata["global_ids"])
        assert torch.equal(data.edge_global_ids, part.graph.edata["global_ids"])

    @pytest.mark.parametrize(
        ("of", "fields"),
        [
            ("vertex", {"ndata": {"edge_index": torch.ones(2)}}),
            ("vertex", {"ndata": {"num_nodes": torch.ones(2)}}),
            # As many edges as vertices, and "edge" is in it.
            ("vertex", {"ndata": {"knowledge": torch.ones(2)}}),
            ("vertex", {"ndata": {"index": torch.ones(2, 3)}}),  # PyG selects its columns
        ],
    )
    def test_names_that_pyg_has_another_use_for(self, of, fields):
        with pytest.raises(ValueError, match=f"the {of} field '.*' must have another name"):
            to_pyg(Graph.from_coo([0, 1], [1, 0], **fields))

    def test_two_edge_fields_for_one_name(self):
        fields = {"w": torch.ones(3), "edge_w": torch.ones(3)}
        with (
            pytest.warns(UserWarning),
            pytest.raises(ValueError, match="the edge field 'edge_w' must have another name"),
        ):
            to_pyg(Graph.from_coo([0, 1, 1], [1, 0, 0], ndata={"w": torch.ones(2)}, edata=fields))

    @pytest.mark.parametrize("graph", [None, Data(edge_index=ENDS)])
    def test_only_of_graphs(self, graph):
        with pytest.raises(
            TypeError, match=f"graph must be a pagraph.Graph, got {type(graph).__name__}"
        ):
            to_pyg(graph)


@pytest.mark.parametrize(
    "load", [lambda graph: NeighborLoader(graph, [2]), lambda graph: LinkNeighborLoader(graph, [2])]
)
def test_loaders_say_how_a_graph_becomes_data(load):
    with pytest.raises(
        ValueError,
        match=r"data must be .*, got a pagraph.Graph: pagraph.pyg.to_pyg\(graph\) converts",
    ):
        load(Graph.from_coo([0], [1]))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (ENDS, TypeError, "data must be a Data or HeteroData, got Tensor"),
        (
            (MyFeatureStore(), MyGraphStore()),
            TypeError,
            "data must be a Data or HeteroData, got tuple",
        ),
        (
            Data(edge_index=ENDS, num_nodes=3),
            ValueError,
            r"edge_index\[0\] must be in \[0, 3\), got 3",
        ),
        (
            Data(edge_index=ENDS.float(), num_nodes=4),
            TypeError,
            r"edge_index\[0\] must hold integers, got torch.float32",
        ),
    ],
)
def test_what_is_no_graph(data, error, message):
    with pytest.raises(error, match=message):
        Graph.from_pyg(data)
