"""From a database to predictions in time: will an order be returned?

Tables become vertex types and foreign keys edge types. The rows of `orders` are the task: the
latest are for testing, and batches hold only what was known when the orders were placed. Some users
return nine of ten orders, others one in ten, and the two groups order different sizes. No model can
be right in more than 90 % of the cases.

    python examples/database.py [postgresql://USER@HOST/NAME]
"""

import contextlib
import datetime
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import HeteroData
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
    rng = np.random.default_rng(0)
    start = datetime.datetime(2024, 1, 1)
    does_return = rng.random(200) < 0.5
    rows = {"users": [(n, ["de", "fr"][n % 2], str(start)) for n in range(200)]}
    rows |= {"products": [(f"p{n}", n / 4) for n in range(50)], "orders": [], "lines": []}
    for n, minute in enumerate(np.sort(rng.integers(0, 500_000, 6000)).tolist()):
        user = int(rng.integers(200))
        placed = str(start + datetime.timedelta(minutes=minute))
        size = does_return[user] + rng.normal(0, 1.5)
        returned = bool(does_return[user] ^ (rng.random() < 0.1))
        rows["orders"].append((n, user, placed, float(size), returned))
        rows["lines"].append((n, f"p{rng.integers(50)}"))
    return rows


class Model(nn.Module):
    def __init__(self, data, size=32):
        super().__init__()
        self.inputs = nn.ModuleDict(
            {t: nn.Linear(data[t].num_features, size) for t in data.node_types}
        )
        convs = [{e: SAGEConv(size, size) for e in data.edge_types} for _ in range(2)]
        self.convs = nn.ModuleList(map(HeteroConv, convs))
        self.classify = nn.Linear(size, 2)

    def forward(self, batch):
        h = {t: F.relu(layer(batch[t].x)) for t, layer in self.inputs.items()}
        for conv in self.convs:
            h = {t: F.relu(x) for t, x in conv(h, batch.edge_index_dict).items()}
        orders = batch["orders"]
        return self.classify(h["orders"][: orders.batch_size]), orders.y[: orders.batch_size]


def main(source=None):
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            source = Path(folder, "shop.db")
            with contextlib.closing(sqlite3.connect(source)) as link, link:
                link.executescript(TABLES)
                for name, rows in shop().items():
                    marks = ", ".join("?" * len(rows[0]))
                    link.executemany(f"insert into {name} values ({marks})", rows)
        graph = import_graph(source, Path(folder, "graph"), task="orders:returned:placed")
        print(graph.schema())
        data: HeteroData = to_pyg(graph)
        how = {"time_attr": "time", "batch_size": 256, "seed": 0}
        seeds = {part: ("orders", data["orders"][f"{part}_mask"]) for part in ("train", "test")}
        model = Model(data)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        train = NeighborLoader(data, [8, 32], seeds["train"], shuffle=True, **how)
        for _ in range(3):
            for batch in train:
                optimizer.zero_grad()
                F.cross_entropy(*model(batch)).backward()
                optimizer.step()
        answers = map(model, NeighborLoader(data, [8, 32], seeds["test"], **how))
        score = float(torch.cat([out.argmax(1) == label for out, label in answers]).float().mean())
    print(f"test accuracy {score:.4f}")
    assert 0.7 < score < 0.93  # more than sizes alone say, and no more than can be known


if __name__ == "__main__":
    main(*sys.argv[1:])
