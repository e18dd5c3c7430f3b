"""Places all vertices of a graph, for engines in which a machine fetches rows of the others.

What costs is the rows that an epoch reads from other parts, which is not the number of edges
between parts: with 10 neighbours a hop nearly all rows of a batch are two hops away. A search
lowers the *expected* number of such rows, in turns:

1. With the seeds of each part fixed, ``reads[v, p]``, how many batches of part ``p`` read vertex
   ``v``, follows by one pass over the edges a hop. ``v`` belongs where it is read most.
2. With the owners fixed, what a seed would read from others if it were part ``p``'s seed follows by
   one pass a hop in the other direction. It belongs where that is least.

A random half of the vertices may move at a time, since neighbours that all move at once would miss
each other. Parts are kept even by prices: a part with too much of something (vertices, in-edges,
training vertices) raises its price, and what is still too much is moved where it costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.fields import mask_of
from ..graph.graph import Graph
from ..options.partitioning import FANOUT, PLACED_BATCH
from ..system.arrays import Array, Float64Array, Int32Array, Int64Array
from ..system.progress import Progress, Ticks
from .extract import vertex_owners
from .methods.auto import MOST_METIS_EDGES, vertex_clusters
from .partition import Partition

SLACK = 0.05
"""How much more than the mean a part may have: of vertices, in-edges and training vertices."""
# An epoch validates and tests as well as it trains. The later passes matter half as much: a graph
# is trained on more often than it is tested.
_EVALUATED = 0.5
_TURNS = 24
_PATIENCE = 6  # turns without a better placement after which the search ends
_MOVABLE = 0.5  # share of the vertices that may move in a turn
_SAMPLE = 2**16
_PRICE_STEPS = 10
_INERTIA = 0.5
_PRICE_DECAY = 8  # turns after which prices move half as fast
_REPAIRS = 12
_TIGHTER = 0.15  # of the slack, by which a round of repairs aims below the one before
_TIGHTEST = 0.2
# Of the slack, what a part with too much is brought down to: the next kind then finds room.
_ENOUGH = 0.6
# In this order, each looks after itself and those before it: in-edges lie on few vertices, and
# vertices without any weight of the others are easily moved.
_VERTICES, _EDGES, _TRAIN = range(3)
_ORDER = np.array([_EDGES, _TRAIN, _VERTICES])
# Bytes a vertex of the search, besides four matrices of float32.
_VERTEX_BYTES = 90
_MATRICES = 4

Float32Array = npt.NDArray[np.float32]


def placement_bytes(num_nodes: int, num_parts: int) -> int:
    """Bytes that :func:`place_vertices` takes, besides a start by METIS."""
    return num_nodes * (_VERTEX_BYTES + 4 * _MATRICES * num_parts)


def place_vertices(
    partition: Partition,
    *,
    fanout: Sequence[int] | None = None,
    batch_size: int = PLACED_BATCH,
    seed: int = 0,
    progress: Progress | None = None,
) -> Partition:
    """Give every vertex one part, so that an epoch reads few rows from other parts.

    For engines such as DistDGL, whose machines own vertices and fetch what others own. The search
    begins with the parts as they are, each vertex where it is held at the lowest hop; of methods
    ``auto`` and ``metis`` also with METIS's parts of all vertices, for graphs of up to 16 M edges.
    The better end is taken. Vertices, in-edges and training vertices of a part are within 5 % of
    the mean, as far as single vertices allow.

    Validation and test vertices count half as much as those of training, all together; where there
    are none, the other vertices of the type do. Takes 90 bytes a vertex and 16 for each vertex and
    part.

    Args:
        partition: Parts of its training vertices, of which many change; a limit on replication is
            dropped.
        fanout: Neighbours that training samples per hop, along each edge type, the last entry for
            the seeds; -1 is all. Default: 10 in each of the partition's hops.
        batch_size: Seeds of a mini-batch, which reads a row once.
        seed: Seed of the search.
        progress: Called with the turns done and the most that there are.

    Returns:
        A partition whose ``owner`` is set; training vertices are where they are owned.

    Raises:
        ValueError: ``fanout`` has no entry.

    Example:
        >>> from pagraph.datasets import sbm
        >>> from pagraph.partition import partition_graph
        >>> placed = place_vertices(partition_graph(sbm(600), 2, method="hash"))
        >>> max(placed.owner.bincount().tolist()) <= 315
        True
        >>> torch.equal(placed.owner[placed.train], placed.parts)
        True
    """
    fanout = [FANOUT] * partition.hops if fanout is None else list(fanout)
    if not fanout:
        raise ValueError("fanout must have at least 1 entry, got 0")
    starts = [vertex_owners(partition).numpy()]
    whole = partition.merged
    is_small = whole.num_edges <= MOST_METIS_EDGES
    if partition.method in ("auto", "metis") and is_small and partition.num_parts > 1:
        starts.append(vertex_clusters(whole, partition.num_parts, seed=seed).numpy())
    # No start is the best everywhere: METIS's is on web graphs, that of training on RMAT graphs.
    best: _Placed | None = None
    ticks = Ticks(progress, _TURNS * len(starts))
    for start in starts:
        ticks.step(_TURNS)
        search = _Search(partition, fanout, batch_size, seed)
        found = search.run(start, ticks)
        if best is None or found.rank < best.rank:
            best = found
    ticks.finish()
    assert best is not None
    owner = torch.from_numpy(best.owner)
    begin = partition.numbering.begin(partition.train_type)
    evaluation = None
    if partition.evaluated is not None:
        evaluation = owner[partition.evaluated + begin]
    return replace(
        partition,
        parts=owner[partition.train + begin],
        owner=owner,
        evaluation=evaluation,
        dropped=None,
        lost=None,
    )


class _Placed:
    """A placement that a search came by: how uneven it is beyond what is allowed, and its rows."""

    def __init__(self, owner: Int32Array, excess: float, remote: float) -> None:
        self.owner = owner
        self.rank = (excess, remote)


class _Search:
    """The turns of :func:`place_vertices`; arrays are by number over all types."""

    def __init__(
        self, partition: Partition, fanout: Sequence[int], batch_size: int, seed: int
    ) -> None:
        self._graph = partition.graph
        self._numbering = partition.numbering
        self._num_parts = partition.num_parts
        self._fanout = fanout
        self._batch_size = batch_size
        self._rng = np.random.default_rng(seed % 2**64)
        self._seeds = seed_weights(partition)
        is_trained = np.zeros(self._graph.num_nodes, np.int64)
        begin = self._numbering.begin(partition.train_type)
        is_trained[(partition.train + begin).numpy()] = 1
        degrees = np.diff(partition.merged.csc.indptr.numpy()).astype(np.int64)
        self._weights = np.stack([np.ones_like(degrees), degrees, is_trained], 1)
        # A graph may have no edges: means are divided by.
        self._means = np.maximum(self._weights.sum(0) / self._num_parts, 1e-9)
        # No part can be below its heaviest vertex, nor all below the mean rounded up.
        least = np.maximum(np.ceil(self._means), self._weights.max(0, initial=0))
        self._limits = np.maximum(least, (1 + SLACK) * self._means).astype(np.int64)
        self._prices = np.zeros((self._num_parts, 3))

    def run(self, start: Int32Array, ticks: Ticks) -> _Placed:
        """Search from a start; the best of all turns."""
        owner = np.ascontiguousarray(start, np.int32)
        self._fill_empty(owner)
        best: _Placed | None = None
        since = 0
        for turn in range(_TURNS):
            reads, marginal = self._reads(owner)
            remote = float(reads.sum() - _own(reads, owner).sum())
            found = _Placed(owner.copy(), self._excess(owner), remote)
            since += 1
            if best is None or found.rank < best.rank:
                best = found
                since = 0
            ticks.add()
            if since == _PATIENCE or self._num_parts == 1:
                break
            costs = self._costs(owner, reads, marginal)
            del reads, marginal  # as large as the costs
            owner = self._turn(owner, costs, turn)
        assert best is not None
        return best

    def _excess(self, owner: Int32Array) -> float:
        """How far the worst part is above its limit; 0 where all are even."""
        over = self._loads(owner).max(0) / np.maximum(self._limits, 1) - 1
        return max(0.0, float(over.max()))

    def _loads(self, owner: Int32Array) -> Int64Array:
        loads = np.zeros((self._num_parts, 3), np.int64)
        for kind in range(3):
            # Sums of floats are exact up to 2**53.
            weights = self._weights[:, kind]
            loads[:, kind] = np.bincount(owner, weights, minlength=self._num_parts)
        return loads

    def _reads(self, owner: Int32Array) -> tuple[Float32Array, Float32Array]:
        """Batches of each part that are expected to read each vertex, and how much more of them
        one more draw adds; both of shape ``(num_nodes, num_parts)``."""
        from . import _placement

        shape = (len(owner), self._num_parts)
        # Seeds are read as well, by the part that owns them.
        draws = np.zeros(shape, np.float32)
        draws[np.arange(len(owner)), owner] = self._seeds
        total = draws.copy()
        for number in reversed(self._fanout):
            found = np.zeros(shape, np.float32)
            for edge_type in self._graph.edge_types:
                csc = self._graph.csc_of(edge_type)
                sources = self._numbering.rows(edge_type[0])
                targets = self._numbering.rows(edge_type[2])
                _placement.push_draws(*csc.arrays, draws[targets], number, found[sources])
            total += found
            draws = found
        # The same for all parts, and no whole number: a search would save batches, not rows.
        seeds = float(self._seeds.sum()) / self._num_parts
        batches = np.float32(max(1.0, seeds / self._batch_size))
        # A batch reads a row once: of n draws spread over b batches, b (1 - exp(-n / b)) hold it.
        total /= -batches
        marginal = np.exp(total, out=total)
        return batches * (1 - marginal), marginal

    def _costs(
        self, owner: Int32Array, reads: Float32Array, marginal: Float32Array
    ) -> Float32Array:
        """Rows read from other parts that a vertex stands for, by the part that would have it."""
        from . import _placement

        # A draw of what the part owns itself costs nothing.
        marginal[np.arange(len(owner)), owner] = 0
        costs = marginal
        for number in self._fanout:
            more = marginal.copy()
            for edge_type in self._graph.edge_types:
                csc = self._graph.csc_of(edge_type)
                sources = self._numbering.rows(edge_type[0])
                targets = self._numbering.rows(edge_type[2])
                _placement.pull_costs(*csc.arrays, costs[sources], number, more[targets])
            costs = more
        # As a seed it reads from others, as a row it is read by others: all parts but its own.
        costs *= self._seeds[:, None]
        costs -= reads
        return costs

    def _turn(self, owner: Int32Array, costs: Float32Array, turn: int) -> Int32Array:
        """The next placement: cheap, and even by prices and by moves."""
        from . import _placement

        # What a mean vertex has to gain is the unit of the prices; some of them tell.
        some = costs[:: max(1, len(costs) // _SAMPLE)]
        two = np.partition(some, 1, axis=1)
        unit = float((two[:, 1] - two[:, 0]).mean()) / (1 + turn / _PRICE_DECAY)
        # Prices are for a mean vertex's weight of a kind, so that all three move alike.
        per_weight = self._weights.mean(0)
        per_weight[_TRAIN] = 1
        per_weight = np.maximum(per_weight, 1e-9)
        is_movable = self._rng.random(len(owner)) < _MOVABLE
        # Many vertices have nothing to gain anywhere. Without inertia all would go where the prices
        # are lowest by a hair.
        inertia = self._rng.random(len(owner)) * (unit * _INERTIA)
        inertia[~is_movable] = np.inf
        new = np.empty_like(owner)
        for _ in range(_PRICE_STEPS):
            prices = self._prices / per_weight
            _placement.choose_parts(costs, prices, self._weights, inertia, owner, new)
            # Prices fall where there is room again, down to nothing.
            over = self._loads(new) / self._means - 1 - 0.8 * SLACK
            self._prices = np.maximum(0.0, self._prices + unit * over)
        self._repair(new, costs, self._prices / per_weight)
        self._fill_empty(new)
        return new

    def _repair(self, owner: Int32Array, costs: Float32Array, prices: Float64Array) -> None:
        """Move vertices out of parts above the limits, the cheapest first; changes ``owner``."""
        from . import _placement

        loads = self._loads(owner)
        for number in range(_REPAIRS):
            if not (loads > self._limits).any():
                return
            # Ever tighter: a part that is full of in-edges, but short of vertices, has to give away
            # some with many edges before it can take others with few.
            slack = max(_TIGHTEST, 1 - number * _TIGHTER) * (self._limits - self._means)
            for place, kind in enumerate(_ORDER):
                enough = int(self._means[kind] + _ENOUGH * slack[kind])
                for part in np.flatnonzero(loads[:, kind] > self._means[kind] + slack[kind]):
                    order = self._cheapest(owner, costs, prices, loads, int(part), int(kind))
                    arrays = (costs, prices, self._weights, _ORDER[: place + 1])
                    _placement.shed(order, *arrays, loads, self._limits, kind, enough, owner)

    def _cheapest(
        self,
        owner: Int32Array,
        costs: Float32Array,
        prices: Float64Array,
        loads: Int64Array,
        part: int,
        kind: int,
    ) -> Int64Array:
        """Vertices of a part with a weight, by what moving a unit of it costs."""
        members = np.flatnonzero((owner == part) & (self._weights[:, kind] > 0))
        takers = np.flatnonzero(loads[:, kind] < self._limits[kind])
        takers = takers[takers != part]
        if not len(takers):
            return members[:0]
        weights = self._weights[members]
        lost = costs[members, part] + weights @ prices[part]
        gained = (costs[np.ix_(members, takers)] + weights @ prices[takers].T).min(1)
        order: Int64Array = members[np.argsort((gained - lost) / weights[:, kind], kind="stable")]
        return order

    def _fill_empty(self, owner: Int32Array) -> None:
        """Give a training vertex to each part without any, from the part with most."""
        trained = np.flatnonzero(self._weights[:, _TRAIN])
        counts = np.bincount(owner[trained], minlength=self._num_parts)
        for part in np.flatnonzero(counts == 0):
            giver = int(counts.argmax())
            owner[trained[owner[trained] == giver][0]] = part
            counts[giver] -= 1
            counts[part] += 1


def _own(rows: Float32Array, owner: Int32Array) -> Array:
    """Each vertex's entry for the part that owns it."""
    own: Array = rows[np.arange(len(owner)), owner]
    return own


def seed_weights(partition: Partition) -> Float32Array:
    """How often each vertex is a seed, by number over all types: once in training, and all that
    are evaluated together half as often as all that are trained on."""
    graph = partition.graph
    train = partition.train.numpy()
    seeds = np.zeros(graph.num_nodes, np.float32)
    own = seeds[partition.numbering.rows(partition.train_type)]
    others = evaluated_vertices(graph, partition.train_type, partition.train).numpy()
    if len(others):
        own[others] = _EVALUATED * len(train) / len(others)
    own[train] = 1
    return seeds


def evaluated_vertices(graph: Graph, node_type: str, train: Tensor) -> Tensor:
    """Ids of the validation and test vertices, or of all but the training vertices where there are
    none."""
    fields = graph.node_fields(node_type)
    chosen = torch.zeros(graph.num_nodes_of(node_type), dtype=torch.bool, device="cpu")
    for name in ("val_mask", "test_mask"):
        mask = mask_of(fields, name)
        if mask is not None:
            chosen |= mask
    if not bool(chosen.any()):
        chosen = ~chosen
    chosen[train] = False
    return chosen.nonzero().squeeze(1)
