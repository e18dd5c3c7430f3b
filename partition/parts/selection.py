"""Some rows of a tensor, read when they are asked for: what a part's field is while it is written or compared."""

from __future__ import annotations

import torch
from torch import Tensor

from ...features.field import host_feature

__all__ = ["SelectedRows"]


class SelectedRows:
    """``source[ids]`` that is never there as a whole; the disk is asked for all pages of a slice at once.

    Args:
        source: A dense tensor of at least 1 dimension, perhaps mapped.
        ids: Rows of it, 1-D, int32 or int64.

    Example:
        >>> SelectedRows(torch.arange(8).view(4, 2), torch.tensor([3, 0, 3]))[1:].tolist()
        [[0, 1], [6, 7]]
    """

    def __init__(self, source: Tensor, ids: Tensor) -> None:
        self._feature = host_feature(source, torch.device("cpu"))
        self._ids = ids
        self.dtype = source.dtype
        self.shape = (len(ids), *source.shape[1:])

    def __getitem__(self, rows: slice) -> Tensor:
        """Some of the rows as a tensor of its own."""
        return self._feature.read(self._ids[rows])
