"""GraphSAINT's samplers: batches as PyG's, its normalisation and files, a user's own sampler, what
is refused."""

import inspect
import os
import pickle

import numpy as np
import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData

from pagraph import FormatError
from pagraph.graph.graph import EDGE_TYPE
from pagraph.pyg import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
    core_graph,
)
from pagraph.sampling import SaintSampler
from pagraph.seeds import derive_key

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("no_threads_left")]

KINDS = ["node", "edge", "walk"]
CLASSES = {
    "node": GraphSAINTNodeSampler,
    "edge": GraphSAINTEdgeSampler,
    "walk": GraphSAINTRandomWalkSampler,
}
N, E = 60, 400


def make_data(num_nodes=N, num_edges=E):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    data = Data(
        x=torch.randn(num_nodes, 3, generator=generator),
        edge_index=edge_index,
        y=torch.arange(num_nodes),
    )
    data.n_id, data.edge_id = torch.arange(num_nodes), torch.arange(num_edges)
    data.edge_attr = torch.randn(num_edges, 2, generator=generator)
    return data


def make(kind, data=None, batch_size=12, **options):
    walk = {"walk_length": 2} if kind == "walk" else {}
    return CLASSES[kind](
        make_data() if data is None else data, batch_size, **walk, **{"log": False} | options
    )


def plain_batch(data, nodes):
    """Edges by source and destination, then in order; PyG's ``SparseTensor`` holds them so."""
    src, dst = data.edge_index.tolist()
    place = {v: i for i, v in enumerate(nodes)}
    kept = [e for e in range(len(src)) if src[e] in place and dst[e] in place]
    kept.sort(key=lambda e: (src[e], dst[e], e))
    return kept, [[place[src[e]] for e in kept], [place[dst[e]] for e in kept]]


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_the_induced_subgraphs_with_rows_of_everything(kind, num_workers):
    data = make_data()
    data.name, data.scalar, data.seven = "a graph", torch.tensor(3.0), torch.arange(7)
    loader = make(kind, data, num_steps=5, num_workers=num_workers)
    batches = list(loader)
    assert len(loader) == len(batches) == 5
    for batch in batches:
        nodes = batch.n_id.tolist()
        assert nodes == sorted(set(nodes))
        kept, edge_index = plain_batch(data, nodes)
        assert batch.edge_id.tolist() == kept
        assert batch.edge_index.tolist() == edge_index
        assert batch.edge_index.dtype == torch.int64
        assert batch.edge_index.is_contiguous()
        assert batch.num_nodes == len(nodes)
        assert torch.equal(batch.x, data.x[nodes])
        assert torch.equal(batch.edge_attr, data.edge_attr[kept])
        assert (batch.name, float(batch.scalar), batch.seven.tolist()) == (
            "a graph",
            3.0,
            list(range(7)),
        )
        assert set(batch.keys()) == {*data.keys(), "num_nodes"}
        assert type(batch) is Data


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_makes_the_same_batches_for_any_number_of_threads(kind):
    def epochs(**options):
        loader = make(kind, seed=4, num_steps=6, **options)
        return [[batch.n_id.tolist() for batch in loader] for _ in range(2)]

    first = epochs(prefetch=0)
    assert first == epochs(num_workers=3, prefetch=4)
    assert first[0] != first[1]
    torch.manual_seed(1)
    one = [batch.n_id.tolist() for batch in make(kind, num_steps=3)]
    torch.manual_seed(1)
    assert one == [batch.n_id.tolist() for batch in make(kind, num_steps=3)]


def test_vertices_and_edges_are_told_apart_by_name_where_there_are_as_many():
    data = Data(
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]),
        x=torch.arange(3),
        edge_attr=torch.tensor([5, 6, 7]),
    )
    batch = next(iter(GraphSAINTNodeSampler(data, 1, log=False)))
    assert batch.edge_attr.shape == (0,)
    assert batch.x.shape == (1,)


def plain_norm(kind, seed, num_steps, coverage, budget):
    """PyG's normalisation, written out, over the batches that ours counts."""
    data, graph = make_data(), core_graph(make_data())
    sampler = SaintSampler(kind, budget, 2 if kind == "walk" else 0, by_degree=True, edge_dir="out")
    node_count, edge_count, batches, total = [0] * N, [0] * E, 0, 0
    while total < N * coverage:
        for _ in range(num_steps):
            batch = sampler.sample(graph, key=derive_key(derive_key(seed, 0x6E6F726D), batches))
            for v in batch.input_nodes["_N"].tolist():
                node_count[v] += 1
                total += 1
            for e in batch.edges[EDGE_TYPE].edge_ids.tolist():
                edge_count[e] += 1
            batches += 1
    node_norm = [batches / (count or 0.1) / N for count in node_count]
    edge_norm = []
    for e, source in enumerate(data.edge_index[0].tolist()):
        if edge_count[e]:
            edge_norm.append(min(node_count[source] / edge_count[e], 1e4))
        else:
            edge_norm.append(1e4 if node_count[source] else 0.1)
    return node_norm, edge_norm


@pytest.mark.parametrize("kind", KINDS)
def test_normalisation_is_pygs_formula(kind):
    loader = make(kind, batch_size=3, num_steps=4, sample_coverage=2, seed=9)
    node_norm, edge_norm = plain_norm(kind, 9, 4, 2, 3)
    assert loader.node_norm.dtype == loader.edge_norm.dtype == torch.float32
    np.testing.assert_allclose(loader.node_norm.numpy(), node_norm, rtol=1e-6)
    np.testing.assert_allclose(loader.edge_norm.numpy(), edge_norm, rtol=1e-6)
    for batch in loader:
        assert torch.equal(batch.node_norm, loader.node_norm[batch.n_id])
        assert torch.equal(batch.edge_norm, loader.edge_norm[batch.edge_id])


@pytest.mark.many
def test_normalised_sums_over_batches_are_those_over_the_graph():
    """The paper's purpose of it (section 3.2): the mean over batches estimates that over all
    vertices, without bias."""
    loader = make("node", batch_size=6, num_steps=300, sample_coverage=300, seed=1)
    reached = torch.unique(loader.data.edge_index[0])
    truth = loader.data.y[reached].float().sum() / N
    estimates = torch.stack([(batch.node_norm * batch.y).sum() for batch in loader])
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / len(estimates) ** 0.5


def test_the_normalisation_is_kept_in_pygs_files(tmp_path):
    loader = make("walk", sample_coverage=2, save_dir=str(tmp_path))
    assert os.listdir(tmp_path) == ["graphsaintrandomwalksampler_2_2.pt"]
    node_norm, edge_norm = torch.load(
        tmp_path / "graphsaintrandomwalksampler_2_2.pt", weights_only=True
    )
    assert torch.equal(node_norm, loader.node_norm)
    again = make("walk", sample_coverage=2, save_dir=str(tmp_path))
    assert torch.equal(again.node_norm, node_norm)
    assert torch.equal(again.edge_norm, edge_norm)

    # As PyG does.
    torch.save(
        (torch.arange(N) * 1.0, torch.arange(E) * 2.0), tmp_path / "graphsaintnodesampler_3.pt"
    )
    batch = next(iter(make("node", sample_coverage=3, save_dir=str(tmp_path))))
    assert torch.equal(batch.node_norm, batch.n_id.float())
    assert torch.equal(batch.edge_norm, 2.0 * batch.edge_id)


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Evil(), r"must hold only tensors and plain values, it holds posix\.mkdir: delete it"),
        (
            (torch.ones(N + 1), torch.ones(E)),
            r"must hold two tensors of shapes \[\(60,\), \(400,\)\], for this graph",
        ),
        (torch.ones(N), "must hold two tensors"),
        ([torch.ones(N), 3], "must hold two tensors"),
    ],
)
def test_files_of_something_else(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "graphsaintnodesampler_1.pt")
    with pytest.raises(FormatError, match=message):
        make("node", sample_coverage=1, save_dir=str(tmp_path))
    assert not (tmp_path / "evil").exists()


class EvenVertices(GraphSAINTSampler):
    """A sampler of a user's own."""

    def _sample_nodes(self, batch_size):
        return 2 * torch.randint(0, self.N // 2, (batch_size,))


def test_a_users_own_sampler_is_called():
    data = make_data()
    loader = EvenVertices(data, 10, num_steps=3, sample_coverage=2, log=False)
    batches = list(loader)
    assert len(batches) == 3
    for batch in batches:
        assert (batch.n_id % 2 == 0).all()
        assert batch.edge_id.tolist() == plain_batch(data, batch.n_id.tolist())[0]
        assert torch.equal(batch.node_norm, loader.node_norm[batch.n_id])
    assert (loader.node_norm[1::2] == loader.node_norm.max()).all()
    with pytest.raises(NotImplementedError):
        next(iter(GraphSAINTSampler(data, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_is_pygs_from_outside(kind):
    theirs = getattr(torch_geometric.loader, CLASSES[kind].__name__)
    ours, loader = inspect.signature(CLASSES[kind].__init__).parameters, make(kind, num_steps=2)
    assert isinstance(loader, theirs)
    parameters = inspect.signature(theirs.__init__).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in parameters.values()
    ]
    assert (loader.num_steps, loader._batch_size, loader.batch_size, loader.N, loader.E) == (
        2,
        12,
        1,
        N,
        E,
    )
    assert loader.collate_fn([0]).num_nodes >= 1
    assert len(loader._sample_nodes(5).unique()) >= 1
    again = pickle.loads(pickle.dumps(make(kind, num_steps=2, seed=3, sample_coverage=1)))
    assert [b.n_id.tolist() for b in again] == [
        b.n_id.tolist() for b in make(kind, num_steps=2, seed=3)
    ]
    assert "node_norm" in next(iter(again))


def hetero():
    data = HeteroData()
    data["a"].num_nodes = 3
    return data


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        ("node", {"data": hetero()}, TypeError, "data must be a Data, got HeteroData"),
        ("node", {"data": Data(num_nodes=3)}, ValueError, "data must have an edge_index, got None"),
        ("node", {"data": make_data(5, 0)}, ValueError, "at least 1 edge for mode 'node', got 0"),
        ("edge", {"data": make_data(5, 0)}, ValueError, "at least 1 edge for mode 'edge', got 0"),
        (
            "walk",
            {"data": Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=0)},
            ValueError,
            "1 vertex",
        ),
        ("node", {"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ("node", {"batch_size": 2.5}, TypeError, "batch_size must be an integer, got 2.5"),
        ("edge", {"num_steps": 0}, ValueError, "num_steps must be at least 1, got 0"),
        ("edge", {"sample_coverage": -1}, ValueError, "sample_coverage must be at least 0, got -1"),
        ("node", {"seed": -1}, ValueError, "seed must be in"),
    ],
)
def test_bad_input(kind, options, error, message):
    with pytest.raises(error, match=message):
        make(kind, **options)


def test_bad_walks_and_normalised_data():
    with pytest.raises(ValueError, match="walk_length must be at least 1, got 0"):
        GraphSAINTRandomWalkSampler(make_data(), 3, 0)
    data = make_data()
    data.node_norm = torch.ones(N)
    with pytest.raises(ValueError, match="data must not have 'node_norm'"):
        make("node", data)


def test_a_normalisation_of_the_users_own_and_no_items():
    loader = make("node", num_steps=2, sample_coverage=3)
    loader.node_norm = torch.full((N,), 7.0)
    assert all((batch.node_norm == 7.0).all() for batch in loader) and len(loader) == 2
    with pytest.raises(
        NotImplementedError, match="must be iterated, as it has batches and no items, got index 0"
    ):
        loader[0]
