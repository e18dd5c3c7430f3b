"""GraphSAINT: node classification on subgraphs of random walks, with the paper's normalisation, as
in PyG's examples/graph_saint.py.

A script for PyG's own sampler only has to change one import:

    -from torch_geometric.loader import GraphSAINTRandomWalkSampler
    +from pagraph.pyg import GraphSAINTRandomWalkSampler

It needs no torch-sparse. Run it on a graph folder, or without arguments on a generated block-model
graph:

    python examples/pyg_saint.py [FOLDER] [--epochs 10]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphConv
from torch_geometric.utils import degree

from pagraph.datasets import open_graph, sbm
from pagraph.pyg import GraphSAINTRandomWalkSampler, to_pyg
from pagraph.pyg.typing import GraphData


class Net(torch.nn.Module):
    def __init__(self, in_size: int, hidden_size: int, out_size: int):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [GraphConv(in_size, hidden_size), GraphConv(hidden_size, hidden_size)]
        )
        self.out = torch.nn.Linear(2 * hidden_size, out_size)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor):
        layers = []
        for conv in self.convs:
            x = F.dropout(F.relu(conv(x, edge_index, edge_weight)), p=0.2, training=self.training)
            layers.append(x)
        return self.out(torch.cat(layers, dim=1))


def train(data: GraphData, model: Net, device: torch.device, args: argparse.Namespace):
    loader = GraphSAINTRandomWalkSampler(
        data,
        batch_size=2000,
        walk_length=2,
        num_steps=10,
        sample_coverage=50,
        log=False,
        seed=args.seed,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            scores = model(batch.x, batch.edge_index, batch.edge_norm * batch.edge_weight)
            loss = (F.cross_entropy(scores, batch.y, reduction="none") * batch.node_norm)[
                batch.train_mask
            ].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, mean = time.time() - begin, sum(losses) / len(losses)
        accuracy = evaluate(model, data, data.val_mask, device)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


@torch.no_grad()
def evaluate(model: Net, data: GraphData, mask: torch.Tensor, device: torch.device):
    """Share of the vertices in `mask` whose class is predicted correctly, on the whole graph."""
    model.eval()
    scores = model(data.x.to(device), data.edge_index.to(device), data.edge_weight.to(device))
    return float((scores.argmax(dim=1).cpu() == data.y)[mask].float().mean())


def main():
    parser = argparse.ArgumentParser(description="GraphSAINT with random walks")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 10 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    data = to_pyg(open_graph(args.folder) if args.folder else sbm(10_000, num_features=32))
    destinations = data.edge_index[1]
    # A mean over in-edges.
    data.edge_weight = 1.0 / degree(destinations, data.num_nodes)[destinations]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net(data.num_features, args.hidden, int(data.y.max()) + 1).to(device)
    loader = train(data, model, device, args)
    print(f"test accuracy {evaluate(model, data, data.test_mask, device):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
