"""Rows by reference: what they say of themselves, what may be read, what is refused; fields of a
graph."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.datasets.summary import summarise
from pagraph.features import FieldVersion, IndexedRows

SOURCE = torch.arange(12, dtype=torch.float32).view(6, 2)


@given(
    st.lists(st.integers(0, 5), max_size=12), st.sampled_from([torch.int32, torch.int64]), st.data()
)
def test_reading_is_indexing_the_gathered_rows(ids, dtype, data):
    rows = IndexedRows(SOURCE, torch.tensor(ids, dtype=dtype))
    whole = SOURCE[torch.tensor(ids, dtype=torch.int64)]
    assert torch.equal(rows.materialize(), whole)
    assert (rows.shape, rows.dtype, len(rows), rows.dim(), rows.numel()) == (
        whole.shape,
        whole.dtype,
        len(whole),
        whole.dim(),
        whole.numel(),
    )
    assert rows.element_size() == whole.element_size() and rows.device == whole.device
    assert torch.equal(rows[:], whole) and torch.equal(rows[1:4], whole[1:4])
    if ids:
        places = torch.tensor(data.draw(st.lists(st.integers(0, len(ids) - 1))), dtype=torch.int64)
        assert torch.equal(rows[places], whole[places]) and torch.equal(rows[-1], whole[-1])
        mask = torch.arange(len(ids)) % 2 == 0
        assert torch.equal(rows[mask], whole[mask])


@pytest.mark.parametrize("index", [0, slice(0, 2), torch.tensor([0])])
def test_what_was_read_is_a_copy(index):
    source = SOURCE.clone()
    IndexedRows(source, torch.tensor([0, 1]))[index].fill_(9)
    assert torch.equal(source, SOURCE)


@pytest.mark.parametrize("bad", [-1, 6, 2**40])
def test_ids_outside_the_source_are_refused(bad):
    with pytest.raises(ValueError, match=rf"ids must be in \[0, 6\), got {bad}"):
        IndexedRows(SOURCE, torch.tensor([0, bad]))


def test_other_arguments_are_refused():
    with pytest.raises(TypeError, match="ids must be int32 or int64, got torch.float32"):
        IndexedRows(SOURCE, torch.zeros(2))
    with pytest.raises(
        TypeError, match="source must be a dense CPU tensor, got torch.sparse_coo on cpu"
    ):
        IndexedRows(SOURCE.to_sparse(), torch.tensor([0]))
    with pytest.raises(TypeError, match="source must be a dense CPU tensor, got list"):
        IndexedRows([1.0], torch.tensor([0]))
    with pytest.raises(ValueError, match="ids must be 1-D"):
        IndexedRows(SOURCE, torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="the source have rows"):
        IndexedRows(torch.tensor(1.0), torch.zeros(0, dtype=torch.int64))


def test_what_only_tensors_have_is_refused_with_the_way_out():
    rows = IndexedRows(SOURCE, torch.tensor([1]))
    with pytest.raises(
        AttributeError, match=r"\[ids\] or materialize\(\) to become a tensor, got \.numpy"
    ):
        rows.numpy()
    assert torch.equal(copy.deepcopy(rows).materialize(), rows.materialize())


def test_a_version_is_that_of_the_source_and_the_ids():
    source, ids = SOURCE.clone(), torch.tensor([1, 0])
    rows = IndexedRows(source, ids)
    before = FieldVersion.of(rows)
    assert before == FieldVersion.of(IndexedRows(source, ids))
    assert before != FieldVersion.of(source)
    assert before != FieldVersion.of(IndexedRows(source, ids.clone()))
    source[3] = 0
    written = FieldVersion.of(rows)
    assert written != before
    ids[0] = 2
    assert FieldVersion.of(rows) != written


# -- fields of a graph
# ------------------------------------------------------------------------------------


def graph_with_rows():
    edges = IndexedRows(torch.rand(9, 2), torch.tensor([8, 0, 4]))
    return Graph.from_coo(
        [0, 1, 1],
        [1, 2, 2],
        ndata={"feat": IndexedRows(SOURCE, torch.tensor([5, 0, 5]))},
        edata={"w": edges},
    )


def test_a_graph_takes_rows_as_a_field():
    graph = graph_with_rows()
    assert graph.ndata["feat"].shape == (3, 2)
    assert graph.reverse().ndata["feat"] is graph.ndata["feat"]
    assert graph.reverse().edata["w"] is graph.edata["w"]
    with pytest.raises(ValueError, match=r"field 'x' must have one row per vertex \(3\), got 2"):
        graph.set_field("x", IndexedRows(SOURCE, torch.tensor([0, 1])))


def test_written_rows_are_opened_as_tensors(tmp_path):
    graph = graph_with_rows()
    write_graph(graph, tmp_path / "graph")
    opened = open_graph(tmp_path / "graph", verify=True)
    assert torch.equal(opened.ndata["feat"], graph.ndata["feat"].materialize())
    assert torch.equal(opened.edata["w"], graph.edata["w"].materialize())


def test_a_summary_counts_the_rows_of_the_field():
    graph = graph_with_rows()
    graph.set_field("train_mask", IndexedRows(torch.tensor([True, False]), torch.tensor([0, 1, 0])))
    fields = {field.name: field for field in summarise(graph).arrays if field.kind == "field"}
    assert fields["feat"].shape == (3, 2) and fields["train_mask"].true == 2
