import numpy as np
import pytest
import scipy.sparse as sp
import torch

from pagraph.graph import Graph
from pagraph.train import TrainOptions
from pagraph.train.models import NORM
from pagraph.train.task import make_task

SAGE, GCN = TrainOptions(model="sage"), TrainOptions(model="gcn")


def adjacency(graph):
    src, dst, n = graph.csc.indices, graph.csc.destinations(), graph.num_nodes
    return sp.coo_matrix((np.ones(len(src)), (src.numpy(), dst.numpy())), shape=(n, n)).tocsr()


def test_ids_are_those_of_the_masks(graph):
    task = make_task(graph, SAGE)
    for part in ("train", "val", "test"):
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[getattr(task, part)] = True
        assert torch.equal(mask, graph.ndata[f"{part}_mask"])
    assert (task.widths, task.num_outputs) == ({"_N": 8}, 4)
    assert str(task).startswith("600 vertices, 14,400 edges, 8 features, 4 classes; ")


def test_sage_keeps_the_edges_and_shares_the_features(graph):
    task = make_task(graph, SAGE)
    assert (adjacency(task.graph) != adjacency(graph)).nnz == 0
    assert task.graph.ndata["feat"].data_ptr() == graph.ndata["feat"].data_ptr()
    assert NORM not in task.graph.ndata


def test_gcn_has_exactly_one_self_loop_on_every_vertex(graph):
    with_loops = Graph.from_coo([0, 1, 1, 2], [0, 0, 1, 1], 600, ndata=graph.ndata)
    for source in (graph, with_loops):
        matrix = adjacency(make_task(source, GCN).graph)
        assert (matrix.diagonal() == 1).all()
        before = adjacency(source)
        before = before - sp.diags(before.diagonal())
        assert abs((matrix - sp.identity(matrix.shape[0])) - before).sum() == 0


def test_gcn_norm_counts_degrees_by_direction():
    masks = {f"{part}_mask": torch.tensor([True, True, True]) for part in ("train", "val", "test")}
    fields = {"feat": torch.ones(3, 2), "label": torch.tensor([0, 1, 0]), **masks}
    task = make_task(Graph.from_coo([0, 0, 0, 1], [1, 2, 1, 2], 3, ndata=fields), GCN)
    out_degrees, in_degrees = torch.tensor([4.0, 2.0, 1.0]), torch.tensor([1.0, 3.0, 3.0])
    expected = torch.stack([out_degrees.rsqrt(), in_degrees.sqrt()], dim=1)
    torch.testing.assert_close(task.graph.ndata[NORM], expected)


@pytest.mark.parametrize("missing", ["feat", "label", "train_mask", "val_mask", "test_mask"])
def test_a_missing_field_is_named(graph, missing):
    del graph.ndata[missing]
    with pytest.raises(
        ValueError, match=f"must have the fields feat, label, .*it lacks {missing} and has"
    ):
        make_task(graph, SAGE)


def test_all_missing_fields_are_named_at_once():
    with pytest.raises(
        ValueError, match="it lacks feat, label, train_mask, val_mask, test_mask and has none$"
    ):
        make_task(Graph.from_coo([0], [1]), SAGE)


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_an_empty_mask(graph, part):
    graph.set_field(f"{part}_mask", torch.zeros(600, dtype=torch.bool))
    with pytest.raises(ValueError, match=f"{part}_mask must select at least 1 vertex, got 0"):
        make_task(graph, SAGE)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("feat", torch.zeros(600), r"feat must be a 2-D real field, got torch.float32 \(600,\)"),
        (
            "feat",
            torch.zeros(600, 2, dtype=torch.complex64),
            "feat must be a 2-D real field, got torch.complex64",
        ),
        ("label", torch.zeros(600), "label must be a 1-D field of integers, got torch.float32"),
        (
            "label",
            torch.zeros(600, 3, dtype=torch.int64),
            r"label must be a 1-D field of integers, got .*\(600, 3\)",
        ),
        ("label", torch.full((600,), -1), "label must be at least 0 where a mask is set, got -1"),
        (
            "label",
            torch.full((600,), 2**40),
            "label must be below 100000, as classes are .*, got 1099511627776",
        ),
        (
            "val_mask",
            torch.ones(600, 2),
            r"val_mask must have one value for each vertex, got shape \(600, 2\)",
        ),
    ],
)
def test_fields_that_do_not_fit(graph, name, value, message):
    graph.set_field(name, value)
    with pytest.raises(ValueError, match=message):
        make_task(graph, SAGE)


def test_unknown_labels_outside_the_masks_are_allowed(graph):
    graph.ndata["val_mask"][:5] = graph.ndata["train_mask"][:5] = graph.ndata["test_mask"][:5] = (
        False
    )
    graph.ndata["label"][:5] = -1
    assert make_task(graph, SAGE).num_outputs == 4


def test_several_edge_types_are_refused(graph):
    csc = graph.csc
    hetero = Graph({("_N", "a", "_N"): csc, ("_N", "b", "_N"): csc})
    with pytest.raises(ValueError, match="graph must have one vertex type and one edge type"):
        make_task(hetero, SAGE)
