"""Fields of vertices and edges: dictionaries of rows by name, and versions that show writes."""

from __future__ import annotations

import difflib
import math
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from .._late import call_late
from ..system.units import shortened
from .csc import writeable
from .stored_rows import IndexedRows, NarrowRows, StoredRows
from .watched import file_behind, writes_of, written_files

FieldValue = Tensor | IndexedRows | NarrowRows
"""Values of a field."""


V = TypeVar("V")
Default = TypeVar("Default")
# Graphs may have hundreds of fields: a repr is cut to this many characters.
_LONGEST_FIELDS = 300


def nearest(name: object, names: Iterable[object]) -> str:
    """The end of an error about a wrong name, which suggests a similar one; "" if none is."""
    if not isinstance(name, str):
        return ""
    near = difflib.get_close_matches(name, [each for each in names if isinstance(each, str)], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_name(name: object, names: Iterable[object], what: str) -> KeyError:
    """The error for a name that is not among ``names``."""
    have = list(names)
    return KeyError(
        f"{what} must be one of {shortened(have)}, got {shortened(repr(name))}{nearest(name, have)}"
    )


def rows_text(fields: Mapping[str, Any]) -> str:
    """Names, dtypes and shapes of fields, on one line.

    >>> rows_text({"feat": torch.zeros(3, 4), "label": torch.zeros(3, dtype=torch.int64)})
    'feat: float32 [3, 4], label: int64 [3]'
    """
    parts = []
    for name, rows in fields.items():
        dtype = str(rows.dtype).removeprefix("torch.")
        parts.append(f"{name}: {dtype} {list(rows.shape)}")
    return shortened(", ".join(parts), _LONGEST_FIELDS)


@dataclass(frozen=True)
class FrameColumn:
    """A column of a ``TensorFrame`` that is stored as, or within, one field.

    Attributes:
        name: Name of the column.
        width: Numbers per row.
        stats: Its statistics, keyed by the names of PyTorch Frame's ``StatType``: numbers, words
            and lists of these, None for NaN.
    """

    name: str
    width: int = 1
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FieldNote:
    """What the numbers of a field mean.

    Attributes:
        unit: For times, "seconds", "microseconds" or "nanoseconds" since 1970; else empty.
        words: For codes, the word of each number, from 0 on.
        frame: For a part of a ``TensorFrame``, its columns.
    """

    unit: str = ""
    words: tuple[str, ...] = ()
    frame: tuple[FrameColumn, ...] = ()


# Libraries whose columns have types that NumPy may lack: dates, categories, missing integers.
_TYPED = ("polars", "pyarrow", "duckdb", "_duckdb")


def _is_typed(value: Any) -> bool:
    """Whether converting the values to a NumPy array would lose some of their types."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind == "M")
    module = type(value).__module__.partition(".")[0]
    if module != "pandas":
        has_rows = hasattr(value, "__arrow_c_stream__") and not hasattr(value, "__array__")
        return module in _TYPED or has_rows
    # Numbers of a single NumPy dtype convert without loss.
    dtypes = set(value.dtypes) if value.ndim == 2 else {value.dtype}
    return len(dtypes) != 1 or not all(
        isinstance(dtype, np.dtype) and dtype.kind in "biufc" for dtype in dtypes
    )


class Named(dict[str, V]):
    """A dictionary by name, such as a batch's rows; its KeyError lists the names."""

    def __missing__(self, name: str) -> NoReturn:
        # dict calls this only when it finds nothing, so look-ups are as fast as dict's.
        raise unknown_name(name, self, "field")


class Fields(Named[Any]):
    """A dictionary from name to rows: tensors, ``IndexedRows`` or ``NarrowRows``.

    Anything else is converted to a tensor. For type checkers ``fields[name]`` is a tensor, since
    only rows given by reference or in fewer bytes are not.

    Args:
        owner: What the rows belong to, for errors: "vertex" or "edge".
        rows: Number of rows that each field must have.
        fields: The initial fields.

    Attributes:
        notes: What the numbers of some fields mean. Assigning a field drops its note.
        columns: The columns of a table that some fields were read from. Assigning a field drops
            its entry.

    Raises:
        ValueError: An assigned field has another number of rows.
        TypeError: Its rows are not numbers.
    """

    def __init__(self, owner: str, rows: int, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._owner = owner
        self._rows = rows
        self.notes: dict[str, FieldNote] = {}
        self.columns: dict[str, str] = {}
        self.update(fields or {})

    def __setitem__(self, name: str, value: Any) -> None:
        rows = value
        note = None
        if _is_typed(value):
            rows, note = call_late("typed_rows", name, value)
        elif not isinstance(value, FieldValue):
            rows = self._as_tensor(name, value)
        got = rows.shape[0] if rows.dim() else "a scalar"
        if got != self._rows:
            rule = f"one row per {self._owner} ({self._rows})"
            raise ValueError(f"field {shortened(repr(name))} must have {rule}, got {got}")
        super().__setitem__(name, rows)
        self.notes.pop(name, None)
        self.columns.pop(name, None)
        if note:
            self.notes[name] = note

    if TYPE_CHECKING:

        def __getitem__(self, name: str) -> Tensor: ...

        @overload  # type: ignore[override]  # dict's own takes a default of Any as well
        def get(self, name: str, /) -> Tensor | None: ...

        @overload
        def get(self, name: str, default: Default, /) -> Tensor | Default: ...

        def get(self, name: str, default: Any = None, /) -> Any:
            """Like ``dict.get``."""

    @staticmethod
    def _as_tensor(name: str, value: Any) -> Tensor:
        # This includes columns of pandas, which torch would read element by element.
        if hasattr(value, "__array__"):
            value = writeable(np.asarray(value))
        try:
            return torch.as_tensor(value, device="cpu")
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"field {shortened(repr(name))} must be a tensor or rows of numbers: {error}"
            ) from None

    # dict's own methods would bypass the checks of __setitem__.

    def update(self, *fields: Any, **more: Any) -> None:
        """Like ``dict.update``; entries before an invalid one are kept."""
        for name, value in dict(*fields, **more).items():
            self[name] = value
        # Values copied from another graph keep their meaning.
        for given in fields:
            self.notes.update(getattr(given, "notes", {}))

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Like ``dict.setdefault``."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, fields: Any) -> Fields:  # type: ignore[override,misc]
        self.update(fields)
        return self

    def __repr__(self) -> str:
        # dict's own would print millions of values and read files.
        return f"Fields({rows_text(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # dict's own would call __setitem__ before __init__ has set the number of rows.
        return _fields_of, (type(self), self._owner, self._rows, dict(self), self.notes)


def _fields_of(
    kind: type[Fields], owner: str, rows: int, values: dict[str, Any], notes: dict[str, FieldNote]
) -> Fields:
    """Fields that were pickled or copied."""
    made = kind(owner, rows, values)
    made.notes.update(notes)
    return made


@dataclass(frozen=True, eq=False, repr=False)
class FieldVersion:
    """A tensor's memory, layout and write count at one moment, to compare with a later one.

    Equal versions mean equal values, unless they were written behind torch's back (through a NumPy
    view or ``tensor.data``). Writes to the file behind a tensor count once they are found, when an
    epoch begins. Memory is identified by a weak reference: so a version keeps no replaced tensor
    alive, and a new tensor at the same address is not mistaken for the old one. Tensors made in
    inference mode count no writes, so their versions equal nothing, not even themselves. ``ids`` is
    the version of the ids of rows by reference, else None.
    """

    storage: weakref.ref[torch.UntypedStorage]
    layout: tuple[object, ...]
    writes: int | None
    ids: FieldVersion | None = None

    @classmethod
    def of(cls, values: FieldValue) -> FieldVersion:
        """The version of a field's values now."""
        if isinstance(values, Tensor):
            return cls._of(values)
        ids = None if values.ids is None else cls._of(values.ids)
        # The same stored rows may be read in float32 and in float64.
        read_as = () if values.decoding is None else (values.dtype,)
        return cls._of(values.tensor, read_as, ids)

    @classmethod
    def _of(
        cls, tensor: Tensor, read_as: tuple[object, ...] = (), ids: FieldVersion | None = None
    ) -> FieldVersion:
        storage = tensor.untyped_storage()
        layout = (
            storage.data_ptr(),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
            *read_as,
        )
        writes = None if tensor.is_inference() else tensor._version
        if written_files and writes is not None:
            writes += writes_of(storage)
        return cls(weakref.ref(storage), layout, writes, ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FieldVersion):
            return NotImplemented
        if self.writes is None or self.writes != other.writes or self.layout != other.layout:
            return False
        if self.ids != other.ids:
            return False
        # A dead reference equals nothing: another storage may now be at its address.
        storage = self.storage()
        return storage is not None and storage is other.storage()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FieldVersion(shape={self.layout[2]}, dtype={self.layout[4]}, writes={self.writes})"


def check_files(values: FieldValue) -> None:
    """Raise FormatError if a file behind a field's values can no longer be read as it was."""
    ids = None if isinstance(values, Tensor) else values.ids
    for tensor in (stored_tensor(values), ids):
        if tensor is None or tensor.device.type != "cpu" or tensor.layout != torch.strided:
            continue
        file = file_behind(tensor)
        if file is not None:
            file.check()


def stored_tensor(values: Tensor | StoredRows) -> Tensor:
    """The tensor that holds the rows as they are stored."""
    return values if isinstance(values, Tensor) else values.tensor


def stored_row_bytes(values: FieldValue) -> int:
    """Bytes of a row as it is stored on disk or in a cache, and sent over a bus."""
    stored = stored_tensor(values)
    return math.prod(stored.shape[1:]) * stored.element_size()


def materialized(values: FieldValue) -> Tensor:
    """The values as a tensor; rows by reference and rows in fewer bytes are copied."""
    return values if isinstance(values, Tensor) else values.materialize()


def is_single(value: Any) -> bool:
    """Whether a value is None, one number or one word, which describes a graph and is no field."""
    if isinstance(value, Tensor):
        return value.numel() <= 1
    if isinstance(value, np.ndarray):
        return value.size <= 1
    return value is None or isinstance(
        value, str | bytes | bool | int | float | complex | np.generic
    )


def mask_of(fields: Mapping[str, FieldValue], name: str) -> Tensor | None:
    """The vertex field ``name`` as a boolean mask; None if there is no such field.

    Raises:
        ValueError: It is not 1-D.
    """
    values = fields.get(name)
    if values is None:
        return None
    if values.dim() != 1:
        shape = tuple(values.shape)
        raise ValueError(f"{name} must have one value for each vertex, got shape {shape}")
    return materialized(values).bool()
