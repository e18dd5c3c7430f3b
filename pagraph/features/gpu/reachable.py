"""Rows that kernels read in place, from device memory or pinned host memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...accelerator import Accelerator, Pin
from ...accelerator.triton_kernels import launch
from ...graph.row_form import Decoding
from ..feature import HostFeature, as_words, byte_tensor, rows_are_contiguous, word_bytes
from ..store import FeatureCache

_LINE = 128  # bytes of the largest read that a device requests from the host
_TILE = 1024  # words of a tile, up to 8 KiB; see kernels
_ON_THE_BUS = 128
"""Programs that read host memory at once. Their 1 MiB of reads in flight is several times what a
bus holds in transit (64 GB/s times 2 us). More would only occupy multiprocessors that the user's
kernels could use. GraphBolt limits such reads to 6,144 threads; these are 16,384. On an H100, 64 to
8192 programs are equally fast and 32 are 4 % slower."""
_WORTH_ORDERING = 16 << 20
"""From this many bytes on, host memory is read in the order of its addresses. This reaches 52 GB/s
with random rows instead of 27 (H100, PCIe 5, pages of 4 KiB; a copy has 55 GB/s), for a sort of
about 0.1 ms."""
_MOST_INT32 = 2**31 - 1
MOST_PARTS = 8  # parts of the ids that one launch counts, by the kernel's arguments end0 to end7
# Most rows of a tile. So 100,000 labels are 400 programs, enough for all multiprocessors.
_MOST_ROWS = 256
_WIDEST = 256  # most words of a row in one tile
_VECTOR = 16  # bytes that a lane reads at once if addresses are aligned


@dataclass(frozen=True, eq=False)
class ReachableRows:
    """Rows that kernels can read.

    Attributes:
        memory: The rows as bytes, uint8, 1-D.
        stride_bytes: Bytes from one row to the next.
        count: Number of rows in ``memory``.
        table: The row of ``memory`` for each row of the feature, int32 or int64; None for the same.
        pins: Keep host memory pinned as long as this object lives.
    """

    memory: Tensor
    stride_bytes: int
    count: int
    table: Tensor | None = None
    pins: tuple[Pin, ...] = ()

    @classmethod
    def of_host(cls, source: HostFeature, accelerator: Accelerator) -> ReachableRows | None:
        """Pin rows in host memory, and the table of rows by reference; None if impossible."""
        if source.rows is None:
            return None
        if source.decoding is not None and source.address % source.dtype.itemsize:
            return None  # the kernel decodes aligned float16 and bfloat16 only
        memory = torch.from_numpy(source.rows)
        parts = [memory]
        table = None
        if source.table is not None:
            table = torch.from_numpy(source.table)
            parts.append(table)
        pins = []
        for part in parts:
            pin = accelerator.pin(part)
            if pin is None:
                return None
            pins.append(pin)
        return cls(memory, source.stride_bytes, source.source_rows, table, tuple(pins))

    @classmethod
    def of_device(cls, tensor: Tensor) -> ReachableRows | None:
        """Rows of a tensor on the device; None if a row is not contiguous."""
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
        rows: All rows; None to read only the cache.
        cache: A cache with ``device_slots``, or None.
        counting: The ends of the parts of the ids, and a tensor to which the hits of each are
            added, int64 on the device.
        leave: Whether rows that are not found are left unchanged in ``out``; else they become 0.
        decoding: How stored rows become those of ``out``; None if they are the same.
        missed: Estimated number of rows that are not cached. Default: all.
    """
    from . import kernels

    head, width, word, target = _units(out, rows, cache, decoding)
    # The kernel needs a pointer for each argument, but reads it only with its HAS_ flag.
    unused = ids
    slots, near, far, table = (
        unused if tensor is None else tensor for tensor in _read_by(rows, cache, word, decoding)
    )
    ends, hits = ((), unused) if counting is None else counting

    constants = _constants(head, width, word, rows, cache, decoding)
    asked = ids.shape[0]
    programs, steps = _grid(asked, constants, from_host=_are_on_host(rows))
    far_bytes = (asked if missed is None else missed) * (head + width) * word
    order = unused
    has_order = _worth_ordering(rows, far_bytes)
    if has_order:
        order = _order(ids, num_rows)
    for first in range(0, max(1, len(ends)), MOST_PARTS):  # one launch for up to seven hops
        parts = ends[first : first + MOST_PARTS]
        begin = ends[first - 1] if first else 0
        launch(
            kernels.gather_rows,
            programs,
            ids,
            asked,
            num_rows,
            slots,
            0 if cache is None else len(cache),
            near,
            far,
            table,
            0 if rows is None else rows.count,
            target,
            hits[first:],
            order,
            begin,
            *parts,
            *[0] * (MOST_PARTS - len(parts)),
            PARTS=len(parts),
            HAS_ORDER=has_order,
            LEAVE=leave,
            STEPS=steps,
            **constants,
            # Tiles overlap with those of other programs, so no software pipelining is needed.
            num_stages=1,
        )


class _Read(NamedTuple):
    """What a kernel reads; None for what there is not.

    Attributes:
        slots: The cache's table.
        near: Words of the cached rows.
        far: Words of all rows.
        table: The table of all rows.
    """

    slots: Tensor | None
    near: Tensor | None
    far: Tensor | None
    table: Tensor | None


def _read_by(
    rows: ReachableRows | None, cache: FeatureCache | None, word: int, decoding: Decoding | None
) -> _Read:
    """What a kernel reads in words of ``word`` bytes; see :func:`gather`."""
    slots = None
    near = None
    far = None
    table = None
    if cache is not None:
        assert cache.device_slots is not None
        slots = cache.device_slots
        near = _words(cache.rows, word, decoding)
    if rows is not None:
        far = _words(rows.memory, word, decoding)
        table = rows.table
    return _Read(slots, near, far, table)


def _are_on_host(rows: ReachableRows | None) -> bool:
    return rows is not None and rows.memory.device.type == "cpu"


def _constants(
    head: int,
    width: int,
    word: int,
    rows: ReachableRows | None,
    cache: FeatureCache | None,
    decoding: Decoding | None,
) -> dict[str, Any]:
    """The kernel's compile-time constants, but for the numbers of parts and of tiles."""
    # Rows wider than a tile are read by several tiles, each of a power of 2 words.
    columns = -(-width // _WIDEST)
    block_words = 1 << (-(-width // columns) - 1).bit_length()
    line, lead = _turning(rows, (head + width) * word, word)
    return {
        "WIDTH": width,
        "STRIDE": 0 if rows is None else rows.stride_bytes // word,
        "LINE": line,
        "LEAD": lead + head,
        "HEAD": head,
        "HAS_CACHE": cache is not None,
        "HAS_ROWS": rows is not None,
        "HAS_TABLE": rows is not None and rows.table is not None,
        "BRAIN": decoding is not None and decoding.form.dtype == torch.bfloat16,
        "BLOCK_ROWS": max(1, min(_MOST_ROWS, _TILE // block_words)),
        "BLOCK_WORDS": block_words,
        "COLUMNS": columns,
    }


def _grid(count: int, constants: dict[str, Any], *, from_host: bool) -> tuple[int, int]:
    """Number of programs for ``count`` ids, and of tiles per program."""
    tiles = -(-count // constants["BLOCK_ROWS"]) * constants["COLUMNS"]
    steps = 1
    if from_host:
        # A power of 2, so that few kernels are compiled.
        steps = 1 << max(0, -(-tiles // _ON_THE_BUS) - 1).bit_length()
    return -(-tiles // steps), steps


@dataclass(frozen=True, eq=False)
class Reach:
    """How a kernel reads a field's rows now, as plain numbers that keep no memory alive.

    Attributes:
        layout: What the kernel is compiled for. Fields with equal layouts, or one field at two
            times, can be read by one recorded launch.
        addresses: What may change with each launch, see ``gather_placed``.
    """

    layout: Layout
    addresses: tuple[int, int, int, int, int, int]

    @classmethod
    def of(
        cls,
        out: Tensor,
        num_rows: int,
        rows: ReachableRows | None,
        cache: FeatureCache | None,
        decoding: Decoding | None,
    ) -> Reach:
        """How rows like those of ``out``, an empty tensor, are read; see :func:`gather`."""
        head, width, word, target = _units(out, rows, cache, decoding)
        read = _read_by(rows, cache, word, decoding)
        slots, cached, far, table = (0 if part is None else part.data_ptr() for part in read)
        num_cached = 0 if cache is None else len(cache)
        count = 0 if rows is None else rows.count
        # Of one dtype, wherever they are.
        stored = next((part for part in (read.near, read.far) if part is not None), target)
        layout = Layout(
            num_rows,
            out.dtype,
            tuple(out.shape[1:]),
            target.dtype,
            stored.dtype,
            read.table is not None and read.table.dtype == torch.int64,
            _are_on_host(rows),
            cached % _VECTOR == 0,
            far % _VECTOR == 0,
            (head + width) * word,
            tuple(_constants(head, width, word, rows, cache, decoding).items()),
        )
        return cls(layout, (slots, num_cached, cached, far, table, count))


class Layout(NamedTuple):
    """What a recorded launch is compiled for; see :class:`Reach`."""

    num_rows: int
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    out_words: torch.dtype
    words: torch.dtype
    wide_table: bool
    from_host: bool
    cached_aligned: bool
    far_aligned: bool
    stored_bytes: int
    constants: tuple[tuple[str, Any], ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a delivered row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def worth_ordering(self, missed: float) -> bool:
        """Whether reads with ``missed`` rows should be ordered, which a recorded launch cannot."""
        has_table = dict(self.constants)["HAS_TABLE"]
        return self.from_host and not has_table and missed * self.stored_bytes >= _WORTH_ORDERING


def gather_placed(
    ids: Tensor,
    state: Tensor,
    capacity: int,
    layout: Layout,
    *,
    addresses_at: int,
    slab_at: int,
    offset: int,
    count_at: int,
    hits_at: int,
    parts: int,
    ends: Tensor,
    ends_step: int,
    padded_ids: tuple[int, torch.dtype] | None = None,
) -> None:
    """Launch :func:`gather` with addresses that are read from a batch's state when it runs.

    Args:
        ids: On the device, with room for ``capacity``.
        state: int64, on the device.
        capacity: Most ids that are read.
        layout: Layout of the field.
        addresses_at: First word of the state with ``Reach.addresses``.
        slab_at: Word of the state with the address of the memory to write to.
        offset: Bytes from that address to the first row; a multiple of 16.
        count_at: Word of the state with the number of ids.
        hits_at: First word of the state with the hits of each part.
        parts: Number of parts of the ids.
        ends: Ends of the parts, int64, on the device.
        ends_step: Words from one end to the next.
        padded_ids: Bytes from the address of that memory to padded ids, and their dtype. These are
            all read, in place of ``ids``.
    """
    from . import kernels

    constants = dict(layout.constants)
    programs, steps = _grid(capacity, constants, from_host=layout.from_host)
    ids_at, id_dtype = padded_ids or (-1, ids.dtype)
    table_dtype = torch.int64 if layout.wide_table else torch.int32
    launch(
        kernels.gather_placed,
        programs,
        ids,
        state,
        ends,
        offset,
        capacity,
        layout.num_rows,
        ADDRESSES=addresses_at,
        SLAB=slab_at,
        COUNT=count_at,
        HITS=hits_at,
        ENDS_STEP=ends_step,
        IDS=ids_at,
        ID=_triton_type(id_dtype),
        OUT_WORD=_triton_type(layout.out_words),
        WORD=_triton_type(layout.words),
        TABLE=_triton_type(table_dtype),
        CACHED_ALIGNED=layout.cached_aligned,
        FAR_ALIGNED=layout.far_aligned,
        PARTS=parts,
        STEPS=steps,
        **constants,
        num_stages=1,
    )


def mark_padding(
    value: Tensor, state: Tensor, capacity: int, layout: Layout, *, slab_at: int, offset: int
) -> None:
    """Write a number to the rows after those of the seeds; see :func:`gather_placed`.

    The number of seeds is word 0 of the state.
    """
    from . import kernels

    width = math.prod(layout.row_shape)
    launch(
        kernels.mark_padding,
        -(-capacity * width // _MOST_ROWS),
        *(value, state, offset, capacity),
        SLAB=slab_at,
        COUNT=0,
        WIDTH=width,
        BLOCK=_MOST_ROWS,
    )


def _triton_type(dtype: torch.dtype) -> Any:
    import triton.language

    return getattr(triton.language, str(dtype).removeprefix("torch."))


def _worth_ordering(rows: ReachableRows | None, nbytes: int) -> bool:
    """Whether ``nbytes`` of ``rows`` are read faster in the order of memory."""
    if rows is None or rows.memory.device.type != "cpu" or rows.table is not None:
        return False  # for rows by reference, ascending ids are not ascending addresses
    return nbytes >= _WORTH_ORDERING


def _order(ids: Tensor, num_rows: int) -> Tensor:
    """The order that sorts the ids."""
    # A radix sort takes half the passes with int32.
    keys = ids if num_rows > _MOST_INT32 else ids.int()
    return keys.argsort()


def _units(
    out: Tensor, rows: ReachableRows | None, cache: FeatureCache | None, decoding: Decoding | None
) -> tuple[int, int, int, Tensor]:
    """The units in which the kernel reads rows.

    Returns:
        Words of a stored row before its values, words of its values, bytes of a word, and ``out``
        in words.
    """
    values = math.prod(out.shape[1:])
    if decoding is not None:
        # A word is a stored value, since the kernel converts single values.
        return decoding.form.head, values, decoding.form.dtype.itemsize, out.view(-1)
    row_bytes = values * out.element_size()
    step = row_bytes
    given = [out]
    if cache is not None:
        given.append(cache.rows)
    if rows is not None:
        given.append(rows.memory)
        step = math.gcd(row_bytes, rows.stride_bytes)
    word = word_bytes(step, *given)
    return 0, row_bytes // word, word, as_words(out, word)


def _words(memory: Tensor, word: int, decoding: Decoding | None) -> Tensor:
    """Memory of rows in words; float16 keeps its dtype, because the kernel converts it."""
    words = as_words(memory, word)
    is_half = decoding is not None and decoding.form.dtype == torch.float16
    return words.view(torch.float16) if is_half else words


def _turning(rows: ReachableRows | None, row_bytes: int, word: int) -> tuple[int, int]:
    """Words of a line, and words from the begin of a line to the first row.

    (1, 0) if reads need not be rotated to lines, see kernels.
    """
    if rows is None or rows.memory.device.type != "cpu" or row_bytes <= _LINE:
        return 1, 0
    lead = rows.memory.data_ptr() % _LINE
    if lead == 0 and rows.stride_bytes % _LINE == 0:
        return 1, 0  # every row is aligned to a line
    return _LINE // word, lead // word
