"""Full-neighbour inference layer by layer, as in DGL's
examples/pytorch/graphsage/lightning/node_classification.py and
examples/multigpu/node_classification_sage.py.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

The neighbourhood of a batch grows with every layer. If one layer is computed for all vertices
before the next, one hop is enough. The column that the loader prefetches is replaced after each
layer, with the same loader: a batch always has the values that the graph holds now. The result
equals one forward pass over the whole graph.

    python examples/layerwise_inference.py [FOLDER] [--epochs 12]
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
from dgl.nn import SAGEConv
from torch import nn

import pagraph.dgl
from pagraph.datasets import open_graph, sbm


class SAGE(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(a, b, "mean") for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
        )

    def step(self, place, block, h):
        """One layer, with the activation that follows it."""
        h = self.layers[place](block, h)
        return h if place == len(self.layers) - 1 else F.relu(h)

    def forward(self, blocks, h):
        for place, block in enumerate(blocks):
            h = self.step(place, block, h)
        return h


def train(graph, model, device, epochs):
    nodes = graph.ndata["train_mask"].nonzero().squeeze(1)
    sampler = NeighborSampler(
        [10] * len(model.layers), prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    loader = DataLoader(graph, nodes, sampler, device=device, batch_size=512, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()
    for epoch in range(epochs):
        begin, losses = time.time(), []
        for _, _, blocks in loader:
            loss = F.cross_entropy(
                model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")


@torch.no_grad()
def infer(graph, model, device):
    """The output of every vertex from all of its neighbours, one layer after the other."""
    sampler = MultiLayerFullNeighborSampler(1, prefetch_node_feats=["h"])
    nodes = torch.arange(graph.num_nodes())
    graph.ndata["h"] = graph.ndata["feat"]
    loader = DataLoader(graph, nodes, sampler, device=device, batch_size=2048)
    for place in range(len(model.layers)):
        outputs = [
            model.step(place, blocks[0], blocks[0].srcdata["h"]).cpu() for _, _, blocks in loader
        ]
        graph.ndata["h"] = torch.cat(outputs)  # of another width, too
    return graph.ndata.pop("h")


@torch.no_grad()
def sampled_accuracy(graph, model, nodes, device):
    """Share of `nodes` that are classified correctly from sampled neighbours."""
    sampler = NeighborSampler(
        [10] * len(model.layers), prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    right = 0
    for _, _, blocks in DataLoader(graph, nodes, sampler, device=device, batch_size=2048):
        predicted = model(blocks, blocks[0].srcdata["feat"]).argmax(dim=1)
        right += int((predicted == blocks[-1].dstdata["label"]).sum())
    return right / len(nodes)


def main():
    parser = argparse.ArgumentParser(description="Inference layer by layer")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 5000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dgl.seed(options.seed)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # shuffles, with DGL's loader and with pagraph's

    graph = pagraph.dgl.to_dgl(
        open_graph(options.folder) if options.folder else sbm(5000, num_features=32)
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(graph.ndata["label"].max()) + 1
    sizes = [graph.ndata["feat"].shape[1], *[options.hidden] * (options.layers - 1), classes]
    model = SAGE(sizes).to(device)
    train(graph, model, device, options.epochs)

    model.eval()
    test_nodes = graph.ndata["test_mask"].nonzero().squeeze(1)
    by_layers = infer(graph, model, device)
    with torch.no_grad():
        at_once = model.cpu()([graph] * options.layers, graph.ndata["feat"])
    model.to(device)
    right = by_layers.argmax(dim=1) == graph.ndata["label"]
    print(f"test accuracy {float(right[test_nodes].float().mean()):.4f}")
    print(f"from sampled neighbours {sampled_accuracy(graph, model, test_nodes, device):.4f}")
    print(f"equal to the whole graph at once: {torch.allclose(by_layers, at_once, atol=1e-4)}")


if __name__ == "__main__":
    main()
