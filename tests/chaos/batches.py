"""Endless epochs: a million batches take no more memory than the first thousands."""

import gc
import os
import resource
import time
from pathlib import Path

from .loaders import LOADERS, draw_options, graph_of
from .worker import Case

_SECONDS = float(os.environ.get("CHAOS_BATCH_SECONDS", 40))
_MOST_GROWTH = 8 * 2**20  # noise of the allocators, with up to four threads


def trial(case: Case) -> None:
    kind, options = case.choose("loader", LOADERS), draw_options(case)
    loader, end = LOADERS[kind](graph_of(case.samples), **options), time.monotonic() + _SECONDS
    warm, count, first, before = time.monotonic() + _SECONDS / 4, 0, 0, 0
    while time.monotonic() < end:
        for _ in loader:
            count += 1
        if not before and time.monotonic() > warm:
            before, first = resident(), count
    if not before:
        return
    growth = resident() - before
    case.figures = {"batches": count, "most KiB grown": growth / 1024}
    assert growth < _MOST_GROWTH, f"{growth:,} bytes more after {count - first:,} batches"


def resident() -> int:
    """Bytes of memory in use."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
