"""How much each vertex matters as a source, over all edges of a graph (FastGCN's distribution)."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .rows import in_order

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph import CSC
    from .weights import EdgeWeights

    Array = npt.NDArray[Any]

__all__ = ["Importance", "importance_of"]

_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[CSC | EdgeWeights, Importance] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Importance:
    """A distribution over the source vertices of one edge type, ``q``.

    Attributes:
        sums: Shape ``(num_src,)``, float64: running sums of the unnormalised ``q``.
        num_positive: Vertices with ``q > 0``.
    """

    sums: Array
    num_positive: int

    def share(self, vertices: Array) -> Array:
        """``q`` of some vertices."""
        before = np.where(vertices > 0, self.sums[vertices - 1], 0.0)
        share: Array = (self.sums[vertices] - before) / self.sums[-1]
        return share


def importance_of(csc: CSC, weights: EdgeWeights | None) -> Importance:
    """Sums of squares of the row-normalised weights by source; computed once and kept as long as the weights live.

    Args:
        csc: The edges.
        weights: Theirs; None stands for weights of 1, and the result is kept as long as the CSC.

    Raises:
        ValueError: The CSC is damaged.
    """
    owner = csc if weights is None else weights
    with _lock:
        importance = _known.get(owner)
        if importance is None:
            importance = _known[owner] = _measure(csc, in_order(weights))
        return importance


def _measure(csc: CSC, weights: Array) -> Importance:
    from . import _layerwise

    csc.validate()
    squares = np.zeros(csc.num_src, dtype=np.float64)
    _layerwise.column_squares(csc.indptr.numpy(), csc.indices.numpy(), weights, squares)
    sums = np.cumsum(squares)
    return Importance(sums, int(np.count_nonzero(np.diff(sums, prepend=0.0))))
