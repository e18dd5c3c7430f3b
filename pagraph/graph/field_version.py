"""FieldVersion: which tensor a field was, and how often it had been written."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .field_value import FieldValue
from .indexed_rows import IndexedRows
from .narrow_rows import NarrowRows

__all__ = ["FieldVersion"]


@dataclass(frozen=True, eq=False, repr=False)
class FieldVersion:
    """A tensor's memory, layout and write count at one moment, to be compared with a later moment.

    Equal versions mean that the values are the same, unless they were written behind torch's back
    (through a NumPy view, ``tensor.data``, or by another process). The memory is known by a weak
    reference, so a version neither keeps a replaced tensor alive nor takes a new tensor at the same
    address for the old one. Tensors made in inference mode count no writes: their versions equal
    nothing, not even themselves. ``ids`` is the version of the ids of ``IndexedRows``, None for a
    tensor.
    """

    storage: weakref.ref[torch.UntypedStorage]
    layout: tuple[object, ...]
    writes: int | None
    ids: FieldVersion | None = None

    @classmethod
    def of(cls, values: FieldValue) -> FieldVersion:
        """The version of a field's values now."""
        if isinstance(values, NarrowRows):
            stored = cls.of(values.stored)
            return replace(stored, layout=(*stored.layout, values.dtype))
        if isinstance(values, IndexedRows):
            return replace(cls._of(values.source), ids=cls._of(values.ids))
        return cls._of(values)

    @classmethod
    def _of(cls, tensor: Tensor) -> FieldVersion:
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
        )
        return cls(weakref.ref(storage), layout, None if tensor.is_inference() else tensor._version)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FieldVersion):
            return NotImplemented
        if self.writes is None or self.writes != other.writes or self.layout != other.layout:
            return False
        if self.ids != other.ids:
            return False
        storage = self.storage()
        return storage is not None and storage is other.storage()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FieldVersion(shape={self.layout[2]}, dtype={self.layout[4]}, writes={self.writes})"
