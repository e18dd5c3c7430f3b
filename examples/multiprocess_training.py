"""Data-parallel GraphSAGE in several processes, as in DGL's
examples/multigpu/node_classification_sage.py.

A script for DGL's own loader only has to change its first import:

    -from dgl.dataloading import DataLoader
    +from pagraph.dgl import DataLoader

Every process trains a copy of the model on its share of the batches, and the gradients are
averaged. All processes make the same number of batches, so that none waits forever. They share the
graph's memory, and communicate through gloo on CPUs and NCCL on GPUs.

    python examples/multiprocess_training.py [FOLDER] [--processes 2] [--epochs 12]
"""

# Before dgl, which with some versions of torch can only be imported after it.
from pagraph.dgl import DataLoader

# isort: split
import argparse
import os
import tempfile
import time
import warnings

import dgl
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.dataloading import NeighborSampler
from dgl.nn import SAGEConv
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pagraph.dgl
from pagraph.datasets import open_graph, sbm


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size, "mean"), SAGEConv(hidden_size, out_size, "mean")]
        )

    def forward(self, blocks, x):
        return self.layers[1](blocks[1], F.relu(self.layers[0](blocks[0], x)))


def loader_of(graph, part, device, **options):
    """Loads this process's share of the vertices that `part` names."""
    nodes = graph.ndata[f"{part}_mask"].nonzero().squeeze(1)
    sampler = NeighborSampler([10, 10], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    return DataLoader(graph, nodes, sampler, device=device, use_ddp=True, **options)


@torch.no_grad()
def evaluate(model, graph, device):
    """Number of this process's test vertices that are classified correctly, and of all of them."""
    right = total = 0
    for _, _, blocks in loader_of(graph, "test", device, batch_size=1024):
        predicted = model(blocks, blocks[0].srcdata["feat"]).argmax(dim=1)
        right += int((predicted == blocks[-1].dstdata["label"]).sum())
        total += len(predicted)
    return torch.tensor([right, total])


def train(rank, graph, device, options):
    model = SAGE(
        graph.ndata["feat"].shape[1], options.hidden, int(graph.ndata["label"].max()) + 1
    ).to(device)
    model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    loader = loader_of(graph, "train", device, batch_size=options.batch_size, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        if hasattr(loader, "set_epoch"):  # as torch's DistributedSampler; DGL's loader has none
            loader.set_epoch(epoch)
        begin, total = time.time(), torch.zeros(2, device=device)
        for _, _, blocks in loader:
            loss = F.cross_entropy(
                model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item(), 1.0], device=device)
        dist.all_reduce(total)
        if rank == 0:
            mean = float(total[0] / total[1])
            print(
                f"epoch {epoch}  loss {mean:.4f}  {int(total[1])} batches  "
                f"{time.time() - begin:.2f} s",
                flush=True,
            )
    return model.module


def run(rank, meeting, graph, options, counts):
    """One process; writes its results into its row of `counts`, which all processes share."""
    warnings.simplefilter("ignore")  # DGL's advice on CPU affinity
    cuda = torch.cuda.device_count() >= options.processes
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=options.processes)
    dgl.seed(options.seed + rank)
    torch.manual_seed(options.seed + rank)
    # Shuffles: DGL's loader shuffles each process's part by itself.
    np.random.seed(options.seed + rank)
    model = train(rank, graph, device, options)
    counts[rank] = evaluate(model, graph, device)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE in several processes")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 8000 vertices"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=256, help="of each process")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    graph = pagraph.dgl.to_dgl(
        open_graph(options.folder) if options.folder else sbm(8000, num_features=32)
    )
    graph.create_formats_()  # here, once, instead of in every process
    counts = torch.zeros(options.processes, 2, dtype=torch.int64).share_memory_()
    # A file to meet at: no port that another program may take.
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"file://{folder}/meeting", graph, options, counts)
        torch.multiprocessing.spawn(run, args=arguments, nprocs=options.processes)
    right, total = counts.sum(dim=0).tolist()
    print(f"test accuracy {right / total:.4f}")


if __name__ == "__main__":
    main()
