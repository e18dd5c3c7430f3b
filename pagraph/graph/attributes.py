"""Attributes of a networkx graph as fields."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["number_attributes"]

_log = logging.getLogger(__name__)

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_FLOATS = (float, np.floating)
_WIDE = 2**53  # from here on float64 holds not every integer


def number_attributes(
    graph: Any, where: str, *, unnamed: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The attributes that are numbers on all vertices, and those on all edges, in the graph's
    order.

    One warning, which begins with ``where``, names those that stay behind, but for the ``unnamed``
    ones.
    """
    left: list[str] = []
    found = []
    for owner, view in (("vertex", graph.nodes), ("edge", graph.edges)):
        rows = [entry[-1] for entry in view(data=True)]
        fields = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            values = _numbers([row.get(name) for row in rows])
            if values is not None and isinstance(name, str) and name.isprintable():
                fields[name] = values
            elif name not in unnamed:
                left.append(f"{owner} attribute {name!r}")
        found.append(fields)
    if left:
        _log.warning(
            "%s: what not all vertices or edges have a number of stays behind: %s",
            where,
            ", ".join(left),
        )
    return found[0], found[1]


def _numbers(values: Sequence[Any]) -> Tensor | None:
    """The values as a tensor; None unless all are numbers that one dtype holds."""
    if not all(isinstance(value, _NUMBERS) for value in values):
        return None
    array = np.array(values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        return None
    if array.dtype.kind == "f" and any(
        not isinstance(value, _FLOATS) and abs(int(value)) >= _WIDE for value in values
    ):
        return None
    return torch.from_numpy(array)
