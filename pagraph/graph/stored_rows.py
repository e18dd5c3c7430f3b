"""StoredRows: rows of a field that are given by reference, stored in fewer bytes, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .csc import check_range
from .row_form import FORMS, WIDE, Decoding, RowForm, form_of

_CHUNK_BYTES = 16 << 20
"""Bytes of decoded values in memory at once while whole fields are converted. The kernels reach the
speed of memory from 1 MiB on. Larger chunks amortise the call and keep file reads long."""
_FORM_OF_DTYPE = {form.dtype: form for form in FORMS.values()}
# Kernels take stored values as bits, since NumPy has no bfloat16 and numba no float16.
_WORDS = {torch.float16: np.uint16, torch.bfloat16: np.uint16, torch.uint8: np.uint8}


@dataclass(frozen=True, eq=False, repr=False)
class StoredRows:
    """Rows of a field that must be looked up, decoded, or both, to become a tensor.

    Row ``i`` is ``tensor[ids[i]]``, decoded. Nothing is copied before rows are read. This
    constructor checks nothing: users call :class:`IndexedRows` and :class:`NarrowRows`.

    Attributes:
        tensor: The stored rows, on the CPU, dense; often a mapped file.
        ids: The row of ``tensor`` for each row of the field, int32 or int64, on the CPU. None for
            the same row.
        decoding: How stored rows become values. None if they are the values.
    """

    tensor: Tensor
    ids: Tensor | None = None
    decoding: Decoding | None = None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row as it is read."""
        if self.decoding is not None:
            return self.decoding.row_shape
        return tuple(self.tensor.shape[1:])

    @property
    def shape(self) -> torch.Size:
        """Shape of all rows as they are read, ``(len(rows), *row_shape)``."""
        return torch.Size([len(self), *self.row_shape])

    @property
    def dtype(self) -> torch.dtype:
        """Element type in which rows are read."""
        return self.tensor.dtype if self.decoding is None else self.decoding.dtype

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return self.tensor.device

    @property
    def layout(self) -> torch.layout:
        """Dense."""
        return self.tensor.layout

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor requires gradients; decoding does not propagate them."""
        return self.decoding is None and self.tensor.requires_grad

    def dim(self) -> int:
        """Number of dimensions."""
        return 1 + len(self.row_shape)

    def numel(self) -> int:
        """Number of values."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes of a value as it is read."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the values are floats."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the values are complex."""
        return self.dtype.is_complex

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"stored rows must be read by [ids] or materialize() to become a tensor, got .{name}"
        )

    def __len__(self) -> int:
        rows = self.tensor if self.ids is None else self.ids
        return len(rows)

    def __getitem__(self, index: Any) -> Tensor:
        """The rows at a position, a slice, or a tensor of positions or booleans, as a copy."""
        if isinstance(index, int):
            return self[torch.tensor([index], device="cpu")][0]
        stored = self.tensor[index if self.ids is None else self.ids[index]]
        return stored if self.decoding is None else decode(self.decoding, stored.contiguous())

    def materialize(self) -> Tensor:
        """All rows as a new tensor of ``numel() * element_size()`` bytes."""
        if self.decoding is None:
            assert self.ids is not None
            return self.tensor.index_select(0, self.ids)
        out = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        step = rows_per_chunk(self.decoding.row_bytes, _CHUNK_BYTES)
        for begin in range(0, len(self), step):
            some = slice(begin, begin + step)
            stored = self.tensor[some if self.ids is None else self.ids[some]]
            decode(self.decoding, stored.contiguous(), out[some])
        return out


class IndexedRows(StoredRows):
    """Rows by reference: row ``i`` is ``source[ids[i]]``; nothing is copied before it is read.

    The wide fields of a partitioned graph's parts are such rows: all processes map the same file,
    and each reads it through the ids of its part. A graph, a ``FieldSet`` and the loaders accept it
    in place of a tensor.

    Args:
        source: Shape ``(num_source_rows, ...)``, on the CPU, dense; often a mapped file.
        ids: Rows of ``source``, shape ``(n,)``, int32 or int64, on the CPU; in any order, repeats
            allowed.

    Raises:
        TypeError: ``source`` or ``ids`` is not such a tensor.
        ValueError: ``ids`` is not 1-D, or an id is outside the source.

    Example:
        >>> rows = IndexedRows(torch.arange(8).view(4, 2), torch.tensor([3, 0]))
        >>> rows, rows[torch.tensor([1, 0])].tolist()
        (IndexedRows(shape=(2, 2), dtype=torch.int64, source_rows=4), [[0, 1], [6, 7]])
    """

    ids: Tensor

    def __init__(self, source: Tensor, ids: Tensor) -> None:
        check_dense("source", source)
        check_dense("ids", ids)
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be int32 or int64, got {ids.dtype}")
        if ids.dim() != 1 or source.dim() == 0:
            got = f"{ids.dim()}-D and a source of {source.dim()} dimensions"
            raise ValueError(f"ids must be 1-D and the source have rows, got {got}")
        check_range("ids", ids, len(source))
        super().__init__(source, ids)

    @property
    def source(self) -> Tensor:
        """The tensor whose rows these are."""
        return self.tensor

    def __repr__(self) -> str:
        return (
            f"IndexedRows(shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"source_rows={len(self.source)})"
        )


class NarrowRows(StoredRows):
    """Rows stored as float16, bfloat16 or int8, and read as float32 or float64.

    They take fewer bytes on disk, in a cache and over the bus, and are widened as they are
    gathered. A graph, a ``FieldSet`` and the loaders accept them in place of a tensor.

    A value ``x`` is read as the nearest number of the form, ties to even. The error is at most:

    - ``bfloat16``: ``2**-8 * |x|`` where ``|x| >= 2**-126``; the range is float32's.
    - ``float16``: ``2**-11 * |x|`` where ``|x| >= 2**-14``, else ``2**-25``. The largest number is
      65504.
    - ``int8``: ``s / 2``, plus a float32's rounding, where the row's scale ``s`` is its largest
      magnitude divided by 127. A row of zeros has scale 0. NaN and infinities cannot be stored; -0
      becomes 0.

    Args:
        stored: The stored rows: a dense CPU tensor, often a mapped file, or ``IndexedRows`` of one.
            float16 or bfloat16 of shape ``(n, ...)``. For int8, uint8 of shape ``(n, 4 + d)``: each
            row is its scale (a float32, little-endian) and its ``d`` values, so that one read
            fetches both.
        dtype: float32 or float64, the dtype of rows that are read.

    Attributes:
        form: The form of the stored rows; ``form.name`` is its name.
        decoding: How they become values.

    Raises:
        TypeError: ``stored`` is none of these.
        ValueError: Its shape does not fit the form, or ``dtype`` is another.

    Example:
        >>> rows = NarrowRows.of(torch.tensor([[1.0, -0.5], [0.0, 3.0]]), "int8")
        >>> rows, rows.stored.shape, rows[torch.tensor([1])].tolist()
        (NarrowRows(shape=(2, 2), dtype=torch.float32, form=int8), torch.Size([2, 6]), [[0.0, 3.0]])
    """

    decoding: Decoding

    def __init__(self, stored: Tensor | IndexedRows, dtype: torch.dtype = torch.float32) -> None:
        if not isinstance(stored, IndexedRows):
            check_dense("stored", stored)
        if stored.dtype not in _FORM_OF_DTYPE:
            raise TypeError(
                f"stored must be float16, bfloat16, or uint8 for int8, got {stored.dtype}"
            )
        if dtype not in WIDE:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        self.stored = stored
        self.form: RowForm = _FORM_OF_DTYPE[stored.dtype]
        decoding = Decoding(self.form, dtype, self.form.wide_shape(tuple(stored.shape)))
        if isinstance(stored, IndexedRows):
            super().__init__(stored.tensor, stored.ids, decoding)
        else:
            super().__init__(stored, None, decoding)

    @classmethod
    def of(cls, values: Any, form: str, *, dtype: torch.dtype | None = None) -> NarrowRows:
        """Store values in a form, in new memory.

        Args:
            values: Rows of float32 or float64, a tensor or ``IndexedRows``; 2-D for int8. Mapped
                files are read some rows at a time.
            form: "float16", "bfloat16" or "int8".
            dtype: The dtype of rows that are read. Default: that of ``values``.

        Raises:
            TypeError: ``values`` are not such rows.
            ValueError: ``form`` is another, or cannot hold a value; the error then names the row.
        """
        stored = NarrowingRows(values, form)
        # At least one chunk, even if it is empty: torch.cat takes no empty list.
        begins = range(0, max(1, len(values)), stored.chunk)
        parts = [stored[begin : begin + stored.chunk] for begin in begins]
        if dtype is None:
            dtype = stored.decoding.dtype
        return cls(torch.cat(parts), dtype)

    def __repr__(self) -> str:
        return f"NarrowRows(shape={tuple(self.shape)}, dtype={self.dtype}, form={self.form.name})"


class NarrowingRows:
    """Values that are encoded when a slice of them is read, for writers of files.

    Args:
        values: See :meth:`NarrowRows.of`.
        form: See :meth:`NarrowRows.of`.
        name: What the values are, for errors.

    Attributes:
        values: The values.
        dtype: Element type of the stored rows.
        shape: Shape of the stored rows.
        decoding: How the stored rows become values again.
        chunk: A good number of rows to encode at once.
    """

    def __init__(self, values: Any, form: str, name: str = "") -> None:
        chosen = form_of("form", form)
        if chosen is None:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got None")
        dtype = getattr(values, "dtype", None)
        if dtype not in WIDE:
            got = type(values) if dtype is None else dtype
            raise TypeError(f"values must be rows of float32 or float64, got {got}")
        dims = len(values.shape)
        if not dims or (chosen.head and dims != 2):
            rule = "2" if chosen.head else "1 or more"
            raise ValueError(f"values must have {rule} dimensions, got {dims}")
        self.values: Any = values
        self._of_name = f" of {name}" if name else ""
        self.decoding: Decoding = Decoding(chosen, values.dtype, tuple(values.shape[1:]))
        self.dtype: torch.dtype = chosen.dtype
        self.shape: tuple[int, ...] = (
            int(values.shape[0]),
            *chosen.row_shape(self.decoding.row_shape),
        )
        self.chunk: int = rows_per_chunk(self.decoding.row_bytes, _CHUNK_BYTES)

    def __getitem__(self, rows: slice) -> Tensor:
        """Encode a slice of the rows; ValueError if a value cannot be stored."""
        begin, end, _ = rows.indices(self.shape[0])
        form = self.decoding.form
        stored, bad, value = encode(form, self.values[begin:end])
        if bad >= 0:
            row = f"row {begin + bad}{self._of_name}"
            raise form.refusal(f"{form.name} must hold the values of {row}", value)
        return stored


def check_dense(name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is a dense CPU tensor."""
    got = type(value).__name__
    if isinstance(value, Tensor):
        if value.layout == torch.strided and value.device.type == "cpu":
            return
        got = f"{value.layout} on {value.device}"
    raise TypeError(f"{name} must be a dense CPU tensor, got {got}")


def rows_per_chunk(row_bytes: int, chunk_bytes: int) -> int:
    """Number of rows of ``row_bytes`` that fit into a chunk, at least one."""
    return max(1, chunk_bytes // max(1, row_bytes))


def encode(form: RowForm, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, int, float]:
    """Encode float32 or float64 rows in a form, rounding to nearest, ties to even.

    float64 is converted to float32 first, so its values are rounded twice.

    Args:
        form: The form.
        rows: Shape ``(n, ...)``, on the CPU.
        out: Contiguous memory for the stored rows. Default: new.

    Returns:
        The stored rows; the first row with a value that the form cannot hold (this row and later
        ones are not written), or -1; and that value, or the largest magnitude if all fit.
    """
    from . import _row_form

    width = math.prod(rows.shape[1:])
    if out is None:
        shape = (len(rows), *form.row_shape(tuple(rows.shape[1:])))
        out = torch.empty(shape, dtype=form.dtype, device="cpu")
    if not len(rows) or not width:
        return out.zero_(), -1, 0.0  # int8 rows without values still have a scale
    single = rows.detach().to(torch.float32).contiguous()
    worst = np.zeros(1, dtype=np.uint32)
    bits = single.view(-1).view(torch.int32).numpy().view(np.uint32)
    bad = int(
        _row_form.narrow_rows(
            bits, width, form.code, _words(out), width + form.head, np.uint32(form.limit), worst
        )
    )
    # A float64 beyond float32's range became infinite. bfloat16 would store that infinity, which
    # the user's values do not have.
    over = (single.isinf() & ~rows.isinf()).view(len(rows), -1).any(1).nonzero()
    if len(over) and (bad < 0 or int(over[0]) <= bad):
        bad = int(over[0])
        return out, bad, float(rows[bad].abs().nan_to_num(0.0, math.inf).max())
    return out, bad, float(worst.view(np.float32)[0])


def decode(decoding: Decoding, stored: Tensor, out: Tensor | None = None) -> Tensor:
    """Decode contiguous stored rows on the CPU, into ``out`` or new memory; thread-safe."""
    from . import _row_form

    if out is None:
        shape = (len(stored), *decoding.row_shape)
        out = torch.empty(shape, dtype=decoding.dtype, device="cpu")
    if not out.numel():
        return out
    if decoding.dtype != torch.float32 or not out.is_contiguous():
        # The kernel writes contiguous float32 only.
        return out.copy_(decoding.widened(stored))
    width = math.prod(decoding.row_shape)
    form = decoding.form
    bits = out.view(-1).view(torch.int32).numpy().view(np.uint32)
    _row_form.widen_rows(_words(stored), width + form.head, form.code, bits, width)
    return out


def _words(stored: Tensor) -> Any:
    """Contiguous stored rows as a flat NumPy array of their elements' bits."""
    flat = stored.reshape(-1)
    if flat.dtype != torch.uint8:
        flat = flat.view(torch.int16)  # torch converts no bfloat16 to NumPy
    return flat.numpy().view(_WORDS[stored.dtype])
