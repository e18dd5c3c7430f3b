"""Links with times: of vertices and of edges, both strategies, negatives that are not younger than
their link."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader

from pagraph.pyg import LinkNeighborLoader, NeighborSampler

WRITES = ("author", "writes", "paper")
REVERSE = ("paper", "rev_writes", "author")
NEGATIVES = [None, "binary", dict(mode="binary", amount=1.5), "triplet", ("triplet", 3)]


def random_data(level):
    generator = torch.Generator().manual_seed(1)
    data = Data(num_nodes=60, edge_index=torch.randint(60, (2, 700), generator=generator))
    data.time = torch.randint(0, 100, (60 if level == "node" else 700,), generator=generator)
    data.time[0] = 0
    links = torch.randint(60, (2, 40), generator=generator)
    return data, links, torch.randint(0, 100, (40,), generator=generator)


def times_of_edges(data, batch):
    return (
        data.time[batch.n_id[batch.edge_index[0]]]
        if len(data.time) == 60
        else data.time[batch.e_id]
    )


@pytest.mark.every
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("level", ["node", "edge"])
@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
def test_nothing_is_younger_than_its_link(level, negatives, strategy):
    data, links, times = random_data(level)
    loader = LinkNeighborLoader(
        data,
        [4, 3],
        links,
        edge_label_time=times,
        time_attr="time",
        temporal_strategy=strategy,
        neg_sampling=negatives,
        batch_size=8,
        shuffle=True,
    )
    for batch in loader:
        of_links = times[batch.input_id]
        p = len(of_links)
        assert (times_of_edges(data, batch) <= of_links[batch.batch[batch.edge_index[0]]]).all()
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        if "src_index" in batch:
            assert torch.equal(batch.seed_time, of_links)
            drawn = batch.dst_neg_index.view(p, -1)
            limits = of_links[:, None].expand_as(drawn)
            assert torch.equal(batch.batch[drawn], torch.arange(p)[:, None].expand_as(drawn))
        else:
            count = batch.edge_label_index.size(1)
            assert torch.equal(batch.edge_label_time, of_links[torch.arange(count) % p])
            drawn = batch.edge_label_index[:, p:]
            limits = batch.edge_label_time[p:].expand_as(drawn)
            assert torch.equal(
                batch.batch[batch.edge_label_index], (torch.arange(count) % p).expand(2, count)
            )
        if level == "node":
            assert (data.time[batch.n_id[drawn]] <= limits).all()


@pytest.mark.parametrize("level", ["node", "edge"])
def test_the_last_ones_are_the_newest_of_those_in_time(level):
    data, links, times = random_data(level)
    (batch,) = LinkNeighborLoader(
        data,
        [3],
        links,
        edge_label_time=times,
        time_attr="time",
        temporal_strategy="last",
        batch_size=40,
    )
    row, col = data.edge_index
    of_edges = data.time[row] if level == "node" else data.time
    drawn = times_of_edges(data, batch)
    for place in range(80):  # the seeds: sources, then destinations
        until = times[place % 40]
        possible = of_edges[(col == batch.n_id[place]) & (of_edges <= until)]
        expected = possible.sort().values[-3:]
        assert drawn[batch.edge_index[1] == place].sort().values.tolist() == expected.tolist()


def movies():
    generator = torch.Generator().manual_seed(2)
    data = HeteroData()
    data["user"].x = torch.randn(40, 4, generator=generator)
    data["movie"].x = torch.randn(50, 4, generator=generator)
    ends = torch.stack(
        [
            torch.randint(40, (400,), generator=generator),
            torch.randint(50, (400,), generator=generator),
        ]
    )
    time = torch.randint(0, 1000, (400,), generator=generator)
    data["user", "rates", "movie"].edge_index = ends
    data["user", "rates", "movie"].time = time
    data["movie", "rev_rates", "user"].edge_index = ends.flip(0)
    data["movie", "rev_rates", "user"].time = time
    return data


@pytest.mark.parametrize("negatives", ["binary", ("triplet", 2)], ids=str)
def test_a_recommender(negatives):
    data, rates = movies(), ("user", "rates", "movie")
    links, times = data[rates].edge_index[:, 300:], data[rates].time[300:]
    loader = LinkNeighborLoader(
        data,
        [5, 5],
        (rates, links),
        edge_label_time=times - 1,
        time_attr="time",
        temporal_strategy="last",
        neg_sampling=negatives,
        batch_size=32,
        shuffle=True,
    )
    for batch in loader:
        until = times[batch[rates].input_id] - 1
        for etype in data.edge_types:
            of_edges = data[etype].time[batch[etype].e_id]
            assert (of_edges <= until[batch[etype[2]].batch[batch[etype].edge_index[1]]]).all()
        if negatives == "binary":
            assert batch[rates].edge_label_time.shape == (2 * len(until),)
        else:
            assert torch.equal(batch["user"].seed_time, until)
            assert torch.equal(batch["movie"].seed_time, until)
            assert batch["movie"].dst_neg_index.shape == (len(until), 2)


def test_one_type_with_times_and_one_without():
    data = movies()
    for etype in data.edge_types:
        del data[etype].time
    data["movie"].time = torch.arange(50)
    rates = ("user", "rates", "movie")
    links = data[rates].edge_index[:, :30]
    (batch,) = LinkNeighborLoader(
        data, [4, 4], (rates, links), edge_label_time=torch.arange(10, 40), time_attr="time",
        neg_sampling=("binary", 40), batch_size=30,
    )  # fmt: skip
    src, dst = batch[rates].edge_label_index[:, 30:]
    assert (batch["movie"].n_id[dst] <= batch[rates].edge_label_time[30:]).all()
    assert batch["user"].n_id[src].unique().tolist() == list(range(40))
    of_edges = batch["movie"].n_id[batch["movie", "rev_rates", "user"].edge_index[0]]
    owners = batch["user"].batch[batch["movie", "rev_rates", "user"].edge_index[1]]
    assert (of_edges <= torch.arange(10, 40)[owners]).all()


def test_the_earliest_vertex_where_no_negative_is_early_enough():
    data = Data(
        num_nodes=4,
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        time=torch.tensor([9, 7, 8, 7]),
    )
    (batch,) = LinkNeighborLoader(
        data, [1], torch.tensor([[0], [2]]), edge_label_time=torch.tensor([3]), time_attr="time",
        neg_sampling=("triplet", 5),
    )  # fmt: skip
    assert batch.n_id[batch.dst_neg_index].tolist() == [[1] * 5]


def test_pygs_own_loader_takes_our_sampler_with_times():
    data, links, times = random_data("node")
    sampler = NeighborSampler(data, [4, 3], time_attr="time")
    loader = LinkLoader(
        data,
        sampler,
        links,
        edge_label_time=times,
        neg_sampling=dict(mode="binary", amount=1.5),
        batch_size=8,
    )
    for batch in loader:
        of_links = times[batch.input_id]
        assert (times_of_edges(data, batch) <= of_links[batch.batch[batch.edge_index[0]]]).all()
        assert torch.equal(batch.edge_label_time, of_links[torch.arange(20) % 8])


def link_itself(batch, link):
    """Whether an author's paper is in a batch as an edge, and in the reverse type."""
    found = []
    for etype, wanted in ((WRITES, link), (REVERSE, link[::-1])):
        ends = [
            batch[ntype].n_id[row]
            for ntype, row in zip(etype[::2], batch[etype].edge_index, strict=True)
        ]
        found.append(wanted in torch.stack(ends, 1).tolist())
    return found


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@pytest.mark.parametrize(
    ("timed", "later"),
    [
        (["author", "paper"], [True, True]),  # an edge is as late as its source
        ([WRITES], [False, True]),
        ([WRITES, REVERSE], [False, False]),
        (["author", "paper", WRITES, REVERSE], [False, False]),
    ],
    ids=["vertices", "one way", "both ways", "all"],
)
def test_a_link_is_in_its_batch_unless_both_edges_are_later(
    timed, later, dtype, strategy, subgraph_type
):
    """What docs/howto/time.md says of the link to be predicted."""
    links = torch.tensor([[0, 0, 1], [0, 1, 1]])
    data = HeteroData(author={"num_nodes": 2}, paper={"num_nodes": 2})
    data[WRITES].edge_index, data[REVERSE].edge_index = links, links.flip(0)
    times = torch.tensor([5, 6, 7], dtype=dtype)
    for owner in timed:
        data[owner].time = torch.tensor([1, 2], dtype=dtype) if isinstance(owner, str) else times
    before = times - 1 if dtype == torch.int64 else torch.nextafter(times, times - 1)
    for limits, expected in ((times, [True, True]), (before, later)):
        loader = LinkNeighborLoader(
            data,
            [-1],
            (WRITES, links),
            edge_label_time=limits,
            time_attr="time",
            temporal_strategy=strategy,
            subgraph_type=subgraph_type,
        )
        for batch, link in zip(loader, links.t().tolist(), strict=True):
            assert link_itself(batch, link) == expected
