"""Runs a kernel over ranges of one long array, several ranges at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

__all__ = ["for_ranges"]

_RANGE = 2**20


def for_ranges(
    total: int, run: Callable[[int, int], None], *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Call ``run(begin, end)`` for ranges that cover ``[0, total)``, in threads; kernels release the GIL.

    Args:
        total: Length to cover.
        run: Must not depend on the order of the ranges.
        progress: Called in this thread with what is done and ``total``.
    """
    begins = range(0, total, _RANGE)
    done = 0
    with ThreadPoolExecutor(max_workers=max(1, min(len(begins), os.cpu_count() or 1))) as pool:
        futures = {pool.submit(run, b, min(b + _RANGE, total)): min(_RANGE, total - b) for b in begins}
        try:
            for future in as_completed(futures):
                future.result()
                done += futures[future]
                if progress is not None:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
