"""Link prediction with GraphSAGE on sampled edges, as in DGL's
examples/pytorch/graphsage/link_pred.py.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

Every batch holds some edges, the same number of random pairs, and the sampled neighbourhood of
their ends. The edges of the batch and their reverses are excluded from it, since they would give
the answer away. A tenth of the edges of a generated block-model graph is held out. The score is how
often the model ranks a held-out edge above a random pair.

    python examples/link_prediction.py [--epochs 12]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
import argparse
import time

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from dgl.dataloading import (
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)
from dgl.nn import SAGEConv
from torch import nn

from pagraph.datasets import sbm
from pagraph.dgl.typing import Block


class SAGE(nn.Module):
    def __init__(self, in_size: int, hidden_size: int):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size, "mean"), SAGEConv(hidden_size, hidden_size, "mean")]
        )

    def forward(self, blocks: list[Block], x: torch.Tensor):
        return self.layers[1](blocks[1], F.relu(self.layers[0](blocks[0], x)))


def score(graph: dgl.DGLGraph, embedding: torch.Tensor):
    """Dot product of the two ends of every edge of `graph`."""
    with graph.local_scope():
        graph.ndata["h"] = embedding
        graph.apply_edges(dgl.function.u_dot_v("h", "h", "score"))
        return graph.edata["score"].squeeze(1)


def split(num_vertices: int, test_share: float):
    """A graph with both directions of most edges of a block-model graph, and the ends of the other
    edges.

    Edge i is the reverse of edge i + E / 2.
    """
    whole = sbm(num_vertices, num_features=32, homophily=0.9, num_classes=20)
    src, dst = whole.csc.indices.long(), whole.csc.destinations().long()
    src, dst = src[src < dst], dst[src < dst]
    order = torch.randperm(len(src))
    test, rest = order[: int(test_share * len(src))], order[int(test_share * len(src)) :]
    graph = dgl.graph(
        (torch.cat([src[rest], dst[rest]]), torch.cat([dst[rest], src[rest]])),
        num_nodes=num_vertices,
    )
    graph.ndata["feat"] = whole.ndata["feat"]
    return graph, src[test], dst[test]


def train(graph: dgl.DGLGraph, model: SAGE, device: torch.device, options: argparse.Namespace):
    half = graph.num_edges() // 2
    sampler = as_edge_prediction_sampler(
        NeighborSampler([10, 10], prefetch_node_feats=["feat"]),
        exclude="reverse_id",
        reverse_eids=torch.cat([torch.arange(half, 2 * half), torch.arange(half)]),
        negative_sampler=negative_sampler.Uniform(1),
    )
    loader = DataLoader(
        graph,
        torch.arange(half),
        sampler,
        device=device,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for _, pairs, random_pairs, blocks in loader:
            embedding = model(blocks, blocks[0].srcdata["feat"])
            scores = torch.cat([score(pairs, embedding), score(random_pairs, embedding)])
            right = torch.cat(
                [torch.ones(pairs.num_edges()), torch.zeros(random_pairs.num_edges())]
            ).to(device)
            loss = F.binary_cross_entropy_with_logits(scores, right)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")
    return loader


@torch.no_grad()
def embed(graph: dgl.DGLGraph, model: SAGE, device: torch.device):
    """The embedding of every vertex, from all of its neighbours."""
    sampler = MultiLayerFullNeighborSampler(2, prefetch_node_feats=["feat"])
    loader = DataLoader(
        graph, torch.arange(graph.num_nodes()), sampler, device=device, batch_size=1024
    )
    model.eval()
    return torch.cat([model(blocks, blocks[0].srcdata["feat"]).cpu() for _, _, blocks in loader])


def auc(embedding: torch.Tensor, src: torch.Tensor, dst: torch.Tensor):
    """Share of (held-out edge, random pair) whose edge has the higher score: the area under the ROC
    curve."""
    others = torch.randint(len(embedding), (len(src),), generator=torch.Generator().manual_seed(0))
    true, false = ((embedding[src] * embedding[end]).sum(1) for end in (dst, others))
    ranks = torch.searchsorted(false.sort().values, true)
    return float(ranks.double().mean()) / len(false)


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE for link prediction")
    parser.add_argument("--vertices", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dgl.seed(options.seed)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # shuffles, with DGL's loader and with pagraph's

    graph, src, dst = split(options.vertices, test_share=0.1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = SAGE(graph.ndata["feat"].shape[1], options.hidden).to(device)
    loader = train(graph, model, device, options)
    print(f"test AUC {auc(embed(graph, model, device), src, dst):.4f}")
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
