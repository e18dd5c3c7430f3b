"""The in-edges of a frontier, all of them: what samplers that look at a whole layer work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .scratch import raise_bad_source
from .uniform import measure_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from .hop import Hop, HopEdges
    from .weights import EdgeWeights

    Array = npt.NDArray[Any]

__all__ = ["NO_WEIGHTS", "Rows", "in_order"]

NO_WEIGHTS: Array = np.empty(0, dtype=np.float32)
"""Stands for weights of 1 in kernels."""


_VERTICES_PER_EDGE = 8
"""Up to here a table of all vertices is about as large as what a hop needs anyway, and faster than a hash table."""


def in_order(weights: EdgeWeights | None) -> Array:
    """Weights as kernels take them: one per edge in CSC order."""
    values: Array = NO_WEIGHTS if weights is None else weights.in_order.numpy()
    return values


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the in-edges of each frontier vertex lie; the arrays are scratch.

    Attributes:
        hop: The hop.
        starts: Shape ``(n,)``, int64: the first position of each row in the CSC.
        offsets: Shape ``(n + 1,)``, int64: where the row would begin if the rows lay one after the other.
    """

    hop: Hop
    starts: Array
    offsets: Array

    @classmethod
    def of(cls, hop: Hop) -> Rows:
        """The rows of a hop's frontier.

        Raises:
            FormatError: The graph's ``indptr`` is damaged.
        """
        starts, _, offsets = measure_rows(hop, -1, False, offsets="row offsets")  # pickers write "offsets" meanwhile
        return cls(hop, starts, offsets)

    @property
    def num_edges(self) -> int:
        """In-edges of the whole frontier."""
        return int(self.offsets[-1])

    @property
    def largest(self) -> int:
        """In-edges of the vertex that has most."""
        return int(np.diff(self.offsets).max(initial=0))

    def array(self, name: str, dtype: Any) -> Array:
        """Scratch for each in-edge, and one element more: kernels write before they count (contents undefined).

        Pages that nothing is written to cost nothing.
        """
        return self.hop.scratch.array(name, self.num_edges + 1, dtype)

    def edges(self, offsets: Array, positions: Array, weights: Array | None = None) -> HopEdges:
        """The edges of a hop, copied from scratch."""
        edges, total = self.hop.edges(offsets, weighted=weights is not None), int(offsets[-1])
        edges.positions.numpy()[:] = positions[:total]
        if weights is not None and edges.weights is not None:
            edges.weights.numpy()[:] = weights[:total]
        return edges

    def candidates(self) -> tuple[Array, int]:
        """Number the distinct sources in the order of their discovery: each in-edge's number, and how many there are.

        Raises:
            FormatError: An edge leads out of the graph.
        """
        from . import _layerwise

        csc, scratch = self.hop.csc, self.hop.scratch
        indices = csc.indices.numpy()
        local_ids = scratch.array("local sources", self.num_edges, _narrow(self.num_edges))
        if csc.num_src > _VERTICES_PER_EDGE * self.num_edges:
            sources = scratch.array("sources", self.num_edges, indices.dtype)
            _layerwise.read_rows(indices, self.starts, self.offsets, sources)
            table = scratch.table("candidates")
            table.reset(None, csc.num_src, indices.dtype)
            table.relabel(sources, local_ids)
            return local_ids, table.count
        places = scratch.array("places", csc.num_src, _narrow(csc.num_src))
        places.fill(-1)
        count = int(_layerwise.number_sources(indices, self.starts, self.offsets, places, local_ids))
        if count < 0:
            raise_bad_source(int(indices[-1 - count]), csc.num_src)
        return local_ids, count


def _narrow(limit: int) -> Any:
    return np.int32 if limit < 2**31 else np.int64
