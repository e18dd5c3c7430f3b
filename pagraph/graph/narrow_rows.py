"""NarrowRows: a field whose rows are stored in fewer bytes than they are delivered in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .indexed_rows import IndexedRows, check_dense
from .row_form import FORMS, WIDE, Decoding, form_of

__all__ = ["NarrowRows", "NarrowingRows"]

_CHUNK_BYTES = 16 << 20
_FORMS = {form.dtype: form for form in FORMS.values()}


class NarrowRows:
    """Rows stored as float16, bfloat16 or int8, and read as float32 or float64.

    They take fewer bytes on disk, in a cache and over the bus, and are widened where they are
    gathered. A graph, a ``FieldSet`` and the loaders take them where they take a tensor.

    A value ``x`` is read as the nearest number of the form, ties to even:

    - ``bfloat16``: within ``2**-8 * |x|`` where ``|x| >= 2**-126``; the range is float32's.
    - ``float16``: within ``2**-11 * |x|`` where ``|x| >= 2**-14``, within ``2**-25`` below. The
      largest is 65504.
    - ``int8``: a multiple of the row's scale ``s``, which is a 127th of the row's largest
      magnitude: within ``s / 2``, and a float32's rounding. A row of zeros has scale 0. NaN and
      infinities cannot be stored; -0 becomes 0.

    Args:
        stored: The stored rows, a dense CPU tensor, often a mapped file, or rows of one by
            reference: float16 or bfloat16 of shape ``(n, ...)``; or for int8 uint8 of shape
            ``(n, 4 + d)``, so that one read brings a row's scale (a float32, little-endian) and its
            ``d`` values.
        dtype: float32 or float64, in which rows are read.

    Attributes:
        form: The form of the stored rows, ``form.name`` its name.
        decoding: How they become values.

    Raises:
        TypeError: ``stored`` is none of these.
        ValueError: Its shape does not fit, or ``dtype`` is another.

    Example:
        >>> rows = NarrowRows.of(torch.tensor([[1.0, -0.5], [0.0, 3.0]]), "int8")
        >>> rows, rows.stored.shape, rows[torch.tensor([1])].tolist()
        (NarrowRows(shape=(2, 2), dtype=torch.float32, form=int8), torch.Size([2, 6]), [[0.0, 3.0]])
    """

    def __init__(self, stored: Tensor | IndexedRows, dtype: torch.dtype = torch.float32) -> None:
        if not isinstance(stored, IndexedRows):
            check_dense("stored", stored)
        if stored.dtype not in _FORMS:
            raise TypeError(
                f"stored must be float16, bfloat16, or uint8 for int8, got {stored.dtype}"
            )
        if dtype not in WIDE:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        self.form = _FORMS[stored.dtype]
        shape = tuple(stored.shape)
        if not shape or (self.form.head and (len(shape) != 2 or shape[1] < self.form.head)):
            rule = f"(n, {self.form.head} + d) for int8" if self.form.head else "(n, ...)"
            raise ValueError(f"stored must be of shape {rule}, got {shape}")
        self.stored, self.dtype = stored, dtype
        self.decoding = Decoding(
            self.form, dtype, (shape[1] - self.form.head,) if self.form.head else shape[1:]
        )

    @classmethod
    def of(cls, values: Any, form: str, *, dtype: torch.dtype | None = None) -> NarrowRows:
        """Store values in a form, in new memory; ``values`` may be mapped, and are read some rows
        at a time.

        Args:
            values: Rows of float32 or float64, a tensor or rows by reference; for int8 of two
                dimensions.
            form: "float16", "bfloat16" or "int8".
            dtype: In which rows are read. Default: that of ``values``.

        Raises:
            TypeError: They are no such rows.
            ValueError: ``form`` is another, or cannot hold a value: the error names the row.
        """
        stored = NarrowingRows(values, form)
        parts = [
            stored[begin : begin + stored.chunk]
            for begin in range(0, max(1, len(values)), stored.chunk)
        ]
        return cls(torch.cat(parts), stored.decoding.dtype if dtype is None else dtype)

    @property
    def shape(self) -> torch.Size:
        """Shape of the rows together as they are read."""
        return torch.Size([len(self), *self.decoding.row_shape])

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return self.stored.device

    @property
    def requires_grad(self) -> bool:
        """False: gradients are not followed through stored rows."""
        return False

    def dim(self) -> int:
        """Number of dimensions."""
        return 1 + len(self.decoding.row_shape)

    def numel(self) -> int:
        """Number of values."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """True."""
        return True

    def is_complex(self) -> bool:
        """False."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"rows in fewer bytes must be read to be tensors: [ids] or materialize(), not .{name}"
        )

    def __len__(self) -> int:
        return int(self.stored.shape[0])

    def __getitem__(self, index: Any) -> Tensor:
        """The rows at a position, a slice, or a tensor of positions or booleans, in new memory."""
        stored = self.stored[index]
        if isinstance(index, int):
            return self.decoding.decode(stored[None].contiguous())[0]
        return self.decoding.decode(stored.contiguous())

    def materialize(self) -> Tensor:
        """All rows as a tensor of their own: ``numel() * dtype.itemsize`` bytes."""
        out = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        step = max(1, _CHUNK_BYTES // max(1, self.decoding.row_bytes))
        for begin in range(0, len(self), step):
            self.decoding.decode(
                self.stored[begin : begin + step].contiguous(), out[begin : begin + step]
            )
        return out

    def __repr__(self) -> str:
        return f"NarrowRows(shape={tuple(self.shape)}, dtype={self.dtype}, form={self.form.name})"


class NarrowingRows:
    """The stored rows of values in a form, computed when they are indexed by a slice; for writers.

    Args:
        values: As :meth:`NarrowRows.of` takes them.
        form: The same.
        name: What they are, for errors.

    Attributes:
        dtype, shape: Of the stored rows.
        decoding: How they become values again.
        chunk: Rows that are well computed at once.
    """

    def __init__(self, values: Any, form: str, name: str = "") -> None:
        chosen = form_of("form", form)
        if chosen is None:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got None")
        if getattr(values, "dtype", None) not in WIDE:
            raise TypeError(
                "values must be rows of float32 or float64, got "
                f"{getattr(values, 'dtype', type(values))}"
            )
        dims = len(values.shape)
        if not dims or (chosen.head and dims != 2):
            raise ValueError(
                f"values must have {2 if chosen.head else '1 or more'} dimensions, got {dims}"
            )
        self._values, self._form, self._of = values, chosen, f" of {name}" if name else ""
        wide = tuple(values.shape[1:])
        self.decoding, self.dtype = Decoding(chosen, values.dtype, wide), chosen.dtype
        self.shape = (int(values.shape[0]), *chosen.row_shape(wide))
        self.chunk = max(
            1, _CHUNK_BYTES // max(1, torch.Size(wide).numel() * values.dtype.itemsize)
        )

    def __getitem__(self, rows: slice) -> Tensor:
        """Some of the stored rows; ValueError where a value cannot be stored."""
        begin, end, _ = rows.indices(self.shape[0])
        stored, bad, value = self._form.encode(self._values[begin:end])
        if bad >= 0:
            raise self._form.refusal(
                f"{self._form.name} must hold the values of row {begin + bad}{self._of}", value
            )
        return stored
