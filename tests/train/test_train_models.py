import pytest
import torch

from pagraph.dgl.graphbolt import import_dgl
from pagraph.train import TrainOptions
from pagraph.train.models import GCN, NORM, GraphSAGE
from pagraph.train.task import make_task

dgl = import_dgl()


def sampled(task, fanouts, seeds, fields):
    sampler = dgl.dataloading.NeighborSampler(fanouts, prefetch_node_feats=list(fields))
    return sampler.sample(task.graph, seeds)


def kipf_matrix(task):
    """Normalised adjacency with self-loops, dense, from its definition (the test graphs are symmetric)."""
    src, dst = task.graph.edges()
    a = torch.zeros(task.graph.num_nodes(), task.graph.num_nodes(), dtype=torch.float64)
    a.index_put_((dst, src), torch.ones(len(src), dtype=torch.float64), accumulate=True)
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


def test_gcn_with_all_neighbours_is_kipf_and_wellings(graph):
    task = make_task(graph, TrainOptions(model="gcn"))
    torch.manual_seed(0)
    model = GCN([8, 5, 4], dropout=0.5).eval()
    for layer in model.layers:
        torch.nn.init.normal_(layer.bias)
    seeds = torch.tensor([3, 500, 77])
    inputs, _, blocks = sampled(task, [-1, -1], seeds, model.fields)
    blocks[0].srcdata[NORM] = task.graph.ndata[NORM][inputs]
    got = model(blocks, task.graph.ndata["feat"][inputs])
    a, h = kipf_matrix(task), task.graph.ndata["feat"].double()
    first, second = model.layers
    h = (a @ h @ first.weight.double() + first.bias.double()).relu()
    expected = (a @ h @ second.weight.double() + second.bias.double())[seeds]
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


def test_gcn_on_a_sample_is_unbiased(graph):
    task = make_task(graph, TrainOptions(model="gcn"))
    torch.manual_seed(0)
    dgl.seed(0)
    model = GCN([8, 4], dropout=0.0)
    seeds = torch.tensor([3, 500, 77])
    total = torch.zeros(3, 4)
    rounds = 1500
    with torch.no_grad():
        for _ in range(rounds):
            inputs, _, blocks = sampled(task, [5], seeds, model.fields)
            blocks[0].srcdata[NORM] = task.graph.ndata[NORM][inputs]
            total += model(blocks, task.graph.ndata["feat"][inputs])
        layer = model.layers[0]
        expected = (kipf_matrix(task).float() @ task.graph.ndata["feat"] @ layer.weight + layer.bias)[seeds]
    torch.testing.assert_close(total / rounds, expected, rtol=0.0, atol=0.06)


def test_sage_is_own_part_plus_mean_of_the_neighbours(graph):
    task = make_task(graph, TrainOptions())
    torch.manual_seed(0)
    model = GraphSAGE([8, 4], dropout=0.5).eval()
    seeds = torch.tensor([1, 2, 3])
    inputs, _, blocks = sampled(task, [-1], seeds, model.fields)
    x = task.graph.ndata["feat"]
    got = model(blocks, x[inputs])
    (layer,) = model.layers
    mean = torch.stack([x[task.graph.in_edges(int(v))[0]].mean(0) for v in seeds])
    expected = mean @ layer.fc_neigh.weight.T + x[seeds] @ layer.fc_self.weight.T + layer.fc_self.bias
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [GraphSAGE, GCN])
def test_layers_and_dropout(graph, make):
    task = make_task(graph, TrainOptions(model="gcn"))
    model = make([8, 6, 6, 4], dropout=0.5)
    assert len(model.layers) == 3
    inputs, _, blocks = sampled(task, [3, 3, 3], torch.arange(20), model.fields)
    blocks[0].srcdata[NORM] = task.graph.ndata[NORM][inputs]
    x = task.graph.ndata["feat"][inputs]
    assert model(blocks, x).shape == (20, 4)
    assert not torch.equal(model(blocks, x), model(blocks, x))
    model.eval()
    assert torch.equal(model(blocks, x), model(blocks, x))


def test_gcn_survives_a_block_without_edges():
    graph = dgl.graph(([], []), num_nodes=3)
    graph.ndata[NORM] = torch.ones(3, 2)
    block = dgl.to_block(graph, torch.arange(3))
    block.srcdata[NORM] = torch.ones(3, 2)
    out = GCN([2, 3], dropout=0.0)([block], torch.ones(3, 2))
    assert out.isfinite().all()
