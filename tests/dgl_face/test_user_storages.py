"""DGL graphs with storages of the user's own, by ``get_node_storage`` and ``get_edge_storage``."""

import pytest
import torch
from cases import collect, dgl, make_graph, ours, theirs

pytestmark = pytest.mark.usefixtures("no_threads_left")

d = dgl.dataloading
SAMPLERS = {
    "neighbours": lambda **read: d.MultiLayerFullNeighborSampler(2, **read),
    "own": lambda **read: Own(2, **read),
    "links": lambda **read: d.as_edge_prediction_sampler(
        d.MultiLayerFullNeighborSampler(2, **read), prefetch_labels=["w"]
    ),
    "shadow": lambda **read: d.ShaDowKHopSampler([-1], **read),
}


class Own(d.MultiLayerFullNeighborSampler):
    """Not sampled by our kernels."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        return super().sample_blocks(g, seed_nodes, exclude_eids)


class Rows(dgl.storages.FeatureStorage):
    """Rows of a tensor plus one: nobody else gives them."""

    def __init__(self, values):
        self.values, self.calls = values, 0

    def requires_ddp(self):
        return False

    def fetch(self, indices, device, pin_memory=False, **kwargs):
        self.calls += 1
        return (self.values[indices] + 1).to(device)


class Stored(dgl.DGLGraph):
    """Gives some columns from storages of its own, DGL's for the others."""

    def get_node_storage(self, key, ntype=None):
        return self.of_nodes.get(key) or super().get_node_storage(key, ntype)

    def get_edge_storage(self, key, etype=None):
        return self.of_edges.get(key) or super().get_edge_storage(key, etype)


def stored_graph(nodes=(), edges=(), by_instance=False):
    graph = make_graph()
    of_nodes = {name: Rows(graph.ndata[name]) for name in nodes}
    of_edges = {name: Rows(graph.edata[name]) for name in edges}
    if by_instance:
        dgls = graph.get_node_storage, graph.get_edge_storage
        graph.get_node_storage = lambda key, ntype=None: of_nodes.get(key) or dgls[0](key, ntype)
        graph.get_edge_storage = lambda key, etype=None: of_edges.get(key) or dgls[1](key, etype)
    else:
        graph.__class__ = Stored
        graph.of_nodes, graph.of_edges = of_nodes, of_edges
    return graph, of_nodes, of_edges


def rows_of(item):
    """All that was prefetched, by graph, with the ids; edges as DGL orders them."""
    found = []
    for graph in item[-1] if isinstance(item[-1], list) else [item[-1]]:
        order = graph.edata[dgl.EID].argsort()
        found.append((graph.edata[dgl.EID][order], graph.edata["w"][order]))
        nodes = graph.srcdata[dgl.NID].argsort()
        found.append((graph.srcdata[dgl.NID][nodes], graph.srcdata["feat"][nodes]))
    return [tensor.tolist() for pair in found for tensor in pair]


@pytest.mark.parametrize("by_instance", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [("feat",), ("w",), ("feat", "w")], ids=str)
@pytest.mark.parametrize("name", SAMPLERS)
def test_rows_are_those_of_the_users_storages(name, own, workers, by_instance):
    nodes, edges = [[c for c in own if c == column] for column in ("feat", "w")]
    graph, of_nodes, of_edges = stored_graph(nodes, edges, by_instance)
    sampler = SAMPLERS[name](prefetch_node_feats=["feat"], prefetch_edge_feats=["w"])
    options = {"batch_size": 10}
    expected = [rows_of(b) for b in collect(theirs(graph, torch.arange(30), sampler, **options))]
    loader = ours(graph, torch.arange(30), sampler, num_workers=workers, **options)
    for storage in (*of_nodes.values(), *of_edges.values()):
        storage.calls = 0
    for _ in range(2):
        assert [rows_of(batch) for batch in loader] == expected
    assert all(storage.calls for storage in (*of_nodes.values(), *of_edges.values()))


def test_a_storage_of_rows_that_no_column_has():
    graph, of_nodes, _ = stored_graph()
    of_nodes["extra"] = Rows(torch.arange(300.0))
    sampler = d.NeighborSampler([2], prefetch_node_feats=["extra"], prefetch_labels=["label"])
    for input_nodes, output_nodes, blocks in ours(graph, torch.arange(30), sampler, batch_size=10):
        assert torch.equal(blocks[0].srcdata["extra"], input_nodes + 1.0)
        assert torch.equal(blocks[0].dstdata["label"], graph.ndata["label"][output_nodes])


def test_an_error_of_the_users_storage_arrives():
    class Broken(Rows):
        def fetch(self, indices, device, pin_memory=False, **kwargs):
            raise ZeroDivisionError("the storage's own")

    graph, of_nodes, _ = stored_graph()
    of_nodes["feat"] = Broken(graph.ndata["feat"])
    sampler = d.NeighborSampler([2], prefetch_node_feats=["feat"])
    with pytest.raises(ZeroDivisionError, match="own"):
        next(iter(ours(graph, torch.arange(30), sampler, batch_size=10)))
