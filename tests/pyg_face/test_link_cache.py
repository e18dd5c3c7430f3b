"""What cache policies are told of a loader of links: counting with it gives the rows that the
batches really read."""

import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData

from pagraph.pyg import LinkNeighborLoader
from pagraph.ranking.policies import resolve_policy
from pagraph.ranking.presample import count_accesses
from pagraph.ranking.vip import expected_accesses
from pagraph.seeds.torch_order import order_of

R, S = ("u", "r", "v"), ("v", "s", "u")
BATCH = 50


def skewed(count, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(size, generator=generator) ** 3 * count).long()


def heterogeneous():
    data = HeteroData()
    data["u"].x, data["v"].x = torch.randn(400, 4), torch.randn(300, 4)
    data[R].edge_index = torch.stack([skewed(400, 2000, 0), skewed(300, 2000, 1)])
    data[S].edge_index = data[R].edge_index.flip(0)
    return data, (R, data[R].edge_index[:, :600])


def homogeneous():
    data = Data(
        x=torch.randn(400, 4), edge_index=torch.stack([skewed(400, 2000, 0), skewed(400, 2000, 1)])
    )
    return data, data.edge_index[:, :600]


@pytest.fixture(params=[homogeneous, heterogeneous])
def world(request):
    return request.param()


def make(world, fanouts, negatives=None, **arguments):
    data, links = world
    return LinkNeighborLoader(
        data,
        fanouts,
        links,
        neg_sampling=negatives,
        batch_size=BATCH,
        shuffle=True,
        seed=1,
        **arguments,
    )


def workload_of(loader):
    return loader._workload(order_of(loader, 1))


def reads_of(loader, epochs):
    """How often each vertex is in a batch, by type."""
    counts = {}
    for _ in range(epochs):
        for batch in loader:
            for ntype, store in [("_N", batch)] if isinstance(batch, Data) else batch.node_items():
                total = loader.link_sampler.graph.num_nodes_of(ntype)
                counts[ntype] = counts.get(ntype, 0) + torch.bincount(store.n_id, minlength=total)
    return counts


def counted(workload, epochs):
    counts = count_accesses(
        *workload.sampled(),
        batch_size=BATCH,
        seed=workload.order.seed,
        epochs=range(epochs),
        shuffle=True,
    )
    return {ntype: counts.reads(ntype) for ntype in counts.node_types}


WEIGHTED = dict(mode="triplet", amount=2, dst_weight=torch.arange(300).double())


@pytest.mark.every
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize(
    "negatives", [None, ("binary", 1.5), "triplet", WEIGHTED], ids=lambda n: str(n)[:20]
)
def test_counted_reads_are_those_of_the_batches(world, negatives, disjoint):
    if negatives is WEIGHTED and isinstance(world[0], Data):
        negatives = WEIGHTED | {"dst_weight": torch.arange(400)}
    loader = make(world, [3, 2], negatives, disjoint=disjoint)
    expected, real = counted(workload_of(loader), 2), reads_of(loader, 2)
    assert {t: reads.tolist() for t, reads in expected.items()} == {
        t: reads.tolist() for t, reads in real.items()
    }


@pytest.mark.every
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("negatives", [None, ("binary", 1.5), ("triplet", 2)], ids=str)
def test_counted_reads_with_times(world, negatives, strategy):
    data, _ = world
    for store in [data] if isinstance(data, Data) else data.edge_stores:
        store.time = torch.arange(2000)
    times = {
        "edge_label_time": torch.arange(600, 1200),
        "time_attr": "time",
        "temporal_strategy": strategy,
    }
    loader = make(world, [3, 2], negatives, **times)
    expected, real = counted(workload_of(loader), 2), reads_of(loader, 2)
    assert {t: reads.tolist() for t, reads in expected.items()} == {
        t: reads.tolist() for t, reads in real.items()
    }


@pytest.mark.every
@pytest.mark.parametrize("negatives", [None, ("binary", 1.5), ("triplet", 2)], ids=str)
def test_the_expectation_is_right_for_the_ends(world, negatives):
    workload = workload_of(make(world, [], negatives))
    expected = expected_accesses(*workload.sampled(), batch_size=BATCH)
    real = counted(workload, 60)
    for ntype, reads in real.items():
        mean = expected.reads(ntype)
        assert stats.pearsonr(mean.numpy(), reads.numpy()).statistic > 0.98
        assert float(reads.sum()) / 60 == pytest.approx(float(mean.sum()), rel=0.01)


@pytest.mark.every
@pytest.mark.parametrize("policy", ["auto", "vip", "presample", "degree"])
def test_policies_rank_for_links(world, policy):
    workload = workload_of(make(world, [3], "binary"))
    rankings = workload.rank(resolve_policy(policy), workload.sampled().graph.node_types)
    real = counted(workload, 20)
    for ntype, ranking in rankings.items():
        reads = real[ntype].double()
        best = reads.sort(descending=True).values[: len(reads) // 5].sum()
        share = float(reads[ranking.ids[: len(reads) // 5]].sum() / best)
        assert share > (0.7 if policy == "degree" else 0.95)


def test_weights_of_negatives_are_ranked_for(world):
    data, links = world
    count = data["v"].num_nodes if isinstance(data, HeteroData) else data.num_nodes
    weight = torch.zeros(count)
    weight[-5:] = 1.0  # nobody's neighbours, hardly
    workload = workload_of(make(world, [], dict(mode="triplet", dst_weight=weight)))
    rankings = workload.rank(resolve_policy("vip"), workload.sampled().graph.node_types)
    first = rankings["v" if isinstance(data, HeteroData) else "_N"].ids[:40].tolist()
    assert set(range(count - 5, count)) <= set(first)


def test_cache_keys_tell_workloads_apart(world):
    weight = torch.rand(
        400 if isinstance(world[0], Data) else 300, generator=torch.Generator().manual_seed(0)
    )
    other = weight.roll(1)
    given = [
        None,
        "binary",
        ("binary", 2),
        *(dict(mode="triplet", dst_weight=w) for w in (None, weight, other)),
    ]
    assert len({workload_of(make(world, [3], each)).sampler.cache_key for each in given}) == len(
        given
    )
    again = dict(mode="triplet", dst_weight=weight.clone())
    same = [workload_of(make(world, [3], each)).sampler.cache_key for each in (again, given[4])]
    assert same[0] == same[1]
