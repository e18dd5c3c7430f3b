"""R-GCN on sampled neighbours of a heterograph, as in DGL's examples/pytorch/rgcn/entity_sample.py
and examples/pytorch/ogb/ogbn-mag/hetero_rgcn.py.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

Indices, prefetched columns and blocks are by vertex type. Papers and authors have features of
different widths. Institutions have none; the model learns an embedding for each. Run it on a folder
that `pagraph generate citation` wrote, or without arguments on a generated graph:

    python examples/rgcn_hetero.py [FOLDER] [--epochs 6]
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
from dgl.dataloading import MultiLayerFullNeighborSampler, NeighborSampler
from dgl.nn import GraphConv, HeteroGraphConv
from torch import nn

import pagraph.dgl
from pagraph.datasets import citation, open_graph
from pagraph.dgl.typing import Block, NodeGraph

FEATURES = {"paper": ["feat"], "author": ["feat"]}
LABELS = {"paper": ["label"]}


class RelationalLayer(nn.Module):
    """A mean over the neighbours of each relation, with a separate weight matrix, plus the vertex
    itself."""

    def __init__(
        self,
        edge_types: list[tuple[str, str, str]],
        vertex_types: list[str],
        size: int,
        out_size: int,
    ):
        super().__init__()
        self.conv = HeteroGraphConv(
            {e: GraphConv(size, out_size, norm="right", bias=False) for e in edge_types}
        )
        self.own = nn.ModuleDict({t: nn.Linear(size, out_size) for t in vertex_types})

    def forward(self, block: Block, h: dict[str, torch.Tensor]):
        own = {t: self.own[t](h[t][: block.num_dst_nodes(t)]) for t in h}
        return {t: x + own[t] for t, x in self.conv(block, h).items()}


class RGCN(nn.Module):
    def __init__(self, graph: NodeGraph, hidden_size: int, out_size: int):
        super().__init__()
        columns = {t: graph.nodes[t].data for t in graph.ntypes}
        self.inputs = nn.ModuleDict(
            {
                t: nn.Linear(columns[t]["feat"].shape[1], hidden_size)
                if "feat" in columns[t]
                else nn.Embedding(graph.num_nodes(t), hidden_size)
                for t in graph.ntypes
            }
        )
        self.first = RelationalLayer(graph.etypes, graph.ntypes, hidden_size, hidden_size)
        self.last = RelationalLayer(graph.etypes, graph.ntypes, hidden_size, out_size)
        self.dropout = nn.Dropout(0.3)

    def forward(self, blocks: list[Block], input_nodes: dict[str, torch.Tensor]):
        feat = blocks[0].srcdata["feat"]
        h = {t: layer(feat[t] if t in feat else input_nodes[t]) for t, layer in self.inputs.items()}
        h = {t: self.dropout(F.relu(x)) for t, x in self.first(blocks[0], h).items()}
        return self.last(blocks[1], h)["paper"]


@torch.no_grad()
def evaluate(model: RGCN, graph: NodeGraph, papers: torch.Tensor, device: torch.device):
    """Share of `papers` whose field of study is predicted correctly from all of their
    neighbours."""
    sampler = MultiLayerFullNeighborSampler(2, prefetch_node_feats=FEATURES, prefetch_labels=LABELS)
    loader = DataLoader(graph, {"paper": papers}, sampler, device=device, batch_size=1024)
    model.eval()
    right = 0
    for input_nodes, _, blocks in loader:
        predicted = model(blocks, input_nodes).argmax(dim=1)
        right += int((predicted == blocks[-1].dstdata["label"]["paper"]).sum())
    return right / len(papers)


def train(graph: NodeGraph, model: RGCN, device: torch.device, options: argparse.Namespace):
    papers = {
        part: graph.nodes["paper"].data[f"{part}_mask"].nonzero().squeeze(1)
        for part in ("train", "val")
    }
    sampler = NeighborSampler([10, 10], prefetch_node_feats=FEATURES, prefetch_labels=LABELS)
    loader = DataLoader(
        graph,
        {"paper": papers["train"]},
        sampler,
        device=device,
        batch_size=options.batch_size,
        shuffle=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for input_nodes, _, blocks in loader:
            loss = F.cross_entropy(model(blocks, input_nodes), blocks[-1].dstdata["label"]["paper"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, graph, papers["val"], device)
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="R-GCN on a heterograph")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 papers"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dgl.seed(options.seed)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # shuffles, with DGL's loader and with pagraph's

    graph = pagraph.dgl.to_dgl(open_graph(options.folder) if options.folder else citation(8000))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(graph.nodes["paper"].data["label"].max()) + 1
    model = RGCN(graph, options.hidden, classes).to(device)
    loader = train(graph, model, device, options)
    test_papers = graph.nodes["paper"].data["test_mask"].nonzero().squeeze(1)
    print(f"test accuracy {evaluate(model, graph, test_papers, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
