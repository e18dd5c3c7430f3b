"""Hard negatives: destinations that are popular, or the batch's own, and that are no neighbours of
their sources."""

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
"""Draws until all candidates are looked at, which takes as long as some thousand draws."""


@dataclass(frozen=True, eq=False)
class HardNegatives:
    """``k`` pairs for each positive one, from its source to destinations that are hard to tell from
    its own.

    The destination of the positive pair is never drawn unless ``exclude_edges`` is False, nor is it
    within the batch. A source for which no destination is left, since it leads to all of them, gets
    no pair.

    Args:
        k: Pairs for each positive one, with replacement.
        power: Draw in proportion to the in-degree to this power: 0 uniformly, 0.75 as word2vec
            (Mikolov et al., NeurIPS 2013, section 2.2), where vertices without in-edges are never
            drawn.
        among: Draw these vertices of the destination's type only: ids, or a mask of all; or a
            mapping from vertex type to either, in which types may be missing. Default: all.
        in_batch: Draw from the destinations of the batch's positive pairs, each as often as it is
            there.
        exclude_edges: Draw no destination that an edge of the type leads to from the source. The
            edges are sorted by source once, and kept so in memory, 4 or 8 bytes each.

    Raises:
        TypeError: ``k`` is not an integer, ``power`` no number, a flag no flag, or ``among`` holds
            something else than ids or masks.
        ValueError: ``k`` is below 1; ``power`` negative, infinite or NaN, or given with
            ``in_batch``; a mask is of another number of vertices, or nothing is left to draw.
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
            raise ValueError(f"power must be a finite number from 0 on, got {self.power}")
        for name in ("in_batch", "exclude_edges"):
            object.__setattr__(self, name, as_flag(name, getattr(self, name)))
        if self.in_batch and self.power:
            raise ValueError(
                f"power must be 0 within the batch, where pairs say how often, got {self.power}"
            )

    @cached_property
    def _made(self) -> MadeOfFields[HardEnds]:
        return MadeOfFields()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_made"}

    def ends(self, csc: CSC, node_type: str) -> HardEnds:
        """Draws destinations along these edges; memoized as long as they live. Raises as the
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
    """Destinations that :class:`HardNegatives` draws along the edges of one type; safe from any
    number of threads.

    Attributes:
        chances: Probability of each vertex to be drawn, edges aside, shape ``(num_dst,)``, float64;
            0 within the batch, whose vertices are read anyway.
    """

    def __init__(self, settings: HardNegatives, csc: CSC, node_type: str) -> None:
        self._settings = settings
        self.num_dst: int = csc.num_dst
        rows = csc.transpose() if settings.exclude_edges else None  # a stable sort: rows ascend
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
            own: The destination of the positive pair of each, shape ``(n,)``.
            batch: The destinations of all positive pairs.
            key: Any 64-bit number.

        Returns:
            Shape ``(n,)``, int64; -1 where no destination is left.

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
    """A mask of the vertices of one type that may be drawn; None: all."""
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
    """The hard negatives that a batch of pairs gets; stands where ``PairNegatives`` does.

    Attributes:
        amount: Negatives for each pair; a batch of ``p`` pairs gets ``ceil(p * amount)``, of which
            number ``j`` belongs to pair ``j % p``.
        dst: Draws their destinations.
        has_sources: They have sources of their own, those of their pairs; else they are other
            destinations for these.
    """

    amount: float
    dst: HardEnds
    has_sources: bool
    src = None

    def draw(self, src: Tensor, dst: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """The pair that each negative belongs to, and its destination, both of shape ``(q,)``.

        Raises:
            ValueError: A pair gets none, where each must have as many.
        """
        owners = torch.arange(math.ceil(len(src) * self.amount), device="cpu") % max(1, len(src))
        drawn = self.dst.draw(src[owners], dst[owners], dst, key)
        found = drawn >= 0
        if not self.has_sources and not found.all():
            lonely = int(src[owners][~found][0])
            raise ValueError(
                f"each triplet needs a negative, got none for source {lonely}, which leads to all "
                "that may be drawn"
            )
        return owners[found], drawn[found]
