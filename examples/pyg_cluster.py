"""Cluster-GCN: node classification on clusters of the graph, as in PyG's
examples/cluster_gcn_reddit.py.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import ClusterData, ClusterLoader
    +from pagraph.pyg import ClusterData, ClusterLoader

It needs neither pyg-lib nor torch-sparse; METIS makes the clusters if `pymetis` is installed. Run
it on a graph folder, or without arguments on a generated block-model graph:

    python examples/pyg_cluster.py [FOLDER] [--epochs 8]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from pagraph.datasets import open_graph, sbm
from pagraph.pyg import ClusterData, ClusterLoader, to_pyg


def train(data, model, device, args):
    clusters = ClusterData(data, num_parts=args.clusters, log=False)
    loader = ClusterLoader(clusters, batch_size=5, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(args.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            scores = model(batch.x, batch.edge_index)
            loss = F.cross_entropy(scores[batch.train_mask], batch.y[batch.train_mask])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, mean = time.time() - begin, sum(losses) / len(losses)
        accuracy = evaluate(model, data, data.val_mask, device)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


@torch.no_grad()
def evaluate(model, data, mask, device):
    """Share of the vertices in `mask` whose class is predicted correctly, on the whole graph."""
    model.eval()
    scores = model(data.x.to(device), data.edge_index.to(device))
    return float((scores.argmax(dim=1).cpu() == data.y)[mask].float().mean())


def main():
    parser = argparse.ArgumentParser(description="Cluster-GCN")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 10 000 vertices"
    )
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    data = to_pyg(open_graph(args.folder) if args.folder else sbm(10_000, num_features=32))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(data.y.max()) + 1
    model = GraphSAGE(
        data.num_features, args.hidden, num_layers=2, out_channels=classes, dropout=0.5
    ).to(device)
    loader = train(data, model, device, args)
    print(f"test accuracy {evaluate(model, data, data.test_mask, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
