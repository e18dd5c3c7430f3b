"""What is true of every batch, whatever is drawn: with one type and several, repeated seeds, trees,
subgraph types."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from seen import Seen, assert_same
from tiers import examples
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader

from pagraph.pyg import NeighborLoader, NeighborSampler

ETYPES = [("u", "r", "v"), ("v", "rev_r", "u"), ("v", "s", "v"), ("w", "t", "v")]
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 70])


def graph(n=30, m=200, seed=0):
    rng = np.random.default_rng(seed)
    edge_index = torch.from_numpy(rng.integers(0, n, (2, m)))
    edge_index[1] %= max(n - 5, 1)  # some without in-edges
    return Data(x=torch.arange(n).view(n, 1), edge_index=edge_index, edge_attr=torch.arange(m))


def typed_graph(seed=0, sizes=(12, 25, 6, 3)):
    rng = np.random.default_rng(seed)
    data = HeteroData()
    counts = dict(zip("uvwz", sizes, strict=True))  # nothing leads to or from z
    for t, n in counts.items():
        data[t].x = torch.arange(n).view(n, 1)
    for s, r, d in ETYPES:
        m = int(rng.integers(0, 90))
        data[s, r, d].edge_index = torch.from_numpy(
            np.stack([rng.integers(0, counts[t], m) for t in (s, d)])
        )
        data[s, r, d].edge_attr = torch.arange(m)
    return data


@pytest.mark.many
@settings(max_examples=examples(80))
@given(
    seed=st.integers(0, 99),
    size=st.tuples(st.integers(1, 30), st.integers(0, 200)),
    num_neighbors=st.lists(NUMBERS, max_size=3),
    replace=st.booleans(),
    batch_size=st.integers(1, 9),
    draw=st.data(),
)
def test_homogeneous(seed, size, num_neighbors, replace, batch_size, draw):
    data = graph(*size, seed)
    seeds = torch.tensor(draw.draw(st.lists(st.integers(0, size[0] - 1), min_size=1, max_size=12)))
    loader = NeighborLoader(
        data,
        num_neighbors,
        input_nodes=seeds,
        replace=replace,
        batch_size=batch_size,
        shuffle=True,
        seed=seed,
    )
    read = []
    for batch in loader:
        assert torch.equal(batch.n_id[: batch.batch_size], seeds[batch.input_id])
        assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.edge_attr, batch.e_id)
        Seen.of(batch, data).check({("", ""): num_neighbors}, replace=replace)
        read += batch.input_id.tolist()
    assert sorted(read) == list(range(len(seeds)))


@pytest.mark.many
@settings(max_examples=examples(50))
@given(
    seed=st.integers(0, 99),
    fanouts=st.fixed_dictionaries(dict.fromkeys(ETYPES, st.lists(NUMBERS, min_size=2, max_size=2))),
    by_name=st.booleans(),
    replace=st.booleans(),
    batch_size=st.integers(1, 9),
    input_type=st.sampled_from("uvw"),
    draw=st.data(),
)
def test_heterogeneous(seed, fanouts, by_name, replace, batch_size, input_type, draw):
    data = typed_graph(seed)
    seeds = torch.tensor(
        draw.draw(st.lists(st.integers(0, data[input_type].num_nodes - 1), min_size=1, max_size=9))
    )
    named = (
        {"__".join(etype): numbers for etype, numbers in fanouts.items()} if by_name else fanouts
    )
    loader = NeighborLoader(
        data, named, input_nodes=(input_type, seeds), replace=replace, batch_size=batch_size
    )
    for batch in loader:
        assert batch.node_types == data.node_types and batch.edge_types == data.edge_types
        store = batch[input_type]
        assert torch.equal(store.n_id[: store.batch_size], seeds[store.input_id])
        # Before PyG 2.7 there is no such attribute.
        assert getattr(batch, "input_type", input_type) == input_type
        assert not any(
            "input_id" in batch[t] or "batch_size" in batch[t]
            for t in data.node_types
            if t != input_type
        )
        assert all(torch.equal(batch[t].x, data[t].x[batch[t].n_id]) for t in data.node_types)
        assert all(torch.equal(batch[e].edge_attr, batch[e].e_id) for e in data.edge_types)
        assert batch["z"].x.shape == (0, 1)
        Seen.of(batch, data).check(fanouts, replace=replace)


def test_a_mask_gives_vertex_ids_as_input_ids():
    data, mask = graph(), torch.arange(30) % 3 == 1
    for batch in NeighborLoader(data, [2], input_nodes=mask, batch_size=4):
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        assert mask[batch.input_id].all()


@pytest.mark.every
@pytest.mark.parametrize("form", ["v", ("v", None), ("v", "mask"), ("v", "list")])
def test_input_of_one_type(form):
    data = typed_graph()
    mask = torch.arange(25) % 2 == 0
    nodes = (
        {"mask": mask, "list": [3, 5, 3]}.get(form[1], form[1]) if isinstance(form, tuple) else None
    )
    loader = NeighborLoader(
        data, [2, 2], input_nodes=form if form == "v" else ("v", nodes), batch_size=7
    )
    seen = torch.cat([batch["v"].n_id[: batch["v"].batch_size] for batch in loader]).tolist()
    wanted = (
        range(25)
        if nodes is None
        else mask.nonzero().view(-1).tolist()
        if form[1] == "mask"
        else nodes
    )
    assert seen == list(wanted)


@pytest.mark.many
@settings(max_examples=examples(40))
@given(num_neighbors=st.lists(NUMBERS, max_size=3), replace=st.booleans(), seed=st.integers(0, 50))
def test_disjoint_trees(num_neighbors, replace, seed):
    data, typed = graph(seed=seed), typed_graph(seed)
    seeds = torch.tensor([3, 3, 0, 9])
    options = {"replace": replace, "disjoint": True, "batch_size": 4}
    batch = next(iter(NeighborLoader(data, num_neighbors, input_nodes=seeds, **options)))
    check_trees({"": batch.batch}, {"": batch.n_id}, {("", ""): batch.edge_index}, "")
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    alone = [
        next(iter(NeighborLoader(data, [-1, -1], input_nodes=[v], batch_size=1)))
        for v in seeds.tolist()
    ]
    whole = next(iter(NeighborLoader(data, [-1, -1], input_nodes=seeds, **options)))
    for tree, single in enumerate(alone):
        assert sorted(whole.n_id[whole.batch == tree].tolist()) == sorted(single.n_id.tolist())
        assert sorted(whole.e_id[whole.batch[whole.edge_index[1]] == tree].tolist()) == sorted(
            single.e_id.tolist()
        )

    batch = next(iter(NeighborLoader(typed, num_neighbors, input_nodes=("v", seeds), **options)))
    stores = {t: batch[t] for t in batch.node_types}
    check_trees(
        {t: store.batch for t, store in stores.items()},
        {t: store.n_id for t, store in stores.items()},
        {e: batch[e].edge_index for e in batch.edge_types},
        "v",
    )


def check_trees(trees, nodes, edges, input_type):
    """Seeds are roots, nothing crosses trees, nothing is twice in one."""
    assert trees[input_type][:4].tolist() == [0, 1, 2, 3]
    for t, n_id in nodes.items():
        assert len(set(zip(trees[t].tolist(), n_id.tolist(), strict=True))) == len(n_id)
    for etype, (src, dst) in edges.items():
        assert torch.equal(trees[etype[0]][src], trees[etype[-1]][dst])
        assert (dst.diff() >= 0).all()


def reachable(data, batch):
    """The edges of the data among a batch's vertices, as pairs of ids; from each copy of a repeated
    destination."""
    known, copies = set(batch.n_id.tolist()), batch.n_id.tolist()
    pairs = data.edge_index.t().tolist()
    return sorted(
        (e, place)
        for place, v in enumerate(copies)
        for e, (s, d) in enumerate(pairs)
        if d == v and s in known
    )


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 99), num_neighbors=st.lists(NUMBERS, max_size=2), replace=st.booleans())
def test_induced_is_all_edges_among_the_vertices(seed, num_neighbors, replace):
    data = graph(20, 60, seed)
    loader = NeighborLoader(
        data,
        num_neighbors,
        input_nodes=[1, 1, 7],
        subgraph_type="induced",
        replace=replace,
        batch_size=3,
    )
    for batch in loader:
        assert "num_sampled_nodes" not in batch and "num_sampled_edges" not in batch
        assert sorted(
            zip(batch.e_id.tolist(), batch.edge_index[1].tolist(), strict=True)
        ) == reachable(data, batch)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert (batch.edge_index[1].diff() >= 0).all() and torch.equal(batch.edge_attr, batch.e_id)
        Seen.of(batch, data).check_copies("", batch.edge_index[0])


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 99), num_neighbors=st.lists(NUMBERS, max_size=2), disjoint=st.booleans())
def test_bidirectional_edges_go_both_ways(seed, num_neighbors, disjoint):
    data = graph(20, 60, seed)
    options = {"input_nodes": torch.arange(6), "batch_size": 3, "disjoint": disjoint}
    for batch in NeighborLoader(data, num_neighbors, subgraph_type="bidirectional", **options):
        assert "num_sampled_nodes" not in batch and "num_sampled_edges" not in batch
        edges = list(map(tuple, batch.edge_index.t().tolist()))
        assert len(set(edges)) == len(edges) and {(d, s) for s, d in edges} == set(edges)
        assert edges == sorted(edges, key=lambda edge: edge[::-1])
        ends = batch.n_id[batch.edge_index]
        given_ends = data.edge_index[:, batch.e_id]
        assert ((ends == given_ends).all(0) | (ends == given_ends.flip(0)).all(0)).all()
        assert torch.equal(batch.edge_attr, batch.e_id)


def test_bidirectional_and_directional_draw_the_same():
    data = graph()
    one, other = (
        next(iter(NeighborLoader(data, [3, 2], subgraph_type=kind, batch_size=8, seed=4)))
        for kind in ("directional", "bidirectional")
    )
    both = {edge for s, d in one.edge_index.t().tolist() for edge in ((s, d), (d, s))}
    assert torch.equal(one.n_id, other.n_id) and both == set(
        map(tuple, other.edge_index.t().tolist())
    )


@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
def test_edge_index_is_of_no_class_of_ours(kind):
    for batch in NeighborLoader(graph(), [3, 2], subgraph_type=kind, batch_size=8):
        assert batch.edge_index.is_contiguous()
        assert type(batch.edge_index).__module__.split(".")[0] in ("torch", "torch_geometric")


@pytest.mark.parametrize("disjoint", [False, True])
def test_graphs_without_edges_and_seeds_without_neighbours(disjoint):
    lonely = [
        Data(x=torch.zeros(4, 2)),
        Data(num_nodes=4, edge_index=torch.empty((2, 0), dtype=torch.int64)),
    ]
    lonely.append(Data(num_nodes=4, edge_index=torch.tensor([[2], [3]])))
    for data in lonely:
        batch = next(
            iter(NeighborLoader(data, [2, 2], input_nodes=[1, 0], batch_size=2, disjoint=disjoint))
        )
        assert batch.n_id.tolist() == [1, 0] and batch.e_id.tolist() == [] and batch.num_nodes == 2
        assert batch.num_sampled_nodes == [2, 0, 0] and batch.num_sampled_edges == [0, 0]
        assert ("edge_index" in batch) == ("edge_index" in data)


@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
def test_several_types_without_any_edge_type(kind):
    data = HeteroData()
    data["u"].x, data["v"].x = torch.arange(4.0).view(4, 1), torch.zeros(2, 1)
    loader = NeighborLoader(data, [2, 2], input_nodes="u", batch_size=3, subgraph_type=kind)
    first, second = loader
    assert first["u"].n_id.tolist() == [0, 1, 2] and second["u"].x.tolist() == [[3.0]]
    assert first["v"].x.shape == (0, 1) and first.edge_types == []
    assert first["u"].get("num_sampled_nodes") == ([3, 0, 0] if kind == "directional" else None)


@pytest.mark.parametrize("num_neighbors", [[], [0], [0, 5], [5, 0]])
def test_no_hops_and_hops_without_neighbours(num_neighbors):
    data = graph()
    for batch in NeighborLoader(data, num_neighbors, batch_size=10):
        assert len(batch.num_sampled_nodes) == len(num_neighbors) + 1
        Seen.of(batch, data).check({("", ""): num_neighbors})
        if num_neighbors != [5, 0]:
            assert batch.num_nodes == 10 and batch.num_edges == 0


@pytest.mark.every
@pytest.mark.parametrize("degree", range(2, 21))
def test_neighbours_are_drawn_uniformly(degree):
    """The first and the last among them; for half of the degree and for one."""
    copies = 300
    src = torch.arange(degree).repeat(copies) + copies
    data = Data(
        edge_index=torch.stack([src, torch.arange(copies).repeat_interleave(degree)]),
        num_nodes=copies + degree,
    )
    for k in {1, degree // 2}:
        counts = torch.zeros(degree)
        for batch in NeighborLoader(
            data, [k], input_nodes=torch.arange(copies), batch_size=copies, seed=degree
        ):
            counts += torch.bincount(batch.e_id % degree, minlength=degree)
        expected = copies * k / degree
        statistic = float(((counts - expected) ** 2 / expected).sum()) * (degree - 1) / (degree - k)
        assert counts.sum() == copies * k
        assert stats.chi2.sf(statistic, degree - 1) > 1e-4


@pytest.mark.parametrize("replace", [False, True])
def test_pygs_own_loader_drives_the_sampler(replace):
    data, typed = graph(), typed_graph()
    for batch in NodeLoader(
        data, NeighborSampler(data, [3, 2], replace=replace), batch_size=8, shuffle=True
    ):
        assert torch.equal(batch.x, data.x[batch.n_id])
        Seen.of(batch, data).check({("", ""): [3, 2]}, replace=replace)
    sampler = NeighborSampler(typed, [3, 2], replace=replace)
    for batch in NodeLoader(typed, sampler, input_nodes="v", batch_size=8):
        Seen.of(batch, typed).check(dict.fromkeys(ETYPES, [3, 2]), replace=replace)
    disjoint = NeighborSampler(data, [-1, -1], disjoint=True)
    ours = NeighborLoader(data, [-1, -1], disjoint=True, batch_size=8)
    for batch, expected in zip(NodeLoader(data, disjoint, batch_size=8), ours, strict=True):
        assert_same(batch, expected)


def test_pygs_own_loader_repeats_with_torchs_seed():
    data = graph()
    loader = NodeLoader(data, NeighborSampler(data, [2, 2]), batch_size=10)
    epochs = []
    for _ in range(2):
        torch.manual_seed(3)
        epochs.append([batch.e_id for batch in loader])
    assert all(torch.equal(a, b) for a, b in zip(*epochs, strict=True))
    assert not torch.equal(epochs[0][0], next(iter(loader)).e_id)
