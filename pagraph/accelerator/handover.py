"""Handover: tensors that one thread has made on its stream, for another thread that will use them on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .accelerator import Accelerator, Event

__all__ = ["Handover"]


@dataclass(frozen=True, eq=False)
class Handover:
    """Tensors on their way from the stream that made them to the one that will use them.

    Attributes:
        tensors: On any device; those that are not the accelerator's are simply there.
        accelerator: Theirs; None: everything is on the CPU.
        ready: When they are made.
        begun: When that began, if somebody wants to know.
    """

    tensors: Sequence[Tensor]
    accelerator: Accelerator | None = None
    ready: Event | None = None
    begun: Event | None = None

    @classmethod
    def here(cls, tensors: Sequence[Tensor], accelerator: Accelerator | None) -> Handover:
        """Of tensors that the calling thread has just made on its current stream."""
        return cls(tensors, accelerator, None if accelerator is None else accelerator.current_stream.record())

    def arrive(self) -> Sequence[Tensor]:
        """The tensors, for the calling thread's current stream; it does not wait."""
        if self.accelerator is not None and self.ready is not None:
            self.accelerator.hand_over(self.tensors, self.ready)
        return self.tensors
