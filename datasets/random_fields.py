"""Random fields of generated graphs: noise, labels and masks, each a pure function of its key."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import torch
from torch import Tensor

from ..system.progress import Progress
from .paths import PARTS

# Of 63 random bits for masks: 65,536 counters fit into the CPU's cache, and bins have few rows.
_BIN_BITS = 16


class RandomRows:
    """Lazy random rows, drawn on indexing: row ``i`` is a function of the key and ``i``.

    Args:
        shape: Shape, with the number of rows first.
        dtype: Dtype that the kernel draws.
        kernel: Called with the key, the first position, ``options`` and the array to fill.
        key: Key of the random numbers.
        options: Further arguments of the kernel.
        stored: Dtype of the rows. Default: ``dtype``.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        kernel: Callable[..., None],
        key: int,
        *options: int,
        stored: torch.dtype | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = stored or dtype
        self._drawn = dtype
        self._fill = kernel
        self._key = np.uint64(key)
        self._options = options

    def __getitem__(self, rows: slice, /) -> Tensor:
        begin, end, _ = rows.indices(self.shape[0])
        width = math.prod(self.shape[1:])
        out = torch.empty((max(0, end - begin), *self.shape[1:]), dtype=self._drawn, device="cpu")
        array = out.view(-1).numpy()
        first = begin * width

        def fill(low: int, high: int) -> None:
            self._fill(self._key, first + low, *self._options, array[low:high])

        for_ranges(len(array), fill)
        return out.to(self.dtype)


def bit_rows(count: int, key: int) -> RandomRows:
    """Lazy random non-negative int64 numbers."""
    from . import _random

    return RandomRows((count,), torch.int64, _random.fill_bits, key)


def label_rows(count: int, classes: int, key: int) -> RandomRows:
    """Lazy labels, uniform in ``[0, classes)``, int64."""
    from . import _random

    return RandomRows((count,), torch.int64, _random.fill_below, key, classes)


def normal_rows(
    shape: tuple[int, ...], key: int, stored: torch.dtype = torch.float32
) -> RandomRows:
    """Lazy rows of nearly normal numbers of mean 0 and deviation 1, drawn as float32."""
    from . import _random

    return RandomRows(shape, torch.float32, _random.fill_normal, key, stored=stored)


class MaskRows:
    """A lazy mask of the rows between two ranks in the order of their random numbers.

    Args:
        bits: The random numbers; ties are in row order.
        begin: Number and row of the first row of the mask.
        end: Number and row after the last.
    """

    dtype = torch.bool

    def __init__(self, bits: RandomRows, begin: tuple[int, int], end: tuple[int, int]) -> None:
        self.shape = bits.shape
        self._bits = bits
        self._begin = begin
        self._end = end

    def __getitem__(self, rows: slice, /) -> Tensor:
        bits = self._bits[rows]
        places = torch.arange(*rows.indices(self.shape[0]), device="cpu")
        return _is_before(bits, places, self._end) & ~_is_before(bits, places, self._begin)


def _is_before(bits: Tensor, places: Tensor, bound: tuple[int, int]) -> Tensor:
    number, row = bound
    return (bits < number) | ((bits == number) & (places < row))


def mask_rows(count: int, fractions: tuple[float, float, float], key: int) -> dict[str, MaskRows]:
    """Draw disjoint ``train_mask``, ``val_mask`` and ``test_mask`` of these shares, rounded down.

    They are consecutive ranges of rows in the order of random numbers. Their bounds are found
    without sorting.
    """
    bits = bit_rows(count, key)
    # 1e-9: 0.29 * 100 is slightly below 29 in floats.
    sizes = [int(count * fraction + 1e-9) for fraction in fractions]
    ends = itertools.accumulate(sizes, initial=0)
    bounds = itertools.pairwise(_in_order_at(bits, list(ends)))
    return {
        f"{part}_mask": MaskRows(bits, begin, end)
        for part, (begin, end) in zip(PARTS, bounds, strict=True)
    }


def _in_order_at(bits: RandomRows, ranks: list[int]) -> list[tuple[int, int]]:
    """The numbers of these ranks, each with its row; an upper bound for ranks past the end.

    Takes two passes: the first counts the numbers per bin, the second sorts the bins with a rank.
    """
    count = bits.shape[0]
    shift = 63 - _BIN_BITS
    begins = range(0, count, _ROWS_AT_ONCE)
    steps = [slice(begin, min(begin + _ROWS_AT_ONCE, count)) for begin in begins]
    counts = np.zeros(2**_BIN_BITS, dtype=np.int64)
    for rows in steps:
        numbers = (bits[rows] >> shift).numpy()
        counts += np.bincount(numbers, minlength=len(counts))
    ends = np.cumsum(counts)
    bins = np.searchsorted(ends, ranks, side="right")  # past the end: no bin
    held: list[tuple[int, int]] = []
    for rows in steps:
        drawn = bits[rows]  # again: cheaper than keeping all numbers in memory
        is_held = torch.isin(drawn >> shift, torch.from_numpy(bins))
        places = is_held.nonzero().squeeze(1)
        held += zip(drawn[places].tolist(), (places + rows.start).tolist(), strict=True)
    held.sort()
    unheld = np.append(counts, 0)  # counts of bins without a rank
    unheld[bins] = 0
    found = []
    top = (2**63 - 1, count)
    for rank, bin_ in zip(ranks, bins.tolist(), strict=True):
        if rank >= count:
            found.append(top)
            continue
        skipped = int(unheld[: bin_ + 1].sum())
        found.append(held[rank - skipped])
    return found


# Edges that a thread draws at once.
_RANGE = 2**20
# Rows of a field that are drawn at once, so that fields larger than memory can be written.
_ROWS_AT_ONCE = 2**20


def for_ranges(
    total: int,
    run: Callable[[int, int], None],
    *,
    progress: Progress | None = None,
) -> None:
    """Call ``run(begin, end)`` for ranges that cover ``[0, total)``, in threads and any order.

    Kernels release the GIL. ``progress`` is called in this thread.
    """
    begins = range(0, total, _RANGE)
    done = 0
    workers = max(1, min(len(begins), os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        futures = {}
        for begin in begins:
            end = min(begin + _RANGE, total)
            futures[pool.submit(run, begin, end)] = end - begin
        try:
            for future in as_completed(futures):
                future.result()
                done += futures[future]
                if progress is not None:
                    progress(done, total)
        # Also on Ctrl-C: pending ranges would otherwise still run.
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
