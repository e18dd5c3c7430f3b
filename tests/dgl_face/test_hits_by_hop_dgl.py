"""Hits by hop behind DGL's face: of vertices of every type, of edges, of seeds; against the blocks
themselves."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours

from pagraph.graph.mapped import map_npy

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler
ETYPES = [("user", "follows", "user"), ("user", "buys", "item"), ("item", "bought by", "user")]
COUNTS = {"user": 150, "item": 90}


@pytest.fixture
def graph(tmp_path):
    rng = np.random.default_rng(1)
    edges = {}
    for src, relation, dst in ETYPES:
        ends = (rng.integers(0, COUNTS[src], 500), rng.integers(0, COUNTS[dst], 500))
        edges[src, relation, dst] = tuple(map(torch.from_numpy, ends))
    graph = dgl.heterograph(edges, num_nodes_dict=COUNTS)
    for ntype, count in COUNTS.items():
        np.save(tmp_path / f"{ntype}.npy", rng.random((count, 3)))
        graph.nodes[ntype].data["feat"] = map_npy(tmp_path / f"{ntype}.npy")
    graph.edges["buys"].data["w"] = torch.rand(500)
    return graph


def even_first(core, seeds, sampler, seed):
    return {ntype: torch.arange(0, count, 2) for ntype, count in COUNTS.items()}


SAMPLER = dict(
    prefetch_node_feats={"user": ["feat"], "item": ["feat"]},
    prefetch_labels={"user": ["feat"]},
    prefetch_edge_feats={"buys": ["w"]},
)
OPTIONS = dict(batch_size=16, seed=0, cache="50%", cache_policy=even_first, shuffle=True)


def new_vertices(blocks, ntype):
    """The source vertices by the hop that found them, from the blocks alone; hop 0 are the
    seeds."""
    known = blocks[-1].dstnodes[ntype].data[dgl.NID]
    hops = [known]
    for block in reversed(blocks):
        src = block.srcnodes[ntype].data[dgl.NID]
        hops.append(src[~torch.isin(src, known)])
        known = src
    return hops


def sums(rows):
    return tuple(np.sum(list(rows), axis=0).tolist())


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (2, 3)])
def test_hits_of_every_vertex_type_and_hop(graph, num_workers, prefetch):
    sampler = NeighborSampler([3, 2], **SAMPLER)
    loader = ours(
        graph,
        {"user": torch.arange(100)},
        sampler,
        num_workers=num_workers,
        prefetch=prefetch,
        **OPTIONS,
    )
    batches = collect(loader)
    fields = loader.stats.epochs[0].reads.fields
    for ntype in COUNTS:
        cached = torch.arange(0, COUNTS[ntype], 2)[
            : sum(plan.rows for plan in loader.cache_plan if plan.node_type == ntype)
        ]
        found = [new_vertices(blocks, ntype) for _, _, blocks in batches]
        asked = sums([len(ids) for ids in hops] for hops in found)
        hits = sums([int(torch.isin(ids, cached).sum()) for ids in hops] for hops in found)
        if ntype == "user":  # also a label: read once more for the seeds
            asked, hits = (2 * asked[0], *asked[1:]), (2 * hits[0], *hits[1:])
        field = fields[f"{ntype}/feat"]
        assert (field.asked_by_hop, field.hits_by_hop) == (asked, hits)
        assert sum(hits) > 0 and (sum(asked), sum(hits)) == (field.asked, field.hits)


def test_rows_of_edges_count_for_the_hop_that_drew_them(graph):
    loader = ours(
        graph, {"user": torch.arange(100)}, NeighborSampler([3, 2, 2], **SAMPLER), **OPTIONS
    )
    drawn = sums([b.num_edges("buys") for b in reversed(blocks)] for _, _, blocks in loader)
    field = loader.stats.total.reads.fields["edge:user-buys-item/w"]
    assert field.asked_by_hop == (0, *drawn) and sum(drawn) == field.asked > 0


def test_edge_wise_batches_begin_with_the_ends_of_their_edges(graph):
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        NeighborSampler([2], prefetch_node_feats={"item": ["feat"]}),
        prefetch_labels={"buys": ["w"]},
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    loader = ours(graph, {"buys": torch.arange(200)}, sampler, **OPTIONS)
    batches = collect(loader)
    fields = loader.stats.total.reads.fields
    found = [new_vertices(blocks, "item") for *_, blocks in batches]
    assert fields["item/feat"].asked_by_hop == sums([len(ids) for ids in hops] for hops in found)
    assert fields["edge:user-buys-item/w"].asked_by_hop == (200,)


def test_a_samplers_own_batches_say_nothing_of_hops(graph):
    class Mine(NeighborSampler):
        def sample_blocks(self, *args, **kwargs):
            return super().sample_blocks(*args, **kwargs)

    loader = ours(graph, {"user": torch.arange(100)}, Mine([3], **SAMPLER), **OPTIONS)
    collect(loader)
    field = loader.stats.total.reads.fields["item/feat"]
    assert (
        field.asked > 0 and field.asked_by_hop == field.hits_by_hop == field.hit_rate_by_hop == ()
    )
