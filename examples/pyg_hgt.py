"""Heterogeneous Graph Transformer on batches with the same number of vertices of each type, sampled
as in PyG's examples/hetero/to_hetero_mag.py with --use_hgt_loader.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import HGTLoader
    +from pagraph.pyg import HGTLoader

It needs no torch-sparse. Papers and authors have features of different widths. Institutions have
none; the model learns an embedding for each. Run it on a folder that `pagraph generate citation`
wrote, or without arguments on a generated graph:

    python examples/pyg_hgt.py [FOLDER] [--epochs 6]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HGTConv

from pagraph.datasets import citation, open_graph
from pagraph.pyg import HGTLoader, to_pyg


class HGT(nn.Module):
    def __init__(self, data, hidden_size, out_size):
        super().__init__()
        self.inputs = nn.ModuleDict(
            {
                t: nn.Linear(data[t].num_features, hidden_size)
                if "x" in data[t]
                else nn.Embedding(data[t].num_nodes, hidden_size)
                for t in data.node_types
            }
        )
        self.layers = nn.ModuleList(
            HGTConv(hidden_size, hidden_size, data.metadata(), heads=2) for _ in range(2)
        )
        self.classify = nn.Linear(hidden_size, out_size)

    def forward(self, batch):
        h = {
            t: layer(batch[t].x if "x" in batch[t] else batch[t].n_id).relu()
            for t, layer in self.inputs.items()
        }
        for layer in self.layers:
            h = layer(h, batch.edge_index_dict)
        return self.classify(h["paper"][: batch["paper"].batch_size])


def labels(batch):
    return batch["paper"].y[: batch["paper"].batch_size]


@torch.no_grad()
def evaluate(model, loader, device):
    """Share of the papers whose field of study is predicted correctly."""
    model.eval()
    right = total = 0
    for batch in loader:
        batch = batch.to(device)
        right += int((model(batch).argmax(dim=-1) == labels(batch)).sum())
        total += batch["paper"].batch_size
    return right / total


def main():
    parser = argparse.ArgumentParser(description="Heterogeneous Graph Transformer")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 4000 papers"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument(
        "--samples", type=int, default=512, help="vertices of each type in each of two hops"
    )
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    data: HeteroData = to_pyg(open_graph(args.folder) if args.folder else citation(4000))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    papers, shape = data["paper"], {"num_samples": [args.samples] * 2, "batch_size": 256}
    loader = HGTLoader(data, input_nodes=("paper", papers.train_mask), shuffle=True, **shape)
    valid, test = (
        HGTLoader(data, input_nodes=("paper", mask), **shape)
        for mask in (papers.val_mask, papers.test_mask)
    )
    model = HGT(data, args.hidden, int(papers.y.max()) + 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            loss = F.cross_entropy(model(batch), labels(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, valid, device)
        print(
            f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  validation {accuracy:.4f}  "
            f"{seconds:.2f} s"
        )
    print(f"test accuracy {evaluate(model, test, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
