"""Embeddings of vertices from random walks, as PyG's examples/node2vec.py learns them.

One import is all that a script for PyG's own model, which needs pyg-lib and walks with p = q = 1
alone, has to change:

    -from torch_geometric.nn import Node2Vec
    +from pagraph.pyg import Node2Vec

Walks over a generated block-model graph make vertices of one class alike; a linear classifier then
reads the class of the others from a tenth of the vertices. Neither features nor labels are used
before.

    python examples/pyg_node2vec.py [--epochs 15] [--p 1] [--q 0.5]
"""

import argparse
import time

import torch
import torch.nn.functional as F

from pagraph.datasets import sbm
from pagraph.pyg import Node2Vec, to_pyg


def train(model, options):
    loader = model.loader(batch_size=128, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        for positive, negative in loader:
            loss = model.loss(positive, negative)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")


def accuracy(embedding, label, known):
    """Share of the other vertices whose class a linear classifier of the known ones reads from the
    embedding."""
    embedding = F.normalize(embedding)
    classifier = torch.nn.Linear(embedding.shape[1], int(label.max()) + 1)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(classifier(embedding[known]), label[known]).backward()
        optimizer.step()
    return float((classifier(embedding[~known]).argmax(dim=1) == label[~known]).float().mean())


def main():
    parser = argparse.ArgumentParser(description="node2vec")
    parser.add_argument("--vertices", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--p", type=float, default=1.0)
    parser.add_argument("--q", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    data = to_pyg(sbm(options.vertices, num_features=1, homophily=0.9, num_classes=10))
    model = Node2Vec(
        data.edge_index,
        options.dim,
        20,
        10,
        walks_per_node=2,
        p=options.p,
        q=options.q,
        num_nodes=data.num_nodes,
    )
    train(model, options)
    known = torch.rand(data.num_nodes) < 0.1
    print(f"test accuracy {accuracy(model().detach(), data.y, known):.4f}")


if __name__ == "__main__":
    main()
