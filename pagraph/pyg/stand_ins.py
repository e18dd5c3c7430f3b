"""Stand-ins: tensors that answer what PyG's ``filter_fn`` asks without doing the work again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .package import import_pyg

import_pyg()
from torch_geometric.utils import select  # noqa: E402


class _Gathered(Tensor):
    """An attribute whose rows were read already: PyG's ``torch.index_select`` gets them as they
    are."""

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


def standing_in(values: Tensor, rows: Tensor) -> Tensor:
    """``values`` in all but one thing: ``torch.index_select`` gives ``rows`` where their number
    fits."""
    stand_in = values.detach().as_subclass(_Gathered)
    stand_in.rows = rows
    return stand_in


def selected(values: Any, index: Tensor, dim: int = 0) -> Any:
    """PyG's ``select(values, index, dim)``; of a stand-in the rows at once."""
    if type(values) is _Gathered and dim == 0 and len(values.rows) == len(index):
        return values.rows
    return select(values, index.to(values.device) if isinstance(values, Tensor) else index, dim=dim)


class _End(Tensor):
    """One row of a tensor of shape ``(2, n)``: ``torch.stack`` of both rows gives that tensor, not
    a copy.

    For 170,000 edges the copy into fresh memory was 1.0 of the 6.5 ms that a batch took.
    """

    pair: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "stack" and len(args) == 1 and not (kwargs or {}).get("dim"):
            ends = args[0]
            if len(ends) == 2 and all(
                type(end) is cls and end.pair is ends[0].pair for end in ends
            ):
                pair: Tensor = ends[0].pair
                # In this order: PyG turns edges round by stacking the rows the other way.
                if ends[0].data_ptr() == pair.data_ptr() != ends[1].data_ptr():
                    return pair
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            # Of ``to``, which may give it itself.
            return result.as_subclass(Tensor) if type(result) is cls else result


def _apart(row: Any, col: Any) -> tuple[Any, Any]:
    """Both ends of some edges, as stand-ins where they are the rows of one tensor."""
    if not (
        type(row) is type(col) is Tensor
        and row.dtype == col.dtype
        and row.is_contiguous()
        and col.is_contiguous()
    ):
        return row, col
    begin = row.storage_offset()
    count = len(row)
    # Of no edges both rows begin at the same place.
    if not count or row._cdata == col._cdata or col.storage_offset() != begin + count:
        return row, col
    # Two tensors may lie at the same place of two memories.
    if row.untyped_storage().data_ptr() != col.untyped_storage().data_ptr():
        return row, col
    pair = row.as_strided((2, count), (count, 1), begin)
    ends = row.as_subclass(_End), col.as_subclass(_End)
    for end in ends:
        end.pair = pair
    return ends


def ends_apart(output: Any) -> Any:
    """A copy of a sampler's output whose ends of edges are stand-ins where they lie in one
    tensor."""
    if not hasattr(output, "row"):  # PyG says what a sampler must return
        return output
    output = copy.copy(output)
    if isinstance(output.row, Mapping):
        both = {etype: _apart(row, output.col[etype]) for etype, row in output.row.items()}
        output.row, output.col = ({etype: ends[i] for etype, ends in both.items()} for i in (0, 1))
    else:
        output.row, output.col = _apart(output.row, output.col)
    return output
