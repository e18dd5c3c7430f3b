"""How fast a device samples neighbours, with the graph's arrays in its own memory and in the host's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..cache.budget import Budget
from ..datasets import rmat
from ..sampling import NeighborSampler
from ..sampling.device_sampler import DeviceSampler
from .ceilings import SECTOR, random_rows
from .device_timer import DeviceTimer, Rate

__all__ = ["PLACES", "sampling", "sampling_paths"]

PLACES = {"device": Budget(), "pinned host": None}
"""Where the graph's arrays are, and the budget that puts them there."""

_WARMUPS = 2
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
    accelerator, repeats = timer.accelerator, timer.repeats
    graph = rmat(scale, edge_factor=_EDGES_A_VERTEX, undirected=True, seed=0)
    sampler = NeighborSampler(fanouts)
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randperm(graph.num_nodes, generator=generator)[:batch_size] for _ in range(_WARMUPS + repeats)]
    for where, budget in PLACES.items():
        try:
            on_device = DeviceSampler(graph, sampler, accelerator, budget)
        except ValueError as error:
            left_out[sampling(where)] = str(error)
            continue
        try:
            seconds, edges = [], 0
            for key, seeds in enumerate(batches):
                timer.occupy()  # while the kernels of the whole batch are launched
                sampled = on_device.sample(seeds, key)
                sampled.ready.wait()
                expected = sampler.sample(graph, seeds, key).blocks
                for block, on_cpu in zip(sampled.batch.blocks, expected, strict=True):
                    if not torch.equal(block.indices.cpu(), on_cpu.indices):
                        raise RuntimeError(f"{on_device.placement}: sampled other neighbours than the CPU")
                if key >= _WARMUPS:
                    seconds.append(sampled.ready.seconds_since(sampled.begun))
                    edges += sum(block.num_edges for block in expected)
        finally:
            accelerator.synchronize()
            on_device.close()
        rate = edges / sum(seconds)
        note = f"{edges / repeats:,.0f} edges a batch, {rate / 1e6:,.0f} M edges/s; {on_device.placement}"
        yield Rate(sampling(where), edges * SECTOR // repeats, tuple(seconds), random_rows(where, SECTOR), note)
