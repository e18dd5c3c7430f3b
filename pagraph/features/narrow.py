"""Rows in fewer bytes, rounded when a cache is filled and widened when they are delivered."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ..graph.row_form import WIDE, Decoding, form_of
from ..graph.stored_rows import decode, encode
from ..system.buffers import BufferPool
from .feature import Array, Feature, HostFeature, PlainFeature, byte_view, id_array, output_for


def parse_cache_dtype(cache_dtype: Any) -> torch.dtype | None:
    """Parse a loader's ``cache_dtype``, the form of cached rows of float32 and float64 fields.

    As float16 or bfloat16 a cache holds twice as many float32 rows, as int8 nearly four times as
    many; for float64 it is twice these. Values are rounded to the nearest in the form: see
    :class:`~pagraph.features.NarrowRows`. A value that the form cannot hold (65520 and more for
    float16; infinities and NaN for int8) raises ValueError when it is cached or read. A warning is
    given if all cached values of a float16 field are below ``2**-14``.

    Args:
        cache_dtype: ``torch.float16``, ``torch.bfloat16``, ``torch.int8``, or a name: "float16",
            "fp16", "half", "bfloat16", "bf16", "int8". None: rows are cached unchanged.

    Raises:
        ValueError: Anything else.

    >>> parse_cache_dtype("bf16")
    torch.bfloat16
    """
    form = form_of("cache_dtype", cache_dtype)
    return None if form is None else form.value_dtype


_NO_SLOTS: Array = np.empty(0, dtype=np.int32)
_NO_BYTES: Array = np.empty(0, dtype=np.uint8)


def stored_as(
    feature: PlainFeature, cache_dtype: torch.dtype | None, name: Hashable
) -> StoredFeature:
    """The rows of a field as a cache keeps them.

    float32 and float64 are rounded to ``cache_dtype`` if that takes fewer bytes.
    """
    if cache_dtype is None or not isinstance(feature, HostFeature) or feature.dtype not in WIDE:
        return feature
    narrow = NarrowFeature(feature, cache_dtype, name)
    # With its scale, an int8 row of one value is wider than float32's.
    return narrow if narrow.row_bytes < feature.row_bytes else feature


class NarrowFeature:
    """Rows of a float32 or float64 field, rounded to a form when they are read.

    All rows are rounded, cached or not, so that a batch has the same bits with any cache.
    """

    def __init__(self, source: HostFeature, cache_dtype: torch.dtype, name: Hashable) -> None:
        form = form_of("cache_dtype", cache_dtype)
        assert form is not None
        self.source = source
        self.decoding: Decoding | None = Decoding(form, source.dtype, source.row_shape)
        self.form = form
        self.dtype: torch.dtype = form.dtype
        self.num_rows: int = source.num_rows
        self.row_shape: tuple[int, ...] = form.row_shape(source.row_shape)
        self.row_bytes: int = math.prod(self.row_shape) * form.dtype.itemsize
        self.device: torch.device = source.device
        self.tier: str = source.tier
        self._name = name
        # The largest magnitude read so far. A lost update by another thread only affects a warning.
        self._largest = 0.0

    def over(self, source: HostFeature) -> NarrowFeature:
        """The same form for copies of the source's rows."""
        return NarrowFeature(source, self.form.value_dtype, self._name)

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The stored rows of ``ids``; ValueError if the form cannot hold a value."""
        from . import _gather

        index = id_array(ids)
        out = output_for(self, len(index), out)
        if not is_direct(self):
            _, bad, largest = encode(self.form, self.source.read(ids), out)
            if bad >= 0:
                raise self._refusal(largest)
            self._largest = max(self._largest, largest)
            return out
        self.source.announce(index)
        worst = np.zeros(1, dtype=np.uint32)
        bad = _gather.gather_narrow(
            *_located(self.source),
            index,
            self.form.code,
            stored_words(self, byte_view(out)),
            self.source.row_bytes // 4,
            self.form.head,
            worst,
        )
        if bad >= 0:
            self.source.raise_bad(index, bad)
        self.note(worst[0])
        return out

    def warn_of_tiny(self) -> None:
        """Warn if all values read so far are below float16's normal numbers, but not all are 0."""
        if (
            self.dtype == torch.float16
            and 0 < self._largest < torch.finfo(torch.float16).smallest_normal
        ):
            warnings.warn(
                f"cache_dtype float16 loses most of field {self._name!r}, whose cached values are "
                "below 2**-14: use bfloat16",
                stacklevel=2,
            )

    def note(self, worst: np.uint32) -> None:
        """Note the largest rounded magnitude, as bits; ValueError if the form cannot hold it."""
        value = float(np.uint32(worst).view(np.float32))
        if worst >= self.form.limit:
            raise self._refusal(value)
        self._largest = max(self._largest, value)

    def _refusal(self, value: float) -> ValueError:
        return self.form.refusal(f"cache_dtype must hold the values of field {self._name!r}", value)


HostRows = HostFeature | NarrowFeature
StoredFeature = PlainFeature | NarrowFeature
"""Rows of a field as a cache keeps them; ``HostRows`` if they are not on a device."""


def source_of(stored: Feature) -> Feature:
    """The rows of a field where they are."""
    return stored.source if isinstance(stored, NarrowFeature) else stored


def stored_words(stored: HostRows, rows: Array) -> Array:
    """Bytes of stored rows in words of their element type."""
    return rows.view(np.uint8 if stored.dtype == torch.uint8 else np.uint16)


def _located(source: HostFeature) -> tuple[Any, ...]:
    """A source's rows as words, their stride in words, their number, and the table; for kernels."""
    size = source.dtype.itemsize
    rows = None if source.rows is None else source.rows.view(f"u{size}")
    return rows, source.stride_bytes // size, source.source_rows, source.table


def is_direct(stored: Feature) -> TypeGuard[HostRows]:
    """Whether :func:`gather_wide` can deliver the rows; else rows are copied, then decoded."""
    source = source_of(stored)
    decoding = stored.decoding
    if decoding is None or not isinstance(source, HostFeature) or source.rows is None:
        return False
    # The kernel writes float32, and needs at least one value a row.
    return decoding.row_bytes > 0 and decoding.dtype == torch.float32


def gather_wide(
    stored: HostRows,
    index: Array,
    ends: Array,
    out: Tensor,
    cached: Array | None = None,
    slots: Array = _NO_SLOTS,
    count: int = 0,
) -> Array:
    """Decode rows to ``out`` by one kernel; returns the hits of each part of the ids.

    Args:
        stored: Rows for which :func:`is_direct` holds.
        index: The ids.
        ends: Ends of the parts of the ids.
        out: Float32.
        cached: Bytes of the cached rows.
        slots: Their table from vertex to slot.
        count: Their number.
    """
    from . import _gather

    source = source_of(stored)
    decoding = stored.decoding
    assert isinstance(source, HostFeature) and decoding is not None
    source.announce(index, slots, count)
    hits = np.zeros(len(ends), dtype=np.int64)
    worst = np.zeros(1, dtype=np.uint32)
    bad = _gather.gather_wide(
        stored_words(stored, _NO_BYTES if cached is None else cached),
        count,
        slots,
        *_located(source),
        index,
        ends,
        decoding.form.code,
        byte_view(out).view(np.uint32),
        decoding.row_bytes // 4,
        decoding.form.head,
        hits,
        worst,
    )
    if bad >= 0:
        source.raise_bad(index, bad)
    if isinstance(stored, NarrowFeature):
        stored.note(worst[0])
    return hits


class WideFeature:
    """Rows of a field as they are delivered: ``stored`` rows, decoded if necessary.

    This class reads on the CPU. Subclasses read from a cache first, or deliver on a device.
    """

    # :meth:`read` delivers values.
    decoding: Decoding | None = None

    def __init__(self, stored: Feature, device: torch.device | None = None) -> None:
        self._stored = stored
        self.device: torch.device = stored.device if device is None else device
        self.num_rows: int = stored.num_rows
        self.tier: str = stored.tier
        self._decoding = stored.decoding
        delivered = stored if stored.decoding is None else stored.decoding
        self.row_shape: tuple[int, ...] = delivered.row_shape
        self.dtype: torch.dtype = delivered.dtype
        self.row_bytes: int = delivered.row_bytes

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; ValueError if a form cannot hold a value."""
        stored = self._stored
        decoding = self._decoding
        if decoding is None:
            return stored.read(ids, out)
        index = id_array(ids)
        out = output_for(self, len(index), out)
        if is_direct(stored):
            gather_wide(stored, index, np.array([len(index)]), out)
            return out
        return decode(decoding, stored.read(ids), out)
