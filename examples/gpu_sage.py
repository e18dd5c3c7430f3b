"""GraphSAGE with PyG's layers on a GPU that also samples and reads rows, while it trains.

With a CUDA device and Triton, the device samples the graph, caches the most-read rows, and reads
the others straight from host memory. Without a device the same script samples and trains on the
CPU, with the same batches. At the end it prints what was cached, how each field was transferred and
where the time went.

Run it on a graph folder, or without arguments on a generated block-model graph:

    python examples/gpu_sage.py [FOLDER] [--epochs 5] [--cache 4GiB] [--trace steps.json]
"""

import argparse
import contextlib
import importlib.util
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import SAGEConv

from pagraph import Loader, NeighborSampler
from pagraph.datasets import open_graph, sbm


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size, num_layers):
        super().__init__()
        sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.layers = nn.ModuleList(SAGEConv(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.dropout = nn.Dropout(0.5)

    def forward(self, blocks, x):
        for place, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = self.dropout(F.relu(x)) if place else x
            x = layer((x, x[: block.num_dst]), block.to_pyg())
        return x


def load(graph, ids, options, device, shuffle=False):
    samples_there = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return Loader(
        graph,
        ids,
        NeighborSampler(options.fanouts),
        fields=["feat"],
        labels=["label"],
        batch_size=options.batch_size,
        shuffle=shuffle,
        device=device,
        sampling_device=device if samples_there else "cpu",
        cache=options.cache,
    )


@torch.no_grad()
def evaluate(model, graph, ids, options, device):
    """Share of `ids` whose class is predicted correctly, from a sample of their neighbours."""
    model.eval()
    loader, right = (
        load(graph, ids, options, device),
        torch.zeros((), dtype=torch.int64, device=device),
    )
    for batch in loader:
        right += (
            model(batch.blocks, batch.features["feat"]).argmax(dim=1) == batch.labels["label"]
        ).sum()
    loader.close()
    return int(right) / len(ids)


def train(graph, ids, model, options, device):
    loader = load(graph, ids["train"], options, device, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    with loader.trace(options.trace) if options.trace else contextlib.nullcontext():
        for epoch in range(options.epochs):
            begin, total = time.time(), torch.zeros((), device=device)
            model.train()
            for batch in loader:
                loss = F.cross_entropy(
                    model(batch.blocks, batch.features["feat"]), batch.labels["label"]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()  # loss.item() would make the CPU wait for every step
            mean, seconds = total.item() / len(loader), time.time() - begin
            accuracy = evaluate(model, graph, ids["val"], options, device)
            print(f"epoch {epoch}  loss {mean:.4f}  validation {accuracy:.4f}  {seconds:.2f} s")
    return loader


def main():
    parser = argparse.ArgumentParser(
        description="GraphSAGE on a GPU that samples and reads rows itself"
    )
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument(
        "--fanouts", type=lambda text: [int(n) for n in text.split(",")], default=[10, 10]
    )
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--cache", default="auto", help='bytes ("2GiB"), a share of the rows ("20%%"), or "auto"'
    )
    parser.add_argument("--trace", help="write a timeline of the training to this file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    graph = open_graph(options.folder) if options.folder else sbm(20_000, num_features=32)
    ids = {
        part: graph.ndata[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "val", "test")
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = graph.ndata["feat"].shape[1], options.hidden, int(graph.ndata["label"].max()) + 1
    model = SAGE(*sizes, num_layers=len(options.fanouts)).to(device)
    loader = train(graph, ids, model, options, device)
    print(f"test accuracy {evaluate(model, graph, ids['test'], options, device):.4f}")
    print(f"the graph is sampled from: {loader.sampling_placement}")
    for field, transfer in loader.transfers.items():
        print(f"rows of {field} that are not cached: {transfer}")
    print(loader.cache_plan)
    print(loader.stats)
    loader.close()


if __name__ == "__main__":
    main()
