"""Node classification with GraphSAGE on sampled neighbours, as in PyG's examples/reddit.py and
examples/hierarchical_sampling.py.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import NeighborLoader
    +from pagraph.pyg import NeighborLoader

It needs neither pyg-lib nor torch-sparse, and no DGL. Run it on a graph folder, on one that
`pagraph import` made of a saved `Data`, or without arguments on a generated block-model graph:

    python examples/pyg_node_classification.py [FOLDER] [--epochs 5]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from pagraph.datasets import open_graph, sbm
from pagraph.pyg import NeighborLoader, to_pyg
from pagraph.pyg.typing import GraphData, NodeBatch


def predict(model: GraphSAGE, batch: NodeBatch):
    """Scores of the seeds, which are a batch's first vertices; each layer skips vertices and edges
    that later layers do not need."""
    hops = {
        "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
        "num_sampled_edges_per_hop": batch.num_sampled_edges,
    }
    return model(batch.x, batch.edge_index, **hops)[: batch.batch_size]


@torch.no_grad()
def evaluate(model: GraphSAGE, data: GraphData, mask: torch.Tensor, device: torch.device):
    """Share of the vertices in `mask` whose class is predicted correctly from all of their
    neighbours."""
    model.eval()
    right = 0
    for batch in NeighborLoader(data, [-1, -1], input_nodes=mask, batch_size=1024):
        batch = batch.to(device)
        right += int((predict(model, batch).argmax(dim=1) == batch.y[: batch.batch_size]).sum())
    return right / int(mask.sum())


def train(data: GraphData, model: GraphSAGE, device: torch.device, epochs: int):
    loader = NeighborLoader(
        data, [10, 10], input_nodes=data.train_mask, batch_size=1024, shuffle=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            loss = F.cross_entropy(predict(model, batch), batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, data, data.val_mask, device)
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
    torch.manual_seed(args.seed)

    data = to_pyg(open_graph(args.folder) if args.folder else sbm(20_000, num_features=32))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(data.y.max()) + 1
    model = GraphSAGE(
        data.num_features, args.hidden, num_layers=2, out_channels=classes, dropout=0.5
    ).to(device)
    loader = train(data, model, device, args.epochs)
    print(f"test accuracy {evaluate(model, data, data.test_mask, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
