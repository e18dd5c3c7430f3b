"""A relational graph network on a heterograph with the core loader and plain torch, without DGL and
PyG.

PyG's counterpart is examples/hetero/to_hetero_mag.py, DGL's is
examples/pytorch/rgcn/entity_sample.py; with their layers see pyg_hetero.py and rgcn_hetero.py.
Seeds, fields and batches are by vertex type.

    python examples/hetero_loader.py [FOLDER] [--epochs 6]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

from pagraph import Graph, HeteroBlock, HeteroMiniBatch, Loader, NeighborSampler
from pagraph.datasets import citation

FIELDS = {"paper": ["feat"], "author": ["feat"]}
LABELS = {"paper": ["label"]}


class RelationalLayer(nn.Module):
    """For each vertex type a matrix for the vertex itself, for each edge type one for the mean of
    the neighbours."""

    def __init__(self, graph: Graph, size: int, out_size: int):
        super().__init__()
        self.own = nn.ModuleDict({t: nn.Linear(size, out_size) for t in graph.node_types})
        self.neighbours = nn.ModuleDict(
            {"/".join(t): nn.Linear(size, out_size, bias=False) for t in graph.edge_types}
        )

    def forward(self, block: HeteroBlock, h: dict[str, torch.Tensor]):
        out = {t: self.own[t](h[t][:count]) for t, count in block.num_dst.items()}
        for etype, edges in block.relations.items():
            rows, bounds = (
                self.neighbours["/".join(etype)](h[etype[0]]),
                edges.indptr.to(edges.indices.dtype),
            )
            means = F.embedding_bag(
                edges.indices, rows, bounds, mode="mean", include_last_offset=True
            )
            out[etype[2]] = out[etype[2]] + means
        return out


class Model(nn.Module):
    """Two layers; institutions, which have no features, learn an embedding each."""

    def __init__(self, graph: Graph, hidden: int, out_size: int):
        super().__init__()
        widths = {t: graph.node_fields(t)["feat"].shape[1] for t in FIELDS}
        self.inputs = nn.ModuleDict({t: nn.Linear(width, hidden) for t, width in widths.items()})
        self.embedding = nn.Embedding(graph.num_nodes_of("institution"), hidden)
        self.layers = nn.ModuleList(
            [RelationalLayer(graph, hidden, hidden), RelationalLayer(graph, hidden, out_size)]
        )
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch: HeteroMiniBatch):
        h = {t: layer(batch.features[t]["feat"]) for t, layer in self.inputs.items()}
        h["institution"] = self.embedding(batch.input_nodes["institution"])
        h = {t: self.dropout(rows.relu()) for t, rows in self.layers[0](batch.blocks[0], h).items()}
        return self.layers[1](batch.blocks[1], h)["paper"]


@torch.no_grad()
def evaluate(model: Model, graph: Graph, papers: torch.Tensor):
    """Share of papers whose field of study is predicted correctly from all of their neighbours."""
    model.eval()
    right = 0
    for batch in Loader(
        graph,
        {"paper": papers},
        NeighborSampler([-1, -1]),
        fields=FIELDS,
        labels=LABELS,
        batch_size=1024,
    ):
        right += int((model(batch).argmax(1) == batch.labels["paper"]["label"]).sum())
    return right / int(papers.sum())


def train(graph: Graph, model: Model, options: argparse.Namespace):
    papers = graph.node_fields("paper")
    more = {"batch_size": options.batch_size, "shuffle": True, "seed": 0}
    loader = Loader(
        graph,
        {"paper": papers["train_mask"]},
        NeighborSampler([10, 10]),
        fields=FIELDS,
        labels=LABELS,
        **more,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            loss = F.cross_entropy(model(batch), batch.labels["paper"]["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds, accuracy = time.time() - begin, evaluate(model, graph, papers["val_mask"])
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="R-GCN with the core loader")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 papers"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()
    torch.manual_seed(0)
    graph = Graph.open(options.folder) if options.folder else citation(8000)
    papers = graph.node_fields("paper")
    model = Model(graph, options.hidden, int(papers["label"].max()) + 1)
    loader = train(graph, model, options)
    print(f"test accuracy {evaluate(model, graph, papers['test_mask']):.4f}")
    print(loader.stats)


if __name__ == "__main__":
    main()
