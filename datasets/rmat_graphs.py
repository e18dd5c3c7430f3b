"""RMAT graphs (Chakrabarti, Zhan and Faloutsos, SDM 2004), with the parameters of Graph500 by default."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..graph.graph import Graph, id_dtype
from ..seeds.keys import derive_key
from ..system.checks import as_integer
from .edges import Ids, drop_repeats, graph_of, mirror
from .random_fields import check_fractions, for_ranges, random_labels, random_masks, random_normal

__all__ = ["GRAPH500", "rmat"]

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
_MAX_SCALE = 40


def rmat(
    scale: int,
    *,
    edge_factor: float = 16.0,
    num_edges: int | None = None,
    probabilities: tuple[float, float, float, float] = GRAPH500,
    noise: float = 0.0,
    undirected: bool = False,
    simple: bool = False,
    num_features: int = 0,
    num_classes: int = 0,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Generate a graph with ``2**scale`` vertices and a few of very high degree; ids are scrambled.

    Equal arguments give the same graph on every machine, whatever the number of threads.

    Args:
        scale: Base-2 logarithm of the number of vertices, 0 to 40.
        edge_factor: Edges drawn per vertex.
        num_edges: Edges drawn; replaces ``edge_factor``.
        probabilities: Chances of the four quadrants a, b, c, d.
        noise: Largest change of b and c, drawn once for each level (Seshadhri, Pinar and Kolda, J. ACM 2013):
            takes away the steps in the degree distribution.
        undirected: Store both directions of every edge.
        simple: Drop self-loops and repeated edges; otherwise they are kept, as Graph500 does.
        num_features: Width of a random normal float32 field ``feat``; 0 for none.
        num_classes: Number of random labels in ``label``, with masks; 0 for none.
        fractions: Shares of train, val and test vertices.
        seed: Any integer; counts modulo 2**64.
        progress: Called with the edges drawn so far and all of them.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> rmat(10, edge_factor=8, seed=1)
        Graph(num_nodes=1024, num_edges=8192, ids=int32)
    """
    count = _check(scale, edge_factor, num_edges, num_features, num_classes)
    check_fractions(fractions)
    bounds = _bounds(scale, probabilities, noise, derive_key(seed, 0))
    src, dst = _draw_edges(scale, count, bounds, seed, progress)
    num_nodes = 2**scale
    if simple:
        src, dst = drop_repeats(src, dst, num_nodes, undirected=undirected)
    if undirected:
        src, dst, _ = mirror(src, dst)
    graph = graph_of(src, dst, num_nodes)
    if num_features:
        graph.set_field("feat", random_normal((num_nodes, num_features), derive_key(seed, 3)))
    if num_classes:
        graph.set_field("label", random_labels(num_nodes, num_classes, derive_key(seed, 4)))
        for name, mask in random_masks(num_nodes, fractions, derive_key(seed, 5)).items():
            graph.set_field(name, mask)
    return graph


def _check(scale: int, edge_factor: float, num_edges: int | None, num_features: int, num_classes: int) -> int:
    """Check the arguments; returns the number of edges to draw."""
    if not 0 <= scale <= _MAX_SCALE:
        raise ValueError(f"scale must be in [0, {_MAX_SCALE}], got {scale}")
    if num_edges is None and not (math.isfinite(edge_factor) and edge_factor >= 0):
        raise ValueError(f"edge_factor must be a number of at least 0, got {edge_factor}")
    for name, count in (("num_edges", num_edges or 0), ("num_features", num_features), ("num_classes", num_classes)):
        as_integer(name, count, least=0)
    return int(edge_factor * 2**scale) if num_edges is None else num_edges


def _bounds(
    scale: int, probabilities: tuple[float, float, float, float], noise: float, key: int
) -> npt.NDArray[np.uint64]:
    """Upper bounds of quadrants a, b and c at each level, as shares of 2**32; shape ``(scale, 3)``."""
    a, b, c, d = probabilities
    if not all(math.isfinite(p) and p >= 0 for p in probabilities) or abs(a + b + c + d - 1) > 1e-6:
        raise ValueError(f"probabilities must be at least 0 and add up to 1, got {probabilities}")
    limit = min((a + d) / 2, b, c)
    if not 0 <= noise <= limit:
        raise ValueError(f"noise must be in [0, {limit}] for these probabilities, got {noise}")
    bounds = np.empty((scale, 3), dtype=np.uint64)
    for level in range(scale):
        change = noise * (derive_key(key, level) / 2**63 - 1)
        keep = 1 - 2 * change / (a + d) if a + d else 1.0
        upper = np.cumsum([a * keep, b + change, c + change])
        bounds[level] = [min(2**32, round(float(p) * 2**32)) for p in upper]
    return bounds


def _draw_edges(
    scale: int, count: int, bounds: npt.NDArray[np.uint64], seed: int, progress: Callable[[int, int], None] | None
) -> tuple[Ids, Ids]:
    from . import _random

    dtype = np.dtype(str(id_dtype(2**scale, count)).removeprefix("torch."))
    src, dst = np.empty(count, dtype=dtype), np.empty(count, dtype=dtype)
    key = np.uint64(derive_key(seed, 1))
    # Odd numbers at the odd places: multiplying by them loses nothing.
    constants = np.array([derive_key(seed, 2, i) | (i & 1) for i in range(8)], dtype=np.uint64)

    def run(begin: int, end: int) -> None:
        _random.fill_rmat(key, begin, bounds, constants, src[begin:end], dst[begin:end])

    for_ranges(count, run, progress=progress)
    return src, dst
