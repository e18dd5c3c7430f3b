"""Pairs of a FeatureStore and a GraphStore: every layout, one call of the store a batch, PyG's
rules for times."""

import threading

import pytest
import torch
from joined_batches import assert_same, hetero_of
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

N, E = 30, 120
LAYOUTS = ["coo", "sorted", "csr", "csc"]


class CountingStore(MyFeatureStore):
    """Remembers what it was asked for, and by whom."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def _multi_get_tensor(self, attrs):
        asked = [(attr.group_name, attr.attr_name, attr.index) for attr in attrs]
        self.calls.append((asked, threading.current_thread()))
        return super()._multi_get_tensor(attrs)


def stored(edge_index, sizes, layout):
    """The two tensors of a layout, and the order in which the edges are in it."""
    row, col = edge_index
    order = torch.arange(len(row))
    if layout in ("sorted", "csc"):
        order = torch.argsort(col, stable=True)
    elif layout == "csr":
        order = torch.argsort(row, stable=True)
    row, col = row[order], col[order]
    if layout == "csc":
        col = torch.cat(
            [torch.zeros(1, dtype=torch.int64), torch.bincount(col, minlength=sizes[1]).cumsum(0)]
        )
    elif layout == "csr":
        row = torch.cat(
            [torch.zeros(1, dtype=torch.int64), torch.bincount(row, minlength=sizes[0]).cumsum(0)]
        )
    return (row, col), order


def put(graph_store, edge_index, edge_type, layout, sizes, *, size=True):
    pair, order = stored(edge_index, sizes, layout)
    name = "coo" if layout == "sorted" else layout
    given = {"edge_type": edge_type, "layout": name, "is_sorted": layout == "sorted"}
    graph_store.put_edge_index(pair, **given, size=sizes if size else None)
    return order


def homogeneous(layout, *, size=True):
    edge_index = torch.randint(N, (2, E), generator=torch.Generator().manual_seed(3))
    features, graph = CountingStore(), MyGraphStore()
    x = torch.randn(N, 4)
    features.put_tensor(x, group_name=None, attr_name="x", index=None)
    features.put_tensor(torch.arange(N), group_name=None, attr_name="y", index=None)
    order = put(graph, edge_index, None, layout, (N, N), size=size)
    return (features, graph), edge_index[:, order], x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [True, False])
def test_homogeneous_stores(layout, size):
    stores, edge_index, x = homogeneous(layout, size=size)
    loader = NeighborLoader(stores, [3, 2], torch.arange(N), batch_size=4)
    batches = list(loader)
    for batch in batches:
        assert type(batch) is Data and batch.num_nodes == len(batch.n_id)
        assert torch.equal(batch.x, x[batch.n_id]) and torch.equal(batch.y, batch.n_id)
        assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        assert sum(batch.num_sampled_nodes) == len(batch.n_id)
    features = stores[0]
    assert len(features.calls) == len(batches) == len(loader)
    for (asked, thread), batch in zip(features.calls, batches, strict=True):
        assert [(group, name) for group, name, _ in asked] == [(None, "x"), (None, "y")]
        assert all(torch.equal(index, batch.n_id) for _, _, index in asked)
        assert thread is threading.current_thread()


def hetero_stores(layout, *, size=True):
    data = hetero_of()
    features, graph = CountingStore(), MyGraphStore()
    for ntype, store in data.node_items():
        for name, value in store.items():
            features.put_tensor(value, group_name=ntype, attr_name=name, index=None)
    edges = {}
    for etype in data.edge_types:
        sizes = data[etype[0]].num_nodes, data[etype[2]].num_nodes
        order = put(graph, data[etype].edge_index, etype, layout, sizes, size=size)
        edges[etype] = data[etype].edge_index[:, order]
    return (features, graph), data, edges


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [True, False])
def test_hetero_stores(layout, size):
    stores, data, edges = hetero_stores(layout, size=size)
    loader = NeighborLoader(stores, [4, 3], ("paper", torch.arange(30)), batch_size=7)
    batches = list(loader)
    for batch in batches:
        assert type(batch) is HeteroData
        for ntype in data.node_types:
            assert torch.equal(batch[ntype].x, data[ntype].x[batch[ntype].n_id])
            assert batch[ntype].num_nodes == len(batch[ntype].n_id)
        assert torch.equal(batch["paper"].y, batch["paper"].n_id)
        for etype, edge_index in edges.items():
            ends = (
                batch[etype[0]].n_id[batch[etype].edge_index[0]],
                batch[etype[2]].n_id[batch[etype].edge_index[1]],
            )
            assert torch.equal(torch.stack(ends), edge_index[:, batch[etype].e_id])
        # Before PyG 2.7 there is no such attribute.
        assert getattr(batch, "input_type", "paper") == "paper"
        assert len(batch["paper"].input_id) == batch["paper"].batch_size
    assert len(stores[0].calls) == len(batches)


@pytest.mark.parametrize("input_nodes", ["paper", ("paper", None), ("paper", list(range(30)))])
def test_input_nodes_of_hetero_stores(input_nodes):
    stores, _, _ = hetero_stores("coo")
    batches = list(NeighborLoader(stores, [2], input_nodes, batch_size=10))
    assert torch.cat([batch["paper"].input_id for batch in batches]).tolist() == list(range(30))


def test_a_mask_and_everything_of_homogeneous_stores():
    stores, _, _ = homogeneous("csc")
    mask = torch.zeros(N, dtype=torch.bool)
    mask[5:9] = True
    (batch,) = NeighborLoader(stores, [2], mask, batch_size=10)
    assert batch.input_id.tolist() == [5, 6, 7, 8]
    assert len(list(NeighborLoader(stores, [2], batch_size=10))) == 3


def test_input_nodes_that_say_no_type_are_refused():
    stores, _, _ = hetero_stores("coo")
    for wrong in (None, torch.arange(3)):
        with pytest.raises(ValueError, match="input_nodes must be a vertex type"):
            NeighborLoader(stores, [2], wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_those_of_data(layout):
    stores, edge_index, x = homogeneous(layout)
    data = Data(x=x, y=torch.arange(N), edge_index=edge_index, num_nodes=N)
    settings = {"input_nodes": torch.arange(N), "batch_size": 4, "seed": 5, "shuffle": True}
    ours, others = (
        NeighborLoader(stores, [3, 2], **settings),
        NeighborLoader(data, [3, 2], **settings),
    )
    for batch, other in zip(ours, others, strict=True):
        assert_same(batch, other)


@pytest.mark.parametrize("kind", ["homogeneous", "hetero"])
def test_our_sampler_in_pygs_loader(kind):
    stores, nodes = (
        (homogeneous("coo")[0], torch.arange(N))
        if kind == "homogeneous"
        else (hetero_stores("coo")[0], "paper")
    )
    ours = NeighborLoader(stores, [-1, -1], nodes, batch_size=7)
    pygs = NodeLoader(stores, NeighborSampler(stores, [-1, -1]), nodes, batch_size=7)
    for batch, other in zip(ours, pygs, strict=True):
        assert_same(batch, other)


class MyBatch(Data):
    """A user's own class of batches."""


class MyHeteroBatch(HeteroData):
    """A user's own class of batches of several types."""


def test_the_users_own_class_of_batches():
    stores, _, _ = homogeneous("coo")
    for batch in NeighborLoader(stores, [2], torch.arange(4), custom_cls=MyBatch):
        assert type(batch) is MyBatch
    stores, _, _ = hetero_stores("coo")
    for batch in NeighborLoader(stores, [2], ("paper", torch.arange(4)), custom_cls=MyHeteroBatch):
        assert type(batch) is MyHeteroBatch


def test_the_store_is_called_by_workers_only_if_they_are_asked_for(no_threads_left):
    stores, _, x = homogeneous("coo")
    features = stores[0]
    reference = list(NeighborLoader(stores, [3], torch.arange(N), batch_size=4, seed=1))
    assert {thread for _, thread in features.calls} == {threading.current_thread()}
    features.calls.clear()
    batches = list(
        NeighborLoader(stores, [3], torch.arange(N), batch_size=4, seed=1, num_workers=2)
    )
    assert threading.current_thread() not in {thread for _, thread in features.calls}
    assert len(features.calls) == len(batches)
    for batch, other in zip(batches, reference, strict=True):
        assert_same(batch, other)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_store_is_raised_once(num_workers, no_threads_left):
    class Broken(CountingStore):
        def _multi_get_tensor(self, attrs):
            super()._multi_get_tensor(attrs)
            raise ConnectionError("no route to the features")

    _, graph = homogeneous("coo")[0]
    features = Broken()
    features.put_tensor(torch.arange(N), group_name=None, attr_name="y", index=None)
    with pytest.raises(ConnectionError, match="no route"):
        next(
            iter(
                NeighborLoader(
                    (features, graph), [2], torch.arange(4), batch_size=4, num_workers=num_workers
                )
            )
        )
    assert len(features.calls) == 1


def test_a_transform_of_the_samplers_output():
    stores, _, x = homogeneous("coo")

    def renamed(output):
        output.metadata = (output.metadata[0] + 100, output.metadata[1])
        return output

    for batch in NeighborLoader(
        stores, [2], torch.arange(N), batch_size=10, transform_sampler_output=renamed
    ):
        assert (batch.input_id >= 100).all() and torch.equal(batch.x, x[batch.n_id])


def test_types_without_features_are_counted_by_their_edges():
    graph, features = MyGraphStore(), MyFeatureStore()
    features.put_tensor(torch.randn(5, 2), group_name="a", attr_name="x", index=None)
    graph.put_edge_index(
        (torch.tensor([0, 7]), torch.tensor([1, 3])), edge_type=("b", "to", "a"), layout="coo"
    )
    loader = NeighborLoader((features, graph), [-1], "a", batch_size=5)
    assert loader.node_sampler.num_nodes == {"b": 8, "a": 5}
    (batch,) = loader
    assert batch["b"].n_id.tolist() == [0, 7] and batch["a"].x.shape == (5, 2)


def test_a_hetero_data_object_is_a_store_of_both_kinds():
    data = hetero_of()
    del data["paper", "cites", "paper"].edge_attr
    settings = {"input_nodes": "paper", "batch_size": 7, "seed": 2}
    for batch, other in zip(
        NeighborLoader((data, data), [3, 2], **settings),
        NeighborLoader(data, [3, 2], **settings),
        strict=True,
    ):
        for ntype in data.node_types:
            assert torch.equal(batch[ntype].x, other[ntype].x)
        for etype in data.edge_types:
            assert torch.equal(batch[etype].edge_index, other[etype].edge_index)


def test_links_of_stores():
    stores, edge_index, x = homogeneous("coo")
    links = edge_index[:, :20]
    for batch in LinkNeighborLoader(
        stores, [2], (None, links), batch_size=5, neg_sampling="binary"
    ):
        assert torch.equal(batch.x, x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_label_index[:, :5]], links[:, batch.input_id])


# -- errors
# ------------------------------------------------------------------------------------------------------------


def test_weights_are_not_for_stores():
    stores, _, _ = homogeneous("coo")
    with pytest.raises(NotImplementedError, match="'weight_attr' argument not yet supported"):
        NeighborLoader(stores, [2], torch.arange(4), weight_attr="w")


def test_what_is_no_pair_of_stores():
    stores, _, _ = homogeneous("coo")
    for wrong in ((1, 2), stores[::-1], stores[:1], (*stores, 1)):
        with pytest.raises(
            TypeError, match="data must be a pair of a FeatureStore and a GraphStore"
        ):
            NeighborLoader(wrong, [2], torch.arange(4))


def test_a_graph_store_without_edges_or_with_edges_of_both_kinds():
    features, graph = MyFeatureStore(), MyGraphStore()
    with pytest.raises(ValueError, match="at least 1 edge type, got 0"):
        NeighborLoader((features, graph), [2], torch.arange(4))
    pair = torch.tensor([0]), torch.tensor([0])
    graph.put_edge_index(pair, edge_type=None, layout="coo", size=(2, 2))
    graph.put_edge_index(pair, edge_type=("a", "to", "a"), layout="coo", size=(2, 2))
    with pytest.raises(ValueError, match="edge types or one edge_index"):
        NeighborLoader((features, graph), [2], torch.arange(4))


@pytest.mark.parametrize(
    ("layout", "row", "col", "error"),
    [
        ("coo", [5], [0], r"row must be in \[0, 2\), got 5"),
        ("coo", [0], [5], r"col must be in \[0, 2\), got 5"),
        ("coo", [0], [-1], r"col must be in \[0, 2\), got -1"),
        ("coo", [0, 1], [0], "row and col must have the same length, got 2 and 1"),
        ("coo", [0.5], [0], "row must hold integers, got torch.float32"),
        ("csc", [5], [0, 1, 1], r"row must be in \[0, 2\), got 5"),
        ("csc", [0], [0, 1, 1, 1], "pointers to edges must have at most 3 entries, got 4"),
        ("csc", [0, 0], [0, 3, 2], "indptr must be non-decreasing"),
        ("csc", [0, 0], [0, 1, 1], "indptr must run from 0 to the number of edges 2"),
        ("csr", [0, 1, 1], [5], r"col must be in \[0, 2\), got 5"),
        ("csr", [0, 1, 1, 1], [0], "pointers to edges must have at most 3 entries, got 4"),
        ("csr", [0, 2, 1], [0], "indptr must be non-decreasing"),
    ],
)
def test_edges_that_lead_out_of_the_graph(layout, row, col, error):
    """The error names the edge type, of which a store may have hundreds."""
    pair = torch.tensor(row), torch.tensor(col)
    graph = MyGraphStore()
    graph.put_edge_index(pair, edge_type=None, layout=layout, size=(2, 2))
    with pytest.raises((TypeError, ValueError), match=f"^graph_store's edges: {error}"):
        NeighborLoader((MyFeatureStore(), graph), [2], torch.arange(2))
    graph = MyGraphStore()
    good = torch.tensor([0]), torch.tensor([1])
    graph.put_edge_index(good, edge_type=("a", "is", "a"), layout="coo", size=(2, 2))
    graph.put_edge_index(pair, edge_type=("a", "to", "b"), layout=layout, size=(2, 2))
    named = r"^graph_store's edges of \('a', 'to', 'b'\): "
    with pytest.raises((TypeError, ValueError), match=named + error):
        NeighborLoader((MyFeatureStore(), graph), [2], "a")


def test_a_false_promise_of_order_gives_no_wrong_edges():
    edge_index = torch.randint(N, (2, E), generator=torch.Generator().manual_seed(3))
    graph = MyGraphStore()
    graph.put_edge_index(
        tuple(edge_index), edge_type=None, layout="coo", is_sorted=True, size=(N, N)
    )
    for batch in NeighborLoader((MyFeatureStore(), graph), [-1], torch.arange(N), batch_size=5):
        assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])


# -- times
# -------------------------------------------------------------------------------------------------------------


def timed(layout, name, count):
    stores, edge_index, _ = homogeneous(layout)
    times = torch.randint(20, (count,), generator=torch.Generator().manual_seed(1))
    stores[0].put_tensor(times, group_name=None, attr_name=name, index=None)
    return stores, edge_index, times


@pytest.mark.parametrize("layout", ["sorted", "csc"])
def test_vertices_with_times(layout):
    stores, _, times = timed(layout, "time", N)
    for batch in NeighborLoader(stores, [-1, -1], torch.arange(N), time_attr="time", batch_size=6):
        assert torch.equal(batch.time, times[batch.n_id])
        assert (batch.time <= times[batch.n_id[: batch.batch_size]][batch.batch]).all()


@pytest.mark.parametrize("layout", ["sorted", "csc"])
def test_edges_with_times(layout):
    stores, _, times = timed(layout, "when", E)
    stores[0].store.pop((None, "x")), stores[0].store.pop((None, "y"))
    whens = stores[0].store
    limits = torch.full((N,), 9)
    sampler = NeighborSampler(stores, [-1], time_attr="when")
    whens.pop((None, "when"))  # PyG reads every attribute by vertex
    loader = NeighborLoader(
        stores,
        [-1],
        torch.arange(N),
        input_time=limits,
        time_attr="when",
        neighbor_sampler=sampler,
        batch_size=6,
    )
    found = torch.cat([batch.e_id for batch in loader])
    assert sorted(found.tolist()) == (times <= 9).nonzero().view(-1).tolist()


def test_times_of_hetero_stores():
    stores, data, _ = hetero_stores("csc")
    times = {"paper": torch.arange(30) % 7, "author": torch.arange(20) % 5}
    for ntype, values in times.items():
        stores[0].put_tensor(values, group_name=ntype, attr_name="year", index=None)
    for batch in NeighborLoader(stores, [-1, -1], "paper", time_attr="year", batch_size=6):
        limits = times["paper"][batch["paper"].n_id[:6]]
        for ntype, values in times.items():
            assert (values[batch[ntype].n_id] <= limits[batch[ntype].batch]).all()


@pytest.mark.parametrize(
    ("layout", "message"),
    [("csr", "stored in either COO or CSC layout"), ("coo", "edges are sorted by destination")],
)
def test_edges_that_are_not_in_the_order_that_times_need(layout, message):
    stores, _, _ = timed(layout, "time", N)
    with pytest.raises(ValueError, match=message):
        NeighborLoader(stores, [2], torch.arange(4), time_attr="time")


def test_times_that_are_not_there():
    stores, _, _ = homogeneous("csc")
    with pytest.raises(ValueError, match="did not find any temporal data"):
        NeighborLoader(stores, [2], torch.arange(4), time_attr="time")
    stores, _, _ = hetero_stores("csc")
    with pytest.raises(ValueError, match="neither a node-level or edge-level"):
        NeighborLoader(stores, [2], "paper", time_attr="year")
