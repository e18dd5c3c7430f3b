"""Training steps for which a GPU may be too small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..accelerator import OutOfMemory

__all__ = ["with_room"]

T = TypeVar("T")


def with_room(loader: Any, step: Callable[[], T]) -> T:
    """Do a training step; where it runs out of memory, again with a smaller cache.

    Args:
        loader: With ``shrink_cache``, if it has a cache on the device.
        step: From the forward pass to the optimizer's; leaves nothing behind that a repetition would count twice.

    Raises:
        OutOfMemory: The step does not fit though nothing is cached any more.
    """
    while True:
        try:
            return step()
        except OutOfMemory as error:
            problem = str(error)
        # Outside of the handler, whose traceback holds the step's tensors.
        shrink = getattr(loader, "shrink_cache", None)
        if shrink is None or not shrink():
            raise OutOfMemory(
                f"a training step does not fit on {loader.device}, and no cache is left to give up: batch size, "
                f"fan-outs or hidden size must be smaller ({problem})"
            )
