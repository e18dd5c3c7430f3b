"""Callbacks of options that hold several values with commas between."""

from __future__ import annotations

import click

__all__ = ["integers"]


def integers(_context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """``"10,5"`` as ``(10, 5)``; None stays None.

    Raises:
        BadParameter: A part is no integer.
    """
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{parameter.name} must be integers with commas between, got {value!r}") from None
