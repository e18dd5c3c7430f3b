"""GraphSAGE for heterographs in several processes, each on a part that holds everything its
training papers reach.

PyG's examples/multi_gpu/distributed_sampling.py gives every process the whole graph. Here each
opens its own part, and never asks another process for a vertex, an edge or a row; only gradients
are exchanged. The loader is used as on a whole graph:

    -from torch_geometric.loader import NeighborLoader
    +from pagraph.pyg import NeighborLoader

The graph has papers, authors and institutions; parts are written to a temporary folder:

    python examples/partition_heterograph.py [FOLDER] [--processes 2] [--epochs 6]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import HeteroConv, SAGEConv

from pagraph import open_partition
from pagraph.datasets import citation, open_graph, write_graph
from pagraph.partition import partition_graph, verify_partition, write_partition
from pagraph.pyg import NeighborLoader, to_pyg


class HeteroSAGE(nn.Module):
    """Two layers for each relation; vertices without features learn an embedding, by their id in
    the whole graph."""

    def __init__(self, graph, num_nodes, hidden_size, out_size):
        super().__init__()
        fields = {t: graph.node_fields(t) for t in graph.node_types}
        self.inputs = nn.ModuleDict(
            {
                t: nn.Linear(own["feat"].shape[1], hidden_size)
                if "feat" in own
                else nn.Embedding(num_nodes[t], hidden_size)
                for t, own in fields.items()
            }
        )
        sizes = (hidden_size, hidden_size)
        self.first = HeteroConv({e: SAGEConv(sizes, hidden_size) for e in graph.edge_types})
        self.last = HeteroConv(
            {e: SAGEConv(sizes, out_size) for e in graph.edge_types if e[2] == "paper"}
        )

    def forward(self, batch):
        h = {
            t: layer(batch[t].x if "x" in batch[t] else batch[t].global_ids)
            for t, layer in self.inputs.items()
        }
        h = {t: F.relu(x) for t, x in self.first(h, batch.edge_index_dict).items()}
        edges = {e: index for e, index in batch.edge_index_dict.items() if e[2] == "paper"}
        return self.last(h, edges)["paper"][: batch["paper"].batch_size]


def correct(model, data, papers):
    """Number of papers whose field of study is predicted correctly from all of their neighbours."""
    right = 0
    with torch.no_grad():
        for batch in NeighborLoader(data, [-1, -1], input_nodes=("paper", papers), batch_size=1024):
            right += int(
                (model(batch).argmax(dim=1) == batch["paper"].y[: batch["paper"].batch_size]).sum()
            )
    return right


def run(rank, meeting, parts, options, counts):
    """One process, on its part; writes its results into its row of `counts`, which all processes
    share."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.processes)
    torch.manual_seed(options.seed)
    part = open_partition(parts, rank, world_size=options.processes)
    data = to_pyg(part.graph)
    model = HeteroSAGE(part.graph, part.manifest.node_types, options.hidden, options.classes)
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    loader = NeighborLoader(
        data,
        [10, 10],
        input_nodes=("paper", part.train),
        batch_size=options.batch_size,
        shuffle=True,
    )
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(options.epochs):
        begin, losses = time.time(), []
        # Parts differ by a batch: whoever has finished still takes part in the others' steps.
        with Join([parallel]):
            for batch in loader:
                loss = F.cross_entropy(
                    parallel(batch), batch["paper"].y[: batch["paper"].batch_size]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        if rank == 0:
            print(
                f"epoch {epoch}  loss {sum(losses) / len(losses):.4f}  {time.time() - begin:.2f} s",
                flush=True,
            )
    counts[rank] = torch.tensor([correct(model, data, part.test), len(part.test)])
    # First the model, which refers to the group: if it freed it, torch would join gloo's threads
    # with the GIL held, and could wait forever for one that needs it.
    del parallel
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE for heterographs on parts")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 4000 papers"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=256, help="of each process")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as work:
        source, parts = options.folder or f"{work}/graph", f"{work}/parts"
        if not options.folder:
            write_graph(citation(4000), source)
        graph = open_graph(source)
        options.classes = int(graph.node_fields("paper")["label"].max()) + 1
        # Parts hold what their share of the validation and test papers reaches as well: each
        # evaluates its own.
        partition = partition_graph(
            graph, options.processes, hops=2, node_type="paper", evaluation="parts"
        )
        manifest = write_partition(partition, parts, source=source)
        verify_partition(parts).raise_if_wrong()
        print(f"{manifest.num_parts} parts, replication factor {manifest.replication_factor:.3f}")
        counts = torch.zeros(options.processes, 2, dtype=torch.int64).share_memory_()
        arguments = (Path(work, "meeting").as_uri(), parts, options, counts)
        torch.multiprocessing.spawn(run, args=arguments, nprocs=options.processes)
    right, total = counts.sum(dim=0).tolist()
    print(f"test accuracy {right / total:.4f}")


if __name__ == "__main__":
    main()
