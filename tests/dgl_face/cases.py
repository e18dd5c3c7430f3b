"""Graphs and loaders for comparing our face with DGL's own loader: each case exists once."""

import warnings

import numpy as np
import torch

import pagraph.dgl  # first: makes DGL importable whatever torch is installed

import dgl  # isort: skip

FIELD_DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


def make_graph(n=300, m=2500, seed=0, idtype=torch.int64, sort=False):
    """A graph with self-loops, parallel edges, isolated vertices and edges in no order."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, n - 20, m), rng.integers(0, n - 20, m)
    src[:20], dst[20:40] = dst[:20], dst[:20]
    if sort:
        dst = np.sort(dst)
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n, idtype=idtype)
    generator = torch.Generator().manual_seed(seed)
    graph.ndata["feat"] = torch.randn(n, 16, generator=generator)
    graph.ndata["label"] = torch.randint(0, 5, (n,), generator=generator)
    graph.ndata["wide"] = torch.randn(n, 3, 2, generator=generator)
    graph.edata["w"] = torch.randn(m, generator=generator)
    return graph


def random_field(rows, shape, dtype, seed=0):
    """Values that show any mix-up: large integers, all bit patterns."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(rows, *shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(rows, *shape, generator=generator).to(dtype)
    low, high = (0, 255) if dtype == torch.uint8 else (-120, 120)
    values = torch.randint(low, high, (rows, *shape), generator=generator).to(dtype)
    return values + 2**40 if dtype == torch.int64 else values


def ours(*args, **kwargs):
    return pagraph.dgl.DataLoader(*args, **kwargs)


def theirs(*args, **kwargs):
    return dgl.dataloading.DataLoader(*args, **kwargs)


def collect(loader):
    """All batches; DGL's loader warns of CPU affinity each epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(loader)


def edges_of(block):
    """A block's edges as sorted (source id, destination id, edge id): the order DGL leaves open."""
    src, dst = block.edges()
    src_ids, dst_ids = block.srcdata[dgl.NID], block.dstdata[dgl.NID]
    rows = zip(
        src_ids[src].tolist(), dst_ids[dst].tolist(), block.edata[dgl.EID].tolist(), strict=True
    )
    return sorted(rows)


def bits(batch):
    """Everything a batch holds, for comparing two batches bit for bit."""
    input_nodes, output_nodes, blocks = batch
    parts = [input_nodes.tolist(), output_nodes.tolist()]
    for block in blocks:
        src, dst = block.edges()
        parts += [
            src.tolist(),
            dst.tolist(),
            block.edata[dgl.EID].tolist(),
            block.srcdata[dgl.NID].tolist(),
        ]
    return parts
