"""Layer-by-layer inference for all vertices, which PyG's examples/reddit.py and
examples/ogbn_products_sage.py do by hand.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import NeighborLoader
    +from pagraph.pyg import NeighborLoader

The model is trained on sampled neighbours, and then computed for every vertex with all neighbours:
`pagraph.inference` computes one layer after the other, within its memory limit, and writes the
result into a mapped file. Features may be larger than memory. Run it on a graph folder, or without
arguments on a generated block-model graph:

    python examples/pyg_inference.py [FOLDER] [--memory 1GiB]
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

import pagraph
from pagraph.datasets import open_graph, sbm, write_graph
from pagraph.pyg import NeighborLoader, to_pyg


class SAGE(torch.nn.Module):
    def __init__(self, in_size, hidden, out_size):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(in_size, hidden), SAGEConv(hidden, out_size)])
        self.norm = torch.nn.BatchNorm1d(hidden)

    @property
    def steps(self):
        """The steps, in order: convolutions, and functions of rows."""
        return [self.convs[0], self.norm, torch.relu, self.convs[1]]

    def forward(self, x, edge_index):
        x = F.dropout(torch.relu(self.norm(self.convs[0](x, edge_index))), training=self.training)
        return self.convs[1](x, edge_index)


def train(data, model, device, epochs):
    loader = NeighborLoader(
        data, [10, 10], input_nodes=data.train_mask, batch_size=1024, shuffle=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()
    for epoch in range(epochs):
        begin, losses = time.time(), []
        for batch in loader:
            batch = batch.to(device)
            loss = F.cross_entropy(
                model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")


def main():
    parser = argparse.ArgumentParser(description="Inference by layers for all vertices")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--memory", default="1GiB", help="what inference may take")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    with tempfile.TemporaryDirectory() as place:
        folder = args.folder or Path(place, "graph")
        if not args.folder:
            write_graph(sbm(20_000, num_features=32), folder)
        graph = open_graph(folder)  # features are mapped
        data = to_pyg(graph)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = SAGE(data.num_features, args.hidden, int(data.y.max()) + 1).to(device)
        train(data, model, device, args.epochs)

        begin = time.time()
        scores = pagraph.inference(
            graph, model.steps, out=Path(place, "scores.npy"), memory=args.memory
        )
        print(f"scores of {len(scores):,} vertices in {time.time() - begin:.2f} s")
        right = scores.argmax(dim=1) == data.y
        print(f"test accuracy {float(right[data.test_mask].float().mean()):.4f}")
        with torch.no_grad():
            at_once = model.cpu().eval()(data.x, data.edge_index)
        print(f"equal to the whole graph at once: {torch.allclose(scores, at_once, atol=1e-4)}")


if __name__ == "__main__":
    main()
