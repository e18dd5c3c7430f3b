"""RMAT graphs (Chakrabarti, Zhan and Faloutsos, SDM 2004)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..graph.graph import Graph
from ..seeds.keys import derive_key
from ..system.progress import Progress
from .edge_sort import InFiles, sort_edges
from .edges import Ids, array_id_dtype, drop_repeats, graph_of, mirror
from .native import Rows
from .random_fields import for_ranges, label_rows, mask_rows, normal_rows


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
