"""Training vertices of a profile, and checks of the seeds to measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..seeds.keys import derive_key

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = ["check_seeds", "training_seeds"]


def training_seeds(
    graph: Graph, *, node_type: str | None = None, split: str = "", fraction: float | None = None, seed: int = 0
) -> Tensor:
    """Select the vertices of the field ``train_mask``, or a random share of all.

    Args:
        graph: The graph.
        node_type: Type of the vertices. Default: the only one.
        split: Prefix of the mask's name: ``"pub_"`` takes ``pub_train_mask``.
        fraction: Share of all vertices to draw, in (0, 1]; at least one is drawn. Default: the mask decides.
        seed: Seed of the drawing.

    Returns:
        Ids in ascending order, shape ``(n,)``, int64.

    Raises:
        ValueError: There is neither a mask nor a fraction, one of them is wrong or selects nothing, or the graph has
            several types of vertices and none is named.
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


def check_seeds(graph: Graph, seeds: Tensor | Mapping[str, Tensor]) -> int:
    """Count the seeds; there must be at least 1, each a vertex of the graph.

    Raises:
        TypeError: They are not tensors of integers.
        ValueError: There is none, they are not 1-D, or of a type that the graph does not have.
        IndexError: One is outside the graph.
    """
    by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
    for ntype, ids in by_type.items():
        name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
        if ntype not in graph.node_types:
            raise ValueError(f"seeds must be of vertex types among {graph.node_types}, got {ntype!r}")
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
        if ids.dim() != 1:
            raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
        check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
    count = sum(len(ids) for ids in by_type.values())
    if not count:
        raise ValueError("seeds must hold at least 1 vertex, got 0")
    return count
