"""Degree-corrected block models (Karrer and Newman, 2011), also as ogbn-mag (Hu et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..graph.graph import CSC, EdgeType, id_dtype
from ..seeds.keys import derive_key
from ..system.arrays import Array, Float64Array
from ..system.progress import Progress
from .edges import Ids, csc_of_pairs
from .random_fields import bit_rows, for_ranges, label_rows, normal_rows

_SEPARATION = 4.0  # of two class centroids, in deviations of the noise around them, over sqrt(2)


def power_weights(count: int, exponent: float, key: int) -> Float64Array:
    """Relative expected degrees: a power law from 1, cut at sqrt(count) to avoid repeated pairs."""
    # Inverse transform sampling: P(X > x) = x**(1 - exponent) for x >= 1. The half keeps the base
    # above 0.
    uniform = (bit_rows(count, key)[:].numpy() + 0.5) / 2.0**63
    weights: Float64Array = np.minimum(uniform ** (-1.0 / (exponent - 1.0)), math.sqrt(count))
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
        order = np.argsort(labels.numpy(), kind="stable").astype(np.int32)
        starts = np.concatenate(
            [[0], np.cumsum(np.bincount(labels.numpy(), minlength=num_classes))]
        )
        by_block = weights[order]
        mass = np.array([by_block[b:e].sum() for b, e in zip(starts[:-1], starts[1:], strict=True)])
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

    dtype = np.dtype(
        str(id_dtype(max(len(source.order), len(target.order)), count)).removeprefix("torch.")
    )
    pairs = pair_shares(source.mass, target.mass, homophily).ravel()
    pair_table = alias_tables(pairs, np.array([0, len(pairs)]))
    ends = [(side.starts, *side.tables, side.order) for side in (source, target)]
    src, dst = np.empty(count, dtype=dtype), np.empty(count, dtype=dtype)

    def run(begin: int, end: int) -> None:
        outs = (src[begin:end], dst[begin:end])
        _random.fill_blocks(np.uint64(key), begin, len(target.mass), pair_table, *ends, *outs)

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
    inside = np.where(target > 0, np.where(others > 0, homophily, 1.0), 0.0)
    apart = np.where(others > 0, (1 - inside) * source / np.where(others > 0, others, 1), 0.0)
    shares: Float64Array = apart[:, None] * target[None, :]
    np.fill_diagonal(shares, inside * source)
    return shares


def alias_tables(weights: Float64Array, starts: Array) -> tuple[Ids, Ids]:
    """Alias tables of the parts of ``weights`` between ``starts``."""
    from . import _random

    threshold = np.zeros(len(weights), dtype=np.uint32)
    alias = np.zeros(len(weights), dtype=np.int32)
    for begin, end in zip(starts[:-1], starts[1:], strict=True):
        if end > begin:
            scratch = np.empty((2, end - begin), dtype=np.int32)
            part = slice(begin, end)
            _random.build_alias(weights[part], threshold[part], alias[part], scratch[0], scratch[1])
    return threshold, alias


def noisy_features(
    labels: Tensor, num_classes: int, width: int, feature_noise: float, key: int
) -> Tensor:
    """Noise around class centroids; a share of the vertices gets a random class's centroid."""
    # Random centroids are sqrt(2 * width) deviations apart; this makes the distance independent of
    # the width.
    centroids = normal_rows((num_classes, width), derive_key(key, 0))[:] * (
        _SEPARATION / math.sqrt(width)
    )
    strays = bit_rows(len(labels), derive_key(key, 1))[:].double() < feature_noise * 2.0**63
    shown = torch.where(strays, label_rows(len(labels), num_classes, derive_key(key, 2))[:], labels)
    feat = normal_rows((len(labels), width), derive_key(key, 3))[:]

    def add(begin: int, end: int) -> None:
        feat[begin:end] += centroids[shown[begin:end]]

    for_ranges(len(labels), add)
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
        source, target = blocks[edge_type[0]], blocks[edge_type[2]]
        tell = None if progress is None else partial(_tell, progress, before, sum(counts))
        before += count
        src, dst = draw_edges(source, target, homophily, count, derive_key(key, place), tell)
        # No paper cites itself.
        if edge_type[0] == edge_type[2]:
            src, dst = src[src != dst], dst[src != dst]
        csc = csc_of_pairs(src, dst, len(source.order), len(target.order))
        result[edge_type] = csc
        if edge_type in _REVERSES:
            result[_REVERSES[edge_type]] = csc.transpose()
    return result


def _tell(progress: Progress, before: int, total: int, done: int, _all: int) -> None:
    progress(before + done, total)
