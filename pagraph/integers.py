"""Arguments that are integers."""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = ["as_integer"]


def as_integer(name: str, value: SupportsIndex) -> int:
    """An argument as an int; NumPy's and torch's integers count.

    Args:
        name: What the argument is called.
        value: What was given.

    Raises:
        TypeError: It is not an integer, such as a word from ``os.environ``.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
