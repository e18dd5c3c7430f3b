"""Checks of arguments: integers, flags, names; the type of a path."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from numbers import Integral
from typing import Any

StrPath = str | os.PathLike[str]
"""A path, as users give one."""
MOST_NEIGHBOURS = 2**31 - 1
"""Largest fan-out: kernels count neighbours in 32 bits."""


def as_flag(name: str, value: Any) -> bool:
    """An argument that is True or False, or 0 or 1, as a bool; else TypeError."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    # Here: whoever checks options alone does not wait for NumPy.
    import numpy as np

    if isinstance(value, np.bool_):
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

    >>> import numpy as np
    >>> as_integers(num_nodes=np.int8(100), seed=1)
    (100, 1)
    """
    return tuple(as_integer(name, value) for name, value in values.items())


def check_batch_size(batch_size: Any) -> int:
    """``batch_size`` as an int; ValueError unless it is an integer of at least 1 (None
    included)."""
    # NumPy's integers are Integral, too.
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or int(batch_size) < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    return int(batch_size)


def check_fanout(fanout: Any, replace: bool, *, least: int = 1) -> int:
    """A fan-out as an int; TypeError or ValueError unless -1 or from ``least`` to what ``replace``
    can draw."""
    if isinstance(fanout, bool) or not isinstance(fanout, Integral):
        raise TypeError(f"fanouts must be integers, got {fanout!r}")
    number = int(fanout)
    if number != -1 and number < least:
        raise ValueError(f"fanouts must be positive or -1 (all neighbours), got {number}")
    if replace and number > MOST_NEIGHBOURS:
        raise ValueError(f"fanouts must be below 2**31 with replacement, got {number}")
    # Without replacement a huge fan-out is a way to say "all".
    return min(number, MOST_NEIGHBOURS)
