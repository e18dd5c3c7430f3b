"""RMAT graphs (Chakrabarti, Zhan and Faloutsos, SDM 2004), with the parameters of Graph500 by
default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..graph.graph import Graph, id_dtype
from ..seeds.keys import derive_key
from ..system.checks import StrPath, as_integer, as_integers
from ..system.progress import Progress
from .column_files import Scratch
from .edge_sort import sort_edges, write_bounded
from .edges import Ids, check_simple, drop_repeats, graph_of, mirror
from .native import Rows
from .random_fields import check_fractions, for_ranges, label_rows, mask_rows, normal_rows

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
FEATURE_DTYPES = ("float32", "float16", "bfloat16")
# A trillion vertices: a larger number is surely a count of vertices, not its logarithm.
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
    feature_dtype: str = "float32",
    seed: int = 0,
    out: StrPath | None = None,
    memory: int | str | None = None,
    store: str | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Generate a graph with ``2**scale`` vertices and a few of very high degree; ids are scrambled.

    Equal arguments give the same graph on every machine, whatever the number of threads.

    Args:
        scale: Base-2 logarithm of the number of vertices, 0 to 40.
        edge_factor: Edges drawn per vertex.
        num_edges: Edges drawn; replaces ``edge_factor``.
        probabilities: Chances of the four quadrants a, b, c, d.
        noise: Largest change of b and c, drawn once for each level (Seshadhri, Pinar and Kolda, J.
            ACM 2013): takes away the steps in the degree distribution.
        undirected: Store both directions of every edge.
        simple: Drop self-loops and repeated edges; otherwise they are kept, as Graph500 does.
        num_features: Width of a random normal field ``feat``; 0 for none.
        num_classes: Number of random labels in ``label``, with masks; 0 for none.
        fractions: Shares of train, val and test vertices.
        feature_dtype: Of ``feat``: "float32", or "float16" or "bfloat16", to which its numbers are
            rounded.
        seed: Any integer; counts modulo 2**64.
        out: Write the graph as this folder, which must not exist yet, without holding it in memory,
            and return it opened.
        memory: Bytes that writing ``out`` may take, such as "4GiB", beside what Python and its
            libraries hold. Default: half of what is free.
        store: For ``out``: form of ``feat`` in fewer bytes, see :func:`write_graph`.
        origin: For ``out``: where the graph is from, for people.
        progress: Called with the work done so far and all of it.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: An argument is out of its range.

    Example:
        >>> rmat(10, edge_factor=8, seed=1)
        Graph(num_nodes=1024, num_edges=8192, ids=int32)
    """
    scale, num_features, num_classes, seed = as_integers(
        scale=scale, num_features=num_features, num_classes=num_classes, seed=seed
    )
    count = _check(scale, edge_factor, num_edges, num_features, num_classes)
    check_fractions(fractions)
    stored = _feature_dtype(feature_dtype)
    bounds = _bounds(scale, probabilities, noise, derive_key(seed, 0))
    edges = _Edges(2**scale, count, bounds, derive_key(seed, 1), _constants(seed))
    if simple:
        check_simple(edges.num_nodes)
    fields = _fields(edges.num_nodes, num_features, stored, num_classes, fractions, seed)
    if out is not None:

        def sorted_edges(scratch: Scratch, room: int, step: Progress | None) -> Graph:
            options = {"mirrored": undirected, "simple": simple}
            return Graph(sort_edges(edges, scratch, room=room, **options, progress=step))

        return write_bounded(
            sorted_edges,
            out,
            memory=memory,
            computed=fields,
            store=store,
            origin=origin,
            progress=progress,
        )
    src, dst = edges.drawn(progress)
    if simple:
        src, dst = drop_repeats(src, dst, edges.num_nodes, undirected=undirected)
    if undirected:
        src, dst, _ = mirror(src, dst)
    graph = graph_of(src, dst, edges.num_nodes)
    for name, rows in fields.items():
        graph.set_field(name, rows[:])
    return graph


def _fields(
    count: int,
    width: int,
    stored: torch.dtype,
    classes: int,
    fractions: tuple[float, float, float],
    seed: int,
) -> dict[str, Rows]:
    """Vertex fields, drawn when they are read."""
    fields: dict[str, Rows] = {}
    if width:
        fields["feat"] = normal_rows((count, width), derive_key(seed, 3), stored)
    if classes:
        fields["label"] = label_rows(count, classes, derive_key(seed, 4))
        fields |= mask_rows(count, fractions, derive_key(seed, 5))
    return fields


def _feature_dtype(name: str) -> torch.dtype:
    if name not in FEATURE_DTYPES:
        raise ValueError(f"feature_dtype must be one of {', '.join(FEATURE_DTYPES)}, got {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check(
    scale: int, edge_factor: float, num_edges: int | None, num_features: int, num_classes: int
) -> int:
    """Check the arguments; returns the number of edges to draw."""
    if not 0 <= scale <= _MAX_SCALE:
        raise ValueError(f"scale must be in [0, {_MAX_SCALE}], got {scale}")
    if num_edges is None and not (math.isfinite(edge_factor) and edge_factor >= 0):
        raise ValueError(f"edge_factor must be a number of at least 0, got {edge_factor}")
    for name, count in (
        ("num_edges", num_edges or 0),
        ("num_features", num_features),
        ("num_classes", num_classes),
    ):
        as_integer(name, count, least=0)
    return int(edge_factor * 2**scale) if num_edges is None else int(num_edges)


def _bounds(
    scale: int, probabilities: tuple[float, float, float, float], noise: float, key: int
) -> npt.NDArray[np.uint64]:
    """Upper bounds of quadrants a, b and c at each level, as shares of 2**32; shape
    ``(scale, 3)``."""
    a, b, c, d = probabilities
    if not all(math.isfinite(p) and p >= 0 for p in probabilities) or abs(a + b + c + d - 1) > 1e-6:
        raise ValueError(f"probabilities must be at least 0 and add up to 1, got {probabilities}")
    # Noise moves up to this much from a and d to b and c, or back; no chance may become negative.
    limit = min((a + d) / 2, b, c)
    if not 0 <= noise <= limit:
        raise ValueError(f"noise must be in [0, {limit}] for these probabilities, got {noise}")
    bounds = np.empty((scale, 3), dtype=np.uint64)
    for level in range(scale):
        # Uniform in [-noise, noise). b and c grow by it, so a and d shrink by twice as much
        # together, each in proportion to its size.
        change = noise * (derive_key(key, level) / 2**63 - 1)
        keep = 1 - 2 * change / (a + d) if a + d else 1.0
        # The sum may exceed 1 by rounding; a bound of 2**32 is above every 32 random bits.
        upper = np.cumsum([a * keep, b + change, c + change])
        bounds[level] = [min(2**32, round(float(p) * 2**32)) for p in upper]
    return bounds


def _constants(seed: int) -> Ids:
    """An addend and an odd factor for each round of :func:`_random.scramble`; only odd factors can
    be inverted modulo a power of 2."""
    return np.array([derive_key(seed, 2, i) | (i & 1) for i in range(8)], dtype=np.uint64)


@dataclass(frozen=True)
class _Edges:
    """The drawn edges, each a function of its position."""

    num_nodes: int
    num_edges: int
    bounds: npt.NDArray[np.uint64]
    key: int
    constants: Ids

    def read(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Draw some edges."""
        src, dst = self._empty(end - begin)
        self._fill(begin, src, dst)
        return src, dst

    def drawn(self, progress: Progress | None) -> tuple[Ids, Ids]:
        """Draw all edges, in threads."""
        src, dst = self._empty(self.num_edges)
        for_ranges(
            self.num_edges, lambda b, e: self._fill(b, src[b:e], dst[b:e]), progress=progress
        )
        return src, dst

    def _empty(self, count: int) -> tuple[Ids, Ids]:
        dtype = np.dtype(str(id_dtype(self.num_nodes, self.num_edges)).removeprefix("torch."))
        return np.empty(count, dtype=dtype), np.empty(count, dtype=dtype)

    def _fill(self, first: int, src: Ids, dst: Ids) -> None:
        from . import _random

        _random.fill_rmat(np.uint64(self.key), first, self.bounds, self.constants, src, dst)
