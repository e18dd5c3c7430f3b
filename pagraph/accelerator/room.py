"""Room for batches on a device whose memory is taken by a cache: the cache gives way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .accelerator import Accelerator, OutOfMemory

__all__ = ["with_room"]

T = TypeVar("T")


def with_room(
    work: Callable[[], T],
    accelerator: Accelerator | None,
    shrink: Callable[[], bool],
    *,
    what: str = "a batch",
    smaller: str = "batch_size, fan-outs or sampling_budget must be smaller, or prefetch=0",
) -> T:
    """Do a piece of work that can be repeated; where the device's memory is short, again with a smaller cache.

    Args:
        work: Makes a batch, or a part of one; leaves nothing behind that a repetition would count twice.
        accelerator: Where it does; None: on the CPU, once.
        shrink: Makes the cache give up about half of what it holds; whether it had anything.
        what: What the error calls the work.
        smaller: What the error asks for.

    Raises:
        OutOfMemory: The work does not fit, and nothing is cached any more.
    """
    while True:
        try:
            return work()
        except OutOfMemory as error:
            if accelerator is None:
                raise
            problem = str(error)
        # Outside of the handler: its traceback holds what had been allocated.
        accelerator.release_memory()
        if not shrink():
            raise OutOfMemory(
                f"{what} does not fit on {accelerator.device} beside the model, and no cache is left to give up: "
                f"{smaller} ({problem})"
            )
