"""The core loader with PyG's layers: `pagraph.Loader` samples one block per layer, as DGL does, and
`block.to_pyg()` returns an `edge_index`, which a PyG layer accepts with a pair of features, those
of the sources and of the destinations.

examples/pyg_node_classification.py does the same with a PyG loader. This script is for those who
want blocks, with which a layer computes only its own destinations. Run it on a graph folder, or
without arguments on a generated block-model graph:

    python examples/pyg_blocks.py [FOLDER] [--epochs 5]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import SAGEConv

from pagraph import Loader, NeighborSampler
from pagraph.datasets import open_graph, sbm


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size), SAGEConv(hidden_size, out_size)]
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, blocks, x):
        for place, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = self.dropout(F.relu(x)) if place else x
            x = layer((x, x[: block.num_dst]), block.to_pyg())
        return x


def load(graph, ids, fanouts, device, shuffle=False):
    sampler = NeighborSampler(fanouts)
    return Loader(
        graph,
        ids,
        sampler,
        fields=["feat"],
        labels=["label"],
        batch_size=1024,
        shuffle=shuffle,
        device=device,
    )


@torch.no_grad()
def evaluate(model, graph, ids, device):
    """Share of `ids` whose class is predicted correctly from all of their neighbours."""
    model.eval()
    right = 0
    for batch in load(graph, ids, [-1, -1], device):
        right += int(
            (
                model(batch.blocks, batch.features["feat"]).argmax(dim=1) == batch.labels["label"]
            ).sum()
        )
    return right / len(ids)


def train(graph, ids, model, device, epochs):
    loader = load(graph, ids["train"], [10, 10], device, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            loss = F.cross_entropy(
                model(batch.blocks, batch.features["feat"]), batch.labels["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, graph, ids["val"], device)
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE of PyG's layers on blocks")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    graph = open_graph(args.folder) if args.folder else sbm(20_000, num_features=32)
    ids = {
        part: graph.ndata[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "val", "test")
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = SAGE(graph.ndata["feat"].shape[1], args.hidden, int(graph.ndata["label"].max()) + 1).to(
        device
    )
    loader = train(graph, ids, model, device, args.epochs)
    print(f"test accuracy {evaluate(model, graph, ids['test'], device):.4f}")
    print(loader.stats)


if __name__ == "__main__":
    main()
