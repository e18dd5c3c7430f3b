"""How fast a device samples neighbours, with the graph's arrays in its own memory and in the host's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor

from ..cache.budget import Budget
from ..datasets import rmat
from ..graph import Graph
from ..sampling import NeighborSampler
from ..sampling.device_sampler import DeviceSampler
from .ceilings import SECTOR, random_rows
from .device_timer import DeviceTimer, Rate

__all__ = ["PLACES", "sampling", "sampling_paths"]

PLACES = {"device": Budget(), "pinned host": None}
"""Where the graph's arrays are, and the budget that puts them there."""

_EDGES_A_VERTEX = 8  # drawn; each is stored in both directions


def sampling(where: str) -> str:
    """The name of the rate of sampled neighbours; ``where`` is a key of ``PLACES``."""
    return f"sampling, graph: {where}"


def sampling_paths(
    timer: DeviceTimer, *, scale: int, batch_size: int, fanouts: tuple[int, ...], left_out: dict[str, str]
) -> Iterator[Rate]:
    """Batches of an RMAT graph, one after the other, each compared with the CPU's in its edges.

    A sampled neighbour is counted as the sector that reading its id costs.

    Args:
        timer: Of the stream "sampling" of an accelerator that runs kernels.
        scale: Base-2 logarithm of the number of vertices.
        batch_size: Seeds a batch.
        fanouts: In DGL's order.
        left_out: Takes the reason if the graph cannot be placed.
    """
    graph = rmat(scale, edge_factor=_EDGES_A_VERTEX, undirected=True, seed=0)
    sampler = NeighborSampler(fanouts)
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randperm(graph.num_nodes, generator=generator)[:batch_size] for _ in range(timer.repeats)]
    for where, budget in PLACES.items():
        try:
            on_device = DeviceSampler(graph, sampler, timer.accelerator, budget)
        except ValueError as error:
            left_out[sampling(where)] = str(error)
            continue
        with closing(on_device):
            edges = sum(_compared(on_device, sampler, graph, seeds, key) for key, seeds in enumerate(batches))
            seconds = tuple(_device_seconds(timer, on_device, seeds, key) for key, seeds in enumerate(batches))
            begin = time.perf_counter()
            for key, seeds in enumerate(batches):
                on_device.sample(seeds, key).ready.wait()
            alone = (time.perf_counter() - begin) / len(batches)
            rate = edges / len(batches) / statistics.median(seconds)
        note = f"{rate / 1e6:,.0f} M edges/s; {alone * 1e3:,.2f} ms a batch with its launches; {on_device.placement}"
        yield Rate(sampling(where), edges * SECTOR // len(batches), seconds, random_rows(where, SECTOR), note)


def _compared(on_device: DeviceSampler, sampler: NeighborSampler, graph: Graph, seeds: Tensor, key: int) -> int:
    """The edges of a batch, which are the CPU's.

    Raises:
        RuntimeError: They are not.
    """
    sampled, expected = on_device.sample(seeds, key), sampler.sample(graph, seeds, key)
    sampled.ready.wait()
    for block, on_cpu in zip(sampled.batch.blocks, expected.blocks, strict=True):
        if not torch.equal(block.indices.cpu(), on_cpu.indices):
            raise RuntimeError(f"sampled other neighbours than the CPU, with the graph's arrays {on_device.placement}")
    return sum(block.num_edges for block in expected.blocks)


def _device_seconds(timer: DeviceTimer, on_device: DeviceSampler, seeds: Tensor, key: int) -> float:
    """What the device needs for a batch whose kernels have all been launched."""
    timer.occupy()
    sampled = on_device.sample(seeds, key)
    sampled.ready.wait()
    return sampled.ready.seconds_since(sampled.begun)
