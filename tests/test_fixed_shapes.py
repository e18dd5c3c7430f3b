"""Loaders with fixed shapes: what they deliver is what the same loaders deliver without, and padding
that changes nothing."""

import copy
import io
from itertools import islice

import numpy as np
import pytest
import torch
from torch.nn import functional

from pagraph import CSC, Graph, Loader, NeighborSampler, WholeStep
from pagraph.accelerator import HostAccelerator
from pagraph.graph.mapped import map_npy
from pagraph.sampling import EdgeBatches, LaborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")
NUM_NODES = 600
SEEDS = torch.arange(0, NUM_NODES, 2)
IGNORED = -100


def make_graph():
    rng = np.random.default_rng(0)
    # Squared, so that a few vertices have many edges, and others none.
    src = (rng.random(6000) ** 2 * NUM_NODES).astype(np.int64)
    dst = (rng.random(6000) ** 2 * NUM_NODES).astype(np.int64)
    graph = Graph.from_coo(src, dst, NUM_NODES)
    generator = torch.Generator().manual_seed(0)
    graph.ndata["feat"] = torch.randn(NUM_NODES, 8, generator=generator)
    graph.ndata["label"] = torch.arange(NUM_NODES) % 5
    graph.ndata["goal"] = torch.randn(NUM_NODES, generator=generator)
    return graph


def make(graph=None, sampler=None, **options):
    settings = {
        "fields": ["feat"],
        "labels": ["label", "goal"],
        "batch_size": 32,
        "shuffle": True,
        "seed": 3,
    }
    graph = make_graph() if graph is None else graph
    return Loader(graph, SEEDS, sampler or NeighborSampler([4, 3]), **settings | options)


def shapes_of(batch):
    blocks = [(b.num_src, b.num_dst, b.num_edges) for b in batch.blocks]
    fields = [tuple(rows.shape) for rows in [*batch.features.values(), *batch.labels.values()]]
    return blocks, fields, tuple(batch.seed_mask.shape)


def same(fixed, plain):
    """A padded batch holds a plain one, in order, and padding that joins only padding."""
    real = fixed.input_nodes >= 0
    assert fixed.input_nodes[real].equal(plain.input_nodes)
    assert fixed.features["feat"][real].equal(plain.features["feat"])
    assert not fixed.features["feat"][~real].any()
    assert fixed.output_nodes[fixed.seed_mask].equal(plain.output_nodes)
    assert not fixed.seed_mask[-1]
    assert fixed.labels["label"][fixed.seed_mask].equal(plain.labels["label"])
    assert (fixed.labels["label"][~fixed.seed_mask] == IGNORED).all()
    assert fixed.labels["goal"][fixed.seed_mask].equal(plain.labels["goal"])
    assert fixed.labels["goal"][~fixed.seed_mask].isnan().all()
    for block, other in zip(fixed.blocks, plain.blocks, strict=True):
        ends = block.src_nodes[block.to_pyg()]
        kept = block.positions >= 0
        assert ends[:, kept].equal(other.src_nodes[other.to_pyg()])
        assert (ends[:, ~kept] == -1).all()
        assert block.positions[kept].equal(other.positions)
    return True


@pytest.mark.every
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 0},
        {"num_workers": 2},
        {"shuffle": False, "seed": None},
        {"drop_last": True},
        {"sampler": NeighborSampler([-1, 2])},
        {"sampler": LaborSampler([3, 3])},
        {"sampler": NeighborSampler([3], edge_dir="out")},
        {"cache_dtype": "float16"},
    ],
    ids=str,
)
def test_an_epoch(options):
    torch.manual_seed(0)
    plain = list(make(**options))
    torch.manual_seed(0)
    loader = make(shapes="fixed", **options)
    fixed = list(loader)
    assert len(fixed) == len(plain) and all(map(same, fixed, plain))
    by_number = {batch.shape_number: shapes_of(batch) for batch in fixed}
    assert len({str(shapes_of(batch)) for batch in fixed}) == len(by_number) <= 3
    assert all(shapes_of(batch) == by_number[batch.shape_number] for batch in fixed)
    assert all(len(batch.output_nodes) == 33 for batch in fixed)
    assert loader.envelope.batches[0] >= 0.9 * len(fixed)
    counts = loader.stats.total.counts
    assert counts["input_nodes"] == sum(len(batch.input_nodes) for batch in plain)
    assert counts["seeds"] == sum(len(batch.output_nodes) for batch in plain)


@pytest.mark.compilers
@pytest.mark.parametrize("sampling_device", ["cpu", "device"])
def test_on_an_accelerator(sampling_device):
    pytest.importorskip("triton")
    device = HostAccelerator()
    there = device if sampling_device == "device" else "cpu"
    loader = make(shapes="fixed", device=device, sampling_device=there)
    assert all(map(same, loader, make()))
    loader.close()


def test_rows_on_disk(cold_file):
    graph = make_graph()
    expected = list(make(graph))
    values = graph.ndata["feat"].numpy()
    graph.set_field("feat", map_npy(cold_file("feat", values)))
    loader = make(graph, shapes="fixed", lookahead=4, cache=0)
    assert all(map(same, loader, expected)) and loader.stats.total.counts["window_rows"]
    loader = make(graph, shapes="fixed", cache=0.5)
    plain = make(graph)
    assert all(same(*pair) for _ in range(2) for pair in zip(loader, plain, strict=True))
    assert loader.stats.total.hit_rate > 0.5


def test_requests():
    loader = make(shapes="fixed")
    batch = loader.batch([5, 3, 5])
    assert same(batch, make().batch([5, 3, 5])) and batch.seed_mask.sum() == 3
    assert sum(loader.envelope.batches) == 0  # it is in no epoch
    with pytest.raises(ValueError, match="seeds must be at most batch_size=32 with shapes='fixed'"):
        loader.batch(list(range(33)))


def growing():
    """A loader that begins with few edges to draw, and how to add the others."""
    graph = make_graph()
    weights = torch.zeros(graph.num_edges)
    weights[::40] = 1
    graph.edata["w"] = weights

    def grow():
        graph.edata["w"] = torch.ones(graph.num_edges)

    return make(graph, NeighborSampler([4, 3], prob="w"), shapes="fixed"), graph, grow


def test_a_graph_that_grows_between_epochs():
    """No batch is dropped: they come in the other sizes, and from the next epoch on in the first."""
    loader, graph, grow = growing()
    list(loader)
    before = loader.envelope.sizes
    grow()
    loader.set_epoch(5)
    plain = make(graph, NeighborSampler([4, 3], prob="w"))
    plain.set_epoch(5)
    assert all(map(same, loader, plain))
    assert loader.envelope.sizes == before and loader.envelope.batches[0] == 0
    list(loader)
    assert loader.envelope.batches[0] == len(loader) and loader.envelope.sizes[0] > before[0]


@pytest.mark.parametrize("stop", [3, 10])
def test_resume(stop):
    """In the middle of an epoch, whose batches did not fit, and at its end: sizes go on as well."""
    loader, _, grow = growing()
    list(loader)
    grow()
    for number, _ in enumerate(loader, 1):
        if number == stop:
            break
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    assert len(loader) == 10
    again, _, grow = growing()
    grow()
    again.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    rest = [[shapes_of(b) for b in epoch] for epoch in [list(again), list(again)]]
    loader.load_state_dict(loader.state_dict())
    assert rest == [[shapes_of(b) for b in epoch] for epoch in [list(loader), list(loader)]]
    assert again.state_dict() == loader.state_dict()
    assert copy.copy(again).envelope.sizes == again.envelope.sizes


def test_damaged_states():
    loader = make(shapes="fixed")
    next(iter(loader))
    state = loader.state_dict()
    for shapes, text in [
        (None, "must come from state_dict"),
        ({}, "must come from state_dict"),
        (state["shapes"] | {"sizes": [3]}, "must come from state_dict"),
        (state["shapes"] | {"batches": [1]}, "must count batches of each size"),
        (
            make(batch_size=8, shapes="fixed").envelope.state_dict(),
            "must come from a loader with the",
        ),
    ]:
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict(state | {"shapes": shapes, "checksum": None})
        assert loader.state_dict() == state
    make().load_state_dict(state)  # where batches are as large as they are, sizes mean nothing


def test_the_envelope_is_a_table():
    loader = make(shapes="fixed")
    text = str(loader.envelope)
    assert "vertices by hop" in text and "padding so far: 0.0% of vertices" in text
    assert make().envelope is None
    list(loader)
    vertices, edges = loader.envelope.padding
    assert 0 < vertices < 0.5 and 0 < edges < 0.5


@pytest.mark.filterwarnings("ignore:an epoch has no batches")
@pytest.mark.parametrize("count", [0, 5])
def test_no_whole_batch(count):
    graph = Graph.from_coo([], [], 7, ndata={"feat": torch.rand(7, 2)})
    loader = Loader(
        graph, range(count), NeighborSampler([2]), fields=["feat"], batch_size=6, shapes="fixed"
    )
    for batch in loader:
        assert batch.seed_mask.tolist() == [True] * 5 + [False] * 2
        assert batch.blocks[0].num_edges == batch.blocks[0].indptr[-1]
    assert len(loader.envelope.sizes) == 1 or count


def test_what_cannot_have_fixed_shapes(monkeypatch):
    with pytest.raises(ValueError, match="shapes must be 'sampled' or 'fixed', got 'padded'"):
        make(shapes="padded")
    with pytest.raises(ValueError, match="shapes='fixed' needs vertices as seeds, got EdgeBatches"):
        make(sampler=EdgeBatches(NeighborSampler([2])), labels=[], shapes="fixed")
    two = Graph({("a", "to", "b"): CSC.from_coo([0], [0], 3)}, {"a": 3, "b": 3})
    with pytest.raises(ValueError, match="needs a graph with one vertex type and one edge type"):
        Loader(two, {"b": [0]}, NeighborSampler([2]), shapes="fixed")
    graph = make_graph()
    graph.ndata["label"] = graph.ndata["label"].to(torch.uint8)
    with pytest.raises(ValueError, match="labels must be signed integers or floats for shapes="):
        next(iter(make(graph, shapes="fixed")))
    monkeypatch.setattr("pagraph.engine.engine.host_available", lambda: 1 << 16)
    loader = make(sampler=NeighborSampler([-1, -1]), shapes="fixed")
    text = r"KiB for the largest possible batch of 1,2\d\d vertices and .* edges, and 64 KiB are"
    with pytest.raises(ValueError, match=text):
        next(iter(loader))


def gradients(loader, model):
    """The loss of each batch, and the gradients of all parameters."""
    losses = []
    for batch in loader:
        loss = functional.cross_entropy(model(batch), batch.labels["label"])
        model.zero_grad()
        loss.backward()
        losses.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    return losses


class Layers(torch.nn.Module):
    """PyG's layers on blocks; those that take no pairs on their sources alone."""

    def __init__(self, kind):
        super().__init__()
        import torch_geometric.nn

        torch.manual_seed(1)
        make = getattr(torch_geometric.nn, kind)
        self.layers = torch.nn.ModuleList([make(8, 16), make(16, 5)])
        self.takes_pairs = kind != "GCNConv"

    def forward(self, batch):
        x = batch.features["feat"]
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            if self.takes_pairs:
                x = layer((x, x[: block.num_dst]), block.to_pyg())
            else:
                x = layer(x, block.to_pyg())[: block.num_dst]
            x = x.tanh()
        return x


@pytest.mark.parametrize("kind", ["SAGEConv", "GCNConv", "GATConv"])
def test_losses_and_gradients_are_those_of_plain_batches(kind):
    pytest.importorskip("torch_geometric")
    model = Layers(kind)
    fixed = gradients(make(shapes="fixed"), model)
    plain = gradients(make(), model)
    for one, other in zip(fixed, plain, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def compiled_sizes(loader, model):
    """How often a model is compiled in an epoch."""
    compiled = []

    def backend(traced, example_inputs):
        compiled.append(traced)
        return traced.forward

    torch._dynamo.reset()
    forward = torch.compile(model, backend=backend, dynamic=False)
    for batch in loader:
        forward(batch)
    return len(compiled)


@pytest.mark.many
def test_each_shape_is_compiled_once():
    pytest.importorskip("torch_geometric")
    model = Layers("SAGEConv")
    loader = make(shapes="fixed")
    assert compiled_sizes(loader, model) == sum(count > 0 for count in loader.envelope.batches) < 3
    assert compiled_sizes(islice(make(), 4), model) > 2


class TestWholeStep:
    def test_runs_each_batch_on_the_cpu(self):
        pytest.importorskip("torch_geometric")
        model = Layers("SAGEConv")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(batch):
            loss = functional.cross_entropy(model(batch), batch.labels["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        start = copy.deepcopy(model.state_dict())
        whole = WholeStep(step)
        losses = [float(whole(batch)) for batch in make(shapes="fixed")]
        model.load_state_dict(start)
        assert losses == [float(step(batch)) for batch in make(shapes="fixed")]

    def test_bad_input(self):
        with pytest.raises(ValueError, match="batch must be of a loader with shapes='fixed'"):
            WholeStep(len)(next(iter(make())))
        with pytest.raises(ValueError, match="warmup must be at least 1, got 0"):
            WholeStep(len, warmup=0)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_replays_train_as_steps_do(self):
        pytest.importorskip("torch_geometric")
        found = []
        for wrap in (lambda step: step, WholeStep):
            model = Layers("SAGEConv").cuda()
            optimizer = torch.optim.Adam(model.parameters(), 0.01, capturable=True)

            def step(batch, model=model, optimizer=optimizer):
                loss = functional.cross_entropy(model(batch), batch.labels["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss.detach()

            run = wrap(step)
            loader = make(shapes="fixed", device="cuda")
            found.append([float(run(batch)) for _ in range(3) for batch in loader])
        np.testing.assert_allclose(*found, rtol=1e-4)
