"""Forms of rows with fewer bytes: float16, bfloat16 and int8, with their layouts and limits.

A stored row of ``d`` values::

    float16, bfloat16   | v0 v1 ... |                       d elements of 2 bytes
    int8 (as uint8)     | scale, float32 | q0 q1 ... |      4 + d bytes; value j is scale * qj

Kernels that round and widen are in ``_row_form``; :func:`~pagraph.graph.stored_rows.encode` and
:func:`~pagraph.graph.stored_rows.decode` call them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..options.names import form_name

# Codes of the forms: kernels take numbers.
FLOAT16 = 0
BFLOAT16 = 1
INT8 = 2
HEAD = 4
"""Bytes before the values of an int8 row: its scale, a float32, little-endian."""

WIDE = (torch.float32, torch.float64)
"""Dtypes of fields that may be stored in fewer bytes."""


@dataclass(frozen=True)
class RowForm:
    """A form of rows of floats with fewer bytes.

    Attributes:
        name: "float16", "bfloat16" or "int8".
        dtype: Element type of the stored rows.
        head: Elements before a row's values. An int8 row begins with its scale, a float32 in 4
            bytes.
        value_dtype: Element type of the values in the rows.
        code: The form's number in kernels.
        limit: Bits of the least float32 magnitude that it cannot hold.
        largest: The largest finite number.
    """

    name: str
    dtype: torch.dtype
    head: int
    value_dtype: torch.dtype
    code: int
    limit: int
    largest: float

    def row_shape(self, wide: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a stored row, given the shape of its values; with a head it is 1-D."""
        return (self.head + math.prod(wide),) if self.head else tuple(wide)

    def wide_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one row's values, given that of all stored rows.

        Raises ValueError for a shape that stored rows of this form cannot have.
        """
        if self.head:
            if len(stored) != 2 or stored[1] < self.head:
                raise ValueError(
                    f"stored must be of shape (n, {self.head} + d) for {self.name}, got {stored}"
                )
            return (stored[1] - self.head,)
        if not stored:
            raise ValueError(f"stored must be of shape (n, ...), got {stored}")
        return stored[1:]

    def refusal(self, rule: str, value: float) -> ValueError:
        """The error for a value that the form cannot hold; ``rule`` says where it is."""
        if not math.isfinite(value):
            return ValueError(f"{rule}, got {value:g}: {self.name} cannot hold it")
        advice = ": use bfloat16" if self.code == FLOAT16 else ""
        return ValueError(
            f"{rule}, got {value:g}, but the largest value of {self.name} is "
            f"{self.largest:g}{advice}"
        )


# The limit is half a step above the largest number: the least float32 that rounds to infinity.
_HALF = RowForm(
    "float16",
    torch.float16,
    head=0,
    value_dtype=torch.float16,
    code=FLOAT16,
    limit=0x477FF000,  # 65520
    largest=torch.finfo(torch.float16).max,
)
_BRAIN = RowForm(
    "bfloat16",
    torch.bfloat16,
    head=0,
    value_dtype=torch.bfloat16,
    code=BFLOAT16,
    limit=0x7F7F8000,
    largest=torch.finfo(torch.bfloat16).max,
)
_SCALED = RowForm(
    "int8",
    torch.uint8,
    head=HEAD,
    value_dtype=torch.int8,
    code=INT8,
    limit=0x7F800000,  # infinity: a scale exists for every finite row
    largest=torch.finfo(torch.float32).max,
)
FORMS = {form.name: form for form in (_HALF, _BRAIN, _SCALED)}
"""The forms by name."""


def form_of(argument: str, given: Any) -> RowForm | None:
    """The form with a name or torch dtype; None for None.

    Anything else raises a ValueError that names the ``argument``.

    >>> form_of("cache_dtype", "bf16").name, form_of("cache_dtype", torch.int8).name
    ('bfloat16', 'int8')
    """
    name = form_name(argument, given)
    return None if name is None else FORMS[name]


@dataclass(frozen=True)
class Decoding:
    """How stored rows of a form become rows of ``dtype``, float32 or float64, and ``row_shape``."""

    form: RowForm
    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a decoded row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def widened(self, stored: Tensor) -> Tensor:
        """Decode contiguous stored rows on any device with torch."""
        shape = (len(stored), *self.row_shape)
        if not self.form.head:
            return stored.to(self.dtype).view(shape)
        # Always a copy: the view as float32 needs an address that is a multiple of 4. A slice of
        # one row counts as contiguous at any address.
        head = stored[:, : self.form.head].clone(memory_format=torch.contiguous_format)
        levels = stored[:, self.form.head :].view(torch.int8)
        values = levels.to(torch.float32) * head.view(torch.float32)
        return values.to(self.dtype).view(shape)
