"""Workload: what a loader samples and reads, for rankings of its vertices and edges, for counting
its first epoch, and for sharing caches between loaders."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..graph.graph import Graph
from ..sampling.batches import expanded
from .auto import Learned, auto, refills
from .policy import Rank, Ranking, apply_policy, degree, descending
from .presample import AccessCounts, most_repeats
from .vip import expected_accesses

if TYPE_CHECKING:
    from ..graph.graph import EdgeType
    from ..sampling.batches import Found
    from ..sampling.sampler import MiniBatchSampler
    from ..seeds.order import BatchOrder, SeedOrder
    from .policy import Policy, RowType

_ENOUGH = 0.5
"""Share of an epoch's batches that must be counted before ranking. With less, the next epoch is
counted too."""

_MOST_EPOCHS = 2
"""Counting stops after the batches of this many epochs, so that counters of 1 or 2 bytes never
overflow."""


class FirstEpoch:
    """Counts the input rows that are read, and ranks by them once, between two epochs.

    For each vertex type it counts the field that is read first. Thread-safe.

    Args:
        num_nodes: Vertex type to its number of vertices.
        num_hops: Hops of a mini-batch; 0 if reads do not say which hop found a vertex.
        batches: Batches of an epoch.
        repeats: Most reads of one vertex in a batch; None if unknown.
        rank: Makes a ranking from the counts.
    """

    def __init__(
        self,
        num_nodes: Mapping[str, int],
        *,
        num_hops: int,
        batches: int,
        repeats: int | None = None,
        rank: Callable[[AccessCounts], Rank],
    ) -> None:
        self._most = max(1, _MOST_EPOCHS * batches)
        most = 2**32 - 1 if repeats is None else self._most * max(1, repeats)
        self._counts = AccessCounts(num_nodes, num_hops, most=most)
        self._batches = batches
        self._rank = rank
        self._lock = threading.Lock()
        self._standing_for: dict[str, Hashable] = {}
        self._reads = dict.fromkeys(num_nodes, 0)

    def add(self, key: Hashable, node_type: str, ids: Tensor, bounds: Sequence[int] | None) -> None:
        """Count a read of a field; ``bounds`` as for ``FieldSet.read``. Ids are in range.

        If reads have hops, those with fewer hops than a batch are of output nodes, and skipped.
        """
        num_hops = self._counts.num_hops
        if num_hops and (bounds is None or len(bounds) != num_hops + 1):
            return
        if self._standing_for.setdefault(node_type, key) != key:
            return
        with self._lock:
            if self._reads[node_type] >= self._most:
                return
            self._reads[node_type] += 1
        if not num_hops or bounds is None:
            bounds = [len(ids)]
        self._counts.add_reads(node_type, ids.cpu(), bounds)

    def ranking(self) -> Rank | None:
        """The ranking, if enough has been read; None otherwise."""
        with self._lock:
            self._counts.batches = max(self._reads.values(), default=0)
        if self._counts.batches < max(1.0, _ENOUGH * self._batches):
            return None
        return self._rank(self._counts)


class Sampled(NamedTuple):
    """A loader's current graph (in-edges are drawn), seeds and sampler.

    The sampler is None if only user code can sample.
    """

    graph: Graph
    seeds: Any
    sampler: MiniBatchSampler | None


@dataclass(frozen=True, eq=False)
class Workload:
    """Description of a loader's work, which each kind of loader fills in.

    Attributes:
        order: The batches.
        num_rows: Vertex and edge types to their numbers of rows.
        sampler: Samples as the loader does; None if only user code can.
        sampled: Returns what is sampled, when a ranking is made; or None if that is unknown.
        source: What loaders of one graph share: a ``Graph``, or any other object by identity.
        edge_dir: "in" or "out", the edges of ``source`` that are drawn.
        seeds: The order of the seeds, as ``sampler`` takes them; None if they are unknown before
            they are drawn.
        seed_reads: Returns the reads of each row of a type as a seed in an epoch, shape
            ``(num_rows,)``; or None if unknown.
        edge_types: Edge type of ``num_rows`` to the type of the same edges in the sampled graph.
    """

    order: BatchOrder
    num_rows: Mapping[RowType, int]
    sampler: MiniBatchSampler | None
    sampled: Callable[[], Sampled | None]
    source: object = None
    edge_dir: str = "in"
    seeds: SeedOrder | None = None
    seed_reads: Callable[[RowType], Tensor | None] = lambda row_type: None
    edge_types: Mapping[EdgeType, EdgeType] = field(default_factory=dict)

    def rank(self, policy: Policy, types: Collection[RowType]) -> dict[RowType, Ranking]:
        """Rank vertices by a policy, and edges by their expected draws.

        Edge types are left out if the sampler has no fan-outs. Raises the exceptions of
        ``pagraph.ranking.apply_policy``.
        """
        now = self.sampled()
        batch_size = self.order.batch_size or 1
        if now is None:
            return {}
        ranked: dict[RowType, Ranking] = {}
        vertices = [t for t in types if isinstance(t, str)]
        if vertices:
            settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": self.order.shuffle}
            by_type = apply_policy(
                policy, now.graph, now.seeds, now.sampler, self.order.seed or 0, **settings
            )
            ranked.update({t: by_type[t] for t in vertices})
        edges = [t for t in types if isinstance(t, tuple) and t in self.edge_types]
        expected = expected_accesses(*now, batch_size=batch_size) if edges else None
        if expected is not None and now.sampler is not None:
            for etype in edges:
                core_type = self.edge_types[etype]
                draws = edge_draws(expected, now.graph, now.sampler, core_type)
                ranked[etype] = rank_edges(now.graph, core_type, draws)
        return ranked

    def first_epoch(self, policy: Policy) -> FirstEpoch | None:
        """The counter of the first epoch, if the policy refills after it and it has a length."""
        if not refills(policy, self.sampler) or not self.order.has_length:
            return None
        batches = len(self.order)
        repeats = None
        if self.sampler is not None and self.seeds is not None:
            repeats = most_repeats(self.seeds, self.sampler)
        num_hops = 0 if self.sampler is None else self.sampler.num_hops
        return FirstEpoch(
            {t: n for t, n in self.num_rows.items() if isinstance(t, str)},
            num_hops=num_hops,
            batches=batches,
            repeats=repeats,
            rank=lambda counts: partial(self.rank, Learned(counts, batches)),
        )

    def share(self, policy: Policy) -> Share | None:
        """The key of the loaders that may use this one's cache; None if no other may.

        The degree does not depend on the seeds, so the training and the validation loader share one
        cache. ``auto`` needs a cache for the same graph, seeds, batch size, sampler and shuffling.
        But a loader that does not shuffle is assumed to evaluate: it uses the training loader's
        cache rather than sample epochs for its own ranking. Other policies may depend on anything.
        """
        if policy is degree:
            return Share(("degree", self.edge_dir))
        sampler = self.sampler
        order = self.seeds
        if policy is not auto or sampler is None or order is None:
            return None
        # A cache keeps its graph alive, so these ids stay valid. What is cheap to compare comes
        # first.
        workload = (
            _identity(self.source, sampler),
            order.batch_size,
            order.shuffle,
            sampler.cache_key,
            _Seeds(order),
        )
        return Share(("auto", self.edge_dir), workload, takes_any=not order.shuffle)


def edge_draws(
    expected: Found, graph: Graph, sampler: MiniBatchSampler, edge_type: EdgeType
) -> Tensor:
    """Expected draws of each in-edge of a vertex, over all hops and batches.

    With weights it is the mean over the vertex's in-edges.

    Args:
        expected: Expected expansions of the vertices.
        graph: The graph, reversed if necessary so that in-edges are drawn.
        sampler: A sampler with fan-outs; ValueError for others.
        edge_type: The type of the edges.

    Returns:
        Shape ``(num_dst,)``, float64.
    """
    blocks = sampler.hops
    if blocks is None or not blocks.has_fanouts:
        raise ValueError(
            "edges can be ranked for samplers with fan-outs only, got "
            f"{type(blocks or sampler).__name__}"
        )
    csc = graph.adjacency(blocks.edge_dir, edge_type)
    degrees = torch.diff(csc.indptr).double()
    weights = blocks.weights(
        graph, edge_type, lambda etype, name: graph.edge_fields(etype).get(name)
    )
    choice = degrees
    if weights is not None and weights.kept is not None:
        # Edges of weight 0 are never drawn.
        choice = torch.diff(weights.kept.indptr).double()
    draws = torch.zeros(csc.num_dst, dtype=torch.float64, device="cpu")
    for hop in range(expected.num_hops):
        fanout = blocks.fanout(hop, edge_type)
        if fanout < 0:
            picks = choice
        elif blocks.replace:
            picks = torch.where(choice > 0, float(fanout), 0.0)
        else:
            picks = choice.clamp(max=fanout)
        draws += expanded(expected, blocks, edge_type[2], hop) * picks
    return torch.where(degrees > 0, draws / degrees.clamp(min=1), 0.0)


def rank_edges(graph: Graph, edge_type: EdgeType, draws: Tensor) -> Ranking:
    """Rank all edges of a type by expected draws, which are equal for the in-edges of a vertex.

    Args:
        graph: As for :func:`edge_draws`.
        edge_type: As for :func:`edge_draws`.
        draws: Draws per epoch of each in-edge of a vertex, shape ``(num_dst,)``; see
            :func:`edge_draws`.

    Returns:
        Edge ids (not positions), in the CSC's dtype, and their draws.

    Raises:
        ValueError: ``draws`` does not have one entry for each destination, or the graph is damaged.
    """
    from . import _vip

    csc = graph.csc_of(edge_type)
    if draws.shape != (csc.num_dst,):
        raise ValueError(f"draws must have shape ({csc.num_dst},), got {tuple(draws.shape)}")
    csc.validate()
    draws = draws.double()
    ids = torch.empty(csc.num_edges, dtype=csc.indices.dtype, device="cpu")
    scores = torch.empty(csc.num_edges, dtype=torch.float64, device="cpu")
    # For the kernel, an empty array means that an edge's id is its position.
    edge_ids = ids[:0] if csc.edge_ids is None else csc.edge_ids
    # Sorting vertices is enough, and there are fewer of them than edges.
    order = descending(draws).numpy()
    _vip.expand_rows(
        order, csc.indptr.numpy(), edge_ids.numpy(), draws.numpy(), ids.numpy(), scores.numpy()
    )
    return Ranking(ids, scores, per_epoch=True)


@dataclass(frozen=True)
class Share:
    """Key by which loaders share a cache; equal keys mean equal rankings.

    Attributes:
        kind: The kind of ranking.
        workload: All that the ranking depends on besides the graph; None if it is nothing.
        takes_any: Whether the cache of another workload will do.
    """

    kind: Hashable
    workload: Hashable = None
    takes_any: bool = field(default=False, compare=False)

    def takes(self, other: Share | None) -> bool:
        """Whether a loader with this share may use the cache of one with the other."""
        return (
            other is not None
            and self.kind == other.kind
            and (self.takes_any or self.workload == other.workload)
        )


class _Seeds:
    """The seeds of an order, compared by value; they are hashed only when two are compared."""

    def __init__(self, order: SeedOrder) -> None:
        self._order = order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seeds) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """Hash of types, dtypes and ids (0.06 s for ten million)."""
        digest = hashlib.blake2b(digest_size=16)
        seeds = self._order.ids
        by_type = seeds if isinstance(seeds, Mapping) else {"": seeds}
        for name, ids in by_type.items():
            digest.update(f"{name}:{ids.dtype}:{len(ids)};".encode())
            digest.update(ids.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def _identity(graph: object, sampler: MiniBatchSampler) -> Hashable:
    """Key of the sampled graph, by its arrays and the fields that the sampler reads."""
    if not isinstance(graph, Graph):
        return id(graph)
    blocks = sampler.hops
    names = [] if blocks is None else [blocks.prob, blocks.time]
    owners = [*map(graph.edge_fields, graph.edge_types), *map(graph.node_fields, graph.node_types)]
    fields = [id(fields.get(name)) for fields in owners for name in names if name is not None]
    return tuple((etype, id(graph.csc_of(etype))) for etype in graph.edge_types), tuple(fields)
