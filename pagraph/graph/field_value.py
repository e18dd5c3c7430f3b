"""Values of a field: a tensor, rows by reference, or rows in fewer bytes; and what is none of a
field's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from .indexed_rows import IndexedRows
from .narrow_rows import NarrowRows

__all__ = [
    "FieldValue",
    "is_single",
    "mask_of",
    "materialized",
    "stored_row_bytes",
    "stored_tensor",
]

FieldValue = Tensor | IndexedRows | NarrowRows
"""Values of a field."""


def stored_tensor(values: FieldValue) -> Tensor:
    """The tensor in whose memory the rows are."""
    stored = values.stored if isinstance(values, NarrowRows) else values
    return stored.source if isinstance(stored, IndexedRows) else stored


def stored_row_bytes(values: FieldValue) -> int:
    """Bytes of a row where it is kept: on disk, in a cache, over a bus."""
    stored = values.stored if isinstance(values, NarrowRows) else values
    return math.prod(stored.shape[1:]) * stored.element_size()


def materialized(values: FieldValue) -> Tensor:
    """The values as a tensor; rows by reference and rows in fewer bytes are copied."""
    return values if isinstance(values, Tensor) else values.materialize()


def is_single(value: Any) -> bool:
    """Whether a value is nothing, or one number or word, which says something of a whole graph and
    is no field."""
    if isinstance(value, Tensor):
        return value.numel() <= 1
    if isinstance(value, np.ndarray):
        return value.size <= 1
    return value is None or isinstance(
        value, str | bytes | bool | int | float | complex | np.generic
    )


def mask_of(fields: Mapping[str, FieldValue], name: str) -> Tensor | None:
    """The mask ``name`` among the fields of vertices as booleans, whatever it is stored as; None
    where there is none.

    Raises:
        ValueError: It is not 1-D.
    """
    values = fields.get(name)
    if values is None:
        return None
    if values.dim() != 1:
        raise ValueError(
            f"{name} must have one value for each vertex, got shape {tuple(values.shape)}"
        )
    return materialized(values).bool()
