"""Checks of arguments: integers, flags, names."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from numbers import Integral
from typing import Any

StrPath = str | os.PathLike[str]
"""A path that a user gives."""
MOST_NEIGHBOURS = 2**31 - 1
"""Largest fan-out: kernels count neighbours in 32 bits."""


def as_flag(name: str, value: Any) -> bool:
    """An argument that is True, False, 0 or 1, as a bool; else TypeError."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    # Imported late, so that checking options does not wait for NumPy.
    import numpy as np

    if isinstance(value, np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {value!r}")


def as_names(name: str, values: Any) -> tuple[str, ...]:
    """A sequence of names as a tuple; TypeError for anything else, a single name included."""
    names = () if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if (not names and values not in ((), [])) or not all(isinstance(each, str) for each in names):
        raise TypeError(f'{name} must be a list of names, such as ["feat"], got {values!r}')
    return names


def as_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """An argument as an int; NumPy's and torch's integers count, booleans do not.

    Args:
        name: Name of the argument, for errors.
        value: The argument.
        least: Lower bound. Default: none.

    Raises:
        TypeError: It is not an integer, such as text from ``os.environ``.
        ValueError: It is below ``least``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:  # also for a tensor with several elements
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def kind_of(value: Any) -> str:
    """What a value is, for errors: "None", "dict", "tuple of str, Tensor"."""
    if value is None or not isinstance(value, list | tuple):
        return "None" if value is None else type(value).__name__
    kinds = [type(each).__name__ for each in value[:4]]
    return f"{type(value).__name__} of {', '.join(kinds) or 'nothing'}"


def as_integers(**values: Any) -> tuple[int, ...]:
    """Arguments as ints, in order, since sums of NumPy's integers could overflow.

    Raises TypeError like :func:`as_integer`.

    >>> import numpy as np
    >>> as_integers(num_nodes=np.int8(100), seed=1)
    (100, 1)
    """
    return tuple(as_integer(name, value) for name, value in values.items())


def check_batch_size(batch_size: Any) -> int:
    """``batch_size`` as an int; ValueError unless it is an integer of at least 1."""
    try:
        return as_integer("batch_size", batch_size, least=1)
    except (TypeError, ValueError):
        raise ValueError(
            f"batch_size must be an integer of at least 1, got {batch_size!r}"
        ) from None


def check_fanout(fanout: Any, replace: bool, *, least: int = 1) -> int:
    """A fan-out as an int, which must be -1 or at least ``least``.

    Raises TypeError or ValueError for others. With ``replace`` there is also an upper limit.
    """
    if isinstance(fanout, bool) or not isinstance(fanout, Integral):
        raise TypeError(f"fanouts must be integers, got {fanout!r}")
    number = int(fanout)
    if number != -1 and number < least:
        raise ValueError(f"fanouts must be positive or -1 (all neighbours), got {number}")
    if replace and number > MOST_NEIGHBOURS:
        raise ValueError(f"fanouts must be below 2**31 with replacement, got {number}")
    # Without replacement a huge fan-out means all neighbours.
    return min(number, MOST_NEIGHBOURS)
