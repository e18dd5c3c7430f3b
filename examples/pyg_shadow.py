"""Deep GraphSAGE on a small subgraph for each vertex, as in PyG's examples/shadow.py.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import ShaDowKHopSampler
    +from pagraph.pyg import ShaDowKHopSampler

It needs no torch-sparse. Run it on a graph folder, or without arguments on a generated block-model
graph:

    python examples/pyg_shadow.py [FOLDER] [--epochs 4]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv, global_mean_pool

from pagraph.datasets import open_graph, sbm
from pagraph.pyg import ShaDowKHopSampler, to_pyg


class GNN(torch.nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        sizes = [in_size, hidden_size, hidden_size, hidden_size]
        self.layers = torch.nn.ModuleList(
            SAGEConv(*ends) for ends in zip(sizes, sizes[1:], strict=False)
        )
        self.classify = torch.nn.Linear(2 * hidden_size, out_size)

    def forward(self, batch):
        x = batch.x
        for layer in self.layers:
            x = F.dropout(layer(x, batch.edge_index).relu(), p=0.2, training=self.training)
        # What the root is, and what its whole subgraph is.
        return self.classify(
            torch.cat([x[batch.root_n_id], global_mean_pool(x, batch.batch)], dim=-1)
        )


@torch.no_grad()
def evaluate(model, loader, device):
    """Share of the roots whose class is predicted correctly."""
    model.eval()
    right = total = 0
    for batch in loader:
        batch = batch.to(device)
        right += int((model(batch).argmax(dim=-1) == batch.y).sum())
        total += batch.num_graphs
    return right / total


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE on a subgraph for each vertex")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 5000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    data = to_pyg(open_graph(args.folder) if args.folder else sbm(5000, num_features=32))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = ShaDowKHopSampler(data, 2, 10, node_idx=data.train_mask, batch_size=256, shuffle=True)
    valid, test = (
        ShaDowKHopSampler(data, 2, 10, node_idx=mask, batch_size=256)
        for mask in (data.val_mask, data.test_mask)
    )
    model = GNN(data.num_features, args.hidden, int(data.y.max()) + 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            loss = F.cross_entropy(model(batch), batch.y)
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
