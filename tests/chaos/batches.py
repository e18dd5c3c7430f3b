"""Endless epochs: a million batches take no more memory than the first thousands."""

import gc
import os
import resource
import time
from pathlib import Path

from .loaders import LOADERS, draw_options, graph_of
from .worker import Case

_SECONDS = float(os.environ.get("CHAOS_BATCH_SECONDS", 40))
_EPOCHS = 100  # of a loader, which keeps some KiB of figures for each
_MOST_GROWTH = 8 * 2**20  # noise of the allocators, with up to four threads


def trial(case: Case) -> None:
    kind, options = case.choose("loader", LOADERS), draw_options(case)
    graph, begin = graph_of(case.samples), time.monotonic()
    count, before = 0, None
    while (passed := time.monotonic() - begin) < _SECONDS or before is None:
        loader = LOADERS[kind](graph, **options)
        for _ in range(_EPOCHS):
            count += sum(1 for _ in loader)
        del loader
        if before is None and passed > _SECONDS / 2:
            before, first = resident(), count
    growth = resident() - before
    case.figures = {"batches": count, "most KiB grown": growth / 1024}
    assert growth < _MOST_GROWTH or _SECONDS < 10, (
        f"{growth:,} bytes more after {count - first:,} batches"
    )


def resident() -> int:
    """Bytes of memory in use."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
