"""Sending: what of a batch is in host memory goes to an accelerator in the thread that has prepared the batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover, StagingRing

__all__ = ["Sender"]


class Sender:
    """Copies batches through page-locked memory, ahead of the reader. Safe from any thread.

    Args:
        accelerator: Where to.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._ring = StagingRing(accelerator)

    def send(self, batch: Any, there: Collection[Tensor]) -> Handover:
        """Put copies on the accelerator into a batch, for its plain tensors in host memory.

        Tensors of other kinds (sparse ones, PyG's ``EdgeIndex``) are left to ``batch.to(device)``.

        Args:
            batch: Anything with PyG's ``apply``; nobody else has it.
            there: Tensors of it that are on the accelerator already.

        Returns:
            Whatever this thread has made on the accelerator, PyG's own selections too; to arrive before it is used.
        """
        skipped = {id(tensor) for tensor in there}
        waiting: dict[int, Tensor] = {}
        others: list[Tensor] = []

        def note(tensor: Any) -> Any:
            if id(tensor) not in skipped and _is_plain(tensor):
                waiting[id(tensor)] = tensor
            elif type(tensor) is Tensor and tensor.layout == torch.strided:
                others.append(tensor)
            return tensor

        batch.apply(note)
        made = self._accelerator.current_stream.record()
        stream = self._accelerator.stream("copying")
        with stream.use():
            stream.wait_for(made)  # so that one event is enough for both
            begun = stream.record()
            copies = self._ring.upload(tensor.contiguous() for tensor in waiting.values())
            ready = stream.record()
        sent = dict(zip(waiting, copies, strict=True))
        batch.apply(lambda tensor: sent.get(id(tensor), tensor))
        return Handover([*copies, *others], self._accelerator, ready, begun)


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
    )
