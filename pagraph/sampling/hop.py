"""One hop along one edge type: what a picker is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..graph import CSC
    from .scratch import Scratch

__all__ = ["EdgeMemory", "Hop", "HopEdges", "Picker"]


@dataclass(frozen=True, eq=False)
class HopEdges:
    """The edges drawn for a frontier; ``indices`` is filled in later.

    Attributes:
        indptr: Shape ``(len(frontier) + 1,)``: the edges of frontier vertex ``i`` are ``indptr[i]:indptr[i + 1]``.
        indices: Shape ``(num_edges,)``, local ids of the source vertices.
        positions: Shape ``(num_edges,)``, places in the graph's CSC.
        weights: Shape ``(num_edges,)``, float32, where the picker makes any.
    """

    indptr: Tensor
    indices: Tensor
    positions: Tensor
    weights: Tensor | None = None

    def head(self, count: int) -> HopEdges:
        """The first ``count`` edges (``indptr`` is shared, and must be right for them)."""
        weights = None if self.weights is None else self.weights[:count]
        return HopEdges(self.indptr, self.indices[:count], self.positions[:count], weights)


@dataclass(frozen=True, eq=False)
class Hop:
    """One hop along one edge type.

    Attributes:
        csc: The edges to draw from.
        frontier: Ids of the vertices that draw, shape ``(n,)``; repeated ones may be among them.
        key: Random key of this hop and edge type.
        layer_key: Random key of this hop, the same for all edge types.
        batch_key: Random key of the batch.
        scratch: This thread's working memory.
        dtype: Of local ids.
        pool: Where the result's memory comes from.
        drawn_as: The number that each frontier vertex's random numbers are drawn for, shape ``(n,)``. None: its id.
        until: The latest time that an edge of each frontier vertex may have, shape ``(n,)``; None: none is told.
    """

    csc: CSC
    frontier: npt.NDArray[Any]
    key: np.uint64
    layer_key: np.uint64
    batch_key: np.uint64
    scratch: Scratch
    dtype: torch.dtype
    pool: EdgeMemory
    drawn_as: npt.NDArray[Any] | None = None
    until: npt.NDArray[np.int64] | None = None

    @property
    def counters(self) -> npt.NDArray[Any]:
        """What distinguishes the random numbers of the frontier's vertices, shape ``(n,)``."""
        return self.frontier if self.drawn_as is None else self.drawn_as

    def edges(self, offsets: npt.NDArray[Any], *, weighted: bool = False) -> HopEdges:
        """Room for the edges of each frontier vertex, ``offsets`` being the ``indptr``; positions are yet to be set."""
        n, total = len(self.frontier), int(offsets[-1])
        specs = [((n + 1,), self.dtype), ((total,), self.dtype), ((total,), self.csc.indices.dtype)]
        if weighted:
            specs.append(((total,), torch.float32))
        indptr, indices, positions, *weights = self.pool.take_many(*specs)
        indptr.numpy()[:] = offsets
        return HopEdges(indptr, indices, positions, weights[0] if weights else None)


class EdgeMemory(Protocol):
    """Gives memory for drawn edges: a ``BufferPool``, or scratch for what does not outlive the batch."""

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """Uninitialised tensors of these shapes and dtypes."""


class Picker(Protocol):
    """Chooses edges of a frontier; a pure function of the hop, called from any number of threads."""

    def pick(self, hop: Hop) -> HopEdges:
        """The edges drawn, positions (and weights) filled in.

        Raises:
            FormatError: The graph's ``indptr`` is damaged.
        """
