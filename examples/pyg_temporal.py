"""Prediction over time from only the recent neighbours; PyG's examples/rdl.py also samples by time.

A script for PyG's own loader only has to change one import:

    -from torch_geometric.loader import NeighborLoader
    +from pagraph.pyg import NeighborLoader

Senders write messages to accounts. An account has a topic that changes every ten days, and most of
its messages come from senders with the same topic. The model predicts the topic of an account at a
given moment. It must not see later messages (``input_time``, ``time_attr``), and of the earlier
ones only those of the last days are informative (``time_window``, which PyG's loader does not have;
``--window 0`` turns it off).

    python examples/pyg_temporal.py [--epochs 4] [--window 3]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

from pagraph.pyg import NeighborLoader
from pagraph.pyg.typing import HeteroBatch

SENDS = ("sender", "sends", "account")
DAYS, PERIOD, TOPICS = 60, 10, 4


def generate(num_accounts: int, messages_a_day=2.0):
    """Messages with the day on which they were sent, as an edge attribute; and the topic of each
    account in each period."""
    topics = torch.randint(TOPICS, (num_accounts, DAYS // PERIOD))
    num_senders, count = num_accounts, int(num_accounts * DAYS * messages_a_day)
    account, day = torch.randint(num_accounts, (count,)), torch.rand(count) * DAYS
    of_topic = torch.where(
        torch.rand(count) < 0.8,
        topics[account, (day / PERIOD).long()],
        torch.randint(TOPICS, (count,)),
    )
    # Senders v % TOPICS have one topic.
    sender = torch.randint(num_senders // TOPICS, (count,)) * TOPICS + of_topic
    data = HeteroData()
    data["sender"].x = torch.randn(TOPICS, 16)[torch.arange(num_senders) % TOPICS] + torch.randn(
        num_senders, 16
    )
    data["account"].x = torch.ones(num_accounts, 1)
    data[SENDS].edge_index, data[SENDS].time = torch.stack([sender, account]), day
    return data, topics


def questions(topics: torch.Tensor, first: float, last: float, count: int):
    """Accounts, the days of the questions about them, and their topics on these days."""
    account, day = torch.randint(len(topics), (count,)), first + torch.rand(count) * (last - first)
    return account, day, topics[account, (day / PERIOD).long()]


class Model(torch.nn.Module):
    """One layer: the mean of the messages' senders, and a classifier."""

    def __init__(self, hidden: int):
        super().__init__()
        self.conv = SAGEConv((16, 1), hidden)
        self.classifier = torch.nn.Linear(hidden, TOPICS)

    def forward(self, batch: HeteroBatch):
        h = self.conv((batch["sender"].x, batch["account"].x), batch[SENDS].edge_index)
        return self.classifier(h[: batch["account"].batch_size].relu())


def loader_of(
    data: HeteroData,
    account: torch.Tensor,
    day: torch.Tensor,
    options: argparse.Namespace,
    shuffle: bool,
):
    settings = {"time_window": options.window} if options.window else {}
    return NeighborLoader(
        data,
        [10],
        input_nodes=("account", account),
        input_time=day,
        time_attr="time",
        batch_size=options.batch_size,
        shuffle=shuffle,
        **settings,
    )


def train(
    model: Model,
    loader: NeighborLoader[HeteroData],
    labels: torch.Tensor,
    options: argparse.Namespace,
    device: torch.device,
):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        for batch in loader:
            target = labels[batch["account"].input_id].to(device)
            loss = F.cross_entropy(model(batch.to(device)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s")


@torch.no_grad()
def accuracy(
    model: Model, loader: NeighborLoader[HeteroData], labels: torch.Tensor, device: torch.device
):
    right = sum(
        int(
            (
                model(batch.to(device)).argmax(dim=1).cpu()
                == labels[batch["account"].input_id.cpu()]
            ).sum()
        )
        for batch in loader
    )
    return right / len(labels)


def main():
    parser = argparse.ArgumentParser(description="Temporal prediction with GraphSAGE")
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--window", type=float, default=3.0, help="days; 0 for all that came before"
    )
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    data, topics = generate(options.accounts)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Learn on the first 40 days, predict the last 20.
    account, day, labels = questions(topics, 5, 40, 10_000)
    loader, model = loader_of(data, account, day, options, shuffle=True), Model(32).to(device)
    train(model, loader, labels, options, device)
    account, day, labels = questions(topics, 40, DAYS, 4000)
    print(
        "test accuracy "
        f"{accuracy(model, loader_of(data, account, day, options, False), labels, device):.4f}"
    )
    if hasattr(loader, "stats"):
        print(loader.stats)


if __name__ == "__main__":
    main()
