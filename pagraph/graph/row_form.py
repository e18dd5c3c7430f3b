"""Rows in fewer bytes: the forms, how values are rounded to them, and how they become values
again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .row_code import BFLOAT16, FLOAT16, HEAD, INT8

__all__ = ["FORMS", "WIDE", "Decoding", "RowForm", "form_of"]

WIDE = (torch.float32, torch.float64)
"""Dtypes of fields that may be stored in fewer bytes."""
_WORDS = {torch.float16: np.uint16, torch.bfloat16: np.uint16, torch.uint8: np.uint8}


@dataclass(frozen=True)
class RowForm:
    """A form in which rows of floats take fewer bytes.

    Attributes:
        name: "float16", "bfloat16" or "int8".
        dtype: Element type of the stored rows.
        head: Elements before a row's values: an int8 row is its scale (a float32 in 4 bytes) and an
            int8 a value.
        value_dtype: Element type of the values in them.
        code: The form, for kernels.
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
        """The shape of a stored row of values of shape ``wide``: the same, but of one dimension
        with a head."""
        return (self.head + math.prod(wide),) if self.head else tuple(wide)

    def row_bytes(self, wide: tuple[int, ...]) -> int:
        """Bytes of a stored row of values of shape ``wide``."""
        return math.prod(self.row_shape(wide)) * self.dtype.itemsize

    def encode(self, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, int, float]:
        """Store float32 or float64 rows, each value as the nearest, ties to even; float64 by way of
        float32.

        Args:
            rows: Shape ``(n, ...)``, on the CPU.
            out: Contiguous memory for the stored rows. Default: new.

        Returns:
            The stored rows; -1, or the first row with a value that the form cannot hold (those from
            it on are not written); the largest magnitude up to there: that value, if there is one.
        """
        from . import _row_form

        width = math.prod(rows.shape[1:])
        shape = (len(rows), *self.row_shape(tuple(rows.shape[1:])))
        out = torch.empty(shape, dtype=self.dtype, device="cpu") if out is None else out
        if not len(rows) or not width:
            return out.zero_(), -1, 0.0  # int8 rows of no values have a scale
        single = rows.detach().to(torch.float32).contiguous()
        over = (single.isinf() & ~rows.isinf()).view(len(rows), -1).any(1).nonzero()
        worst = np.zeros(1, dtype=np.uint32)
        bits = single.view(-1).view(torch.int32).numpy().view(np.uint32)
        bad = _row_form.narrow_rows(
            bits, width, self.code, _flat(out), width + self.head, np.uint32(self.limit), worst
        )
        if len(over) and (bad < 0 or int(over[0]) <= bad):
            bad = int(over[0])
            return out, bad, float(rows[bad].abs().nan_to_num(0.0, math.inf).max())
        return out, int(bad), float(worst.view(np.float32)[0])

    def refusal(self, rule: str, value: float) -> ValueError:
        """The error for a value that the form cannot hold; ``rule`` says where it is."""
        if not math.isfinite(value):
            return ValueError(f"{rule}, got {value:g}: {self.name} holds no such value")
        advice = ": use bfloat16" if self.code == FLOAT16 else ""
        return ValueError(
            f"{rule}, got {value:g}, the largest of {self.name} is {self.largest:g}{advice}"
        )


FORMS = {
    form.name: form
    for form in (
        RowForm(
            "float16",
            torch.float16,
            0,
            torch.float16,
            FLOAT16,
            0x477FF000,
            torch.finfo(torch.float16).max,
        ),
        RowForm(
            "bfloat16",
            torch.bfloat16,
            0,
            torch.bfloat16,
            BFLOAT16,
            0x7F7F8000,
            torch.finfo(torch.bfloat16).max,
        ),
        RowForm(
            "int8", torch.uint8, HEAD, torch.int8, INT8, 0x7F800000, torch.finfo(torch.float32).max
        ),
    )
}
"""The forms by name."""

_ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16"}


def form_of(argument: str, given: Any) -> RowForm | None:
    """A form by its name or torch dtype, None for None; ValueError, which names the ``argument``,
    for anything else.

    >>> form_of("cache_dtype", "bf16").name, form_of("cache_dtype", torch.int8).name
    ('bfloat16', 'int8')
    """
    if given is None:
        return None
    name = str(given).removeprefix("torch.") if isinstance(given, torch.dtype) else given
    name = _ALIASES.get(name.lower(), name.lower()) if isinstance(name, str) else name
    if isinstance(name, str) and name in FORMS:
        return FORMS[name]
    raise ValueError(
        f"{argument} must be None, torch.float16, torch.bfloat16, torch.int8 or their names, got "
        f"{given!r}"
    )


@dataclass(frozen=True)
class Decoding:
    """Conversion of stored rows of a form to rows of ``dtype`` (float32 or float64) and
    ``row_shape``."""

    form: RowForm
    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a decoded row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def widened(self, stored: Tensor) -> Tensor:
        """Stored rows, contiguous and on any device, as values; by torch."""
        shape = (len(stored), *self.row_shape)
        if not self.form.head:
            return stored.to(self.dtype).view(shape)
        # A copy in any case: one row of a slice counts as contiguous, wherever it begins.
        scales = (
            stored[:, : self.form.head]
            .clone(memory_format=torch.contiguous_format)
            .view(torch.float32)
        )
        return (
            (stored[:, self.form.head :].view(torch.int8).to(torch.float32) * scales)
            .to(self.dtype)
            .view(shape)
        )

    def decode(self, stored: Tensor, out: Tensor | None = None) -> Tensor:
        """Stored rows, contiguous and on the CPU, as values, in new memory or in ``out``; safe from
        any thread."""
        from . import _row_form

        if out is None:
            out = torch.empty((len(stored), *self.row_shape), dtype=self.dtype, device="cpu")
        if not out.numel():
            return out
        if self.dtype != torch.float32 or not out.is_contiguous():
            return out.copy_(self.widened(stored))
        width = math.prod(self.row_shape)
        bits = out.view(-1).view(torch.int32).numpy().view(np.uint32)
        _row_form.widen_rows(_flat(stored), width + self.form.head, self.form.code, bits, width)
        return out


def _flat(stored: Tensor) -> Any:
    """Contiguous stored rows as NumPy's integers of their width."""
    flat = stored.reshape(-1)
    return (
        (flat.view(torch.int16) if flat.dtype != torch.uint8 else flat)
        .numpy()
        .view(_WORDS[stored.dtype])
    )
