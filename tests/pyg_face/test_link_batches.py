"""What a batch of links is made of: homogeneous and not, without negatives, binary and triplets,
disjoint or not."""

import copy
import math

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import NegativeSampling

from pagraph.pyg import LinkNeighborLoader, NeighborSampler

R, S, W = ("u", "r", "v"), ("v", "s", "u"), ("w", "t", "w")
NEGATIVES = [
    None,
    "binary",
    ("binary", 2),
    dict(mode="binary", amount=1.5),
    "triplet",
    ("triplet", 3),
]


def homogeneous():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(150, (2, 900), generator=generator)
    return Data(x=torch.randn(150, 4, generator=generator), edge_index=edge_index)


def heterogeneous():
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    sizes = {"u": 60, "v": 80, "w": 30}
    for ntype, count in sizes.items():
        data[ntype].x = torch.randn(count, 3, generator=generator)
    for etype in (R, S, W):
        ends = [
            torch.randint(sizes[ntype], (300,), generator=generator)
            for ntype in (etype[0], etype[2])
        ]
        data[etype].edge_index = torch.stack(ends)
        data[etype].edge_attr = torch.randn(300, 2, generator=generator)
    return data


WORLDS = {
    "homogeneous": (homogeneous, None),
    "two types": (heterogeneous, R),
    "one type": (heterogeneous, W),
}


class Seen:
    """A batch's fields, whatever stores they are on."""

    def __init__(self, batch, input_type):
        self.batch, hetero = batch, input_type is not None
        self.on_link = batch[input_type] if hetero else batch
        self.on_src, self.on_dst = (
            (batch[input_type[0]], batch[input_type[2]]) if hetero else (batch, batch)
        )

    def src(self, local):
        return self.on_src.n_id[local]

    def dst(self, local):
        return self.on_dst.n_id[local]


def edges_of(data, input_type):
    return data.edge_index if input_type is None else data[input_type].edge_index


@pytest.fixture(params=WORLDS)
def world(request):
    make, input_type = WORLDS[request.param]
    return make(), input_type


@pytest.mark.every
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
def test_fields_sizes_and_ends(world, negatives, disjoint):
    data, input_type = world
    links = edges_of(data, input_type)[:, ::3]
    loader = LinkNeighborLoader(
        data,
        [3, 2],
        links if input_type is None else (input_type, links),
        neg_sampling=negatives,
        disjoint=disjoint,
        batch_size=16,
        shuffle=True,
    )
    sampling, ids = NegativeSampling.cast(negatives), []
    for batch in loader:
        seen = Seen(batch, input_type)
        input_id = seen.on_link.input_id
        p, ends = len(input_id), links[:, input_id]
        q = 0 if sampling is None else math.ceil(p * sampling.amount)
        ids += input_id.tolist()
        assert "batch_size" not in batch
        if sampling is not None and sampling.is_triplet():
            assert "edge_label_index" not in seen.on_link and "edge_label" not in seen.on_link
            assert torch.equal(seen.src(seen.on_src.src_index), ends[0])
            assert torch.equal(seen.dst(seen.on_dst.dst_pos_index), ends[1])
            negative = seen.on_dst.dst_neg_index
            assert negative.shape == ((p,) if sampling.amount == 1 else (p, sampling.amount))
            seeds_src = seen.on_src.src_index
            seeds_dst = torch.cat([seen.on_dst.dst_pos_index, negative.flatten()])
        else:
            assert "src_index" not in seen.on_src and "dst_neg_index" not in seen.on_dst
            seeds_src, seeds_dst = seen.on_link.edge_label_index
            assert seen.on_link.edge_label_index.shape == (2, p + q)
            assert torch.equal(torch.stack([seen.src(seeds_src), seen.dst(seeds_dst)])[:, :p], ends)
            if sampling is None:
                assert "edge_label" not in seen.on_link
            else:
                assert torch.equal(
                    seen.on_link.edge_label, torch.cat([torch.ones(p), torch.zeros(q)])
                )
        # The seeds come first: sorted and once each, or in order with a tree each.
        parts = [seeds_src, seeds_dst]
        both = (
            [(seen.on_src, torch.cat(parts))]
            if seen.on_src is seen.on_dst
            else list(zip((seen.on_src, seen.on_dst), parts, strict=True))
        )
        for store, local in both:
            seeds = local.unique()
            assert torch.equal(seeds, torch.arange(len(seeds)))
            assert store.num_sampled_nodes[0] == len(seeds)
            if disjoint:
                assert len(seeds) == len(local)
            else:
                assert torch.equal(store.n_id[seeds], store.n_id[local].unique())
    assert sorted(ids) == list(range(links.size(1)))


@pytest.mark.every
@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
def test_disjoint_batches_number_the_links(world, negatives):
    data, input_type = world
    loader = LinkNeighborLoader(
        data,
        [3, 2],
        input_type,
        neg_sampling=negatives,
        disjoint=True,
        batch_size=5,
    )
    sampling = NegativeSampling.cast(negatives)
    batch = next(iter(loader))
    seen, one = Seen(batch, input_type), torch.arange(5)
    if sampling is not None and sampling.is_triplet():
        assert torch.equal(seen.on_src.batch[seen.on_src.src_index], one)
        assert torch.equal(seen.on_dst.batch[seen.on_dst.dst_pos_index], one)
        of_negatives = seen.on_dst.batch[seen.on_dst.dst_neg_index]
        assert torch.equal(
            of_negatives, one if sampling.amount == 1 else one[:, None].expand(5, sampling.amount)
        )
    else:
        src, dst = seen.on_link.edge_label_index
        owners = torch.arange(src.numel()) % 5
        assert torch.equal(seen.on_src.batch[src], owners)
        assert torch.equal(seen.on_dst.batch[dst], owners)
    # Edges stay within a link's number.
    stores = [(batch.edge_index, batch.batch, batch.batch)] if input_type is None else [
        (batch[t].edge_index, batch[t[0]].batch, batch[t[2]].batch) for t in batch.edge_types
    ]  # fmt: skip
    for (row, col), of_row, of_col in stores:
        assert torch.equal(of_row[row], of_col[col])


@pytest.mark.every
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("negatives", [None, "binary", ("triplet", 2)], ids=str)
def test_pygs_own_loader_with_our_sampler_gives_the_same_kind_of_batches(
    world, negatives, disjoint
):
    data, input_type = world
    settings = {"neg_sampling": negatives, "batch_size": 8, "shuffle": False}
    links = edges_of(data, input_type) if input_type is None else (input_type, None)
    ours = LinkNeighborLoader(data, [-1, -1], links, disjoint=disjoint, **settings)
    theirs = LinkLoader(data, NeighborSampler(data, [-1, -1], disjoint=disjoint), links, **settings)
    torch.manual_seed(0)
    mine = next(iter(ours))
    torch.manual_seed(0)
    other = next(iter(theirs))
    assert type(mine) is type(other)
    stores = zip(mine.stores, other.stores, strict=True)
    for store, expected in stores:
        assert store._key == expected._key
        assert sorted(store.keys()) == sorted(expected.keys())
        for name, value in expected.items():
            if negatives is None:
                assert (
                    torch.equal(store[name], value)
                    if isinstance(value, torch.Tensor)
                    else store[name] == value
                )
            elif isinstance(value, torch.Tensor):
                assert store[name].dtype == value.dtype and store[name].dim() == value.dim()


def test_all_neighbours_of_all_ends(world):
    data, input_type = world
    batch = next(iter(LinkNeighborLoader(data, [-1], input_type, batch_size=6)))
    for etype in [None] if input_type is None else data.edge_types:
        whole, part = edges_of(data, etype), edges_of(batch, etype)
        e_id = (batch if etype is None else batch[etype]).e_id
        n_id = batch.n_id if etype is None else batch[etype[2]].n_id
        count = (batch if etype is None else batch[etype[2]]).num_sampled_nodes[0]
        assert torch.equal(
            e_id.sort().values, torch.isin(whole[1], n_id[:count]).nonzero().flatten()
        )
        assert torch.equal(n_id[part[1]], whole[1, e_id])


@pytest.mark.parametrize(
    ("given", "negatives", "expected"),
    [
        (torch.tensor([0, 2, 1, 0]), None, [0, 2, 1, 0]),
        (torch.tensor([0, 2, 1, 0]), "binary", [1, 3, 2, 1, 0, 0, 0, 0]),
        (torch.tensor([1, 2, 1, 3]), "binary", [1, 2, 1, 3, 0, 0, 0, 0]),
        (torch.tensor([0.0, 1.0, 1.0, 0.0]), "binary", [1.0, 2.0, 2.0, 1.0, 0, 0, 0, 0]),
        (torch.tensor([[0], [1], [1], [0]]), ("binary", 0.5), [[1], [2], [2], [1], [0], [0]]),
    ],
)
def test_labels(given, negatives, expected):
    data, before = homogeneous(), given.clone()
    loader = LinkNeighborLoader(
        data, [2], data.edge_index[:, :4], edge_label=given, neg_sampling=negatives, batch_size=4
    )
    (batch,) = loader
    assert batch.edge_label.tolist() == expected
    assert batch.edge_label.dtype == given.dtype
    assert torch.equal(given, before)


def test_ratio_and_no_ratio():
    data = homogeneous()
    (batch,) = LinkNeighborLoader(
        data, [2], data.edge_index[:, :10], neg_sampling_ratio=0.25, batch_size=10
    )
    assert batch.edge_label.tolist() == [1.0] * 10 + [0.0] * 3
    (batch,) = LinkNeighborLoader(
        data, [2], data.edge_index[:, :10], neg_sampling_ratio=0.0, batch_size=10
    )
    assert "edge_label" not in batch and batch.edge_label_index.shape == (2, 10)


def test_forms_of_edge_label_index():
    data, hetero = homogeneous(), heterogeneous()
    first = next(iter(LinkNeighborLoader(data, [2], batch_size=7)))
    assert torch.equal(first.n_id[first.edge_label_index], data.edge_index[:, :7])
    narrow = next(iter(LinkNeighborLoader(data, [2], data.edge_index.int().numpy(), batch_size=7)))
    assert torch.equal(narrow.n_id[narrow.edge_label_index], data.edge_index[:, :7])
    links = hetero[R].edge_index[:, 5:25]
    for form, expected in [(R, hetero[R].edge_index), ((R, None), hetero[R].edge_index), ((R, links), links),
                           ((("u", "v"), links), links)]:  # fmt: skip
        batch = next(iter(LinkNeighborLoader(hetero, [2], form, batch_size=7)))
        seen = Seen(batch, R)
        src, dst = batch[R].edge_label_index
        assert torch.equal(torch.stack([seen.src(src), seen.dst(dst)]), expected[:, :7])


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
@pytest.mark.parametrize("missing", ["no such type", "no edges"])
def test_links_of_a_type_that_the_graph_lacks(negatives, missing):
    data, likes = heterogeneous(), ("v", "likes", "u")
    if missing == "no edges":
        data[likes].edge_index = torch.empty(2, 0, dtype=torch.int64)
    before = copy.copy(data)
    links = torch.stack([torch.arange(20), torch.arange(20).flip(0)])
    batch = next(
        iter(LinkNeighborLoader(data, [2, 2], (likes, links), neg_sampling=negatives, batch_size=5))
    )
    assert batch[likes].input_id.tolist() == [0, 1, 2, 3, 4]
    assert data.edge_types == before.edge_types
    seen = Seen(batch, likes)
    if negatives == "triplet":
        assert torch.equal(seen.src(batch["v"].src_index), links[0, :5])
    else:
        src, dst = batch[likes].edge_label_index
        assert torch.equal(torch.stack([seen.src(src), seen.dst(dst)])[:, :5], links[:, :5])
    assert batch[S].edge_index.size(1) > 0


def test_the_data_is_not_changed(world):
    data, input_type = world
    before = copy.deepcopy(data)
    for _ in LinkNeighborLoader(data, [2], input_type, neg_sampling="triplet", batch_size=100):
        pass
    for store, old in zip(data.stores, before.stores, strict=True):
        assert list(store.keys()) == list(old.keys())
        assert all(torch.equal(store[name], old[name]) for name in old.keys())  # noqa: SIM118


def test_triplets_remove_the_datas_own_edge_label_index():
    data = homogeneous()
    data.edge_label_index, data.edge_label_time = data.edge_index[:, :20], torch.arange(20)
    batch = next(
        iter(
            LinkNeighborLoader(
                data, [2], data.edge_label_index, neg_sampling="triplet", batch_size=5
            )
        )
    )
    assert "edge_label_index" not in batch and "edge_label_time" not in batch
    assert "edge_label_index" in data


def test_one_batch_by_hand():
    data = homogeneous()
    loader = LinkNeighborLoader(data, [2], neg_sampling="binary", batch_size=5)
    for index in ([3], torch.tensor([3, 4])):
        batch = loader(index)
        assert batch.input_id.tolist() == list(index)
        assert torch.equal(
            batch.n_id[batch.edge_label_index][:, : len(index)], data.edge_index[:, list(index)]
        )


def test_a_sampler_of_the_users_is_used_as_it_is():
    data = homogeneous()
    sampler = NeighborSampler(data, [0])
    loader = LinkNeighborLoader(data, [5, 5], neighbor_sampler=sampler, batch_size=5)
    assert loader.link_sampler is sampler
    assert next(iter(loader)).num_edges == 0
