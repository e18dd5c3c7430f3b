"""Node classification with GraphSAGE on sampled neighbours, as in DGL's
examples/pytorch/graphsage/node_classification.py.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

Run it on a graph folder, or without arguments on a generated block-model graph:

    python examples/node_classification.py [FOLDER] [--epochs 5]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
import argparse
import time

import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import MultiLayerFullNeighborSampler, NeighborSampler
from dgl.nn import SAGEConv
from torch import nn

import pagraph.dgl
from pagraph.datasets import open_graph, sbm
from pagraph.dgl.typing import Block, NodeGraph


class SAGE(nn.Module):
    def __init__(self, in_size: int, hidden_size: int, out_size: int):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size, "mean"), SAGEConv(hidden_size, out_size, "mean")]
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, blocks: list[Block], x: torch.Tensor):
        h = self.layers[0](blocks[0], x)
        return self.layers[1](blocks[1], self.dropout(F.relu(h)))


def evaluate(model: SAGE, graph: NodeGraph, nodes: torch.Tensor, device: torch.device):
    """Share of `nodes` whose class is predicted correctly from all of their neighbours."""
    sampler = MultiLayerFullNeighborSampler(
        2, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    loader = DataLoader(graph, nodes, sampler, device=device, batch_size=1024)
    model.eval()
    right = 0
    with torch.no_grad():
        for _, _, blocks in loader:
            predicted = model(blocks, blocks[0].srcdata["feat"]).argmax(dim=1)
            right += int((predicted == blocks[-1].dstdata["label"]).sum())
    return right / len(nodes)


def train(graph: NodeGraph, model: SAGE, device: torch.device, epochs: int):
    train_nodes = graph.ndata["train_mask"].nonzero().squeeze(1)
    val_nodes = graph.ndata["val_mask"].nonzero().squeeze(1)
    sampler = NeighborSampler([10, 10], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(
        graph, train_nodes, sampler, device=device, batch_size=1024, shuffle=True, num_workers=0
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(epochs):
        begin, losses = time.time(), []
        model.train()
        for _, _, blocks in loader:
            logits = model(blocks, blocks[0].srcdata["feat"])
            loss = F.cross_entropy(logits, blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, graph, val_nodes, device)
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE on sampled neighbours")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dgl.seed(args.seed)
    torch.manual_seed(args.seed)

    graph = pagraph.dgl.to_dgl(
        open_graph(args.folder) if args.folder else sbm(20_000, num_features=32)
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(graph.ndata["label"].max()) + 1
    model = SAGE(graph.ndata["feat"].shape[1], args.hidden, classes).to(device)
    loader = train(graph, model, device, args.epochs)
    test_nodes = graph.ndata["test_mask"].nonzero().squeeze(1)
    print(f"test accuracy {evaluate(model, graph, test_nodes, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
