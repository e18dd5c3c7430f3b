"""Stand-ins: tensors by which PyG's own code gets what was read or cut already, instead of selecting it again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["standing_in", "with_joined_ends"]


class _Gathered(Tensor):
    """An attribute whose rows were read already: PyG's ``torch.index_select`` gets them as they are."""

    rows: Tensor
    # What PyG asks of every attribute, answered without the detour through __torch_function__.
    device = torch.device("cpu")
    layout = torch.strided

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "index_select":  # not always the object that torch has under this name
            rows: Tensor = args[0].rows
            if len(args) == 3 and args[1] == 0 and len(args[2]) == len(rows):
                return rows
        with torch._C.DisableTorchFunctionSubclass():  # so that nothing made of it is a stand-in
            return func(*args, **(kwargs or {}))


class _End(Tensor):
    """One end of sampled edges, cut from an ``edge_index``: PyG's ``torch.stack`` of both gets it back, uncopied."""

    edge_index: Tensor
    other: _End | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "stack" and len(args) == 1 and len(args[0]) == 2 and not (kwargs or {}).get("dim"):
            first, second = args[0]
            if isinstance(first, cls) and first.other is second:
                return first.edge_index
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def standing_in(values: Tensor, rows: Tensor) -> Tensor:
    """``values`` in all but one thing: ``torch.index_select`` gives ``rows`` where their number fits."""
    stand_in = values.detach().as_subclass(_Gathered)
    stand_in.rows = rows
    return stand_in


def with_joined_ends(output: Any) -> Any:
    """A shallow copy of a sampler's output whose ends remember the ``edge_index`` they were cut from."""
    output = copy.copy(output)
    if isinstance(output.row, Mapping):
        ends = {etype: _ends(row, output.col.get(etype)) for etype, row in output.row.items()}
        output.col = {etype: ends[etype][1] if etype in ends else col for etype, col in output.col.items()}
        output.row = {etype: row for etype, (row, _) in ends.items()}
    else:
        output.row, output.col = _ends(output.row, output.col)
    return output


def _ends(row: Any, col: Any) -> tuple[Any, Any]:
    """Both ends, as stand-ins where they are the two rows of one tensor."""
    whole = _whole(row, col)
    if whole is None:
        return row, col
    first, second = row.as_subclass(_End), col.as_subclass(_End)
    first.edge_index, first.other, second.other = whole, second, None
    return first, second


def _whole(row: Any, col: Any) -> Tensor | None:
    """The contiguous tensor of which two tensors are the rows."""
    if type(row) is not Tensor or type(col) is not Tensor or row.dim() != 1 or row.shape != col.shape:
        return None
    count = len(row)
    adjacent = (
        row.dtype == col.dtype
        and row.is_contiguous()
        and col.is_contiguous()
        and col.storage_offset() == row.storage_offset() + count
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    )
    return row.as_strided((2, count), (count, 1)) if adjacent else None
