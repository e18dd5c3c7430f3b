"""A deep GraphSAGE on subgraphs: ShaDow, Cluster-GCN and GraphSAINT, the latter two as in DGL's
examples/pytorch/cluster_gcn/cluster_gcn.py and examples/pytorch/graphsaint/train_sampling.py.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

A batch is one subgraph, on which a model of any depth runs. With ShaDow it is the neighbourhood of
the seeds, and only the seeds are trained on; with Cluster-GCN, a few clusters that METIS found;
with GraphSAINT, the vertices of random walks.

    python examples/dgl_subgraphs.py [FOLDER] [--sampler shadow|cluster|saint] [--epochs 8]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
import argparse
import tempfile
import time
from pathlib import Path

import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import ClusterGCNSampler, SAINTSampler, ShaDowKHopSampler
from dgl.nn import SAGEConv
from torch import nn

import pagraph.dgl
from pagraph.datasets import open_graph, sbm
from pagraph.dgl.typing import NodeGraph

COLUMNS = ["feat", "label", "train_mask"]


class SAGE(nn.Module):
    """Three layers, all on the same vertices."""

    def __init__(self, in_size: int, hidden_size: int, out_size: int):
        super().__init__()
        sizes = [in_size, hidden_size, hidden_size, out_size]
        self.layers = nn.ModuleList([SAGEConv(*pair, "mean") for pair in zip(sizes, sizes[1:])])  # noqa: B905
        self.dropout = nn.Dropout(0.5)

    def forward(self, graph: NodeGraph, h: torch.Tensor):
        for layer in self.layers[:-1]:
            h = self.dropout(F.relu(layer(graph, h)))
        return self.layers[-1](graph, h)


def subgraphs(graph: NodeGraph, nodes: torch.Tensor, name: str, options: argparse.Namespace):
    """The loader, and a function from a batch to its subgraph and the vertices to train on."""
    settings = {"device": options.device, "shuffle": True}
    if name == "shadow":
        sampler = ShaDowKHopSampler([10, 5], prefetch_node_feats=COLUMNS)
        loader = DataLoader(graph, nodes, sampler, batch_size=options.batch_size, **settings)
        return loader, lambda batch: (batch[2], torch.arange(len(batch[1]), device=options.device))
    if name == "cluster":
        with tempfile.TemporaryDirectory() as folder:
            sampler = ClusterGCNSampler(
                graph, 50, str(Path(folder) / "clusters"), prefetch_ndata=COLUMNS
            )
        loader = DataLoader(graph, torch.arange(50), sampler, batch_size=5, **settings)
    else:
        sampler = SAINTSampler("walk", (options.batch_size, 3), prefetch_ndata=COLUMNS)
        loader = DataLoader(graph, torch.arange(10), sampler, batch_size=1, **settings)
    return loader, lambda batch: (batch, batch.ndata["train_mask"].nonzero().squeeze(1))


@torch.no_grad()
def evaluate(model: SAGE, graph: NodeGraph, part: str):
    """Share of a set's vertices whose class is predicted correctly from the whole graph."""
    model.eval()
    mask = graph.ndata[f"{part}_mask"]
    predicted = model(graph, graph.ndata["feat"]).argmax(dim=1)
    return float((predicted == graph.ndata["label"])[mask].float().mean())


def train(graph: NodeGraph, model: SAGE, options: argparse.Namespace):
    nodes, whole = graph.ndata["train_mask"].nonzero().squeeze(1), graph.to(options.device)
    loader, of_batch = subgraphs(graph, nodes, options.sampler, options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            subgraph, places = of_batch(batch)
            predicted = model(subgraph, subgraph.ndata["feat"])
            loss = F.cross_entropy(predicted[places], subgraph.ndata["label"][places])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, mean = time.time() - begin, sum(losses) / len(losses)
        print(
            f"epoch {epoch}  loss {mean:.4f}  validation {evaluate(model, whole, 'val'):.4f}  "
            f"{seconds:.2f} s"
        )
    print(f"test accuracy {evaluate(model, whole, 'test'):.4f}")
    return loader


def main():
    parser = argparse.ArgumentParser(description="A deep GraphSAGE on subgraphs")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 vertices"
    )
    parser.add_argument("--sampler", choices=["shadow", "cluster", "saint"], default="shadow")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dgl.seed(options.seed)
    torch.manual_seed(options.seed)

    graph = pagraph.dgl.to_dgl(
        open_graph(options.folder) if options.folder else sbm(8000, num_features=32)
    )
    classes = int(graph.ndata["label"].max()) + 1
    model = SAGE(graph.ndata["feat"].shape[1], options.hidden, classes).to(options.device)
    loader = train(graph, model, options)
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
