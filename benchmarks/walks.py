"""Random walks and PinSAGE's batches: ours against DGL's and, for uniform walks, pyg-lib's, in
turn.

Walks are over an RMAT graph: uniform, by edge weight, node2vec's with two pairs of p and q; the
figure is nanoseconds a step. PinSAGE's batches are over a bipartite graph whose items are drawn by
a power law: neighbours alone, and two layers of blocks with rows through the loaders, see
contest.py.

Run: ``python benchmarks/walks.py`` (about 10 minutes, 6 GiB of memory; pyg-lib as
``build_pyg_lib.py`` builds it).
"""

import torch
import torch_geometric.typing
from contest import Case, arguments, count_nodes, loaders, run, show, write
from rmat_graph import generate, random_ids, size_of

from pagraph.dgl import sampling as ours
from pagraph.pyg import random_walk

import dgl  # isort: skip
from dgl import sampling as theirs  # isort: skip


class Calls:
    """Calls of a function for each part of the seeds, in the place of a loader."""

    def __init__(self, call, parts):
        self._call, self._parts = call, parts

    def __iter__(self):
        for part in self._parts:
            self._call(part)
            yield len(part)


def walk_cases(graph, starts, length):
    """Cases of walks, each from all of ``starts`` in one call."""
    rowptr, col, _ = graph.adj_tensors("csr")
    node2vec = {"p 0.5, q 2": (0.5, 2.0), "p 0.25, q 4": (0.25, 4.0)}
    settings = {"uniform": {}, "restart": {"restart_prob": 0.1}, "weights": {"prob": "weight"}}

    def walk(of, more):
        return lambda nodes: of.random_walk(graph, nodes, length=length, **more)

    def biased(of, p, q):
        return lambda nodes: of.node2vec_random_walk(graph, nodes, p, q, length)

    walks = {
        name: {"dgl": walk(theirs, more), "pagraph": walk(ours, more)}
        for name, more in settings.items()
    }
    for name, (p, q) in node2vec.items():
        walks[name] = {"dgl": biased(theirs, p, q), "pagraph": biased(ours, p, q)}
    uniform = walks["uniform"]
    uniform["pagraph.pyg"] = lambda nodes: random_walk(rowptr, col, nodes, length)
    if torch_geometric.typing.WITH_PYG_LIB:
        uniform["pyg_lib"] = lambda nodes: torch.ops.pyg.random_walk(
            rowptr, col, nodes, length, 1.0, 1.0
        )
    return {name: calls(of_case, [starts], length) for name, of_case in walks.items()}


def calls(contenders, parts, units):
    """A case of functions, each called once for each part; a seed stands for so many units."""
    loaders = {name: lambda call=call: Calls(call, parts) for name, call in contenders.items()}
    return Case(loaders, lambda seeds: {"units": seeds * units})


class PinSAGEBlocks(dgl.dataloading.BlockSampler):
    """A block for each layer, of the neighbours that a PinSAGE sampler finds."""

    def __init__(self, neighbors, layers, names):
        super().__init__(prefetch_node_feats={neighbors.ntype: names})
        self.neighbors, self.layers = neighbors, layers

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        """See DGL's BlockSampler."""
        seeds, blocks = seed_nodes[self.neighbors.ntype], []
        for _ in range(self.layers):
            block = dgl.to_block(self.neighbors(seeds), seeds)
            seeds = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        return seeds, seed_nodes, blocks


def bipartite(num_users, num_items, num_edges, dim):
    """Users and the items they bought, which follow a power law."""
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(num_users, (num_edges,), generator=generator)
    items = (num_items * torch.rand(num_edges, generator=generator) ** 3).long()
    graph = dgl.heterograph(
        {("user", "bought", "item"): (users, items), ("item", "bought-by", "user"): (items, users)},
        {"user": num_users, "item": num_items},
    )
    graph.nodes["item"].data["feat"] = torch.randn(num_items, dim, generator=generator)
    return graph


def cases(options):
    """The graph's size; cases of walks, and of what PinSAGE samples."""
    graph = generate(options.scale, options.edges, 0)
    generator = torch.Generator().manual_seed(2)
    graph.edata["weight"] = torch.rand(graph.num_edges(), generator=generator) + 0.01
    made = walk_cases(graph, random_ids(graph.num_nodes(), options.starts), options.length)
    shop = bipartite(2 * options.items, options.items, 20 * options.items, options.dim)
    seeds = random_ids(options.items, 20 * options.batch_size)
    samplers = {
        "dgl": theirs.PinSAGESampler(shop, "item", "user", 2, 0.5, 10, 3),
        "pagraph": ours.PinSAGESampler(shop, "item", "user", 2, 0.5, 10, 3),
    }
    made["pinsage_neighbours"] = calls(samplers, seeds.split(options.batch_size), 1)
    for key, names in (("pinsage", []), ("pinsage_and_rows", ["feat"])):
        mine, dgls = (PinSAGEBlocks(samplers[name], 2, names) for name in ("pagraph", "dgl"))
        case = loaders(shop, {"item": seeds}, dgls, options.batch_size, ours=mine)
        made[key] = Case(case, count_nodes(*names))
    return size_of(graph), made


def main():
    options = arguments(
        __doc__,
        scale=18,
        edges=2_500_000,
        length=20,
        starts=50_000,
        items=200_000,
        dim=128,
        batch_size=1000,
    )
    facts, result = run(__file__, options)
    batches = {key: result[key] for key in ("pinsage", "pinsage_and_rows")}
    for key in result.keys() - batches.keys():
        for name, r in result[key]["loaders"].items():
            r["nanoseconds_a_unit"] = r["median"] / r["units"] * 1e9
            what = "seed" if key == "pinsage_neighbours" else "step"
            print(
                f"{key:18s} {name:12s} {r['nanoseconds_a_unit']:8.1f} ns a {what}  "
                f"{r['times_as_fast_as_dgl']:5.2f} x"
            )
    show(batches, facts)
    write("walks", options, facts | result)


if __name__ == "__main__":
    main()
