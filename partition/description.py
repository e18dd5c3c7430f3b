"""Measures a partition, one part at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from ..graph import Graph
from .cache_trial import CacheTrial, CacheUse
from .extract import extract_structure
from .partition import Partition, PartVertices, Progress
from .report import CachesReport, PartitionReport, PartReport, overlap

__all__ = ["cache_of_whole", "describe"]


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
        whole: Result of :func:`cache_of_whole` with the same trial. None: it is measured here.
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
    if cache is not None:
        count = _counter(partition, cache, progress, with_whole=whole is None)
        whole = whole or cache_of_whole(partition, cache, progress=count)
    covered = torch.zeros(graph.num_nodes, dtype=torch.bool)
    parts, uses = [], []
    for part in range(partition.num_parts):
        vertices = partition.vertices(part)
        covered[vertices.ids] = True
        report, use = _describe_part(partition, part, vertices, cache, count)
        parts.append(report)
        uses += [] if use is None else [use]
    caches = None
    if cache is not None and whole is not None:
        shared, jaccard = overlap([use.ids for use in uses], graph.num_nodes)
        fanout, nbytes = cache.fanout_of(partition.hops), cache.nbytes(graph)
        caches = CachesReport(cache, fanout, nbytes, whole, tuple(uses), shared, jaccard)
    sizes = (graph.num_nodes, graph.num_edges, tuple(parts), int(covered.sum()))
    return PartitionReport(partition.method, partition.hops, *sizes, caches, partition.lost)


def cache_of_whole(
    partition: Partition, cache: CacheTrial, *, progress: Callable[[], object] | None = None
) -> CacheUse:
    """Trial of one cache for one process that trains on the whole graph: the same for all partitions of it."""
    graph = partition.graph
    rows = cache.rows(graph, graph.num_nodes)
    return cache.measure(graph, partition.train, rows, partition.hops, progress=progress)


def _describe_part(
    partition: Partition,
    part: int,
    vertices: PartVertices,
    cache: CacheTrial | None,
    count: Callable[[], object] | None,
) -> tuple[PartReport, CacheUse | None]:
    structure, train = extract_structure(partition.graph, vertices), partition.train_of(part)
    ends = vertices.hop_ends
    report = PartReport(
        train=len(train),
        evaluated=vertices.num_seeds - len(train),
        halo=tuple(end - begin for begin, end in itertools.pairwise(ends)),
        edges=structure.csc.num_edges,
        dropped=0 if partition.dropped is None else len(partition.dropped[part]),
        missing=structure.missing,
    )
    if cache is None:
        return report, None
    seeds = torch.searchsorted(vertices.ids[: vertices.num_seeds], train)
    rows = cache.rows(partition.graph, len(vertices.ids))
    use = cache.measure(Graph(structure.csc), seeds, rows, partition.hops, progress=count)
    return report, replace(use, ids=vertices.ids[use.ids])


def _counter(
    partition: Partition, cache: CacheTrial, progress: Progress | None, *, with_whole: bool
) -> Callable[[], object] | None:
    """Callback that counts the batches of all threads and of all graphs that are sampled."""
    if progress is None:
        return None
    sizes = partition.parts.bincount(minlength=partition.num_parts).tolist()
    sizes += [len(partition.train)] if with_whole else []
    total = sum(-(-size // cache.batch_size) for size in sizes)
    done = itertools.count(1)  # next() of it is atomic
    return lambda: progress(next(done), total)
