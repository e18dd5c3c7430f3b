"""How long a trainer of DistDGL waits for its batches, and what crosses the network: DGL's loader
against ours with caches of 0, 5 and 20 % of the rows.

Two machines are namespaces of this host with a link of 1 Gbit/s, and 0.5 ms each way where the
kernel can delay (``machines.py``; needs root, or user namespaces). RMAT with 128 float32 features,
parts by ``pagraph partition --format dgl``, one server and one trainer on each, GraphSAGE on one
core. Every epoch is run by each loader in turn. By epoch: seconds in which the loop waits
(``next()``, and for DGL's loader the rows that the loop reads), and bytes that the trainer's
machine receives.

Run: ``python benchmarks/dist_loaders.py`` (about 5 minutes); ``--quick`` only shows that it runs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CACHES = {"DGL": None, "ours, no cache": 0, "ours, 5 %": 0.05, "ours, 20 %": 0.2}
BATCH = 500
FANOUTS = [10, 10]
WIDTH = 128
HERE = Path(__file__).resolve()


def received():
    """Bytes that this machine has received from others."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (card,) = [line for line in lines if line.strip().startswith("m")]
    return int(card.split(":")[1].split()[0])


def made_loader(graph, seeds, cache):
    import dgl

    import pagraph.dgl

    sampler = dgl.dataloading.NeighborSampler(
        FANOUTS, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    if cache is None:
        kind, more = dgl.dataloading.DistNodeDataLoader, {}
    else:
        kind, more = pagraph.dgl.DistNodeDataLoader, {"cache": cache}
    return kind(graph, seeds, sampler, batch_size=BATCH, shuffle=True, drop_last=True, **more)


def epoch(loader, graph, step, is_dgls):
    """Seconds waited, seconds in all and bytes received in a pass."""
    before = received()
    begin = time.perf_counter()
    waited = 0.0
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        inputs, outputs, blocks = batch
        if is_dgls:
            rows, labels = graph.ndata["feat"][inputs], graph.ndata["label"][outputs]
        else:
            rows, labels = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
        waited += time.perf_counter() - asked
        step(blocks, rows, labels)
    graph.barrier()
    return waited, time.perf_counter() - begin, received() - before


def train(folder, epochs, hidden):
    import pagraph.dgl  # before dgl

    # isort: split
    import dgl
    import torch
    from dgl.nn.pytorch import SAGEConv

    assert pagraph.dgl
    torch.set_num_threads(1)
    dgl.distributed.initialize(os.environ["IP_CONFIG"])
    graph = dgl.distributed.DistGraph("graph")
    seeds = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book())
    layers = torch.nn.ModuleList([SAGEConv(WIDTH, hidden, "mean"), SAGEConv(hidden, 16, "mean")])
    optimizer = torch.optim.Adam(layers.parameters())

    def step(blocks, rows, labels):
        for layer, block in zip(layers, blocks, strict=True):
            rows = layer(block, rows).relu()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(rows, labels.long()).backward()
        optimizer.step()

    loaders = {name: made_loader(graph, seeds, cache) for name, cache in CACHES.items()}
    found = {name: [] for name in CACHES}
    for number in range(1 + epochs):
        for name, loader in loaders.items():
            figures = epoch(loader, graph, step, CACHES[name] is None)
            if number:  # the first fills caches, and wakes everything up
                found[name].append(figures)
    rates = {
        name: loader.stats.epochs[-1].hit_rate
        for name, loader in loaders.items()
        if CACHES[name] is not None
    }
    rank = os.environ["RANK"]
    Path(folder, f"{rank}.json").write_text(json.dumps({"epochs": found, "hit_rates": rates}))
    graph.barrier()


def main():
    from contest import arguments, write
    from report import summarise

    options = arguments(__doc__, scale=17, epochs=4, hidden=64, quick=False)
    if options.quick:
        vars(options).update(scale=14, epochs=1)
    import torch

    from pagraph.datasets import rmat
    from pagraph.partition import partition_graph, place_vertices, write_dgl

    with tempfile.TemporaryDirectory() as folder:
        graph = rmat(options.scale, edge_factor=16, undirected=True, seed=0)
        n = graph.num_nodes
        graph.ndata["feat"] = torch.randn(n, WIDTH)
        graph.ndata["label"] = torch.randint(16, (n,))
        graph.ndata["train_mask"] = torch.rand(n) < 0.2
        placed = place_vertices(partition_graph(graph, 2, hops=2), fanout=FANOUTS)
        write_dgl(placed, Path(folder) / "parts")
        command = [sys.executable, HERE.with_name("machines.py"), "--rate", "1000"]
        command += ["--delay", "0.5", "--timeout", "1500"]
        command += [Path(folder) / "parts" / "graph.json", HERE, folder]
        command += [options.epochs, options.hidden]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr[-2000:] or done.returncode)
        link = json.loads(done.stdout.splitlines()[-1])["link"]
        trainers = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]
    result = {}
    print(f"link: {link}")
    print(f"{'':16s} waited s   epoch s   MB received   hit rate   waited, over DGL's")
    for name in CACHES:
        epochs = [figures for trainer in trainers for figures in trainer["epochs"][name]]
        waited, whole, nbytes = (summarise(values) for values in zip(*epochs, strict=True))
        rates = [trainer["hit_rates"].get(name) for trainer in trainers]
        result[name] = {"waited": waited, "epoch": whole, "bytes": nbytes, "hit_rates": rates}
        share = waited["median"] / result["DGL"]["waited"]["median"]
        rate = "" if None in rates else f"{statistics.mean(rates):.1%}"
        print(
            f"{name:16s} {waited['median']:8.2f} {whole['median']:9.2f}"
            f" {nbytes['median'] / 1e6:13.1f} {rate:>10s} {share:12.2f}"
        )
    if not options.quick:
        write(f"dist_loaders_{options.hidden}", options, {"link": link, "loaders": result})


if __name__ == "__main__":
    if "DGL_ROLE" in os.environ:
        train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
