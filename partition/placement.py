"""Places all vertices of a graph, for engines in which machines fetch rows from each other.

A search minimizes an objective (``objectives``: rows fetched, or edges cut) in turns. In each turn,
a vertex moves where it costs least. Only a random half of the vertices may move at a time:
neighbours that all move at once would miss each other. Prices keep parts balanced: a part with too
many vertices, in-edges or training vertices raises their price. A repair then moves any remaining
excess where it costs least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..options.partitioning import FANOUT, PLACED_BATCH, check_minimize
from ..ranking.presample import count_accesses
from ..sampling import NeighborSampler
from ..system.arrays import Float64Array, Int32Array, Int64Array
from ..system.progress import Progress, Ticks
from .extract import vertex_owners
from .methods.auto import MOST_METIS_EDGES, vertex_clusters
from .methods.metis import has_pymetis
from .objectives import Float32Array, Objective, evaluated_vertices, objective_of
from .partition import Partition
from .steps import MemoryUse

SLACK = 0.05
"""Allowed excess of a part over the mean, for vertices, in-edges and training vertices."""
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
# METIS's weights are integers. A mean vertex has this many units, so rounding stays within 1 %.
_WEIGHT_UNITS = 100
_MOST_EVALUATED = 2**17
"""Most evaluated vertices to sample from: enough to measure their share of remote rows."""


def placement_bytes(num_nodes: int, num_parts: int) -> int:
    """Bytes that :func:`place_vertices` takes, besides a start by METIS."""
    return num_nodes * (_VERTEX_BYTES + 4 * _MATRICES * num_parts)


def place_vertices(
    partition: Partition,
    *,
    fanout: Sequence[int] | None = None,
    batch_size: int = PLACED_BATCH,
    minimize: str = "rows",
    seed: int = 0,
    progress: Progress | None = None,
) -> Partition:
    """Assign every vertex to one part so that an epoch reads few rows from other parts.

    For engines such as DistDGL, whose machines own vertices and fetch the rows of others. The
    search starts from the given parts, with each vertex in the part that holds it at the lowest
    hop. With methods ``auto`` and ``metis`` and at most 16 M edges, it also starts from METIS's
    parts of all vertices. The best result is returned. Vertices, in-edges and training vertices of
    a part are within 5 % of the mean, as far as single vertices allow.

    Validation and test vertices together count half as much as the training vertices together. If
    there are none, the other vertices of the type take their place. Needs 90 bytes per vertex, and
    16 per vertex and part.

    Args:
        partition: The given parts. Many training vertices change parts. A limit on replication is
            removed.
        fanout: Neighbours that training samples per hop, along each edge type, the last entry for
            the seeds; -1 is all. Default: 10 in each of the partition's hops. Not read where edges
            are minimized.
        batch_size: Seeds of a mini-batch, which reads a row once. Not read where edges are
            minimized.
        minimize: ``"rows"``, the expected number of rows that an epoch reads from other parts; or
            ``"cut"``, the edges between parts, as METIS does (DGL's ``objtype="cut"``).
        seed: Seed of the search.
        progress: Called with the turns done and the most that there are.

    Returns:
        A partition whose ``owner`` is set; training vertices are where they are owned.

    Raises:
        ValueError: ``fanout`` has no entry, or ``minimize`` is neither of the two.

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
    check_minimize(minimize)
    objective = objective_of(minimize, partition, fanout, batch_size)
    search = _Search(partition, objective)
    starts = [vertex_owners(partition).numpy(), *_metis_starts(partition, search, objective, seed)]
    # No start is always the best: METIS's wins on web graphs, the training parts on RMAT graphs.
    best: _Placed | None = None
    ticks = Ticks(progress, _TURNS * len(starts))
    for start in starts:
        ticks.step(_TURNS)
        found = search.run(start, seed, ticks)
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


def _metis_starts(
    partition: Partition, search: _Search, objective: Objective, seed: int
) -> list[Int32Array]:
    """METIS's parts of all vertices, where they are worth their time and memory."""
    whole = partition.merged
    is_small = whole.num_edges <= MOST_METIS_EDGES
    if partition.method not in ("auto", "metis") or not is_small or partition.num_parts == 1:
        return []
    starts = []
    for share in objective.edge_shares:
        weights = None if share is None else search.summed_weights(share)
        clusters = vertex_clusters(whole, partition.num_parts, weights=weights, seed=seed)
        starts.append(clusters.numpy())
        # Without METIS clusters are grown, whatever vertices weigh.
        if not has_pymetis():
            break
    return starts


class _Placed:
    """A placement found by a search, with its excess over the limits and its objective."""

    def __init__(self, owner: Int32Array, excess: float, value: float) -> None:
        self.owner = owner
        self.rank = (excess, value)


class _Search:
    """The turns of :func:`place_vertices`; arrays are by number over all types."""

    _rng: np.random.Generator
    _prices: Float64Array  # of a unit of each weight in each part

    def __init__(self, partition: Partition, objective: Objective) -> None:
        self._objective = objective
        self._num_parts = partition.num_parts
        is_trained = np.zeros(partition.graph.num_nodes, np.int64)
        begin = partition.numbering.begin(partition.train_type)
        is_trained[(partition.train + begin).numpy()] = 1
        degrees = np.diff(partition.merged.csc.indptr.numpy()).astype(np.int64)
        self._weights = np.stack([np.ones_like(degrees), degrees, is_trained], 1)
        # A graph may have no edges: means are divided by.
        self._means = np.maximum(self._weights.sum(0) / self._num_parts, 1e-9)
        # No part can be below its heaviest vertex, nor all below the mean rounded up.
        least = np.maximum(np.ceil(self._means), self._weights.max(0, initial=0))
        self._limits = np.maximum(least, (1 + SLACK) * self._means).astype(np.int64)

    def summed_weights(self, edge_share: float) -> Int64Array:
        """One weight per vertex instead of three, for partitioners that balance a single weight.

        All in-edges together weigh ``edge_share`` times as much as all vertices together, and as
        all training vertices together.
        """
        kinds = self._weights / np.maximum(self._weights.mean(0), 1e-9)
        kinds[:, _EDGES] *= edge_share
        summed: Int64Array = np.rint(_WEIGHT_UNITS * kinds.sum(1)).astype(np.int64)
        return np.maximum(summed, 1)

    def run(self, start: Int32Array, seed: int, ticks: Ticks) -> _Placed:
        """Search from a start; the best of all turns."""
        self._rng = np.random.default_rng(seed % 2**64)
        self._prices = np.zeros((self._num_parts, 3))
        owner = np.ascontiguousarray(start, np.int32)
        self._fill_empty(owner)
        best: _Placed | None = None
        since = 0
        for turn in range(_TURNS):
            value = self._objective.measure(owner)
            found = _Placed(owner.copy(), self._excess(owner), value)
            since += 1
            if best is None or found.rank < best.rank:
                best = found
                since = 0
            ticks.add()
            if since == _PATIENCE or self._num_parts == 1:
                break
            owner = self._turn(owner, self._objective.costs(), turn)
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
            # Each round aims lower: a part full of in-edges but short of vertices must give away
            # vertices with many edges before it can take others with few.
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
        """Vertices of a part with weight of a kind, sorted by the cost of moving a unit of it."""
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


@dataclass(frozen=True)
class PlacedPart:
    """What one part owns.

    Attributes:
        train: Number of its training vertices.
        vertices: Number of vertices it owns.
        edges: Number of their in-edges.
        halo: Number of sources of these edges that other parts own.
    """

    train: int
    vertices: int
    edges: int
    halo: int


@dataclass(frozen=True)
class Fetches:
    """Rows that one epoch reads in all parts, and how many of them other parts own."""

    rows: int
    remote: int

    @property
    def share(self) -> float:
        """``remote / rows``; 0 if nothing is read."""
        return self.remote / self.rows if self.rows else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class PlacementReport:
    """Remote rows, cut edges and balance of a placement, from :func:`describe_placement`.

    Attributes:
        cut_edges: Edges whose ends are in different parts.
        train: Rows read in an epoch of training.
        evaluated: Rows read in an epoch over at most 131,072 validation and test vertices. If the
            graph has none, other vertices of their type take their place.
        seconds, memory: By step, as in :class:`pagraph.partition.PartitionReport`.
    """

    method: str
    hops: int
    num_nodes: int
    num_edges: int
    parts: tuple[PlacedPart, ...]
    cut_edges: int
    train: Fetches
    evaluated: Fetches
    fanout: tuple[int, ...]
    batch_size: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.parts)

    @property
    def cut(self) -> float:
        """:attr:`cut_edges` / edges; 0 if there are none."""
        return self.cut_edges / self.num_edges if self.num_edges else 0.0

    @property
    def random_share(self) -> float:
        """Share of remote rows if vertices were placed at random."""
        return 1 - 1 / self.num_parts

    def balance(self, name: str) -> float:
        """Maximum over mean of "train", "vertices" or "edges" per part; 1 if there are none."""
        counts = [getattr(part, name) for part in self.parts]
        return max(counts) * len(counts) / sum(counts) if any(counts) else 1.0

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        numbers: dict[str, Any] = {"parts": self.num_parts}
        for name in ("method", "hops", "num_nodes", "num_edges", "cut", "cut_edges"):
            numbers[name] = getattr(self, name)
        for name in ("train", "vertices", "edges", "halo"):
            numbers[f"{name}_per_part"] = [getattr(part, name) for part in self.parts]
        for name in ("train", "vertices", "edges"):
            numbers[f"{name}_balance"] = self.balance(name)
        for name in ("train", "evaluated"):
            fetches: Fetches = getattr(self, name)
            numbers[f"{name}_rows"] = fetches.rows
            numbers[f"{name}_rows_from_others"] = fetches.remote
            numbers[f"{name}_share_from_others"] = fetches.share
        return numbers | {
            "fanout": list(self.fanout),
            "batch_size": self.batch_size,
            "seconds_by_step": dict(self.seconds),
            "memory_by_step": {step: use.to_json() for step, use in self.memory.items()},
        }

    def __repr__(self) -> str:
        return (
            f"PlacementReport({self.method}, {self.num_parts} parts, cut {self.cut:.3g}, rows from "
            f"other parts: training {self.train.share:.3g}, evaluation {self.evaluated.share:.3g})"
        )


def describe_placement(
    partition: Partition,
    *,
    fanout: Sequence[int] | None = None,
    batch_size: int = PLACED_BATCH,
    seed: int = 0,
    progress: Progress | None = None,
) -> PlacementReport:
    """Measure the rows that epochs fetch from other parts, by sampling. No feature is read.

    Each part samples mini-batches of its own seeds from the whole graph. As in DistDGL, a batch
    reads each of its input vertices once.

    Args:
        partition: A partition. Vertices are owned as :func:`~pagraph.partition.place_vertices`
            placed them, or else as :func:`~pagraph.partition.write_dgl` would write them.
        fanout: Neighbours sampled per hop, the last entry for the seeds. Default: 10 in each of
            the partition's hops.
        batch_size: Seeds of a mini-batch.
        seed: Seed of the order and of sampling.
        progress: Called with the epochs of parts done and all of them.

    Example:
        >>> from pagraph.datasets import sbm
        >>> from pagraph.partition import partition_graph, place_vertices
        >>> report = describe_placement(place_vertices(partition_graph(sbm(600), 2)))
        >>> report.num_parts, 0 < report.train.share < 0.5, report.balance("vertices") <= 1.05
        (2, True, True)
    """
    graph = partition.graph
    fanout = [FANOUT] * partition.hops if fanout is None else list(fanout)
    owner = vertex_owners(partition).numpy()
    evaluated = evaluated_vertices(graph, partition.train_type, partition.train)
    if len(evaluated) > _MOST_EVALUATED:
        generator = torch.Generator().manual_seed(seed % 2**63)
        order = torch.randperm(len(evaluated), generator=generator, device="cpu")
        evaluated = evaluated[order[:_MOST_EVALUATED].sort().values]
    done = 0
    found = []
    # A part samples from the whole graph: DistDGL's samplers ask the owners for neighbours.
    for ids in (partition.train, evaluated):
        rows = remote = 0
        for part in range(partition.num_parts):
            own = torch.from_numpy(owner[partition.numbering.rows(partition.train_type)])
            seeds = ids[own[ids] == part]
            reads = _reads(partition, seeds, fanout, batch_size, seed)
            rows += int(reads.sum())
            remote += int(reads[owner != part].sum())
            done += 1
            if progress is not None:
                progress(done, 2 * partition.num_parts)
        found.append(Fetches(rows, remote))
    # In-edges belong to the part of their destination, whoever owns the source.
    cut, halos = _between(partition, owner)
    degrees = np.diff(partition.merged.csc.indptr.numpy())
    parts = []
    for part in range(partition.num_parts):
        own_edges = int(degrees[owner == part].sum())
        train = len(partition.train_of(part))
        parts.append(PlacedPart(train, int((owner == part).sum()), own_edges, halos[part]))
    return PlacementReport(
        method=partition.method,
        hops=partition.hops,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        parts=tuple(parts),
        cut_edges=cut,
        train=found[0],
        evaluated=found[1],
        fanout=tuple(fanout),
        batch_size=batch_size,
    )


def _reads(
    partition: Partition, ids: Tensor, fanout: Sequence[int], batch_size: int, seed: int
) -> Int64Array:
    """Number of batches of an epoch that read each vertex, by number over all types."""
    graph = partition.graph
    if not len(ids):
        return np.zeros(graph.num_nodes, np.int64)
    seeds = ids if graph.is_homogeneous else {partition.train_type: ids}
    counts = count_accesses(
        graph, seeds, NeighborSampler(list(fanout)), batch_size=batch_size, seed=seed
    )
    reads = [counts.reads(node_type) for node_type in graph.node_types]
    return torch.cat([count.long() for count in reads]).numpy()


def _between(partition: Partition, owner: Int32Array) -> tuple[int, list[int]]:
    """Number of edges between parts, and each part's number of sources in other parts."""
    from . import _placement

    csc = partition.merged.csc
    cut = 0
    halos = []
    for part in range(partition.num_parts):
        is_source = np.zeros(len(owner), np.bool_)
        cut += _placement.mark_others(*csc.arrays, owner, part, is_source)
        halos.append(int(is_source.sum()))
    return cut, halos
