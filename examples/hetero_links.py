"""Predict which papers cite each other: link prediction on a heterograph with the core loader and
plain torch.

PyG's counterpart is examples/hetero/hetero_link_pred.py, DGL's is examples/pytorch/rgcn/link.py.
The model is that of hetero_loader.py. Every batch holds some citations, the same number of random
pairs, and the sampled neighbourhood of their ends. The batch's own citations, which would give the
answer away, are excluded from it. A tenth of all citations is held out.

    python examples/hetero_links.py [--epochs 6]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from hetero_loader import FIELDS, Model  # the script beside this one
from torch import nn

from pagraph import CSC, Graph, Loader, NeighborSampler
from pagraph.datasets import citation
from pagraph.sampling import EdgeBatches, UniformNegatives

CITES = ("paper", "cites", "paper")


def split(graph):
    """The graph without a tenth of its citations, and the held-out citations, shape ``(2,
    number)``."""
    cites, papers = graph.csc_of(CITES), graph.num_nodes_of("paper")
    src, dst = cites.ends_at(cites.positions_of(torch.randperm(cites.num_edges)))
    held_out = cites.num_edges // 10
    csc = {etype: graph.csc_of(etype) for etype in graph.edge_types}
    csc[CITES] = CSC.from_coo(src[held_out:], dst[held_out:], papers)
    features = {ntype: {"feat": graph.node_fields(ntype)["feat"]} for ntype in FIELDS}
    counts = {ntype: graph.num_nodes_of(ntype) for ntype in graph.node_types}
    return Graph(csc, counts, ndata=features), torch.stack([src, dst])[:, :held_out]


@torch.no_grad()
def evaluate(model, decoder, graph, cited):
    """How often a held-out citation is ranked above a random pair."""
    model.eval()
    papers = {"paper": torch.arange(graph.num_nodes_of("paper"))}
    loader = Loader(graph, papers, NeighborSampler([-1, -1]), fields=FIELDS, batch_size=1024)
    rows = torch.cat([model(batch) for batch in loader])
    pairs = torch.randint(len(rows), cited.shape)
    found, random = (decoder(rows[src], rows[dst]).view(-1) for src, dst in (cited, pairs))
    below = torch.searchsorted(random.sort().values, found)
    return float(below.float().mean()) / len(random)


def main():
    parser = argparse.ArgumentParser(description="Citations with the core loader")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    graph, cited = split(citation(4000))
    model, decoder = (
        Model(graph, options.hidden, options.hidden),
        nn.Bilinear(options.hidden, options.hidden, 1),
    )
    sampler = EdgeBatches(NeighborSampler([10, 10]), negatives=UniformNegatives(1), exclude=True)
    edges = {CITES: torch.arange(graph.csc_of(CITES).num_edges)}
    loader = Loader(
        graph, edges, sampler, fields=FIELDS, batch_size=options.batch_size, shuffle=True, seed=0
    )
    optimizer = torch.optim.Adam([*model.parameters(), *decoder.parameters()], lr=0.005)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        model.train()
        for batch in loader:
            rows, links = model(batch), batch.links[CITES]
            src, dst = torch.cat([links.positive, links.negative], 1)
            truth = torch.arange(len(src)) < links.positive.shape[1]
            loss = F.binary_cross_entropy_with_logits(
                decoder(rows[src], rows[dst]).view(-1), truth.float()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")
    print(f"test AUC {evaluate(model, decoder, graph, cited):.4f}")
    print(loader.stats)


if __name__ == "__main__":
    main()
