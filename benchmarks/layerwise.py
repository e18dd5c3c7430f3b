"""Layer-wise sampling (LADIES, Zou et al., NeurIPS 2019): ours against one of DGL's own operations,
in turn.

DGL has no such sampler; its examples write one with ``in_subgraph``, a compaction and
``torch.multinomial``. The one here does the same with fewer steps, and runs in DGL's DataLoader.
See contest.py for how loaders are compared.

Run: ``python benchmarks/layerwise.py`` (about 20 minutes, 8 GiB of memory).
"""

import torch
from contest import Case, arguments, count_nodes, loaders, run, show, write
from rmat_graph import generate, random_ids, size_of

import pagraph.dgl

import dgl  # isort: skip


class Ladies(dgl.dataloading.BlockSampler):
    """LADIES with DGL's operations.

    Args:
        sizes: Vertices drawn for each layer; the last serves the seeds.
        prefetch: As for every sampler of DGL.
    """

    def __init__(self, sizes, **prefetch):
        super().__init__(**prefetch)
        self.sizes = sizes

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        output_nodes, blocks = seed_nodes, []
        for size in reversed(self.sizes):
            blocks.insert(0, self.sample_layer(g, seed_nodes, size))
            seed_nodes = blocks[0].srcdata[dgl.NID]
        return seed_nodes, output_nodes, blocks

    @staticmethod
    def sample_layer(g, seed_nodes, size):
        """The edges from ``size`` of the in-neighbours, drawn by the squares of their edges'
        shares."""
        frontier = dgl.in_subgraph(g, seed_nodes)
        block = dgl.to_block(frontier, seed_nodes)
        src, dst = block.edges()
        share = 1 / block.in_degrees()[dst].float()
        importance = torch.zeros(block.num_src_nodes()).index_add_(0, src, share**2)
        drawn = torch.multinomial(importance, min(size, int((importance > 0).sum())))
        factor = torch.zeros_like(importance)
        factor[drawn] = 1 / importance[drawn]
        kept = (factor[src] > 0).nonzero().squeeze(1)
        ids = block.srcdata[dgl.NID]
        eids = frontier.edata[dgl.EID][block.edata[dgl.EID][kept]]
        chosen = dgl.graph((ids[src[kept]], ids[dst[kept]]), num_nodes=g.num_nodes())
        result = dgl.to_block(chosen, seed_nodes)
        order = result.edata[dgl.EID]
        weight = (share * factor[src])[kept][order]
        result.edata["edge_weights"] = dgl.ops.e_div_v(
            result, weight, dgl.ops.copy_e_sum(result, weight)
        )
        result.edata[dgl.EID] = eids[order]
        return result


def cases(options):
    """The graph's size, and cases by name."""
    graph = generate(options.scale, options.edges, options.dim)
    seeds = random_ids(graph.num_nodes(), options.seeds)
    sizes = [int(size) for size in options.sizes.split(",")]
    made = {}
    for key, names in (("ladies", []), ("ladies_and_rows", ["feat"])):
        theirs = Ladies(sizes, prefetch_node_feats=names)
        ours = pagraph.dgl.LayerSampler(sizes, prefetch_node_feats=names)
        made[key] = Case(
            loaders(graph, seeds, theirs, options.batch_size, ours=ours), count_nodes(*names)
        )
    return size_of(graph), made


def main():
    options = arguments(
        __doc__,
        scale=20,
        edges=10_000_000,
        dim=128,
        sizes="4000,4000,4000",
        batch_size=1000,
        seeds=20_000,
    )
    facts, result = run(__file__, options)
    show(result, facts)
    write("layerwise", options, facts | result)


if __name__ == "__main__":
    main()
