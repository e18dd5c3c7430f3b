"""Recommendation of items with PinSAGE: neighbours are the vertices that short random walks visit,
as in DGL's examples/pytorch/pinsage.

A script for DGL's own loader and samplers only has to change two imports:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader
    -from dgl import sampling
    +from pagraph.dgl import sampling

The shop is generated: users mostly buy items of their own taste, and an item's features say little
about its kind. The score is how often the model ranks two items of the same kind above two random
items.

    python examples/pinsage.py [--epochs 10]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
from pagraph.dgl import sampling

# isort: split
import argparse
import time

import dgl
import torch
import torch.nn.functional as F
from torch import nn


def shop(users, items, kinds):
    """A bipartite graph of users and items; three out of four purchases are of the user's kind."""
    kind = torch.randint(kinds, (items,))
    by_kind = torch.argsort(kind)
    begin = torch.searchsorted(kind[by_kind], torch.arange(kinds))
    size = torch.bincount(kind, minlength=kinds)
    taste = torch.randint(kinds, (users,)).repeat_interleave(8)
    fitting = by_kind[begin[taste] + (torch.rand(len(taste)) * size[taste]).long()]
    bought = torch.where(
        torch.rand(len(taste)) < 0.75, fitting, torch.randint(items, (len(taste),))
    )
    buyer = torch.arange(users).repeat_interleave(8)
    graph = dgl.heterograph(
        {
            ("user", "bought", "item"): (buyer, bought),
            ("item", "bought-by", "user"): (bought, buyer),
        },
        {"user": users, "item": items},
    )
    graph.nodes["item"].data["feat"] = F.one_hot(kind, kinds) + 0.5 * torch.randn(items, kinds)
    return graph, kind


class PairBlocks(dgl.dataloading.BlockSampler):
    """Items; for each, another item that one of its buyers bought, and a random item; and blocks of
    their PinSAGE neighbours."""

    def __init__(self, graph, layers):
        super().__init__(prefetch_node_feats={"item": ["feat"]})
        self.neighbors = [
            sampling.PinSAGESampler(graph, "item", "user", 2, 0.5, 10, 5) for _ in range(layers)
        ]

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        heads = seed_nodes["item"]
        walks, _ = sampling.random_walk(g, heads, metapath=["bought-by", "bought"])
        heads, near = heads[walks[:, 2] >= 0], walks[walks[:, 2] >= 0, 2]
        far = torch.randint(g.num_nodes("item"), heads.shape)
        nodes, places = torch.unique(torch.cat([heads, near, far]), return_inverse=True)
        input_nodes, blocks = self.blocks_of(nodes)
        return input_nodes, places.chunk(3), blocks

    def blocks_of(self, nodes):
        blocks = []
        for neighbors in self.neighbors:
            frontier = neighbors(nodes)
            block = dgl.to_block(frontier, nodes)
            block.edata["weights"] = frontier.edata["weights"][block.edata[dgl.EID]].float()
            nodes = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        return nodes, blocks


class AllBlocks(PairBlocks):
    """Only the blocks of the items."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        input_nodes, blocks = self.blocks_of(seed_nodes["item"])
        return input_nodes, seed_nodes, blocks


class PinSAGE(nn.Module):
    """Layers that average the neighbours by how often walks visited them (Ying et al., KDD 2018,
    section 3.1)."""

    def __init__(self, in_size, hidden_size, layers):
        super().__init__()
        self.first = nn.Linear(in_size, hidden_size)
        self.message = nn.ModuleList([nn.Linear(hidden_size, hidden_size) for _ in range(layers)])
        self.update = nn.ModuleList(
            [nn.Linear(2 * hidden_size, hidden_size) for _ in range(layers)]
        )

    def forward(self, blocks, x):
        h = self.first(x)
        for block, message, update in zip(blocks, self.message, self.update, strict=True):
            block.srcdata["n"] = F.relu(message(h))
            block.update_all(dgl.function.u_mul_e("n", "weights", "m"), dgl.function.sum("m", "n"))
            block.update_all(dgl.function.copy_e("weights", "m"), dgl.function.sum("m", "visits"))
            mean = block.dstdata["n"] / block.dstdata["visits"].clamp(min=1).unsqueeze(1)
            h = F.normalize(update(torch.cat([h[: block.num_dst_nodes()], mean], dim=1)))
        return h


def train(graph, model, options):
    items = torch.arange(graph.num_nodes("item"))
    loader = DataLoader(graph, {"item": items}, PairBlocks(graph, 2), batch_size=256, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        for _, (heads, near, far), blocks in loader:
            h = model(blocks, blocks[0].srcdata["feat"])
            loss = F.softplus(5 * (h[heads] * (h[far] - h[near])).sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")
    return loader


@torch.no_grad()
def auc(graph, model, kind):
    """Share of (two items of one kind, two items) that the model ranks so."""
    items = torch.arange(graph.num_nodes("item"))
    loader = DataLoader(graph, {"item": items}, AllBlocks(graph, 2), batch_size=1024)
    h = torch.cat([model(blocks, blocks[0].srcdata["feat"]) for _, _, blocks in loader])
    a, b = torch.randint(len(items), (2, 100_000))
    scores, same = (h[a] * h[b]).sum(1), kind[a] == kind[b]
    others = scores[~same].sort().values
    return float(torch.searchsorted(others, scores[same]).double().mean()) / len(others)


def main():
    parser = argparse.ArgumentParser(description="PinSAGE")
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dgl.seed(options.seed)
    torch.manual_seed(options.seed)

    graph, kind = shop(2 * options.items, options.items, 10)
    model = PinSAGE(graph.nodes["item"].data["feat"].shape[1], options.hidden, 2)
    loader = train(graph, model, options)
    print(f"test AUC {auc(graph, model, kind):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
