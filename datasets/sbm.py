"""Degree-corrected stochastic block models (Karrer and Newman, 2011) with labels and features to learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.graph import Graph, id_dtype
from ..seeds.keys import derive_key
from ..system.checks import as_integer
from .edges import Ids, drop_repeats, graph_of, mirror
from .random_fields import check_fractions, for_ranges, random_bits, random_labels, random_masks, random_normal

__all__ = [
    "MAX_NODES",
    "Blocks",
    "alias_tables",
    "check_model",
    "draw_edges",
    "noisy_features",
    "pair_shares",
    "power_weights",
    "sbm",
]

MAX_NODES = 2**31 - 1
"""Largest number of vertices of a type, which tables keep as int32."""


def sbm(
    num_nodes: int,
    *,
    num_edges: int | None = None,
    num_classes: int = 10,
    homophily: float = 0.55,
    exponent: float = 2.5,
    num_features: int = 64,
    feature_noise: float = 0.45,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Generate an undirected graph (both directions stored) whose labels a GNN can learn and an MLP cannot.

    A vertex's features are its class centroid plus noise, but for a share ``feature_noise`` of the vertices
    the centroid of a random class: no model that sees the features alone can be right more often than
    ``1 - feature_noise + feature_noise / num_classes``. The neighbours tell the rest.

    Args:
        num_nodes: Number of vertices.
        num_edges: Undirected edges drawn; self-loops and repeated ones are dropped. Default: 10 per vertex.
        num_classes: Number of blocks, which are the labels.
        homophily: Share of the edges that stay inside a block.
        exponent: Exponent of the power law of expected degrees, above 1; smaller is more skewed.
        num_features: Width of the field ``feat``, float32.
        feature_noise: Share of vertices with the features of a random class.
        fractions: Shares of train, val and test vertices.
        seed: Any integer; counts modulo 2**64.
        progress: Called with the edges drawn so far and all of them.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> graph = sbm(1000, num_edges=5000, num_classes=4, seed=1)
        >>> graph.num_nodes, sorted(graph.ndata)
        (1000, ['feat', 'label', 'test_mask', 'train_mask', 'val_mask'])
    """
    count = 10 * num_nodes if num_edges is None else num_edges
    _check(num_nodes, count, num_classes, num_features)
    check_model(num_classes, homophily, exponent, feature_noise)
    check_fractions(fractions)
    labels = random_labels(num_nodes, num_classes, derive_key(seed, 0))
    blocks = Blocks.of(labels, power_weights(num_nodes, exponent, derive_key(seed, 1)), num_classes)
    src, dst = draw_edges(blocks, blocks, homophily, count, derive_key(seed, 2), progress)
    src, dst = drop_repeats(src, dst, num_nodes, undirected=True)
    src, dst, _ = mirror(src, dst)
    feat = noisy_features(labels, num_classes, num_features, feature_noise, derive_key(seed, 3))
    masks = random_masks(num_nodes, fractions, derive_key(seed, 4))
    graph = graph_of(src, dst, num_nodes)
    for name, value in {"feat": feat, "label": labels, **masks}.items():
        graph.set_field(name, value)
    return graph


def _check(num_nodes: int, num_edges: int, num_classes: int, num_features: int) -> None:
    if not 1 <= num_nodes <= MAX_NODES:
        raise ValueError(f"num_nodes must be in [1, {MAX_NODES}], got {num_nodes}")
    as_integer("num_edges", num_edges, least=0)
    if not 1 <= num_classes <= num_nodes:
        raise ValueError(f"num_classes must be in [1, num_nodes={num_nodes}], got {num_classes}")
    as_integer("num_features", num_features, least=1)


_SEPARATION = 4.0  # of two class centroids, in deviations of the noise around them, over sqrt(2)


def check_model(num_classes: int, homophily: float, exponent: float, feature_noise: float) -> None:
    """Check the arguments that block models share, or raise ValueError."""
    if not 0 <= homophily <= 1:
        raise ValueError(f"homophily must be in [0, 1], got {homophily}")
    if num_classes == 1 and homophily != 1:
        raise ValueError(f"homophily must be 1 with a single class, got {homophily}")
    if not (math.isfinite(exponent) and exponent > 1):
        raise ValueError(f"exponent must be above 1, got {exponent}")
    if not 0 <= feature_noise <= 1:
        raise ValueError(f"feature_noise must be in [0, 1], got {feature_noise}")


def power_weights(count: int, exponent: float, key: int) -> npt.NDArray[np.float64]:
    """Relative expected degrees: a power law from 1, cut at sqrt(count): no pair repeats often."""
    uniform = (random_bits(count, key).numpy() + 0.5) / 2.0**63
    weights: npt.NDArray[np.float64] = np.minimum(uniform ** (-1.0 / (exponent - 1.0)), math.sqrt(count))
    return weights


@dataclass(frozen=True, eq=False)
class Blocks:
    """Vertices sorted by block, with alias tables to draw them by weight.

    Attributes:
        order: The vertices, block after block, int32.
        starts: Bounds of the blocks in ``order``, shape ``(num_classes + 1,)``.
        tables: Alias tables over the vertices of each block.
        mass: Summed weight of each block, shape ``(num_classes,)``.
    """

    order: Ids
    starts: Ids
    tables: tuple[Ids, Ids]
    mass: npt.NDArray[np.float64]

    @classmethod
    def of(cls, labels: Tensor, weights: npt.NDArray[np.float64], num_classes: int) -> Blocks:
        """Sort the vertices ``0..len(labels)``, fewer than 2**31, by their labels."""
        order = np.argsort(labels.numpy(), kind="stable").astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(labels.numpy(), minlength=num_classes))])
        by_block = weights[order]
        mass = np.array([by_block[b:e].sum() for b, e in zip(starts[:-1], starts[1:], strict=True)])
        return cls(order, starts, alias_tables(by_block, starts), mass)


def draw_edges(
    source: Blocks,
    target: Blocks,
    homophily: float,
    count: int,
    key: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Ids, Ids]:
    """Draw ``count`` edges, repeated ones included: a pair of blocks, then a vertex of each by its weight."""
    from . import _random

    dtype = np.dtype(str(id_dtype(max(len(source.order), len(target.order)), count)).removeprefix("torch."))
    pairs = pair_shares(source.mass, target.mass, homophily).ravel()
    pair_table = alias_tables(pairs, np.array([0, len(pairs)]))
    ends = [(side.starts, *side.tables, side.order) for side in (source, target)]
    src, dst = np.empty(count, dtype=dtype), np.empty(count, dtype=dtype)

    def run(begin: int, end: int) -> None:
        outs = (src[begin:end], dst[begin:end])
        _random.fill_blocks(np.uint64(key), begin, len(target.mass), pair_table, *ends, *outs)

    for_ranges(count, run, progress=progress)
    return src, dst


def pair_shares(
    source: npt.NDArray[np.float64], target: npt.NDArray[np.float64], homophily: float
) -> npt.NDArray[np.float64]:
    """Relative share of the edges for every (source block, target block), from the weights of the blocks.

    Rows add up to the source weights. Where the equal block is empty, or all others are, the edges go where they can.
    """
    others = target.sum() - target
    inside = np.where(target > 0, np.where(others > 0, homophily, 1.0), 0.0)
    apart = np.where(others > 0, (1 - inside) * source / np.where(others > 0, others, 1), 0.0)
    shares: npt.NDArray[np.float64] = apart[:, None] * target[None, :]
    np.fill_diagonal(shares, inside * source)
    return shares


def alias_tables(weights: npt.NDArray[np.float64], starts: npt.NDArray[Any]) -> tuple[Ids, Ids]:
    """Alias tables over the consecutive parts of ``weights`` that ``starts`` bounds."""
    from . import _random

    threshold = np.zeros(len(weights), dtype=np.uint32)
    alias = np.zeros(len(weights), dtype=np.int32)
    for begin, end in zip(starts[:-1], starts[1:], strict=True):
        if end > begin:
            scratch = np.empty((2, end - begin), dtype=np.int32)
            part = slice(begin, end)
            _random.build_alias(weights[part], threshold[part], alias[part], scratch[0], scratch[1])
    return threshold, alias


def noisy_features(labels: Tensor, num_classes: int, width: int, feature_noise: float, key: int) -> Tensor:
    """Noise around class centroids; a share of the vertices shows a random class instead of its own."""
    centroids = random_normal((num_classes, width), derive_key(key, 0)) * (_SEPARATION / math.sqrt(width))
    strays = random_bits(len(labels), derive_key(key, 1)).double() < feature_noise * 2.0**63
    shown = torch.where(strays, random_labels(len(labels), num_classes, derive_key(key, 2)), labels)
    feat = random_normal((len(labels), width), derive_key(key, 3))

    def add(begin: int, end: int) -> None:
        feat[begin:end] += centroids[shown[begin:end]]

    for_ranges(len(labels), add)
    return feat
