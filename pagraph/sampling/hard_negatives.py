"""Hard negatives: non-neighbours that are popular destinations, or destinations of the same
batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import as_ids, check_range
from ..system.checks import as_flag, as_integer
from .edge_values import MadeOfFields

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType

_TRIES = 16
"""Rejected draws before all candidates are scanned, which takes as long as some thousand draws."""


@dataclass(frozen=True, eq=False)
class HardNegatives:
    """Draws ``k`` negative pairs for each positive one, from its source to destinations that are
    hard to distinguish from its own.

    A positive pair's own destination is not drawn for it, except with ``exclude_edges=False`` and
    without ``in_batch``. A source with edges to all candidates gets no negatives.

    Args:
        k: Pairs per positive pair, drawn with replacement.
        power: Draw in proportion to the in-degree to this power: 0 draws uniformly, 0.75 like
            word2vec (Mikolov et al., NeurIPS 2013, section 2.2). Above 0, vertices without in-edges
            are never drawn.
        among: Draw only from these vertices of the destination's type: ids, or a mask of all
            vertices; or a mapping from vertex type to either. Default, also for missing types: all.
        in_batch: Draw from the destinations of the batch's positive pairs, in proportion to how
            often each occurs.
        exclude_edges: Draw no destination to which the source has an edge of this type. Keeps a
            copy of the edges in memory, sorted by source, 4 or 8 bytes each.

    Raises:
        TypeError: ``k`` is not an integer, ``power`` is not a number, a flag is not a bool, or
            ``among`` has neither ids nor masks.
        ValueError: ``k`` is below 1; ``power`` is negative, infinite or NaN, or given with
            ``in_batch``; a mask has another length than there are vertices; or no vertex can be
            drawn.
        IndexError: An id is outside the graph.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 0, 1], [1, 2, 2])
        >>> etype, pairs = graph.edge_types[0], (torch.tensor([0]), torch.tensor([1]))
        >>> HardNegatives(k=2).draw(graph.csc, etype, pairs, key=1)
        (tensor([0, 0]), tensor([0, 0]))
    """

    k: int = 1
    power: float = 0.0
    among: Any = None
    in_batch: bool = False
    exclude_edges: bool = True
    keeps_sources = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", as_integer("k", self.k, least=1))
        if isinstance(self.power, bool) or not isinstance(self.power, int | float):
            raise TypeError(f"power must be a number, got {self.power!r}")
        if not (self.power >= 0 and math.isfinite(self.power)):
            raise ValueError(f"power must be finite and not negative, got {self.power}")
        for name in ("in_batch", "exclude_edges"):
            object.__setattr__(self, name, as_flag(name, getattr(self, name)))
        if self.in_batch and self.power:
            raise ValueError(f"power must be 0 if in_batch is True, got {self.power}")

    @cached_property
    def _made(self) -> MadeOfFields[HardEnds]:
        return MadeOfFields()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_made"}

    def ends(self, csc: CSC, node_type: str) -> HardEnds:
        """Draws destinations along these edges; cached while they are alive. Raises as the
        class."""
        return self._made.get(csc, [], lambda: HardEnds(self, csc, node_type))

    def draw(
        self, csc: CSC, edge_type: EdgeType, pairs: tuple[Tensor, Tensor], key: int
    ) -> tuple[Tensor, Tensor]:
        """See :class:`~pagraph.sampling.negative.NegativePairs`."""
        src, own = (ids.repeat_interleave(self.k) for ids in pairs)
        dst = self.ends(csc, edge_type[2]).draw(src, own, pairs[1], key)
        return src[dst >= 0], dst[dst >= 0].to(src.dtype)

    def chances(self, csc: CSC, edge_type: EdgeType) -> Tensor:
        """See :class:`~pagraph.sampling.negative.NegativePairs`."""
        return self.ends(csc, edge_type[2]).chances


class HardEnds:
    """Draws destinations for :class:`HardNegatives` along the edges of one type; thread-safe.

    Attributes:
        num_dst: Number of vertices of the destination's type.
        chances: Probability of each vertex to be drawn, ignoring exclusion, shape ``(num_dst,)``,
            float64. All 0 for draws within the batch, whose vertices are read anyway.
    """

    def __init__(self, settings: HardNegatives, csc: CSC, node_type: str) -> None:
        self._settings = settings
        self.num_dst: int = csc.num_dst
        rows = csc.transpose() if settings.exclude_edges else None  # with ascending rows
        nothing = np.empty(0, dtype=np.int64)
        self._rows = (nothing, nothing) if rows is None else rows.arrays
        self._mask = _mask_of(settings.among, node_type, csc.num_dst)
        weights = torch.ones(csc.num_dst, dtype=torch.float64, device="cpu")
        if settings.power:
            weights = csc.indptr.diff().double() ** settings.power * (csc.indptr.diff() > 0)
        if self._mask is not None:
            weights *= self._mask
        if csc.num_dst and not weights.any():
            raise ValueError(
                f"among must hold a vertex that can be drawn, got none of type {node_type!r}"
            )
        self.chances: Tensor = weights / weights.sum() * (not settings.in_batch)
        self._ids = nothing
        self._sums = np.empty(0, dtype=np.float64)
        self._count = csc.num_dst
        if not settings.in_batch and (settings.power or self._mask is not None):
            self._set(weights)

    def _set(self, weights: Tensor) -> None:
        ids = weights.nonzero().squeeze(1)
        self._ids = ids.numpy()
        self._sums = weights[ids].cumsum(0).numpy()
        self._count = len(ids)

    def draw(self, src: Tensor, own: Tensor, batch: Tensor, key: int) -> Tensor:
        """Draw a destination for each source.

        Args:
            src: Sources, shape ``(n,)``.
            own: The destination of each one's positive pair, shape ``(n,)``.
            batch: The destinations of all positive pairs.
            key: Any 64-bit number.

        Returns:
            Shape ``(n,)``, int64; -1 if there is no allowed destination.

        Raises:
            IndexError: A source is outside the graph.
        """
        from .kernels import edges

        ids = self._ids
        sums = self._sums
        count = self._count
        if self._settings.in_batch:
            found, times = torch.unique(batch.long(), return_counts=True)
            if self._mask is not None:
                allowed = self._mask[found]
                found = found[allowed]
                times = times[allowed]
            ids = found.numpy()
            sums = times.double().cumsum(0).numpy()
            count = len(found)
        if len(self._rows[0]):
            check_range("sources", src, len(self._rows[0]) - 1, IndexError)
        if not (self._settings.exclude_edges or self._settings.in_batch):
            own = torch.full_like(own, -1)
        out = torch.empty(len(src), dtype=torch.int64, device="cpu")
        sources, owned = (each.long().contiguous().numpy() for each in (src, own))
        edges.hard_ends(
            np.uint64(key), sources, owned, *self._rows, ids, sums, count, _TRIES, out.numpy()
        )
        return out


def _mask_of(among: Any, node_type: str, num_nodes: int) -> Tensor | None:
    """Mask of the vertices of a type that may be drawn, or None for all; raises as
    :class:`HardNegatives`."""
    if isinstance(among, Mapping):
        among = among.get(node_type)
    if among is None:
        return None
    given = among if isinstance(among, Tensor) else torch.from_numpy(np.asarray(among))
    if given.dtype == torch.bool:
        if given.shape != (num_nodes,):
            got = tuple(given.shape)
            raise ValueError(
                f"among must have shape ({num_nodes},) as a mask of vertices of {node_type!r}, got "
                f"{got}"
            )
        return given.cpu()
    ids = as_ids("among", given)
    check_range("among", ids, num_nodes, IndexError)
    mask = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")
    mask[ids.long()] = True
    return mask


@dataclass(frozen=True)
class HardPairs:
    """Hard negatives of a batch of pairs, in place of ``PairNegatives``.

    Attributes:
        amount: Negatives per pair. A batch of ``p`` pairs gets ``ceil(p * amount)``; number ``j``
            belongs to pair ``j % p``.
        dst: Draws their destinations.
        has_sources: Whether negatives are pairs, with the source of their pair; else they are other
            destinations for it.
    """

    amount: float
    dst: HardEnds
    has_sources: bool
    src = None

    def draw(self, src: Tensor, dst: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """Draw negatives; returns the pair and the destination of each, both of shape ``(q,)``.

        Raises:
            ValueError: ``has_sources`` is False, so each pair needs its number of negatives, and
                one has no allowed destination.
        """
        owners = torch.arange(math.ceil(len(src) * self.amount), device="cpu") % max(1, len(src))
        drawn = self.dst.draw(src[owners], dst[owners], dst, key)
        found = drawn >= 0
        if not self.has_sources and not found.all():
            lonely = int(src[owners][~found][0])
            raise ValueError(
                f"each triplet needs a negative, got none for source {lonely}, which has edges to "
                "all candidates"
            )
        return owners[found], drawn[found]
