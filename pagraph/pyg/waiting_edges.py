"""WaitingEdges: a graph's edges as PyG's ``edge_index``, made on first use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..graph.csc import CSC
from ..graph.fields import FieldVersion
from ..system.threads import ForkLock

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
"""Properties and methods of a tensor that need no values."""


class WaitingEdges(Tensor):
    """The ``edge_index`` of a CSC; values are made on first use, and kept.

    Torch raises if its memory is accessed by other means than torch's functions.
    """

    _csc: CSC
    _made: Tensor | None
    _seen: FieldVersion
    _lock: ForkLock

    @staticmethod
    def of(csc: CSC) -> WaitingEdges:
        """The edges of ``csc``, without values yet."""
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
        """The compressed edges; None after a write to the plain tensor."""
        return (
            self._csc if self._made is None or FieldVersion.of(self._made) == self._seen else None
        )

    @property
    def plain(self) -> Tensor:
        """The plain tensor, made on first use."""
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
        """Call a torch function with the plain tensor, so that its version counts writes."""
        if function not in _OUTSIDE:
            args, kwargs = _plain(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """The same for operators that bypass :meth:`__torch_function__`."""
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
