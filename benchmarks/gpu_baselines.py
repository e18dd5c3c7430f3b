"""Loaders that ours are compared with on a GPU: DGL's, PyG's, and a plain loop. All sample on the
CPU.

Each gives what the model takes (rows, labels and, for each layer, its edges and number of
destinations), on the device.
"""

import importlib.util
import warnings

import torch


def baselines(work):
    """Name to a function that gives one epoch's batches, and name to the reason why another cannot
    be had."""
    found, missing = {}, {}
    for name, needed, make in (("DGL", "dgl", dgl_loader), ("PyG", "torch_geometric", pyg_loader)):
        reason = f"{needed} is not installed" if importlib.util.find_spec(needed) is None else None
        if reason is None and make is pyg_loader and not _pyg_samples():
            reason = "PyG's NeighborLoader needs pyg-lib or torch-sparse, and neither is installed"
        if reason is None:
            found[name] = make(work)
        else:
            missing[name] = reason
    return found, missing


def dgl_loader(work):
    """DGL's DataLoader with its default threads, rows prefetched by it; blocks are converted."""
    import pagraph.dgl  # makes DGL importable where its GraphBolt does not fit torch

    import dgl  # isort: skip

    graph = pagraph.dgl.to_dgl(work.graph)
    graph.create_formats_()
    sampler = dgl.dataloading.NeighborSampler(
        list(work.sizes.fanouts), prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    loader = dgl.dataloading.DataLoader(
        graph, work.seeds, sampler, batch_size=work.sizes.batch_size, shuffle=True, num_workers=0
    )
    device = work.accelerator.device

    def batches():
        for _, _, blocks in loader:
            layers = [
                (torch.stack(block.edges()).long().to(device), block.num_dst_nodes())
                for block in blocks
            ]
            yield (
                blocks[0].srcdata["feat"].to(device),
                blocks[-1].dstdata["label"].to(device),
                layers,
            )

    return batches


def pyg_loader(work):
    """PyG's NeighborLoader without workers. Its batches are one subgraph, all of which every layer
    computes."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    csc = work.graph.csc
    dst = torch.repeat_interleave(torch.arange(work.graph.num_nodes), csc.indptr.diff())
    data = Data(torch.as_tensor(work.graph.ndata["feat"]), torch.stack([csc.indices.long(), dst]))
    data.y = work.graph.ndata["label"]
    warnings.filterwarnings("ignore", message="Using 'NeighborSampler' without")
    hops = list(work.sizes.fanouts)[::-1]
    loader = NeighborLoader(
        data, hops, input_nodes=work.seeds, batch_size=work.sizes.batch_size, shuffle=True
    )

    def batches():
        for batch in loader:
            batch = batch.to(work.accelerator.device)
            yield (
                batch.x,
                batch.y[: batch.batch_size],
                [(batch.edge_index, batch.num_nodes)] * len(hops),
            )

    return batches


def plain_loop(work):
    """What a script does by hand: our CPU sampler in one thread, torch's indexing, copies from
    pageable memory."""
    features, labels = work.graph.ndata["feat"], work.graph.ndata["label"]
    device = work.accelerator.device

    def batches():
        order = work.seeds[
            torch.randperm(len(work.seeds), generator=torch.Generator().manual_seed(2))
        ]
        for key, seeds in enumerate(order.split(work.sizes.batch_size)):
            batch = work.sampler.sample(work.graph, seeds, key)
            x = features[batch.input_nodes].to(device)
            yield (
                x,
                labels[seeds].to(device),
                [(b.to_pyg(), b.num_dst) for b in (b.to(device) for b in batch.blocks)],
            )

    return batches


def _pyg_samples():
    return any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse"))
