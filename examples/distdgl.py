"""DistDGL, DGL's distributed engine, on parts made by pagraph, with a loader that reads ahead.

Make the parts with `pagraph.partition.write_dgl`, and run the script with DGL's tools/launch.py. On
every machine it starts a server that holds the machine's part, and trainers that train on that
part's training vertices:

    python launch.py --workspace . --num_trainers 1 --num_servers 1 --num_samplers 0 \\
        --part_config PARTS/graph.json --ip_config ip_config.txt "python examples/distdgl.py
        PARTS/graph.json"

With a single part the script runs without servers (DGL's standalone mode):

    python examples/distdgl.py PARTS/graph.json [--ip-config FILE] [--epochs 10]
"""

import pagraph.dgl  # before dgl, which with some versions of torch can only be imported after it

# isort: split
import argparse
import contextlib
import os

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.dataloading import NeighborSampler
from dgl.nn import SAGEConv
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hidden_size, "mean"), SAGEConv(hidden_size, out_size, "mean")]
        )

    def forward(self, blocks, x):
        return self.layers[1](blocks[1], F.relu(self.layers[0](blocks[0], x)))


def own_nodes(graph, split):
    """The vertices of a split that are in this machine's part, shared among its trainers."""
    return dgl.distributed.node_split(
        graph.ndata[f"{split}_mask"], graph.get_partition_book(), force_even=False
    )


def loader(graph, split, options, **kwargs):
    """Batches whose blocks have features and labels: a thread reads them ahead of the loop."""
    sampler = NeighborSampler([10, 10], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    nodes = own_nodes(graph, split)
    return pagraph.dgl.DistNodeDataLoader(
        graph, nodes, sampler, batch_size=options.batch_size, **kwargs
    )


def train(graph, model, options, meeting):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = loader(graph, "train", options, shuffle=True, cache=options.cache)
    for epoch in range(options.epochs):
        total = torch.zeros(2)
        # Parts differ in size: whoever has finished still takes part in the others' steps.
        with meeting():
            for _, _, blocks in batches:
                output = model(blocks, blocks[0].srcdata["feat"])
                loss = F.cross_entropy(output, blocks[-1].dstdata["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += torch.tensor([loss.item(), 1.0])
        print(
            f"rank {graph.rank()}  epoch {epoch}  loss {total[0] / total[1]:.4f}  {int(total[1])} "
            "batches",
            flush=True,
        )
    if graph.rank() == 0:
        print(batches.stats, flush=True)


@torch.no_grad()
def evaluate(graph, model, options):
    """Number of this trainer's test vertices that are classified correctly, and of all of them."""
    right = total = 0
    for _, _, blocks in loader(graph, "test", options):
        labels = blocks[-1].dstdata["label"]
        output = model(blocks, blocks[0].srcdata["feat"])
        right += int((output.argmax(dim=1) == labels).sum())
        total += len(labels)
    return torch.tensor([right, total])


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE with DistDGL on parts made by pagraph")
    parser.add_argument("config", help="the JSON file of the parts")
    parser.add_argument(
        "--ip-config", default="ip_config.txt", help="file with a line for each machine"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128, help="of each trainer")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument(
        "--cache", default="20%", help="of the rows: of other machines' that are read most"
    )
    options = parser.parse_args()

    # A server stays in here until the training is over.
    dgl.distributed.initialize(options.ip_config)
    name = os.path.basename(options.config).removesuffix(".json")
    graph = dgl.distributed.DistGraph(name, part_config=options.config)
    torch.manual_seed(0)
    classes = int(graph.ndata["label"][torch.arange(graph.num_nodes())].max()) + 1
    model = SAGE(graph.ndata["feat"].shape[1], options.hidden, classes)
    alone = os.environ.get("DGL_DIST_MODE", "standalone") == "standalone"
    if alone:
        train(graph, model, options, contextlib.nullcontext)
        counts = evaluate(graph, model, options)
    else:
        dist.init_process_group("gloo")
        parallel = DistributedDataParallel(model)
        train(graph, parallel, options, lambda: Join([parallel]))
        counts = evaluate(graph, model, options)
        dist.all_reduce(counts)
    if graph.rank() == 0:
        print(f"test accuracy {counts[0] / counts[1]:.4f}", flush=True)
    if not alone:
        # First the model, which refers to the group: if it freed it, torch would join gloo's
        # threads with the GIL held, and could wait forever for one that needs it.
        del parallel
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
