"""Availability and launches of Triton kernels."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from typing import Any

# One launch at a time, for two reasons. Triton's interpreter replaces functions of triton.language
# while it runs. And before Triton 3.5, a kernel that two threads compile at once may be cached, on
# disk too, under a key without its source.
_launching = threading.RLock()


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed; does not import it."""
    return importlib.util.find_spec("triton") is not None


def interprets() -> bool:
    """Whether Triton's interpreter runs kernels, on CPU tensors (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launch a ``triton.jit`` kernel on the current stream, which must be in use; thread-safe.

    The grid has one dimension of ``programs``; 0 launches nothing. ``arguments`` are tensors on the
    device, pinned host tensors and numbers. ``constants`` are compile-time constants.
    """
    if programs <= 0:
        return
    with _launching:
        kernel[(programs,)](*arguments, **constants)
