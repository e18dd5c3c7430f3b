"""Rows cached in a narrower dtype."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..system.buffers import BufferPool
from .feature import Array, Feature, HostFeature, PlainFeature, byte_view, id_array, output_for

__all__ = [
    "HostRows",
    "NarrowFeature",
    "RoundedFeature",
    "StoredFeature",
    "WideFeature",
    "cached_dtype",
    "parse_cache_dtype",
    "stored_as",
]

_NAMES = {
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}


def parse_cache_dtype(cache_dtype: Any) -> torch.dtype | None:
    """The dtype of cached rows of float32 and float64 fields, from the argument ``cache_dtype`` of a loader.

    Twice as many rows of float32 fit, four times as many of float64. Values become the nearest that the dtype has, ties
    to even; float64 by way of float32. What that costs of a value ``x``:

    - ``bfloat16``: at most ``2**-8 * |x|`` where ``|x| >= 2**-126``; the range is float32's.
    - ``float16``: at most ``2**-11 * |x|`` where ``|x| >= 2**-14``, at most ``2**-25`` below (values up to ``2**-25``
      become 0; a warning says so if all that is cached of a field is below ``2**-14``). Finite values that would round
      to infinity, 65520 and more, are refused when they are cached or read.

    Infinities stay, NaN stays NaN, zeros keep their sign.

    Args:
        cache_dtype: ``torch.float16``, ``torch.bfloat16``, or a name: "float16", "fp16", "half", "bfloat16", "bf16".
            None: fields are cached as they are.

    Raises:
        ValueError: Anything else.

    >>> parse_cache_dtype("bf16")
    torch.bfloat16
    """
    if cache_dtype is None or (isinstance(cache_dtype, torch.dtype) and cache_dtype in _NAMES.values()):
        return cache_dtype
    if isinstance(cache_dtype, str) and cache_dtype.lower() in _NAMES:
        return _NAMES[cache_dtype.lower()]
    raise ValueError(f"cache_dtype must be None, torch.float16, torch.bfloat16 or their names, got {cache_dtype!r}")


def cached_dtype(dtype: torch.dtype, cache_dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which rows of a field of ``dtype`` are cached: its own, but for float32 and float64.

    >>> cached_dtype(torch.float64, torch.float16), cached_dtype(torch.int64, torch.float16)
    (torch.float16, torch.int64)
    """
    return cache_dtype if cache_dtype is not None and dtype in (torch.float32, torch.float64) else dtype


_NO_SLOTS: Array = np.empty(0, dtype=np.int32)
_NO_ROWS: Array = np.empty(0, dtype=np.uint16)
# The least bits of a float32 that round to infinity.
_TOO_LARGE = {torch.float16: 0x477FF000, torch.bfloat16: 0x7F7F8000}


def stored_as(feature: PlainFeature, cache_dtype: torch.dtype | None, name: Hashable) -> StoredFeature:
    """The rows of a field as a cache keeps them: narrow ones where ``cache_dtype`` says so, else its own."""
    dtype = cached_dtype(feature.dtype, cache_dtype)
    if dtype == feature.dtype or not isinstance(feature, HostFeature):
        return feature
    return NarrowFeature(feature, dtype, name)


class NarrowFeature:
    """Rows of a float32 or float64 field in float16 or bfloat16; all are rounded alike, cached or not."""

    def __init__(self, source: HostFeature, dtype: torch.dtype, name: Hashable) -> None:
        self.source = source
        self.dtype = dtype
        self.num_rows = source.num_rows
        self.row_shape = source.row_shape
        self.row_bytes = math.prod(self.row_shape) * dtype.itemsize
        self.device = source.device
        self.tier = source.tier
        self._name = name
        self._largest = 0.0
        self._brain = dtype == torch.bfloat16
        in_place = source.dtype == torch.float32 and source.rows is not None and self.row_bytes > 0
        self._bits: Array | None = source.rows.view(np.uint32) if in_place and source.rows is not None else None

    def over(self, source: HostFeature) -> NarrowFeature:
        """The same of copies of the source's rows."""
        return NarrowFeature(source, self.dtype, self._name)

    @property
    def is_direct(self) -> bool:
        """Whether rows are rounded on their way; else they are copied first."""
        return self._bits is not None

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; ValueError where a finite value is too large for ``dtype``."""
        from . import _precision

        index = id_array(ids)
        out = output_for(self, len(index), out)
        if self._bits is None:
            rounded = self.round_(self.source.read(ids))
            if not self._brain:
                return out.copy_(rounded)
            # torch's conversion to bfloat16 loses the sign of NaN.
            out.view(torch.int16).copy_(rounded.to(torch.float32).view(torch.int32) >> 16)
            return out
        self.source.announce(index)
        worst = np.zeros(1, dtype=np.uint32)
        bad = _precision.gather_narrow(
            self._bits,
            self.source.stride_bytes // 4,
            self.source.source_rows,
            self.source.table,
            index,
            self._brain,
            byte_view(out).view(np.uint16),
            self.row_bytes // 2,
            worst,
        )
        if bad >= 0:
            self.source.raise_bad(index, bad)
        self._check(worst[0])
        return out

    def warn_of_tiny(self) -> None:
        """Warn if all that was read so far is 0 or below float16's normal numbers, and not all 0."""
        if self.dtype == torch.float16 and 0 < self._largest < torch.finfo(torch.float16).smallest_normal:
            warnings.warn(
                f"cache_dtype float16 loses most of field {self._name!r}, whose cached values are below 2**-14: use "
                "bfloat16",
                stacklevel=2,
            )

    def gather(
        self, index: Array, ends: Array, out: Tensor, cached: Array = _NO_ROWS, slots: Array = _NO_SLOTS, count: int = 0
    ) -> Array:
        """Write rounded rows to ``out``, in the source's dtype; returns the hits of each part of the ids.

        ``cached`` are the bits of ``count`` cached rows, flat; ``slots`` their places.
        """
        from . import _precision

        self.source.announce(index, slots, count)
        hits, worst = np.zeros(len(ends), dtype=np.int64), np.zeros(1, dtype=np.uint32)
        bad = _precision.gather_rounded(
            cached,
            count,
            slots,
            self._bits,
            self.source.stride_bytes // 4,
            self.source.source_rows,
            self.source.table,
            index,
            ends,
            self._brain,
            byte_view(out).view(np.uint32),
            self.row_bytes // 2,
            hits,
            worst,
        )
        if bad >= 0:
            self.source.raise_bad(index, bad)
        self._check(worst[0])
        return hits

    def round_(self, rows: Tensor) -> Tensor:
        """Round contiguous rows of the source's dtype in place."""
        from . import _precision

        single = rows.to(torch.float32)
        beyond = single.isinf() & ~rows.isinf()
        if beyond.any():
            raise self._too_large(float(rows[beyond].abs().max()))
        self._check(_precision.round_all(byte_view(single).view(np.uint32), self._brain))
        return rows.copy_(single)

    def _check(self, worst: np.uint32) -> None:
        """Note the bits of the largest finite magnitude that was rounded; refuse what is too large."""
        value = float(np.uint32(worst).view(np.float32))
        if worst >= _TOO_LARGE[self.dtype]:
            raise self._too_large(value)
        self._largest = max(self._largest, value)

    def _too_large(self, value: float) -> ValueError:
        largest, advice = torch.finfo(self.dtype).max, ": use bfloat16" if self.dtype == torch.float16 else ""
        return ValueError(
            f"cache_dtype must hold the values of field {self._name!r}, got {value:g}, the largest of "
            f"{str(self.dtype).removeprefix('torch.')} is {largest:g}{advice}"
        )


HostRows = HostFeature | NarrowFeature
StoredFeature = PlainFeature | NarrowFeature
"""Rows of a field as a cache keeps them; ``HostRows`` if they are not on a device."""


class WideFeature:
    """Base of features that deliver rows in the field's own dtype, in whichever they are cached (``stored``)."""

    def __init__(self, stored: Feature, device: torch.device) -> None:
        self._whole = stored.source if isinstance(stored, NarrowFeature) else stored
        self.device = device
        self.num_rows = stored.num_rows
        self.row_shape = stored.row_shape
        self.dtype = self._whole.dtype
        self.row_bytes = self._whole.row_bytes
        self.tier = stored.tier


class RoundedFeature(WideFeature):
    """Rows of a field as its cache would give them, where nothing is cached yet; on the CPU."""

    def __init__(self, narrow: NarrowFeature) -> None:
        super().__init__(narrow, narrow.device)
        self._narrow = narrow

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; ValueError where a finite value is too large for the 16 bits."""
        index = id_array(ids)
        out = output_for(self, len(index), out)
        narrow = self._narrow
        if narrow.is_direct:
            narrow.gather(index, np.array([len(index)]), out)
            return out
        return narrow.round_(narrow.source.read(ids, out))
