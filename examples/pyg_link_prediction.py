"""Link prediction with GraphSAGE on sampled pairs, as in PyG's examples/graph_sage_unsup.py and
examples/hetero/recommender_system.py.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import LinkNeighborLoader
    +from pagraph.pyg import LinkNeighborLoader

Every batch holds some edges to predict, the same number of random pairs, and the sampled
neighbourhood of their ends. A tenth of the edges of a generated block-model graph is held out. The
score is how often the model ranks a held-out edge above a random pair.

    python examples/pyg_link_prediction.py [--epochs 8]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import RandomLinkSplit

from pagraph.datasets import sbm
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, to_pyg
from pagraph.pyg.typing import GraphData


def split(num_vertices: int):
    """The graph to train on, in which 30 % of the edges are hidden and to be predicted; and one
    with held-out edges."""
    data = to_pyg(sbm(num_vertices, num_features=32, homophily=0.9, num_classes=20))
    divide = RandomLinkSplit(
        num_val=0.0,
        num_test=0.1,
        is_undirected=True,
        disjoint_train_ratio=0.3,
        add_negative_train_samples=False,
    )
    train_data, _, test_data = divide(data)
    return train_data, test_data


def train(data: GraphData, model: GraphSAGE, device: torch.device, options: argparse.Namespace):
    loader = LinkNeighborLoader(
        data,
        [10, 10],
        edge_label_index=data.edge_label_index,
        neg_sampling="binary",
        batch_size=options.batch_size,
        shuffle=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            batch = batch.to(device)
            h = model(batch.x, batch.edge_index)
            src, dst = batch.edge_label_index
            loss = F.binary_cross_entropy_with_logits(
                (h[src] * h[dst]).sum(dim=1), batch.edge_label
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")
    return loader


@torch.no_grad()
def embed(data: GraphData, model: GraphSAGE, device: torch.device):
    """The embedding of every vertex, from all of its neighbours."""
    model.eval()
    batches = (batch.to(device) for batch in NeighborLoader(data, [-1, -1], batch_size=1024))
    return torch.cat(
        [model(batch.x, batch.edge_index)[: batch.batch_size].cpu() for batch in batches]
    )


def auc(embedding: torch.Tensor, pairs: torch.Tensor, is_edge: torch.Tensor):
    """Share of (held-out edge, random pair) whose edge has the higher score: the area under the ROC
    curve."""
    scores = (embedding[pairs[0]] * embedding[pairs[1]]).sum(dim=1)
    true, false = scores[is_edge == 1], scores[is_edge == 0]
    return float(torch.searchsorted(false.sort().values, true).double().mean()) / len(false)


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE for link prediction")
    parser.add_argument("--vertices", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    train_data, test_data = split(options.vertices)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = GraphSAGE(train_data.num_features, options.hidden, num_layers=2).to(device)
    loader = train(train_data, model, device, options)
    embedding = embed(test_data, model, device)
    print(f"test AUC {auc(embedding, test_data.edge_label_index, test_data.edge_label):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
