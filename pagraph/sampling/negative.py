"""Pairs of vertices: local ids for their ends, and draws of negative pairs, uniform or hard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import as_ids, check_range
from ..system.arrays import Array
from ..system.checks import as_flag, as_integer
from .edge_values import MadeOfFields
from .hop import Scratch
from .pickers import measure_frontier
from .sampler import id_dtype_of
from .times import MISSING, ticks_of

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph

    Pairs = Mapping[EdgeType, tuple[Tensor, Tensor]]

_HARD_TRIES = 16
"""Rejected draws before all candidates are scanned, which takes as long as some thousand draws."""


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
            in_order = self._weights if self._order is None else self._weights[self._order]
            self._sums = np.cumsum(in_order)

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
        if self._order is not None:
            places = self._order[places]
        return torch.from_numpy(places)

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
        arrays = (self._weights, self._order, self._times)
        contents = [b"" if array is None else array.data for array in arrays]
        parts = [hashlib.blake2b(content) for content in contents]
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
            np.uint64(key), sources, owned, *self._rows, ids, sums, count, _HARD_TRIES, out.numpy()
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
