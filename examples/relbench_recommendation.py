"""Temporal recommendation, like RelBench's gnn_recommendation.py: which products will a customer
buy in the next weeks?

RelBench provides the database, the task and its metric; PyTorch Frame and RelBench provide the
layers. Tables become a graph with TensorFrames, and all sampling is ours:

- a batch has customers, products that they bought after a given time, and the same number of random
  products (`neg_sampling="triplet"`), each with a tree of what was known at that time;
- RelBench's loader samples three graphs per batch, one after the other; here it is a single graph,
  read ahead.

    pip install 'pagraph[pyg]' pytorch-frame relbench
    python examples/relbench_recommendation.py DATASET TASK [--epochs 3]

DATASET is a folder in RelBench's form or a name on its hub, such as stanford-star/relbench-v1/rel-hm.
"""

import argparse

import numpy as np
import relbench
import torch
import torch.nn.functional as F
from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
from torch import nn

from pagraph import Graph
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, to_pyg

SHARPNESS = 5.0
"""How fast a loss falls with the difference of two cosines."""


class Model(nn.Module):
    """Vectors of a batch's entities, from their columns, their neighbours' columns, and their
    ages."""

    def __init__(self, data, channels, named):
        super().__init__()
        columns = {t: frame.col_names_dict for t, frame in data.tf_dict.items()}
        small = {"channels": channels, "num_layers": 1}
        self.encoder = HeteroEncoder(
            channels, columns, data.col_stats_dict, torch_frame_model_kwargs=small
        )
        self.ages = HeteroTemporalEncoder(
            [t for t in data.node_types if "time" in data[t]], channels
        )
        self.layers = HeteroGraphSAGE(data.node_types, data.edge_types, channels, "sum")
        # Products are few, and each may have what no column says.
        self.names = nn.Embedding(data[named].num_nodes, channels)
        self.named = named
        self.head = nn.Linear(channels, channels)

    def forward(self, batch, until):
        """All vertices' vectors; ``until`` is the time of each tree of the batch."""
        rows = self.encoder(batch.tf_dict)
        times = {t: batch[t].time for t in self.ages.encoder_dict if batch[t].num_nodes}
        for ntype, ages in self.ages(until, times, batch.batch_dict).items():
            rows[ntype] = rows[ntype] + ages
        rows[self.named] = rows[self.named] + self.names(batch[self.named].n_id)
        rows = self.layers(rows, batch.edge_index_dict)
        # Of one length, so that a score is a cosine: no product is good for all, or for none.
        return {ntype: F.normalize(self.head(found)) for ntype, found in rows.items()}


def seconds_of(column):
    """Times in the form in which a graph of RelBench's database stores them."""
    return torch.from_numpy(column.to_numpy().astype("M8[s]").astype(np.int64))


def links_of(task):
    """Customers, the products that they buy after a time, and that time: one link per purchase."""
    table = task.get_table("train").df.explode(task.dst_entity_col).dropna()
    ends = table[[task.src_entity_col, task.dst_entity_col]].to_numpy().astype(np.int64)
    return torch.from_numpy(ends.T.copy()), seconds_of(table[task.time_col])


def train(model, loader, task, optimizer):
    total = 0.0
    for batch in loader:
        source, product = batch[task.src_entity_table], batch[task.dst_entity_table]
        rows = model(batch, source.seed_time)
        customers = rows[task.src_entity_table][source.src_index]
        bought = rows[task.dst_entity_table][product.dst_pos_index]
        others = rows[task.dst_entity_table][product.dst_neg_index]
        difference = (customers * bought).sum(1) - (customers * others).sum(1)
        loss = F.softplus(-SHARPNESS * difference).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / len(loader)


@torch.no_grad()
def vectors(model, data, nodes, until, options):
    """The vectors of entities at a time."""
    loader = NeighborLoader(data, options.fanouts, nodes, input_time=until, time_attr="time",
                            batch_size=options.batch_size, seed=options.seed)  # fmt: skip
    found = []
    for batch in loader:
        store = batch[nodes[0]]
        found.append(model(batch, store.seed_time)[nodes[0]][: store.batch_size])
    return torch.cat(found)


def recommended(model, data, task, split, options):
    """The best recommendations for each customer of a split."""
    table = task.get_table(split).df
    customers = torch.from_numpy(table[task.src_entity_col].to_numpy().astype(np.int64))
    times = seconds_of(table[task.time_col])
    products = torch.arange(data[task.dst_entity_table].num_nodes)
    # A split has one time, at which all products are looked at.
    at_once = times[:1].expand(len(products)).clone()
    of_products = vectors(model, data, (task.dst_entity_table, products), at_once, options)
    of_customers = vectors(model, data, (task.src_entity_table, customers), times, options)
    return (of_customers @ of_products.T).topk(task.eval_k, dim=1).indices.numpy()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("task")
    parser.add_argument("--fanouts", type=int, nargs="*", default=[16, 16])
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    dataset = relbench.load_dataset(options.dataset)
    task = dataset.load_task(options.task)
    data = to_pyg(Graph.from_tables(dataset.get_db()), frames=True)
    links, times = links_of(task)
    loader = LinkNeighborLoader(
        data,
        options.fanouts,
        edge_label_index=((task.src_entity_table, "buys", task.dst_entity_table), links),
        edge_label_time=times,
        time_attr="time",
        neg_sampling="triplet",
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=2,
        seed=options.seed,
    )
    model = Model(data, options.channels, task.dst_entity_table)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(options.epochs):
        model.train()
        loss = train(model, loader, task, optimizer)
        model.eval()
        found = recommended(model, data, task, "val", options)
        score = task.evaluate(found, task.get_table("val"))["map"]
        print(f"epoch {epoch + 1}: loss {loss:.3f}, validation MAP {score:.3f}")
    score = task.evaluate(recommended(model, data, task, "test", options))["map"]
    print(loader.stats)
    print(f"test MAP {score:.3f}")


if __name__ == "__main__":
    main()
