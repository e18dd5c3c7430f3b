"""The whole training step as one CUDA graph: forward, backward and optimizer are one replay.

A step of a small model is hundreds of launches, which Python issues more slowly than a GPU runs
them. With `shapes="fixed"` all batches of the loader have the same sizes, so that the step can be
recorded once and replayed: `pagraph.WholeStep` does that. The step must never make the host wait,
nor index by a mask: losses ignore padding by its label, -100.

Without a CUDA device the same script trains on the CPU, with eager steps.

Run it on a graph folder, or without arguments on a generated block-model graph:

    python examples/gpu_whole_step.py [FOLDER] [--epochs 5] [--eager]
"""

import argparse
import importlib.util
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import SAGEConv

from pagraph import Loader, NeighborSampler, WholeStep
from pagraph.datasets import open_graph, sbm


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size), SAGEConv(hidden_size, out_size)]
        )

    def forward(self, batch):
        x = batch.features["feat"]
        for place, (layer, block) in enumerate(zip(self.layers, batch.blocks, strict=True)):
            x = F.dropout(F.relu(x), training=self.training) if place else x
            x = layer((x, x[: block.num_dst]), block.to_pyg())
        return x


def load(graph, ids, options, device, shuffle=False):
    samples_there = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return Loader(
        graph,
        ids,
        NeighborSampler([10, 10]),
        fields=["feat"],
        labels=["label"],
        batch_size=options.batch_size,
        shuffle=shuffle,
        device=device,
        sampling_device=device if samples_there else "cpu",
        shapes="fixed",
        seed=options.seed,
    )


@torch.no_grad()
def evaluate(model, graph, ids, options, device):
    """Share of `ids` whose class is predicted correctly, from a sample of their neighbours."""
    model.eval()
    loader = load(graph, ids, options, device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    for batch in loader:
        right += (model(batch).argmax(dim=1) == batch.labels["label"]).sum()
    loader.close()
    return int(right) / len(ids)


def train(graph, ids, model, options, device):
    loader = load(graph, ids["train"], options, device, shuffle=True)
    # Capturable: its count of steps is on the device.
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, weight_decay=5e-4, capturable=device.type == "cuda"
    )

    def step(batch):
        loss = F.cross_entropy(model(batch), batch.labels["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = step if options.eager else WholeStep(step)
    for epoch in range(options.epochs):
        begin = time.time()
        total = torch.zeros((), device=device)
        model.train()
        for batch in loader:
            total += run(batch)
        mean, seconds = total.item() / len(loader), time.time() - begin
        print(f"epoch {epoch}  loss {mean:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE whose step is one CUDA graph")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--eager", action="store_true", help="run each step as it is")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    graph = open_graph(options.folder) if options.folder else sbm(20_000, num_features=32)
    ids = {part: graph.ndata[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "test")}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = int(graph.ndata["label"].max()) + 1
    model = SAGE(graph.ndata["feat"].shape[1], options.hidden, classes).to(device)
    loader = train(graph, ids, model, options, device)
    print(loader.envelope)
    print(f"test accuracy {evaluate(model, graph, ids['test'], options, device):.4f}")
    loader.close()


if __name__ == "__main__":
    main()
