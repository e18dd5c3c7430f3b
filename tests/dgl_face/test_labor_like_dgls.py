"""DGL's LaborSampler run by our kernels against its own code: two samples of many batches each."""

import numpy as np
import pytest
import torch
from cases import collect, ours

from pagraph.datasets import rmat
from pagraph.dgl import core_graph, to_dgl
from pagraph.dgl.workload import native_sampler
from pagraph.seeds import derive_key

import dgl  # isort: skip

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("one_dgl_thread")]

LIMIT = 4.5  # standard errors
SEEDS = 40


def in_csc_order(graph):
    """The same graph with edge ids that count in CSC order: DGL's LABOR looks weights up by
    place."""
    src, dst = graph.edges()
    order = torch.argsort(dst, stable=True)
    turned = dgl.graph((src[order], dst[order]), num_nodes=graph.num_nodes())
    generator = torch.Generator().manual_seed(1)
    turned.edata["w"] = torch.randint(1, 20, (turned.num_edges(),), generator=generator) / 4
    return turned


def make(shape):
    if shape == "rmat":
        return in_csc_order(to_dgl(rmat(10)))
    rng = np.random.default_rng(0)
    return in_csc_order(
        dgl.graph((rng.integers(0, 800, 12_000), rng.integers(0, 800, 12_000)), num_nodes=800)
    )


def busy_vertices(graph):
    degrees = graph.in_degrees()
    return torch.nonzero((degrees > 12) & (degrees < 60)).flatten()[:SEEDS]


class Sample:
    """Edge counts and weights of the seeds' hop, and input nodes, over many batches."""

    def __init__(self, graph, rounds):
        self.taken, self.weights = np.zeros(graph.num_edges()), np.zeros(graph.num_edges())
        self.inputs, self.rounds = [], rounds

    def add(self, edges, weights, input_nodes):
        self.taken[edges.numpy()] += 1
        self.inputs.append(len(input_nodes))
        if weights is not None:
            self.weights[edges.numpy()] += weights.numpy()


@pytest.mark.every
@pytest.mark.parametrize("shape", ["rmat", "uniform"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layer_dependency": True},
        {"importance_sampling": 1},
        {"importance_sampling": -1, "layer_dependency": True},
        {"prob": "w"},
        {"prob": "w", "importance_sampling": 2},
    ],
    ids=str,
)
def test_same_frequencies_same_weights_and_as_many_input_nodes(shape, options):
    graph, rounds = make(shape), 400
    seeds = busy_vertices(graph)
    assert len(seeds) == SEEDS
    sampler = dgl.dataloading.LaborSampler([4, 6], **options)
    sampler.set_seed(11)
    native, core = native_sampler(graph, sampler), core_graph(graph)
    theirs, mine = Sample(graph, rounds), Sample(graph, rounds)
    for i in range(rounds):
        input_nodes, _, blocks = sampler.sample_blocks(graph, seeds)
        theirs.add(blocks[-1].edata[dgl.EID], blocks[-1].edata.get("edge_weights"), input_nodes)
        batch = native.sample(
            core, seeds, derive_key(6, i), field=lambda _, name: graph.edata[name]
        )
        mine.add(batch.blocks[-1].positions, batch.blocks[-1].weights, batch.input_nodes)
    chance = (theirs.taken + mine.taken) / (2 * rounds)
    z = (theirs.taken - mine.taken) / rounds / np.sqrt(2 * chance * (1 - chance) / rounds + 1e-12)
    assert np.abs(z).max() < LIMIT and (chance > 0).sum() > 500
    spread = np.sqrt((np.var(theirs.inputs) + np.var(mine.inputs)) / rounds)
    assert (
        abs(np.mean(mine.inputs) - np.mean(theirs.inputs))
        < 4 * spread
        < 0.03 * np.mean(theirs.inputs)
    )
    if "prob" in options or "importance_sampling" in options:
        each = [np.sum(sample.weights) / np.sum(sample.taken) for sample in (theirs, mine)]
        assert each == pytest.approx([1.0, 1.0], abs=1e-5)  # weights of a vertex average 1
        often = chance > 0.2
        assert np.abs(theirs.weights - mine.weights)[often].max() / rounds < 0.2
        assert np.abs((theirs.weights - mine.weights)[often].mean()) / rounds < 0.01


def test_weights_belong_to_edges_whatever_their_order():
    """DGL 2.1 takes the weight at an edge's place in its CSC; its documentation says the edge's
    own."""
    graph = dgl.graph(([0, 1, 2, 3], [5, 4, 5, 4]), num_nodes=6)
    graph.edata["w"] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    sampler = dgl.dataloading.LaborSampler([2], prob="w")
    ((input_nodes, _, (block,)),) = collect(
        ours(graph, torch.tensor([4, 5]), sampler, batch_size=2)
    )
    assert sorted(input_nodes.tolist()) == [0, 3, 4, 5]
    assert block.edata["edge_weights"].tolist() == [1.0, 1.0]


def test_every_edge_type_of_a_heterograph_has_its_weights():
    """DGL's own code loses them."""
    graph = dgl.heterograph(
        {("a", "x", "b"): ([0, 1, 2], [0, 0, 1]), ("b", "y", "b"): ([0, 1], [0, 0])},
        {"a": 3, "b": 2},
    )
    for etype in ("x", "y"):
        graph.edges[etype].data["w"] = torch.arange(1.0, graph.num_edges(etype) + 1)
    sampler = dgl.dataloading.LaborSampler([2], prob="w", importance_sampling=1)
    ((_, _, (block,)),) = collect(ours(graph, {"b": torch.tensor([0, 1])}, sampler, batch_size=2))
    for etype in ("x", "y"):
        weights = block.edges[etype].data["edge_weights"]
        assert len(weights) == block.num_edges(etype) > 0 and (weights > 0).all()
