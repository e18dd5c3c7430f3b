"""Degree-corrected block models (Karrer and Newman, 2011), also as ogbn-mag (Hu et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..graph.graph import CSC, EdgeType
from ..seeds.keys import derive_key
from ..system.arrays import Array, Float64Array
from ..system.progress import Progress
from .edges import Ids, array_id_dtype, csc_of_pairs
from .random_fields import bit_rows, for_ranges, label_rows, normal_rows

_SEPARATION = 4.0  # of two class centroids, in deviations of the noise around them, over sqrt(2)


def power_weights(count: int, exponent: float, key: int) -> Float64Array:
    """Relative expected degrees: a power law from 1, cut at sqrt(count) to avoid repeated pairs."""
    # The half keeps the numbers above 0.
    bits = bit_rows(count, key)[:].numpy()
    uniform = (bits + 0.5) / 2.0**63
    # Inverse transform sampling: P(X > x) = x**(1 - exponent) for x >= 1.
    drawn = uniform ** (-1.0 / (exponent - 1.0))
    weights: Float64Array = np.minimum(drawn, math.sqrt(count))
    return weights


@dataclass(frozen=True, eq=False)
class Blocks:
    """Vertices sorted by block (``order``, int32), with alias ``tables`` for weighted draws.

    ``starts`` are the blocks' bounds in ``order``, shape ``(num_classes + 1,)``. ``mass`` are their
    total weights.
    """

    order: Ids
    starts: Ids
    tables: tuple[Ids, Ids]
    mass: Float64Array

    @classmethod
    def of(cls, labels: Tensor, weights: Float64Array, num_classes: int) -> Blocks:
        """Sort the vertices ``0..len(labels)``, fewer than 2**31, by their labels."""
        classes = labels.numpy()
        order = np.argsort(classes, kind="stable").astype(np.int32)
        sizes = np.bincount(classes, minlength=num_classes)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        by_block = weights[order]
        # Not np.add.reduceat, which is wrong for empty blocks.
        mass = np.array([by_block[begin:end].sum() for begin, end in pairwise(starts)])
        return cls(order, starts, alias_tables(by_block, starts), mass)


def draw_edges(
    source: Blocks,
    target: Blocks,
    homophily: float,
    count: int,
    key: int,
    progress: Progress | None = None,
) -> tuple[Ids, Ids]:
    """Draw ``count`` edges, perhaps repeated: a pair of blocks, then a vertex of each by weight."""
    from . import _random

    most_vertices = max(len(source.order), len(target.order))
    dtype = array_id_dtype(most_vertices, count)
    shares = pair_shares(source.mass, target.mass, homophily).ravel()
    pair_table = alias_tables(shares, np.array([0, len(shares)]))
    sources = (source.starts, *source.tables, source.order)
    targets = (target.starts, *target.tables, target.order)
    src = np.empty(count, dtype=dtype)
    dst = np.empty(count, dtype=dtype)

    def run(begin: int, end: int) -> None:
        _random.fill_blocks(
            np.uint64(key),
            begin,
            len(target.mass),
            pair_table,
            sources,
            targets,
            src[begin:end],
            dst[begin:end],
        )

    for_ranges(count, run, progress=progress)
    return src, dst


def pair_shares(source: Float64Array, target: Float64Array, homophily: float) -> Float64Array:
    """Share of the edges for every (source block, target block).

    Rows add up to the source blocks' weights. If the same block is empty, or all others are, all
    edges go to the rest.
    """
    # inside[b]: share of b's edges that stay in b. The others go to other blocks in proportion to
    # their weight, target[c] / others[b]. The guards are for empty blocks.
    others = target.sum() - target
    has_others = others > 0
    inside = np.where(has_others, homophily, 1.0)
    inside = np.where(target > 0, inside, 0.0)
    leaving = (1 - inside) * source
    apart = np.where(has_others, leaving / np.where(has_others, others, 1), 0.0)
    shares: Float64Array = apart[:, None] * target[None, :]
    np.fill_diagonal(shares, inside * source)
    return shares


def alias_tables(weights: Float64Array, starts: Array) -> tuple[Ids, Ids]:
    """Alias tables of the parts of ``weights`` between ``starts``."""
    from . import _random

    threshold = np.zeros(len(weights), dtype=np.uint32)
    alias = np.zeros(len(weights), dtype=np.int32)
    for begin, end in pairwise(starts):
        if begin == end:
            continue
        part = slice(begin, end)
        small, large = np.empty((2, end - begin), dtype=np.int32)
        _random.build_alias(weights[part], threshold[part], alias[part], small, large)
    return threshold, alias


def noisy_features(
    labels: Tensor, num_classes: int, width: int, feature_noise: float, key: int
) -> Tensor:
    """Noise around class centroids; a share of the vertices gets a random class's centroid."""
    count = len(labels)
    # Random centroids are sqrt(2 * width) deviations apart; this makes the distance independent of
    # the width.
    scale = _SEPARATION / math.sqrt(width)
    centroids = normal_rows((num_classes, width), derive_key(key, 0))[:] * scale
    bits = bit_rows(count, derive_key(key, 1))[:]
    is_stray = bits.double() < feature_noise * 2.0**63
    others = label_rows(count, num_classes, derive_key(key, 2))[:]
    shown = torch.where(is_stray, others, labels)
    feat = normal_rows((count, width), derive_key(key, 3))[:]

    def add(begin: int, end: int) -> None:
        feat[begin:end] += centroids[shown[begin:end]]

    for_ranges(count, add)
    return feat


_WRITES: EdgeType = ("author", "writes", "paper")
_CITES: EdgeType = ("paper", "cites", "paper")
_WORKS: EdgeType = ("author", "affiliated_with", "institution")
_REVERSES: dict[EdgeType, EdgeType] = {
    _WRITES: ("paper", "written_by", "author"),
    _WORKS: ("institution", "employs", "author"),
}
_DRAWN = (_WRITES, _CITES, _WORKS)


def citation_edges(
    blocks: dict[str, Blocks],
    counts: tuple[int, int, int],
    homophily: float,
    key: int,
    progress: Progress | None,
) -> dict[EdgeType, CSC]:
    """Draw the CSC of every edge type of :func:`~pagraph.datasets.citation`.

    ``counts`` are the numbers of edges. A reverse type has the edge ids of its forward type.
    """
    result: dict[EdgeType, CSC] = {}
    before = 0
    for place, (edge_type, count) in enumerate(zip(_DRAWN, counts, strict=True)):
        source = blocks[edge_type[0]]
        target = blocks[edge_type[2]]
        tell = None
        if progress is not None:
            tell = partial(_tell, progress, before, sum(counts))
        before += count
        src, dst = draw_edges(source, target, homophily, count, derive_key(key, place), tell)
        # No paper cites itself.
        if edge_type[0] == edge_type[2]:
            differ = src != dst
            src = src[differ]
            dst = dst[differ]
        csc = csc_of_pairs(src, dst, len(source.order), len(target.order))
        result[edge_type] = csc
        if edge_type in _REVERSES:
            result[_REVERSES[edge_type]] = csc.transpose()
    return result


def _tell(progress: Progress, before: int, total: int, done: int, _all: int) -> None:
    progress(before + done, total)
