"""EdgeTimes: a field of edges or of their sources as the times of a CSC's edges, each row in the order of time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..csc import CSC, check_range
from ..errors import FormatError
from .made_of_fields import MadeOfFields

__all__ = ["EdgeTimes", "as_times", "edge_times", "source_times"]

_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class EdgeTimes:
    """The times of a CSC's edges: a private copy, which later writes to the field do not reach.

    Memory: 8 bytes an edge, and 4 or 8 more unless all rows are in the order of time.

    Args:
        csc: The edges; it is not kept.
        times: Shape ``(num_edges,)``, int64, in CSC order. It is changed.

    Attributes:
        values: Shape ``(num_edges,)``, int64: the times of each row, never decreasing.
        order: Shape ``(num_edges,)``, the dtype of the CSC's ids: the position in the CSC of the edge that each of
            ``values`` is of; equal times are in CSC order. None: every edge is where it was.
    """

    def __init__(self, csc: CSC, times: Tensor) -> None:
        from . import _times

        self.values = times
        self.order: Tensor | None = None
        indptr = csc.indptr.numpy()
        if not _times.rows_are_sorted(indptr, times.numpy()):
            self.order = torch.empty(len(times), dtype=csc.indices.dtype)
            _times.sort_rows(indptr, times.numpy(), self.order.numpy())

    @property
    def num_edges(self) -> int:
        """Edges of the CSC."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes + (0 if self.order is None else self.order.nbytes)

    def __repr__(self) -> str:
        return f"EdgeTimes(num_edges={self.num_edges}, sorted={self.order is None})"


_made: MadeOfFields[EdgeTimes] = MadeOfFields()


def edge_times(csc: CSC, values: Tensor, *, name: str = "values") -> EdgeTimes:
    """The times of a CSC's edges, made once and kept as long as both the CSC and the field live.

    Values that were written in place or replaced give new times. Safe from any number of threads.

    Args:
        csc: The edges.
        values: Shape ``(num_edges,)`` or ``(num_edges, 1)``, in the order of the edge ids, integers on the CPU.
        name: What errors call the values.

    Raises:
        TypeError: The values have another dtype, or are not on the CPU.
        ValueError: There is not one value per edge.
        FormatError: The CSC is damaged.
    """
    values = as_times(name, values, csc.num_edges, "edge")
    return _made.get(csc, values, lambda: EdgeTimes(csc, _by_edge(csc, values)), kind="edges")


def source_times(csc: CSC, values: Tensor, *, name: str = "values") -> EdgeTimes:
    """As :func:`edge_times`, where an edge has the time of its source vertex: ``values`` are of vertices."""
    values = as_times(name, values, csc.num_src, "vertex")
    return _made.get(csc, values, lambda: EdgeTimes(csc, _by_source(csc, values)), kind="sources")


def as_times(name: str, values: Any, count: int, owner: str) -> Tensor:
    """Times as a 1-D tensor of their own dtype, not copied.

    Args:
        name: What errors call them.
        values: Shape ``(count,)`` or ``(count, 1)``, integers on the CPU.
        count: How many there must be.
        owner: What each is of, for errors.

    Raises:
        TypeError: They are no integers, or not on the CPU.
        ValueError: There is not one for each.
    """
    if not isinstance(values, Tensor) or values.dtype not in _DTYPES:
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"{name} must be a tensor of integers, got {got}")
    if values.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got {values.device}")
    if values.shape not in ((count,), (count, 1)):
        raise ValueError(f"{name} must have one time per {owner} ({count}), got shape {tuple(values.shape)}")
    return values.detach().reshape(-1)


def _by_edge(csc: CSC, values: Tensor) -> Tensor:
    csc.check_rows()
    if csc.edge_ids is None:
        return values.to(torch.int64, copy=True).contiguous()
    check_range("edge_ids", csc.edge_ids, csc.num_edges, FormatError)
    return values.index_select(0, csc.edge_ids).long()


def _by_source(csc: CSC, values: Tensor) -> Tensor:
    csc.check_rows()
    check_range("indices", csc.indices, csc.num_src, FormatError)
    return values.index_select(0, csc.indices).long()
