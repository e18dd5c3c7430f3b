"""How much of an accelerator's memory a cache gets: what was asked for, or what there is room for."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Sequence

import torch

from ..accelerator import Accelerator
from ..cache.budget import SLOT_BYTES, Budget, budget_text
from ..cache.memory import accelerator_budget, device_reserve
from ..cache.plan import size_text

__all__ = ["check_budget", "room_for", "wait_until_gone", "warn_of_memory"]

_PATIENCE_SECONDS = 1.0


def check_budget(budget: Budget, accelerator: Accelerator) -> None:
    """Refuse a number of bytes that an accelerator cannot have.

    Raises:
        ValueError: It has less.
    """
    total = accelerator.free_bytes()[1]
    if budget.limit is not None and budget.limit > total:
        raise ValueError(
            f"cache must be at most {total} bytes ({size_text(total)}) on {accelerator.device}, got {budget.limit}"
        )


def room_for(budget: Budget, wanted: Sequence[tuple[int, int]], accelerator: Accelerator) -> int:
    """The bytes that rows are chosen under; warns if they are fewer than the budget says.

    Args:
        budget: Its tables are included where it pays for them, else they come on top.
        wanted: For each type the bytes of one vertex's rows of all fields, and the number of vertices.
        accelerator: Where the rows will be. Of memory that is too small the share stays free that "auto" leaves.
    """
    room = budget.nbytes(wanted, free=lambda: accelerator_budget(accelerator))
    if budget.is_auto:
        return room
    tables = SLOT_BYTES * sum(count for _, count in wanted)
    everything = tables + sum(width * count for width, count in wanted)
    taken = min(everything, room if budget.pays_tables else room + tables)
    free, total = accelerator.free_bytes()
    if taken <= free:
        return room
    less = max(0, free - device_reserve(total))
    warnings.warn(
        f"the cache was to take {size_text(taken)} on {accelerator.device}, where {size_text(free)} are free: "
        f"{_advice(less)}",
        RuntimeWarning,
        stacklevel=2,
    )
    return less if budget.pays_tables else max(0, less - tables)


def warn_of_memory(device: torch.device, nbytes: int) -> None:
    """Say that a cache is smaller than it was to be, because memory ran out while it was filled."""
    warnings.warn(
        f"{device} ran out of memory while the cache was filled: {_advice(nbytes)}", RuntimeWarning, stacklevel=2
    )


def wait_until_gone(memory: Sequence[weakref.ref[torch.UntypedStorage]]) -> None:
    """Wait until nobody holds this memory; not for ever: who holds it may be waiting too."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while any(ref() is not None for ref in memory) and time.monotonic() < end:
        time.sleep(0.001)


def _advice(nbytes: int) -> str:
    if not nbytes:
        return 'nothing is cached; set cache="0"'
    return f'it takes {size_text(nbytes)}; set cache="{budget_text(nbytes)}" or less'
