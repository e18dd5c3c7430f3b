"""The models in both frameworks, against their definitions."""

import copy

import pytest
import torch
from community import community_graph
from faces import all_frameworks, loader_of, read, sampled, whole_block

from pagraph import Graph
from pagraph.train import TrainOptions
from pagraph.train.evaluate import predict
from pagraph.train.models import GAT, GCN, NORM, GraphSAGE
from pagraph.train.task import make_task

MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}


def kipf_matrix(task):
    """Normalised adjacency with self-loops, dense, from its definition (the test graphs are
    symmetric)."""
    src, dst = task.graph.csc.indices.long(), task.graph.csc.destinations().long()
    a = torch.zeros(task.graph.num_nodes, task.graph.num_nodes, dtype=torch.float64)
    a.index_put_((dst, src), torch.ones(len(src), dtype=torch.float64), accumulate=True)
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


def matrices(framework, model):
    """Weights and biases in double precision: for neighbours, for the vertex itself, bias."""
    found = (framework.weights(layer)[:3] for layer in model.layers)
    return [tuple(None if w is None else w.detach().double() for w in weights) for weights in found]


def test_gcn_with_all_neighbours_is_kipf_and_wellings(graph, framework):
    task = make_task(graph, TrainOptions(model="gcn"))
    torch.manual_seed(0)
    model = GCN([8, 5, 4], framework, dropout=0.5).eval()
    for layer in model.layers:
        torch.nn.init.normal_(layer.bias)
    blocks, rows, seeds = sampled(
        framework, task.graph, [-1, -1], torch.tensor([3, 500, 77]), model.fields
    )
    got = model(blocks, *rows)
    a, h = kipf_matrix(task), graph.ndata["feat"].double()
    (first, _, first_bias), (second, _, second_bias) = matrices(framework, model)
    h = (a @ h @ first.T + first_bias).relu()
    expected = (a @ h @ second.T + second_bias)[seeds]
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.many
def test_gcn_on_a_sample_is_unbiased(graph, framework):
    task = make_task(graph, TrainOptions(model="gcn"))
    torch.manual_seed(0)
    model = GCN([8, 4], framework, dropout=0.0)
    seeds = torch.tensor([3, 77, 500])
    total = torch.zeros(3, 4)
    rounds = 1000
    loader = loader_of(framework, task.graph, [5], seeds, model.fields, seed=0, prefetch=0)
    with torch.no_grad():
        for _ in range(rounds):
            (item,) = loader
            blocks, rows, order = read(framework, item, [5], model.fields)
            total[torch.searchsorted(seeds, order)] += model(blocks, *rows)
    ((weight, _, _),) = matrices(framework, model)
    expected = (kipf_matrix(task) @ graph.ndata["feat"].double() @ weight.T)[seeds]
    torch.testing.assert_close(total.double() / rounds, expected, rtol=0.0, atol=0.07)


def test_sage_is_own_part_plus_mean_of_the_neighbours(graph, framework):
    task = make_task(graph, TrainOptions())
    torch.manual_seed(0)
    model = GraphSAGE([8, 4], framework, dropout=0.5).eval()
    blocks, rows, seeds = sampled(
        framework, task.graph, [-1], torch.tensor([1, 2, 3]), model.fields
    )
    got = model(blocks, *rows)
    x, csc = graph.ndata["feat"].double(), graph.csc
    mean = torch.stack([x[csc.indices[csc.indptr[v] : csc.indptr[v + 1]]].mean(0) for v in seeds])
    ((neighbours, own, bias),) = matrices(framework, model)
    torch.testing.assert_close(
        got.double(), mean @ neighbours.T + x[seeds] @ own.T + bias, rtol=1e-4, atol=1e-5
    )


def reference_gat(framework, graph, model):
    """The framework's own GATConv on the whole graph, every vertex with one self-loop, with the
    model's weights."""
    src, dst = graph.csc.indices.long(), graph.csc.destinations().long()
    loops = torch.arange(graph.num_nodes)
    src, dst = torch.cat([src[src != dst], loops]), torch.cat([dst[src != dst], loops])
    x = graph.ndata["feat"]
    for i, layer in enumerate(model.layers):
        heads, width = framework.weights(layer).attention[0].shape
        if framework.name == "dgl":
            import dgl

            conv = dgl.nn.pytorch.GATConv(x.shape[1], width, heads)
            conv.load_state_dict(layer.state_dict())
            x = conv(dgl.graph((src, dst), num_nodes=graph.num_nodes), x).flatten(1)
        else:
            from torch_geometric.nn import GATConv

            conv = GATConv(x.shape[1], width, heads, add_self_loops=False)
            conv.load_state_dict(layer.state_dict())
            x = conv(x, torch.stack([src, dst]))
        x = x if i + 1 == len(model.layers) else x.relu()
    return x.detach()


def test_gat_with_all_neighbours_and_layer_wise_is_the_frameworks_own_on_the_whole_graph(framework):
    graph = community_graph(600, degree=4)
    src, dst = graph.csc.indices, graph.csc.destinations()
    # Self-loops, besides vertices without in-edges.
    again = torch.tensor([0, 0, 3, 21, 21, 500, 599])
    src, dst = (
        torch.cat([src[dst >= 20], again, src[-50:]]),
        torch.cat([dst[dst >= 20], again, dst[-50:]]),
    )
    graph = Graph.from_coo(src, dst, 600, ndata=graph.ndata)
    task = make_task(graph, TrainOptions(model="gat"))
    torch.manual_seed(0)
    model = GAT([8, 12, 6, 4], framework, dropout=0.5, heads=3).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    want = reference_gat(framework, graph, model)
    got = predict(model, task.evaluation())
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    blocks, rows, seeds = sampled(
        framework, task.graph, [-1, -1, -1], torch.tensor([3, 500, 7]), model.fields
    )
    torch.testing.assert_close(model(blocks, *rows).detach(), want[seeds], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_layers_and_dropout(graph, framework, name):
    task = make_task(graph, TrainOptions(model=name))
    model = MODELS[name]([8, 6, 6, 4], framework, dropout=0.5)
    assert len(model.layers) == 3
    blocks, rows, _ = sampled(framework, task.graph, [3, 3, 3], torch.arange(20), model.fields)
    assert model(blocks, *rows).shape == (20, 4)
    assert not torch.equal(model(blocks, *rows), model(blocks, *rows))
    model.eval()
    assert torch.equal(model(blocks, *rows), model(blocks, *rows))


def test_gcn_survives_a_block_without_edges(framework):
    block = whole_block(framework, Graph.from_coo([], [], 3))
    out = GCN([2, 3], framework, dropout=0.0)([block], torch.ones(3, 2), torch.ones(3, 2))
    assert out.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_both_frameworks_begin_with_the_same_parameters_and_compute_the_same(graph, name):
    task = make_task(graph, TrainOptions(model=name))
    gradients, outputs, parameters = [], [], []
    for framework in all_frameworks().values():
        torch.manual_seed(7)
        model = MODELS[name]([8, 6, 4], framework, dropout=0.0, heads=2)
        found = [framework.weights(layer) for layer in model.layers]
        layers = [(*weights[:3], *weights.attention) for weights in found]
        weights = [w for layer in layers for w in layer if w is not None]
        parameters.append([w.detach().clone() for w in weights])
        norm = [task.graph.ndata[NORM]] if name == "gcn" else []
        block = whole_block(framework, task.graph)
        outputs.append(model([block, block], task.graph.ndata["feat"], *norm))
        outputs[-1].square().sum().backward()
        gradients.append(sum(p.grad.square().sum() for p in model.parameters()))
        assert sum(p.numel() for p in model.parameters()) == sum(w.numel() for w in weights)
    assert all(torch.equal(a, b) for a, b in zip(*parameters, strict=True))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_a_model_can_be_copied(framework):
    model = GraphSAGE([8, 4], framework, dropout=0.0)
    assert all(
        torch.equal(a, b)
        for a, b in zip(copy.deepcopy(model).parameters(), model.parameters(), strict=True)
    )
