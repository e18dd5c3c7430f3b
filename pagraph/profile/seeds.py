"""Training vertices and edges of a profile, and checks of the seeds to measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..graph.fields import materialized
from ..seeds.keys import derive_key

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph


def training_seeds(
    graph: Graph,
    *,
    node_type: str | None = None,
    split: str = "",
    fraction: float | None = None,
    seed: int = 0,
) -> Tensor:
    """Select the vertices of the field ``train_mask``, or a random share of all.

    Args:
        graph: The graph.
        node_type: Type of the vertices. Default: the only one.
        split: Prefix of the mask's name: ``"pub_"`` takes ``pub_train_mask``.
        fraction: Share of all vertices to draw, in (0, 1]; at least one is drawn. Default: the mask
            decides.
        seed: Seed of the drawing.

    Returns:
        Ids in ascending order, shape ``(n,)``, int64.

    Raises:
        ValueError: There is neither a mask nor a fraction, one of them is wrong or selects nothing,
            or the graph has several types of vertices and none is named.
    """
    node_type = graph.only_node_type if node_type is None else node_type
    if fraction is not None:
        return _drawn(graph.num_nodes_of(node_type), "vertex", fraction, seed)
    name = f"{split}train_mask"
    mask = graph.node_fields(node_type).get(name)
    if mask is None:
        raise ValueError(
            f"graph must have the field {name}, or train_fraction must be given, it has neither"
        )
    return _selected(name, mask, "vertex")


def training_edges(
    graph: Graph, *, fraction: float | None = None, seed: int = 0
) -> Tensor | dict[EdgeType, Tensor]:
    """Select the edges that a model learns to predict: those of their field ``train_mask``, a
    random share, or all.

    Args:
        graph: The graph.
        fraction: Share of the edges of each type to draw, in (0, 1]; at least one is drawn.
        seed: Seed of the drawing.

    Returns:
        Edge ids in ascending order; of a graph with several edge types by type, where any has a
        mask of those alone.

    Raises:
        ValueError: The fraction or a mask is wrong, or there is no edge.
    """
    masks = {
        t: fields["train_mask"]
        for t in graph.edge_types
        if "train_mask" in (fields := graph.edge_fields(t))
    }
    if fraction is not None:
        ids = {
            t: _drawn(n, "edge", fraction, seed)
            for t in graph.edge_types
            if (n := graph.csc_of(t).num_edges)
        }
    elif masks:
        ids = {etype: _selected("train_mask", mask, "edge") for etype, mask in masks.items()}
    else:
        ids = {t: torch.arange(graph.csc_of(t).num_edges, device="cpu") for t in graph.edge_types}
    if not any(map(len, ids.values())):
        raise ValueError("graph must have at least 1 edge, got 0")
    return ids if len(graph.edge_types) > 1 else ids[graph.edge_types[0]]


def _drawn(count: int, what: str, fraction: float, seed: int) -> Tensor:
    """A random share of so many ids, in order."""
    if not 0 < fraction <= 1:
        raise ValueError(f"train_fraction must be in (0, 1], got {fraction}")
    if not count:
        raise ValueError(f"graph must have at least 1 {what}, got 0")
    rng = np.random.Generator(np.random.Philox(key=derive_key(seed, 2)))
    return torch.from_numpy(
        np.sort(rng.permutation(count)[: max(1, math.floor(fraction * count + 1e-6))])
    )


def _selected(name: str, mask: Any, what: str) -> Tensor:
    """The ids that a mask selects."""
    if mask.dim() != 1 or mask.is_floating_point() or mask.is_complex():
        raise ValueError(
            f"{name} must be a 1-D field of booleans, got {mask.dtype} {tuple(mask.shape)}"
        )
    ids = materialized(mask).bool().nonzero().squeeze(1)
    if not len(ids):
        raise ValueError(f"{name} must select at least 1 {what}, got 0")
    return ids


def check_seeds(
    graph: Graph, seeds: Tensor | Mapping[Any, Tensor], *, of_links: bool = False
) -> int:
    """Count the seeds; there must be at least 1, each a vertex of the graph, or with ``of_links``
    an edge.

    Raises:
        TypeError: They are not tensors of integers.
        ValueError: There is none, they are not 1-D, or of a type that the graph does not have.
        IndexError: One is outside the graph.
    """
    what = "edge" if of_links else "vertex"
    sizes: Mapping[Any, int] = graph.num_nodes_by_type
    if of_links:
        sizes = {etype: graph.csc_of(etype).num_edges for etype in graph.edge_types}
    if not isinstance(seeds, Mapping) and len(sizes) > 1:
        raise ValueError(f"seeds must be a mapping from {what} type for the types {list(sizes)}")
    for kind, ids in seeds.items() if isinstance(seeds, Mapping) else [(next(iter(sizes)), seeds)]:
        name = f"seeds[{kind!r}]" if isinstance(seeds, Mapping) else "seeds"
        if kind not in sizes:
            raise ValueError(f"seeds must be of {what} types among {list(sizes)}, got {kind!r}")
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
        if ids.dim() != 1:
            raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
        check_range(name, ids, sizes[kind], IndexError)
    count = sum(map(len, seeds.values())) if isinstance(seeds, Mapping) else len(seeds)
    if not count:
        raise ValueError(f"seeds must hold at least 1 {what}, got 0")
    return count
