"""The random graphs behind ``generators``: RMAT, block models, and a temporal database."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.graph import CSC, EdgeType, Graph
from ..seeds.keys import derive_key
from ..system.arrays import Array, Float64Array, Int64Array
from ..system.progress import Progress
from .edge_sort import InFiles, sort_edges
from .edges import Ids, array_id_dtype, csc_of_pairs, drop_repeats, graph_of, mirror
from .native import Rows
from .random_fields import bit_rows, for_ranges, label_rows, mask_rows, normal_rows

_SEPARATION = 4.0  # of two class centroids, in deviations of the noise around them, over sqrt(2)

PERIOD = 30 * 24 * 3600
"""Seconds of a period of :func:`shop`."""

_MOST_PURCHASES = 20.0  # per customer and period, so that no few customers dominate
_EXPONENT = 2.5  # of the power laws of activity and popularity


# -- RMAT (Chakrabarti, Zhan and Faloutsos, SDM 2004) ----------------------------------------------


def rmat_fields(
    count: int,
    width: int,
    dtype: str,
    classes: int,
    fractions: tuple[float, float, float],
    seed: int,
) -> dict[str, Rows]:
    """Vertex fields, drawn on reading."""
    fields: dict[str, Rows] = {}
    if width:
        fields["feat"] = normal_rows((count, width), derive_key(seed, 3), getattr(torch, dtype))
    if classes:
        fields["label"] = label_rows(count, classes, derive_key(seed, 4))
        fields |= mask_rows(count, fractions, derive_key(seed, 5))
    return fields


def _bounds(
    scale: int, probabilities: tuple[float, float, float, float], noise: float, key: int
) -> npt.NDArray[np.uint64]:
    """Upper bounds of quadrants a, b and c at each level, times 2**32, shape ``(scale, 3)``."""
    a, b, c, d = probabilities
    bounds = np.empty((scale, 3), dtype=np.uint64)
    for level in range(scale):
        uniform = derive_key(key, level) / 2**63 - 1  # in [-1, 1)
        change = noise * uniform
        # b and c grow by it, so a and d together shrink by twice as much, in proportion to their
        # sizes.
        keep = 1 - 2 * change / (a + d) if a + d else 1.0
        # `min`: the sum may exceed 1 by rounding. 2**32 is above any 32 random bits.
        upper = np.cumsum([a * keep, b + change, c + change])
        bounds[level] = [min(2**32, round(float(p) * 2**32)) for p in upper]
    return bounds


def _constants(seed: int) -> Ids:
    """An addend and an odd (so invertible) factor per round of :func:`_random.scramble`."""
    return np.array([derive_key(seed, 2, i) | (i & 1) for i in range(8)], dtype=np.uint64)


@dataclass(frozen=True)
class RmatEdges:
    """Lazy edges, each a function of its position."""

    num_nodes: int
    num_edges: int
    bounds: npt.NDArray[np.uint64]
    key: int
    constants: Ids

    @classmethod
    def of(
        cls,
        scale: int,
        count: int,
        probabilities: tuple[float, float, float, float],
        noise: float,
        seed: int,
    ) -> RmatEdges:
        """``count`` edges of ``2**scale`` vertices."""
        bounds = _bounds(scale, probabilities, noise, derive_key(seed, 0))
        return cls(2**scale, count, bounds, derive_key(seed, 1), _constants(seed))

    def read(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Draw some edges."""
        src, dst = self._empty(end - begin)
        self._fill(begin, src, dst)
        return src, dst

    def sorted_in(self, files: InFiles, *, undirected: bool, simple: bool) -> Graph:
        """The graph of all edges, in files."""
        return Graph(sort_edges(self, files, mirrored=undirected, simple=simple))

    def in_memory(self, progress: Progress | None, *, undirected: bool, simple: bool) -> Graph:
        """The same graph in memory, drawn in threads."""
        src, dst = self._empty(self.num_edges)

        def fill(begin: int, end: int) -> None:
            self._fill(begin, src[begin:end], dst[begin:end])

        for_ranges(self.num_edges, fill, progress=progress)
        if simple:
            src, dst = drop_repeats(src, dst, self.num_nodes, undirected=undirected)
        if undirected:
            src, dst, _ = mirror(src, dst)
        return graph_of(src, dst, self.num_nodes)

    def _empty(self, count: int) -> tuple[Ids, Ids]:
        dtype = array_id_dtype(self.num_nodes, self.num_edges)
        return np.empty(count, dtype=dtype), np.empty(count, dtype=dtype)

    def _fill(self, first: int, src: Ids, dst: Ids) -> None:
        from . import _random

        _random.fill_rmat(np.uint64(self.key), first, self.bounds, self.constants, src, dst)


# -- block models with degrees (Karrer and Newman, 2011), also as ogbn-mag (Hu et al., 2020) -------


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


# -- a temporal database, with a task whose best accuracy without leakage is known -----------------


def draw_shop(
    num_customers: int,
    num_products: int,
    num_periods: int,
    *,
    persistence: float,
    num_features: int,
    seed: int,
    progress: Progress | None,
) -> Graph:
    """The database of :func:`~pagraph.datasets.shop`, which checks the arguments."""
    liked = _liked_kinds(num_customers, num_periods, persistence, derive_key(seed, 0))
    first = label_rows(num_customers, num_periods // 2, derive_key(seed, 1))[:].numpy()
    kinds = torch.arange(num_products, device="cpu") % 2
    customer, period = _purchases(first, num_periods, derive_key(seed, 2))
    product = _bought(kinds.numpy(), liked[customer, period], derive_key(seed, 3))
    asked, at = _questions(first, num_periods)
    sizes = {
        "customer": num_customers,
        "product": num_products,
        "purchase": len(customer),
        "task": len(asked),
    }
    keys: dict[EdgeType, Int64Array] = {
        ("customer", "made", "purchase"): customer,
        ("product", "sold_in", "purchase"): product,
        ("customer", "asked", "task"): asked,
    }
    csc = {}
    for (source, relation, target), key in keys.items():
        # Row i of a table refers to key[i].
        of_table = np.arange(len(key))
        csc[source, relation, target] = CSC.from_coo(key, of_table, (sizes[source], sizes[target]))
    csc["purchase", "made_by", "customer"] = csc["customer", "made", "purchase"].transpose()
    csc["purchase", "of", "product"] = csc["product", "sold_in", "purchase"].transpose()
    graph = Graph(csc, sizes)
    second = 1 + bit_rows(len(period), derive_key(seed, 4))[:] % PERIOD
    bought_at = _whole(period) * PERIOD + second
    asked_period = _whole(at)
    question = {"time": asked_period * PERIOD, "label": _whole(liked[asked, at])}
    tables: dict[str, dict[str, Tensor]] = {
        "customer": {
            "time": _whole(first) * PERIOD,
            "feat": _noise(num_customers, num_features, derive_key(seed, 5)),
        },
        "product": {"feat": noisy_features(kinds, 2, num_features, 0.0, derive_key(seed, 6))},
        "purchase": {
            "time": bought_at,
            "feat": _noise(len(customer), num_features, derive_key(seed, 7)),
        },
        "task": question | _by_period(asked_period, num_periods),
    }
    for done, (ntype, fields) in enumerate(tables.items(), 1):
        for name, rows in fields.items():
            graph.set_field(name, rows, node_type=ntype)
        if progress is not None:
            progress(done, len(tables))
    return graph


def _liked_kinds(num_customers: int, num_periods: int, persistence: float, key: int) -> Array:
    """The kind that each customer likes in each period, shape ``(num_customers, num_periods)``,
    bool."""
    uniform = _uniform(num_customers * num_periods, key).reshape(num_customers, num_periods)
    changes = uniform >= persistence
    # The first kind is a coin flip; each later one is the parity of changes so far.
    changes[:, 0] = uniform[:, 0] >= 0.5
    liked: Array = np.logical_xor.accumulate(changes, axis=1)
    return liked


def _purchases(first: Int64Array, num_periods: int, key: int) -> tuple[Int64Array, Int64Array]:
    """Customer and period of each purchase, by customer, at least one per period from the first."""
    activity = power_weights(len(first), _EXPONENT, derive_key(key, 0))
    rates = np.minimum(activity, _MOST_PURCHASES)
    uniform = _uniform(len(first) * num_periods, derive_key(key, 1)).reshape(-1, num_periods)
    # floor(rate + uniform) has mean rate, and is at least 1 like the rates.
    counts = np.floor(rates[:, None] + uniform).astype(np.int64)
    counts[np.arange(num_periods) < first[:, None]] = 0
    places = np.repeat(np.arange(counts.size), counts.ravel())
    return places // num_periods, places % num_periods


def _bought(kinds: Int64Array, wanted: Array, key: int) -> Int64Array:
    """The product of each purchase, drawn by popularity among the wanted kind."""
    uniform = _uniform(len(wanted), derive_key(key, 0))
    popularity = power_weights(len(kinds), _EXPONENT, derive_key(key, 1))
    product = np.empty(len(wanted), dtype=np.int64)
    for kind in (0, 1):
        of_kind = np.flatnonzero(kinds == kind)
        rows = wanted == kind
        sums = np.cumsum(popularity[of_kind])
        # `minimum` below: rounding may move the largest draw past the last sum.
        drawn = np.searchsorted(sums, uniform[rows] * sums[-1], side="right")
        product[rows] = of_kind[np.minimum(drawn, len(of_kind) - 1)]
    return product


def _questions(first: Int64Array, num_periods: int) -> tuple[Int64Array, Int64Array]:
    """Customer and asked period of each question, for all periods with an earlier one."""
    known = np.arange(num_periods) > first[:, None]
    customer, period = np.nonzero(known)
    return customer.astype(np.int64), period.astype(np.int64)


def _by_period(period: Tensor, num_periods: int) -> dict[str, Tensor]:
    """Masks of the questions: the last period is test, the one before validation."""
    last = num_periods - 1
    return {
        "train_mask": period < last - 1,
        "val_mask": period == last - 1,
        "test_mask": period == last,
    }


def _uniform(count: int, key: int) -> Float64Array:
    """Random numbers in [0, 1)."""
    numbers: Float64Array = bit_rows(count, key)[:].numpy() / 2.0**63
    return numbers


def _whole(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _noise(count: int, width: int, key: int) -> Tensor:
    return normal_rows((count, width), key)[:]
