"""NarrowColumn: a DGL column of rows in fewer bytes, widened where they are read."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..graph.narrow_rows import NarrowRows
from .graphbolt import import_dgl

import_dgl()
from dgl.frame import Column, Scheme, _LazyIndex  # noqa: E402

__all__ = ["NarrowColumn", "narrow_rows"]


class NarrowColumn(Column):
    """Rows in fewer bytes as a column; single rows are read for blocks, subgraphs and DGL's loader.

    As ``ndata[...]`` DGL reads the whole column, which is a tensor of its own from then on.
    """

    def __init__(self, rows: NarrowRows) -> None:
        super().__init__(rows, Scheme(rows.decoding.row_shape, rows.dtype))
        self.storage: Any
        self.index: Any

    @property
    def data(self) -> Tensor:
        """The values; DGL's own attribute."""
        rows, index = self.storage, self.index
        if isinstance(rows, NarrowRows):
            ids = index.flatten() if isinstance(index, _LazyIndex) else index
            values = rows.materialize() if ids is None else rows[ids.cpu()]
            self.index, self.storage = None, values
        result: Tensor = Column.data.fget(self)
        return result

    @data.setter
    def data(self, values: Tensor) -> None:
        Column.data.fset(self, values)

    def clone(self) -> Any:
        """Like that of a column."""
        return _narrow(super().clone())

    def subcolumn(self, rowids: Any) -> Any:
        """Like that of a column; nothing is read yet."""
        return _narrow(super().subcolumn(rowids))

    def astype(self, new_dtype: Any) -> Any:
        """Like that of a column; the values are read."""
        _ = self.data
        return super().astype(new_dtype)

    def fetch(self, indices: Tensor, device: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        """Like that of a column; only the rows are read."""
        rows = narrow_rows(self)
        if rows is None:
            return super().fetch(indices, device, pin_memory=pin_memory, **kwargs)
        return rows[indices.cpu()].to(device)


def _narrow(column: Any) -> Any:
    column.__class__ = NarrowColumn
    return column


def narrow_rows(column: Any) -> NarrowRows | None:
    """The rows in fewer bytes that a column is; None: it is none, was read as a whole, or waits to be changed."""
    rows = column.storage
    waits = column.index is not None or column.device is not None or column.deferred_dtype is not None
    return rows if isinstance(rows, NarrowRows) and not waits else None
