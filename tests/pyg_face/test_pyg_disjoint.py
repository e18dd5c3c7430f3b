"""Disjoint subgraphs through the loader: a tree for each seed."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import LinkNeighborLoader, NeighborLoader
from pagraph.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.kernels


def random_data(num_nodes=200, num_edges=1500):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(x=torch.randn(num_nodes, 4, generator=generator), edge_index=edge_index)


@pytest.mark.parametrize("fanouts", [[4, 2], [-1, -1], [3, -1, 0, 2]])
@pytest.mark.parametrize("replace", [False, True])
def test_edges_stay_within_a_tree(fanouts, replace):
    data, repeats = random_data(), 0
    for batch in NeighborLoader(
        data, fanouts, torch.arange(60), disjoint=True, replace=replace, batch_size=16
    ):
        src, dst = batch.edge_index
        assert batch.batch.dtype == torch.int64 and len(batch.batch) == batch.num_nodes
        assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))
        assert torch.equal(batch.batch[src], batch.batch[dst])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id]) and (dst.diff() >= 0).all()
        # A vertex is in a tree once, and may be in several.
        assert len(torch.stack([batch.batch, batch.n_id]).unique(dim=1).T) == batch.num_nodes
        repeats += batch.num_nodes - len(batch.n_id.unique())
    assert repeats > 0


def test_each_tree_is_what_its_seed_gives_alone():
    data = random_data()
    (batch,) = NeighborLoader(data, [-1, -1], torch.arange(20), disjoint=True, batch_size=20)
    for tree, (alone,) in enumerate(
        [NeighborLoader(data, [-1, -1], torch.tensor([v]), batch_size=1) for v in range(20)]
    ):
        assert batch.n_id[batch.batch == tree].tolist() == alone.n_id.tolist()
        edges = batch.e_id[batch.batch[batch.edge_index[1]] == tree]
        assert edges.tolist() == alone.e_id.tolist()


def test_repeated_seeds_have_trees_of_their_own():
    data = random_data()
    (batch,) = NeighborLoader(data, [-1], torch.tensor([7, 7, 3, 7]), disjoint=True, batch_size=4)
    trees = [sorted(batch.n_id[batch.batch == tree].tolist()) for tree in range(4)]
    assert trees[0] == trees[1] == trees[3] != trees[2] and len(trees[0]) > 1
    (drawn,) = NeighborLoader(
        data, [1], torch.full((200,), 7), disjoint=True, batch_size=200, seed=0
    )
    degree = int((data.edge_index[1] == 7).sum())
    assert len(drawn.e_id.unique()) == degree > 1  # each draws for itself


def test_hetero_trees():
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["a"].x, data["b"].x, data["c"].x = (
        torch.randn(50, 2),
        torch.randn(40, 2),
        torch.randn(5, 2),
    )
    for etype in (("a", "x", "b"), ("b", "y", "a"), ("b", "z", "b")):
        ends = [
            torch.randint(len(data[t].x), (300,), generator=generator) for t in (etype[0], etype[2])
        ]
        data[etype].edge_index = torch.stack(ends)
    for batch in NeighborLoader(data, [3, 2], ("b", torch.arange(30)), disjoint=True, batch_size=8):
        assert torch.equal(
            batch["b"].batch[: batch["b"].batch_size], torch.arange(batch["b"].batch_size)
        )
        assert len(batch["c"].batch) == 0
        for etype in data.edge_types:
            src, dst = batch[etype].edge_index
            assert torch.equal(batch[etype[0]].batch[src], batch[etype[2]].batch[dst]) and len(src)
            ends = torch.stack([batch[etype[0]].n_id[src], batch[etype[2]].n_id[dst]])
            assert torch.equal(ends, data[etype].edge_index[:, batch[etype].e_id])


def test_same_batches_whatever_the_workers():
    data = random_data()
    alone, *others = (
        [
            [batch[key].tolist() for key in ("n_id", "e_id", "batch")]
            for batch in NeighborLoader(
                data, [3, 2], torch.arange(60), disjoint=True, batch_size=8, seed=1, **how
            )
        ]
        for how in ({}, {"num_workers": 3}, {"prefetch": 0})
    )
    assert len(alone) == 8 and all(other == alone for other in others)


def test_without_disjoint_there_is_no_batch():
    (batch,) = NeighborLoader(random_data(), [3], torch.arange(5), batch_size=5)
    assert "batch" not in batch


def test_pygs_own_loader_with_our_sampler():
    data = random_data()
    for batch in NodeLoader(
        data, NeighborSampler(data, [3, 2], disjoint=True), torch.arange(60), batch_size=16
    ):
        src, dst = batch.edge_index
        assert torch.equal(batch.batch[src], batch.batch[dst]) and torch.equal(
            batch.x, data.x[batch.n_id]
        )


@pytest.mark.many
@pytest.mark.parametrize(
    "times", [{}, {"time_attr": "time", "input_time": torch.arange(60) % 7}], ids=["", "times"]
)
def test_induced_subgraphs_of_trees(times):
    """All edges within each tree; with times none that is later than its seed."""
    data = random_data()
    data.time = torch.arange(data.num_nodes) % 7
    loader = NeighborLoader(
        data,
        [3, 2],
        torch.arange(60),
        subgraph_type="induced",
        disjoint=True,
        batch_size=16,
        **times,
    )
    seen = 0
    for batch in loader:
        trees = {}
        for place, (v, tree) in enumerate(
            zip(batch.n_id.tolist(), batch.batch.tolist(), strict=True)
        ):
            trees.setdefault(tree, {})[v] = place
        limits = batch.seed_time.tolist() if times else [7] * 16
        expected = {
            (places[u], places[v], e)
            for tree, places in trees.items()
            for e, (u, v) in enumerate(data.edge_index.t().tolist())
            if u in places and v in places and int(data.time[u]) <= limits[tree]
        }
        assert set(zip(*batch.edge_index.tolist(), batch.e_id.tolist(), strict=True)) == expected
        assert batch.num_edges == len(expected) and torch.equal(batch.x, data.x[batch.n_id])
        seen += len(expected)
    assert seen > 60


def test_links_of_induced_trees_know_their_number():
    data = random_data()
    loader = LinkNeighborLoader(
        data, [3], data.edge_index[:, :20], subgraph_type="induced", disjoint=True, batch_size=8
    )
    for batch in loader:
        src, dst = batch.edge_index
        assert torch.equal(batch.batch[src], batch.batch[dst]) and batch.num_edges
        ends = batch.edge_label_index
        assert torch.equal(batch.batch[ends[0]], batch.batch[ends[1]])
