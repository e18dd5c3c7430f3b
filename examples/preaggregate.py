"""GraphSAGE with the first layer's neighbour means computed once, so that training samples one hop
fewer. (DGL's examples/pytorch/sign computes the means of all hops beforehand; computing only one
leaves the model unchanged.)

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

Run it on a graph folder, or without arguments on a generated block-model graph:

    python examples/preaggregate.py [FOLDER] [--epochs 5]
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
from dgl.dataloading import MultiLayerFullNeighborSampler, NeighborSampler
from dgl.nn import SAGEConv
from torch import nn

import pagraph.dgl
from pagraph.datasets import open_graph, sbm
from pagraph.train.preaggregation import preaggregate


class SAGE(nn.Module):
    fields = ["feat"]

    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size, "mean"), SAGEConv(hidden_size, out_size, "mean")]
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, blocks, feat):
        h = self.layers[0](blocks[0], feat)
        return self.layers[1](blocks[1], self.dropout(F.relu(h)))


class PreaggregatedSAGE(SAGE):
    """The same parameters as GraphSAGE; the first layer reads its neighbours' means from a field,
    and needs no block."""

    fields = ["feat", "feat_mean"]

    def forward(self, blocks, feat, mean):
        h = self.layers[0].fc_self(feat) + self.layers[0].fc_neigh(mean)
        return self.layers[1](blocks[0], self.dropout(F.relu(h)))


def predict(model, blocks):
    return model(blocks, *(blocks[0].srcdata[name] for name in model.fields))


def evaluate(model, graph, nodes, device, hops):
    """Share of `nodes` whose class is predicted correctly from all of their neighbours."""
    sampler = MultiLayerFullNeighborSampler(
        hops, prefetch_node_feats=model.fields, prefetch_labels=["label"]
    )
    loader = DataLoader(graph, nodes, sampler, device=device, batch_size=1024)
    model.eval()
    right = 0
    with torch.no_grad():
        for _, _, blocks in loader:
            right += int(
                (predict(model, blocks).argmax(dim=1) == blocks[-1].dstdata["label"]).sum()
            )
    return right / len(nodes)


def train(graph, model, device, epochs, fanouts):
    train_nodes = graph.ndata["train_mask"].nonzero().squeeze(1)
    val_nodes = graph.ndata["val_mask"].nonzero().squeeze(1)
    sampler = NeighborSampler(fanouts, prefetch_node_feats=model.fields, prefetch_labels=["label"])
    loader = DataLoader(
        graph, train_nodes, sampler, device=device, batch_size=1024, shuffle=True, num_workers=0
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(epochs):
        begin, losses, rows = time.time(), [], 0
        model.train()
        for input_nodes, _, blocks in loader:
            loss = F.cross_entropy(predict(model, blocks), blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            rows += len(input_nodes) * len(model.fields)
        seconds, accuracy = (
            time.time() - begin,
            evaluate(model, graph, val_nodes, device, len(fanouts)),
        )
        mean = sum(losses) / len(losses)
        print(
            f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {rows:,} rows  "
            f"{seconds:.2f} s"
        )
    return loader


def run(name, graph, make_model, fanouts, args):
    dgl.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(graph.ndata["label"].max()) + 1
    model = make_model(graph.ndata["feat"].shape[1], args.hidden, classes).to(device)
    loader = train(graph, model, device, args.epochs, fanouts)
    test_nodes = graph.ndata["test_mask"].nonzero().squeeze(1)
    print(f"test accuracy, {name} {evaluate(model, graph, test_nodes, device, len(fanouts)):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


def main():
    parser = argparse.ArgumentParser(
        description="GraphSAGE with and without pre-aggregated features"
    )
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    source = open_graph(args.folder) if args.folder else sbm(20_000, num_features=32)
    run("ordinary", pagraph.dgl.to_dgl(source), SAGE, [10, 10], args)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        preaggregate(source, Path(folder, "graph"), model="sage")
        print(f"pre-aggregated in {time.time() - begin:.2f} s")
        graph = pagraph.dgl.to_dgl(open_graph(Path(folder, "graph")))
        run("pre-aggregated", graph, PreaggregatedSAGE, [10], args)


if __name__ == "__main__":
    main()
