"""A trainer of DistDGL that compares our loaders with DGL's, batch by batch, and writes what it
saw."""

import gc
import json
import os
import sys
import threading
import weakref
from pathlib import Path

import pagraph.dgl  # before dgl, which with some versions of torch can only be imported after it

# isort: split
import dgl
import torch
from dgl.dataloading import NeighborSampler

from pagraph.system.threads import THREAD_NAME

PREFETCHED = {"prefetch_node_feats": ["feat"], "prefetch_labels": ["label"]}
FIRST_BAD = 5
"""The seed that `Broken` fails on."""


class InOrder(NeighborSampler):
    """All neighbours, edges in the order of their ids: DGL's is another one each time."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        output_nodes = seed_nodes
        blocks = []
        for _ in self.fanouts:
            drawn = g.sample_neighbors(seed_nodes, -1)
            ids, order = drawn.edata[dgl.EID].sort()
            src, dst = drawn.edges()
            frontier = dgl.graph((src[order], dst[order]), num_nodes=drawn.num_nodes())
            block = dgl.to_block(frontier, seed_nodes)
            block.edata[dgl.EID] = ids[block.edata[dgl.EID]]
            seed_nodes = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        return seed_nodes, output_nodes, blocks


class Broken(InOrder):
    """Fails at the batch that has a certain seed."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        if FIRST_BAD in seed_nodes.tolist():
            raise ValueError("broken sampler")
        return super().sample_blocks(g, seed_nodes, exclude_eids)


def own_nodes(graph):
    return dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book())


def node_loader(kind, graph, seeds, sampler=None, **kwargs):
    sampler = sampler or InOrder([1, 1], **PREFETCHED)
    return kind(graph, seeds, sampler, batch_size=64, shuffle=True, **kwargs)


def assert_same(ours, theirs):
    """That two batches have the same bits."""
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        if isinstance(mine, dgl.DGLGraph):
            assert_same_graph(mine, other)
        else:
            assert torch.equal(mine, other)
    for mine, other in zip(ours[-1], theirs[-1], strict=True):
        assert_same_graph(mine, other)
        assert torch.equal(mine.srcdata[dgl.NID], other.srcdata[dgl.NID])


def assert_same_graph(mine, other):
    for ends, others in zip(mine.edges(), other.edges(), strict=True):
        assert torch.equal(ends, others)
    assert torch.equal(mine.edata[dgl.EID], other.edata[dgl.EID])


def same_batches(theirs, loader, graph, epochs=1):
    """How many batches there were, each of them DGL's, with the rows that its fields have."""
    torch.manual_seed(5)
    expected = [list(theirs) for _ in range(epochs)]
    torch.manual_seed(5)
    count = 0
    for wanted in expected:
        for batch, other in zip(loader, wanted, strict=True):
            assert_same(batch, other)
            inputs, outputs, blocks = batch
            # Asked in this thread while the other one reads ahead.
            assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][inputs])
            assert torch.equal(blocks[-1].dstdata["label"], graph.ndata["label"][outputs])
            count += 1
    return count


def raises(function, *args):
    try:
        function(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def nodes(graph, seen):
    theirs_kind = dgl.dataloading.DistNodeDataLoader
    kind = pagraph.dgl.DistNodeDataLoader
    seeds = own_nodes(graph)
    seen["seeds"] = len(seeds)
    for name, options in {
        "plain": {},
        "serial": {"prefetch": 0},
        "drop": {"drop_last": True},
        "few": {"cache": 0.05, "cache_policy": "degree"},
        "degree": {"cache": 0.2, "cache_policy": "degree"},
        "auto": {"cache": 0.2},
        "bytes": {"cache": "20KiB"},
        "whole": {"cache": 1.0},
    }.items():
        given = {key: options[key] for key in options if key == "drop_last"}
        theirs = node_loader(theirs_kind, graph, seeds, **given)
        loader = node_loader(kind, graph, seeds, **options)
        epochs = 3 if name == "auto" else 1
        count = same_batches(theirs, loader, graph, epochs=epochs)
        assert count == epochs * len(loader) and isinstance(loader, theirs_kind)
        own = loader.stats.total.reads.fields["feat, own part"]
        feat = loader.stats.total.reads.fields["feat"]
        assert own.asked + feat.asked == loader.stats.total.counts["input_nodes"]
        seen[name] = {
            "batches": count,
            "rows": dict(feat.rows),
            "rates": [epoch.hit_rate for epoch in loader.stats.epochs],
            "text": repr(loader),
        }
    # Expected reads want a sampler with fan-outs.
    sampler = NeighborSampler([5, 5], **PREFETCHED)
    loader = node_loader(kind, graph, seeds, sampler, cache=0.2, cache_policy="vip")
    for inputs, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][inputs])
    seen["vip"] = loader.stats.epochs[0].hit_rate
    edge_rows(graph, seeds)


def edge_rows(graph, seeds):
    """Rows of edges are on all blocks."""
    sampler = InOrder([1, 1], prefetch_edge_feats=["weight"])
    for _, _, blocks in node_loader(pagraph.dgl.DistNodeDataLoader, graph, seeds, sampler):
        for block in blocks:
            rows = graph.edata["weight"][block.edata[dgl.EID]]
            assert torch.equal(block.edata["weight"], rows)


def passes(graph, seen):
    """Passes that are left, and several at once."""
    seeds = own_nodes(graph)
    loader = node_loader(pagraph.dgl.DistNodeDataLoader, graph, seeds)
    next(iter(loader))
    seen["again"] = sum(1 for _ in loader) == len(loader)
    next(iter(loader))
    loader.close()
    seen["after close"] = len(next(loader))
    kept = weakref.ref(loader)
    del loader
    gc.collect()
    threads = [thread.name for thread in threading.enumerate()]
    seen["left"] = [name for name in threads if name.startswith(THREAD_NAME)]
    assert kept() is None
    pair = [node_loader(pagraph.dgl.DistNodeDataLoader, graph, seeds, cache=0.1) for _ in range(2)]
    for batches in zip(*pair, strict=True):
        for inputs, _, blocks in batches:
            assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][inputs])


def writes(graph, seen):
    seeds = own_nodes(graph)
    kept = graph.ndata["feat"][seeds[:2]]

    def write():
        graph.ndata["feat"][seeds[:2]] = kept

    loader = node_loader(pagraph.dgl.DistNodeDataLoader, graph, seeds)
    next(iter(loader))
    seen["write in a pass"] = raises(write)
    loader.close()
    seen["write after it"] = raises(write)
    loader = node_loader(pagraph.dgl.DistNodeDataLoader, graph, seeds, cache=0.1)
    for _ in loader:
        pass
    seen["write of cached"] = raises(write)
    loader.close()
    seen["write of closed"] = raises(write)
    kept += 1
    graph.barrier()
    write()
    graph.barrier()
    for inputs, _, blocks in loader:  # the new rows, of all machines
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][inputs])


def errors(graph, seen):
    kind = pagraph.dgl.DistNodeDataLoader
    sampler = NeighborSampler([2], prefetch_node_feats=["nothing"])
    whole = dgl.graph(([0], [1]))
    seen["field"] = raises(lambda: kind(graph, [0], sampler, batch_size=1))
    seen["graph"] = raises(lambda: kind(whole, [0], sampler, batch_size=1))
    plain = NeighborSampler([2])
    for name, options in {
        "policy": {"cache": 0.1, "cache_policy": "presample"},
        "device": {"device": "cuda"},
        "prefetch": {"prefetch": -1},
        "cache": {"cache": 1.5},
    }.items():
        seen[name] = raises(
            lambda options=options: kind(graph, [0], plain, batch_size=1, **options)
        )
    labor = dgl.dataloading.LaborSampler([2], prefetch_node_feats=["feat"])
    loader = kind(graph, own_nodes(graph), labor, batch_size=1, cache=0.1, cache_policy="vip")
    seen["vip of others"] = raises(iter, loader)
    # At its place, after the batches before it, and in each pass again.
    loader = kind(graph, torch.arange(8), Broken([1]), batch_size=2)
    seen["broken"] = []
    for _ in range(2):
        count = 0
        batches = iter(loader)
        while (text := raises(next, batches)) is None:
            count += 1
        seen["broken"].append((count, text))


def killed(graph, seen):
    """A sampler process that was killed; nothing of DGL's works afterwards."""
    pool = dgl.distributed.dist_context.get_sampler_pool()[0]
    loader = node_loader(pagraph.dgl.DistNodeDataLoader, graph, own_nodes(graph))
    pool.process_list[0].kill()
    seen["killed"] = raises(list, loader)


def edges(graph, seen):
    seeds = dgl.distributed.edge_split(
        torch.ones(graph.num_edges(), dtype=torch.bool), graph.get_partition_book()
    )[:300]
    sampler = InOrder([1], prefetch_node_feats=["feat"])
    negatives = {"negative_sampler": dgl.dataloading.negative_sampler.Uniform(1)}
    for given, count in (({}, 3), (negatives, 4)):
        found = []
        for kind in (dgl.dataloading.DistEdgeDataLoader, pagraph.dgl.DistEdgeDataLoader):
            torch.manual_seed(7)
            own = {} if kind.__module__.startswith("dgl") else {"cache": 0.2}
            loader = kind(graph, seeds, sampler, batch_size=50, shuffle=True, **given, **own)
            found.append(list(loader))
        for theirs, batch in zip(*found, strict=True):
            assert len(batch) == len(theirs) == count
            if not given:  # negatives are drawn at random
                assert_same(batch, theirs)
            assert torch.equal(batch[1].edata[dgl.EID], theirs[1].edata[dgl.EID])
            rows = batch[-1][0].srcdata["feat"]
            assert torch.equal(rows, graph.ndata["feat"][batch[0]])
        seen[f"edges of {count}"] = len(found[1])
        seen["edges' rate"] = loader.stats.total.hit_rate


def edges_by_type(blocks):
    """The edges' ids of each type and block, sorted."""
    return [
        block.edges[etype].data[dgl.EID].sort().values
        for block in blocks
        for etype in block.canonical_etypes
    ]


def types(graph, seen):
    """Several types: DGL's edges, and rows by type."""
    features = {"paper": ["feat"], "author": ["feat"]}
    sampler = NeighborSampler(
        [-1, -1], prefetch_node_feats=features, prefetch_labels={"paper": ["label"]}
    )
    mask = graph.nodes["paper"].data["train_mask"]
    seeds = {"paper": dgl.distributed.node_split(mask, graph.get_partition_book(), ntype="paper")}
    found = []
    for kind in (dgl.dataloading.DistNodeDataLoader, pagraph.dgl.DistNodeDataLoader):
        torch.manual_seed(2)
        own = {} if kind.__module__.startswith("dgl") else {"cache": 0.3}
        loader = kind(graph, seeds, sampler, batch_size=20, shuffle=True, **own)
        found.append(list(loader))
    for theirs, (inputs, outputs, blocks) in zip(*found, strict=True):
        assert torch.equal(outputs["paper"], theirs[1]["paper"])
        pairs = zip(edges_by_type(blocks), edges_by_type(theirs[2]), strict=True)
        assert all(torch.equal(ours, dgls) for ours, dgls in pairs)
        for ntype in features:
            rows = graph.nodes[ntype].data["feat"][inputs[ntype]]
            assert torch.equal(blocks[0].srcnodes[ntype].data["feat"], rows)
        labels = graph.nodes["paper"].data["label"][outputs["paper"]]
        assert torch.equal(blocks[-1].dstnodes["paper"].data["label"], labels)
    seen["types"] = {
        "batches": len(found[1]),
        "fields": sorted(loader.stats.total.reads.fields),
        "rate": loader.stats.total.hit_rate,
    }
    untyped = NeighborSampler([2], prefetch_node_feats=["feat"])
    seen["untyped"] = raises(
        lambda: pagraph.dgl.DistNodeDataLoader(graph, seeds, untyped, batch_size=20)
    )


def main(folder):
    dgl.distributed.initialize(os.environ["IP_CONFIG"])
    graph = dgl.distributed.DistGraph("graph")
    seen = {}
    typed = len(graph.ntypes) > 1
    for part in (types,) if typed else (nodes, passes, edges, errors, writes):
        part(graph, seen)
        graph.barrier()
    kills = int(os.environ["DGL_NUM_SAMPLER"]) and not typed
    if kills:
        killed(graph, seen)
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(seen))
    if kills:
        os._exit(0)  # DGL's exit would wait for the killed process


if __name__ == "__main__":
    main(*sys.argv[1:])
