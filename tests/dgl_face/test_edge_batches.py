"""Edge-wise batches: pair graphs, what is excluded, and models that compute on them."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, ours, theirs
from comparing import end_ids, nodes_of
from worlds import BOUGHT, BUYS, FOLLOWS, edge_seeds_of, make_world

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading
Uniform, GlobalUniform = d.negative_sampler.Uniform, d.negative_sampler.GlobalUniform


def edge_sampler(inner=None, **options):
    return d.as_edge_prediction_sampler(inner or d.NeighborSampler([-1], fused=False), **options)


def test_three_items_or_four_by_negative_sampler():
    world = make_world("heterograph")
    seeds = {"buys": torch.arange(10), FOLLOWS: torch.arange(3)}
    for negatives, length in ((None, 3), (Uniform(1), 4)):
        batches = list(
            ours(world.graph, seeds, edge_sampler(negative_sampler=negatives), batch_size=8)
        )
        assert [len(batch) for batch in batches] == [length] * 2
        for batch, counts in zip(batches, [{BUYS: 8}, {BUYS: 2, FOLLOWS: 3}], strict=True):
            input_nodes, pair, blocks = batch[0], batch[1], batch[-1]
            assert (
                isinstance(input_nodes, dict)
                and isinstance(pair, dgl.DGLGraph)
                and isinstance(blocks, list)
            )
            for part in batch[1:-1]:
                assert {c: n for c in part.canonical_etypes if (n := part.num_edges(c))} == counts
            for graph in batch[1:-1]:
                for ntype, ids in nodes_of(graph).items():
                    assert torch.equal(ids, blocks[-1].dstnodes[ntype].data[dgl.NID])


EXCLUDE = [None, "self", "reverse_id", "reverse_types", "the seeds"]


@pytest.mark.parametrize("exclude", EXCLUDE)
@pytest.mark.parametrize("shuffle", [False, True])
def test_pair_edges_are_the_batchs_in_its_order(exclude, shuffle):
    """With their own labels, and the indices as the user gave them: DGL sorts both when it excludes
    the seeds."""
    world = make_world("heterograph")
    seeds = edge_seeds_of(world, "canonical", seed=3)
    before = {c: ids.clone() for c, ids in seeds.items()}
    sampler = edge_sampler(
        exclude=(lambda ids: ids) if exclude == "the seeds" else exclude,
        reverse_eids=world.reverse_eids,
        reverse_etypes=world.reverse_etypes,
        prefetch_labels={BUYS: ["w"]},
    )
    np.random.seed(2)
    batches = list(ours(world.graph, seeds, sampler, batch_size=9, shuffle=shuffle))
    assert all(torch.equal(seeds[c], ids) for c, ids in before.items())
    for c, ids in before.items():
        eids = torch.cat([pair.edges[c].data[dgl.EID] for _, pair, _ in batches])
        assert (
            torch.equal(eids, ids) if not shuffle else sorted(eids.tolist()) == sorted(ids.tolist())
        )
        src, dst = zip(*(end_ids(pair, c) for _, pair, _ in batches), strict=True)
        parent_src, parent_dst = world.graph.find_edges(eids, etype=c)
        assert torch.equal(torch.cat(src), parent_src) and torch.equal(torch.cat(dst), parent_dst)
    labels = torch.cat([pair.edges[BUYS].data["w"] for _, pair, _ in batches])
    eids = torch.cat([pair.edges[BUYS].data[dgl.EID] for _, pair, _ in batches])
    assert torch.equal(labels, world.graph.edges[BUYS].data["w"][eids])


@pytest.mark.parametrize("fanout", [-1, 4])
@pytest.mark.parametrize("exclude", EXCLUDE[1:])
def test_no_block_holds_an_excluded_edge(exclude, fanout):
    """DGL's test_edge_dataloader_excludes, with values."""
    world = make_world("heterograph")
    graph, seeds = world.graph, {FOLLOWS: torch.arange(40), BUYS: torch.arange(30)}
    sampler = edge_sampler(
        d.NeighborSampler([fanout, fanout], fused=False),
        exclude=(lambda ids: ids) if exclude == "the seeds" else exclude,
        reverse_eids=world.reverse_eids,
        reverse_etypes=world.reverse_etypes,
    )
    for _, pair, blocks in ours(graph, seeds, sampler, batch_size=8, seed=0):
        drawn = {c: pair.edges[c].data[dgl.EID] for c in graph.canonical_etypes}
        excluded = {c: set(ids.tolist()) for c, ids in drawn.items()}
        if exclude == "reverse_id":
            excluded = {
                c: ids | set(world.reverse_eids[c][list(ids)].tolist())
                for c, ids in excluded.items()
                if ids
            }
        if exclude == "reverse_types":
            excluded[BOUGHT] |= excluded[BUYS]
        for block in blocks:
            for c, ids in excluded.items():
                eids = set(block.edges[c].data[dgl.EID].tolist())
                assert not eids & ids
                if fanout == -1:  # and nothing else is missing
                    whole = graph.in_edges(block.dstnodes[c[2]].data[dgl.NID], form="eid", etype=c)
                    assert eids == set(whole.tolist()) - ids


def test_what_a_batch_holds_is_the_batchs_own():
    """Writing to it changes neither the indices, nor the graph, nor the batch's other graphs, nor a
    later batch."""
    world = make_world("heterograph")
    graph, seeds = world.graph, {FOLLOWS: torch.arange(40), BUYS: torch.arange(30)}
    labels, feats = graph.edges[BUYS].data["w"].clone(), graph.nodes["item"].data["feat"].clone()
    names = {"prefetch_node_feats": {"item": ["feat"]}}
    sampler = edge_sampler(
        d.NeighborSampler([2], **names),
        negative_sampler=Uniform(1),
        exclude="self",
        prefetch_labels={BUYS: ["w"]},
    )
    loader = ours(graph, seeds, sampler, batch_size=35, seed=0, prefetch=2)
    for _ in range(2):
        drawn = []
        for inputs, pair, negative, (block,) in loader:
            drawn.append(pair.edges[BUYS].data[dgl.EID].tolist())
            ids = block.dstnodes["item"].data[dgl.NID].clone()
            assert torch.equal(pair.edges[BUYS].data["w"], labels[drawn[-1]])
            assert torch.equal(block.srcnodes["item"].data["feat"], feats[inputs["item"]])
            for part in (inputs["item"], pair.nodes["item"].data[dgl.NID]):
                part.fill_(-1)
            assert torch.equal(negative.nodes["item"].data[dgl.NID], ids)
            assert torch.equal(block.dstnodes["item"].data[dgl.NID], ids)
            for rows in (pair.edges[BUYS].data[dgl.EID], pair.edges[BUYS].data["w"]):
                rows.fill_(-1)
            block.srcnodes["item"].data["feat"].fill_(-1)
        assert sum(drawn, []) == list(range(30))
    assert torch.equal(seeds[BUYS], torch.arange(30))
    assert torch.equal(graph.edges[BUYS].data["w"], labels) and torch.equal(
        graph.nodes["item"].data["feat"], feats
    )


@pytest.mark.parametrize("outside", [-1, 300])
def test_excluded_ids_outside_the_graph_exclude_nothing(outside):
    """As with DGL: reverse_eids of -1 say that an edge has no reverse."""
    world = make_world("homogeneous")
    reverse = world.reverse_eids["_N", "_E", "_N"].clone()
    reverse[::2] = outside
    seeds = torch.arange(20)
    sampler = edge_sampler(exclude="reverse_id", reverse_eids=reverse)
    for make in (theirs, ours):
        for _, pair, (block,) in collect(make(world.graph, seeds, sampler, batch_size=5)):
            excluded = torch.cat([pair.edata[dgl.EID], reverse[pair.edata[dgl.EID]]])
            whole = world.graph.in_edges(block.dstdata[dgl.NID], form="eid")
            assert set(block.edata[dgl.EID].tolist()) == set(whole.tolist()) - set(
                excluded.tolist()
            )


def test_a_mask_is_no_list_of_ids_to_exclude():
    graph = make_world("homogeneous").graph
    sampler = edge_sampler(exclude=torch.arange(graph.num_edges()) % 3 == 0)
    for make in (theirs, ours):
        with pytest.raises((dgl.DGLError, TypeError)):
            collect(make(graph, torch.arange(9), sampler, batch_size=3))


def test_an_unknown_way_to_exclude():
    world = make_world("homogeneous")
    with pytest.raises(ValueError, match="reverse"):
        list(ours(world.graph, torch.arange(9), edge_sampler(exclude="reverse"), batch_size=3))


@pytest.mark.parametrize("shape", ["homogeneous", "heterograph"])
def test_shadow_as_the_inner_sampler(shape):
    """A subgraph in place of blocks, with features on its vertices; the reference's where nothing
    is left to chance."""
    world = make_world(shape)
    graph, seeds = world.graph, edge_seeds_of(world, "none")
    names = ["feat"] if shape == "homogeneous" else {"user": ["feat"], "item": ["feat"]}
    sampler = edge_sampler(d.ShaDowKHopSampler([-1, -1], prefetch_node_feats=names))
    pairs = zip(
        ours(graph, seeds, sampler, batch_size=10),
        collect(theirs(graph, seeds, sampler, batch_size=10)),
        strict=True,
    )
    for (inputs, pair, sub), (in_, ref_pair, reference) in pairs:
        for c in graph.canonical_etypes:
            assert torch.equal(pair.edges[c].data[dgl.EID], ref_pair.edges[c].data[dgl.EID])
            mine, expected = (sorted(g.edges[c].data[dgl.EID].tolist()) for g in (sub, reference))
            assert mine == expected
        for ntype in graph.ntypes:
            ids = sub.nodes[ntype].data[dgl.NID]
            assert torch.equal(inputs[ntype] if isinstance(inputs, dict) else inputs, ids)
            assert sorted(ids.tolist()) == sorted(reference.nodes[ntype].data[dgl.NID].tolist())
            if ntype != "tag":
                assert torch.equal(
                    sub.nodes[ntype].data["feat"], graph.nodes[ntype].data["feat"][ids]
                )
        assert type(inputs) is type(in_)


@pytest.mark.parametrize("shape", ["homogeneous", "heterograph"])
def test_link_prediction_computes_the_same(shape):
    """Blocks and pair graphs fit together: scores, loss and gradients of a model on both loaders'
    batches."""
    world = make_world(shape)
    graph, seeds = world.graph, edge_seeds_of(world, "name" if shape == "heterograph" else "none")
    if isinstance(seeds, dict):
        del seeds["on"]  # nothing leads to a tag: no layer gives it a vector
    torch.manual_seed(0)
    conv = dgl.nn.SAGEConv(2, 3, "mean")
    layer = dgl.nn.HeteroGraphConv({etype: conv for etype in graph.etypes})

    def shifted(graph, seeds):
        seeds = seeds if isinstance(seeds, dict) else {graph.canonical_etypes[0]: seeds}
        ends = {c: graph.find_edges(ids, etype=c) for c, ids in seeds.items()}
        return {c: (src, (dst + 1) % graph.num_nodes(c[2])) for c, (src, dst) in ends.items()}

    sampler = edge_sampler(
        exclude="reverse_id", reverse_eids=reverses(world, seeds), negative_sampler=shifted
    )
    results = []
    for make in (ours, theirs):
        losses = []
        conv.zero_grad()
        for _, pair, negative, blocks in collect(make(graph, seeds, sampler, batch_size=10)):
            x = {ntype: blocks[0].srcnodes[ntype].data["plain"] for ntype in graph.ntypes}
            y = layer(blocks[0], x)
            loss = sum(
                scores(part, y, sign).sum() for part, sign in ((pair, 1.0), (negative, -1.0))
            )
            loss.backward()
            losses.append(loss.detach())
        results.append((losses, [p.grad.clone() for p in conv.parameters()]))
    torch.testing.assert_close(results[0], results[1])
    assert len(results[0][0]) > 1 and all(float(loss) < 0 for loss in results[0][0])


def reverses(world, seeds):
    return (
        world.reverse_eids if isinstance(seeds, dict) else next(iter(world.reverse_eids.values()))
    )


def scores(graph, y, sign):
    """log(sigmoid(sign * u . v)) of every edge."""
    found = []
    for etype in graph.canonical_etypes:
        if graph.num_edges(etype):
            part = graph[etype]
            part.srcdata["y"], part.dstdata["y"] = y[etype[0]], y[etype[2]]
            part.apply_edges(dgl.function.u_dot_v("y", "y", "s"))
            found.append(torch.nn.functional.logsigmoid(sign * part.edata["s"]))
    return torch.cat(found)


def test_dgl_may_sort_the_graphs_edges_in_place():
    """Its GlobalUniform does: what was sampled before must be as right as what is sampled after."""
    src, dst = torch.randint(0, 50, (300,)), torch.randint(0, 50, (300,))
    graph, sampler = dgl.graph((src, dst), num_nodes=50), d.MultiLayerFullNeighborSampler(1)
    loader = ours(graph, torch.arange(50), sampler, batch_size=50)
    for _ in range(2):
        input_nodes, output_nodes, (block,) = next(iter(loader))
        ends, eids = block.edges(), block.edata[dgl.EID]
        assert torch.equal(input_nodes[ends[0]], src[eids]) and torch.equal(
            output_nodes[ends[1]], dst[eids]
        )
        GlobalUniform(2)(graph, torch.arange(50))
