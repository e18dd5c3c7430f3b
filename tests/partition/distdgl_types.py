"""DistDGL in standalone mode on one part of a heterograph: what it samples with all neighbours is
the source's."""

import sys

import pagraph.dgl  # before dgl, which with some versions of torch can only be imported after it

# isort: split
import dgl
import torch
from dgl.dataloading import MultiLayerNeighborSampler

from pagraph import Graph

assert pagraph.dgl


def main(config, source):
    dgl.distributed.initialize(None)
    graph, whole = dgl.distributed.DistGraph("graph", part_config=config), Graph.open(source)
    source_ids = {
        name: graph.nodes[name].data["orig_id"][torch.arange(graph.num_nodes(name))]
        for name in graph.ntypes
    }
    mask = graph.nodes["paper"].data["train_mask"]
    seeds = dgl.distributed.node_split(
        mask, graph.get_partition_book(), ntype="paper", force_even=False
    )
    where = dgl.dataloading if hasattr(dgl.dataloading, "DistNodeDataLoader") else dgl.distributed
    found = set()
    sampler = MultiLayerNeighborSampler([-1, -1])
    for _, output, blocks in where.DistNodeDataLoader(
        graph, {"paper": seeds}, sampler, batch_size=50
    ):
        found |= set(source_ids["paper"][output["paper"]].tolist())
        for block in blocks:
            for edge_type in block.canonical_etypes:
                src, dst = block.edges(etype=edge_type)
                csc = whole.csc_of(edge_type)
                ids = source_ids[edge_type[2]][block.dstnodes[edge_type[2]].data[dgl.NID]]
                sources = source_ids[edge_type[0]][block.srcnodes[edge_type[0]].data[dgl.NID]][src]
                for place, v in enumerate(ids.tolist()):
                    wanted = csc.indices[csc.indptr[v] : csc.indptr[v + 1]].long().sort().values
                    assert torch.equal(sources[dst == place].sort().values, wanted)
    sys.stdout.write(f"{len(found)} seeds\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
