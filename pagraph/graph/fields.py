"""Fields of one type of vertices or edges by name, with a row for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..system.units import shortened
from .csc import writeable
from .indexed_rows import IndexedRows
from .narrow_rows import NarrowRows

__all__ = ["Fields"]


class Fields(dict[str, Any]):
    """A dictionary from name to rows: tensors, ``IndexedRows`` or ``NarrowRows``; others are made
    tensors.

    Args:
        owner: Whose rows they are, for errors: "vertex" or "edge".
        rows: How many rows each field must have.
        fields: The first fields.

    Raises:
        ValueError: A field that is put in has another number of rows.
        TypeError: Its rows are no numbers.
    """

    def __init__(self, owner: str, rows: int, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._owner, self._rows = owner, rows
        self.update(fields or {})

    def __setitem__(self, name: str, value: Any) -> None:
        value = writeable(value) if isinstance(value, np.ndarray) else value
        try:
            kept = isinstance(value, Tensor | IndexedRows | NarrowRows)
            rows = value if kept else torch.as_tensor(value, device="cpu")
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"field {shortened(repr(name))} must be a tensor or rows of numbers: {error}"
            ) from None
        got = rows.shape[0] if rows.dim() else "a scalar"
        if got != self._rows:
            rule = f"one row per {self._owner} ({self._rows})"
            raise ValueError(f"field {shortened(repr(name))} must have {rule}, got {got}")
        super().__setitem__(name, rows)

    # dict's own methods would put values in without asking __setitem__.

    def update(self, *fields: Any, **more: Any) -> None:
        """As of a dictionary; what is wrong is refused, what stands before it is kept."""
        for name, value in dict(*fields, **more).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, fields: Any) -> Fields:  # type: ignore[override,misc]
        self.update(fields)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._owner, self._rows, dict(self))
