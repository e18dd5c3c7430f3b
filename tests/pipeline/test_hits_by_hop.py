"""The statistics tell which hop's vertices were in the cache: against counting them by hand."""

import time

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy
from pagraph.stats import FieldStats

N = 300


@pytest.fixture
def graph(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, N, 1500), rng.integers(0, N, 1500), N)
    np.save(tmp_path / "feat.npy", rng.random((N, 6)))
    np.save(tmp_path / "label.npy", rng.integers(0, 5, N))
    for name in ("feat", "label"):
        graph.set_field(name, map_npy(tmp_path / f"{name}.npy"))
        if not on_disk(graph.ndata[name]):
            pytest.skip("needs temporary files on a disk")
    graph.set_field("near", torch.rand(N, 2))
    return graph


def make(graph, **options):
    defaults = dict(fields=["feat", "near"], labels=["label"], batch_size=20, shuffle=True, seed=3)
    defaults |= dict(cache="30%", cache_policy=multiples_of_3)
    return Loader(graph, torch.arange(0, N, 2), NeighborSampler([3, 2]), **(defaults | options))


def multiples_of_3(graph, seeds, sampler, seed):
    return torch.arange(0, graph.num_nodes, 3)


def counted(graph, epochs, chosen):
    """Asked and hits of each hop of each epoch, from the batches."""
    loader = make(graph, cache=0, prefetch=0)
    for _ in range(epochs):
        asked, hits = np.zeros(3, dtype=int), np.zeros(3, dtype=int)
        for batch in loader:
            for hop, ids in enumerate(torch.tensor_split(batch.input_nodes, batch.hop_ends[:-1])):
                asked[hop] += len(ids)
                hits[hop] += int(torch.isin(ids, chosen).sum())
        yield tuple(asked.tolist()), tuple(hits.tolist())


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (1, 1), (3, 2), (2, 5)])
def test_hits_of_every_epoch_field_and_hop(graph, num_workers, prefetch):
    loader = make(graph, num_workers=num_workers, prefetch=prefetch)
    for _ in range(2):
        for batch in loader:
            assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes])
    chosen = torch.arange(0, N, 3)[: loader.cache_plan.fields[0].rows]
    for epoch, (asked, hits) in zip(loader.stats.epochs, counted(graph, 2, chosen), strict=True):
        feat, label, near = (epoch.reads.fields[name] for name in ("feat", "label", "near"))
        assert (feat.asked_by_hop, feat.hits_by_hop) == (asked, hits)
        assert feat.hit_rate_by_hop == tuple(h / a for h, a in zip(hits, asked, strict=True))
        assert (sum(feat.asked_by_hop), sum(feat.hits_by_hop)) == (feat.asked, feat.hits)
        assert (label.asked_by_hop, label.hits_by_hop) == (asked[:1], hits[:1])
        assert (near.asked_by_hop, near.hits_by_hop) == (asked, (0, 0, 0))
        assert epoch.hit_rate_by_field == {"feat": feat.hit_rate, "label": label.hit_rate}
        both = FieldStats(
            asked_by_hop=(2 * asked[0], *asked[1:]), hits_by_hop=(2 * hits[0], *hits[1:])
        )
        assert epoch.hit_rate_by_hop == both.hit_rate_by_hop
    first, again = loader.stats.total.reads, loader.stats.total.reads
    assert first == again and first.fields["feat"].hits_by_hop[2] > 0


def test_the_table_has_a_line_for_every_epoch_and_field_that_a_cache_may_serve(graph):
    loader = make(graph)
    for _ in range(2):
        list(loader)
    table = str(loader.stats).split("\n\n")[2].splitlines()
    assert table[0].split() == ["epoch", "field", "hit", "rate", "hop", "0", "hop", "1", "hop", "2"]
    assert [line.split()[:2] for line in table[1:]] == [
        [epoch, field] for epoch in ("0", "1", "total") for field in ("feat", "label")
    ]
    feat = loader.stats.epochs[1].reads.fields["feat"]
    line = next(line for line in table if line.split()[:2] == ["1", "feat"])
    assert line.split()[2:] == [
        f"{feat.hit_rate:.1%}",
        *(f"{rate:.1%}" for rate in feat.hit_rate_by_hop),
    ]
    assert next(line for line in table if line.split()[1] == "label").split()[4:] == ["-", "-"]


def test_no_table_by_hop_where_no_cache_is_wanted(graph):
    loader = make(graph, fields=["near"], labels=[])
    list(loader)
    assert "hop" not in str(loader.stats)
    assert loader.stats.total.hit_rate_by_hop == () and loader.stats.total.hit_rate_by_field == {}


def test_a_field_that_is_read_again_counts_again(graph):
    loader = make(graph, fields=["near"], labels=[], prefetch=4)
    batches = iter(loader)
    first = next(batches)
    while loader.stats.total.reads.fields["near"].asked == len(first.input_nodes):
        time.sleep(0.001)  # until another batch was read ahead
    graph.ndata["near"].add_(1)
    delivered = len(first.input_nodes) + sum(len(batch.input_nodes) for batch in batches)
    near = loader.stats.total.reads.fields["near"]
    assert sum(near.asked_by_hop) == near.asked > delivered
