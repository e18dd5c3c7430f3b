"""Stand-ins: tensors that answer what PyG asks without doing the work again, or before it is
done."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..graph.csc import CSC
from ..graph.fields import FieldVersion
from ..system.threads import ForkLock
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
    # PyG asks each twice: a method of the tensor's own is no detour through __torch_function__.
    vars(stand_in)["dim"] = rows.dim
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


_FEW_EDGES = 2048
"""So few edges are copied in less time than stand-ins for their ends take to be made and asked; of
no edges both rows would begin at the same place."""


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
    count = row.shape[0]
    if count < _FEW_EDGES or row._cdata == col._cdata or col.storage_offset() != begin + count:
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


_PROPERTIES = [
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "requires_grad"),
    *(
        name
        for name in dir(Tensor)
        if name.startswith("is_") and not callable(getattr(Tensor, name))
    ),
]
_OUTSIDE = {
    *(getattr(Tensor, name).__get__ for name in _PROPERTIES),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.element_size),
    *(Tensor.__len__, Tensor.is_floating_point, Tensor.is_complex, Tensor.is_inference),
}
"""Answers of a tensor that need no values."""


class WaitingEdges(Tensor):
    """The ``edge_index`` of a CSC; the values are made when something needs them, and kept.

    What asks for memory past torch's own functions is refused by torch.
    """

    _csc: CSC
    _made: Tensor | None
    _seen: FieldVersion
    _lock: ForkLock

    @staticmethod
    def of(csc: CSC) -> WaitingEdges:
        """The edges of ``csc``, nothing made yet."""
        shape = (2, csc.num_edges)
        cpu = torch.device("cpu")
        edges: WaitingEdges = Tensor._make_wrapper_subclass(
            WaitingEdges, shape, dtype=torch.int64, device=cpu
        )
        edges._csc = csc
        edges._made = None
        edges._lock = ForkLock()
        return edges

    @property
    def csc(self) -> CSC | None:
        """The edges as they are compressed; None once the plain tensor was written to."""
        return (
            self._csc if self._made is None or FieldVersion.of(self._made) == self._seen else None
        )

    @property
    def plain(self) -> Tensor:
        """The plain tensor, made now if need be."""
        with self._lock:
            if self._made is None:
                with torch._C.DisableTorchFunctionSubclass():
                    made = self._csc.ends_by_id()
                    self._seen = FieldVersion.of(made)
                    self._made = made
            return self._made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch's with the plain tensor; writes are then seen as those to any
        other."""
        if function not in _OUTSIDE:
            args, kwargs = _plain(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """The same for what is called past :meth:`__torch_function__`."""
        args, kwargs = _plain(args, kwargs)
        return op(*args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"WaitingEdges(num_edges={self.shape[1]})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.plain.clone()


def _plain(args: Any, kwargs: Any) -> Any:
    return tree_map_only(WaitingEdges, lambda edges: edges.plain, (args, kwargs or {}))
