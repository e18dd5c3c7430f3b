"""A GCN on layer-wise samples: LADIES, as in DGL's examples/pytorch/labor/train_lightning.py, which
has its own ladies_sampler.py. Here the sampler is pagraph's, and works with either loader.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

Neighbour sampling draws for each vertex, so batches grow with every layer; layer-wise sampling
draws a fixed number of vertices per layer. A block's edges have weights: the weighted sum over them
estimates the mean over all neighbours.

    python examples/layerwise_gcn.py [FOLDER] [--method ladies|fastgcn] [--sizes 2500,1500]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
import argparse
import time

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from dgl.nn import GraphConv
from torch import nn

import pagraph.dgl
from pagraph.datasets import open_graph, sbm
from pagraph.dgl import LayerSampler


class GCN(nn.Module):
    """Weighted sums over the sampled neighbours, plus the vertex itself."""

    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        sizes = [(in_size, hidden_size), (hidden_size, out_size)]
        self.own = nn.ModuleList([nn.Linear(*size) for size in sizes])
        self.conv = nn.ModuleList(
            [GraphConv(*size, norm="none", bias=False, allow_zero_in_degree=True) for size in sizes]
        )

    def layer(self, place, block, h):
        neighbours = self.conv[place](block, h, edge_weight=block.edata["edge_weights"])
        return self.own[place](h[: block.num_dst_nodes()]) + neighbours

    def forward(self, blocks, x):
        return self.layer(1, blocks[1], F.relu(self.layer(0, blocks[0], x)))


def sampler_of(sizes, method):
    return LayerSampler(
        sizes, method=method, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )


@torch.no_grad()
def evaluate(model, graph, nodes, device):
    """Share of `nodes` that are classified correctly from all of their neighbours: no vertex is
    left out of a layer."""
    loader = DataLoader(
        graph, nodes, sampler_of([graph.num_nodes()] * 2, "ladies"), device=device, batch_size=1024
    )
    model.eval()
    right = 0
    for _, _, blocks in loader:
        predicted = model(blocks, blocks[0].srcdata["feat"]).argmax(dim=1)
        right += int((predicted == blocks[-1].dstdata["label"]).sum())
    return right / len(nodes)


def train(graph, model, device, options):
    nodes = {part: graph.ndata[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "val")}
    sampler = sampler_of([int(size) for size in options.sizes.split(",")], options.method)
    loader = DataLoader(
        graph, nodes["train"], sampler, device=device, batch_size=options.batch_size, shuffle=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for _, _, blocks in loader:
            loss = F.cross_entropy(
                model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, graph, nodes["val"], device)
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="A GCN on layer-wise samples")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 vertices"
    )
    parser.add_argument("--method", choices=["ladies", "fastgcn"], default="ladies")
    parser.add_argument(
        "--sizes", default="2500,1500", help="vertices drawn per layer; the last serves the seeds"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dgl.seed(options.seed)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # shuffles, with DGL's loader and with pagraph's

    graph = pagraph.dgl.to_dgl(
        open_graph(options.folder) if options.folder else sbm(8000, num_features=32)
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(graph.ndata["label"].max()) + 1
    model = GCN(graph.ndata["feat"].shape[1], options.hidden, classes).to(device)
    loader = train(graph, model, device, options)
    test_nodes = graph.ndata["test_mask"].nonzero().squeeze(1)
    print(f"test accuracy {evaluate(model, graph, test_nodes, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
