"""Edges and vertices that are added and removed within an epoch: the next batch has the new ones,
whatever was prefetched, and rows are those of its own edges."""

import pytest
import torch
from cases import dgl, make_graph, ours
from chaos.edges import check_batch

from pagraph import Graph

pytestmark = pytest.mark.usefixtures("no_threads_left")

d = dgl.dataloading
FEATURES = {"prefetch_node_feats": ["feat"], "prefetch_edge_feats": ["w"]}
SEEDS = 120  # fewer than the vertices and edges that remain


def neighbours(graph):
    return d.NeighborSampler([4, 3], prefetch_labels=["label"], **FEATURES)


def lazy(graph):
    return d.NeighborSampler([4, 3])


def weighted(graph):
    return d.NeighborSampler([4, 3], prob="p", **FEATURES)


def out(graph):
    return d.NeighborSampler([4], edge_dir="out", **FEATURES)


def labor(graph):
    return d.LaborSampler([4, 3], **FEATURES)


def shadow(graph):
    return d.ShaDowKHopSampler([3, 2], **FEATURES)


def saint(graph):
    return d.SAINTSampler("node", 60, prefetch_ndata=["feat"], prefetch_edata=["w"])


def links(graph):
    inner = d.NeighborSampler([4, 3], **FEATURES)
    negatives = d.negative_sampler.Uniform(2)
    return d.as_edge_prediction_sampler(
        inner, exclude="self", negative_sampler=negatives, prefetch_labels=["w"]
    )


def own_negatives(graph):
    """The user's function, which sees the graph."""

    def draw(g, edges):
        src, _ = g.find_edges(edges)
        return src, torch.full_like(src, g.num_nodes() - 1)

    return d.as_edge_prediction_sampler(neighbours(graph), negative_sampler=draw)


class Users(d.NeighborSampler):
    """Not sampled by our kernels."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        return super().sample_blocks(g, seed_nodes, exclude_eids)


def users(graph):
    return Users([4, 3], fused=False, prefetch_labels=["label"], **FEATURES)


SAMPLERS = [*(neighbours, lazy, weighted, out, labor, shadow, saint, links, own_negatives, users)]


def remove(graph, step):
    graph.remove_edges(torch.arange(step, step + 100))


def add(graph, step):
    """With the default's rows: zeros."""
    graph.add_edges(torch.arange(50), torch.arange(50).flip(0) + step)


def replace_edges(graph, step):
    """As many as before, so that no size shows it."""
    remove(graph, step)
    ends = torch.arange(100)
    rows = {"w": torch.full((100,), 7.0 + step), "p": torch.ones(100)}
    graph.add_edges(ends, ends + 1, rows)


def remove_vertices(graph, step):
    graph.remove_nodes(torch.arange(SEEDS + step, SEEDS + step + 5))


def add_vertices(graph, step):
    count = graph.num_nodes()
    graph.add_nodes(5, {name: graph.ndata[name][:5] + step for name in graph.ndata})
    graph.add_edges(torch.arange(count, count + 5), torch.arange(5))


def everything(graph, step):
    for change in (remove_vertices, replace_edges, add_vertices):
        change(graph, step)
    graph.edata["w"] = graph.edata["w"] * 2


CHANGES = [replace_edges, remove, add, remove_vertices, add_vertices, everything]


def changing_graph():
    graph = make_graph()
    graph.edata["p"] = torch.rand(graph.num_edges())
    return graph


@pytest.mark.every
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{"prefetch": 0}, {"num_workers": 2, "prefetch": 3}], ids=str)
@pytest.mark.parametrize("make", SAMPLERS)
def test_the_next_batch_has_the_new_edges(change, options, make):
    """It is that of a new loader, bit for bit."""
    graph = changing_graph()
    sampler = make(graph)
    options = {"batch_size": 10, "seed": 3} | options
    loader = ours(graph, torch.arange(SEEDS), sampler, **options)
    for step, batch in enumerate(loader):
        check_batch(batch, graph)
        if make is not users:  # drawn from DGL's generator
            fresh = ours(graph, torch.arange(SEEDS), make(graph), **options | {"prefetch": 0})
            state = {**loader.state_dict(), "batch": step, "epoch": 0, "key": 0, "checksum": None}
            fresh.load_state_dict(state)
            assert same(batch, next(iter(fresh)))
        if step % 4 == 1:
            change(graph, step)
    assert step == SEEDS // 10 - 1


def same(batch, other):
    if isinstance(batch, (tuple, list)):
        return all(map(same, batch, other))
    if isinstance(batch, torch.Tensor):
        return torch.equal(batch, other)
    ends = [[*graph.edges(), graph.edata.get(dgl.EID)] for graph in (batch, other)]
    return all(
        mine is theirs or torch.equal(mine, theirs) for mine, theirs in zip(*ends, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_graph_of_several_types(workers):
    ends = torch.arange(60), torch.arange(60).flip(0)
    etypes = [("user", "buys", "item"), ("item", "by", "user")]
    graph = dgl.heterograph(dict.fromkeys(etypes, ends))
    for number, etype in enumerate(etypes):
        graph.edges[etype].data["w"] = torch.arange(60.0) + 100 * number
    sampler = d.MultiLayerFullNeighborSampler(2, prefetch_edge_feats={"buys": ["w"]})
    seeds = {"user": torch.arange(60)}
    for step, (_, _, blocks) in enumerate(
        ours(graph, seeds, sampler, batch_size=6, num_workers=workers, prefetch=3)
    ):
        for block in blocks:
            for etype in etypes:
                ids = block.edges[etype].data[dgl.EID]
                src, dst = block.edges(etype=etype)
                there = graph.find_edges(ids, etype=etype)
                assert torch.equal(block.srcnodes[etype[0]].data[dgl.NID][src], there[0])
                assert torch.equal(block.dstnodes[etype[2]].data[dgl.NID][dst], there[1])
                rows = graph.edges[etype].data["w"][ids]
                assert torch.equal(block.edges[etype].data["w"], rows)
                degrees = graph.in_degrees(block.dstnodes[etype[2]].data[dgl.NID], etype=etype)
                assert torch.equal(block.in_degrees(etype=etype), degrees)
        if step % 2:
            graph.remove_edges(torch.arange(3), etype="buys")
            graph.add_edges([0, 1, 2], [5, 5, 5], {"w": torch.rand(3)}, etype="buys")
            graph.add_edges([7], [step], etype="by")


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"num_workers": 2, "prefetch": 3}], ids=str)
def test_the_dgl_graph_of_a_graph_of_ours(options):
    """Its structure is made at the first change."""
    ends = torch.randint(0, 200, (2, 1000), generator=torch.Generator().manual_seed(0))
    graph = Graph.from_coo(*ends, 200)
    graph.set_field("w", torch.rand(1000), edge_type=graph.edge_types[0])
    loader = ours(graph, torch.arange(100), d.NeighborSampler([-1, 3]), batch_size=10, **options)
    for step, batch in enumerate(loader):
        check_batch(batch, loader.graph)
        if step in (2, 5):
            loader.graph.remove_edges(torch.arange(300))
            loader.graph.add_edges(torch.arange(30), torch.arange(30))


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"num_workers": 2, "prefetch": 3}], ids=str)
@pytest.mark.parametrize("make", [neighbours, shadow, links])
def test_seeds_that_were_removed_are_an_error(options, make):
    graph = changing_graph()
    batches = iter(ours(graph, torch.arange(100), make(graph), batch_size=10, **options))
    next(batches)
    graph.remove_edges(torch.arange(5, graph.num_edges()))
    graph.remove_nodes(torch.arange(15, graph.num_nodes()))
    with pytest.raises(IndexError, match=r"must be in \[0, \d+\), got \d+"):
        for _ in range(3):
            next(batches)


def test_a_users_sampler_sees_the_present_edges_in_threads():
    seen = []

    class Counts(d.Sampler):
        def sample(self, g, indices):
            seen.append(g.num_edges())
            if g.num_edges() != g.edata["w"].shape[0]:
                raise RuntimeError("sampled from a graph that is being changed")
            return torch.tensor(g.num_edges())

    graph = make_graph()
    loader = ours(graph, torch.arange(40), Counts(), batch_size=4, num_workers=2, prefetch=4)
    for step, count in enumerate(loader):
        assert int(count) == graph.num_edges()
        if step % 3 == 0:
            add(graph, step)
    assert step == 9
