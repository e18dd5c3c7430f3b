"""IndexedRows: a field whose rows are rows of another tensor, by reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .csc import check_range

__all__ = ["IndexedRows", "check_dense"]


@dataclass(frozen=True, eq=False, repr=False)
class IndexedRows:
    """Rows by reference: row ``i`` is ``source[ids[i]]``; nothing is copied before it is read.

    The wide fields of a part of a partitioned graph: every process maps their one file, and reads
    through its own ids. A graph, a ``FieldSet`` and the loaders take it where they take a tensor.

    Attributes:
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

    source: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        check_dense("source", self.source)
        check_dense("ids", self.ids)
        if self.ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be int32 or int64, got {self.ids.dtype}")
        if self.ids.dim() != 1 or self.source.dim() == 0:
            got = f"{self.ids.dim()}-D and a source of {self.source.dim()} dimensions"
            raise ValueError(f"ids must be 1-D and the source have rows, got {got}")
        check_range("ids", self.ids, len(self.source))

    @property
    def shape(self) -> torch.Size:
        """Shape of the rows together, ``(len(ids), ...)``."""
        return torch.Size([len(self.ids), *self.source.shape[1:]])

    @property
    def dtype(self) -> torch.dtype:
        """The source's."""
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return self.source.device

    @property
    def layout(self) -> torch.layout:
        """Dense."""
        return self.source.layout

    @property
    def requires_grad(self) -> bool:
        """Whether the source does."""
        return self.source.requires_grad

    def dim(self) -> int:
        """Number of dimensions."""
        return self.source.dim()

    def numel(self) -> int:
        """Number of values."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes of a value."""
        return self.source.element_size()

    def is_floating_point(self) -> bool:
        """Whether the values are floats."""
        return self.source.is_floating_point()

    def is_complex(self) -> bool:
        """Whether the values are complex."""
        return self.source.is_complex()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"rows by reference must be read to be tensors: [ids] or materialize(), not .{name}"
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Tensor:
        """The rows at a position, a slice, or a tensor of positions or booleans; copies them."""
        return (
            self.source[self.ids[index]].clone()
            if isinstance(index, int)
            else self.source[self.ids[index]]
        )

    def materialize(self) -> Tensor:
        """All rows as a tensor of their own: ``numel() * element_size()`` bytes are copied."""
        return self.source.index_select(0, self.ids)

    def __repr__(self) -> str:
        return (
            f"IndexedRows(shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"source_rows={len(self.source)})"
        )


def check_dense(name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is a dense CPU tensor."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        got = (
            f"{value.layout} on {value.device}"
            if isinstance(value, Tensor)
            else type(value).__name__
        )
        raise TypeError(f"{name} must be a dense CPU tensor, got {got}")
