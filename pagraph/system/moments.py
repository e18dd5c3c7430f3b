"""Mean and deviation of columns of numbers of any size, in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Array, Float64Array

Blocks = Callable[[], Iterable[Array]]
"""The rows of some columns in blocks of two dimensions, from the start at each call. A masked array
masks rows without a value; neither these nor infinities and NaN count."""


@dataclass(frozen=True)
class Moments:
    """Bounds of columns, and the moments of their values between these bounds (0 to 1).

    Squares of values lose the spread of large ones: those of 1e15 differ by 1e15 from one to the
    next. Distances from the lowest value do not.

    Attributes:
        low: The lowest value of each column; 0 without any.
        high: The highest.
        places: Mean of the values' places between them.
        spreads: Standard deviation of these places; 0 only if a column is constant.
    """

    low: Array
    high: Array
    places: Float64Array
    spreads: Float64Array

    @classmethod
    def of(cls, blocks: Blocks) -> Moments:
        """Two passes over the blocks: bounds, then moments."""
        low, high = _bounds(blocks())
        count = np.zeros(len(low))
        mean = np.zeros(len(low))
        squares = np.zeros(len(low))
        for block in blocks():
            if not len(block):
                continue
            places = _between(block, low, high)
            more = places.count(0)
            mean_here = np.ma.filled(places.mean(0), 0.0)
            squares += np.ma.filled(np.square(places - mean_here).sum(0), 0.0)
            # Merged by the distance of both means (Chan, Golub and LeVeque).
            total = np.maximum(count + more, 1)
            away = mean_here - mean
            squares += np.square(away) * count * more / total
            mean += away * more / total
            count += more
        return cls(low, high, mean, np.sqrt(squares / np.maximum(count, 1)))

    @property
    def mean(self) -> Float64Array:
        """The mean of each column."""
        low, span, scale = _range(self.low, self.high)
        mean: Float64Array = (low + span * self.places) / scale
        return mean

    @property
    def deviation(self) -> Float64Array:
        """The standard deviation of each column."""
        _, span, scale = _range(self.low, self.high)
        deviation: Float64Array = span * self.spreads / scale
        return deviation

    def standardised(self, block: Array) -> Float64Array:
        """A block with mean 0 and deviation 1; 0 for missing values and in constant columns."""
        places = _between(block, self.low, self.high)
        spreads = np.where(self.spreads > 0, self.spreads, np.inf)
        found: Float64Array = np.ma.filled((places - self.places) / spreads, 0.0)
        return found


def _known(block: Array) -> Any:
    """A block as int64 or float64, with missing values masked."""
    values = np.ma.asarray(block)
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    return np.ma.masked_invalid(values.astype(np.float64))


def _bounds(blocks: Iterable[Array]) -> tuple[Array, Array]:
    """The lowest and the highest value of each column."""
    bounds = []
    for block in blocks:
        known = _known(block)
        if len(known):
            bounds.append([known.min(0), known.max(0)])
    if not bounds:
        return np.zeros(0), np.zeros(0)
    low = np.ma.stack([pair[0] for pair in bounds]).min(0)
    high = np.ma.stack([pair[1] for pair in bounds]).max(0)
    return np.ma.filled(low, 0), np.ma.filled(high, 0)


def _between(block: Array, low: Array, high: Array) -> Any:
    """The places of values between bounds, from 0 to 1; 0 in constant columns."""
    known = _known(block)
    mask = np.ma.getmaskarray(known)
    values = np.where(mask, low, known.data)
    start, span, scale = _range(low, high)
    away = values * scale - start
    if values.dtype.kind == "i":
        away = _distance(values, low)
    return np.ma.masked_array(away / np.where(span > 0, span, 1.0), mask)


def _range(low: Array, high: Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """The lowest values and the distances to the highest, both times a scale that is returned."""
    if low.dtype.kind == "i":
        return low.astype(np.float64), _distance(high, low), np.ones(len(low))
    with np.errstate(over="ignore"):
        # Half, where the distance of two large numbers is infinite.
        scale = np.where(np.isfinite(high - low), 1.0, 0.5)
    return low * scale, high * scale - low * scale, scale


def _distance(high: Array, low: Array) -> Float64Array:
    """Differences of int64, exact before they become floats; those of 64 bits wrap right."""
    bits = high.astype(np.int64).view(np.uint64) - low.astype(np.int64).view(np.uint64)
    distance: Float64Array = bits.astype(np.float64)
    return distance
