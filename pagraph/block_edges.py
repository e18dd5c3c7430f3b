"""Between the two ends of every edge and in-edges by destination, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from .csc import check_range

__all__ = ["compressed", "edge_pairs", "plain_tensor"]


def edge_pairs(indptr: Tensor, indices: Tensor) -> Tensor:
    """Sources and destinations of the edges in CSC order, shape ``(2, num_edges)``, int64."""
    pairs = torch.empty((2, len(indices)), dtype=torch.int64, device=indices.device)
    pairs[0] = indices
    vertices = torch.arange(len(indptr) - 1, device=indptr.device)
    pairs[1] = torch.repeat_interleave(vertices, indptr.diff(), output_size=len(indices))
    return pairs


def compressed(edge_index: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """The reverse: ``indptr`` and ``indices`` in the dtype of ``edge_index``, and which edge each is, int64.

    Raises:
        TypeError: ``edge_index`` is not a tensor of int32 or int64.
        ValueError: Its shape is not ``(2, num_edges)``, or an id is out of range.
    """
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a tensor, got {type(edge_index).__name__}")
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise ValueError(f"edge_index must have the shape (2, num_edges), got {tuple(edge_index.shape)}")
    if edge_index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"edge_index must hold int32 or int64, got {edge_index.dtype}")
    src, dst = plain_tensor(edge_index)
    check_range("edge_index[0]", src, num_src)
    check_range("edge_index[1]", dst, num_dst)
    dst, order = torch.sort(dst, stable=True)
    bounds = torch.arange(num_dst + 1, dtype=dst.dtype, device=dst.device)
    return torch.searchsorted(dst, bounds).to(dst.dtype), src[order], order


def plain_tensor(edge_index: Tensor) -> Tensor:
    """The memory of an ``edge_index``, also of PyG's ``EdgeIndex``, which from 2.6 on has none that torch knows of."""
    plain: Tensor = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index.as_subclass(Tensor)
    return plain
