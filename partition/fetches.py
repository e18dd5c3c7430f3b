"""Measures a placement of all vertices: remote rows per epoch, cut edges and balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..options.partitioning import FANOUT, PLACED_BATCH
from ..ranking.presample import count_accesses
from ..sampling import NeighborSampler
from ..system.arrays import Int32Array, Int64Array
from ..system.progress import Progress
from .extract import vertex_owners
from .objectives import evaluated_vertices
from .partition import Partition
from .steps import MemoryUse

_MOST_EVALUATED = 2**17
"""Most evaluated vertices to sample from: enough to measure their share of remote rows."""


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
