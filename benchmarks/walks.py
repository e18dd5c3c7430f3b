"""Random walks and PinSAGE's batches: ours against DGL's and, for uniform walks, pyg-lib's, in
turn.

Walks are over an RMAT graph: uniform, by edge weight, node2vec's with two pairs of p and q; the
figure is nanoseconds a step. PinSAGE's batches are over a bipartite graph whose items are drawn by
a power law: neighbours alone, and two layers of blocks with rows through the loaders, see
contest.py.

Run: ``python benchmarks/walks.py`` (about 5 minutes, 3 GiB of memory; pyg-lib as
``build_pyg_lib.py`` builds it).
"""

import os

# Spinning threads would slow all down on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import time

import torch
import torch_geometric.typing
from contest import Case, arguments, count_nodes, loaders, run, show
from report import summarise, write
from rmat_graph import generate, random_ids

from pagraph.dgl import sampling as ours
from pagraph.pyg import random_walk

import dgl  # isort: skip
from dgl import sampling as theirs  # isort: skip


def walk_cases(graph, starts, length):
    """Case to contender to a function that walks."""
    rowptr, col, _ = graph.adj_tensors("csr")
    cases = {
        "uniform": lambda of: of.random_walk(graph, starts, length=length),
        "restart": lambda of: of.random_walk(graph, starts, length=length, restart_prob=0.1),
        "weights": lambda of: of.random_walk(graph, starts, length=length, prob="weight"),
        "p 0.5, q 2": lambda of: of.node2vec_random_walk(graph, starts, 0.5, 2.0, length),
        "p 0.25, q 4": lambda of: of.node2vec_random_walk(graph, starts, 0.25, 4.0, length),
    }
    made = {}
    for name, walk in cases.items():
        made[name] = {
            "dgl": lambda walk=walk: walk(theirs),
            "pagraph": lambda walk=walk: walk(ours),
        }
    made["uniform"]["pagraph.pyg"] = lambda: random_walk(rowptr, col, starts, length)
    if torch_geometric.typing.WITH_PYG_LIB:
        made["uniform"]["pyg_lib"] = lambda: torch.ops.pyg.random_walk(
            rowptr, col, starts, length, 1.0, 1.0
        )
    return made


def in_turn(cases, steps, rounds):
    """Nanoseconds a step of every contender, round after round, the first one not counted."""
    taken = {case: {name: [] for name in contenders} for case, contenders in cases.items()}
    for round_ in range(rounds + 1):
        for case, contenders in cases.items():
            for name, call in contenders.items():
                begin = time.perf_counter()
                call()
                if round_:
                    taken[case][name].append((time.perf_counter() - begin) / steps * 1e9)
    result = {
        case: {name: summarise(runs) for name, runs in of_case.items()}
        for case, of_case in taken.items()
    }
    for of_case in result.values():
        for row in of_case.values():
            row["times_as_fast_as_dgl"] = of_case["dgl"]["median"] / row["median"]
    return result


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
    graph = generate(options.scale, options.edges, 0)
    graph.edata["weight"] = (
        torch.rand(graph.num_edges(), generator=torch.Generator().manual_seed(2)) + 0.01
    )
    starts = random_ids(graph.num_nodes(), options.starts)
    walks = in_turn(
        walk_cases(graph, starts, options.length), options.starts * options.length, options.rounds
    )
    for case, of_case in walks.items():
        for name, row in of_case.items():
            print(
                f"{case:12s} {name:12s} {row['median']:8.1f} ns a step  "
                f"{row['times_as_fast_as_dgl']:5.2f} x"
            )
    shop = bipartite(2 * options.items, options.items, 20 * options.items, options.dim)
    seeds = random_ids(options.items, 20 * options.batch_size)
    samplers = {
        "pagraph": ours.PinSAGESampler(shop, "item", "user", 2, 0.5, 10, 3),
        "dgl": theirs.PinSAGESampler(shop, "item", "user", 2, 0.5, 10, 3),
    }
    neighbors = {
        name: lambda of=of: [of(part) for part in seeds.split(options.batch_size)]
        for name, of in samplers.items()
    }
    found = in_turn({"neighbours": neighbors}, len(seeds), options.rounds)["neighbours"]
    for name, row in found.items():
        print(
            f"PinSAGE      {name:12s} {row['median']:8.1f} ns a seed  "
            f"{row['times_as_fast_as_dgl']:5.2f} x"
        )
    cases = {}
    for key, names in (("pinsage", []), ("pinsage_and_rows", ["feat"])):
        mine, dgls = (PinSAGEBlocks(samplers[name], 2, names) for name in ("pagraph", "dgl"))
        case = loaders(shop, {"item": seeds}, dgls, options.batch_size, ours=mine)
        cases[key] = Case(case, count_nodes(*names))
    batches = run(cases, options.rounds)
    show(batches, shop)
    write(
        "walks", {"options": vars(options), "walks": walks, "pinsage_neighbours": found} | batches
    )


if __name__ == "__main__":
    main()
