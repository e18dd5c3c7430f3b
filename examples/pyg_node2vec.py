"""Embeddings of vertices from random walks, as in PyG's examples/node2vec.py.

PyG's own model needs pyg-lib and walks only with p = q = 1. A script for it only has to change one
import:

    -from torch_geometric.nn import Node2Vec
    +from pagraph.pyg import Node2Vec

Walks over a generated block-model graph give vertices of the same class similar embeddings. A
linear classifier, trained on a tenth of the vertices, then predicts the class of the others. Until
then neither features nor labels are used.

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
    """Share of the other vertices whose class is predicted correctly from the embedding, by a
    linear classifier trained on the known ones."""
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
