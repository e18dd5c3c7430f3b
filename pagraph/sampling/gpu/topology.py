"""Topology: where the edges that a device draws from lie, on the device or pinned in the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...accelerator import OutOfMemory, StagingRing

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Pin
    from ...graph.csc import CSC
    from ...system.budget import Budget

__all__ = ["Topology"]

_PLACEMENTS = {
    "device": ("indptr", "indices"),
    "indptr on the device, indices pinned": ("indptr",),
    "pinned": (),
}


@dataclass(frozen=True, eq=False)
class Topology:
    """A graph's edges for the kernels of one device, and its table of vertices; made by :meth:`place`.

    Attributes:
        indptr: Shape ``(num_nodes + 1,)``, on the device or pinned.
        indices: Shape ``(num_edges,)``, on the device or pinned, the same dtype.
        first: Shape ``(num_nodes,)``, int32, on the device, zero but while a batch is sampled.
        placement: "device", "indptr on the device, indices pinned" or "pinned".
        nbytes: Bytes on the device.
        pins: What keeps host memory pinned.
    """

    indptr: Tensor
    indices: Tensor
    first: Tensor
    placement: str
    nbytes: int
    pins: tuple[Pin, ...]

    @classmethod
    def place(cls, csc: CSC, accelerator: Accelerator, budget: Budget | None) -> Topology:
        """Place as much on the device as the budget allows, and pin the rest; call where a stream is in use.

        The table of vertices is on the device in any case, since kernels write it without order, and the rest is
        placed in the order in which an edge drawn reads it: ``indptr``, then ``indices``.

        Args:
            csc: The edges, with as many sources as destinations.
            accelerator: The device.
            budget: Bytes that the arrays and the table may take; a share means one of the arrays, the table on top;
                "auto" half of what is free; None pins both arrays. Where memory runs out, more is pinned.

        Raises:
            ValueError: The budget is above what is free, or host memory that does not fit cannot be pinned.
            OutOfMemory: Not even the table fits.
        """
        arrays = {"indptr": csc.indptr.contiguous(), "indices": csc.indices.contiguous()}
        limit = _limit(arrays, csc.num_src, accelerator, budget)
        first = accelerator.empty((csc.num_src,), torch.int32).zero_()
        ring = StagingRing(accelerator)
        for placement, names in _PLACEMENTS.items():
            wanted = [arrays[name] for name in names]
            if names and first.nbytes + _nbytes(wanted) > limit:
                continue
            try:
                placed = dict(zip(names, ring.upload(wanted), strict=True)) if names else {}
            except OutOfMemory:
                accelerator.release_memory()
                continue
            pins = _pinned(arrays, placed, first, accelerator, budget)
            everything = {**arrays, **placed}
            nbytes = first.nbytes + _nbytes(wanted)
            return cls(everything["indptr"], everything["indices"], first, placement, nbytes, pins)
        raise AssertionError("the last placement needs no memory")

    def close(self) -> None:
        """Unpin the host's memory; kernels must not be launched any more."""
        for pin in self.pins:
            pin.release()


def _nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _limit(arrays: dict[str, Tensor], num_nodes: int, accelerator: Accelerator, budget: Budget | None) -> int:
    """Bytes that the arrays and the table may take."""
    if budget is None:
        return 0
    free, total = accelerator.free_bytes()
    table = num_nodes * torch.int32.itemsize
    limit = budget.nbytes([(1, _nbytes(list(arrays.values())))], free=lambda: free // 2)
    if not budget.pays_tables:
        limit += table
    if budget.limit is not None and limit > free:
        raise ValueError(
            f"sampling_budget must be at most the {free} bytes that are free on {accelerator.device} "
            f"(of {total}), got {limit}"
        )
    return limit


def _pinned(
    arrays: dict[str, Tensor], placed: dict[str, Tensor], first: Tensor, accelerator: Accelerator, budget: Budget | None
) -> tuple[Pin, ...]:
    """Pins of the arrays that are not placed on the device."""
    pins = {name: accelerator.pin(array) for name, array in arrays.items() if name not in placed}
    refused = [name for name, pin in pins.items() if pin is None]
    if refused:
        for pin in pins.values():
            if pin is not None:
                pin.release()
        # What lies before a refused array is placed on the device with it.
        needed = first.nbytes + arrays["indptr"].nbytes + ("indices" in refused) * arrays["indices"].nbytes
        raise ValueError(
            f"sampling_budget must be at least {needed} bytes, because the host memory of the graph's "
            f"{' and '.join(refused)} cannot be pinned on {accelerator.device}, got {budget}; sampling_device='cpu' "
            "needs none"
        )
    return tuple(pin for pin in pins.values() if pin is not None)
