"""Columns of rows in fewer bytes: batches, subgraphs and whole columns have the values, by our
loader and by DGL's."""

import copy

import pytest
import torch

from pagraph import Graph
from pagraph.features import IndexedRows, NarrowRows

pytest.importorskip("pagraph.dgl")
import dgl

from pagraph.dgl import DataLoader
from pagraph.dgl.convert import dgl_graph, to_dgl
from pagraph.dgl.deferred import NarrowColumn, column_values, narrow_rows

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")]
N = 90


def graph_of(values, weights=None):
    src, dst = torch.randint(0, N, (2, 700), generator=torch.Generator().manual_seed(0))
    return Graph.from_coo(
        src, dst, N, ndata={"feat": values}, edata={} if weights is None else {"w": weights}
    )


@pytest.fixture(params=["float16", "bfloat16", "int8"])
def rows(request):
    stored = NarrowRows.of(
        torch.randn(N, 11, generator=torch.Generator().manual_seed(1)), request.param
    ).stored
    return NarrowRows(
        IndexedRows(stored, torch.randperm(N, generator=torch.Generator().manual_seed(2)))
    )


def inputs(graph, prefetched, loader=DataLoader, **more):
    names = {"prefetch_node_feats": ["feat"], "prefetch_edge_feats": ["w"]} if prefetched else {}
    sampler = dgl.dataloading.NeighborSampler([3, 4], **names)
    batches = loader(graph, torch.arange(N), sampler, batch_size=16, **more)
    return [(b[0].srcdata["feat"], b[0].edata["w"]) for _, _, b in batches]


@pytest.mark.every
@pytest.mark.parametrize("prefetched", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_values(rows, prefetched, num_workers):
    weights = NarrowRows.of(torch.rand(700, 3), "float16")
    narrow = to_dgl(graph_of(rows, weights))
    plain = to_dgl(graph_of(rows.materialize(), weights.materialize()))
    got, want = (
        inputs(graph, prefetched, seed=3, num_workers=num_workers) for graph in (narrow, plain)
    )
    assert len(got) == 6
    for ours, theirs in zip(got, want, strict=True):
        assert all(map(torch.equal, ours, theirs))
    if prefetched:  # nobody has read the whole column
        assert column_values(narrow._node_frames[0]._columns["feat"]) is rows


def test_dgls_own_loader_reads_single_rows(rows):
    graph = to_dgl(graph_of(rows))
    sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
    for ids, _, blocks in dgl.dataloading.DataLoader(
        graph, torch.arange(N), sampler, batch_size=30
    ):
        assert torch.equal(blocks[0].srcdata["feat"], rows[ids])
    assert narrow_rows(graph._node_frames[0]._columns["feat"]) is rows


def test_subgraphs_copies_and_whole_columns(rows):
    graph, whole = to_dgl(graph_of(rows)), rows.materialize()
    some = torch.arange(5, 40)
    inner = dgl.node_subgraph(dgl.node_subgraph(graph, some), torch.tensor([3, 0]))
    assert torch.equal(inner.ndata["feat"], whole[[8, 5]])
    column = graph._node_frames[0]._columns["feat"]
    assert isinstance(column, NarrowColumn) and (column.shape, column.dtype, len(column)) == (
        (11,),
        torch.float32,
        N,
    )
    assert torch.equal(column.clone().data, whole) and torch.equal(
        column.astype(torch.float64).data, whole.double()
    )
    assert torch.equal(copy.deepcopy(column).data, whole)
    assert torch.equal(graph.local_var().ndata["feat"], whole)
    graph.ndata["feat"] = whole + 1
    assert torch.equal(graph.ndata["feat"], whole + 1)


def test_a_new_field_becomes_the_column(rows):
    graph = graph_of(rows)
    assert torch.equal(dgl_graph(graph).ndata["feat"], rows.materialize())
    graph.set_field("feat", NarrowRows.of(torch.ones(N, 2), "int8"))
    assert torch.equal(dgl_graph(graph).ndata["feat"], torch.ones(N, 2))
