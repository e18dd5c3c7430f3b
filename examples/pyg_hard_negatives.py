"""Link prediction with hard negatives: popular destinations, and never an edge of the graph.

PyG's loader draws negatives uniformly, or by weights of the vertices, and some of them are edges.
To change that, a script such as PyG's examples/hetero/bipartite_sage_unsup.py changes one import
and one object:

    -from torch_geometric.loader import LinkNeighborLoader
    +from pagraph.pyg import LinkNeighborLoader

    -neg_sampling=NegativeSampling("triplet", amount=4)
    +neg_sampling=HardNegatives("triplet", amount=4, power=0.75)

The graph is generated; a few vertices have many edges. Held-out edges are ranked against other
pairs. Half of these end at vertices drawn by their degree.

    python examples/pyg_hard_negatives.py [--epochs 6]
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from pagraph.datasets import sbm
from pagraph.pyg import HardNegatives, LinkNeighborLoader, to_pyg


def split(data, generator):
    """Links to train on and held-out links, shape ``(2, number)``. The data keeps the other edges.

    An edge and its reverse stay together: one would tell of the other.
    """
    src, dst = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    order = torch.randperm(len(src), generator=generator)
    both = torch.stack([torch.stack([src, dst]), torch.stack([dst, src])], dim=2)[:, order]
    held_out, links, seen = both.split([1500, 4500, len(src) - 6000], dim=1)
    data.edge_index = seen.flatten(1)
    return links.flatten(1), held_out.flatten(1)


def train(data, links, model, options):
    """Share of the negatives that are edges of the graph."""
    known = set(map(tuple, data.edge_index.t().tolist()))
    negatives = HardNegatives("triplet", amount=4, power=0.75)
    loader = LinkNeighborLoader(
        data,
        [10, 10],
        links,
        neg_sampling=negatives,
        batch_size=options.batch_size,
        shuffle=True,
        seed=options.seed,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    drawn = edges = 0
    for epoch in range(options.epochs):
        losses = []
        for batch in loader:
            h = model(batch.x, batch.edge_index)
            true = (h[batch.src_index] * h[batch.dst_pos_index]).sum(dim=1, keepdim=True)
            false = (h[batch.src_index].unsqueeze(1) * h[batch.dst_neg_index]).sum(dim=2)
            loss = F.softplus(false - true).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            src = batch.n_id[batch.src_index].unsqueeze(1).expand_as(batch.dst_neg_index)
            pairs = zip(
                src.flatten().tolist(),
                batch.n_id[batch.dst_neg_index].flatten().tolist(),
                strict=True,
            )
            found = [pair in known for pair in pairs]
            drawn, edges = drawn + len(found), edges + sum(found)
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}")
    return edges / drawn


def auc(h, links, generator):
    """Share of held-out edges that are ranked above another pair with the same source, drawn by
    degree or uniformly."""
    order = torch.randperm(links.shape[1], generator=generator)
    other = torch.where(
        order % 2 == 0, links[1][order], torch.randint(len(h), order.shape, generator=generator)
    )
    true, false = ((h[links[0]] * h[ends]).sum(dim=1) for ends in (links[1], other))
    return float((true > false).float().mean())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    torch.manual_seed(options.seed)
    data = to_pyg(sbm(3000, num_features=32, homophily=0.9, num_classes=20))
    links, held_out = split(data, generator)
    model = GraphSAGE(data.num_features, 32, num_layers=2)
    share = train(data, links, model, options)
    model.eval()
    with torch.no_grad():
        h = model(data.x, data.edge_index)
    print(f"negatives that are edges: {share:.1%}")
    print(f"test AUC {auc(h, held_out, generator):.4f}")


if __name__ == "__main__":
    main()
