"""The cache of PyG's loaders: attributes of files, by policy and budget; hits counted by hand;
shared; never stale."""

from collections import Counter

import numpy as np
import pytest
import torch
from timelines import checked, spans, stages_by_batch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")

N = 400
POLICIES = ["auto", "adaptive", "degree", "presample", "vip", "random"]


@pytest.fixture(autouse=True)
def _same_numbers_each_time():
    torch.manual_seed(0)


def mapped(folder, name, values):
    np.save(folder / f"{name}.npy", values)
    tensor = map_npy(folder / f"{name}.npy")
    if not on_disk(tensor):
        pytest.skip("needs temporary files on a disk")
    return tensor


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    edge_index = torch.from_numpy(np.stack([rng.zipf(1.5, 4000) % N, rng.integers(0, N, 4000)]))
    x = mapped(tmp_path, "x", rng.random((N, 8), np.float32))
    return Data(
        x=x,
        y=torch.arange(N) % 7,
        edge_index=edge_index,
        time=torch.from_numpy(rng.integers(0, 9, N)),
    )


def make(data, **options):
    defaults = dict(
        input_nodes=torch.arange(0, N, 4), batch_size=10, shuffle=True, seed=1, cache="10%"
    )
    return NeighborLoader(data, [5, 3], **(defaults | options))


def recount(loader, batches, key, ids_of, sizes_of):
    """Rows asked for and rows in the cache, by hop, by hand."""
    (part,) = [part for plan in loader.cache_plan for part in plan if part.key == key]
    ranked = loader._engine.fields._fields[key]._cache
    held = set(torch.nonzero((ranked.slots >= 0) & (ranked.slots < len(ranked))).flatten().tolist())
    assert len(held) == part.rows
    asked, hits = Counter(), Counter()
    for batch in batches:
        begin = 0
        for hop, size in enumerate(sizes_of(batch)):
            ids = ids_of(batch)[begin : begin + size].tolist()
            asked[hop] += len(ids)
            hits[hop] += sum(v in held for v in ids)
            begin += size
    return tuple(asked[h] for h in sorted(asked)), tuple(hits[h] for h in sorted(asked))


@pytest.mark.every
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", [{}, {"subgraph_type": "induced"}, {"replace": True}], ids=str)
def test_rows_are_right_and_hits_are_those_counted_by_hand(data, policy, options):
    loader = make(data, cache_policy=policy, **options)
    batches = list(loader)
    for batch in batches:
        assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.y, data.y[batch.n_id])
    fields = loader.stats.epochs[0].reads.fields
    if "subgraph_type" in options:  # does not say which hop found what
        asked, hits = recount(
            loader, batches, "x", lambda batch: batch.n_id, lambda batch: [batch.num_nodes]
        )
        assert (sum(fields["x"].asked_by_hop), sum(fields["x"].hits_by_hop)) == (*asked, *hits)
        assert fields["x"].asked_by_hop[0] == 100 and len(fields["x"].asked_by_hop) == 3
    else:
        asked, hits = recount(
            loader, batches, "x", lambda batch: batch.n_id, lambda batch: batch.num_sampled_nodes
        )
        assert fields["x"].asked_by_hop == asked and fields["x"].hits_by_hop == hits
    assert (
        fields["x"].rows == {"disk": sum(asked) - sum(hits), "cache": sum(hits)} and sum(hits) > 0
    )
    assert fields["x"].cacheable and not fields["y"].cacheable and fields["y"].hits == 0
    assert fields["y"].asked == sum(asked)
    (plan,) = loader.cache_plan
    assert plan.rows == plan.fields[0].rows and 0 < plan.nbytes <= 0.1 * N * 8 * 4 + 4 * N


@pytest.mark.every
@pytest.mark.parametrize("policy", ["auto", "vip", "presample:3"])
@pytest.mark.parametrize("seed", [1, None])
def test_expected_hit_rates_come_true(data, policy, seed):
    loader = make(data, cache_policy=policy, seed=seed)
    for _ in range(12):
        for _ in loader:
            pass
    (part,), reads = loader.cache_plan[0].fields, loader.stats.total.reads.fields["x"]
    assert part.expected_hit_rate == pytest.approx(reads.hit_rate, abs=0.04)
    assert part.expected_reads == pytest.approx(reads.asked / 12, rel=0.05)
    lines = str(loader.cache_plan).splitlines()
    assert lines[1].split()[:2] == ["field", "rows"] and lines[2].split()[0] == "x"


@pytest.mark.parametrize(
    ("cache", "rows"),
    [(0, 0), ("0%", 0), (1.0, N), ("1MiB", N), (0.25, N // 4), (2000, None), ("auto", N)],
)
def test_budgets(data, cache, rows):
    loader = make(data, cache=cache)
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
    held = sum(plan.rows for plan in loader.cache_plan)
    assert held == rows if rows is not None else 0 < held < N
    assert str(loader.cache_plan)


def test_budgets_that_are_none(data):
    with pytest.raises((TypeError, ValueError), match="cache"):
        make(data, cache="lots")
    with pytest.raises(ValueError, match="cache_policy must be one of"):
        make(data, cache_policy="best")


# -- several types, trees, times, links
# ---------------------------------------------------------------------


@pytest.fixture
def hetero(tmp_path):
    rng = np.random.default_rng(1)
    data = HeteroData()
    for ntype, n, width in (("a", 300, 4), ("b", 200, 16)):
        data[ntype].x = mapped(tmp_path, f"{ntype}-x", rng.random((n, width), np.float32))
        data[ntype].time = torch.from_numpy(rng.integers(0, 9, n))
    there = np.stack([rng.zipf(1.6, 1500) % 300, rng.integers(0, 200, 1500)])
    data["a", "to", "b"].edge_index = torch.from_numpy(there)
    data["b", "back", "a"].edge_index = torch.from_numpy(there[::-1].copy())
    data["b", "in", "b"].edge_index = torch.from_numpy(rng.integers(0, 200, (2, 600)))
    return data


OPTIONS = [
    {},
    {"disjoint": True},
    {"time_attr": "time"},
    {"time_attr": "time", "input_time": torch.arange(100) % 7},
]


@pytest.mark.every
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "disjoint", "time", "input_time"])
@pytest.mark.parametrize("policy", ["auto", "adaptive", "degree", "presample", "oracle"])
def test_several_types_have_one_budget_and_hits_of_their_own(hetero, policy, options):
    seeds = ("b", torch.arange(0, 200, 2))
    loader = make(hetero, input_nodes=seeds, cache="30%", cache_policy=policy, **options)
    batches = list(loader)
    fields = loader.stats.epochs[0].reads.fields
    for ntype in "ab":
        for batch in batches:
            assert torch.equal(batch[ntype].x, hetero[ntype].x[batch[ntype].n_id])
        counted = recount(
            loader,
            batches,
            f"{ntype}/x",
            lambda b, t=ntype: b[t].n_id,
            lambda b, t=ntype: b[t].num_sampled_nodes,
        )
        key = f"{ntype}/x"
        assert (fields[key].asked_by_hop, fields[key].hits_by_hop) == counted and sum(
            counted[1]
        ) > 0


@pytest.mark.every
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "disjoint", "time", "input_time"])
@pytest.mark.parametrize("homogeneous", [True, False])
def test_auto_expects_what_epochs_read(data, hetero, options, homogeneous):
    """Also of trees, where a batch reads a vertex many times, and of seeds with times."""
    seeds = torch.arange(0, 400, 4) if homogeneous else ("b", torch.arange(0, 200, 2))
    loader = make(data if homogeneous else hetero, input_nodes=seeds, cache="10%", **options)
    for _ in range(8):
        for _ in loader:
            pass
    reads = loader.stats.total.reads.fields
    for plan in loader.cache_plan:
        for part in plan:
            assert part.expected_reads == pytest.approx(reads[part.key].asked / 8, rel=0.06)
            assert part.expected_hit_rate == pytest.approx(reads[part.key].hit_rate, abs=0.05)


def test_vip_refuses_trees(data):
    loader = make(data, cache_policy="vip", disjoint=True)
    with pytest.raises(
        ValueError,
        match="'vip' needs .* batches that are not disjoint, got disjoint SubgraphSampler",
    ):
        next(iter(loader))


LINKS = [
    {},
    {"neg_sampling": "binary"},
    {"neg_sampling": {"mode": "triplet", "amount": 2}, "disjoint": True},
    {"time_attr": "time", "edge_label_time": torch.arange(120) % 9},
    {"time_attr": "time", "edge_label_time": torch.arange(120) % 9, "neg_sampling": "binary"},
]


@pytest.mark.every
@pytest.mark.parametrize(
    "options", LINKS, ids=["plain", "negatives", "trees", "times", "times and negatives"]
)
@pytest.mark.parametrize("policy", ["auto", "presample:3", "adaptive"])
def test_links(data, options, policy):
    index = data.edge_index[:, :120]
    loader = LinkNeighborLoader(
        data,
        [4, 2],
        index,
        batch_size=20,
        shuffle=True,
        seed=3,
        cache="10%",
        cache_policy=policy,
        **options,
    )
    for epoch in range(6):
        batches = list(loader)
        for batch in batches if epoch == 5 else []:
            assert torch.equal(batch.x, data.x[batch.n_id])
    reads = loader.stats.epochs[-1].reads.fields["x"]
    counted = recount(
        loader, batches, "x", lambda batch: batch.n_id, lambda batch: batch.num_sampled_nodes
    )
    assert (reads.asked_by_hop, reads.hits_by_hop) == counted
    (part,), total = loader.cache_plan[0].fields, loader.stats.total.reads.fields["x"]
    assert part.expected_reads == pytest.approx(total.asked / 6, rel=0.06)
    assert part.expected_hit_rate == pytest.approx(total.hit_rate, abs=0.05)


# -- samplers of the user's own
# -----------------------------------------------------------------------------


class Foreign(BaseSampler):
    """Somebody else's sampler: nobody can see into it."""

    def __init__(self, data):
        self._ours = NeighborSampler(data, [5, 3])

    def sample_from_nodes(self, inputs, **kwargs):
        return self._ours.sample_from_nodes(inputs)

    def sample_from_edges(self, inputs, neg_sampling=None):
        return self._ours.sample_from_edges(inputs, neg_sampling)


@pytest.mark.parametrize("policy", ["auto", "adaptive", "degree", "random"])
def test_a_users_own_sampler_is_cached_by_the_structure_then_by_what_it_read(data, policy):
    loader = make(data, neighbor_sampler=Foreign(data), cache_policy=policy)
    for _ in range(2):
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])
    first, second = (epoch.reads.fields["x"].hit_rate for epoch in loader.stats.epochs)
    assert first > 0 and second > 0
    # Counted, in the first epoch; what follows by degree alone is not known.
    if policy in ("auto", "adaptive"):
        assert loader.cache_plan[0].fields[0].expected_hit_rate == pytest.approx(second, abs=0.1)


@pytest.mark.parametrize("policy", ["presample", "vip"])
def test_what_a_users_own_sampler_reads_cannot_be_known_before(data, policy):
    with pytest.raises(ValueError, match=f"'{policy}' needs .* got custom ones"):
        list(make(data, neighbor_sampler=Foreign(data), cache_policy=policy))


def test_of_structures_that_are_not_known_nothing_is_cached(data):
    sampler = Foreign(data)
    broken = Data(x=data.x, y=data.y, edge_index=data.edge_index + N)
    loader = make(broken, neighbor_sampler=sampler)
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
    assert loader.stats.total.hit_rate == 0.0 and "; nothing is cached, as " in str(
        loader.cache_plan
    )


def test_seeds_drawn_by_a_users_own_sampler_are_counted_as_they_come(data):
    """Ten vertices are most of the seeds: what all of them would read says nothing."""
    weights = torch.where(torch.arange(N) < 10, 100.0, 0.01)
    drawn = torch.utils.data.WeightedRandomSampler(
        weights, 200, generator=torch.Generator().manual_seed(0)
    )
    loader = make(data, input_nodes=None, sampler=drawn, shuffle=None)
    for _ in range(4):
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])
    epochs = [epoch.reads.fields["x"] for epoch in loader.stats.epochs]
    assert epochs[1].hit_rate > epochs[0].hit_rate
    (part,) = loader.cache_plan[0].fields
    assert part.expected_reads == pytest.approx(sum(e.asked for e in epochs[1:]) / 3, rel=0.15)
    assert part.expected_hit_rate == pytest.approx(epochs[-1].hit_rate, abs=0.1)


# -- sharing
# ------------------------------------------------------------------------------------------------


def rows_of(loader):
    return loader._engine.fields._fields["x"]._cache.rows.data_ptr()


@pytest.mark.parametrize("seed", [1, None])
def test_loaders_of_one_data_share_a_cache_if_it_was_made_for_their_work(data, seed):
    train, same, other, valid = (
        make(data, input_nodes=nodes, shuffle=shuffle, seed=seed)
        for nodes, shuffle in [
            (torch.arange(100), True),
            (torch.arange(100), True),
            (torch.arange(100, 200), True),
            (torch.arange(200, 300), False),
        ]
    )
    for loader in (train, same, other, valid):
        assert sum(1 for _ in loader) == 10
    assert rows_of(train) == rows_of(same) != rows_of(other)
    assert rows_of(valid) in (rows_of(train), rows_of(other))  # one that evaluates takes any
    assert train.cache_plan[0].fields[0].expected_hit_rate is not None
    # Of other seeds nothing was expected.
    assert valid.cache_plan[0].fields[0].expected_hit_rate is None
    assert valid.stats.total.hit_rate > 0


def test_other_edges_are_another_work(data):
    turned = Data(x=data.x, edge_index=data.edge_index.flip(0))
    train, other = make(data), make(turned)
    for loader in (train, other):
        list(loader)
    assert rows_of(train) != rows_of(other)


# -- precision, writes, traces
# ------------------------------------------------------------------------------


def test_cached_or_not_rows_are_rounded_alike(data):
    loader = make(data, cache_dtype="float16")
    for batch in loader:
        assert batch.x.dtype == torch.float32
        assert torch.equal(batch.x, data.x[batch.n_id].half().float())
    assert loader.stats.total.hit_rate > 0


def test_what_is_written_or_replaced_is_never_served_from_the_cache(data, tmp_path):
    values = np.load(tmp_path / "x.npy")
    data.x = map_npy(tmp_path / "x.npy")
    loader = make(data, cache=1.0, prefetch=2, num_workers=2)
    list(loader)
    assert loader.stats.epochs[-1].reads.fields["x"].hit_rate == 1.0
    for place, batch in enumerate(loader):
        assert torch.equal(batch.x, data.x[batch.n_id])
        if place == 3:
            loader.data.x = torch.from_numpy(values) + 1
            data.x = loader.data.x
        if place == 6:
            data.x.mul_(2)
    list(loader)
    assert sum(1 for _ in loader) == 10


def test_writes_that_nobody_sees_need_a_word(data, tmp_path):
    values = np.load(tmp_path / "x.npy", mmap_mode="r+")
    loader = make(data, cache=1.0)
    list(loader)
    before = data.x[0].clone()
    values[:] = values + 1
    values.flush()
    assert torch.equal(data.x[0], before + 1)
    loader.invalidate_cache()
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (2, 2)])
def test_traces_show_every_stage_of_every_batch(data, tmp_path, workers, prefetch):
    loader = make(data, num_workers=workers, prefetch=prefetch)
    with loader.trace(tmp_path / "t.json"):
        for _ in range(2):
            batches = list(loader)
    events = checked(tmp_path / "t.json")
    wanted = {"ticket", "preparing", "sampling", "fetching", "building", "waiting", "computing"}
    for epoch in range(2):
        stages = stages_by_batch(events, epoch)
        assert sorted(stages) == list(range(10))
        for found in stages.values():
            assert set(found) == wanted | {"reading x", "reading y", "reading time"}
            assert set(found.values()) == {1}
    assert spans(events, "filling")
    preparing = [span for span in spans(events, "preparing") if span["args"]["epoch"] == 1]
    sizes = [
        span["args"]["input_nodes"]
        for span in sorted(preparing, key=lambda span: span["args"]["batch"])
    ]
    assert sizes == [batch.num_nodes for batch in batches]
    assert (
        sum(span["args"]["rows"] for span in spans(events, "reading x"))
        == loader.stats.total.reads.fields["x"].asked
    )
