"""Rows that a device's kernels read where they are: in its memory, or in host memory that is
pinned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...accelerator import Accelerator, Pin
from ...accelerator.triton_kernels import launch
from ...graph.row_form import Decoding
from ..feature import HostFeature, as_words, byte_tensor, rows_are_contiguous, word_bytes
from ..store import FeatureCache

__all__ = ["ReachableRows", "gather"]

_LINE = 128  # bytes that a device asks the host for at once
_TILE = 1024  # words of a program, see _gpu
_ON_THE_BUS = 128
"""Programs that read host memory at once: their 1 MiB of reads in flight is several times what a
bus has on its way (64 GB/s times 2 us); more of them would only keep the user's kernels out of the
processors while they wait. GraphBolt limits such reads to 6144 threads; these are 16 384. On an
H100 from 64 to 8192 programs are as fast, 32 by 4 % less."""
_WORTH_ORDERING = 16 << 20
"""Bytes of rows from which host memory is read in its own order: 52 GB/s of random rows instead of
27 (H100, PCIe 5; pages of 4 KiB, and 55 GB/s is what a copy has), for a sort of some 0.1 ms."""
_MOST_INT32 = 2**31 - 1
_MOST_PARTS = 8  # that one launch counts
# Of a program: 100 000 labels are 400 programs, enough for all processors of a device.
_MOST_ROWS = 256
_WIDEST = 256  # words of a row in one tile


@dataclass(frozen=True, eq=False)
class ReachableRows:
    """Rows that kernels can read: ``count`` of them in ``memory`` (uint8, 1-D), ``stride_bytes``
    apart.

    ``table`` (int32 or int64) says which each row of the feature is; None: row ``i``. ``pins`` keep
    host memory pinned while somebody has this.
    """

    memory: Tensor
    stride_bytes: int
    count: int
    table: Tensor | None = None
    pins: tuple[Pin, ...] = ()

    @classmethod
    def of_host(cls, source: HostFeature, accelerator: Accelerator) -> ReachableRows | None:
        """Rows in host memory, and the table of rows by reference, pinned; None if they cannot
        be."""
        if source.rows is None or (
            source.decoding is not None and source.rows.ctypes.data % source.dtype.itemsize
        ):
            return None
        memory = torch.from_numpy(source.rows)
        table = None if source.table is None else torch.from_numpy(source.table)
        pins = []
        for part in [memory] if table is None else [memory, table]:
            pin = accelerator.pin(part)
            if pin is None:
                return None
            pins.append(pin)
        return cls(memory, source.stride_bytes, source.source_rows, table, tuple(pins))

    @classmethod
    def of_device(cls, tensor: Tensor) -> ReachableRows | None:
        """Rows of a tensor on the device; None where a row is not one run of bytes."""
        if not rows_are_contiguous(tensor):
            return None
        return cls(byte_tensor(tensor), tensor.stride(0) * tensor.element_size(), len(tensor))


def gather(
    accelerator: Accelerator,
    ids: Tensor,
    out: Tensor,
    *,
    num_rows: int,
    rows: ReachableRows | None,
    cache: FeatureCache | None,
    counting: tuple[Sequence[int], Tensor] | None = None,
    leave: bool = False,
    decoding: Decoding | None = None,
    missed: int | None = None,
) -> None:
    """Gather rows by one kernel on the current stream.

    Args:
        accelerator: One that runs kernels.
        ids: On the device, contiguous, int32 or int64.
        out: On the device, shape ``(len(ids), ...)``, contiguous, of at least one byte a row.
        num_rows: Ids are below it.
        rows: The uncached rows; None: only the cache is read.
        cache: With ``device_slots``; None: no cache.
        counting: Where the parts of the ids end, and where to add the hits of each, int64 on the
            device.
        leave: Leave rows that are not found as they are in ``out``; else they become zeros.
        decoding: How ``rows`` and those of the cache become those of ``out``; None: they are.
        missed: Estimate of the rows that the cache has not; None: all.
    """
    from . import kernels

    head, width, word, target = _units(out, rows, cache, decoding)
    near = ids if cache is None else _words(cache.rows, word, decoding)
    far = ids if rows is None else _words(rows.memory, word, decoding)
    columns = -(-width // _WIDEST)
    block_words = 1 << (-(-width // columns) - 1).bit_length()
    block_rows = max(1, min(_MOST_ROWS, _TILE // block_words))
    line, lead = _turning(rows, (head + width) * word, word)
    table = None if rows is None else rows.table
    slots = None if cache is None else cache.device_slots
    ends, hits = ((), ids) if counting is None else counting
    far_bytes = (len(ids) if missed is None else missed) * (head + width) * word
    order = _order(ids, num_rows) if _worth_ordering(rows, far_bytes) else None
    tiles = -(-len(ids) // block_rows) * columns
    steps = 1
    if rows is not None and rows.memory.device.type == "cpu":
        # A power of 2: few kernels are compiled.
        steps = 1 << max(0, -(-tiles // _ON_THE_BUS) - 1).bit_length()
    for first in range(0, max(1, len(ends)), _MOST_PARTS):  # once, but for more than seven hops
        parts = ends[first : first + _MOST_PARTS]
        launch(
            kernels.gather_rows,
            -(-tiles // steps),
            ids,
            len(ids),
            num_rows,
            ids if slots is None else slots,
            0 if cache is None else len(cache),
            near,
            far,
            ids if table is None else table,
            0 if rows is None else rows.count,
            target,
            hits[first:],
            ids if order is None else order,
            ends[first - 1] if first else 0,
            *parts,
            *[0] * (_MOST_PARTS - len(parts)),
            PARTS=len(parts),
            WIDTH=width,
            STRIDE=0 if rows is None else rows.stride_bytes // word,
            LINE=line,
            LEAD=lead + head,
            HEAD=head,
            HAS_CACHE=cache is not None,
            HAS_ROWS=rows is not None,
            HAS_TABLE=table is not None,
            HAS_ORDER=order is not None,
            LEAVE=leave,
            BRAIN=decoding is not None and decoding.form.dtype == torch.bfloat16,
            BLOCK_ROWS=block_rows,
            BLOCK_WORDS=block_words,
            COLUMNS=columns,
            STEPS=steps,
            # The tiles of a program overlap with those of others, not with each other.
            num_stages=1,
        )


def _worth_ordering(rows: ReachableRows | None, nbytes: int) -> bool:
    """Whether so many bytes of ``rows`` are better read in the order of memory."""
    if rows is None or rows.memory.device.type != "cpu" or rows.table is not None:
        return False
    return nbytes >= _WORTH_ORDERING


def _order(ids: Tensor, num_rows: int) -> Tensor:
    """The order of ascending ids."""
    return (ids if num_rows > _MOST_INT32 else ids.int()).argsort()


def _units(
    out: Tensor, rows: ReachableRows | None, cache: FeatureCache | None, decoding: Decoding | None
) -> tuple[int, int, int, Tensor]:
    """Words before the values of a stored row, words that are values, bytes of a word, and ``out``
    in words."""
    if decoding is not None:
        return (
            decoding.form.head,
            math.prod(out.shape[1:]),
            decoding.form.dtype.itemsize,
            out.view(-1),
        )
    row_bytes = math.prod(out.shape[1:]) * out.element_size()
    given = (
        [out] + ([] if cache is None else [cache.rows]) + ([] if rows is None else [rows.memory])
    )
    word = word_bytes(math.gcd(row_bytes, 0 if rows is None else rows.stride_bytes), *given)
    return 0, row_bytes // word, word, as_words(out, word)


def _words(memory: Tensor, word: int, decoding: Decoding | None) -> Tensor:
    """Memory of rows in words; float16 as itself, which the device converts."""
    words = as_words(memory, word)
    is_half = decoding is not None and decoding.form.dtype == torch.float16
    return words.view(torch.float16) if is_half else words


def _turning(rows: ReachableRows | None, row_bytes: int, word: int) -> tuple[int, int]:
    """Words of a line, and from a line's begin to the rows; (1, 0) where reads need not be turned
    to lines."""
    if rows is None or rows.memory.device.type != "cpu" or row_bytes <= _LINE:
        return 1, 0
    lead = rows.memory.data_ptr() % _LINE
    return (_LINE // word, lead // word) if lead or rows.stride_bytes % _LINE else (1, 0)
