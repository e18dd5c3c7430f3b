"""StoredRows: rows of a field that are picked from a tensor by ids, stored in fewer bytes, or
both."""

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
"""Wide values in memory at once while whole fields are converted. The kernels run at the speed of
memory from 1 MiB on; the rest amortises the call from Python and keeps reads of files long."""
_FORM_OF_DTYPE = {form.dtype: form for form in FORMS.values()}
# NumPy has neither bfloat16 nor torch's float16 kernels: stored values are handled as their bits.
_WORDS = {torch.float16: np.uint16, torch.bfloat16: np.uint16, torch.uint8: np.uint8}


@dataclass(frozen=True, eq=False, repr=False)
class StoredRows:
    """Rows of a field that must be looked up, decoded, or both, to become a tensor.

    Row ``i`` is ``tensor[ids[i]]``, decoded. Nothing is copied before rows are read. This
    constructor checks nothing: users call :class:`IndexedRows` and :class:`NarrowRows`.

    Attributes:
        tensor: The tensor in whose memory the rows lie, on the CPU, dense; often a mapped file.
        ids: Its row for each row of the field, int32 or int64, on the CPU; None: row ``i``.
        decoding: How its rows become values; None: they are values.
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
        """Whether the tensor requires gradients; they are not followed through a decoding."""
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
            f"stored rows must be read to be tensors: [ids] or materialize(), not .{name}"
        )

    def __len__(self) -> int:
        return len(self.tensor if self.ids is None else self.ids)

    def __getitem__(self, index: Any) -> Tensor:
        """The rows at a position, a slice, or a tensor of positions or booleans, in new memory."""
        if isinstance(index, int):
            return self[torch.tensor([index], device="cpu")][0]
        stored = self.tensor[index if self.ids is None else self.ids[index]]
        return stored if self.decoding is None else decode(self.decoding, stored.contiguous())

    def materialize(self) -> Tensor:
        """All rows as a tensor with its own memory, ``numel() * element_size()`` bytes."""
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

    The wide fields of a part of a partitioned graph: all processes map the same file, and each
    reads it through its own ids. A graph, a ``FieldSet`` and the loaders take it where they take a
    tensor.

    Args:
        source: Shape ``(num_source_rows, ...)``, on the CPU, dense; often a mapped file.
        ids: Rows of it, shape ``(n,)``, int32 or int64, on the CPU; in any order, repeats allowed.

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
        # One chunk of nothing where there are no rows: torch.cat takes no empty list.
        begins = range(0, max(1, len(values)), stored.chunk)
        parts = [stored[begin : begin + stored.chunk] for begin in begins]
        return cls(torch.cat(parts), stored.decoding.dtype if dtype is None else dtype)

    def __repr__(self) -> str:
        return f"NarrowRows(shape={tuple(self.shape)}, dtype={self.dtype}, form={self.form.name})"


class NarrowingRows:
    """Values in a form, encoded when a slice of them is read; for writers of files.

    Args:
        values: As :meth:`NarrowRows.of` takes them.
        form: The same.
        name: What they are, for errors.

    Attributes:
        values: The values.
        dtype, shape: Of the stored rows.
        decoding: How they become values again.
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
        """Some of the stored rows; ValueError where a value cannot be stored."""
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
    """How many rows of ``row_bytes`` a chunk holds, at least one."""
    return max(1, chunk_bytes // max(1, row_bytes))


def encode(form: RowForm, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, int, float]:
    """Store float32 or float64 rows in a form, each value as the nearest, ties to even.

    float64 goes by way of float32, so that a value is rounded twice.

    Args:
        form: The form.
        rows: Shape ``(n, ...)``, on the CPU.
        out: Contiguous memory for the stored rows. Default: new.

    Returns:
        The stored rows; -1, or the first row with a value that the form cannot hold (those from
        it on are not written); the largest magnitude up to there: that value, if there is one.
    """
    from . import _row_form

    width = math.prod(rows.shape[1:])
    if out is None:
        shape = (len(rows), *form.row_shape(tuple(rows.shape[1:])))
        out = torch.empty(shape, dtype=form.dtype, device="cpu")
    if not len(rows) or not width:
        return out.zero_(), -1, 0.0  # int8 rows of no values still have a scale
    single = rows.detach().to(torch.float32).contiguous()
    worst = np.zeros(1, dtype=np.uint32)
    bits = single.view(-1).view(torch.int32).numpy().view(np.uint32)
    bad = int(
        _row_form.narrow_rows(
            bits, width, form.code, _words(out), width + form.head, np.uint32(form.limit), worst
        )
    )
    # A float64 beyond float32's range became infinite on the way: bfloat16 would store that as an
    # infinity, which the user did not have.
    over = (single.isinf() & ~rows.isinf()).view(len(rows), -1).any(1).nonzero()
    if len(over) and (bad < 0 or int(over[0]) <= bad):
        bad = int(over[0])
        return out, bad, float(rows[bad].abs().nan_to_num(0.0, math.inf).max())
    return out, bad, float(worst.view(np.float32)[0])


def decode(decoding: Decoding, stored: Tensor, out: Tensor | None = None) -> Tensor:
    """Stored rows, contiguous and on the CPU, as values, in new memory or in ``out``; safe from
    any thread."""
    from . import _row_form

    if out is None:
        shape = (len(stored), *decoding.row_shape)
        out = torch.empty(shape, dtype=decoding.dtype, device="cpu")
    if not out.numel():
        return out
    if decoding.dtype != torch.float32 or not out.is_contiguous():
        # The kernel writes the bits of float32 only, one after the other.
        return out.copy_(decoding.widened(stored))
    width = math.prod(decoding.row_shape)
    form = decoding.form
    bits = out.view(-1).view(torch.int32).numpy().view(np.uint32)
    _row_form.widen_rows(_words(stored), width + form.head, form.code, bits, width)
    return out


def _words(stored: Tensor) -> Any:
    """Contiguous stored rows as a flat NumPy array of unsigned integers, one for each element."""
    flat = stored.reshape(-1)
    if flat.dtype != torch.uint8:
        flat = flat.view(torch.int16)  # torch hands no bfloat16 to NumPy
    return flat.numpy().view(_WORDS[stored.dtype])
