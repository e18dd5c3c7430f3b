"""Checks of arguments that are integers."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["as_integer"]


def as_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """An argument as an int; NumPy's and torch's integers count, booleans do not.

    Args:
        name: Name of the argument, for errors.
        value: The argument.
        least: Lower bound. None: none.

    Raises:
        TypeError: It is not an integer, such as a word from ``os.environ``.
        ValueError: It is below ``least``.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number
