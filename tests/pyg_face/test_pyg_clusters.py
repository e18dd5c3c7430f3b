"""ClusterData and ClusterLoader: PyG's parts, files and batches, bit for bit."""

import inspect
import os
import pickle

import pytest
import torch
import torch_geometric.loader as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.cluster import Partition

from pagraph import FormatError, Graph
from pagraph.partition.methods import auto as clusters_module
from pagraph.partition.methods.auto import vertex_clusters
from pagraph.pyg import ClusterData, ClusterLoader

pytestmark = pytest.mark.usefixtures("no_threads_left")

N, E = 50, 300


def make_data(num_nodes=N, num_edges=E, seed=0):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(max(num_nodes, 1), (2, num_edges), generator=generator)
    return Data(
        x=torch.randn(num_nodes, 3, generator=generator),
        edge_index=edge_index,
        edge_attr=torch.randn(num_edges, 2, generator=generator),
        n_id=torch.arange(num_nodes),
        wide=torch.randn(4, num_nodes, generator=generator),
        name="a graph",
        num_nodes=num_nodes,
    )


def divided(data, num_parts=5, **options):
    return ClusterData(data, num_parts, **{"log": False} | options)


def assert_equal(ours, others):
    assert set(ours.keys()) == set(others.keys())
    for name, value in others.items():
        if isinstance(value, torch.Tensor):
            assert ours[name].dtype == value.dtype, name
            assert torch.equal(ours[name], value), name
        else:
            assert ours[name] == value


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 30),
    st.integers(0, 120),
    st.integers(0, 1000),
    st.sampled_from(["csr", "csc"]),
    st.booleans(),
    st.data(),
)
def test_batches_are_pygs_bit_for_bit(num_nodes, num_edges, seed, sparse_format, stored, data):
    graph = make_data(num_nodes, num_edges, seed)
    if not stored:
        del graph.num_nodes
    parts = divided(graph, data.draw(st.integers(1, num_nodes)), sparse_format=sparse_format)
    if data.draw(st.booleans()):  # clusters of any size, and none
        some = torch.tensor(
            data.draw(
                st.lists(
                    st.integers(0, parts.num_parts - 1), min_size=num_nodes, max_size=num_nodes
                )
            )
        )
        parts.partition = parts._partition(graph.edge_index, some)
        parts.data = parts._permute_data(graph, parts.partition)
    batch_size = data.draw(st.integers(1, parts.num_parts))
    batches, pygs = (
        list(ClusterLoader(parts, batch_size=batch_size)),
        theirs.ClusterLoader(parts, batch_size=batch_size),
    )
    assert len(batches) == len(pygs)
    for places, batch in zip(pygs.batch_sampler, batches, strict=True):
        try:
            other = pygs._collate(places)
        except RuntimeError:  # PyG's, of clusters without any edge
            assert batch.num_edges == 0
        else:
            assert_equal(batch, other)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffled_epoch_is_pygs_and_a_seed_repeats_it(num_workers):
    parts = divided(make_data())
    torch.manual_seed(3)
    others = list(theirs.ClusterLoader(parts, batch_size=2, shuffle=True, drop_last=True))
    torch.manual_seed(3)
    loader = ClusterLoader(
        parts, batch_size=2, shuffle=True, drop_last=True, num_workers=num_workers
    )
    assert len(loader) == 2
    batches = list(loader)
    for ours, other in zip(batches, others, strict=True):
        assert_equal(ours, other)
    first = [
        batch.n_id.tolist() for batch in ClusterLoader(parts, batch_size=2, shuffle=True, seed=1)
    ]
    again = ClusterLoader(parts, batch_size=2, shuffle=True, seed=1, num_workers=num_workers)
    assert first == [batch.n_id.tolist() for batch in pickle.loads(pickle.dumps(again))]


def test_pygs_own_clusters_can_be_loaded():
    class Theirs(theirs.ClusterData):
        def _metis(self, edge_index, num_nodes):
            return torch.arange(num_nodes) % self.num_parts

    parts = Theirs(make_data(), 4, log=False)
    for ours, other in zip(ClusterLoader(parts), theirs.ClusterLoader(parts), strict=True):
        assert_equal(ours, other)


def test_parts_are_the_vertices_once_and_even():
    for recursive in (False, True):
        parts = divided(make_data(400, 2000), 8, recursive=recursive)
        assert torch.equal(parts.partition.node_perm.sort()[0], torch.arange(400))
        sizes = torch.diff(parts.partition.partptr)
        assert len(parts) == len(sizes) == 8
        assert 40 <= int(sizes.min()) <= int(sizes.max()) <= 60
        assert sum(parts[i].num_nodes for i in range(8)) == 400
        assert str(parts) == "ClusterData(8)"


def test_edges_between_clusters_are_kept_when_asked_for():
    parts = divided(make_data(), 3, keep_inter_cluster_edges=True)
    assert sum(parts[i].num_edges for i in range(3)) == E
    assert all(parts[i].edge_index.shape[1] == len(parts[i].edge_attr) for i in range(3))


@pytest.mark.parametrize("with_metis", [True, False])
def test_clusters_find_communities(with_metis, monkeypatch):
    if with_metis:
        pytest.importorskip("pymetis")
    else:
        monkeypatch.setattr(clusters_module, "has_pymetis", lambda: False)
    generator = torch.Generator().manual_seed(1)
    community = torch.randint(6, (600,), generator=generator)
    ends = torch.randint(600, (2, 60_000), generator=generator)
    ends = ends[
        :,
        (community[ends[0]] == community[ends[1]])
        | (torch.rand(60_000, generator=generator) < 0.02),
    ]
    graph = Graph.from_coo(*ends, 600)
    found = vertex_clusters(graph, 6)
    sizes = torch.bincount(found, minlength=6)
    assert 50 <= int(sizes.min()) <= int(sizes.max()) <= 110
    within = (found[ends[0]] == found[ends[1]]).float().mean()
    assert within > 0.7  # of random clusters, 1 in 6
    assert torch.equal(found, vertex_clusters(graph, 6))
    assert vertex_clusters(Graph.from_coo([], [], 3), 3).unique().numel() == 3
    assert vertex_clusters(graph, 1).unique().tolist() == [0]


def test_files_are_pygs(tmp_path, capsys):
    data = make_data()
    parts = divided(data, log=True, save_dir=str(tmp_path))
    assert capsys.readouterr().err == "Computing clusters...\nDone!\n"
    again = divided(data, log=True, save_dir=str(tmp_path))
    assert capsys.readouterr().err == ""
    assert torch.equal(parts.partition.node_perm, again.partition.node_perm)
    assert os.listdir(tmp_path) == ["part_5"]
    assert os.listdir(tmp_path / "part_5") == ["metis.pt"]
    divided(data, recursive=True, filename="mine.pt", save_dir=str(tmp_path))
    assert (tmp_path / "part_5_recursive" / "mine.pt").is_file()


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


def with_changes(**changes):
    def change(partition):
        return Partition(**vars(partition) | changes)

    return change


@pytest.mark.skipif(
    not hasattr(torch.serialization, "safe_globals"),
    reason="torch before 2.5 reads plain values alone",
)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda _: Evil(),
            r"must hold only tensors and plain values, it holds posix\.mkdir: delete it",
        ),
        (lambda _: [1, 2], "must hold a PyG Partition, got list"),
        (with_changes(sparse_format="csc"), "must be in the format 'csr', got 'csc'"),
        (with_changes(partptr=torch.tensor([0, 20, N])), "must hold 5 clusters of this graph"),
        (
            with_changes(partptr=torch.tensor([0, 20, 10, 30, 40, N])),
            "must hold 5 clusters of this graph",
        ),
        (
            with_changes(node_perm=torch.zeros(N, dtype=torch.int64)),
            "must hold 5 clusters of this graph",
        ),
        (with_changes(index=torch.full((E,), N)), "must hold 5 clusters of this graph"),
        (with_changes(edge_perm=torch.arange(E).flip(0)), "must hold 5 clusters of this graph"),
        (with_changes(indptr="no"), "must hold 5 clusters of this graph"),
    ],
)
def test_files_of_something_else(change, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    divided(make_data(), save_dir=str(tmp_path))
    path = tmp_path / "part_5" / "metis.pt"
    with torch.serialization.safe_globals([Partition]):
        saved = torch.load(path, weights_only=True)
    torch.save(change(saved), path)
    with pytest.raises(FormatError, match=message):
        divided(make_data(), save_dir=str(tmp_path))
    assert not (tmp_path / "evil").exists()


def test_files_of_another_graph(tmp_path):
    divided(make_data(), save_dir=str(tmp_path))
    for other in (make_data(seed=1), make_data(N + 1), make_data(N, E + 1)):
        with pytest.raises(
            FormatError,
            match=r"metis\.pt must hold 5 clusters of this graph, it does not: delete it",
        ):
            divided(other, save_dir=str(tmp_path))


def test_signatures_are_pygs():
    for ours, other in ((ClusterData, theirs.ClusterData), (ClusterLoader, theirs.ClusterLoader)):
        assert issubclass(ours, other)
        parameters = [inspect.signature(c.__init__).parameters.values() for c in (ours, other)]
        mine, pygs = ([(p.name, p.kind, p.default) for p in some] for some in parameters)
        assert mine == pygs


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((HeteroData(), 2), TypeError, "data must be a Data, got HeteroData"),
        ((Data(num_nodes=3), 2), ValueError, "data must have an edge_index, got None"),
        ((make_data(), 0), ValueError, "num_parts must be at least 1, got 0"),
        (
            (make_data(), 51),
            ValueError,
            "num_parts must be at most the number of vertices 50, got 51",
        ),
        ((make_data(), "2"), TypeError, "num_parts must be an integer, got '2'"),
        (
            (make_data(), 2, False, None, None, False, False, "coo"),
            ValueError,
            "sparse_format must be one of",
        ),
        (
            (make_data(0, 0), 1),
            ValueError,
            "num_parts must be at most the number of vertices 0, got 1",
        ),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ClusterData(*arguments)


@pytest.mark.parametrize("name", ["collate_fn", "_collate"])
def test_a_users_own_way_to_make_a_batch_is_called(name):
    def marked(self, items):
        batch = getattr(super(Mine, self), name)(items)
        batch.mine = True
        return batch

    Mine = type("Mine", (ClusterLoader,), {name: marked})
    assert [batch.mine for batch in Mine(divided(make_data()), batch_size=5)] == [True]
    loader = ClusterLoader(divided(make_data()), batch_size=5)
    loader.collate_fn = len
    assert list(loader) == [5]


def test_a_loader_of_something_else():
    with pytest.raises(TypeError, match="cluster_data must be a ClusterData, got Data"):
        ClusterLoader(make_data())
