"""Pairs of vertices: local ids for their ends, and draws of negative pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..system.arrays import Array
from .hop import Scratch
from .pickers import measure_frontier
from .sampler import id_dtype_of
from .times import MISSING, ticks_of

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph

    Pairs = Mapping[EdgeType, tuple[Tensor, Tensor]]


def compact_pairs(
    graph: Graph, groups: Sequence[Pairs], dtype: torch.dtype
) -> tuple[dict[str, Tensor], list[dict[EdgeType, tuple[Tensor, Tensor]]]]:
    """Number the vertices of all pairs by first occurrence, like ``dgl.compact_graphs``.

    The order of occurrence is by group, then edge type, then sources before destinations.

    Args:
        graph: Defines vertex and edge types.
        groups: Sources and destinations by edge type, as the graph's ids; types may be missing.
        dtype: Id dtype of the result.

    Returns:
        The graph's ids of the vertices, for all types; and the groups with local ids, for all edge
        types.
    """
    types = graph.node_types
    tables = dict(zip(types, Scratch.of_this_thread().tables(len(types)), strict=True))
    for ntype, table in tables.items():
        table.reset(None, graph.num_nodes_of(ntype), id_dtype_of(graph))
    nothing = torch.empty(0, dtype=dtype, device="cpu")
    local = []
    for group in groups:
        numbered = {}
        for etype in graph.edge_types:
            ends = group.get(etype, (nothing, nothing))
            places = tuple(torch.empty(len(ids), dtype=dtype, device="cpu") for ids in ends)
            for ntype, ids, place in zip((etype[0], etype[2]), ends, places, strict=True):
                if len(ids):
                    tables[ntype].relabel(np.ascontiguousarray(ids.numpy()), place.numpy())
            numbered[etype] = (places[0], places[1])
        local.append(numbered)
    return {
        ntype: torch.from_numpy(table.nodes).to(dtype, copy=True) for ntype, table in tables.items()
    }, local


# Draws after which a pair is left out. If half of all pairs are edges, one in 2**64 is missing.
_TRIES = 64


class NegativePairs(Protocol):
    """Draws the negative pairs of one edge type."""

    @property
    def k(self) -> int:
        """Pairs per positive edge."""

    @property
    def keeps_sources(self) -> bool:
        """Whether sources are those of the positive edges, so that only destinations are drawn."""

    def draw(
        self, csc: CSC, edge_type: EdgeType, pairs: tuple[Tensor, Tensor], key: int
    ) -> tuple[Tensor, Tensor]:
        """Draw negative pairs; returns their sources and destinations.

        Args:
            csc: The edges of the type.
            edge_type: The edge type.
            pairs: Sources and destinations of the batch's positive edges, each of shape ``(n,)``.
            key: Any 64-bit number.
        """

    def chances(self, csc: CSC, edge_type: EdgeType) -> Tensor | float:
        """Probability of each vertex of the destination's type to be drawn: shape ``(num_dst,)``,
        or one number for all."""


@dataclass(frozen=True)
class UniformNegatives:
    """Draws ``k`` pairs for each positive edge, from its source to uniform destinations.

    Pairs may be edges of the graph. Mirrors
    ``dgl.dataloading.negative_sampler.PerSourceUniform``.

    Args:
        k: Pairs per positive edge.
    """

    k: int
    keeps_sources = True

    def draw(
        self, csc: CSC, edge_type: EdgeType, pairs: tuple[Tensor, Tensor], key: int
    ) -> tuple[Tensor, Tensor]:
        """See :class:`NegativePairs`."""
        from .kernels import edges

        src, _ = pairs
        dst = torch.empty(len(src) * self.k, dtype=src.dtype, device="cpu")
        if len(dst):
            edges.uniform_ends(np.uint64(key), self.k, csc.num_dst, dst.numpy())
        return src.repeat_interleave(self.k), dst

    def chances(self, csc: CSC, edge_type: EdgeType) -> float:
        """See :class:`NegativePairs`."""
        return 1 / max(1, csc.num_dst)


@dataclass(frozen=True)
class GlobalUniformNegatives:
    """Draws up to ``k`` pairs for each positive edge, uniformly from all pairs that are no edges.

    There are fewer only in graphs so small or dense that such pairs are hard to find. Mirrors
    ``dgl.dataloading.negative_sampler.GlobalUniform``.

    Args:
        k: Pairs per positive edge.
        exclude_self_loops: Exclude pairs of a vertex with itself.
        replace: Allow repeated pairs in a batch.
    """

    k: int
    exclude_self_loops: bool = True
    replace: bool = False
    keeps_sources = False

    def draw(
        self, csc: CSC, edge_type: EdgeType, pairs: tuple[Tensor, Tensor], key: int
    ) -> tuple[Tensor, Tensor]:
        """See :class:`NegativePairs`."""
        from .kernels import edges

        csc = csc.scattered
        src, _ = pairs
        asked = len(src) * self.k if min(csc.num_src, csc.num_dst) else 0
        if csc.pages is not None and asked:
            _need_first_rows(csc, np.uint64(key), asked)
        ends = torch.empty((2, asked), dtype=src.dtype, device="cpu")
        # Size of the hash set of pairs, at most half full; 0 if pairs may repeat.
        size = 0 if self.replace else 1 << (2 * asked).bit_length()
        found = edges.global_pairs(
            np.uint64(key),
            *csc.arrays,
            csc.num_src,
            self.exclude_self_loops and edge_type[0] == edge_type[2],
            np.full(size, -1, dtype=np.int64),
            _TRIES,
            ends[0].numpy(),
            ends[1].numpy(),
        )
        # Copies, since views would keep the memory of all requested pairs.
        return ends[0, :found].clone(), ends[1, :found].clone()

    def chances(self, csc: CSC, edge_type: EdgeType) -> float:
        """See :class:`NegativePairs`."""
        return 1 / max(1, csc.num_dst)


def _need_first_rows(csc: CSC, key: np.uint64, count: int) -> None:
    """Load the pages of the rows that the pairs' first tries read; nearly all of these succeed."""
    from .kernels import edges

    dst = np.empty(count, dtype=np.int64)
    edges.first_ends(key, csc.num_dst, dst)
    starts, degrees, _ = measure_frontier(csc, dst, Scratch.of_this_thread(), -1, False)
    assert csc.pages is not None
    csc.pages.need_edges(starts, degrees)


class NegativeEnds:
    """Draws vertices of one type, with replacement, as a pure function of a key; thread-safe.

    Args:
        num_nodes: Number of vertices of the type.
        weight: Shape ``(num_nodes,)``, finite and not negative: vertices are drawn in proportion to
            it. Default: uniformly.
        time: Shape ``(num_nodes,)``, integers or floats: a vertex is not drawn for a pair with an
            earlier time, and never if its time is missing.
        name: Name of the weight, for errors.

    Raises:
        TypeError: The weight is not a tensor of numbers.
        ValueError: There is not one weight per vertex; one is negative, infinite or NaN; or all are
            0.

    Example:
        >>> NegativeEnds(3, weight=torch.tensor([0.0, 2.0, 0.0])).draw(4, key=1)
        tensor([1, 1, 1, 1])
    """

    def __init__(
        self,
        num_nodes: int,
        weight: Tensor | None = None,
        time: Tensor | None = None,
        *,
        name: str = "weight",
    ) -> None:
        self.num_nodes = num_nodes
        self._weights = None if weight is None else _checked(weight, num_nodes, name)
        self._order: Array | None = None
        self._times: Array | None = None
        if time is not None:
            ticks = ticks_of("time", time).numpy()
            # Sorted by time, so that vertices in a window are contiguous. Missing times come first,
            # and are left out.
            self._order = np.argsort(ticks, kind="stable")[int((ticks == MISSING).sum()) :]
            self._times = ticks[self._order]
        self._sums: Array | None = None
        # Running sums in this order, so that a draw by weight is a binary search in them.
        if self._weights is not None:
            self._sums = np.cumsum(
                self._weights if self._order is None else self._weights[self._order]
            )

    def draw(
        self, count: int, key: int, until: Tensor | None = None, since: Tensor | None = None
    ) -> Tensor:
        """Draw ``count`` vertices.

        Args:
            count: Number of draws.
            key: Any 64-bit number.
            until: Shape ``(count,)``, int64: upper limit of each one's ticks. If no vertex (of any
                weight) is that early, the earliest of all is taken, as in PyG. Needs ``time``.
            since: Shape ``(count,)``, int64: ticks that each must be above. If no vertex (of
                positive weight) is between both limits, the last one before is taken.

        Returns:
            Shape ``(count,)``, int64.

        Raises:
            ValueError: There are no vertices to draw from.
        """
        from .kernels import weighted

        num_places = self.num_nodes if self._order is None else len(self._order)
        places = np.empty(count, np.int64)
        if count and not num_places:
            which = " with a time" if self.num_nodes else ""
            raise ValueError(
                f"negative pairs need at least 1 vertex{which} to draw from, got 0 for {count} "
                "pairs"
            )
        begins = np.zeros(count, np.int64)
        ends = np.full(count, num_places, np.int64)
        if until is not None and self._times is not None:
            ends = np.searchsorted(self._times, until.numpy(), side="right").astype(np.int64)
            if since is not None:
                begins = np.searchsorted(self._times, since.numpy(), side="right").astype(np.int64)
        if self._sums is None:
            weighted.uniform_places(np.uint64(key), begins, ends, places)
        else:
            weighted.weighted_places(np.uint64(key), begins, ends, self._sums, places)
        return torch.from_numpy(places if self._order is None else self._order[places])

    @property
    def chances(self) -> Tensor:
        """Probability of each vertex to be drawn without time limits, shape ``(num_nodes,)``,
        float64."""
        if self._weights is None:
            return torch.full(
                (self.num_nodes,), 1 / max(1, self.num_nodes), dtype=torch.float64, device="cpu"
            )
        return torch.from_numpy(self._weights / self._weights.sum())

    @cached_property
    def _identity(self) -> tuple[int, str]:
        # By content, so that two loaders with equal weights can share a cache.
        parts = [
            hashlib.blake2b(b"" if a is None else a.data)
            for a in (self._weights, self._order, self._times)
        ]
        return self.num_nodes, "-".join(part.hexdigest()[:16] for part in parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NegativeEnds) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"NegativeEnds({self.num_nodes}, {self._identity[1]})"


def _checked(weight: Any, num_nodes: int, name: str) -> Array:
    """The weights as float64, checked; raises as :class:`NegativeEnds`."""
    if not isinstance(weight, Tensor) or weight.is_complex():
        got = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} must be a tensor of numbers, got {got}")
    if weight.shape != (num_nodes,):
        raise ValueError(
            f"{name} must have one number per vertex ({num_nodes}), got shape {tuple(weight.shape)}"
        )
    weights: Array = weight.detach().cpu().to(torch.float64, copy=True).numpy()
    wrong = ~((weights >= 0) & np.isfinite(weights))
    if wrong.any():
        raise ValueError(f"{name} must be finite and not negative, got {weights[wrong][0]}")
    if num_nodes and not weights.any():
        raise ValueError(f"{name} must have a positive number, got only 0")
    return weights
