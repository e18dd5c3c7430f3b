"""GraphSAGE with a layer for each relation of a heterograph, as in PyG's
examples/hetero/to_hetero_mag.py.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import NeighborLoader
    +from pagraph.pyg import NeighborLoader

Papers and authors have features of different widths. Institutions have none; the model learns an
embedding for each. Run it on a folder that `pagraph generate citation` wrote, or without arguments
on a generated graph:

    python examples/pyg_hetero.py [FOLDER] [--epochs 6]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from pagraph.datasets import citation, open_graph
from pagraph.pyg import NeighborLoader, to_pyg
from pagraph.pyg.typing import HeteroBatch


class HeteroSAGE(nn.Module):
    def __init__(self, data: HeteroData, hidden_size: int, out_size: int):
        super().__init__()
        self.inputs = nn.ModuleDict(
            {
                t: nn.Linear(data[t].num_features, hidden_size)
                if "x" in data[t]
                else nn.Embedding(data[t].num_nodes, hidden_size)
                for t in data.node_types
            }
        )
        sizes = (hidden_size, hidden_size)
        self.first = HeteroConv({e: SAGEConv(sizes, hidden_size) for e in data.edge_types})
        self.last = HeteroConv({e: SAGEConv(sizes, hidden_size) for e in data.edge_types})
        self.classify = nn.Linear(hidden_size, out_size)
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch: HeteroBatch):
        h = {
            t: layer(batch[t].x if "x" in batch[t] else batch[t].n_id)
            for t, layer in self.inputs.items()
        }
        h = {t: self.dropout(F.relu(x)) for t, x in self.first(h, batch.edge_index_dict).items()}
        h = self.last(h, batch.edge_index_dict)["paper"][: batch["paper"].batch_size]
        return self.classify(F.relu(h))


@torch.no_grad()
def evaluate(model: HeteroSAGE, data: HeteroData, mask: torch.Tensor, device: torch.device):
    """Share of the papers in `mask` whose field of study is predicted correctly from all of their
    neighbours."""
    model.eval()
    right = 0
    for batch in NeighborLoader(data, [-1, -1], input_nodes=("paper", mask), batch_size=1024):
        batch = batch.to(device)
        right += int(
            (model(batch).argmax(dim=1) == batch["paper"].y[: batch["paper"].batch_size]).sum()
        )
    return right / int(mask.sum())


def train(data: HeteroData, model: HeteroSAGE, device: torch.device, options: argparse.Namespace):
    papers = data["paper"]
    loader = NeighborLoader(
        data,
        {etype: [10, 10] for etype in data.edge_types},
        input_nodes=("paper", papers.train_mask),
        batch_size=options.batch_size,
        shuffle=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            loss = F.cross_entropy(model(batch), batch["paper"].y[: batch["paper"].batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, data, papers.val_mask, device)
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE on a heterograph")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 papers"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    data: HeteroData = to_pyg(open_graph(options.folder) if options.folder else citation(8000))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = HeteroSAGE(data, options.hidden, int(data["paper"].y.max()) + 1).to(device)
    loader = train(data, model, device, options)
    print(f"test accuracy {evaluate(model, data, data['paper'].test_mask, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
