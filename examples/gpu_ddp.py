"""GraphSAGE with PyG's layers on several GPUs: one process per GPU, all on one graph in shared
memory.

Every process loads its share of the seeds onto its own GPU, with its own cache, and the gradients
are averaged. The graph and its rows are in host memory once, and each process pins them in place.
Processes communicate through NCCL. With fewer GPUs than processes, all run on the CPU and
communicate through gloo. To also divide the graph, so that no process reads another's rows, see
docs/partition.md; for a script with DGL's layers see examples/multiprocess_training.py.

    python examples/gpu_ddp.py [FOLDER] [--processes 2] [--epochs 5]
"""

import argparse
import importlib.util
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

from pagraph import Loader, NeighborSampler
from pagraph.datasets import open_graph, sbm


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size), SAGEConv(hidden_size, out_size)]
        )

    def forward(self, blocks, x):
        hidden = F.relu(self.layers[0]((x, x[: blocks[0].num_dst]), blocks[0].to_pyg()))
        return self.layers[1]((hidden, hidden[: blocks[1].num_dst]), blocks[1].to_pyg())


def load(graph, ids, device, options, shuffle=False):
    """This process's share of the seeds, a new one in each epoch. All shares are equal, so that no
    process waits for a gradient that never comes."""
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
        cache=options.cache,
        seed=options.seed,
        use_ddp=True,
    )


@torch.no_grad()
def evaluate(model, graph, ids, device, options):
    """Number of this process's test vertices that are classified correctly, and of all of them. If
    they cannot be split evenly, one is counted twice."""
    loader, counts = (
        load(graph, ids, device, options),
        torch.zeros(2, dtype=torch.int64, device=device),
    )
    for batch in loader:
        right = model(batch.blocks, batch.features["feat"]).argmax(dim=1) == batch.labels["label"]
        counts += torch.stack([right.sum(), torch.tensor(len(right), device=device)])
    loader.close()
    return counts


def train(graph, ids, rank, device, options):
    torch.manual_seed(options.seed)  # every process begins with the same weights
    sizes = graph.ndata["feat"].shape[1], options.hidden, int(graph.ndata["label"].max()) + 1
    model = SAGE(*sizes).to(device)
    parallel = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    loader = load(graph, ids, device, options, shuffle=True)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        begin, total = time.time(), torch.zeros((), device=device)
        for batch in loader:
            loss = F.cross_entropy(
                parallel(batch.blocks, batch.features["feat"]), batch.labels["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            mean, seconds = total.item() / (len(loader) * options.processes), time.time() - begin
            print(
                f"epoch {epoch}  loss {mean:.4f}  {len(loader)} batches each  {seconds:.2f} s",
                flush=True,
            )
    if rank == 0:
        print(f"process 0:\n{loader.stats}", flush=True)
    loader.close()
    return model


def run(rank, meeting, graph, options):
    """One process."""
    cuda = torch.cuda.device_count() >= options.processes
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=options.processes)
    ids = {part: graph.ndata[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "test")}
    model = train(graph, ids["train"], rank, device, options)
    counts = evaluate(model, graph, ids["test"], device, options)
    dist.all_reduce(counts)
    if rank == 0:
        right, asked = counts.tolist()
        print(f"test accuracy {right / asked:.4f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE on several GPUs")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 vertices"
    )
    parser.add_argument("--processes", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="of each process")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--cache", default="auto", help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    graph = open_graph(options.folder) if options.folder else sbm(8000, num_features=32)
    # A file to meet at: no port that another program may take.
    with tempfile.TemporaryDirectory() as folder:
        # Tensors among them go through shared memory.
        arguments = (f"file://{folder}/meeting", graph, options)
        torch.multiprocessing.spawn(run, args=arguments, nprocs=options.processes)


if __name__ == "__main__":
    main()
