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
            or the graph has several vertex types and ``node_type`` is not given.
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
    """Select the edges that a model learns to predict.

    Those of their field ``train_mask``, a random share, or all.

    Args:
        graph: The graph.
        fraction: Share of the edges of each type to draw, in (0, 1]; at least one is drawn.
        seed: Seed of the drawing.

    Returns:
        Edge ids in ascending order; a mapping from type for several edge types. If any type has a
        mask, only types with a mask are in it.

    Raises:
        ValueError: The fraction or a mask is wrong, or there is no edge.
    """
    sizes = {edge_type: graph.csc_of(edge_type).num_edges for edge_type in graph.edge_types}
    ids = {}
    if fraction is not None:
        for edge_type, size in sizes.items():
            # A type without edges has nothing to draw from; the others may have.
            if size:
                ids[edge_type] = _drawn(size, "edge", fraction, seed)
    else:
        for edge_type in graph.edge_types:
            fields = graph.edge_fields(edge_type)
            if "train_mask" in fields:
                ids[edge_type] = _selected("train_mask", fields["train_mask"], "edge")
        if not ids:
            for edge_type, size in sizes.items():
                ids[edge_type] = torch.arange(size, device="cpu")
    if not any(map(len, ids.values())):
        raise ValueError("graph must have at least 1 edge, got 0")
    return ids if len(graph.edge_types) > 1 else ids[graph.edge_types[0]]


def _drawn(count: int, what: str, fraction: float, seed: int) -> Tensor:
    """A random share of the ids below ``count``, in order."""
    if not 0 < fraction <= 1:
        raise ValueError(f"train_fraction must be in (0, 1], got {fraction}")
    if not count:
        raise ValueError(f"graph must have at least 1 {what}, got 0")
    # Orders of epochs use the keys (epoch, 1): the drawing has nothing to do with any of them.
    rng = np.random.Generator(np.random.Philox(key=derive_key(seed, 2)))
    # 0.29 * 100 is below 29 in floating point; the summand rounds such products up.
    size = max(1, math.floor(fraction * count + 1e-6))
    return torch.from_numpy(np.sort(rng.permutation(count)[:size]))


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
    """Check the seeds, vertices or with ``of_links`` edges of the graph, and count them.

    Raises:
        TypeError: They are not tensors of integers.
        ValueError: They are empty, not 1-D, or of a type that the graph does not have.
        IndexError: One is outside the graph.
    """
    what = "edge" if of_links else "vertex"
    sizes: Mapping[Any, int] = graph.num_nodes_by_type
    if of_links:
        sizes = {etype: graph.csc_of(etype).num_edges for etype in graph.edge_types}
    if isinstance(seeds, Mapping):
        by_type: Mapping[Any, Tensor] = seeds
    elif len(sizes) > 1:
        raise ValueError(f"seeds must be a mapping from {what} type for the types {list(sizes)}")
    else:
        by_type = {next(iter(sizes)): seeds}
    for kind, ids in by_type.items():
        name = f"seeds[{kind!r}]" if isinstance(seeds, Mapping) else "seeds"
        if kind not in sizes:
            raise ValueError(f"seeds must be of {what} types among {list(sizes)}, got {kind!r}")
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
        if ids.dim() != 1:
            raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
        check_range(name, ids, sizes[kind], IndexError)
    count = sum(map(len, by_type.values()))
    if not count:
        raise ValueError(f"seeds must hold at least 1 {what}, got 0")
    return count
