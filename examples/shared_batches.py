"""Batches that share random numbers: the same model, and fewer rows that the previous batch did not
have.

In DGL, LaborSampler(batch_dependency=...) does this for LABOR, and DGL's
examples/graphbolt/disk_based_feature/node_classification.py shows it with GraphBolt. pagraph's
loader does it in its kernels, and its own argument `batch_dependency=` also covers uniform
neighbours. A script for DGL only has to change the import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

GraphSAGE is trained on a generated block-model graph, with independent batches, and with batches in
which one in 64 vertices renews its draws. The comparison is of the rows that a batch reads and the
previous batch did not.

    python examples/shared_batches.py [--epochs 4]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
import argparse

import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import LaborSampler
from dgl.nn import SAGEConv

import pagraph.dgl
from pagraph.datasets import sbm


class SAGE(torch.nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.first, self.second = (
            SAGEConv(in_size, hidden_size, "mean"),
            SAGEConv(hidden_size, out_size, "mean"),
        )

    def forward(self, blocks, x):
        return self.second(
            blocks[1], F.dropout(self.first(blocks[0], x).relu(), training=self.training)
        )


def train(graph, batch_dependency, epochs):
    """The trained model, and the share of a batch's rows that the previous batch did not have."""
    sampler = LaborSampler(
        [10, 10],
        batch_dependency=batch_dependency,
        prefetch_node_feats=["feat"],
        prefetch_labels=["label"],
    )
    nodes = graph.ndata["train_mask"].nonzero().squeeze(1)
    loader = DataLoader(graph, nodes, sampler, batch_size=64, shuffle=True)
    model = SAGE(graph.ndata["feat"].shape[1], 64, int(graph.ndata["label"].max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = new = 0
    for _ in range(epochs):
        before = torch.zeros(graph.num_nodes(), dtype=torch.bool)
        for input_nodes, _, blocks in loader:
            loss = F.cross_entropy(
                model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            new += int((~before[input_nodes]).sum())
            rows += len(input_nodes)
            before[:] = False
            before[input_nodes] = True
    return model, new / rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    graph = pagraph.dgl.to_dgl(sbm(5000, num_features=32))
    test = graph.ndata["test_mask"]
    accuracy = 0.0
    for batch_dependency in (1, 64):
        dgl.seed(options.seed)
        torch.manual_seed(options.seed)
        model, new = train(graph, batch_dependency, options.epochs)
        model.eval()
        with torch.no_grad():
            predicted = model([graph, graph], graph.ndata["feat"]).argmax(dim=1)
        accuracy = float((predicted == graph.ndata["label"])[test].float().mean())
        print(
            f"batch_dependency {batch_dependency:2}: {new:.1%} of a batch's rows are new, accuracy "
            f"{accuracy:.4f}"
        )
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
