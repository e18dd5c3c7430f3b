"""Stand-ins: tensors by which PyG's own code gets rows that were read already, instead of selecting them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["standing_in"]


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


def standing_in(values: Tensor, rows: Tensor) -> Tensor:
    """``values`` in all but one thing: ``torch.index_select`` gives ``rows`` where their number fits."""
    stand_in = values.detach().as_subclass(_Gathered)
    stand_in.rows = rows
    return stand_in
