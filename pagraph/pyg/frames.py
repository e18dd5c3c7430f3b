"""Attributes that are PyTorch Frame's ``TensorFrame``s: dense parts, and frames of read rows.

PyTorch Frame is not imported here: an attribute can be a frame only after the user imported it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

Y = "y"
"""The target part of a frame; the others are named by their semantic types."""


def is_frame(value: Any) -> bool:
    """Whether a value is a ``TensorFrame``."""
    # Also None while PyTorch Frame is being imported.
    of_frame = getattr(sys.modules.get("torch_frame"), "TensorFrame", None)
    return of_frame is not None and isinstance(value, of_frame)


def dense_parts(frame: Any) -> list[tuple[Any, Tensor]]:
    """The parts of a frame that have a row of one tensor for each of its rows, and these tensors.

    Empty for a subclass, which may select rows in its own way.
    """
    # `is_frame` inlined, also below: this runs for each part of each type of a batch.
    if type(frame) is not getattr(sys.modules.get("torch_frame"), "TensorFrame", None):
        return []
    count = len(frame)
    # No dictionary: PyTorch Frame's types are members of an enumeration, which Python hashes.
    parts = []
    for part, features in [*frame.feat_dict.items(), (Y, frame.y)]:
        if features is None:
            continue
        values = features if isinstance(features, Tensor) else _values_of(features)
        # Parts of other lengths are left to the frame's own methods, which raise.
        if values is not None and values.dim() and values.shape[0] == count:
            parts.append((part, values))
    return parts


def dense_part(frame: Any, part: Any) -> Tensor | None:
    """One of :func:`dense_parts`, or None."""
    if type(frame) is not getattr(sys.modules.get("torch_frame"), "TensorFrame", None):
        return None
    features = frame.y if part == Y else frame.feat_dict.get(part)
    values = features if isinstance(features, Tensor) else _values_of(features)
    fits = values is not None and values.dim() and values.shape[0] == len(frame)
    return values if fits else None


def _values_of(features: Any) -> Tensor | None:
    """The tensor of a ``MultiEmbeddingTensor``: concatenated columns of several widths."""
    made_by = getattr(sys.modules.get("torch_frame.data"), "MultiEmbeddingTensor", None)
    if made_by is None or type(features) is not made_by:
        return None
    values: Tensor = features.values
    return values


def part_name(part: Any) -> str:
    """Name of a part: ``numerical``, ``y``."""
    return str(getattr(part, "_value_", part))


_UNREAD: tuple[Any, Any] = (None, None)


class Gathered:
    """A frame with parts that were read ahead: selecting rows returns these unchanged.

    Mixed into PyTorch Frame's class, so that PyG takes it for one.

    Attributes:
        whole: The frame.
        read: The parts whose rows were read, and these, by the names of the parts.
    """

    feat_dict: dict[Any, Any]
    col_names_dict: dict[Any, list[str]]
    y: Any
    whole: Any
    read: dict[str, tuple[Any, Tensor]]

    def __getitem__(self, index: Tensor) -> Any:
        frame = self.whole
        made = object.__new__(type(frame))
        vars(made).update(vars(frame))
        count = len(index)
        made.feat_dict = {}
        for part, features in frame.feat_dict.items():
            # As `part_name` and `_select` have it, without the calls.
            of, rows = self.read.get(getattr(part, "_value_", part), _UNREAD)
            if of != part or not isinstance(features, Tensor) or rows.shape[0] != count:
                rows = self._select(part, index)
            made.feat_dict[part] = rows
        # A copy: adding a column to a batch must not change the data.
        made.col_names_dict = dict(frame.col_names_dict)
        if frame.y is not None:
            made.y = self._select(Y, index)
        if getattr(frame, "_num_rows", None) is not None:
            made._num_rows = count
        return made

    def _select(self, part: Any, index: Tensor) -> Any:
        features = self.whole.y if part == Y else self.whole.feat_dict[part]
        of, rows = self.read.get(part_name(part), _UNREAD)
        if of != part or len(rows) != len(index):
            if isinstance(features, dict):
                return {name: one[index] for name, one in features.items()}
            return features[index]
        if isinstance(features, Tensor):
            return rows
        return type(features)(len(rows), features.num_cols, rows, features.offset)


_gathered: dict[Any, Any] = {}
"""PyTorch Frame's class to its subclass of :class:`Gathered`."""


def with_rows(frame: Any, read: dict[str, tuple[Any, Tensor]]) -> Any:
    """A frame that gives the rows that were ``read`` when as many are selected of it; see
    :class:`Gathered`."""
    of_frame = type(frame)
    if of_frame not in _gathered:
        # Parts that were not read are selected on the CPU, or move the ids themselves.
        members = {"device": torch.device("cpu")}
        _gathered[of_frame] = type("GatheredFrame", (Gathered, of_frame), members)
    gathered = object.__new__(_gathered[of_frame])
    vars(gathered).update(vars(frame), whole=frame, read=read)
    return gathered
