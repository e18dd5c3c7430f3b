"""What PyG builds on its loaders works with ours: zipping, caching, prefetching, degrees,
inference."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import (
    CachedLoader,
    ImbalancedSampler,
    NodeLoader,
    PrefetchLoader,
    ZipLoader,
)
from torch_geometric.nn import PNAConv
from torch_geometric.nn.models import GraphSAGE

from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_data(num_nodes=60, num_edges=400):
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        y=(torch.arange(num_nodes) > 50).long(),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
    )


@pytest.mark.every
@pytest.mark.parametrize("filter_per_worker", [None, True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_zipped_loaders(filter_per_worker, workers):
    data = make_data()
    first = NeighborLoader(data, [3], torch.arange(20))
    second = NeighborLoader(data, [2, 2], torch.arange(20, 60))
    links = LinkNeighborLoader(
        data, [1], edge_label_index=data.edge_index[:, :30], neg_sampling="binary"
    )
    zipped = ZipLoader([first, second, links], filter_per_worker, batch_size=8, num_workers=workers)
    batches = list(zipped)
    assert len(batches) == len(zipped) == 3
    for one, other, pairs in batches:
        assert torch.equal(one.input_id, other.input_id) and torch.equal(
            one.input_id, pairs.input_id
        )
        assert torch.equal(other.n_id[: other.batch_size], other.input_id + 20)
        for batch in (one, other, pairs):
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert first.filter_per_worker is (True if filter_per_worker is None else filter_per_worker)


def test_cached_batches_stay_as_they_were():
    data = make_data()
    loader = CachedLoader(NeighborLoader(data, [3, 2], batch_size=16, shuffle=True, num_workers=2))
    first = list(loader)
    values = [batch.clone() for batch in first]
    second = list(loader)
    assert len(first) == len(loader) == 4 and all(
        a is b for a, b in zip(first, second, strict=True)
    )
    for batch, value in zip(second, values, strict=True):  # memory that is held is not used again
        assert torch.equal(batch.x, value.x) and torch.equal(batch.n_id, value.n_id)
        assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(
            batch.edge_index, value.edge_index
        )
    loader.clear()
    assert len(list(loader)) == 4


def test_prefetched_batches():
    data = make_data()
    loader = NeighborLoader(data, [3], batch_size=16)
    batches = list(PrefetchLoader(loader, device=torch.device("cpu")))
    assert [len(batch.input_id) for batch in batches] == [16, 16, 16, 12]
    assert all(torch.equal(batch.x, data.x[batch.n_id]) for batch in batches)


def test_imbalanced_samplers_repeat_seeds():
    data = make_data()
    torch.manual_seed(0)
    loader = NeighborLoader(data, [3], sampler=ImbalancedSampler(data), batch_size=30)
    rare = 0
    for batch in loader:
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(seeds, batch.input_id)
        rare += int(batch.y[: batch.batch_size].sum())
        copies = [seeds.tolist().index(seed) for seed in seeds.tolist()]
        assert len(set(copies)) < len(copies)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert 15 <= rare <= 45  # of 60; 9 of 60 vertices are rare


def test_degree_histograms():
    data = make_data()
    degrees = torch.bincount(data.edge_index[1], minlength=60)
    loader = NeighborLoader(data, [-1], batch_size=7)
    histogram = torch.zeros(int(degrees.max()) + 1, dtype=torch.int64)
    for batch in loader:
        inner = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        histogram += torch.bincount(inner, minlength=len(histogram))
    assert torch.equal(PNAConv.get_degree_histogram(loader), histogram)


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_layerwise_inference(cache, workers):
    data = make_data()
    torch.manual_seed(0)
    model = GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
    loader = NeighborLoader(data, [-1], batch_size=13, num_workers=workers)
    assert len(loader.node_sampler.num_neighbors) == 1
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        out = model.inference(loader, cache=cache)
    assert torch.allclose(out, expected, atol=1e-5)
    assert "n_id" not in loader.data  # inference changes the loader's data and puts it back
    assert torch.equal(next(iter(loader)).x, data.x[next(iter(loader)).n_id])


def test_layerwise_inference_of_loaders_with_several_hops_is_refused():
    with pytest.raises(AssertionError):
        GraphSAGE(4, 8, num_layers=2).inference(NeighborLoader(make_data(), [-1, -1]))


def test_the_loop_of_pygs_reddit_example():
    """It takes ``x`` away, adds ids, and looks rows up on its own."""
    data = make_data()
    loader = NeighborLoader(data, [-1], batch_size=13, shuffle=False)
    loader.data = data.__copy__()
    del loader.data.x, loader.data.y
    loader.data.num_nodes = data.num_nodes
    loader.data.n_id = torch.arange(data.num_nodes)
    for _ in range(2):
        for batch in loader:
            assert "x" not in batch and "y" not in batch
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert "x" in data


@pytest.mark.many
@pytest.mark.parametrize("workers", [0, 2])
def test_pygs_loader_around_our_sampler(workers):
    data = make_data()
    loader = NodeLoader(
        data, NeighborSampler(data, [3, 2]), torch.arange(30), batch_size=8, num_workers=workers
    )
    for _ in range(2):
        batches = list(loader)
        assert sum((batch.input_id.tolist() for batch in batches), []) == list(range(30))
        for batch in batches:
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.processes
def test_our_sampler_in_a_spawned_process():
    data = make_data()
    sampler = NeighborSampler(data, [3, 2])
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "filter_per_worker": False}
    batches = list(NodeLoader(data, sampler, torch.arange(30), batch_size=8, **options))
    assert [batch.batch_size for batch in batches] == [8, 8, 8, 6]
    assert all(
        torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        for batch in batches
    )
