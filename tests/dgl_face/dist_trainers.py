"""A trainer of DistDGL that compares our loaders with DGL's, batch by batch, and writes what it
saw."""

import json
import os
import sys
from pathlib import Path

import pagraph.dgl  # before dgl, which with some versions of torch can only be imported after it

# isort: split
import dgl
import torch

FANOUTS = [-1, -1]  # all neighbours: sampling draws nothing, so that two loaders can be compared


def node_loader(kind, graph, seeds, **kwargs):
    sampler = dgl.dataloading.NeighborSampler(
        FANOUTS, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    torch.manual_seed(3)
    return kind(graph, seeds, sampler, batch_size=64, shuffle=True, **kwargs)


def edges_of(block):
    """Ids, sources and destinations of a block's edges in the graph, by id: DGL's order is another
    one each time."""
    ids, order = block.edata[dgl.EID].sort()
    sources, destinations = block.edges()
    ends = block.srcdata[dgl.NID][sources], block.dstdata[dgl.NID][destinations]
    return ids, *(end[order] for end in ends)


def same_batches(theirs, loader, graph, epochs=1):
    """Whether each batch is DGL's, with the rows that its fields have; how many there were."""
    torch.manual_seed(5)
    expected = [[[batch[0], batch[1], *batch[2]] for batch in theirs] for _ in range(epochs)]
    torch.manual_seed(5)
    count = 0
    for wanted in expected:
        for (inputs, outputs, blocks), (ids, seeds, *others) in zip(loader, wanted, strict=True):
            assert torch.equal(outputs, seeds)
            assert torch.equal(inputs.sort().values, ids.sort().values)
            for block, other in zip(blocks, others, strict=True):
                for ours, dgls in zip(edges_of(block), edges_of(other), strict=True):
                    assert torch.equal(ours, dgls)
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
    seeds = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book())
    seen["seeds"] = len(seeds)
    for name, options in {
        "plain": {},
        "serial": {"prefetch": 0},
        "drop": {"drop_last": True},
        "degree": {"cache": 0.2, "cache_policy": "degree"},
        "auto": {"cache": 0.2},
        "bytes": {"cache": "20KiB"},
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
    # A pass that is left in the middle, and the next one.
    loader = node_loader(kind, graph, seeds)
    next(iter(loader))
    seen["again"] = sum(1 for _ in loader) == len(loader)
    next(iter(loader))
    loader.close()
    seen["ended"] = raises(next, loader) is None


def writes(graph, seen):
    seeds = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book())
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
    sampler = dgl.dataloading.NeighborSampler([2], prefetch_node_feats=["nothing"])
    whole = dgl.graph(([0], [1]))
    seen["field"] = raises(lambda: kind(graph, [0], sampler, batch_size=1))
    seen["graph"] = raises(lambda: kind(whole, [0], sampler, batch_size=1))
    plain = dgl.dataloading.NeighborSampler([2])
    for name, options in {
        "policy": {"cache": 0.1, "cache_policy": "vip"},
        "device": {"device": "cuda"},
        "prefetch": {"prefetch": -1},
    }.items():
        seen[name] = raises(
            lambda options=options: kind(graph, [0], plain, batch_size=1, **options)
        )

    class Broken(dgl.dataloading.NeighborSampler):
        def sample_blocks(self, g, seed_nodes, exclude_eids=None):
            raise RuntimeError("broken sampler")

    if int(os.environ["DGL_NUM_SAMPLER"]) == 0:  # DGL's sampler processes die of an error
        loader = kind(graph, torch.arange(4), Broken([2]), batch_size=1)
        seen["broken"] = raises(lambda: next(iter(loader)))


def edges(graph, seen):
    seeds = dgl.distributed.edge_split(
        torch.ones(graph.num_edges(), dtype=torch.bool), graph.get_partition_book()
    )[:300]
    sampler = dgl.dataloading.NeighborSampler(FANOUTS[:1], prefetch_node_feats=["feat"])
    options = {
        "batch_size": 50,
        "negative_sampler": dgl.dataloading.negative_sampler.Uniform(1),
        "shuffle": True,
    }
    for names in (["negative_sampler"], []):
        given = {key: value for key, value in options.items() if key not in names}
        found = []
        for kind in (dgl.dataloading.DistEdgeDataLoader, pagraph.dgl.DistEdgeDataLoader):
            torch.manual_seed(7)
            own = {} if kind.__module__.startswith("dgl") else {"cache": 0.2}
            found.append(list(kind(graph, seeds, sampler, **given, **own)))
        for theirs, batch in zip(*found, strict=True):
            assert len(batch) == len(theirs) == 4 - len(names)
            assert torch.equal(batch[1].edata[dgl.EID], theirs[1].edata[dgl.EID])
            rows = batch[-1][0].srcdata["feat"]
            assert torch.equal(rows, graph.ndata["feat"][batch[0]])
        seen[f"edges of {4 - len(names)}"] = len(found[1])


def main(folder):
    dgl.distributed.initialize(os.environ["IP_CONFIG"])
    graph = dgl.distributed.DistGraph("graph")
    seen = {}
    for part in (nodes, edges, errors, writes):
        part(graph, seen)
        graph.barrier()
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
