"""Measures a partition: replication, balance, and hit rates of caches on its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..options.partitioning import CacheTrial
from ..system.progress import Progress, Ticks
from .cache_trial import CacheUse, budget_bytes, measure
from .extract import extract_structure
from .methods.paper import hash_parts
from .partition import Partition, PartVertices, vertices_within
from .steps import MemoryUse

_HELPS = 0.9
"""Parts do not pay off above this share of the graph, or of what a random division needs."""


@dataclass(frozen=True, eq=False)
class CachesReport:
    """Hit rates in one epoch: one cache per part, and one of equal size for the whole graph.

    Attributes:
        nbytes: Capacity of each cache in bytes; None if no field is cached.
        whole: The cache of one process that trains on the whole graph.
        parts: The caches of the processes that train on the parts, with ids of the whole graph.
        shared: Share of all cached vertices that several parts cache; 0 if none is cached.
        jaccard: Mean Jaccard index of the caches of two parts, over all pairs; None for one part.
    """

    trial: CacheTrial
    fanout: tuple[int, ...]
    nbytes: int | None
    whole: CacheUse
    parts: tuple[CacheUse, ...]
    shared: float
    jaccard: float | None

    @property
    def hit_rate(self) -> float:
        """Rows served by the parts' caches / rows that all parts ask for."""
        reads = sum(use.reads for use in self.parts)
        return sum(use.hits for use in self.parts) / reads if reads else 0.0

    def to_json(self) -> dict[str, Any]:
        """Numbers as a JSON object."""
        return {
            "budget": str(self.trial.budget),
            "budget_bytes": self.nbytes,
            "policy": self.trial.policy,
            "fanout": list(self.fanout),
            "batch_size": self.trial.batch_size,
            "hit_rate": self.hit_rate,
            "hit_rate_per_part": [use.hit_rate for use in self.parts],
            "rows_per_part": [len(use.ids) for use in self.parts],
            "reads_per_part": [use.reads for use in self.parts],
            "unpartitioned_hit_rate": self.whole.hit_rate,
            "unpartitioned_rows": len(self.whole.ids),
            "unpartitioned_reads": self.whole.reads,
            "shared": self.shared,
            "mean_jaccard": self.jaccard,
        }


def overlap(sets: Sequence[Tensor], num_nodes: int) -> tuple[float, float | None]:
    """Share of the union that is in several sets, and the mean Jaccard index of all pairs.

    The index of two empty sets is 0. Without pairs the mean is None.

    Args:
        sets: Ids without repeats.
        num_nodes: Upper bound of the ids.

    Example:
        >>> overlap([torch.tensor([0, 1]), torch.tensor([1, 2, 3])], 4)
        (0.25, 0.25)
    """
    times = torch.zeros(num_nodes, dtype=torch.int32, device="cpu")
    for ids in sets:
        times[ids] += 1
    some = int((times > 0).sum())
    shared = int((times > 1).sum()) / some if some else 0.0
    pairs = len(sets) * (len(sets) - 1) // 2
    if not pairs:
        return shared, None
    total = 0.0
    # A mask of one set at a time: intersections then cost a look-up for each id, and no sort.
    mine = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")
    for place, ids in enumerate(sets):
        mine[ids] = True
        for other in sets[:place]:  # each pair once
            both = int(mine[other].sum())
            total += both / max(1, len(ids) + len(other) - both)  # |A & B| / |A | B|
        mine[ids] = False
    return shared, total / pairs


@dataclass(frozen=True)
class PartReport:
    """Sizes of one part.

    Attributes:
        evaluated: Number of validation and test vertices whose neighbourhoods it also holds.
        halo: Number of vertices first reached at hop 1, 2, ..., without training and evaluated
            ones.
        dropped: Number of dropped halo vertices.
        missing: Number of in-edges of its inner vertices that come from dropped vertices.
        types: Vertex type to the number of vertices that it holds.
    """

    train: int
    evaluated: int
    halo: tuple[int, ...]
    edges: int
    dropped: int = 0
    missing: int = 0
    types: Mapping[str, int] = field(default_factory=dict)

    @property
    def vertices(self) -> int:
        """Number of vertices that it holds."""
        return self.train + self.evaluated + sum(self.halo)


@dataclass(frozen=True, eq=False, repr=False)
class PartitionReport:
    """Replication, balance and cache hit rates of a partition, from
    :func:`pagraph.partition.describe`.

    Attributes:
        num_nodes, num_edges: Vertices and edges of the whole graph.
        node_types: Vertex type to its number of vertices in the whole graph.
        covered: Vertices of the whole graph that are in at least one part. The others are further
            than ``hops`` hops from every training vertex: training never reads them.
        caches: Hit rates of caches; None if not tried.
        hash_largest: Vertices of the largest part if training and evaluated vertices were divided
            at random, by ``hash``, and none were dropped.
        lost: Share of the neighbour draws that go to dropped vertices; None without a limit on
            replication.
        seconds: Wall time by step, from :class:`pagraph.partition.steps.Steps`.
        memory: Memory of the process by step.
    """

    method: str
    hops: int
    num_nodes: int
    num_edges: int
    parts: tuple[PartReport, ...]
    covered: int
    hash_largest: int
    caches: CachesReport | None = None
    lost: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)
    node_types: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.parts)

    @property
    def shape_text(self) -> str:
        """Numbers of parts and hops in words."""
        parts = "1 part" if self.num_parts == 1 else f"{self.num_parts} parts"
        return f"{parts} of {'1 hop' if self.hops == 1 else f'{self.hops} hops'}"

    @property
    def train(self) -> int:
        """Training vertices of all parts, each of which is in one."""
        return sum(part.train for part in self.parts)

    @property
    def largest(self) -> int:
        """Vertices of the largest part: what each machine must have room for."""
        return max(part.vertices for part in self.parts)

    @property
    def largest_share(self) -> float:
        """:attr:`largest` / vertices of the whole graph."""
        return self.largest / self.num_nodes

    @property
    def largest_over_hash(self) -> float:
        """:attr:`largest` / that of parts by ``hash``, which ignores the edges."""
        return self.largest / self.hash_largest

    @property
    def advice(self) -> str:
        """What to do instead, where parts do not help; "" where they do."""
        if self.num_parts == 1:
            return ""
        if self.largest_share > _HELPS:
            return (
                f"parts save no memory here: the largest holds {self.largest_share:.0%} of the "
                "graph. Train on the whole graph in each process, with the seeds divided "
                "(use_ddp=True of the loaders), or take fewer hops"
            )
        if self.method != "hash" and self.largest_over_hash > _HELPS:
            return (
                f"{self.method} hardly helps here: the largest part holds "
                f"{self.largest_over_hash:.0%} of what a random division (hash) needs. If the "
                "whole graph fits each machine, train on it with the seeds divided (use_ddp=True "
                "of the loaders); else take fewer hops"
            )
        return ""

    @property
    def replication_factor(self) -> float:
        """Sum of the parts' vertices / vertices of the whole graph.

        Below 1 if many vertices are in no part.
        """
        return sum(part.vertices for part in self.parts) / self.num_nodes

    @property
    def replication_by_type(self) -> dict[str, float]:
        """:attr:`replication_factor` of each vertex type; 0 for one without vertices."""
        return {
            t: sum(part.types[t] for part in self.parts) / max(1, n)
            for t, n in self.node_types.items()
        }

    @property
    def copies(self) -> float:
        """Sum of the parts' vertices / vertices in at least one part: copies of a used vertex."""
        return sum(part.vertices for part in self.parts) / self.covered

    @property
    def halo(self) -> tuple[int, ...]:
        """Vertices that each hop found, summed over the parts."""
        return tuple(sum(found) for found in zip(*(part.halo for part in self.parts), strict=True))

    @property
    def edge_factor(self) -> float:
        """Sum of the parts' edges / edges of the whole graph; 0 if it has none."""
        return sum(part.edges for part in self.parts) / self.num_edges if self.num_edges else 0.0

    @property
    def train_balance(self) -> float:
        """Maximum / mean of training vertices per part: the largest part sets the epoch time."""
        return _balance([part.train for part in self.parts])

    @property
    def vertex_balance(self) -> float:
        """Maximum / mean of vertices per part: each machine or GPU must have room for them."""
        return _balance([part.vertices for part in self.parts])

    @property
    def peak_bytes(self) -> int | None:
        """Peak resident memory of all steps, see :class:`MemoryUse`; None if not measured."""
        return max((use.peak_bytes for use in self.memory.values()), default=None)

    def to_json(self) -> dict[str, Any]:
        """JSON object; ``seconds`` covers only the division, ``peak_bytes`` all steps."""
        sizes = ("method", "hops", "num_nodes", "num_edges")
        ratios = (
            *("largest_share", "largest_over_hash", "train_balance", "vertex_balance"),
            *("replication_factor", "copies", "edge_factor"),
        )
        numbers: dict[str, Any] = {"parts": self.num_parts}
        for name in (*sizes, *ratios):
            numbers[name] = getattr(self, name)
        for name in ("train", "evaluated", "vertices", "edges", "dropped"):
            numbers[f"{name}_per_part"] = [getattr(part, name) for part in self.parts]
        numbers["halo_per_part"] = [list(part.halo) for part in self.parts]
        numbers["missing_edges_per_part"] = [part.missing for part in self.parts]
        if len(self.node_types) > 1:
            numbers |= self._types_json()
        return numbers | {
            "vertices_in_no_part": self.num_nodes - self.covered,
            "lost_neighbours": self.lost,
            "cache": None if self.caches is None else self.caches.to_json(),
            "seconds": self.seconds.get("dividing"),
            "seconds_by_step": dict(self.seconds),
            "peak_bytes": self.peak_bytes,
            "memory_by_step": {step: use.to_json() for step, use in self.memory.items()},
        }

    def _types_json(self) -> dict[str, Any]:
        return {
            "num_nodes_by_type": dict(self.node_types),
            "vertices_by_type_per_part": [dict(part.types) for part in self.parts],
            "replication_by_type": self.replication_by_type,
        }

    def __repr__(self) -> str:
        return (
            f"PartitionReport({self.method}, {self.num_parts} parts, {self.hops} hops, "
            f"largest part {self.largest_share:.4g} of the graph, "
            f"replication factor {self.replication_factor:.4g}, "
            f"train balance {self.train_balance:.4g})"
        )


def _balance(sizes: Sequence[int]) -> float:
    """max / mean."""
    return max(sizes) * len(sizes) / sum(sizes)


def describe(
    partition: Partition,
    *,
    cache: CacheTrial | None = CacheTrial(),  # noqa: B008 - frozen
    whole: CacheUse | None = None,
    progress: Progress | None = None,
) -> PartitionReport:
    """Measure the replication, balance and cache hit rates of a partition.

    Holds the structure of one part at a time, and no features.

    Args:
        partition: The partition.
        cache: Settings of the cache trial, which samples an epoch of each part; None: no trial.
        whole: Result of :func:`cache_of_whole` with the same trial. Default: measured here.
        progress: Called with the batches done and all batches, by the threads that sample.

    Raises:
        ValueError: ``cache`` does not fit the graph or the partition's hops.

    Example:
        >>> from pagraph.datasets import sbm
        >>> from pagraph.partition import partition_graph
        >>> report = describe(partition_graph(sbm(500), 2, hops=1, method="hash"), cache=None)
        >>> report.num_parts, report.train_balance, report.replication_factor > 1
        (2, 1.0, True)
    """
    graph = partition.graph
    count: Callable[[], object] | None = None
    # The whole graph first: it takes longest, and a cache that does not fit fails before the parts.
    if cache is not None:
        count = _ticks(partition, cache, progress, with_whole=whole is None).add
        whole = whole or cache_of_whole(partition, cache, progress=count)
    covered = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
    parts = []
    uses = []
    for part in range(partition.num_parts):
        # Found once for the report, its structure and its trial.
        vertices = partition.vertices(part)
        covered[vertices.ids] = True
        report, use = _describe_part(partition, part, vertices, cache, count)
        parts.append(report)
        if use is not None:
            uses.append(use)
    caches = None
    if cache is not None and whole is not None:
        shared, jaccard = overlap([use.ids for use in uses], graph.num_nodes)
        caches = CachesReport(
            cache,
            cache.fanout_of(partition.hops),
            budget_bytes(cache, graph),
            whole,
            tuple(uses),
            shared,
            jaccard,
        )
    return PartitionReport(
        method=partition.method,
        hops=partition.hops,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        parts=tuple(parts),
        covered=int(covered.sum()),
        hash_largest=_hash_largest(partition),
        caches=caches,
        lost=partition.lost,
        node_types=graph.num_nodes_by_type,
    )


def _hash_largest(partition: Partition) -> int:
    seeds = partition.train
    if partition.evaluated is not None:
        seeds = torch.unique(torch.cat([seeds, partition.evaluated]))
    seeds = seeds + partition.numbering.begin(partition.train_type)
    parts = hash_parts(partition.graph, seeds, partition.num_parts, partition.hops)
    held = 0
    for part in range(partition.num_parts):
        vertices = vertices_within(partition.merged, seeds[parts == part], partition.hops)
        held = max(held, len(vertices.ids))
    return held


def cache_of_whole(
    partition: Partition, cache: CacheTrial, *, progress: Callable[[], object] | None = None
) -> CacheUse:
    """Hit rate of one cache for one process that trains on the whole graph.

    The result is the same for all partitions of the graph.
    """
    graph = partition.graph
    seeds = _seeds(partition, partition.train)
    return measure(cache, graph, graph, seeds, partition.hops, progress=progress)


def _seeds(partition: Partition, ids: Tensor) -> Tensor | dict[str, Tensor]:
    return ids if partition.graph.is_homogeneous else {partition.train_type: ids}


def _describe_part(
    partition: Partition,
    part: int,
    vertices: PartVertices,
    cache: CacheTrial | None,
    count: Callable[[], object] | None,
) -> tuple[PartReport, CacheUse | None]:
    structure = extract_structure(partition.graph, vertices)
    train = partition.train_of(part)
    dropped = 0 if partition.dropped is None else len(partition.dropped[part])
    report = PartReport(
        train=len(train),
        evaluated=vertices.num_seeds - len(train),
        halo=tuple(end - begin for begin, end in itertools.pairwise(vertices.hop_ends)),
        edges=structure.num_edges,
        dropped=dropped,
        missing=structure.missing,
        types={name: len(found.ids) for name, found in structure.types.items()},
    )
    if cache is None:
        return report, None
    # Local ids: seeds come first and ascend, those of training among those that are evaluated.
    own = structure.types[partition.train_type]
    seeds = _seeds(partition, torch.searchsorted(own.ids[: own.num_seeds], train))
    use = measure(cache, partition.graph, structure.graph(), seeds, partition.hops, progress=count)
    # Map the part's numbers to those of the whole graph, so that caches of parts can be compared.
    begin = partition.numbering.begin
    numbers = torch.cat([found.ids + begin(name) for name, found in structure.types.items()])
    return report, replace(use, ids=numbers[use.ids])


def _ticks(
    partition: Partition, cache: CacheTrial, progress: Progress | None, *, with_whole: bool
) -> Ticks:
    """Counts the batches of all graphs that are sampled."""
    # An epoch of a part has its training vertices as seeds, the last batch may be short.
    sizes = partition.parts.bincount(minlength=partition.num_parts).tolist()
    if with_whole:
        sizes.append(len(partition.train))
    return Ticks(progress, sum(-(-size // cache.batch_size) for size in sizes))
