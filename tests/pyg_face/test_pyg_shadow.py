"""ShaDowKHopSampler: PyG's arguments and batches."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import ShaDowKHopSampler as PyGShaDowKHopSampler

from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy
from pagraph.pyg import ShaDowKHopSampler

pytestmark = pytest.mark.kernels


def random_data(num_nodes=80, num_edges=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        y=torch.arange(num_nodes),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        edge_attr=torch.arange(num_edges),
        name="toy",
        scale=torch.tensor(3.0),
    )


def content(batch):
    return {
        name: value.tolist()
        for name, value in batch.to_dict().items()
        if isinstance(value, torch.Tensor)
    }


def all_content(loader):
    return [content(batch) for batch in loader]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_batches_against_brute_force(depth):
    """Where all neighbours are taken."""
    data, roots, seen = random_data(), torch.tensor([3, 70, 3, 12, 0]), 0
    edges = data.edge_index.t().tolist()
    for batch in ShaDowKHopSampler(data, depth, 1000, roots, batch_size=2):
        nodes, ptr, expected = [], [0], []
        for number, root in enumerate(roots[seen : seen + 2].tolist()):
            reached = {root}
            for _ in range(depth):
                reached |= {u for u, v in edges if v in reached}
            place = {v: ptr[-1] + i for i, v in enumerate(sorted(reached))}
            assert batch.root_n_id[number] == place[root]
            expected += [
                (place[u], place[v], e)
                for e, (u, v) in enumerate(edges)
                if u in place and v in place
            ]
            nodes += sorted(reached)
            ptr.append(len(nodes))
        expected = sorted(expected)
        assert (
            isinstance(batch, Batch)
            and batch.num_graphs == len(ptr) - 1
            and batch.ptr.tolist() == ptr
        )
        assert batch.batch.tolist() == np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)).tolist()
        assert batch.edge_index.t().tolist() == [list(edge[:2]) for edge in expected]
        assert batch.edge_attr.tolist() == [e for _, _, e in expected]
        assert torch.equal(batch.x, data.x[nodes]) and torch.equal(batch.y, roots[seen : seen + 2])
        assert batch.name == "toy" and batch.scale == 3.0
        assert set(batch.keys()) == {*data.keys(), "batch", "ptr", "root_n_id"}
        seen += 2


def test_few_neighbours_are_drawn():
    data = random_data(num_edges=4000)
    for replace in (False, True):
        (batch,) = ShaDowKHopSampler(data, 1, 3, torch.arange(20), replace, batch_size=20, seed=0)
        assert (batch.ptr.diff() <= 4).all() and batch.num_nodes > 40


@pytest.mark.parametrize(
    "forms",
    [
        [None, torch.ones(80, dtype=torch.bool), range(80), np.arange(80)],
        [
            torch.arange(80) < 30,
            np.arange(80) < 30,
            list(range(30)),
            torch.arange(30, dtype=torch.int32),
        ],
    ],
)
def test_forms_of_node_idx(forms):
    data = random_data()
    one, *others = (
        all_content(ShaDowKHopSampler(data, 1, 2, nodes, batch_size=25, seed=3)) for nodes in forms
    )
    assert all(other == one for other in others) and len(one) in (2, 4)


def test_same_bits_with_any_number_of_threads():
    data = random_data()
    epochs = []
    for how in ({}, {"prefetch": 0}, {"num_workers": 2}, {"num_workers": 3, "prefetch": 5}):
        loader = ShaDowKHopSampler(data, 2, 3, batch_size=9, shuffle=True, seed=1, **how)
        epochs.append(all_content(loader) + all_content(loader))
    assert all(epoch == epochs[0] for epoch in epochs) and epochs[0][0] != epochs[0][9]


def test_without_seed_torchs_generator_decides():
    loader, epochs = ShaDowKHopSampler(random_data(), 2, 3, batch_size=40), []
    for number in (5, 5, 6):
        torch.manual_seed(number)
        epochs.append(all_content(loader))
    assert epochs[0] == epochs[1] != epochs[2]


def test_is_pygs_class_with_pygs_arguments():
    loader = ShaDowKHopSampler(
        random_data(), depth=2, num_neighbors=3, batch_size=30, drop_last=True
    )
    assert isinstance(loader, PyGShaDowKHopSampler) and isinstance(
        loader, torch.utils.data.DataLoader
    )
    assert (
        len(loader) == 2 and loader.depth == 2 and loader.num_neighbors == 3 and not loader.replace
    )
    assert not loader.is_sparse_tensor and len(loader.dataset) == 80 and loader.batch_size == 30
    ours, theirs = (
        inspect.signature(cls.__init__).parameters
        for cls in (ShaDowKHopSampler, PyGShaDowKHopSampler)
    )
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in theirs.values()
    ]


def test_batches_of_given_roots():
    data = random_data()
    loader = ShaDowKHopSampler(data, 1, 1000, batch_size=2)
    first = content(next(iter(loader)))
    assert (
        content(loader.collate_fn([0, 1]))
        == first
        == content(loader.__collate__(torch.tensor([0, 1])))
    )


def test_a_subclass_that_makes_batches_itself_is_iterated_by_torch():
    class Mine(ShaDowKHopSampler):
        def __collate__(self, n_id):
            return super().__collate__(n_id), len(n_id)

    sizes = [size for _, size in Mine(random_data(), 1, 2, batch_size=30)]
    assert sizes == [30, 30, 20]


def test_pickles_and_goes_on_where_it_was():
    loader = ShaDowKHopSampler(random_data(), 1, 2, batch_size=20, shuffle=True, seed=0)
    whole, begun = all_content(loader), iter(loader)
    next(begun)
    place = loader.state_dict()
    rest = [content(batch) for batch in begun]
    again = ShaDowKHopSampler(random_data(), 1, 2, batch_size=20, shuffle=True, seed=0)
    again.load_state_dict(place)
    assert all_content(again) == rest and len(rest) == 3
    copied = pickle.loads(
        pickle.dumps(ShaDowKHopSampler(random_data(), 1, 2, batch_size=20, shuffle=True, seed=0))
    )
    assert all_content(copied) == whole


def test_attributes_count_as_they_are_now():
    data = random_data()
    loader = ShaDowKHopSampler(data, 1, 3, batch_size=40, prefetch=3)
    batches = iter(loader)
    next(batches)
    loader.data.x = loader.data.x + 1
    loader.data.extra = torch.arange(80)
    del loader.data.name
    batch = next(batches)
    assert torch.equal(batch.x, data.x[batch.extra] + 1) and "name" not in batch
    assert "extra" not in data and data.name == "toy"  # the loader's is a copy, as PyG's


@pytest.mark.parametrize("policy", ["auto", "adaptive", "degree", "presample", "random"])
def test_rows_of_files_come_through_the_cache(tmp_path, policy):
    data = random_data(num_edges=2000)
    np.save(tmp_path / "x.npy", data.x.numpy())
    mapped = map_npy(tmp_path / "x.npy")
    if not on_disk(mapped):
        pytest.skip("needs temporary files on a disk")
    data.kept, data.x = data.x, mapped
    loader = ShaDowKHopSampler(
        data, 2, 3, batch_size=16, seed=1, shuffle=True, cache="20%", cache_policy=policy
    )
    rows = 0
    for _ in range(2):
        for batch in loader:
            assert torch.equal(batch.x, batch.kept)
            rows += batch.num_nodes
    reads = loader.stats.total.reads
    assert rows > 160 and 0.1 < reads.hit_rate < 0.9


def test_arrays_are_selected_from():
    """PyG's passes them on whole."""
    data = random_data()
    expected, data.x = data.x, data.x.numpy()
    for batch in ShaDowKHopSampler(data, 1, 3, batch_size=40):
        roots = batch.root_n_id
        assert torch.equal(batch.x[roots], expected[batch.y]) and len(batch.x) == batch.num_nodes


def test_as_many_edges_as_vertices():
    """Then the name tells whose an attribute is."""
    data = random_data(num_nodes=50, num_edges=50)
    (batch,) = ShaDowKHopSampler(data, 1, 10, batch_size=50)
    assert len(batch.edge_attr) == batch.num_edges != batch.num_nodes == len(batch.x)


def test_no_edges_and_no_roots():
    alone = Data(x=torch.arange(3.0), num_nodes=3)
    (batch,) = ShaDowKHopSampler(alone, 2, 3, batch_size=3)
    assert (
        batch.x.tolist() == [0.0, 1.0, 2.0]
        and batch.ptr.tolist() == [0, 1, 2, 3]
        and batch.num_edges == 0
    )
    assert (
        list(
            ShaDowKHopSampler(random_data(), 2, 3, torch.empty(0, dtype=torch.int64), batch_size=3)
        )
        == []
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": HeteroData()}, TypeError, "data must be a Data, got HeteroData"),
        ({"depth": -1}, ValueError, "depth must be at least 0, got -1"),
        ({"depth": [1, 2]}, TypeError, r"depth must be an integer, got \[1, 2\]"),
        ({"num_neighbors": -1}, ValueError, "num_neighbors must be at least 0, got -1"),
        ({"num_neighbors": [5, 5]}, TypeError, r"num_neighbors must be an integer, got \[5, 5\]"),
        ({"replace": "no"}, TypeError, "replace must be True or False"),
        (
            {"node_idx": torch.ones(79, dtype=torch.bool)},
            ValueError,
            "node_idx must be a mask of all 80 vertices",
        ),
        ({"node_idx": torch.tensor([80])}, IndexError, r"node_idx must be in \[0, 80\), got 80"),
        ({"node_idx": torch.tensor([0.5])}, TypeError, "node_idx must be integers or a mask"),
        ({"batch_size": None}, ValueError, "batch_size must be at least 1, got None"),
        ({"seed": -1}, ValueError, "seed must be in"),
        ({"collate_fn": list}, TypeError, "multiple values for keyword argument 'collate_fn'"),
        ({"num_neighbours": 3}, TypeError, "unexpected keyword argument 'num_neighbours'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ShaDowKHopSampler(**({"data": random_data(), "depth": 1, "num_neighbors": 2} | arguments))


def test_attributes_that_pyg_leaves_whole():
    data = random_data(num_nodes=20, num_edges=60)
    data.edge_label_index, data.foo_index = torch.randint(20, (2, 60)), torch.randint(20, (2, 20))
    batch = next(iter(ShaDowKHopSampler(data, 1, 3, batch_size=4)))
    assert batch.edge_label_index is data.edge_label_index and batch.foo_index is data.foo_index
