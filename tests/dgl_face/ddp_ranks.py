"""The processes of ``test_ddp.py``: ``python ddp_ranks.py FOLDER`` runs 1 to 4 ranks and writes
what each saw as JSON.

One start of the processes serves all checks: starting them is what takes time.
"""

import datetime
import json
import multiprocessing
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # before the fork: DistributedDataParallel imports it, which takes a second
import torch.distributed
from cases import bits, collect, dgl, make_graph, ours, theirs

NeighborSampler = dgl.dataloading.NeighborSampler
WORLDS = (1, 2, 3, 4)
LENGTHS = (0, 1, 3, 12, 21)


def outputs(loader):
    return [batch[1].tolist() for batch in collect(loader)]


def slices(graph):
    """In order: by length, with and without ``drop_last``; and DGL's own where the length
    divides."""
    result = {}
    for length in LENGTHS:
        for drop_last in (False, True):
            options = dict(use_ddp=True, batch_size=2, drop_last=drop_last)
            loader = ours(graph, torch.arange(length), NeighborSampler([2]), **options)
            result[f"{length} {drop_last}"] = [len(loader), outputs(loader)]
    for name, make in {"ours": ours, "dgl": theirs}.items():
        for shape, ids in {"plain": torch.arange(24), "typed": {"_N": torch.arange(24)}}.items():
            loader = make(graph, ids, Echo(), use_ddp=True, batch_size=4)
            result[f"{name} {shape}"] = [
                x["_N"].tolist() if shape == "typed" else x.tolist() for x in collect(loader)
            ]
    return result


class Echo(dgl.dataloading.Sampler):
    """Shows the seeds themselves."""

    def sample(self, g, indices):
        return indices


def shuffled(graph, rank):
    """Three epochs, with global generators that differ between ranks and then with those that do
    not."""
    result = []
    for noise in (rank, 0):
        np.random.seed(noise), torch.manual_seed(noise)
        loader = ours(
            graph, torch.arange(21), NeighborSampler([2]), use_ddp=True, batch_size=4, shuffle=True
        )
        result.append([outputs(loader) for _ in range(3)])
    assert result[0] == result[1]
    loader.set_epoch(1)
    assert outputs(loader) == result[0][1]
    return result[0]


def neighbours(graph):
    """The neighbours each rank samples for the same seeds: all ranks have the same generators."""
    torch.manual_seed(0)
    loader = ours(
        graph,
        torch.zeros(8, dtype=torch.int64) + 5,
        NeighborSampler([2, 2]),
        use_ddp=True,
        batch_size=8,
    )
    return [bits(batch) for batch in loader]


def resumed(graph):
    """Whether a state saved in the middle gives the very batches that would have come, and the
    epoch after them."""
    same = []
    for seed in (None, 3):
        options = dict(use_ddp=True, batch_size=2, shuffle=True, seed=seed)
        loader = ours(graph, torch.arange(21), NeighborSampler([2, 2]), **options)
        list(loader)
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        rest, after = [bits(batch) for batch in batches], outputs(loader)
        again = ours(graph, torch.arange(21), NeighborSampler([2, 2]), **options)
        again.load_state_dict(state)
        again.set_epoch(1)
        same.append([bits(batch) for batch in again] == rest and outputs(again) == after)
    return same


def trained(graph):
    """Steps and final weights of one epoch of DistributedDataParallel; the last batches are
    smaller."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(dgl.nn.SAGEConv(16, 5, "mean"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = NeighborSampler([3], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = ours(
        graph, torch.arange(37), sampler, use_ddp=True, batch_size=4, shuffle=True, num_workers=1
    )
    steps = 0
    for _, _, (block,) in loader:
        loss = torch.nn.functional.cross_entropy(
            model(block, block.srcdata["feat"]), block.dstdata["label"]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return [steps, [parameter.flatten().tolist() for parameter in model.parameters()]]


def work(rank, world, folder):
    timeout = datetime.timedelta(seconds=1500)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store{world}",
        rank=rank,
        world_size=world,
        timeout=timeout,
    )
    graph = make_graph()
    seen = {
        "slices": slices(graph),
        "shuffled": shuffled(graph, rank),
        "neighbours": neighbours(graph),
        "resumed": resumed(graph),
        "trained": trained(graph),
    }
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    Path(folder, f"{rank}of{world}.json").write_text(json.dumps(seen))


def main(folder):
    """Fork the ranks: they need not import everything again, nor load the kernels."""
    list(
        ours(
            make_graph(),
            torch.arange(4),
            NeighborSampler([2], prefetch_node_feats=["feat"]),
            prefetch=0,
        )
    )
    warnings.simplefilter("ignore")  # of forking, by Python versions that warn of it
    context = multiprocessing.get_context("fork")
    for world in WORLDS:
        processes = [
            context.Process(target=work, args=(rank, world, folder)) for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit(f"exit codes of {world} ranks: {[process.exitcode for process in processes]}")


if __name__ == "__main__":
    main(sys.argv[1])
