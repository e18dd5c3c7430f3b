"""From a database to predictions in time: will an order be returned?

Tables become vertex types, foreign keys edge types, and the rows of `orders` the task: the earliest
are for training, the latest for testing. A batch holds what was known when its orders were placed.
Some users return nine orders of ten and others one; it shows in the sizes of what they ordered
before. No model is right in more than 90 % of the cases.

    python examples/database.py [postgresql://USER@HOST/NAME]
"""

import datetime
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import HeteroConv, SAGEConv

from pagraph.datasets import import_graph
from pagraph.pyg import NeighborLoader, to_pyg

TABLES = """
create table users(id integer primary key, country varchar(2), joined timestamp);
create table products(sku varchar(9) primary key, price double precision);
create table orders(id integer primary key, user_id integer references users(id),
    placed timestamp, size double precision, returned boolean);
create table lines(order_id integer references orders(id),
    sku varchar(9) references products(sku), primary key (order_id, sku));"""


def shop():
    """Rows of each table."""
    rng = np.random.default_rng(0)
    start = datetime.datetime(2024, 1, 1)
    does_return = rng.random(200) < 0.5
    rows = {"users": [(n, ["de", "fr"][n % 2], str(start)) for n in range(200)]}
    rows["products"] = [(f"p{n}", n / 4) for n in range(50)]
    rows["orders"], rows["lines"] = [], []
    for n, minute in enumerate(np.sort(rng.integers(0, 500_000, 6000)).tolist()):
        user = int(rng.integers(200))
        placed = str(start + datetime.timedelta(minutes=minute))
        size = does_return[user] + rng.normal(0, 1.5)
        returned = bool(does_return[user] ^ (rng.random() < 0.1))
        rows["orders"].append((n, user, placed, float(size), returned))
        rows["lines"].append((n, f"p{rng.integers(50)}"))
    return rows


class Model(nn.Module):
    def __init__(self, data, hidden=32):
        super().__init__()
        types = data.node_types
        self.inputs = nn.ModuleDict({t: nn.Linear(data[t].num_features, hidden) for t in types})
        convs = [{e: SAGEConv(hidden, hidden) for e in data.edge_types} for _ in range(2)]
        self.convs = nn.ModuleList(map(HeteroConv, convs))
        self.classify = nn.Linear(hidden, 2)

    def forward(self, batch):
        h = {t: F.relu(layer(batch[t].x)) for t, layer in self.inputs.items()}
        for conv in self.convs:
            h = {t: F.relu(x) for t, x in conv(h, batch.edge_index_dict).items()}
        return self.classify(h["orders"][: batch["orders"].batch_size])


def fill(path):
    link = sqlite3.connect(path)
    link.executescript(TABLES)
    for name, rows in shop().items():
        link.executemany(f"insert into {name} values ({','.join('?' * len(rows[0]))})", rows)
    link.commit()
    return path


def learn(data):
    """Train; the share of the latest orders about which the model is right."""
    how = {"time_attr": "time", "batch_size": 256, "seed": 0}
    fields = data["orders"]
    train = NeighborLoader(data, [8, 32], ("orders", fields.train_mask), shuffle=True, **how)
    test = NeighborLoader(data, [8, 32], ("orders", fields.test_mask), **how)
    model = Model(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for batch in train:
            labels = batch["orders"].y[: batch["orders"].batch_size]
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()
    right = []
    for batch in test:
        labels = batch["orders"].y[: batch["orders"].batch_size]
        right.append((model(batch).argmax(1) == labels).float())
    return float(torch.cat(right).mean())


def main(url):
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        source = url or fill(Path(folder, "shop.db"))
        graph = import_graph(source, Path(folder, "graph"), task="orders:returned:placed")
        print(graph.schema())
        score = learn(to_pyg(graph))
    print(f"test accuracy {score:.4f}")
    assert 0.7 < score < 0.93  # more than sizes alone say, and no more than can be known


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
