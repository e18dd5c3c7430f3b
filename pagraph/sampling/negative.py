"""Negative pairs for link prediction, as pure functions of the graph, the positive edges and a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..csc import CSC

__all__ = ["GlobalUniformNegatives", "NegativePairs", "UniformNegatives"]

_TRIES = 64  # draws until a pair that is no edge is given up: enough unless nearly all pairs are edges


class NegativePairs(Protocol):
    """Draws the negative pairs of one edge type."""

    @property
    def k(self) -> int:
        """Pairs for each positive edge."""

    @property
    def keeps_sources(self) -> bool:
        """Whether the sources are those of the positive edges, so that only destinations are drawn."""

    def draw(self, csc: CSC, src: Tensor, key: int, *, loops_possible: bool) -> tuple[Tensor, Tensor]:
        """Sources and destinations.

        Args:
            csc: The edges of the type.
            src: Sources of the batch's positive edges, shape ``(n,)``.
            key: Any 64-bit number.
            loops_possible: Whether both ends are of one vertex type.
        """


@dataclass(frozen=True)
class UniformNegatives:
    """``k`` pairs for each positive edge, from its source to uniform destinations.

    They may be edges of the graph. Mirrors ``dgl.dataloading.negative_sampler.PerSourceUniform``.
    """

    k: int

    @property
    def keeps_sources(self) -> bool:
        """See :class:`NegativePairs`."""
        return True

    def draw(self, csc: CSC, src: Tensor, key: int, *, loops_possible: bool) -> tuple[Tensor, Tensor]:
        """See :class:`NegativePairs`."""
        from . import _negative

        dst = torch.empty(len(src) * self.k, dtype=src.dtype)
        if len(dst):
            _negative.uniform_ends(np.uint64(key), self.k, csc.num_dst, dst.numpy())
        return src.repeat_interleave(self.k), dst


@dataclass(frozen=True)
class GlobalUniformNegatives:
    """Up to ``k`` pairs for each positive edge, uniform over all pairs that are no edge.

    Fewer come only from graphs so small or dense that such pairs are hard to find. Mirrors
    ``dgl.dataloading.negative_sampler.GlobalUniform``.

    Args:
        k: Pairs per positive edge.
        exclude_self_loops: No pair of a vertex with itself.
        replace: The same pair may come twice in a batch.
    """

    k: int
    exclude_self_loops: bool = True
    replace: bool = False

    @property
    def keeps_sources(self) -> bool:
        """See :class:`NegativePairs`."""
        return False

    def draw(self, csc: CSC, src: Tensor, key: int, *, loops_possible: bool) -> tuple[Tensor, Tensor]:
        """See :class:`NegativePairs`."""
        from . import _negative

        asked = len(src) * self.k if min(csc.num_src, csc.num_dst) else 0
        ends = torch.empty((2, asked), dtype=src.dtype)
        size = 0 if self.replace else 1 << (2 * asked).bit_length()
        found = _negative.global_pairs(
            np.uint64(key),
            csc.indptr.numpy(),
            csc.indices.numpy(),
            csc.num_src,
            self.exclude_self_loops and loops_possible,
            np.full(size, -1, dtype=np.int64),
            _TRIES,
            ends[0].numpy(),
            ends[1].numpy(),
        )
        return ends[0, :found].clone(), ends[1, :found].clone()
