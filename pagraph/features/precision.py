"""What a cache may keep of float fields at half the width, and what is lost by it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["cached_dtype", "parse_cache_dtype"]

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
    """What rows of a field of ``dtype`` are cached in: its own, but for float32 and float64.

    >>> cached_dtype(torch.float64, torch.float16), cached_dtype(torch.int64, torch.float16)
    (torch.float16, torch.int64)
    """
    return cache_dtype if cache_dtype is not None and dtype in (torch.float32, torch.float64) else dtype
