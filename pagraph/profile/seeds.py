"""Which vertices a profile trains on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..sampling.keys import derive_key

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["training_seeds"]


def training_seeds(
    graph: Graph, *, node_type: str | None = None, split: str = "", fraction: float | None = None, seed: int = 0
) -> Tensor:
    """The vertices that the field ``train_mask`` selects, or a random share of all.

    Args:
        graph: The graph.
        node_type: Type of the vertices. Default: the only one.
        split: What the mask's name begins with: ``"pub_"`` takes ``pub_train_mask``.
        fraction: Share of all vertices to draw, in (0, 1]; at least one is drawn. Default: the mask decides.
        seed: Of the drawing.

    Returns:
        Ids in ascending order, shape ``(n,)``, int64.

    Raises:
        ValueError: There is neither a mask nor a fraction, the mask selects nothing or is not a mask, the fraction is
            out of range, or the graph has no such vertices, or several types of them and none is named.
    """
    node_type = graph.only_node_type if node_type is None else node_type
    num_nodes = graph.num_nodes_of(node_type)
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise ValueError(f"train_fraction must be in (0, 1], got {fraction}")
        if not num_nodes:
            raise ValueError("graph must have at least 1 vertex, got 0")
        rng = np.random.Generator(np.random.Philox(key=derive_key(seed, 2)))
        count = max(1, math.floor(fraction * num_nodes + 1e-6))
        return torch.from_numpy(np.sort(rng.permutation(num_nodes)[:count]))
    name = f"{split}train_mask"
    mask = graph.node_fields(node_type).get(name)
    if mask is None:
        raise ValueError(f"graph must have the field {name}, or train_fraction must be given, it has neither")
    if mask.dim() != 1 or mask.is_floating_point() or mask.is_complex():
        raise ValueError(f"{name} must be a 1-D field of booleans, got {mask.dtype} {tuple(mask.shape)}")
    ids: Tensor = mask.bool().nonzero().squeeze(1)
    if not len(ids):
        raise ValueError(f"{name} must select at least 1 vertex, got 0")
    return ids
