"""Objectives of a placement of all vertices: rows fetched per epoch, or edges cut.

The rows are expected values. With 10 neighbours per hop, nearly all rows of a batch are two hops
away, so the edge cut says little about them. A search lowers the rows by alternating two steps:

1. Fix the seeds of each part. One pass over the edges per hop gives ``reads[v, p]``, the number of
   batches of part ``p`` that read vertex ``v``. ``v`` belongs where it is read most.
2. Fix the owners. One pass per hop in the other direction gives the rows that a seed would fetch
   from other parts if it belonged to part ``p``. The seed belongs where that is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.fields import mask_of
from ..graph.graph import Graph
from ..system.arrays import Array, Int32Array
from .partition import Partition

Float32Array = npt.NDArray[np.float32]

# An epoch also validates and tests. These passes count half: a graph is trained on more often than
# it is tested.
_EVALUATED = 0.5


class Objective(Protocol):
    """A quantity that a placement minimizes.

    Attributes:
        edge_shares: METIS partitions to start a search from, one per entry. An entry is the total
            weight of all in-edges over that of all vertices. None: only vertices have weight.
    """

    edge_shares: Sequence[float | None]

    def measure(self, owner: Int32Array) -> float:
        """The quantity for these owners."""
        ...

    def costs(self) -> Float32Array:
        """Cost of a vertex in each part if all others stay, shape ``(num_nodes, num_parts)``.

        Called at most once after :meth:`measure`.
        """
        ...


class CutEdges:
    """The number of edges between parts."""

    # No share is the best for all graphs in benchmarks/NOTES.md. Web graphs want 0.5 (0.013 of the
    # edges cut; the others cut 0.02 and 0.09), dense graphs 2.
    edge_shares: Sequence[float | None] = (0.5, 1.0, 2.0)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._costs: Float32Array | None = None

    def measure(self, owner: Int32Array) -> float:
        """Edges whose ends have different owners."""
        from . import _placement

        graph = self._partition.graph
        rows = self._partition.numbering.rows
        costs = np.zeros((len(owner), self._partition.num_parts), np.float32)
        loops = 0
        for edge_type in graph.edge_types:
            sources = rows(edge_type[0])
            targets = rows(edge_type[2])
            loops += _placement.count_ends(
                *graph.csc_of(edge_type).arrays,
                owner[sources],
                owner[targets],
                edge_type[0] == edge_type[2],
                costs[sources],
                costs[targets],
            )
        # An edge within a part was subtracted at both of its ends.
        inside = -float(_own(costs, owner).sum(dtype=np.float64)) / 2
        self._costs = costs
        return graph.num_edges - loops - inside

    def costs(self) -> Float32Array:
        """Minus the number of edges between a vertex and each part."""
        costs = self._costs
        self._costs = None
        assert costs is not None
        return costs


class FetchedRows:
    """The expected number of rows that an epoch reads from other parts."""

    # Weighting in-edges as well cost 1 to 8 % more rows on three of seven graphs.
    edge_shares: Sequence[float | None] = (None,)

    def __init__(self, partition: Partition, fanout: Sequence[int], batch_size: int) -> None:
        self._graph = partition.graph
        self._numbering = partition.numbering
        self._num_parts = partition.num_parts
        self._fanout = fanout
        self._batch_size = batch_size
        self._seeds = seed_weights(partition)
        self._owner: Int32Array | None = None
        self._measured: tuple[Float32Array, Float32Array] | None = None

    def measure(self, owner: Int32Array) -> float:
        """Remote rows of all types together for these owners."""
        # Free the last measurement's matrices first: they are as large as the new ones.
        self._measured = None
        self._owner = owner
        self._measured = self.reads(owner)
        reads, _ = self._measured
        return float(reads.sum() - _own(reads, owner).sum())

    def reads(self, owner: Int32Array) -> tuple[Float32Array, Float32Array]:
        """Expected batches of each part that read each vertex, and the increase by one more draw.

        Both have shape ``(num_nodes, num_parts)``.
        """
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
        # The same for all parts, and not rounded: otherwise a search would save batches, not rows.
        seeds = float(self._seeds.sum()) / self._num_parts
        batches = np.float32(max(1.0, seeds / self._batch_size))
        # A batch reads a row once: of n draws spread over b batches, b (1 - exp(-n / b)) hold it.
        total /= -batches
        marginal = np.exp(total, out=total)
        return batches * (1 - marginal), marginal

    def costs(self) -> Float32Array:
        """What a vertex reads from others as a seed, less what its part reads of its row."""
        from . import _placement

        assert self._measured is not None and self._owner is not None
        reads, marginal = self._measured
        self._measured = None
        # A draw of what the part owns itself costs nothing.
        marginal[np.arange(len(self._owner)), self._owner] = 0
        costs = marginal
        for number in self._fanout:
            more = marginal.copy()
            for edge_type in self._graph.edge_types:
                csc = self._graph.csc_of(edge_type)
                sources = self._numbering.rows(edge_type[0])
                targets = self._numbering.rows(edge_type[2])
                _placement.pull_costs(*csc.arrays, costs[sources], number, more[targets])
            costs = more
        # As a seed it fetches from other parts. As a row it is fetched by all parts but its own.
        costs *= self._seeds[:, None]
        costs -= reads
        return costs


def objective_of(
    minimize: str, partition: Partition, fanout: Sequence[int], batch_size: int
) -> Objective:
    """The objective that a user named: "rows" or "cut"."""
    if minimize == "cut":
        return CutEdges(partition)
    return FetchedRows(partition, fanout, batch_size)


def _own(rows: Float32Array, owner: Int32Array) -> Array:
    """Each vertex's entry for the part that owns it."""
    own: Array = rows[np.arange(len(owner)), owner]
    return own


def seed_weights(partition: Partition) -> Float32Array:
    """How often each vertex is a seed, by number over all types.

    A training vertex is a seed once. The evaluated vertices together count half as much as all
    training vertices together.
    """
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
    """Ids of the validation and test vertices, or else of all but the training vertices."""
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
