"""Our loaders against PyG's own, where torch-sparse is installed (PyPI has no wheel of it): full
neighbourhoods."""

import warnings

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader as PyGHGTLoader
from torch_geometric.loader import LinkNeighborLoader as PyGLinkNeighborLoader
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.loader import ShaDowKHopSampler as PyGShaDowKHopSampler
from torch_geometric.sampler import utils
from torch_geometric.typing import SparseTensor

from pagraph.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler

pytest.importorskip("torch_sparse", reason="PyG's own loaders need torch-sparse or pyg-lib")


@pytest.fixture(autouse=True)
def stable_and_quiet(monkeypatch):
    """PyG does not ask for a stable sort of the edges, so that the order of a vertex's edges is a
    matter of luck."""
    monkeypatch.setattr(utils, "index_sort", lambda values: values.sort(stable=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _homogeneous(seed):
    generator = torch.Generator().manual_seed(seed)
    nodes, edges = (
        int(torch.randint(*bounds, (), generator=generator)) for bounds in ((1, 60), (0, 300))
    )
    return Data(
        x=torch.randn(nodes, 3, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=torch.randn(edges, 2, generator=generator),
    ), torch.randint(nodes, (20,), generator=generator)


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("num_neighbors", [[-1], [-1, -1, -1], [0], [-1, 0]])
def test_homogeneous_batches_are_equal_to_the_bit(subgraph_type, num_neighbors):
    for seed in range(10):
        data, seeds = _homogeneous(seed)
        settings = {"input_nodes": seeds, "batch_size": 7, "subgraph_type": subgraph_type}
        theirs, ours = (
            cls(data, num_neighbors, **settings) for cls in (PyGNeighborLoader, NeighborLoader)
        )
        for expected, batch in zip(theirs, ours, strict=True):
            counts = (
                {"num_sampled_nodes", "num_sampled_edges"}
                if subgraph_type == "directional"
                else set()
            )
            # Which torch-sparse does not tell.
            assert set(batch.keys()) - set(expected.keys()) == counts
            for name, value in expected.to_dict().items():
                assert (
                    torch.equal(batch[name], value)
                    if isinstance(value, torch.Tensor)
                    else batch[name] == value
                )


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_batches_of_heterographs_hold_the_same_vertices_and_edges(subgraph_type):
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        data, counts = HeteroData(), {"a": 30, "b": 20, "c": 5}
        for ntype, count in counts.items():
            data[ntype].num_nodes = count
        for etype in (("a", "r", "b"), ("b", "q", "a"), ("a", "s", "a"), ("c", "u", "b")):
            ends = [
                torch.randint(counts[t], (40,), generator=generator) for t in (etype[0], etype[2])
            ]
            data[etype].edge_index = torch.stack(ends)
        seeds = ("b", torch.randperm(20, generator=generator))
        settings = {"input_nodes": seeds, "batch_size": 6, "subgraph_type": subgraph_type}
        theirs, ours = (
            cls(data, [-1, -1], **settings) for cls in (PyGNeighborLoader, NeighborLoader)
        )
        for expected, batch in zip(theirs, ours, strict=True):
            for ntype in data.node_types:
                assert sorted(batch[ntype].n_id.tolist()) == sorted(expected[ntype].n_id.tolist())
            for etype in data.edge_types:
                assert sorted(batch[etype].e_id.tolist()) == sorted(expected[etype].e_id.tolist())


def test_links_are_equal_to_the_bit():
    for seed in range(10):
        data, _ = _homogeneous(seed)
        settings = {"batch_size": 16, "edge_label": torch.arange(data.num_edges) % 3}
        theirs, ours = (
            cls(data, [-1, -1], **settings) for cls in (PyGLinkNeighborLoader, LinkNeighborLoader)
        )
        for expected, batch in zip(theirs, ours, strict=True):
            for name, value in expected.to_dict().items():
                assert (
                    torch.equal(batch[name], value)
                    if isinstance(value, torch.Tensor)
                    else batch[name] == value
                )


def _values(value):
    return [part.tolist() for part in value.csr()] if isinstance(value, SparseTensor) else value


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_shadow_batches_are_equal_to_the_bit(depth, sparse, replace):
    for seed in range(5):
        data, roots = _homogeneous(seed)
        # SparseTensor does not keep parallel edges in order.
        data.edge_index = torch.unique(data.edge_index, dim=1)
        data.y, data.edge_attr = torch.arange(data.num_nodes), torch.arange(data.num_edges)
        if sparse:
            ends, value = data.edge_index, data.edge_attr
            sizes = (data.num_nodes, data.num_nodes)
            data.adj_t = SparseTensor(row=ends[0], col=ends[1], value=value, sparse_sizes=sizes).t()
            del data.edge_index, data.edge_attr
        theirs, ours = (
            cls(data, depth, 1000, roots, replace, batch_size=7)
            for cls in (PyGShaDowKHopSampler, ShaDowKHopSampler)
        )
        for expected, batch in zip(theirs, ours, strict=True):
            assert set(batch.keys()) == set(expected.keys()) and type(batch) is type(expected)
            for name, value in expected.to_dict().items():
                same = torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else None
                assert same or _values(batch[name]) == _values(value)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_hgt_batches_hold_the_same_vertices_and_edges(hops):
    """Where no vertex has more than 50 in-edges, of which torch-sparse draws 50."""
    for seed in range(8):
        generator, data = torch.Generator().manual_seed(seed), HeteroData()
        for ntype, count in {"a": 30, "b": 20, "c": 4}.items():
            data[ntype].x = torch.arange(count)
        for etype in [
            ("a", "x", "b"),
            ("b", "y", "a"),
            ("c", "z", "a"),
            ("b", "w", "c"),
            ("a", "v", "a"),
        ]:
            src, dst = (data[etype[place]].num_nodes for place in (0, 2))
            ends = [torch.randint(n, (40,), generator=generator) for n in (src, dst)]
            data[etype].edge_index, data[etype].w = torch.stack(ends), torch.arange(40)
        settings = {
            "input_nodes": ("a", torch.randperm(30, generator=generator)[:9]),
            "batch_size": 4,
        }
        theirs, ours = (cls(data, [1000] * hops, **settings) for cls in (PyGHGTLoader, HGTLoader))
        for expected, batch in zip(theirs, ours, strict=True):
            assert batch["a"].n_id[:1].tolist() == expected["a"].n_id[:1].tolist()
            assert torch.equal(batch["a"].input_id, expected["a"].input_id)
            for ntype, store in expected.node_items():
                assert set(batch[ntype].keys()) == set(store.keys())
                assert sorted(batch[ntype].n_id.tolist()) == sorted(store.n_id.tolist())
            for etype, store in expected.edge_items():
                assert set(batch[etype].keys()) == set(store.keys())
                assert sorted(batch[etype].e_id.tolist()) == sorted(store.e_id.tolist())
                assert torch.equal(batch[etype].w, batch[etype].e_id)
