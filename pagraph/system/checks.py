"""Checks of arguments (integers, flags, names); types that stand in many signatures."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

StrPath = str | os.PathLike[str]
"""A path, as users give one."""
Array = npt.NDArray[Any]
"""A NumPy array of any element type."""
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


def as_flag(name: str, value: Any) -> bool:
    """An argument that is True or False, or 0 or 1, as a bool; else TypeError."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {value!r}")


def as_names(name: str, values: Any) -> tuple[str, ...]:
    """An argument that is a sequence of names, as a tuple; TypeError for one name alone, or
    anything else."""
    names = () if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if (not names and values not in ((), [])) or not all(isinstance(each, str) for each in names):
        raise TypeError(f'{name} must be a list of names, such as ["feat"], got {values!r}')
    return names


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
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:  # of a tensor with several elements, too
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def as_integers(**values: Any) -> tuple[int, ...]:
    """Arguments as ints, in their order; TypeError as :func:`as_integer`. NumPy's integers would
    overflow in sums.

    >>> as_integers(num_nodes=np.int8(100), seed=1)
    (100, 1)
    """
    return tuple(as_integer(name, value) for name, value in values.items())
