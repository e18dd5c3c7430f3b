"""What edges may be given as: sorted or not, int32, EdgeIndex, sparse tensors; and what a batch
then has."""

import numpy as np
import pytest
import torch
from seen import Seen, assert_same
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_torch_csr_tensor

from pagraph.pyg import NeighborLoader

EDGES = torch.randint(40, (2, 300), generator=torch.Generator().manual_seed(0))
SORTED = EDGES[:, EDGES[1].argsort(stable=True)]
QUIET = pytest.mark.filterwarnings(
    "ignore:Sparse (CSR tensor support is in beta|invariant checks):UserWarning"
)


def data_of(edge_index):
    return Data(
        x=torch.arange(40.0).view(40, 1), edge_index=edge_index, edge_attr=torch.arange(300)
    )


def batches(data, **options):
    return list(NeighborLoader(data, [3, -1], batch_size=7, seed=1, **options))


@pytest.mark.parametrize(
    "edge_index", [EDGES, SORTED, EDGES[:, EDGES[0].argsort()]], ids=["any", "by col", "by row"]
)
def test_a_promise_of_order_changes_nothing_and_a_false_one_does_no_harm(edge_index):
    data = data_of(edge_index)
    for batch, promised in zip(batches(data), batches(data, is_sorted=True), strict=True):
        assert_same(promised, batch)
        Seen.of(promised, data).check({("", ""): [3, -1]})


def test_edges_in_another_order_are_the_same_draws():
    """Edges of one destination keep their order when sorted: ``e_id`` apart, the batches are the
    same."""
    order = EDGES[1].argsort(stable=True)
    for batch, other in zip(batches(data_of(EDGES)), batches(data_of(SORTED)), strict=True):
        assert torch.equal(batch.n_id, other.n_id) and torch.equal(
            batch.edge_index, other.edge_index
        )
        assert torch.equal(batch.e_id, order[other.e_id])


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_int32_edges_give_int32_vertices(subgraph_type):
    wide = batches(data_of(EDGES), subgraph_type=subgraph_type)
    narrow = batches(data_of(EDGES.int()), subgraph_type=subgraph_type)
    for batch, other in zip(narrow, wide, strict=True):
        assert batch.edge_index.dtype == batch.n_id.dtype == torch.int32
        assert batch.e_id.dtype == batch.input_id.dtype == torch.int64
        assert (
            other.edge_index.dtype
            == other.n_id.dtype
            == other.e_id.dtype
            == other.input_id.dtype
            == torch.int64
        )
        assert torch.equal(batch.n_id.long(), other.n_id) and torch.equal(
            batch.edge_index.long(), other.edge_index
        )
        assert torch.equal(batch.e_id, other.e_id) and torch.equal(batch.x, other.x)


@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int32), (torch.int32, torch.int64)])
def test_int32_edges_of_every_type_give_int32_vertices(dtypes):
    data = HeteroData()
    for t in "uv":
        data[t].x = torch.arange(40.0).view(40, 1)
    data["u", "r", "v"].edge_index, data["v", "s", "u"].edge_index = (
        EDGES.to(dtype) for dtype in dtypes
    )
    expected = torch.int32 if dtypes == (torch.int32, torch.int32) else torch.int64
    for batch in NeighborLoader(data, [3, 2], input_nodes="v", batch_size=7):
        assert (
            {batch[t].n_id.dtype for t in "uv"}
            == {batch[e].edge_index.dtype for e in batch.edge_types}
            == {expected}
        )
        Seen.of(batch, data).check(dict.fromkeys(data.edge_types, [3, 2]))


@pytest.mark.parametrize("order", [None, "row", "col"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_index_of_pygs_class(order, dtype):
    edges = {None: EDGES, "row": EDGES[:, EDGES[0].argsort(stable=True)], "col": SORTED}[order].to(
        dtype
    )
    data = data_of(EdgeIndex(edges, sparse_size=(40, 40), sort_order=order))
    for batch, plain in zip(batches(data), batches(data_of(edges)), strict=True):
        assert torch.equal(torch.as_tensor(batch.edge_index), torch.as_tensor(plain.edge_index))
        assert type(batch.edge_index) is type(plain.edge_index)  # what the installed PyG makes
        assert torch.equal(batch.n_id, plain.n_id) and torch.equal(batch.e_id, plain.e_id)


def test_edges_written_in_place_are_seen_by_the_next_loader():
    data = data_of(EDGES.clone())
    before = batches(data)
    data.edge_index[1] = data.edge_index[1].flip(0)
    for batch, old in zip(batches(data), before, strict=True):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert not torch.equal(batch.e_id, old.e_id)


@pytest.mark.parametrize(
    ("edge_index", "error", "message"),
    [
        (torch.tensor([[0], [40]]), ValueError, r"^edge_index\[1\] must be in \[0, 40\), got 40"),
        (torch.tensor([[-1], [0]]), ValueError, r"^edge_index\[0\] must be in \[0, 40\), got -1"),
        (
            torch.tensor([[0.0], [1.0]]),
            TypeError,
            r"^edge_index\[0\] must hold integers, got torch.float32",
        ),
        (
            torch.tensor([[0], [1], [2]]),
            ValueError,
            r"edge_index must have shape \[2, num_edges\], got \[3, 1\]",
        ),
        ([[0], [1]], TypeError, "edge_index must be a tensor, got list"),
        (np.array([[0], [1]]), TypeError, "edge_index must be a tensor, got ndarray"),
    ],
)
def test_edges_that_are_none(edge_index, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(Data(x=torch.zeros(40, 1), edge_index=edge_index), [2])


@pytest.mark.parametrize("input_nodes", ["v", "u"])
def test_edges_of_a_type_that_nothing_counts_add_none_to_the_data(input_nodes):
    data = HeteroData()
    data["v"].x = torch.zeros(4, 1)
    data["u", "r", "v"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="'u'"):
        NeighborLoader(data, [2], input_nodes)
    assert data.node_types == ["v"]


def test_edges_of_a_type_that_are_none_are_named():
    data = HeteroData({"a": {"num_nodes": 3}, "b": {"num_nodes": 2}})
    data["a", "to", "b"].edge_index = torch.tensor([[2, 0], [2, 1]])
    with pytest.raises(
        ValueError, match=r"^data\[\('a', 'to', 'b'\)\].edge_index\[1\] must be in \[0, 2\), got 2"
    ):
        NeighborLoader(data, [2], input_nodes="b")


@QUIET
def test_a_sparse_torch_tensor_is_refused_with_a_way_out():
    adj_t = to_torch_csr_tensor(SORTED.flip(0), size=(40, 40))
    with pytest.raises(
        TypeError,
        match=r"adj_t must be a SparseTensor .*, got torch.sparse_csr: .*T.ToSparseTensor",
    ):
        NeighborLoader(Data(x=torch.zeros(40, 1), adj_t=adj_t), [2])


@QUIET
def test_the_way_out():
    data = data_of(EDGES)
    for batch in NeighborLoader(data, [3, 2], batch_size=7, transform=ToSparseTensor(attr=None)):
        assert "edge_index" not in batch and batch.adj_t.size(0) == batch.num_nodes


def sparse_adjacency(value=None):
    torch_sparse = pytest.importorskip("torch_sparse")
    return torch_sparse.SparseTensor(
        row=SORTED[1], col=SORTED[0], value=value, sparse_sizes=(40, 40)
    )


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_sparse_tensors_in_and_out(valued, subgraph_type):
    adj_t = sparse_adjacency(torch.arange(300) if valued else None)
    col, row, value = adj_t.coo()
    data = Data(x=torch.arange(40.0).view(40, 1), adj_t=adj_t)
    as_edges = data_of(torch.stack([row, col]))  # edge ids are places in adj_t
    pairs = zip(
        batches(data, subgraph_type=subgraph_type),
        batches(as_edges, subgraph_type=subgraph_type),
        strict=True,
    )
    for batch, expected in pairs:
        assert "edge_index" not in batch and torch.equal(batch.n_id, expected.n_id)
        assert torch.equal(batch.e_id, expected.e_id) and torch.equal(batch.x, expected.x)
        got_col, got_row, got_value = batch.adj_t.coo()
        size = batch.num_nodes
        assert batch.adj_t.sizes() == [size, size] and type(got_row) is torch.Tensor
        src, dst = expected.edge_index
        got = (got_col, got_row) if got_value is None else (got_col, got_row, got_value)
        wanted = (dst, src) if value is None else (dst, src, value[expected.e_id])
        assert sorted(torch.stack(got).t().tolist()) == sorted(torch.stack(wanted).t().tolist())


def test_sparse_tensors_by_type():
    adj_t = sparse_adjacency()
    data = HeteroData()
    for t in "uv":
        data[t].x = torch.arange(40.0).view(40, 1)
    data["u", "r", "v"].adj_t = adj_t
    data["v", "s", "u"].edge_index = EDGES
    for batch in NeighborLoader(data, [3, 2], input_nodes="v", batch_size=7):
        col, row, _ = batch["u", "r", "v"].adj_t.coo()
        given = torch.stack(adj_t.coo()[:2])
        ends = torch.stack([batch["v"].n_id[col], batch["u"].n_id[row]])
        assert sorted(ends.t().tolist()) == sorted(given[:, batch["u", "r", "v"].e_id].t().tolist())
        assert batch["v", "s", "u"].edge_index.shape[1] == len(batch["v", "s", "u"].e_id)


def test_sparse_tensors_of_another_size_are_refused():
    adj_t = sparse_adjacency()
    with pytest.raises(
        ValueError, match=r"adj_t must have a row for each destination \(50\), got 40"
    ):
        NeighborLoader(Data(x=torch.zeros(50, 1), adj_t=adj_t), [2])
