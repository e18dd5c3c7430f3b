"""Whether Triton's kernels can run here, and how they are launched."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from typing import Any

__all__ = ["has_triton", "interprets", "launch"]

_interpreter = threading.Lock()


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed; does not import it."""
    return importlib.util.find_spec("triton") is not None


def interprets() -> bool:
    """Whether Triton's kernels are run by its interpreter, on CPU tensors (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run ``programs`` instances of a kernel on the current stream; call where a stream is in use.

    Args:
        kernel: Made by ``triton.jit``.
        programs: The size of the grid, which has one dimension; 0 launches nothing.
        arguments: Tensors on the device, host tensors that are pinned, and numbers.
        constants: What the kernel is compiled for.
    """
    if programs <= 0:
        return
    if interprets():
        with _interpreter:  # it replaces functions of triton.language while it runs
            kernel[(programs,)](*arguments, **constants)
    else:
        kernel[(programs,)](*arguments, **constants)
