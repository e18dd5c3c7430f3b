"""Random fields of generated graphs: noise, labels and masks, each a pure function of its key."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import torch
from torch import Tensor

from .opening import PARTS

__all__ = ["check_fractions", "for_ranges", "random_bits", "random_labels", "random_masks", "random_normal"]


def random_bits(count: int, key: int) -> Tensor:
    """Draw ``count`` non-negative int64 numbers."""
    from . import _random

    return _filled((count,), torch.int64, _random.fill_bits, key)


def random_labels(count: int, classes: int, key: int) -> Tensor:
    """Draw ``count`` labels uniform in ``[0, classes)``, int64."""
    from . import _random

    return _filled((count,), torch.int64, _random.fill_below, key, classes)


def random_normal(shape: tuple[int, ...], key: int) -> Tensor:
    """Draw nearly normal float32 numbers of mean 0 and deviation 1."""
    from . import _random

    return _filled(shape, torch.float32, _random.fill_normal, key)


def _filled(shape: tuple[int, ...], dtype: torch.dtype, kernel: Callable[..., None], key: int, *options: int) -> Tensor:
    out = torch.empty(shape, dtype=dtype, device="cpu")
    array = out.view(-1).numpy()
    for_ranges(len(array), lambda begin, end: kernel(np.uint64(key), begin, *options, array[begin:end]))
    return out


def random_masks(count: int, fractions: tuple[float, float, float], key: int) -> dict[str, Tensor]:
    """Draw disjoint ``train_mask``, ``val_mask`` and ``test_mask`` of these shares, rounded down."""
    order = torch.argsort(random_bits(count, key), stable=True)
    masks, begin = {}, 0
    for part, fraction in zip(PARTS, fractions, strict=True):
        end = begin + int(count * fraction + 1e-9)
        masks[f"{part}_mask"] = torch.zeros(count, dtype=torch.bool, device="cpu")
        masks[f"{part}_mask"][order[begin:end]] = True
        begin = end
    return masks


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Check the shares of train, val and test, each in [0, 1] and at most 1 together, or raise ValueError."""
    if len(fractions) != 3 or not all(math.isfinite(f) and 0 <= f <= 1 for f in fractions):
        raise ValueError(f"fractions must be three numbers in [0, 1], got {fractions}")
    if sum(fractions) > 1 + 1e-9:
        raise ValueError(f"fractions must add up to at most 1, got {fractions}")


_RANGE = 2**20


def for_ranges(
    total: int, run: Callable[[int, int], None], *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Call ``run(begin, end)`` for ranges that cover ``[0, total)``, in threads and any order: kernels release the GIL;
    ``progress`` is called in this thread."""
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
